/* redis.c: the sink that appends to Redis Streams: one XADD per event, or one script for a run of
 * events of one key, hundreds in flight, replies matched one by one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "redis/reply.h"
#include "sink/kinds.h"
#include "sink/redis_impl.h"

#define OUT_MAX ((size_t)2 << 30)         /* ceiling of what is queued: one event may be large */
#define IN_MAX ((size_t)1 << 20)          /* ids, numbers, errors */
#define OUT_ENOUGH ((size_t)4 << 20)      /* take no more events until some of it is written */
#define NAME_MAX_BYTES ((size_t)16 << 10) /* of a stream */
/* what is larger travels alone: limits of a server are 1 MiB at the least */
#define ALONE_BYTES ((size_t)960 << 10)
#define RESERVED 4 /* places in the ring for a WAIT and the lease */

/* A run is one script, and Redis does nothing else while it runs it: about half a millisecond for
 * one that is full. */
#define RUN_EVENTS 256
#define RUN_BYTES ((size_t)256 << 10)
/* A script costs Redis twice as much per event as XADD does, but saves us round trips. It does not
 * pay for very short chains, if other keys use the time. */
#define RUN_MIN 4

struct request *redis_push(struct redis_sink *r, enum request_kind kind)
{
    struct request *q = redis_at(r, r->next++);
    *q = (struct request){.kind = kind, .since = redis_now(r)};
    return q;
}

/* Sending */

/* add_wait asks how many replicas have what was added. No event before it counts as delivered until
 * it is answered. If there is no memory, the next drive tries again. */
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

/* refuse answers for an event that could not be queued. */
static void refuse(struct redis_sink *r, struct delivery *d, const struct error *err)
{
    struct sink_result res = {.status = SINK_DOWN, .text = err->text, .native = err->native};
    if (err->code == ERR_LOST)
        res.status = SINK_CANCELLED;
    if (err->code == ERR_INVALID) {
        res.status = SINK_REJECT;
        res.unasked = true;
    }
    sink_done(&r->base, d, &res);
}

/* stream_of returns the stream that an event goes to; NULL with ERR_INVALID if no name can be made
 * for it. */
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

/* drop_stale closes a connection that has to be replaced, once nothing is in flight. */
static void drop_stale(struct redis_sink *r)
{
    if (!r->stale || redis_inflight(r) > 0)
        return;
    redis_conn_close(&r->conn);
    r->stale = false;
}

/* connect_if_need_be connects if there is no connection, or if the server has closed an idle one,
 * which does not count as a failure. */
static int connect_if_need_be(struct redis_sink *r, struct error *err)
{
    bool idle = r->conn.state != REDIS_CLOSED && redis_inflight(r) == 0;
    if (idle && redis_conn_idle_gone(&r->conn))
        r->stale = true;
    drop_stale(r);
    if (r->conn.state != REDIS_CLOSED)
        return 0;
    return redis_conn_open(&r->conn, err);
}

/* is_large says whether an event has to travel alone: if it is more than the server accepts, it
 * must not cost other events their connection. */
static bool is_large(const struct event *ev)
{
    return event_bytes(ev) >= ALONE_BYTES;
}

static bool goes_to(struct redis_sink *r, const struct event *ev, const struct stream *st)
{
    struct error err;
    if (r->fixed)
        return true;
    buf_clear(&r->stream_name);
    if (template_write(r->name, ev, &r->stream_name, &err) != 0)
        return false;
    return str_eq((struct str){r->stream_name.p, r->stream_name.n}, (struct str){st->name, st->n});
}

/* run_length returns how many of the deliveries, which begin a chain, to send as one script: those
 * that go to the same stream, within bounds. A single event needs no script. */
static size_t run_length(struct redis_sink *r, struct delivery *const *d, size_t n,
                         const struct stream *st)
{
    bool scripts = redis_now(r) >= r->scripts_from && st->plain == 0;
    if (!scripts)
        return 1;

    size_t most = REDIS_WINDOW - RESERVED - redis_inflight(r);
    if (most > n)
        most = n;
    if (most > RUN_EVENTS)
        most = RUN_EVENTS;

    size_t run = 1;
    size_t bytes = event_bytes(d[0]->ev);
    while (run < most && d[run]->chained && goes_to(r, d[run]->ev, st)) {
        bytes += event_bytes(d[run]->ev);
        if (bytes > RUN_BYTES)
            break;
        run++;
    }
    if (run < RUN_MIN)
        return 1;
    return run;
}

/* note_sent puts the events of one command into the ring. */
static void note_sent(struct redis_sink *r, struct delivery *const *d, size_t n, struct stream *st)
{
    for (size_t i = 0; i < n; i++) {
        struct request *q = redis_push(r, REQUEST_XADD);
        q->d = d[i];
        q->stream = st;
        q->run = i == 0 ? n : 0;
    }
    st->flying += n;
    r->events += n;
    r->unwaited = r->set.replicas > 0;
    r->alone = is_large(d[0]->ev);
}

/* queue_events queues the first delivery, with as many of its chain as go into one script. *ret is
 * their number. */
static int queue_events(struct redis_sink *r, struct delivery *const *d, size_t n, size_t *ret,
                        struct error *err)
{
    if (!redis_lease_held(r))
        return err_set(err, ERR_LOST, "the lease %s is not ours", r->set.lease);
    struct stream *st = stream_of(r, d[0]->ev, err);
    if (!st)
        return -1;
    if (connect_if_need_be(r, err) != 0)
        return -1;

