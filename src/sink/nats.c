/* nats.c: the sink that publishes to a NATS JetStream stream: many messages in flight, each with
 * our own deadline; the subject of a reply identifies its message. JetStream's replies, and missing
 * replies, decide the results of events. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/text.h"
#include "sink/kinds.h"
#include "sink/nats_impl.h"

#define TEXT_MAX_BYTES ((size_t)256 << 20) /* one event may be large */
#define HEADER_MAX_BYTES ((size_t)1 << 20) /* one header, encoded */
#define BYTES_MAX ((size_t)6 << 20)        /* of events in flight; a single event may be larger */
#define CLOSE_MS 300                       /* maximum wait of close for the thread */
#define SILENCE_NS (5000 * MS_NS)          /* maximum silence of an exclusive stream */
#define RESEND_NS (2000 * MS_NS)           /* before an event without a reply is resent */
#define RESEND_AFTER_MS 60000    /* for circuit, lease and drain, besides the time limit */
#define REFUSED_NS (100 * MS_NS) /* before a stream that accepts nothing is queried again */
#define RECEIPT 64
#define NO_LIMIT_MS INT64_C(30000) /* for deliveries without a time limit */

static struct nats_item *first_item(const struct nats_sink *n)
{
    return (struct nats_item *)n->b.window.first;
}

/* Replies */

/* The table of replies, documented in docs/brokers.md; a test compares the two. */
static const struct nats_meaning meanings[] = {
    /* The server is unavailable, out of space, or denies access. */
    {10002, NULL, SINK_DOWN, "the account has used up its storage"},
    {10008, NULL, SINK_DOWN, "JetStream is temporarily unavailable"},
    {10009, NULL, SINK_DOWN, "the cluster has no leader at the moment"},
    {10023, NULL, SINK_DOWN, "the server has used up its storage"},
    {10028, NULL, SINK_DOWN, "the server has no memory left for streams"},
    {10039, NULL, SINK_DOWN, "JetStream is not enabled for the account"},
    {10047, NULL, SINK_DOWN, "the server has no storage left for streams"},
    {10076, NULL, SINK_DOWN, "JetStream is not enabled"},
    {10120, NULL, SINK_DOWN, "the account has no limits for this kind of stream"},

    /* The stream is unavailable; temporary. */
    {10063, NULL, SINK_DOWN, "the stream is catching up with its leader"},
    {10070, NULL, SINK_DOWN, "exclusive=on, but another client has written to the stream"},
    {10071, NULL, SINK_DOWN, "exclusive=on, but another client has written to the stream"},
    {10077, "per subject", SINK_REFUSED, "the subject is full, with discard_new_per_subject"},
    {10077, NULL, SINK_DOWN, "the stream is full, with discard=new, or could not write"},
    {10118, NULL, SINK_DOWN, "the stream is offline"},

    /* The stream or the subject. */
    {10059, NULL, SINK_REFUSED, "the stream does not exist"},
    {10060, NULL, SINK_REFUSED, "the subject belongs to a stream other than the one in the URL"},
    {10065, NULL, SINK_REFUSED, "with create=on: another stream already has these subjects"},
    {10109, NULL, SINK_REFUSED, "the stream is sealed"},

    /* Event. */
    {10054, NULL, SINK_REJECT, "larger than the stream's max_msg_size"},
    {10097, NULL, SINK_REJECT, "more than 64 KiB of headers"},

    {0, NULL, SINK_RETRY, "anything else"},
};

const struct nats_meaning *nats_answer_meaning(int code, const char *words)
{
    const struct nats_meaning *m = meanings;
    for (; m->code; m++) {
        bool matches = m->code == code && (!m->says || strstr(words, m->says));
        if (matches)
            break;
    }
    return m;
}

/* Ending events */

static void end_item(struct nats_sink *n, struct nats_item *it, const struct sink_result *r)
{
    if (it->token)
        n->by_token[it->token & (NATS_WINDOW_MAX - 1)] = NULL;
    window_end(&n->b.window, &it->f, r);
}

static void end_all(struct nats_sink *n, const struct sink_result *r)
{
    nats_link_drop(n->link, 0);
    n->link = NULL;
    n->ready = false;
    n->stream = NULL;
    memset(n->by_token, 0, NATS_WINDOW_MAX * sizeof *n->by_token);
    window_end_all(&n->b.window, r);
}

