/* http.c: the sink that sends webhooks: one POST per event, many in flight, over persistent
 * connections. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/num.h"
#include "sink/http_impl.h"
#include "sink/kinds.h"

#define BODY_KEEP ((size_t)64 * 1024) /* a larger buffer is freed after its event */
#define READY_MAX 64                  /* descriptors per round */
#define ROUNDS_MAX 16                 /* rounds per drive */
#define BURST_NS (INT64_C(100) * MS_NS)
#define SECOND_NS (INT64_C(1000) * MS_NS)

static struct request *first_request(const struct http *h)
{
    return (struct request *)h->window.first;
}

/* Returns whether a request is delayed by the rate limit and not passed to curl yet. */
static bool is_waiting(const struct http *h)
{
    return h->window.first && first_request(h)->start_at != 0;
}

/* Reports the result of a request that curl does not hold. */
static void end_request(struct request *r, const struct sink_result *res)
{
    r->start_at = 0;
    if (r->body.cap > BODY_KEEP)
        buf_release(&r->body);
    if (r->head.cap > BODY_KEEP)
        buf_release(&r->head);
    window_end(&r->h->window, &r->f, res);
}

/* Builds the request and passes it to curl. */
static void start_request(struct http *h, struct request *r)
{
    struct error err;
    r->start_at = 0;
    r->got = r->got_headers = 0;
    r->said = 0;
    r->refused = NULL;
    r->no_socket = 0;
    r->why[0] = '\0';
    int rc = 0;
    if (!r->easy && !http_setup_easy(r))
        rc = err_nomem(&err);
    if (rc == 0)
        rc = http_request_make(r, &err);
    if (rc == 0) {
        curl_easy_setopt(r->easy, CURLOPT_FRESH_CONNECT, (long)(h->no_reuse || r->resent));
        CURLMcode added = curl_multi_add_handle(h->multi, r->easy);
        if (added != CURLM_OK)
            rc = err_set(&err, ERR_UNAVAILABLE, "%s", curl_multi_strerror(added));
    }
    if (rc != 0) {
        struct sink_result res = sink_unsent(&err);
        end_request(r, &res);
        return;
    }
    h->timer = 0;
}

/* Removes a request from curl and reports its result. If the endpoint asked for a pause, the sink
 * sends nothing until the pause ends. */
static void take_back(struct http *h, struct request *r, const struct sink_result *res)
{
    curl_multi_remove_handle(h->multi, r->easy);
    if (res->status == SINK_DOWN && res->retry_after_ms > 0) {
        h->hold_until = clock_mono(h->base.cfg.clock) + res->retry_after_ms * MS_NS;
        h->hold_status = res->native;
    }
    end_request(r, res);
}

/* ---- submitting ---- */

/* Reports a result for the first delivery without sending it if none is in flight: an idle sink
 * must accept one. Returns how many deliveries it accepted. */
static size_t answer_one(struct http *h, struct delivery *const *d, size_t n,
                         const struct sink_result *res)
{
    if (h->window.count > 0 || n == 0)
        return 0;
    sink_done(&h->base, d[0], res);
    return 1;
}

/* Starts a request. If the rate limit does not allow it yet, an idle sink accepts the event and
 * delays the request; any other returns false. Requests are spaced evenly, except for bursts of up
 * to a tenth of a second's worth. */
static bool take_event(struct http *h, struct delivery *d, int64_t now)
{
    int64_t turn = now;
    if (h->o->rate) {
        int64_t every = SECOND_NS / h->o->rate;
        int64_t slack = max_i64(0, BURST_NS - every);
        turn = max_i64(now, h->rate_next - slack);
        if (turn > now && h->window.count > 0) {
            h->rate_again = turn;
            return false;
        }
        h->rate_next = max_i64(h->rate_next, now) + every;
    }

    struct request *r = (struct request *)window_add(&h->window, d, NULL);
    r->h = h;
    r->resent = false;
    r->start_at = turn > now ? turn : 0;
    if (turn == now)
        start_request(h, r);
    return true;
}

