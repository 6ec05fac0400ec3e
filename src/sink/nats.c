/* nats.c: the sink that publishes to a stream of NATS JetStream: many messages in flight, each with
 * a deadline of our own, answers matched by the subject they come back on. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "sink/kinds.h"
#include "sink/nats_impl.h"
#include "sink/nats_subject.h"

#define TEXT_MAX_BYTES ((size_t)256 << 20) /* one event may be large */
#define HEADER_MAX_BYTES ((size_t)1 << 20) /* one header, encoded */
#define BYTES_ENOUGH ((size_t)6 << 20)     /* in flight; one event may be larger */
#define CLOSE_MS 300                       /* how long close waits for the thread */
#define SILENCE_NS (5000 * MS_NS)          /* of a stream of our own */
#define RESEND_NS (2000 * MS_NS)           /* when an answer is missing */
#define RESEND_AFTER_MS 60000              /* circuit, lease and drain, besides the time limit */
#define NO_TIME INT64_C(30000)             /* without a time limit of deliveries */

/* Sending */

/* new_token gives the next token whose place is free: an event whose answer is missing keeps its
 * own. */
static uint64_t new_token(struct nats_sink *n)
{
    do {
        n->token++;
    } while (n->by_token[n->token & (NATS_WINDOW_MAX - 1)]);
    return n->token;
}

/* refuse ends an event that could not be sent. */
static void refuse(struct nats_sink *n, struct flight *f, const struct error *err)
{
    struct sink_result r = {.status = SINK_DOWN, .text = err->text, .native = err->native};
    if (err->code == ERR_INVALID) {
        r.status = SINK_REJECT;
        r.unasked = true;
    }
    nats_end(n, f, &r);
}

/* is_there says whether an event is among the last messages that were in the stream before we
 * began, and answers for it then. Only so many events can be: those that were in flight, here or
 * with a relay that is gone. */
static bool is_there(struct nats_sink *n, struct delivery *d)
{
    if (n->doubtful == 0)
        return false;
    n->doubtful--;
    uint64_t seq = nats_tail_find(&n->stream->tail, nats_message_id(n, d->ev));
    if (!seq)
        return false;
    nats_found(n, d, seq);
    return true;
}

/* send hands a flight to the link. With the same token it may be sent again: the answer to either
 * will do. */
static int send(struct nats_sink *n, struct flight *f, uint64_t token, struct error *err)
{
    natsMsg *msg;
    if (nats_message_make(n, f->d, token, &msg, err) != 0)
        return -1;
    bool sent = nats_message_sent(n) == 0 && nats_link_send(n->link, token, msg) == 0;
    if (!sent) {
        natsMsg_Destroy(msg);
        return err_nomem(err);
    }
    f->token = token;
    f->asked = nats_now(n);
    n->by_token[token & (NATS_WINDOW_MAX - 1)] = f;
    return 0;
}

/* send_failed answers for an event that could not be sent. If memory is short in the middle of a
 * chain, what comes next would find its link missing. */
static void send_failed(struct nats_sink *n, struct flight *f, const struct error *err)
{
    bool breaks_chain = n->set.exclusive && err->code != ERR_INVALID;
    if (breaks_chain)
        nats_give_up(n, err);
    else
        refuse(n, f, err);
}

static struct flight *take(struct nats_sink *n, struct delivery *d)
{
    struct flight *f = n->free;
    n->free = f->next;
    *f = (struct flight){.d = d, .prev = n->last, .since = nats_now(n)};
    f->bytes = event_bytes(d->ev);
    if (n->last)
        n->last->next = f;
    else
        n->first = f;
    n->last = f;
    n->count++;
    n->bytes += f->bytes;
    return f;
}

/* has_room says whether one more event can be taken. While there is no connection one is enough:
 * the others wait where they are. */
static bool has_room(const struct nats_sink *n, const struct event *ev)
{
    if (n->count == 0)
        return true;
    if (!n->ready || n->count >= (size_t)n->set.window)
        return false;
    return n->bytes + event_bytes(ev) <= BYTES_ENOUGH;
}

