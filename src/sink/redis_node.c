/* redis_node.c: sends events to one server, tracks its requests in flight, and interprets its
 * replies and missing replies. */
#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "base/text.h"
#include "redis/conn.h"
#include "sink/redis_impl.h"

#define OUT_MAX ((size_t)2 << 30)    /* limit on queued bytes: one event may be large */
#define IN_MAX ((size_t)1 << 20)     /* limit on a reply: ids, numbers, errors */
#define OUT_ENOUGH ((size_t)4 << 20) /* queued bytes; above this, the node applies back-pressure */
/* larger events are sent alone, because the limits of a server are at least 1 MiB */
#define ALONE_BYTES ((size_t)960 << 10)
#define RESERVED 4 /* slots of the window reserved for a WAIT and the lease */
/* A run is one script, which blocks Redis meanwhile: about half a millisecond for a full run. */
#define RUN_BYTES ((size_t)256 << 10)
/* A script costs Redis twice as much per event as XADD, but saves us round trips. For very short
 * chains that does not pay off if other keys can use the time. */
#define RUN_MIN 4
#define PLAIN_EVENTS 32               /* events appended one by one after a script stopped */
#define NO_SCRIPTS_NS (60000 * MS_NS) /* how long to avoid scripts after the server refused them */

int redis_node_new(struct redis_sink *r, struct redis_url *url, struct redis_node **ret,
                   struct error *err)
{
    struct redis_node *n = calloc(1, sizeof *n);
    if (!n) {
        redis_url_release(url);
        return err_nomem(err);
    }
    n->sink = r;
    n->url = *url;
    *url = (struct redis_url){0};
    redis_conn_init(&n->conn, &n->url, r->client, OUT_MAX, IN_MAX);
    if (window_init(&n->window, &r->b.base, REDIS_WINDOW, sizeof(struct redis_request), err) != 0) {
        redis_node_free(n);
        return -1;
    }
    *ret = n;
    return 0;
}

void redis_node_free(struct redis_node *n)
{
    if (!n)
        return;
    redis_conn_release(&n->conn);
    redis_url_release(&n->url);
    window_release(&n->window);
    free(n);
}

struct redis_request *redis_node_push(struct redis_node *n, enum request_kind kind,
                                      struct delivery *d, struct stream *st)
{
    struct redis_request *q = (struct redis_request *)window_add(&n->window, d, st);
    q->kind = kind;
    q->added = false;
    q->run = 0;
    q->hops = 0;
    if (!n->awaited)
        n->awaited = q;
    return q;
}

/* ---- replies ---- */

/* The meaning of an error reply for the event. docs/brokers.md has the same table. */
static const enum sink_status statuses[] = {
    [REDIS_FAULT_UNKNOWN] = SINK_RETRY, [REDIS_FAULT_STREAM] = SINK_REFUSED,
    [REDIS_FAULT_AWAY] = SINK_DOWN,     [REDIS_FAULT_LOGIN] = SINK_DOWN,
    [REDIS_FAULT_SIZE] = SINK_REJECT,   [REDIS_FAULT_SETUP] = SINK_DOWN,
    [REDIS_FAULT_SCRIPT] = SINK_RETRY,
};

static bool has_id(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_STRING && redis_is_id(reply->str);
}

/* Reports an event that is in its stream, and records the high-water mark. An id that no clock can
 * produce, because it was set manually, still serves as a receipt, but a store cannot keep it as a
 * mark. */
static void report_added(struct redis_node *n, struct redis_request *q, const char *id)
{
    int64_t hi, lo;
    if (redis_id(id, &hi, &lo))
        window_marks_advance(&n->sink->b.marks, q->f.mark, hi, lo);
    redis_route_good(n);
    window_end(&n->window, &q->f, &(struct sink_result){.status = SINK_DELIVERED, .receipt = id});
}

/* Reports an event that is in its stream, unless it waits for replicas. */
static void entry_added(struct redis_node *n, struct redis_request *q, const char *id)
{
    if (!n->sink->set.replicas) {
        report_added(n, q, id);
        return;
    }
    snprintf(q->id, sizeof q->id, "%s", id);
    q->added = true;
}