static void link_lost(struct nats_sink *n, const struct error *err)
{
    struct sink_result r = {.status = SINK_DOWN, .native = err->native, .text = err->text};
    if (err->retry_class == CLASS_FATAL)
        r.status = SINK_FATAL;
    if (err->retry_class == CLASS_RETRY) {
        r.status = SINK_REFUSED;
        n->refused = *err;
        n->refused_until = broker_now(&n->b) + REFUSED_NS;
    }
    end_all(n, &r);
}

/* Advances the high-water mark of the stream and writes the receipt. */
static void note_stored(struct nats_sink *n, uint64_t seq, char receipt[RECEIPT])
{
    snprintf(receipt, RECEIPT, "%.40s/%llu", n->plan->set.stream, (unsigned long long)seq);
    struct stream *st = window_marks_get(&n->b.marks, str_of(n->plan->set.stream));
    if (st)
        window_marks_advance(&n->b.marks, st, (int64_t)seq, 0);
}

static void found(struct nats_sink *n, struct delivery *d, uint64_t seq)
{
    char receipt[RECEIPT];
    note_stored(n, seq, receipt);
    sink_done(&n->b.base, d, &(struct sink_result){.status = SINK_DELIVERED, .receipt = receipt});
}

static void stored(struct nats_sink *n, struct nats_item *it, uint64_t seq)
{
    char receipt[RECEIPT];
    struct sink_result r = {.status = SINK_DELIVERED};
    while (n->plan->set.exclusive && n->b.window.first != &it->f)
        end_item(n, (struct nats_item *)n->b.window.first, &r);
    note_stored(n, seq, receipt);
    r.receipt = receipt;
    end_item(n, it, &r);
}

/* Ends an event that was not stored. In a chain, no later event was stored either, and the next
 * link looks up the earlier ones. An event that the server refused counts as faulty only once it is
 * the first of the chain: before that, the outcome of its predecessors is unknown. */
static void refused(struct nats_sink *n, struct nats_item *it, const struct sink_result *r)
{
    if (!n->plan->set.exclusive) {
        end_item(n, it, r);
        return;
    }
    struct sink_result others = {.status = SINK_DOWN, .native = r->native, .text = r->text};
    if (r->status == SINK_FATAL)
        others.status = SINK_FATAL;
    if (r->status == SINK_REFUSED) {
        others.status = SINK_CANCELLED;
        if (&it->f == n->b.window.first)
            end_item(n, it, r);
    }
    end_all(n, &others);
}

/* Returns the subject of an event that was sent; "" if out of memory. */
static const char *subject_of(struct nats_sink *n, const struct event *ev)
{
    struct error ignored;
    const char *subject = nats_message_subject(n, ev, &ignored);
    return subject ? subject : "";
}

/* Reports an event that no stream accepted. If the stream does not include its subject, the event
 * is refused. Otherwise the stream has no leader or was deleted; the next link finds out which. */
static void no_stream(struct nats_sink *n, struct nats_item *it)
{
    char text[600], subject[200];
    struct sink_result r = {.status = SINK_DOWN, .native = 503, .text = text};
    const char *name = subject_of(n, it->f.d->ev);
    text_clean(subject, sizeof subject, name, strlen(name));
    bool accepted = n->b.fixed || nats_stream_accepts(n->stream, str_of(name));
    if (accepted) {
        snprintf(text, sizeof text,
                 "%s: no stream accepts %s at the moment: stream %s has no leader, or was deleted",
                 n->plan->url.label, subject, n->plan->set.stream);
    } else {
        r.status = SINK_REFUSED;
        snprintf(text, sizeof text, "%s: stream %s does not include the subject %s",
                 n->plan->url.label, n->plan->set.stream, subject);
    }
    refused(n, it, &r);
    if (accepted && n->b.window.count == 0 && n->link)
        end_all(n, &r);
}

/* Ends all events for a subject that the user may not publish to. */
static void not_allowed(struct nats_sink *n, const char *subject)
{
    char text[600], clean[200];
    text_clean(clean, sizeof clean, subject, strlen(subject));
    snprintf(text, sizeof text, "%s: the user may not publish to %s", n->plan->url.label, clean);
    struct sink_result r = {.status = SINK_REFUSED, .text = text};
    struct in_flight *next;
    for (struct in_flight *f = n->b.window.first; f && n->link; f = next) {
        struct nats_item *it = (struct nats_item *)f;
        next = f->next;
        if (it->token && strcmp(subject_of(n, f->d->ev), subject) == 0)
            refused(n, it, &r);
    }
}

