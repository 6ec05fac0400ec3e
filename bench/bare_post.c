/* bare_post: posts N bodies to a URL, IN_FLIGHT at a time, as fast as libcurl's multi interface
 * can: the ceiling for webhooks. No database, no signatures; the same number of headers and bytes,
 * over persistent connections.
 *
 *   bare_post URL N IN_FLIGHT PAYLOAD */
#include <curl/curl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "bench.h"

struct loop {
    CURLM *multi;
    int epfd;
    long timer; /* ms; -1: none */
    size_t left, flying, failed;
};

static int set_socket(CURL *easy, curl_socket_t fd, int what, void *loop, void *unused)
{
    struct loop *l = loop;
    struct epoll_event ev = {.data.fd = fd};
    (void)easy;
    (void)unused;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(l->epfd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    if (what & CURL_POLL_IN)
        ev.events |= EPOLLIN;
    if (what & CURL_POLL_OUT)
        ev.events |= EPOLLOUT;
    if (epoll_ctl(l->epfd, EPOLL_CTL_MOD, fd, &ev) != 0)
        epoll_ctl(l->epfd, EPOLL_CTL_ADD, fd, &ev);
    return 0;
}

static int set_timer(CURLM *multi, long ms, void *loop)
{
    (void)multi;
    ((struct loop *)loop)->timer = ms;
    return 0;
}

static size_t ignore(char *p, size_t size, size_t n, void *ctx)
{
    (void)p;
    (void)size;
    (void)ctx;
    return n;
}

static struct curl_slist *make_headers(void)
{
    static const char *const lines[] = {
        "content-type: application/json",
        "webhook-id: 01a1e273-7d60-7629-90e3-8463c7bee64c",
        "webhook-timestamp: 1794800582",
        "outbox-attempt: 1",
        "Expect:",
        "ce-specversion: 1.0",
        "ce-id: 01a1e273-7d60-7629-90e3-8463c7bee64c",
        "ce-source: /outbox",
        "ce-type: order.created",
        "ce-subject: order/4711",
        "ce-time: 2026-01-02T03:04:05.678Z",
    };
    struct curl_slist *list = NULL;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        list = curl_slist_append(list, lines[i]);
    return list;
}

static void start(struct loop *l, CURL *easy)
{
    if (l->left == 0)
        return;
    l->left--;
    l->flying++;
    curl_multi_add_handle(l->multi, easy);
}

static void collect(struct loop *l)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(l->multi, &left));) {
        CURL *easy = m->easy_handle;
        long code = 0;
        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
        if (m->data.result != CURLE_OK || code / 100 != 2)
            l->failed++;
        curl_multi_remove_handle(l->multi, easy);
        l->flying--;
        start(l, easy);
    }
}

/* Returns the maximum time to wait, in milliseconds. */
static int wanted(const struct loop *l)
{
    bool soon = l->timer >= 0 && l->timer <= 1000;
    return soon ? (int)l->timer : 1000;
}

/* Translates epoll events to curl's. */
static int select_of(uint32_t events)
{
    int what = 0;
    if (events & EPOLLIN)
        what |= CURL_CSELECT_IN;
    if (events & EPOLLOUT)
        what |= CURL_CSELECT_OUT;
    if (events & (EPOLLERR | EPOLLHUP))
        what |= CURL_CSELECT_ERR;
    return what;
}

static void turn(struct loop *l)
{
    struct epoll_event evs[256];
    int running;
    int n = epoll_wait(l->epfd, evs, 256, wanted(l));
    if (n == 0 || l->timer == 0) {
        l->timer = -1;
        curl_multi_socket_action(l->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    for (int i = 0; i < n; i++)
        curl_multi_socket_action(l->multi, evs[i].data.fd, select_of(evs[i].events), &running);
    collect(l);
}

static CURL *make_easy(const char *url, struct curl_slist *headers, const char *body)
{
    CURL *e = curl_easy_init();
    curl_easy_setopt(e, CURLOPT_URL, url);
    curl_easy_setopt(e, CURLOPT_PROXY, "");
    curl_easy_setopt(e, CURLOPT_POST, 1L);
    curl_easy_setopt(e, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, ignore);
    return e;
}

int main(int argc, char **argv)
{
    struct loop l = {.timer = 0};
    if (argc != 5)
        bench_die("bare_post URL N IN_FLIGHT PAYLOAD");
    size_t n = l.left = strtoul(argv[2], NULL, 10), slots = strtoul(argv[3], NULL, 10);
    struct bench_options o = {.payload = strtoul(argv[4], NULL, 10), .keys = 1};
    char *body = calloc(1, o.payload + 64);
    bench_payload(&o, 1, body);
    l.multi = curl_multi_init();
    l.epfd = epoll_create1(EPOLL_CLOEXEC);
    curl_multi_setopt(l.multi, CURLMOPT_SOCKETFUNCTION, set_socket);
    curl_multi_setopt(l.multi, CURLMOPT_SOCKETDATA, &l);
    curl_multi_setopt(l.multi, CURLMOPT_TIMERFUNCTION, set_timer);
    curl_multi_setopt(l.multi, CURLMOPT_TIMERDATA, &l);
    curl_multi_setopt(l.multi, CURLMOPT_MAXCONNECTS, (long)slots);
    struct curl_slist *headers = make_headers();
    CURL **easy = calloc(slots, sizeof(CURL *));
    for (size_t i = 0; i < slots; i++)
        easy[i] = make_easy(argv[1], headers, body);
    int64_t started = bench_now();
    for (size_t i = 0; i < slots; i++)
        start(&l, easy[i]);
    while (l.flying > 0)
        turn(&l);
    double seconds = (double)(bench_now() - started) / 1e9;
    if (l.failed)
        bench_die("%zu of %zu requests failed", l.failed, n);
    printf("{\"events\": %zu, \"seconds\": %.6f}\n", n, seconds);
    for (size_t i = 0; i < slots; i++)
        curl_easy_cleanup(easy[i]);
    curl_multi_cleanup(l.multi);
    curl_slist_free_all(headers);
    free(easy);
    free(body);
    return 0;
}
