/* http.c: webhooks: one POST per event, many at once, over connections that are kept. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/json.h"
#include "event/cloudevents.h"
#include "sink/http_impl.h"
#include "sink/kinds.h"

#define ID_MAX 255 /* bytes; a UUID has 36 */
/* 64 KiB of headers, everything in them percent-encoded, and the rest */
#define HEAD_MAX ((size_t)256 * 1024)
#define BODY_MAX ((size_t)2 << 30)
#define BODY_KEEP ((size_t)64 * 1024) /* a buffer that grew beyond is not kept for the next event */
#define ROUNDS_MAX 16                 /* of 64 descriptors each, in one drive */
#define BURST_NS (INT64_C(100) * MS_NS)
#define SECOND_NS (INT64_C(1000) * MS_NS)

/* ---- slots ---- */

static struct request *slot_take(struct http *h, struct delivery *d)
{
    struct request *r = h->free;
    h->free = r->next;
    h->busy++;
    r->d = d;
    r->prev = r->next = NULL;
    r->start_at = 0;
    r->got = r->got_headers = 0;
    r->said = 0;
    r->refused = NULL;
    r->no_socket = 0;
    r->why[0] = '\0';
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
    *(h->last ? &h->last->next : &h->first) = r;
    h->last = r;
}

static void list_drop(struct http *h, struct request *r)
{
    *(r->prev ? &r->prev->next : &h->first) = r->next;
    *(r->next ? &r->next->prev : &h->last) = r->prev;
}

/* ---- a request ---- */

static void add_lines(struct http *h, struct request *r, const struct cloudevents_headers *more,
                      struct str body)
{
    const struct event *ev = r->d->ev;
    struct buf *b = &r->head;
    struct signature_message m = {ev->id, clock_wall(h->base.cfg.clock) / 1000, body};
    bool structured = h->o->mode == HTTP_STRUCTURED;
    buf_clear(b);
    buf_addf(b, "content-type: %s%c",
             structured ? "application/cloudevents+json" : "application/json", 0);
    buf_adds(b, "webhook-id: ");
    buf_addstr(b, ev->id); /* check_event has looked at it */
    buf_addc(b, '\0');
    buf_addf(b, "webhook-timestamp: %lld%c", (long long)m.timestamp, 0);
    if (h->keys) {
        buf_adds(b, "webhook-signature: ");
        signature_add(b, h->keys, &m);
        buf_addc(b, '\0');
    }
    buf_addf(b, "outbox-attempt: %d%c", r->d->attempt, 0);
    buf_addf(b, "Expect:%c", 0); /* large bodies go out without asking first */
    if (!structured)
        cloudevents_binary(b, ev, h->source, more);
    cloudevents_trace(b, more);
    buf_add(b, h->extra.p, h->extra.n);
}

/* link_lines makes the list that curl wants; false: there are too many. */
static bool link_lines(struct request *r)
{
    const struct buf *b = &r->head;
    size_t n = 0;
    for (size_t at = 0; at < b->n; at += strlen(b->p + at) + 1, n++) {
        if (n == HTTP_LINES_MAX)
            return false;
        r->lines[n] = (struct curl_slist){b->p + at, NULL};
        if (n)
            r->lines[n - 1].next = &r->lines[n];
    }
    return true;
}

/* check_text: a header line is no place for more than an event may have. JSON is, but it must be
 * text. */
static int check_text(const struct http *h, const char *name, struct str s, size_t max,
                      struct error *err)
{
    bool binary = h->o->mode == HTTP_BINARY;
    if (binary && s.n > max)
        return err_set(err, ERR_INVALID, "its %s has %zu bytes; in a header line it may have %zu",
                       name, s.n, max);
    if (!binary && s.n && !utf8_valid(s, NULL))
        return err_set(err, ERR_INVALID, "its %s is not UTF-8", name);
    return 0;
}