static void handle_answer(struct nats_sink *n, const struct nats_answer *a)
{
    if (a->kind == NATS_NOT_ALLOWED) {
        not_allowed(n, a->text);
        return;
    }
    struct nats_item *it = n->by_token[a->token & (NATS_WINDOW_MAX - 1)];
    bool awaited = it && it->token == a->token;
    if (!awaited) /* the event was cancelled */
        return;
    n->replied_at = broker_now(&n->b);

    char text[600];
    const char *said = a->text ? a->text : "";
    const struct nats_meaning *m = nats_answer_meaning(a->code, said);
    struct sink_result r = {.status = SINK_RETRY, .text = text};
    switch (a->kind) {
    case NATS_STORED: stored(n, it, a->seq); return;
    case NATS_NO_STREAM: no_stream(n, it); return;
    case NATS_REFUSED:
        r.status = m->status;
        r.native = a->code;
        snprintf(text, sizeof text, "%s, stream %s: %s (%d)", n->plan->url.label,
                 n->plan->set.stream, said[0] ? said : m->meaning, a->code);
        break;
    case NATS_TOO_LARGE:
        r.status = SINK_REJECT;
        r.text = "the message is larger than the server's max_payload";
        break;
    case NATS_NOT_ANSWERED:
    case NATS_NOT_ALLOWED:
        snprintf(
            text, sizeof text,
            "%s: the reply for stream %s is not from JetStream: does another service subscribe "
            "to its subjects and reply?",
            n->plan->url.label, n->plan->set.stream);
        break;
    }
    refused(n, it, &r);
}

/* Sending */

/* Returns the next token whose slot is free: an event without a reply keeps its slot. */
static uint64_t new_token(struct nats_sink *n)
{
    do {
        n->token++;
    } while (n->by_token[n->token & (NATS_WINDOW_MAX - 1)]);
    return n->token;
}

/* Passes an event to the link. An event may be resent with the same token; a reply to either
 * message suffices. Reports the result of an event that could not be sent. Returns whether later
 * events may be sent. */
static bool send_item(struct nats_sink *n, struct nats_item *it, uint64_t token)
{
    natsMsg *msg;
    struct error err;
    int rc = nats_message_make(n, it->f.d, token, &msg, &err);
    if (rc == 0 && (nats_message_sent(n) != 0 || nats_link_send(n->link, token, msg) != 0)) {
        natsMsg_Destroy(msg);
        rc = err_nomem(&err);
    }
    if (rc == 0) {
        it->token = token;
        it->sent_at = broker_now(&n->b);
        n->by_token[token & (NATS_WINDOW_MAX - 1)] = it;
        return true;
    }

    /* If memory runs out in the middle of a chain, the next message would lack its predecessor. */
    bool breaks_chain = n->plan->set.exclusive && err.code != ERR_INVALID;
    if (breaks_chain) {
        link_lost(n, &err);
    } else {
        struct sink_result res = sink_unsent(&err);
        end_item(n, it, &res);
    }
    return err.code == ERR_INVALID;
}

/* Returns the sequence of an event among the stream's last messages from before we connected; 0 if
 * it is not among them. Only a limited number of events can be among them: those that were in
 * flight, in this relay or in one that vanished. */
static uint64_t find_stored(struct nats_sink *n, const struct event *ev)
{
    if (n->lookups_left == 0)
        return 0;
    n->lookups_left--;
    return nats_tail_find(&n->stream->tail, nats_message_id(n, ev));
}

/* Returns whether one more event can be accepted. A disconnected sink accepts a single event: the
 * others stay with the engine. */
static bool has_room(const struct nats_sink *n, const struct event *ev)
{
    if (n->b.window.count == 0)
        return true;
    if (!n->ready || n->b.window.count >= (size_t)n->plan->set.window)
        return false;
    return n->b.window.bytes + event_bytes(ev) <= BYTES_MAX;
}

/* Accepts an event, and sends it if the link is ready; otherwise drive sends it. Returns whether
 * later events may be accepted. */
static bool submit_one(struct nats_sink *n, struct delivery *d)
{
    struct error err;
    uint64_t seq = n->ready ? find_stored(n, d->ev) : 0;
    if (seq) {
        found(n, d, seq);
        return true;
    }
    bool refused = !n->link && broker_now(&n->b) < n->refused_until;
    if (refused) {
        struct sink_result res = {
            .status = SINK_REFUSED, .native = n->refused.native, .text = n->refused.text};
        sink_done(&n->b.base, d, &res);
        return false;
    }
    if (!n->link && nats_link_start(n->plan, &n->link, &err) != 0)
        return broker_unsent(&n->b, d, &err);
    struct nats_item *it = (struct nats_item *)window_add(&n->b.window, d, NULL);
    it->token = 0;
    it->sent_at = 0;
    return !n->ready || send_item(n, it, new_token(n));
}

