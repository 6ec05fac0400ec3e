/* redis.c: the sink that appends to Redis Streams: one XADD per event, hundreds in flight, answers
 * matched one by one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/text.h"
#include "event/envelope.h"
#include "redis/reply.h"
#include "sink/kinds.h"
#include "sink/redis_impl.h"

#define OUT_MAX ((size_t)2 << 30)         /* ceiling of what is queued: one event may be large */
#define IN_MAX ((size_t)1 << 20)          /* ids, numbers, errors */
#define OUT_ENOUGH ((size_t)4 << 20)      /* then take no more until some is written */
#define NAME_MAX_BYTES ((size_t)16 << 10) /* of a stream */
/* connections an event may cost before it is held against it */
#define CUTS_MAX 3
/* what is larger travels alone: limits of a server are 1 MiB at the least */
#define ALONE_BYTES ((size_t)960 << 10)
#define LATER_MIN_MS 1000 /* how long an event waits whose stream takes nothing */
#define LATER_MAX_MS 60000

static struct request *at(const struct redis_sink *r, size_t i)
{
    return &r->ring[i & (REDIS_WINDOW - 1)];
}

struct request *redis_push(struct redis_sink *r, enum request_kind kind)
{
    struct request *q = at(r, r->next++);
    *q = (struct request){.kind = kind, .since = redis_now(r)};
    return q;
}

/* Answers */

static void answer(struct redis_sink *r, struct request *q, const struct sink_result *res)
{
    struct delivery *d = q->d;
    q->d = NULL;
    q->stream->flying--;
    r->events--;
    if (d->ev->seq == r->suspect)
        r->suspect = r->cuts = 0;
    sink_done(&r->base, d, res);
}

/* answer_added: an id beyond all clocks, which somebody has set by hand, is a receipt, but no mark
 * that a store could keep. */
static void answer_added(struct redis_sink *r, struct request *q, const char *id)
{
    int64_t hi, lo;
    if (redis_id(id, &hi, &lo))
        streams_note(&r->streams, q->stream, hi, lo);
    q->stream->refused_since = 0;
    answer(r, q, &(struct sink_result){.status = SINK_DELIVERED, .receipt = id});
}

/* status_of says what an error reply means for the event. What is about a stream is about every
 * event, if they all go there; if not, those of that stream wait, and others go on. */
static enum sink_status status_of(const struct redis_sink *r, enum redis_fault fault)
{
    switch (fault) {
    case REDIS_FAULT_STREAM: return r->fixed ? SINK_DOWN : SINK_LATER;
    case REDIS_FAULT_AWAY:
    case REDIS_FAULT_LOGIN:
    case REDIS_FAULT_SETUP: return SINK_DOWN;
    case REDIS_FAULT_SIZE: return SINK_REJECT;
    case REDIS_FAULT_SCRIPT:
    case REDIS_FAULT_UNKNOWN: break;
    }
    return SINK_RETRY;
}

/* wait_for_stream: as long as it has taken nothing already, within bounds. */
static int64_t wait_for_stream(struct redis_sink *r, struct stream *st)
{
    int64_t now = redis_now(r);
    if (!st->refused_since)
        st->refused_since = now;
    int64_t ms = (now - st->refused_since) / MS_NS;
    if (ms < LATER_MIN_MS)
        return LATER_MIN_MS;
    return ms > LATER_MAX_MS ? LATER_MAX_MS : ms;
}

static void answer_error(struct redis_sink *r, struct request *q, const redisReply *reply)
{
    char said[REDIS_TEXT], name[201], text[2 * REDIS_TEXT + 400];
    struct sink_result res = {.status = status_of(r, redis_fault_of(reply->str)), .text = text};
    const char *advice = redis_advice_of(reply->str);
    redis_conn_text(&r->conn, reply, said);
    text_clean(name, sizeof name, q->stream->name, q->stream->n);
    if (advice)
        snprintf(text, sizeof text, "%s, stream %s: %s (%s)", r->url.label, name, said, advice);
    else
        snprintf(text, sizeof text, "%s, stream %s: %s", r->url.label, name, said);
    if (res.status == SINK_LATER)
        res.retry_after_ms = wait_for_stream(r, q->stream);
    if (redis_reconnects(reply->str))
        r->stale = true;
    answer(r, q, &res);
}