/* submit_one takes an event, and sends it if the link is ready; else drive does. */
static void submit_one(struct nats_sink *n, struct delivery *d)
{
    struct error err;
    if (n->ready && is_there(n, d))
        return;
    if (!n->link && nats_now(n) < n->refused_until) {
        sink_done(&n->base, d,
                  &(struct sink_result){.status = SINK_REFUSED,
                                        .native = n->refused.native,
                                        .text = n->refused.text});
        return;
    }
    struct flight *f = take(n, d);
    if (!n->link && nats_link_start(n->plan, &n->link, &err) != 0) {
        refuse(n, f, &err);
        return;
    }
    if (n->ready && send(n, f, new_token(n), &err) != 0)
        send_failed(n, f, &err);
}

/* Driving */

/* set_caution keeps the line about the stream. Only a new text gets a new address. */
static void set_caution(struct nats_sink *n)
{
    int64_t limit = n->base.cfg.timeout_ms ? n->base.cfg.timeout_ms : NO_TIME;
    char *next = n->caution[(n->cautions + 1) & 1];
    nats_stream_caution(n->stream, &n->plan->stream, limit + RESEND_AFTER_MS, next,
                        sizeof n->caution[0]);
    if (strcmp(next, n->caution[n->cautions & 1]) != 0)
        n->cautions++;
}

/* begin is called once a link is ready: what was taken meanwhile is sent. */
static void begin(struct nats_sink *n, const struct nats_news *news)
{
    struct error err;
    n->ready = true;
    n->stream = news->stream;
    n->max_payload = news->max_payload;
    n->doubtful = n->stream->tail.n > 0 ? 2 * NATS_WINDOW_MAX : 0;
    n->chain.anchored = false;
    n->chain.seq = n->stream->last_seq;
    set_caution(n);

    struct flight *f = n->first;
    if (!f)
        return;
    uint64_t seq = nats_tail_find(&n->stream->tail, nats_message_id(n, f->d->ev));
    if (seq) {
        char receipt[64];
        snprintf(receipt, sizeof receipt, "%.40s/%llu", n->set.stream, (unsigned long long)seq);
        nats_end(n, f, &(struct sink_result){.status = SINK_DELIVERED, .receipt = receipt});
    } else if (send(n, f, new_token(n), &err) != 0) {
        send_failed(n, f, &err);
    }
    if (n->link)
        nats_link_flush(n->link);
}

/* hear takes what the link has to tell. */
static void hear(struct nats_sink *n)
{
    struct nats_news news;
    nats_link_news(n->link, &news);
    const struct nats_link *link = n->link;
    for (size_t i = 0; i < news.n && n->link == link; i++)
        nats_answer_take(n, &news.answers[i]);
    if (n->link != link)
        return;
    if (news.state == NATS_LOST)
        nats_give_up(n, &news.lost);
    else if (news.state == NATS_READY && !n->ready)
        begin(n, &news);
}

static size_t nats_submit(struct sink *sk, struct delivery *const *d, size_t count)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    size_t i = 0;
    bool idle = n->link && n->count == 0;
    if (idle)
        hear(n); /* a connection that was closed meanwhile is no failure: there will be another */
    while (i < count && has_room(n, d[i]->ev))
        submit_one(n, d[i++]);
    if (n->ready)
        nats_link_flush(n->link);
    return i;
}

/* resend_at returns when to send a flight once more, if it has no answer by then. JetStream may
 * never answer, for one because the leader was killed that had it. If others were answered since,
 * this one is missing. If nobody was, only the oldest is sent again, to find out. */
static int64_t resend_at(const struct nats_sink *n, const struct flight *f)
{
    bool missing = f->asked < n->heard_at;
    if (!f->token || !(missing || f == n->first))
        return CLOCK_NEVER;
    return f->asked + RESEND_NS;
}

/* ask_again sends what misses its answer once more. JetStream knows it by its id. */
static void ask_again(struct nats_sink *n, int64_t now)
{
    bool any = false;
    struct error err;
    struct flight *f = n->first;
    while (f && f->since + RESEND_NS <= now) {
        struct flight *next = f->next;
        bool due = resend_at(n, f) <= now;
        if (due && send(n, f, f->token, &err) != 0)
            send_failed(n, f, &err);
        any = any || due;
        f = n->link ? next : NULL;
    }
    if (any && n->link)
        nats_link_flush(n->link);
}