/* Driving */

/* Starts using a link that has become ready: sends the events accepted before that. */
static void use_link(struct nats_sink *n)
{
    int64_t limit = n->b.base.cfg.timeout_ms ? n->b.base.cfg.timeout_ms : NO_LIMIT_MS;
    char caution[BROKER_CAUTION];
    n->ready = true;
    n->stream = &n->link->stream;
    n->max_payload = n->link->max_payload;
    n->lookups_left = n->stream->tail.n > 0 ? 2 * NATS_WINDOW_MAX : 0;
    n->chain.by_id = false;
    n->chain.seq = n->stream->last_seq;
    nats_stream_caution(n->stream, &n->plan->set, limit + RESEND_AFTER_MS, caution, sizeof caution);
    broker_set_caution(&n->b, "%s", caution);

    struct nats_item *it = first_item(n);
    if (!it)
        return;
    uint64_t seq = find_stored(n, it->f.d->ev);
    if (seq)
        stored(n, it, seq);
    else
        send_item(n, it, new_token(n));
    if (n->link)
        nats_link_flush(n->link);
}

/* Handles the link's updates. */
static void poll_link(struct nats_sink *n)
{
    struct nats_link *link = n->link;
    enum nats_link_state state = nats_link_poll(link);
    for (size_t i = 0; n->link == link && i < link->reading.n; i++)
        handle_answer(n, &link->reading.at[i]);
    if (n->link != link)
        return;
    if (state == NATS_LOST) {
        struct error lost = link->lost; /* the link ends with its events */
        link_lost(n, &lost);
    } else if (state == NATS_READY && !n->ready) {
        use_link(n);
    }
}

static size_t nats_submit(struct sink *sk, struct delivery *const *d, size_t count)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    size_t i = 0;
    bool idle = n->link && n->b.window.count == 0;
    if (idle)
        poll_link(n); /* an idle connection that was closed is replaced, which is not a failure */
    bool more = true;
    while (more && i < count && has_room(n, d[i]->ev))
        more = submit_one(n, d[i++]);
    if (n->ready)
        nats_link_flush(n->link);
    return i;
}

/* Returns when to resend an event without a reply. JetStream may never reply, for example if the
 * leader was killed. If later events got replies, this event's reply is lost. Otherwise only the
 * oldest event is resent, as a probe. */
static int64_t resend_at(const struct nats_sink *n, const struct nats_item *it)
{
    bool missing = it->sent_at < n->replied_at;
    if (!it->token || !(missing || &it->f == n->b.window.first))
        return CLOCK_NEVER;
    return it->sent_at + RESEND_NS;
}

/* Resends events without a reply. JetStream deduplicates by id. */
static void resend_missing(struct nats_sink *n, int64_t now)
{
    bool any = false;
    struct in_flight *next;
    for (struct in_flight *f = n->b.window.first; f && n->link && f->since + RESEND_NS <= now;
         f = next) {
        struct nats_item *it = (struct nats_item *)f;
        next = f->next;
        if (resend_at(n, it) > now)
            continue;
        send_item(n, it, it->token);
        any = true;
    }
    if (any && n->link)
        nats_link_flush(n->link);
}

/* Returns when an exclusive stream has been silent for too long: the chain in flight may be lost
 * with its leader, and is resent only after checking which of its events were stored. */
static int64_t silence_due(const struct nats_sink *n)
{
    if (!n->plan->set.exclusive || !n->ready || !n->b.window.first)
        return CLOCK_NEVER;
    return max_i64(first_item(n)->sent_at, n->replied_at) + SILENCE_NS;
}

static void nats_drive(struct sink *sk)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    struct error err;
    if (n->link)
        poll_link(n);
    if (!n->link)
        return;
    int64_t now = broker_now(&n->b);
    if (n->ready && !n->plan->set.exclusive)
        resend_missing(n, now);
    int64_t late = window_due(&n->b.window), silent = silence_due(n);
    if (now < late && now < silent)
        return;
    int64_t limit_ms = now >= late ? n->b.base.cfg.timeout_ms : SILENCE_NS / MS_NS;
    err_class(&err, ERR_UNAVAILABLE, CLASS_DOWN, ETIMEDOUT,
              "%s has not answered for %lld ms; %zu events were waiting", n->plan->url.label,
              (long long)limit_ms, n->b.window.count);
    atomic_fetch_add(&n->plan->host, 1); /* try another server */
    link_lost(n, &err);
}