/* check_event refuses what no request can say. ERR_INVALID. */
static int check_event(const struct http *h, const struct event *ev, struct error *err)
{
    static const char plain[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.";
    bool sound = ev->id.n > 0 && ev->id.n <= ID_MAX;
    for (size_t i = 0; sound && i < ev->id.n; i++)
        sound = memchr(plain, ev->id.p[i], sizeof plain - 1);
    if (!sound)
        return err_set(err, ERR_INVALID, "its id is none that a header line could have");
    if (check_text(h, "type", ev->type, EVENT_TYPE_MAX, err) != 0)
        return -1;
    if (check_text(h, "aggregate_type", ev->aggregate_type, EVENT_KEY_MAX, err) != 0)
        return -1;
    if (check_text(h, "aggregate_id", ev->aggregate_id, EVENT_KEY_MAX, err) != 0)
        return -1;
    return check_text(h, "tenant", ev->tenant, EVENT_KEY_MAX, err);
}

/* prepare makes the request. ERR_INVALID: this event cannot be one, ever. */
static int prepare(struct http *h, struct request *r, struct error *err)
{
    struct str body = r->d->ev->payload;
    struct cloudevents_headers more;
    if (check_event(h, r->d->ev, err) != 0)
        return -1;
    if (cloudevents_headers(r->d->ev, &more, err) != 0)
        return -1;
    if (h->o->mode == HTTP_STRUCTURED) {
        buf_clear(&r->body);
        cloudevents_structured(&r->body, r->d->ev, h->source, &more);
        body = (struct str){r->body.p, r->body.n};
    } else if (!body.p) {
        body = STR("null");
    }
    add_lines(h, r, &more, body);

    if (r->head.full)
        return err_set(err, ERR_INVALID, "its headers take more than %zu bytes", HEAD_MAX);
    if (r->body.full)
        return err_set(err, ERR_INVALID, "it takes more than %zu bytes", BODY_MAX);
    if (r->head.failed || r->body.failed)
        return err_nomem(err);
    if (!link_lines(r))
        return err_set(err, ERR_INVALID, "the event has too many headers for a request");
    curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, r->lines);
    curl_easy_setopt(r->easy, CURLOPT_POSTFIELDS, body.p);
    curl_easy_setopt(r->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body.n);
    return 0;
}

/* hand_over gives the request to curl. */
static int hand_over(struct http *h, struct request *r, struct error *err)
{
    if (!r->easy && !http_setup_easy(r))
        return err_nomem(err);
    if (prepare(h, r, err) != 0)
        return -1;
    CURLMcode rc = curl_multi_add_handle(h->multi, r->easy);
    return rc == CURLM_OK ? 0 : err_set(err, ERR_UNAVAILABLE, "%s", curl_multi_strerror(rc));
}

static void start(struct http *h, struct request *r, int64_t now)
{
    struct error err;
    if (h->waiting == r)
        h->waiting = NULL;
    r->start_at = 0;
    if (hand_over(h, r, &err) != 0) {
        enum sink_status status = err.code == ERR_INVALID ? SINK_REJECT : SINK_DOWN;
        slot_end(r, &(struct sink_result){
                        .status = status, .text = err.text, .unasked = status == SINK_REJECT});
        return;
    }
    r->due = now + h->base.cfg.timeout_ms * MS_NS;
    list_add(h, r);
    h->timer = 0;
}

/* leave takes a request back from curl and answers for it. */
static void leave(struct http *h, struct request *r, const struct sink_result *res)
{
    curl_multi_remove_handle(h->multi, r->easy);
    list_drop(h, r);
    if (res->status == SINK_DOWN && res->retry_after_ms > 0) {
        h->hold_until = clock_mono(h->base.cfg.clock) + res->retry_after_ms * MS_NS;
        h->hold_status = res->native;
    }
    slot_end(r, res);
}

/* ---- submit ---- */

/* rate_turn says when the next request may go: evenly, give or take a tenth of a second's worth at
 * once. */
static int64_t rate_turn(const struct http *h, int64_t now)
{
    int64_t every = SECOND_NS / h->o->rate, slack = every < BURST_NS ? BURST_NS - every : 0;
    return h->rate_next - slack > now ? h->rate_next - slack : now;
}

/* answer_held: others that were in flight may have closed the engine's circuit again; what the
 * endpoint asked for stands. */
static void answer_held(struct http *h, struct delivery *d, int64_t now)
{
    char text[HTTP_TEXT];
    int64_t left_ms = (h->hold_until - now) / MS_NS + 1;
    snprintf(text, sizeof text, "%s: HTTP %d; it asked to be left alone for another %lld s",
             h->where, h->hold_status, (long long)((left_ms + 999) / 1000));
    struct sink_result res = {
        .status = SINK_DOWN, .native = h->hold_status, .text = text, .retry_after_ms = left_ms};
    sink_done(&h->base, d, &res);
}