static void answer_odd(struct redis_sink *r, struct request *q)
{
    char name[61], text[400];
    text_clean(name, sizeof name, q->stream->name, q->stream->n);
    snprintf(text, sizeof text, "%s gave no id for an entry of stream %s", r->url.label, name);
    answer(r, q, &(struct sink_result){.status = SINK_RETRY, .text = text});
}

/* forget_first drops answered requests from the front of the ring, as far as the last one heard
 * of. */
static void forget_first(struct redis_sink *r)
{
    while (r->first < r->heard && !at(r, r->first)->d)
        r->first++;
}

/* confirmed: the WAIT has been answered, with how many replicas have what stands before it. */
static void confirmed(struct redis_sink *r, const redisReply *reply)
{
    char said[REDIS_TEXT] = "", text[2 * REDIS_TEXT];
    bool error = reply->type == REDIS_REPLY_ERROR;
    bool enough = reply->type == REDIS_REPLY_INTEGER && reply->integer >= r->set.replicas;
    if (error)
        redis_conn_text(&r->conn, reply, said);
    else
        snprintf(said, sizeof said, "%lld of %lld replicas have it", reply->integer,
                 (long long)r->set.replicas);
    snprintf(text, sizeof text, "%s: %s", r->url.label, said);
    for (size_t i = r->first; i < r->heard; i++) {
        struct request *q = at(r, i);
        if (!q->d || !q->added)
            continue;
        if (enough)
            answer_added(r, q, q->id);
        else
            answer(r, q, &(struct sink_result){.status = SINK_DOWN, .text = text});
    }
}

static void xadd_answered(struct redis_sink *r, struct request *q, const redisReply *reply)
{
    bool id = reply->type == REDIS_REPLY_STRING && redis_is_id(reply->str);
    if (reply->type == REDIS_REPLY_ERROR) {
        answer_error(r, q, reply);
    } else if (!id) {
        answer_odd(r, q);
    } else if (r->set.replicas) {
        snprintf(q->id, sizeof q->id, "%s", reply->str);
        q->added = true;
    } else {
        answer_added(r, q, reply->str);
    }
}

static void take_reply(void *ctx, redisReply *reply)
{
    struct redis_sink *r = ctx;
    /* said without being asked: an error that precedes the end, or no Redis at all */
    if (r->heard == r->next) {
        r->stale = true;
        freeReplyObject(reply);
        return;
    }
    struct request *q = at(r, r->heard++);
    switch (q->kind) {
    case REQUEST_XADD: xadd_answered(r, q, reply); break;
    case REQUEST_WAIT: confirmed(r, reply); break;
    case REQUEST_EXTEND:
    case REQUEST_TAKE: redis_lease_answer(r, q->kind, reply); break;
    }
    forget_first(r);
    freeReplyObject(reply);
}

/* Failures */

/* the_event is the first in flight that Redis has not answered; NULL: it has answered all. */
static const struct event *the_event(const struct redis_sink *r)
{
    for (size_t i = r->heard; i < r->next; i++)
        if (at(r, i)->d)
            return at(r, i)->d->ev;
    return NULL;
}

/* is_suspect: an event that was alone in flight when a server that had just greeted us cut the
 * connection, or fell silent, may be why, if that happens again and again: some limits of a server
 * end a connection without a word. Alone it will be, as the circuit lets single events through
 * after a failure, and large ones always go alone. */
static bool is_suspect(struct redis_sink *r)
{
    if (r->conn.state != REDIS_READY || r->events != 1)
        return false;
    const struct event *ev = the_event(r);
    if (!ev)
        return false;
    r->cuts = r->suspect == ev->seq ? r->cuts + 1 : 1;
    r->suspect = ev->seq;
    return r->cuts >= CUTS_MAX;
}

/* fail_all ends everything in flight, and the connection. What was sent may have been added: it
 * will be sent again, with the same event id. */