/* silence_due returns when a stream of our own has been silent for too long: the chain that is in
 * flight may be lost with its leader, and cannot be sent again without a look at what is there. */
static int64_t silence_due(const struct nats_sink *n)
{
    if (!n->set.exclusive || !n->ready || !n->first)
        return CLOCK_NEVER;
    int64_t since = n->first->asked;
    if (since < n->heard_at)
        since = n->heard_at;
    return since + SILENCE_NS;
}

/* oldest_due returns when the oldest event in flight will have waited for too long. */
static int64_t oldest_due(const struct nats_sink *n)
{
    int64_t limit = n->base.cfg.timeout_ms, silence = silence_due(n);
    if (limit <= 0 || !n->first)
        return silence;
    int64_t due = n->first->since + limit * MS_NS;
    return due < silence ? due : silence;
}

/* patience_ms returns which of the two limits the oldest event has reached. */
static long long patience_ms(const struct nats_sink *n, int64_t now)
{
    int64_t limit = n->base.cfg.timeout_ms;
    bool timed_out = limit > 0 && now - n->first->since >= limit * MS_NS;
    if (timed_out)
        return (long long)limit;
    return SILENCE_NS / MS_NS;
}

static void check_time(struct nats_sink *n)
{
    int64_t now = nats_now(n);
    struct error err;
    if (!n->link)
        return;
    if (n->ready && !n->set.exclusive)
        ask_again(n, now);
    if (now < oldest_due(n))
        return;
    err_class(&err, ERR_UNAVAILABLE, CLASS_DOWN, ETIMEDOUT,
              "%s has not answered for %lld ms; %zu events were waiting", n->plan->url.label,
              patience_ms(n, now), n->count);
    atomic_fetch_add(&n->plan->host, 1); /* another server may do better */
    nats_give_up(n, &err);
}

static void nats_drive(struct sink *sk)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    if (n->link)
        hear(n);
    check_time(n);
}

static size_t nats_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    const struct nats_sink *n = (const struct nats_sink *)sk;
    if (!n->link || max == 0)
        return 0;
    out[0] = (struct pollfd){.fd = nats_link_fd(n->link), .events = POLLIN};
    return 1;
}

static int64_t nats_deadline(struct sink *sk)
{
    const struct nats_sink *n = (const struct nats_sink *)sk;
    int64_t due = oldest_due(n);
    for (const struct flight *f = n->first; f && !n->set.exclusive; f = f->next) {
        int64_t at = resend_at(n, f);
        if (at == CLOCK_NEVER)
            break;
        if (at < due)
            due = at;
    }
    return due;
}

/* nats_cancel looks for answers once more. The link goes with what it has not sent yet. */
static void nats_cancel(struct sink *sk)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    if (n->link)
        hear(n);
    if (n->count == 0)
        return;
    nats_link_drop(n->link, 0);
    n->link = NULL;
    n->ready = false;
    nats_end_all(n, SINK_CANCELLED, 0, "cancelled");
}

static size_t nats_marks(struct sink *sk, const struct hwm **ret)
{
    return streams_dirty(&((struct nats_sink *)sk)->streams, ret);
}

static void nats_marks_kept(struct sink *sk)
{
    streams_kept(&((struct nats_sink *)sk)->streams);
}

static const char *nats_caution(struct sink *sk)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    const char *text = n->caution[n->cautions & 1];
    return *text ? text : NULL;
}

/* Opening */

static void nats_close(struct sink *sk)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    nats_link_drop(n->link, CLOSE_MS);
    nats_plan_release(n->plan);
    streams_release(&n->streams);
    template_free(n->subject);
    buf_release(&n->name);
    buf_release(&n->text);
    buf_release(&n->header);
    nats_settings_release(&n->set);
    free(n->chain.id);
    free(n->flights);
    free(n->by_token);
    free(n);
}

static int make_subject(struct nats_sink *n, struct error *err)
{
    if (template_new(n->plan->template, &n->subject, err) != 0)
        return err_prefix(err, "nats sink: subject");
    n->fixed = template_fixed(n->subject);
    return 0;
}