static void report_error(struct redis_node *n, struct redis_request *q, const redisReply *reply)
{
    const struct redis_error *e = redis_error_of(reply->str);
    char said[REDIS_TEXT], name[201], text[2 * REDIS_TEXT + 400];
    redis_conn_text(&n->conn, reply, said);
    text_clean(name, sizeof name, q->f.mark->name, q->f.mark->n);
    if (e->advice)
        snprintf(text, sizeof text, "%s, stream %s: %s (%s)", n->url.label, name, said, e->advice);
    else
        snprintf(text, sizeof text, "%s, stream %s: %s", n->url.label, name, said);

    struct sink_result res = {.status = statuses[e->fault], .text = text};
    if (e->fault == REDIS_FAULT_AWAY)
        res.status = redis_route_away(n);
    if (res.status == SINK_LATER)
        res.retry_after_ms = REDIS_AWAY_MS;
    if (e->reconnect)
        n->stale = true;
    bool works = e->fault == REDIS_FAULT_STREAM;
    if (works)
        redis_route_good(n);
    else if (n->sink->map)
        n->sink->map->wanted = true;
    window_end(&n->window, &q->f, &res);
}

/* Handles the reply to the command that appended a single event. With dedupe, even a single event
 * is appended by a script, whose reply is a list. */
static void xadd_replied(struct redis_node *n, struct redis_request *q, const redisReply *reply)
{
    bool in_array = reply->type == REDIS_REPLY_ARRAY && reply->elements == 1;
    if (n->sink->set.dedupe && in_array)
        reply = reply->element[0];
    if (reply->type == REDIS_REPLY_ERROR) {
        report_error(n, q, reply);
        return;
    }
    if (has_id(reply)) {
        if (q->f.mark->plain > 0)
            q->f.mark->plain--;
        entry_added(n, q, reply->str);
        return;
    }

    char name[61], text[400];
    text_clean(name, sizeof name, q->f.mark->name, q->f.mark->n);
    snprintf(text, sizeof text, "%s returned no id for an entry of stream %s", n->url.label, name);
    window_end(&n->window, &q->f, &(struct sink_result){.status = SINK_RETRY, .text = text});
}

/* Ends the `count` events from q on, which a script did not append. They do not count as faulty:
 * the plain XADD that follows will show which of them fails, and why. After an unexpected reply
 * they may have been appended after all; they then arrive twice. */
static void run_stopped(struct redis_node *n, struct redis_request *q, size_t count,
                        const redisReply *why)
{
    struct redis_sink *r = n->sink;
    char said[REDIS_TEXT] = "no id", text[2 * REDIS_TEXT];
    if (why->type == REDIS_REPLY_ERROR)
        redis_conn_text(&n->conn, why, said);
    bool refused = why->type == REDIS_REPLY_ERROR && redis_refuses_command(why->str);
    if (refused && !r->set.dedupe) {
        /* Scripts are retried after a while; the caution stays even if they work again. */
        r->scripts_from = redis_now(r) + NO_SCRIPTS_NS;
        broker_set_caution(&r->b,
                           "%s refuses scripts, so events of one key are sent one after the "
                           "other, with a round trip each: %s (allow EVAL)",
                           n->url.label, said);
    }

    q->f.mark->plain = PLAIN_EVENTS;
    snprintf(text, sizeof text, "%s: a script stopped: %s", n->url.label, said);
    struct in_flight *next = &q->f;
    while (count-- > 0) {
        struct in_flight *f = next;
        next = f->next;
        window_end(&n->window, f, &(struct sink_result){.status = SINK_CANCELLED, .text = text});
    }
}

/* Handles the reply to a script for `count` events from q on: one id each, or fewer ids and the
 * error that stopped it, or only an error. */
static void run_replied(struct redis_node *n, struct redis_request *q, size_t count,
                        const redisReply *reply)
{
    size_t ids = 0;
    if (reply->type == REDIS_REPLY_ARRAY) {
        while (ids < count && ids < reply->elements && has_id(reply->element[ids])) {
            struct redis_request *next = (struct redis_request *)q->f.next;
            entry_added(n, q, reply->element[ids]->str);
            q = next;
            ids++;
        }
        if (ids < reply->elements)
            reply = reply->element[ids];
    }
    if (ids < count)
        run_stopped(n, q, count - ids, reply);
}

/* Reports the entries before a WAIT, whose reply is the number of replicas that have them. */
static void wait_replied(struct redis_node *n, const redisReply *reply)
{
    char said[REDIS_TEXT], text[2 * REDIS_TEXT];
    long long wanted = n->sink->set.replicas;
    bool enough = reply->type == REDIS_REPLY_INTEGER && reply->integer >= wanted;
    if (reply->type == REDIS_REPLY_ERROR)
        redis_conn_text(&n->conn, reply, said);
    else
        snprintf(said, sizeof said, "%lld of %lld replicas have the entry", reply->integer, wanted);
    snprintf(text, sizeof text, "%s: %s", n->url.label, said);

    struct in_flight *next, *end = n->awaited ? &n->awaited->f : NULL;
    for (struct in_flight *f = n->window.first; f != end; f = next) {
        struct redis_request *q = (struct redis_request *)f;
        next = f->next;
        if (!q->added)
            continue;
        if (enough)
            report_added(n, q, q->id);
        else
            window_end(&n->window, f, &(struct sink_result){.status = SINK_DOWN, .text = text});
    }
}