static void fail_all(struct redis_sink *r, enum sink_status status, const char *why)
{
    int64_t suspect = r->suspect;
    int cuts = r->cuts;
    size_t first = r->first, next = r->next;
    redis_conn_close(&r->conn);
    r->unwaited = r->stale = false;
    r->first = r->heard = r->next; /* before the answers: whoever gets them may look */
    for (size_t i = first; i < next; i++) {
        struct request *q = at(r, i);
        if (q->d)
            answer(r, q, &(struct sink_result){.status = status, .text = why});
        else if (q->kind == REQUEST_EXTEND || q->kind == REQUEST_TAKE)
            redis_lease_answer(r, q->kind, NULL);
    }
    if (status == SINK_DOWN) {
        r->suspect = suspect;
        r->cuts = cuts;
    }
}

static void connection_failed(struct redis_sink *r, const struct error *err)
{
    fail_all(r, is_suspect(r) ? SINK_RETRY : SINK_DOWN, err->text);
}

static void check_time(struct redis_sink *r)
{
    struct error err;
    if (redis_inflight(r) == 0 || r->base.cfg.timeout_ms <= 0)
        return;
    if (redis_now(r) < at(r, r->first)->since + r->base.cfg.timeout_ms * MS_NS)
        return;
    err_set(&err, ERR_UNAVAILABLE, "%s has not answered for %lld ms; %zu requests were waiting",
            r->url.label, (long long)r->base.cfg.timeout_ms, redis_inflight(r));
    connection_failed(r, &err);
}

/* Sending */

#define ADD(b, literal) buf_add(b, literal, sizeof(literal) - 1)

static void add_bulk(struct buf *b, struct str s)
{
    ADD(b, "$");
    buf_addi64(b, (int64_t)s.n);
    ADD(b, "\r\n");
    buf_addstr(b, s);
    ADD(b, "\r\n");
}

/* add_limit writes MAXLEN or MINID with ~: Redis may keep a little more, and is much faster so. */
static void add_limit(struct redis_sink *r)
{
    char limit[24];
    int64_t n = r->set.maxlen ? r->set.maxlen : clock_wall(r->base.cfg.clock) - r->set.maxage_ms;
    snprintf(limit, sizeof limit, "%lld", (long long)(n > 0 ? n : 0));
    add_bulk(&r->conn.out, r->set.maxlen ? STR("MAXLEN") : STR("MINID"));
    add_bulk(&r->conn.out, STR("~"));
    add_bulk(&r->conn.out, str_of(limit));
}

/* add_xadd writes the command itself instead of letting hiredis do it, which would copy every
 * payload once more. */
static int add_xadd(struct redis_sink *r, const struct event *ev, const struct stream *st)
{
    struct buf *b = &r->conn.out;
    size_t before = b->n;
    bool limited = r->set.maxlen || r->set.maxage_ms;
    buf_clear(&r->envelope);
    envelope_write(&r->envelope, ev, (struct str){st->name, st->n});
    if (r->envelope.failed)
        return -1;
    if (limited)
        ADD(b, "*8\r\n$4\r\nXADD\r\n");
    else
        ADD(b, "*5\r\n$4\r\nXADD\r\n");
    add_bulk(b, (struct str){st->name, st->n});
    if (limited)
        add_limit(r);
    ADD(b, "$1\r\n*\r\n$5\r\nevent\r\n");
    add_bulk(b, (struct str){r->envelope.p, r->envelope.n});
    if (!b->failed)
        return 0;
    buf_truncate(b, before);
    return -1;
}

static void add_wait(struct redis_sink *r)
{
    char replicas[24], ms[24];
    snprintf(replicas, sizeof replicas, "%lld", (long long)r->set.replicas);
    snprintf(ms, sizeof ms, "%lld", (long long)r->set.replicas_wait_ms);
    if (redis_conn_add(&r->conn, 3, (const char *[]){"WAIT", replicas, ms}, NULL) != 0)
        return;
    redis_push(r, REQUEST_WAIT);
    r->unwaited = false;
}

/* refuse answers for an event that was not sent. */
static void refuse(struct redis_sink *r, struct delivery *d, enum sink_status status,
                   const struct error *err)
{
    struct sink_result res = {.status = status, .text = err->text, .native = err->native};
    res.unasked = status == SINK_REJECT;
    sink_done(&r->base, d, &res);
}