static int make_flights(struct nats_sink *n, struct error *err)
{
    n->flights = calloc(NATS_WINDOW_MAX, sizeof *n->flights);
    n->by_token = calloc(NATS_WINDOW_MAX, sizeof *n->by_token);
    if (!n->flights || !n->by_token || streams_init(&n->streams) != 0)
        return err_nomem(err);
    for (size_t i = 0; i < NATS_WINDOW_MAX; i++) {
        n->flights[i].next = n->free;
        n->free = &n->flights[i];
    }
    return 0;
}

static int set_up(struct nats_sink *n, struct error *err)
{
    if (nats_plan_read(&n->base.cfg, &n->set, &n->plan, err) != 0)
        return -1;
    if (make_subject(n, err) != 0)
        return -1;
    n->style = (struct message_style){
        .format = (enum message_format)n->set.format,
        .source = str_of(n->set.source),
        .ce_prefix = "ce-",
    };
    if (n->set.exclusive && n->base.cfg.lanes > 1)
        return err_set(err, ERR_CONFIG,
                       "nats sink: exclusive=on takes one lane: of several, each would break the "
                       "other's chain");
    if (n->set.exclusive)
        n->base.caps = SINK_FAILSTOP;
    return make_flights(n, err);
}

static int nats_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    const struct sink_ops *ops;
    if (sink_find(cfg->url, &ops, err) != 0)
        return -1;
    struct nats_sink *n = calloc(1, sizeof *n);
    if (!n)
        return err_nomem(err);
    n->base = (struct sink){.ops = ops, .cfg = *cfg};
    buf_init(&n->name, NATS_SUBJECT_MAX);
    buf_init(&n->text, TEXT_MAX_BYTES);
    buf_init(&n->header, HEADER_MAX_BYTES);
    if (set_up(n, err) != 0) {
        nats_close(&n->base);
        return -1;
    }
    *ret = &n->base;
    return 0;
}

/* nats_probe connects and looks at the stream, as it would before the first event. */
static int nats_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    int64_t until = nats_now(n) + timeout_ms * MS_NS;
    if (!n->link && nats_link_start(n->plan, &n->link, err) != 0)
        return -1;
    for (;;) {
        struct nats_news news;
        nats_link_news(n->link, &news);
        if (news.state == NATS_READY) {
            begin(n, &news);
            return 0;
        }
        if (news.state == NATS_LOST) {
            *err = news.lost;
            return -1;
        }
        int64_t left_ms = (until - nats_now(n)) / MS_NS;
        if (left_ms <= 0)
            return err_set(err, ERR_UNAVAILABLE, "%s has not answered for %lld ms",
                           n->plan->url.label, (long long)timeout_ms);
        struct pollfd pfd = {.fd = nats_link_fd(n->link), .events = POLLIN};
        poll(&pfd, 1, (int)left_ms + 1);
    }
}

/* nats_broker names the server that we are at, and the one that leads the stream, as it was when
 * the link looked at it. */
static void nats_broker(struct sink *sk, struct sink_broker *ret)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    const struct broker_url *u = &n->plan->url;
    const struct broker_host *at = &u->hosts[atomic_load(&n->plan->host) % u->n_hosts];
    ret->kind = "nats";
    ret->connected = n->ready;
    sink_peer_add(ret->broker, at->host, at->port);
    if (n->ready && n->stream->leader[0])
        sink_peer_add(ret->leader, n->stream->leader, NULL);
    ret->unconfirmed = n->count;
    if (n->first)
        ret->since = n->first->since;
}

#define NATS_OPS(name, scheme_, synopsis_, help_) \
    const struct sink_ops name = { \
        .scheme = scheme_, \
        .synopsis = synopsis_, \
        .help = help_, \
        .open = nats_open, \
        .close = nats_close, \
        .submit = nats_submit, \
        .drive = nats_drive, \
        .fds = nats_fds, \
        .deadline = nats_deadline, \
        .cancel = nats_cancel, \
        .marks = nats_marks, \
        .marks_kept = nats_marks_kept, \
        .probe = nats_probe, \
        .caution = nats_caution, \
        .broker = nats_broker, \
    }

NATS_OPS(nats_ops, "nats", "nats://HOST:PORT/SUBJECT?stream=NAME",
         "publish to a stream of NATS JetStream; see docs/brokers.md");
NATS_OPS(nats_tls_ops, "nats+tls", "nats+tls://HOST:PORT/SUBJECT?stream=NAME", "the same with TLS");