    size_t run = run_length(r, d, n, st);
    int rc;
    if (run == 1)
        rc = redis_command_xadd(r, d[0], st, err);
    else
        rc = redis_command_run(r, d, &run, st, err);
    if (rc != 0)
        return -1;
    note_sent(r, d, run, st);
    *ret = run;
    return 0;
}

static bool has_room(const struct redis_sink *r, const struct event *ev)
{
    size_t busy = redis_inflight(r);
    if (busy == 0)
        return true;
    bool lonely = r->alone || is_large(ev);
    if (lonely && r->events > 0)
        return false;
    if (redis_conn_queued(&r->conn) >= OUT_ENOUGH)
        return false;
    return busy + RESERVED < REDIS_WINDOW;
}

static size_t redis_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    size_t i = 0;
    while (i < n) {
        struct error err;
        size_t took = 1;
        /* The rest of a chain waits until its beginning has ended. */
        if (d[i]->chained || !has_room(r, d[i]->ev))
            return i;
        if (queue_events(r, d + i, n - i, &took, &err) != 0)
            refuse(r, d[i], &err);
        i += took;
    }
    return n;
}

/* oldest_due returns when the oldest request in flight will have waited for too long. */
static int64_t oldest_due(const struct redis_sink *r)
{
    int64_t limit = r->base.cfg.timeout_ms;
    bool limited = limit > 0 && redis_inflight(r) > 0;
    if (!limited)
        return CLOCK_NEVER;
    return redis_at(r, r->first)->since + limit * MS_NS;
}

static void check_time(struct redis_sink *r)
{
    struct error err;
    if (redis_now(r) < oldest_due(r))
        return;
    err_set(&err, ERR_UNAVAILABLE, "%s has not answered for %lld ms; %zu requests were waiting",
            r->url.label, (long long)r->base.cfg.timeout_ms, redis_inflight(r));
    redis_answer_lost(r, &err);
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
    if (redis_conn_drive(&r->conn, redis_answer_reply, r, &err) != 0)
        redis_answer_lost(r, &err);
    else
        check_time(r);
    drop_stale(r);
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
    const struct redis_sink *r = (const struct redis_sink *)sk;
    int64_t due = oldest_due(r), lease = redis_lease_deadline(r);
    if (r->unwaited)
        return 0;
    return lease < due ? lease : due;
}

/* redis_cancel looks for replies once more: an event that is known to be delivered need not come
 * again. */
static void redis_cancel(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    struct error err;
    if (r->conn.state == REDIS_CLOSED)
        return;
    if (redis_conn_drive(&r->conn, redis_answer_reply, r, &err) != 0)
        redis_answer_cancelled(r, err.text);
    if (redis_inflight(r) > 0)
        redis_answer_cancelled(r, "cancelled");
}

static const struct sink_lease *redis_lease(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    if (!r->set.lease)
        return NULL;
    redis_lease_held(r); /* which brings the counts up to date */
    return &r->lease.counts;
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
    if (r->no_scripts[0] != '\0')
        return r->no_scripts;
    if (r->caution[0] != '\0')
        return r->caution;
    return NULL;
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
    buf_release(&r->args);
    redis_settings_release(&r->set);
    redis_url_release(&r->url);
    free(r->ring);
    free(r);
}

/* check_files checks that the files which each connection will read are there: one that is missing
 * at the start is a mistake. */
static int check_files(const struct redis_url *u, struct error *err)
{
    const char *const files[] = {u->password_file, u->ca, u->cert, u->key};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (files[i] && access(files[i], R_OK) != 0)
            return err_errno(err, ERR_CONFIG, errno, "redis sink: could not read %s", files[i]);
    }
    return 0;
}

static void set_caution(struct redis_sink *r)
{
    if (!redis_limited(r))
        return;
    snprintf(r->caution, sizeof r->caution,
             "%s lets Redis drop entries that nobody may have read yet: a reader that falls behind "
             "loses events",
             r->set.maxlen ? "maxlen" : "maxage");
}

static int set_up(struct redis_sink *r, struct error *err)
{
    if (redis_settings_read(r->base.cfg.url, &r->set, &r->url, err) != 0)
        return -1;
    if (check_files(&r->url, err) != 0)
        return -1;
    if (template_new(r->set.stream, &r->name, err) != 0)
        return err_prefix(err, "redis sink: stream");
    r->fixed = template_fixed(r->name);
    r->style = (struct message_style){r->set.format, str_of(r->set.source), "ce_"};
    set_caution(r);
    if (redis_lease_init(r, err) != 0)
        return -1;

    r->ring = calloc(REDIS_WINDOW, sizeof *r->ring);
    if (!r->ring)
        return err_nomem(err);
    if (streams_init(&r->streams) != 0)
        return err_nomem(err);
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
    buf_init(&r->args, OUT_MAX);
    snprintf(r->client, sizeof r->client, "outbox:%s", cfg->consumer);
    redis_conn_init(&r->conn, &r->url, r->client, OUT_MAX, IN_MAX);

    if (set_up(r, err) != 0) {
        redis_close(&r->base);
        return -1;
    }
    *ret = &r->base;
    return 0;
}

static int redis_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    const char *ping[] = {"PING"};
    redisReply *reply;
    if (redis_conn_call(&r->conn, 1, ping, NULL, timeout_ms, -1, &reply, err) != 0)
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
        .caps = SINK_CHAINS, \
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
