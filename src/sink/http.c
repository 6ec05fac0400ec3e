/* http.c: the sink that sends webhooks: one POST per event, many at once, over connections that are
 * kept open. */
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

#define BODY_KEEP ((size_t)64 * 1024) /* a larger buffer is not kept for the next event */
#define READY_MAX 64                  /* descriptors in one round */
#define ROUNDS_MAX 16                 /* in one drive */
#define BURST_NS (INT64_C(100) * MS_NS)
#define SECOND_NS (INT64_C(1000) * MS_NS)

/* ---- slots ---- */

/* slot_take takes a free slot for a delivery; there must be one. */
static struct request *slot_take(struct http *h, struct delivery *d)
{
    struct request *r = h->free;
    h->free = r->next;
    h->busy++;
    r->d = d;
    r->prev = r->next = NULL;
    r->start_at = 0;
    r->resent = false;
    return r;
}

/* slot_end frees the slot and answers. */
static void slot_end(struct request *r, const struct sink_result *res)
{
    struct http *h = r->h;
    struct delivery *d = r->d;
    if (h->waiting == r)
        h->waiting = NULL;
    r->d = NULL;
    r->next = h->free;
    h->free = r;
    h->busy--;
    if (r->body.cap > BODY_KEEP)
        buf_release(&r->body);
    if (r->head.cap > BODY_KEEP)
        buf_release(&r->head);
    sink_done(&h->base, d, res);
}

static void list_add(struct http *h, struct request *r)
{
    r->prev = h->last;
    r->next = NULL;
    if (h->last)
        h->last->next = r;
    else
        h->first = r;
    h->last = r;
}

static void list_drop(struct http *h, struct request *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        h->first = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        h->last = r->prev;
}

/* ---- a request ---- */

/* hand_over makes the request and gives it to curl. */
static int hand_over(struct http *h, struct request *r, struct error *err)
{
    r->got = r->got_headers = 0;
    r->said = 0;
    r->refused = NULL;
    r->no_socket = 0;
    r->why[0] = '\0';
    if (!r->easy && !http_setup_easy(r))
        return err_nomem(err);
    if (http_request_make(r, err) != 0)
        return -1;
    curl_easy_setopt(r->easy, CURLOPT_FRESH_CONNECT, (long)(h->no_reuse || r->resent));
    CURLMcode rc = curl_multi_add_handle(h->multi, r->easy);
    if (rc != CURLM_OK)
        return err_set(err, ERR_UNAVAILABLE, "%s", curl_multi_strerror(rc));
    return 0;
}

/* refuse answers for a request that could not be made. */
static void refuse(struct request *r, const struct error *err)
{
    struct sink_result res = {.status = SINK_DOWN, .text = err->text};
    if (err->code == ERR_INVALID) {
        res.status = SINK_REJECT;
        res.unasked = true;
    }
    slot_end(r, &res);
}

static void start(struct http *h, struct request *r, int64_t now)
{
    struct error err;
    if (h->waiting == r)
        h->waiting = NULL;
    r->start_at = 0;
    if (hand_over(h, r, &err) != 0) {
        refuse(r, &err);
        return;
    }
    r->due = now + h->base.cfg.timeout_ms * MS_NS;
    list_add(h, r);
    h->timer = 0;
}

/* hold stops sending for as long as the endpoint asked. */
static void hold(struct http *h, const struct sink_result *res)
{
    h->hold_until = clock_mono(h->base.cfg.clock) + res->retry_after_ms * MS_NS;
    h->hold_status = res->native;
}

/* leave takes a request back from curl and answers for it. */
static void leave(struct http *h, struct request *r, const struct sink_result *res)
{
    curl_multi_remove_handle(h->multi, r->easy);
    list_drop(h, r);
    if (res->status == SINK_DOWN && res->retry_after_ms > 0)
        hold(h, res);
    slot_end(r, res);
}

/* ---- submit ---- */

/* rate_turn returns when the next request may be sent. Requests are spaced evenly, except for
 * bursts of a tenth of a second's worth. */
static int64_t rate_turn(const struct http *h, int64_t now)
{
    if (!h->o->rate)
        return now;
    int64_t every = SECOND_NS / h->o->rate, slack = 0;
    if (every < BURST_NS)
        slack = BURST_NS - every;
    int64_t turn = h->rate_next - slack;
    return turn > now ? turn : now;
}

/* rate_count counts a request that was taken. */
static void rate_count(struct http *h, int64_t now)
{
    if (!h->o->rate)
        return;
    if (h->rate_next < now)
        h->rate_next = now;
    h->rate_next += SECOND_NS / h->o->rate;
}

/* answer_one answers for the first delivery instead of sending it, if nothing is in flight: an idle
 * sink must take one. Returns how many it took. */