static size_t nats_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    const struct nats_sink *n = (const struct nats_sink *)sk;
    if (!n->link || max == 0)
        return 0;
    out[0] = (struct pollfd){.fd = n->link->update_fd, .events = POLLIN};
    return 1;
}

static int64_t nats_deadline(struct sink *sk)
{
    const struct nats_sink *n = (const struct nats_sink *)sk;
    int64_t due = min_i64(window_due(&n->b.window), silence_due(n));
    for (const struct in_flight *f = n->b.window.first; f && !n->plan->set.exclusive; f = f->next) {
        int64_t at = resend_at(n, (const struct nats_item *)f);
        if (at == CLOCK_NEVER)
            break;
        due = min_i64(due, at);
    }
    return due;
}

/* Checks for replies once more, and drops the link with its unsent messages. */
static void nats_cancel(struct sink *sk)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    if (n->link)
        poll_link(n);
    if (n->b.window.count > 0)
        end_all(n, &(struct sink_result){.status = SINK_CANCELLED, .text = "cancelled"});
}

/* Reports the server that we are connected to, and the stream's leader when the link became
 * ready. */
static void nats_broker(struct sink *sk, struct sink_broker *ret)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    const struct url *u = &n->plan->url;
    const struct url_host *at = &u->hosts[atomic_load(&n->plan->host) % u->n_hosts];
    ret->kind = "nats";
    ret->connected = n->ready;
    sink_peer_add(ret->broker, at->host, at->port);
    if (n->ready && n->stream->leader[0])
        sink_peer_add(ret->leader, n->stream->leader, NULL);
    window_describe(&n->b.window, ret);
}

/* Opening */

static void nats_close(struct sink *sk)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    nats_link_drop(n->link, CLOSE_MS);
    nats_plan_release(n->plan);
    buf_release(&n->header);
    free(n->chain.id);
    free(n->by_token);
    broker_close(sk);
}

static int nats_set_up(struct sink *sk, struct error *err)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    buf_init(&n->header, HEADER_MAX_BYTES);
    if (nats_plan_read(&sk->cfg, &n->plan, err) != 0)
        return -1;
    const struct nats_settings *set = &n->plan->set;
    struct message_style style = {set->format, str_of(set->source), "ce-"};
    if (broker_route(&n->b, n->plan->url.path, style, err) != 0)
        return -1;
    if (set->exclusive && sk->cfg.lanes > 1)
        return err_set(err, ERR_CONFIG,
                       "nats sink: exclusive=on requires one lane: several lanes would break "
                       "each other's chains");
    if (set->exclusive)
        sk->caps = SINK_FAILSTOP;
    n->by_token = calloc(NATS_WINDOW_MAX, sizeof *n->by_token);
    return n->by_token ? 0 : err_nomem(err);
}

static const struct broker_kind nats_kind = {
    .name = "nats",
    .destination = "subject",
    .size = sizeof(struct nats_sink),
    .in_flight = NATS_WINDOW_MAX,
    .item_size = sizeof(struct nats_item),
    .name_max = NATS_SUBJECT_MAX,
    .message_max = TEXT_MAX_BYTES,
    .escape = nats_subject_escape,
    .set_up = nats_set_up,
};
BROKER_OPEN(nats)

/* Connects and queries the stream, as the sink does before its first event. */
static int nats_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct nats_sink *n = (struct nats_sink *)sk;
    int64_t until = broker_now(&n->b) + timeout_ms * MS_NS;
    if (!n->link && nats_link_start(n->plan, &n->link, err) != 0)
        return -1;
    for (;;) {
        enum nats_link_state state = nats_link_poll(n->link);
        if (state == NATS_READY) {
            use_link(n);
            return 0;
        }
        if (state == NATS_LOST) {
            *err = n->link->lost;
            return -1;
        }
        int64_t left_ms = (until - broker_now(&n->b)) / MS_NS;
        if (left_ms <= 0)
            return err_set(err, ERR_UNAVAILABLE, "%s has not answered for %lld ms",
                           n->plan->url.label, (long long)timeout_ms);
        struct pollfd pfd = {.fd = n->link->update_fd, .events = POLLIN};
        poll(&pfd, 1, (int)left_ms + 1);
    }
}

const struct sink_ops nats_ops = {
    BROKER_OPS(nats, "nats", "nats://HOST:PORT/SUBJECT?stream=NAME",
               "publish to a stream of NATS JetStream; see docs/brokers.md")};
const struct sink_ops nats_tls_ops = {
    BROKER_OPS(nats, "nats+tls", "nats+tls://HOST:PORT/SUBJECT?stream=NAME", "the same with TLS")};