/* Handles the next reply, and calls done for the events whose results it decides. It is a
 * redis_reply_fn, so it owns the reply. */
static void take_reply(void *node, redisReply *reply)
{
    struct redis_node *n = node;
    struct redis_request *q = n->awaited;
    if (!q) {
        /* Unsolicited: an error that precedes a close, or the peer is not Redis. */
        n->stale = true;
        freeReplyObject(reply);
        return;
    }

    enum request_kind kind = q->kind;
    size_t run = kind == REQUEST_XADD ? q->run : 1;
    for (size_t i = 0; i < run; i++)
        n->awaited = (struct redis_request *)n->awaited->f.next;
    if (kind != REQUEST_XADD)
        window_remove(&n->window, &q->f);

    bool failed = reply->type == REDIS_REPLY_ERROR;
    switch (kind) {
    case REQUEST_XADD:
        if (n->sink->map && failed && redis_route_redirect(n, q, run, reply->str))
            break;
        if (run > 1)
            run_replied(n, q, run, reply);
        else
            xadd_replied(n, q, reply);
        break;
    case REQUEST_WAIT: wait_replied(n, reply); break;
    case REQUEST_EXTEND:
    case REQUEST_TAKE: redis_lease_answer(n->sink, kind, reply); break;
    case REQUEST_ASKING: /* the reply to the next command shows whether ASKING took effect */
    case REQUEST_FORGET: break;
    }
    freeReplyObject(reply);
}

/* ---- failures ---- */

/* Ends all requests in flight, and closes the connection. Entries that were sent may have been
 * added; they will be resent with the same event ids. */
static void end_all(struct redis_node *n, enum sink_status status, const char *why)
{
    int cuts = n->window.suspect.cuts;
    redis_conn_close(&n->conn);
    n->unwaited = n->stale = false;
    n->awaited = NULL;
    while (n->window.first) {
        struct redis_request *q = (struct redis_request *)n->window.first;
        struct sink_result res = {.status = status, .text = why};
        if (status == SINK_LATER && q->run == 0)
            res.status = SINK_CANCELLED; /* in a chain, only the first event may be delayed */
        if (res.status == SINK_LATER)
            res.retry_after_ms = REDIS_AWAY_MS;
        enum request_kind kind = q->kind;
        if (q->f.d)
            window_end(&n->window, &q->f, &res);
        else
            window_remove(&n->window, &q->f);
        if (kind == REQUEST_EXTEND || kind == REQUEST_TAKE)
            redis_lease_answer(n->sink, kind, NULL);
    }
    /* An event that did not count as faulty remains suspect. */
    bool blamed = status == SINK_RETRY || status == SINK_CANCELLED;
    if (!blamed)
        n->window.suspect.cuts = cuts;
}

/* Some limits of a server close the connection without an error. An event counts as the reason if
 * it was alone in flight, several times in a row, when a ready server closed the connection or fell
 * silent. Every suspect is eventually alone: after a failure the circuit lets events through one at
 * a time, and large events are always sent alone. */
void redis_node_lost(struct redis_node *n, const struct error *err)
{
    enum sink_status status = redis_route_away(n);
    bool alone = n->conn.wire.state == WIRE_READY && n->window.events == 1;
    struct redis_request *q = n->awaited; /* NULL: the server has replied to the event */
    while (q && !q->f.d)
        q = (struct redis_request *)q->f.next;
    if (alone && q && window_blame(&n->window, q->f.d->ev))
        status = SINK_RETRY;
    redis_route_lost(n, err);
    end_all(n, status, err->text);
}

/* ---- sending ---- */

/* Closes a connection due for replacement once no request is in flight. */
static void drop_stale(struct redis_node *n)
{
    if (!n->stale || n->window.count > 0)
        return;
    redis_conn_close(&n->conn);
    n->stale = false;
}

/* An idle connection closed by the server does not count as a failure. */
int redis_node_connect(struct redis_node *n, struct error *err)
{
    bool forgetting = n->window.events == 0 && n->window.count > 0;
    if (forgetting)
        redis_node_drive(n); /* pending replies have not been read yet */
    bool idle = n->conn.wire.state != WIRE_CLOSED && n->window.count == 0;
    if (idle && wire_stirs(&n->conn.wire))
        n->stale = true;
    drop_stale(n);
    if (n->conn.wire.state != WIRE_CLOSED)
        return 0;
    return redis_route_open(n, err);
}