static size_t http_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct http *h = (struct http *)sk;
    int64_t now = clock_mono(sk->cfg.clock);
    struct error err;
    size_t k = 0;
    if (http_refresh(h, &err) != 0) {
        if (h->busy || !n)
            return 0;
        sink_done(
            sk, d[0],
            &(struct sink_result){.status = SINK_DOWN, .native = err.native, .text = err.text});
        return 1;
    }
    if (now < h->hold_until) {
        if (h->busy || !n)
            return 0;
        answer_held(h, d[0], now);
        return 1;
    }
    for (; k < n && h->free; k++) {
        int64_t at = h->o->rate ? rate_turn(h, now) : now;
        if (at > now && h->busy) {
            h->rate_again = at;
            break;
        }
        if (h->o->rate)
            h->rate_next = (h->rate_next > now ? h->rate_next : now) + SECOND_NS / h->o->rate;
        struct request *r = slot_take(h, d[k]);
        if (at == now) {
            start(h, r, now);
        } else { /* alone, it must be taken; it starts when its time comes */
            r->start_at = at;
            h->waiting = r;
        }
    }
    return k;
}

/* ---- drive ---- */

static void collect(struct http *h)
{
    char text[HTTP_TEXT];
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left));) {
        struct request *r = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&r);
        struct sink_result res = http_judge(r, m->data.result, text);
        leave(h, r, &res);
    }
}

static void poll_sockets(struct http *h)
{
    struct epoll_event evs[64];
    int n = 64, running;
    for (int round = 0; n == 64 && round < ROUNDS_MAX; round++) {
        n = epoll_wait(h->epfd, evs, 64, 0);
        for (int i = 0; i < n; i++) {
            int what = (evs[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                       (evs[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                       (evs[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
            curl_multi_socket_action(h->multi, evs[i].data.fd, what, &running);
        }
    }
}

static void set_timer(struct http *h, int64_t now)
{
    long ms = -1;
    curl_multi_timeout(h->multi, &ms);
    h->timer = ms < 0 ? CLOCK_NEVER : ms == 0 ? 0 : now + ms * MS_NS;
}

static void work(struct http *h, int64_t now)
{
    int running;
    if (now >= h->timer)
        curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    poll_sockets(h);
    collect(h);
}

static void http_drive(struct sink *sk)
{
    struct http *h = (struct http *)sk;
    char text[HTTP_TEXT];
    int64_t now = clock_mono(sk->cfg.clock);
    if (now >= h->rate_again)
        h->rate_again = CLOCK_NEVER;
    if (h->waiting && now >= h->waiting->start_at)
        start(h, h->waiting, now);
    if (!h->first)
        return;
    work(h, now);
    while (h->first && h->first->due <= now) {
        struct sink_result res = http_late(h->first, text);
        leave(h, h->first, &res);
    }
    set_timer(h, now);
}

static void http_cancel(struct sink *sk)
{
    static const struct sink_result cancelled = {.status = SINK_CANCELLED, .text = "cancelled"};
    struct http *h = (struct http *)sk;
    if (h->waiting)
        slot_end(h->waiting, &cancelled);
    if (h->first)
        work(h, clock_mono(sk->cfg.clock)); /* what has been answered already */
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
    struct http *h = (struct http *)sk;
    int64_t at = CLOCK_NEVER;
    if (!h->busy)
        return at;
    if (h->first)
        at = h->timer < h->first->due ? h->timer : h->first->due;
    if (h->waiting && h->waiting->start_at < at)
        at = h->waiting->start_at;
    return h->rate_again < at ? h->rate_again : at;
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
    for (size_t i = h->n_slots; i-- > 0;) {
        struct request *r = &h->slots[i];
        r->h = h;
        r->next = h->free;
        h->free = r;
        buf_init(&r->head, HEAD_MAX);
        buf_init(&r->body, BODY_MAX);
    }
    return 0;
}

static int open_with(const struct sink_ops *ops, const struct sink_config *cfg, struct sink **ret,
                     struct error *err)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return err_nomem(err);
    h->base = (struct sink){ops, *cfg};
    h->n_slots = cfg->concurrency > 1 ? (size_t)cfg->concurrency : 1;
    h->rate_again = CLOCK_NEVER;
    h->epfd = fd_above_stdio(epoll_create1(EPOLL_CLOEXEC));
    int rc = 0;
    if (h->epfd < 0)
        rc = err_errno(err, ERR_UNAVAILABLE, errno, "could not get ready for webhooks");
    else if (make_slots(h, err) != 0 || http_setup(h, err) != 0)
        rc = -1;
    if (rc != 0)
        http_close(&h->base);
    else
        *ret = &h->base;
    return rc;
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