static size_t answer_one(struct http *h, struct delivery *const *d, size_t n,
                         const struct sink_result *res)
{
    if (h->busy || n == 0)
        return 0;
    sink_done(&h->base, d[0], res);
    return 1;
}

/* answer_held repeats what the endpoint asked for. It holds even if other requests that were in
 * flight have closed the engine's circuit again. */
static size_t answer_held(struct http *h, struct delivery *const *d, size_t n, int64_t now)
{
    char text[HTTP_TEXT];
    int64_t left_ms = (h->hold_until - now) / MS_NS + 1;
    snprintf(text, sizeof text, "%s: HTTP %d; it asked to be left alone for another %lld s",
             h->where, h->hold_status, (long long)((left_ms + 999) / 1000));
    struct sink_result res = {
        .status = SINK_DOWN, .native = h->hold_status, .text = text, .retry_after_ms = left_ms};
    return answer_one(h, d, n, &res);
}

/* take starts a request. If it comes too early for the rate limit, it waits for its turn if it is
 * the only one, since an idle sink must take it; otherwise take returns false. */
static bool take(struct http *h, struct delivery *d, int64_t now)
{
    int64_t turn = rate_turn(h, now);
    bool early = turn > now;
    if (early && h->busy) {
        h->rate_again = turn;
        return false;
    }

    rate_count(h, now);
    struct request *r = slot_take(h, d);
    if (early) {
        r->start_at = turn;
        h->waiting = r;
    } else {
        start(h, r, now);
    }
    return true;
}

static size_t http_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct http *h = (struct http *)sk;
    int64_t now = clock_mono(sk->cfg.clock);
    struct error err;
    if (http_files_refresh(h, &err) != 0) {
        struct sink_result res = {.status = SINK_DOWN, .native = err.native, .text = err.text};
        return answer_one(h, d, n, &res);
    }
    if (now < h->hold_until)
        return answer_held(h, d, n, now);

    size_t k = 0;
    while (k < n && h->free && take(h, d[k], now))
        k++;
    return k;
}

/* ---- drive ---- */

/* ended_with_others says whether a request had no answer because something happened to a connection
 * that others may have shared. An endpoint that goes away (GOAWAY) refuses requests it has not
 * looked at. curl sends most of these again, but not all, and gives up if one is refused several
 * times. */
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

/* resend sends a request again, once, over a new connection. It takes a new handle: curl counts how
 * often it has sent something again for the whole life of a handle, and gives up from the sixth
 * on. */
static void resend(struct http *h, struct request *r)
{
    struct error err;
    curl_multi_remove_handle(h->multi, r->easy);
    curl_easy_cleanup(r->easy);
    r->easy = NULL;
    r->resent = true;
    if (hand_over(h, r, &err) == 0)
        return;
    list_drop(h, r);
    refuse(r, &err);
}

/* collect answers for the requests that curl is done with. */
static void collect(struct http *h)
{
    char text[HTTP_TEXT];
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(h->multi, &left))) {
        struct request *r = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode rc = m->data.result; /* m does not outlive the next call */
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&r);
        if (ended_with_others(r, rc) && !r->resent) {
            resend(h, r);
            continue;
        }
        struct sink_result res = http_judge(r, rc, text);
        leave(h, r, &res);
    }
}

static int select_bits(uint32_t events)
{
    int bits = 0;
    if (events & EPOLLIN)
        bits |= CURL_CSELECT_IN;
    if (events & EPOLLOUT)
        bits |= CURL_CSELECT_OUT;
    if (events & (EPOLLERR | EPOLLHUP))
        bits |= CURL_CSELECT_ERR;
    return bits;
}

/* poll_sockets lets curl work on the sockets that are ready. */
static void poll_sockets(struct http *h)
{
    struct epoll_event evs[READY_MAX];
    int n = READY_MAX, running;
    for (int round = 0; round < ROUNDS_MAX && n == READY_MAX; round++) {
        n = epoll_wait(h->epfd, evs, READY_MAX, 0);
        for (int i = 0; i < n; i++)
            curl_multi_socket_action(h->multi, evs[i].data.fd, select_bits(evs[i].events),
                                     &running);
    }
}

static void set_timer(struct http *h, int64_t now)
{
    long ms = -1;
    curl_multi_timeout(h->multi, &ms);
    if (ms < 0)
        h->timer = CLOCK_NEVER;
    else if (ms == 0)
        h->timer = 0;
    else
        h->timer = now + ms * MS_NS;
}

static void work(struct http *h, int64_t now)
{
    int running;
    if (now >= h->timer)
        curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    poll_sockets(h);
    collect(h);
}

/* end_late ends the requests whose time is up. */
static void end_late(struct http *h, int64_t now)
{
    char text[HTTP_TEXT];
    while (h->first && h->first->due <= now) {
        struct sink_result res = http_late(h->first, text);
        leave(h, h->first, &res);
    }
}