static struct stream *stream_of(struct redis_sink *r, const struct event *ev, struct error *err)
{
    buf_clear(&r->stream_name);
    if (template_write(r->name, ev, &r->stream_name, err) != 0)
        return NULL;
    struct stream *st = streams_get(&r->streams, (struct str){r->stream_name.p, r->stream_name.n});
    if (!st)
        err_nomem(err);
    return st;
}

/* connect_if_need be: an idle connection that the server has closed is no failure of anything. */
static int connect_if_need_be(struct redis_sink *r, struct error *err)
{
    if (redis_inflight(r) == 0 && r->conn.state != REDIS_CLOSED &&
        (r->stale || redis_conn_idle_gone(&r->conn))) {
        redis_conn_close(&r->conn);
        r->stale = false;
    }
    return r->conn.state == REDIS_CLOSED ? redis_conn_open(&r->conn, err) : 0;
}

/* is_large: should it be more than the server takes, nobody else shall lose the connection with
 * it. */
static bool is_large(const struct event *ev)
{
    return event_bytes(ev) >= ALONE_BYTES;
}

static void send_one(struct redis_sink *r, struct delivery *d)
{
    struct error err = {0};
    if (!redis_lease_held(r)) {
        err_set(&err, ERR_LOST, "the lease %s is not ours", r->set.lease);
        refuse(r, d, SINK_CANCELLED, &err);
        return;
    }
    struct stream *st = stream_of(r, d->ev, &err);
    if (!st) {
        refuse(r, d, err.code == ERR_INVALID ? SINK_REJECT : SINK_DOWN, &err);
        return;
    }
    if (connect_if_need_be(r, &err) != 0) {
        refuse(r, d, SINK_DOWN, &err);
        return;
    }
    if (add_xadd(r, d->ev, st) != 0) {
        err_nomem(&err);
        refuse(r, d, SINK_DOWN, &err);
        return;
    }
    struct request *q = redis_push(r, REQUEST_XADD);
    q->d = d;
    q->stream = st;
    st->flying++;
    r->events++;
    r->unwaited = r->set.replicas > 0;
    r->alone = is_large(d->ev);
}

static bool has_room(const struct redis_sink *r, const struct event *ev)
{
    size_t busy = redis_inflight(r);
    if (busy == 0)
        return true;
    if (r->events > 0 && (r->alone || is_large(ev)))
        return false;
    /* 4: WAIT and the lease's */
    return busy + 4 < REDIS_WINDOW && redis_conn_queued(&r->conn) < OUT_ENOUGH;
}

static size_t redis_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    size_t i = 0;
    while (i < n && has_room(r, d[i]->ev))
        send_one(r, d[i++]);
    return i;
}

static void redis_drive(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    struct error err;
    redis_lease_drive(r);
    if (r->conn.state == REDIS_CLOSED)
        return;
    if (r->unwaited)
        add_wait(r);
    if (redis_conn_drive(&r->conn, take_reply, r, &err) != 0)
        connection_failed(r, &err);
    else
        check_time(r);
    if (r->stale && redis_inflight(r) == 0) {
        redis_conn_close(&r->conn);
        r->stale = false;
    }
}

static size_t redis_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    const struct redis_sink *r = (const struct redis_sink *)sk;
    if (r->conn.state == REDIS_CLOSED || max == 0)
        return 0;
    out[0] = redis_conn_poll(&r->conn);
    return 1;
}

static int64_t redis_deadline(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    int64_t lease = redis_lease_deadline(r), time = CLOCK_NEVER;
    if (redis_inflight(r) > 0 && r->base.cfg.timeout_ms > 0)
        time = at(r, r->first)->since + r->base.cfg.timeout_ms * MS_NS;
    if (r->unwaited)
        time = 0;
    return lease < time ? lease : time;
}

static void redis_cancel(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    struct error err;
    if (r->conn.state != REDIS_CLOSED && redis_conn_drive(&r->conn, take_reply, r, &err) != 0)
        fail_all(r, SINK_CANCELLED, err.text);
    if (redis_inflight(r) > 0)
        fail_all(r, SINK_CANCELLED, "cancelled");
}

static const struct sink_lease *redis_lease(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    if (!r->set.lease)
        return NULL;
    redis_lease_held(r);
    return &r->lease;
}

static size_t redis_marks(struct sink *sk, const struct hwm **ret)
{
    return streams_dirty(&((struct redis_sink *)sk)->streams, ret);
}