static size_t http_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct http *h = (struct http *)sk;
    int64_t now = clock_mono(sk->cfg.clock);
    struct error err;
    char text[HTTP_TEXT];
    if (http_setup_refresh(h, &err) != 0) {
        struct sink_result res = {.status = SINK_DOWN, .native = err.native, .text = err.text};
        return answer_one(h, d, n, &res);
    }
    if (now < h->hold_until) {
        /* The pause applies even if other requests in flight have closed the engine's circuit
         * again. */
        int64_t left_ms = (h->hold_until - now) / MS_NS + 1;
        snprintf(text, sizeof text,
                 "%s: HTTP %d; the endpoint asked for a pause, which lasts another %lld s",
                 h->where, h->hold_status, (long long)((left_ms + 999) / 1000));
        struct sink_result res = {
            .status = SINK_DOWN, .native = h->hold_status, .text = text, .retry_after_ms = left_ms};
        return answer_one(h, d, n, &res);
    }

    size_t k = 0;
    while (k < n && h->window.count < h->window.max && take_event(h, d[k], now))
        k++;
    return k;
}

/* ---- driving ---- */

/* Returns whether a request failed because of a connection that it may have shared with others. An
 * endpoint that shuts down (GOAWAY) refuses requests that it has not processed. curl resends most
 * of these, but not all, and gives up on one that is refused repeatedly. */
static bool ended_with_others(const struct request *r, CURLcode rc)
{
    static const CURLcode codes[] = {CURLE_HTTP2, CURLE_HTTP2_STREAM, CURLE_PARTIAL_FILE,
                                     CURLE_SEND_ERROR, CURLE_RECV_ERROR};
    if (!r->h->shares || r->got_headers > 0)
        return false;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (rc == codes[i])
            return true;
    }
    return false;
}

/* Reports the results of the requests that curl has completed. */
static void collect_answers(struct http *h)
{
    char text[HTTP_TEXT];
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(h->multi, &left))) {
        struct request *r = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode rc = m->data.result; /* m is invalid after the next call */
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&r);
        if (ended_with_others(r, rc) && !r->resent) {
            /* Resend it once over a new connection. This requires a new handle: curl counts resends
             * over the lifetime of a handle, and gives up at the sixth. */
            curl_multi_remove_handle(h->multi, r->easy);
            curl_easy_cleanup(r->easy);
            r->easy = NULL;
            r->resent = true;
            start_request(h, r);
            continue;
        }
        struct sink_result res = http_request_result(r, rc, text);
        take_back(h, r, &res);
    }
}

/* Lets curl handle its timer and the sockets that are ready. */
static void work_on_sockets(struct http *h, int64_t now)
{
    struct epoll_event evs[READY_MAX];
    int n = READY_MAX, running;
    if (now >= h->timer)
        curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    for (int round = 0; round < ROUNDS_MAX && n == READY_MAX; round++) {
        n = epoll_wait(h->epfd, evs, READY_MAX, 0);
        for (int i = 0; i < n; i++) {
            int bits = 0;
            if (evs[i].events & EPOLLIN)
                bits |= CURL_CSELECT_IN;
            if (evs[i].events & EPOLLOUT)
                bits |= CURL_CSELECT_OUT;
            if (evs[i].events & (EPOLLERR | EPOLLHUP))
                bits |= CURL_CSELECT_ERR;
            curl_multi_socket_action(h->multi, evs[i].data.fd, bits, &running);
        }
    }
    collect_answers(h);
}

static void http_drive(struct sink *sk)
{
    struct http *h = (struct http *)sk;
    int64_t now = clock_mono(sk->cfg.clock);
    char text[HTTP_TEXT];
    if (now >= h->rate_again)
        h->rate_again = CLOCK_NEVER;
    if (is_waiting(h)) {
        if (now < first_request(h)->start_at)
            return;
        h->window.first->since = now; /* its timeout starts when its delay ends */
        start_request(h, first_request(h));
    }
    if (!h->window.first)
        return;
    work_on_sockets(h, now);
    while (now >= window_due(&h->window)) {
        struct sink_result res = http_request_late(first_request(h), text);
        take_back(h, first_request(h), &res);
    }

    long ms = -1;
    curl_multi_timeout(h->multi, &ms);
    h->timer = ms < 0 ? CLOCK_NEVER : now + ms * MS_NS;
    if (ms == 0)
        h->timer = 0;
}