static void http_drive(struct sink *sk)
{
    struct http *h = (struct http *)sk;
    int64_t now = clock_mono(sk->cfg.clock);
    if (now >= h->rate_again)
        h->rate_again = CLOCK_NEVER;
    if (h->waiting && now >= h->waiting->start_at)
        start(h, h->waiting, now);
    if (!h->first)
        return;
    work(h, now);
    end_late(h, now);
    set_timer(h, now);
}

static void http_cancel(struct sink *sk)
{
    static const struct sink_result cancelled = {.status = SINK_CANCELLED, .text = "cancelled"};
    struct http *h = (struct http *)sk;
    if (h->waiting)
        slot_end(h->waiting, &cancelled);
    if (h->first)
        work(h, clock_mono(sk->cfg.clock)); /* for what has been answered already */
    while (h->first)
        leave(h, h->first, &cancelled);
}

static size_t http_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    struct http *h = (struct http *)sk;
    if (!h->first || !max)
        return 0;
    out[0] = (struct pollfd){h->epfd, POLLIN, 0};
    return 1;
}

static int64_t http_deadline(struct sink *sk)
{
    const struct http *h = (const struct http *)sk;
    if (!h->busy)
        return CLOCK_NEVER;
    int64_t at = h->rate_again;
    if (h->first)
        at = min_i64(at, min_i64(h->timer, h->first->due));
    if (h->waiting)
        at = min_i64(at, h->waiting->start_at);
    return at;
}

/* ---- open and close ---- */

static void http_close(struct sink *sk)
{
    struct http *h = (struct http *)sk;
    for (size_t i = 0; h->slots && i < h->n_slots; i++) {
        curl_easy_cleanup(h->slots[i].easy);
        buf_release(&h->slots[i].head);
        buf_release(&h->slots[i].body);
    }
    http_teardown(h);
    if (h->epfd >= 0)
        close(h->epfd);
    free(h->slots);
    free(h);
}

static int make_slots(struct http *h, struct error *err)
{
    h->slots = calloc(h->n_slots, sizeof *h->slots);
    if (!h->slots)
        return err_nomem(err);
    for (size_t i = h->n_slots; i > 0; i--) { /* so that the first is taken first */
        struct request *r = &h->slots[i - 1];
        r->h = h;
        r->next = h->free;
        h->free = r;
        buf_init(&r->head, HTTP_HEAD_MAX);
        buf_init(&r->body, HTTP_BODY_MAX);
    }
    return 0;
}

static int set_up(struct http *h, struct error *err)
{
    h->epfd = fd_above_stdio(epoll_create1(EPOLL_CLOEXEC));
    if (h->epfd < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not get ready for webhooks");
    if (make_slots(h, err) != 0)
        return -1;
    return http_setup(h, err);
}

static int open_with(const struct sink_ops *ops, const struct sink_config *cfg, struct sink **ret,
                     struct error *err)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return err_nomem(err);
    h->base = (struct sink){.ops = ops, .cfg = *cfg};
    h->n_slots = cfg->concurrency > 1 ? (size_t)cfg->concurrency : 1;
    h->rate_again = CLOCK_NEVER;

    if (set_up(h, err) != 0) {
        http_close(&h->base);
        return -1;
    }
    *ret = &h->base;
    return 0;
}

static int http_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    return open_with(&http_ops, cfg, ret, err);
}

static int https_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    return open_with(&https_ops, cfg, ret, err);
}

static int http_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct request *r = &((struct http *)sk)->slots[0];
    char text[HTTP_TEXT] = "";
    if (!r->easy && !http_setup_easy(r))
        return err_nomem(err);
    curl_easy_setopt(r->easy, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(r->easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    CURLcode rc = curl_easy_perform(r->easy);
    if (rc == CURLE_OK)
        return 0;
    http_judge(r, rc, text);
    return err_set(err, ERR_UNAVAILABLE, "%s", text);
}

const struct sink_ops https_ops = {
    .scheme = "https",
    .synopsis = "https://HOST/PATH",
    .help =
        "POSTs each event as a CloudEvent, signed with webhook-secret-file; 2xx means delivered",
    .open = https_open,
    .close = http_close,
    .submit = http_submit,
    .drive = http_drive,
    .fds = http_fds,
    .deadline = http_deadline,
    .cancel = http_cancel,
    .probe = http_probe,
};

const struct sink_ops http_ops = {
    .scheme = "http",
    .synopsis = "http://HOST/PATH",
    .help = "the same without encryption, for this machine and for networks you trust",
    .open = http_open,
    .close = http_close,
    .submit = http_submit,
    .drive = http_drive,
    .fds = http_fds,
    .deadline = http_deadline,
    .cancel = http_cancel,
    .probe = http_probe,
};