bool redis_node_has_room(const struct redis_node *n, const struct event *ev)
{
    size_t busy = n->window.count;
    if (busy == 0)
        return true;
    bool lonely = n->alone || event_bytes(ev) >= ALONE_BYTES;
    if (lonely && n->window.events > 0)
        return false;
    if (wire_queued(&n->conn.wire) >= OUT_ENOUGH)
        return false;
    return busy + RESERVED < REDIS_WINDOW;
}

bool redis_node_goes_to(struct redis_sink *r, const struct event *ev, const struct stream *st)
{
    struct error err;
    if (r->b.fixed)
        return true;
    struct str name = broker_name(&r->b, ev, &err);
    return name.p && str_eq(name, (struct str){st->name, st->n});
}

/* Returns how many of the deliveries to send as one script. The first one starts a chain; the
 * script takes the deliveries for the same stream, within limits. A single event needs no script,
 * except with dedupe, where the script may include events of other chains. */
static size_t run_length(const struct redis_node *n, struct delivery *const *d, size_t count,
                         const struct stream *st)
{
    struct redis_sink *r = n->sink;
    bool scripts = redis_now(r) >= r->scripts_from && st->plain == 0;
    bool once = r->set.dedupe;
    if (!scripts || event_bytes(d[0]->ev) >= ALONE_BYTES)
        return 1;

    size_t most = min_size(REDIS_WINDOW - RESERVED - n->window.count, min_size(count, REDIS_RUN));

    size_t run = 1;
    size_t bytes = event_bytes(d[0]->ev);
    while (run < most && (d[run]->chained || once) && redis_node_goes_to(r, d[run]->ev, st)) {
        bytes += event_bytes(d[run]->ev);
        if (bytes > RUN_BYTES)
            break;
        run++;
    }
    if (run < RUN_MIN && !once)
        return 1;
    return run;
}

int redis_node_send(struct redis_node *n, struct delivery *const *d, size_t count,
                    struct stream *st, size_t *ret, struct error *err)
{
    size_t run = run_length(n, d, count, st);
    int rc;
    if (run == 1 && !n->sink->set.dedupe)
        rc = redis_command_xadd(n, d[0], st, err);
    else
        rc = redis_command_run(n, d, &run, st, err);
    if (rc != 0)
        return -1;
    for (size_t i = 0; i < run; i++) {
        struct redis_request *q = redis_node_push(n, REQUEST_XADD, d[i], st);
        q->run = i == 0 ? run : 0;
    }
    n->unwaited = n->sink->set.replicas > 0;
    n->alone = event_bytes(d[0]->ev) >= ALONE_BYTES;
    *ret = run;
    return 0;
}

void redis_node_forget(struct redis_node *n, const struct event *const *ev, size_t count,
                       struct str stream)
{
    bool possible = n->conn.wire.state == WIRE_READY && n->window.count + RESERVED < REDIS_WINDOW;
    if (possible)
        redis_command_forget(n, ev, count, stream);
}

int64_t redis_node_deadline(const struct redis_node *n)
{
    if (n->unwaited)
        return 0;
    return window_due(&n->window);
}

void redis_node_drive(struct redis_node *n)
{
    struct error err;
    if (n->conn.wire.state == WIRE_CLOSED)
        return;
    if (n->unwaited) {
        /* No event before the WAIT counts as delivered until the WAIT has a reply. If memory runs
         * out, the next drive retries. */
        const struct redis_settings *set = &n->sink->set;
        char replicas[24], ms[24];
        snprintf(replicas, sizeof replicas, "%lld", (long long)set->replicas);
        snprintf(ms, sizeof ms, "%lld", (long long)set->replicas_wait_ms);
        if (redis_conn_add(&n->conn, 3, (const char *[]){"WAIT", replicas, ms}) == 0) {
            redis_node_push(n, REQUEST_WAIT, NULL, NULL);
            n->unwaited = false;
        }
    }
    if (redis_conn_drive(&n->conn, take_reply, n, &err) != 0)
        redis_node_lost(n, &err);
    if (redis_now(n->sink) >= window_due(&n->window)) {
        err_set(&err, ERR_UNAVAILABLE, "%s has not answered for %lld ms; %zu requests were waiting",
                n->url.label, (long long)n->sink->b.base.cfg.timeout_ms, n->window.count);
        redis_node_lost(n, &err);
    }
    drop_stale(n);
}

/* Checks for replies once more: an event known to be delivered need not be retried. */
void redis_node_cancel(struct redis_node *n)
{
    struct error err;
    if (n->conn.wire.state == WIRE_CLOSED)
        return;
    if (redis_conn_drive(&n->conn, take_reply, n, &err) != 0)
        end_all(n, SINK_CANCELLED, err.text);
    if (n->window.count > 0)
        end_all(n, SINK_CANCELLED, "cancelled");
}