static void http_cancel(struct sink *sk)
{
    static const struct sink_result cancelled = {.status = SINK_CANCELLED, .text = "cancelled"};
    struct http *h = (struct http *)sk;
    if (is_waiting(h))
        end_request(first_request(h), &cancelled);
    if (h->window.first)
        work_on_sockets(h, clock_mono(sk->cfg.clock)); /* results that have already arrived */
    while (h->window.first)
        take_back(h, first_request(h), &cancelled);
}

static size_t http_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    struct http *h = (struct http *)sk;
    if (!h->window.first || is_waiting(h) || !max)
        return 0;
    out[0] = (struct pollfd){h->epfd, POLLIN, 0};
    return 1;
}

static int64_t http_deadline(struct sink *sk)
{
    const struct http *h = (const struct http *)sk;
    if (!h->window.first)
        return CLOCK_NEVER;
    if (is_waiting(h))
        return min_i64(h->rate_again, first_request(h)->start_at);
    return min_i64(h->rate_again, min_i64(h->timer, window_due(&h->window)));
}

/* ---- opening and closing ---- */

static void http_close(struct sink *sk)
{
    struct http *h = (struct http *)sk;
    struct request *all = (struct request *)(void *)h->window.items;
    for (size_t i = 0; i < h->window.max; i++) {
        curl_easy_cleanup(all[i].easy);
        buf_release(&all[i].head);
        buf_release(&all[i].body);
    }
    http_teardown(h);
    if (h->epfd >= 0)
        close(h->epfd);
    window_release(&h->window);
    free(h);
}

static int http_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    const bool tls = strncmp(cfg->url, "https:", 6) == 0;
    size_t max = max_size(1, (size_t)max_i64(0, cfg->concurrency));
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return err_nomem(err);
    h->base = (struct sink){.ops = tls ? &https_ops : &http_ops, .cfg = *cfg};
    h->tls = tls;
    h->epfd = -1;
    h->rate_again = CLOCK_NEVER;
    if (window_init(&h->window, &h->base, max, sizeof(struct request), err) != 0)
        goto fail;
    struct request *all = (struct request *)(void *)h->window.items;
    for (size_t i = 0; i < max; i++) {
        all[i].h = h;
        buf_init(&all[i].head, HTTP_HEAD_MAX);
        buf_init(&all[i].body, HTTP_BODY_MAX);
    }

    h->epfd = fd_above_stdio(epoll_create1(EPOLL_CLOEXEC));
    if (h->epfd < 0) {
        err_errno(err, ERR_UNAVAILABLE, errno, "could not create an epoll instance for webhooks");
        goto fail;
    }
    if (http_setup(h, err) != 0)
        goto fail;
    *ret = &h->base;
    return 0;
fail:
    http_close(&h->base);
    return -1;
}

static int http_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct request *r = (struct request *)(void *)((struct http *)sk)->window.items;
    char text[HTTP_TEXT] = "";
    if (!r->easy && !http_setup_easy(r))
        return err_nomem(err);
    curl_easy_setopt(r->easy, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(r->easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    CURLcode rc = curl_easy_perform(r->easy);
    if (rc == CURLE_OK)
        return 0;
    http_request_result(r, rc, text);
    return err_set(err, ERR_UNAVAILABLE, "%s", text);
}

#define HTTP_OPS(name, scheme_, synopsis_, help_) \
    const struct sink_ops name = { \
        .scheme = scheme_, \
        .synopsis = synopsis_, \
        .help = help_, \
        .open = http_open, \
        .close = http_close, \
        .submit = http_submit, \
        .drive = http_drive, \
        .fds = http_fds, \
        .deadline = http_deadline, \
        .cancel = http_cancel, \
        .probe = http_probe, \
    }

HTTP_OPS(https_ops, "https", "https://HOST/PATH",
         "POSTs each event as a CloudEvent, signed with webhook-secret-file; 2xx means delivered");
HTTP_OPS(http_ops, "http", "http://HOST/PATH",
         "the same without encryption, for this machine and trusted networks");