static void redis_marks_kept(struct sink *sk)
{
    streams_kept(&((struct redis_sink *)sk)->streams);
}

static const char *redis_caution(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    return r->caution[0] ? r->caution : NULL;
}

/* Opening */

static void redis_close(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    redis_lease_release(r);
    redis_conn_release(&r->conn);
    streams_release(&r->streams);
    template_free(r->name);
    buf_release(&r->stream_name);
    buf_release(&r->envelope);
    redis_settings_release(&r->set);
    redis_url_release(&r->url);
    free(r->ring);
    free(r);
}

/* check_files: they are read at each connection, but one that is not there now was not meant so. */
static int check_files(const struct redis_url *u, struct error *err)
{
    const char *const files[] = {u->password_file, u->ca, u->cert, u->key};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (files[i] && access(files[i], R_OK) != 0)
            return err_errno(err, ERR_CONFIG, errno, "redis sink: could not read %s", files[i]);
    return 0;
}

static int redis_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    const struct sink_ops *ops;
    if (sink_find(cfg->url, &ops, err) != 0)
        return -1;
    struct redis_sink *r = calloc(1, sizeof *r);
    if (!r)
        return err_nomem(err);
    r->base = (struct sink){.ops = ops, .cfg = *cfg};
    buf_init(&r->stream_name, NAME_MAX_BYTES);
    buf_init(&r->envelope, OUT_MAX);
    snprintf(r->client, sizeof r->client, "outbox:%s", cfg->consumer);
    redis_conn_init(&r->conn, &r->url, r->client, OUT_MAX, IN_MAX);
    if (redis_settings_read(cfg->url, &r->set, &r->url, err) != 0 || check_files(&r->url, err) != 0)
        goto fail;
    if (template_new(r->set.stream, &r->name, err) != 0) {
        err_prefix(err, "redis sink: stream");
        goto fail;
    }
    if (redis_lease_init(r, err) != 0)
        goto fail;
    r->fixed = template_fixed(r->name);
    if (r->set.maxlen || r->set.maxage_ms)
        snprintf(r->caution, sizeof r->caution,
                 "%s lets Redis drop entries that nobody may have read yet: a reader that falls "
                 "behind loses events",
                 r->set.maxlen ? "maxlen" : "maxage");
    r->ring = calloc(REDIS_WINDOW, sizeof *r->ring);
    if (!r->ring || streams_init(&r->streams) != 0) {
        err_nomem(err);
        goto fail;
    }
    *ret = &r->base;
    return 0;
fail:
    redis_close(&r->base);
    return -1;
}

static int redis_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    const char *ping[] = {"PING"};
    const size_t lens[] = {4};
    redisReply *reply;
    if (redis_conn_call(&r->conn, 1, ping, lens, timeout_ms, -1, &reply, err) != 0)
        return -1;
    int rc = 0;
    if (reply->type == REDIS_REPLY_ERROR)
        rc = err_set(err, ERR_UNAVAILABLE, "redis sink: %s", reply->str);
    freeReplyObject(reply);
    return rc;
}

#define REDIS_OPS(name, scheme_, synopsis_, help_) \
    const struct sink_ops name = { \
        .scheme = scheme_, \
        .synopsis = synopsis_, \
        .help = help_, \
        .open = redis_open, \
        .close = redis_close, \
        .submit = redis_submit, \
        .drive = redis_drive, \
        .fds = redis_fds, \
        .deadline = redis_deadline, \
        .cancel = redis_cancel, \
        .lease = redis_lease, \
        .marks = redis_marks, \
        .marks_kept = redis_marks_kept, \
        .probe = redis_probe, \
        .caution = redis_caution, \
    }

REDIS_OPS(redis_ops, "redis", "redis://HOST:PORT/DB?stream=NAME",
          "append to a Redis stream; see docs/redis.md");
REDIS_OPS(redis_tls_ops, "rediss", "rediss://HOST:PORT/DB?stream=NAME", "the same with TLS");
REDIS_OPS(redis_unix_ops, "unix", "unix:SOCKET?stream=NAME", "the same through a unix socket");
REDIS_OPS(redis_plus_unix_ops, "redis+unix", "redis+unix:SOCKET?stream=NAME", "the same as unix:");
