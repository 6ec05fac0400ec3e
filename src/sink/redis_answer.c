/* redis_answer.c: what the replies of a Redis server, or the lack of them, mean for the events. */
#include <stdio.h>

#include "base/text.h"
#include "redis/reply.h"
#include "sink/redis_impl.h"

#define PLAIN_EVENTS 32               /* appended one by one after a script stopped */
#define NO_SCRIPTS_NS (60000 * MS_NS) /* how long not to use scripts if the server refuses them */

/* What an error reply means for the event. docs/brokers.md has the same table. */
static const enum sink_status statuses[] = {
    [REDIS_FAULT_UNKNOWN] = SINK_RETRY, [REDIS_FAULT_STREAM] = SINK_REFUSED,
    [REDIS_FAULT_AWAY] = SINK_DOWN,     [REDIS_FAULT_LOGIN] = SINK_DOWN,
    [REDIS_FAULT_SIZE] = SINK_REJECT,   [REDIS_FAULT_SETUP] = SINK_DOWN,
    [REDIS_FAULT_SCRIPT] = SINK_RETRY,
};

/* Records the high-water mark. An id that no clock can produce, because it was set by hand, is a
 * receipt, but not a mark that a store can keep. */
static void answer_added(struct redis_node *n, struct redis_request *q, const char *id)
{
    int64_t hi, lo;
    if (redis_id(id, &hi, &lo))
        window_marks_advance(&n->sink->b.marks, q->f.mark, hi, lo);
    if (n->sink->map)
        redis_map_good(n);
    window_end(&n->window, &q->f, &(struct sink_result){.status = SINK_DELIVERED, .receipt = id});
}

static void answer_error(struct redis_node *n, struct redis_request *q, const redisReply *reply)
{
    char said[REDIS_TEXT], name[201], text[2 * REDIS_TEXT + 400];
    const char *advice = redis_error_of(reply->str)->advice;
    redis_conn_text(&n->conn, reply, said);
    text_clean(name, sizeof name, q->f.mark->name, q->f.mark->n);
    if (advice)
        snprintf(text, sizeof text, "%s, stream %s: %s (%s)", n->url.label, name, said, advice);
    else
        snprintf(text, sizeof text, "%s, stream %s: %s", n->url.label, name, said);

    enum redis_fault fault = redis_fault_of(reply->str);
    struct sink_result res = {.status = statuses[fault], .text = text};
    if (fault == REDIS_FAULT_AWAY && n->sink->map)
        res.status = redis_map_away(n);
    if (res.status == SINK_LATER)
        res.retry_after_ms = REDIS_AWAY_MS;
    if (redis_error_of(reply->str)->reconnect)
        n->stale = true;
    bool works = fault == REDIS_FAULT_STREAM;
    if (n->sink->map && works)
        redis_map_good(n);
    else if (n->sink->map)
        n->sink->map->wanted = true;
    window_end(&n->window, &q->f, &res);
}

static bool has_id(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_STRING && redis_is_id(reply->str);
}

/* Reports an event that is in its stream, unless it waits for replicas. */
static void entry_added(struct redis_node *n, struct redis_request *q, const char *id)
{
    if (n->sink->set.replicas) {
        snprintf(q->id, sizeof q->id, "%s", id);
        q->added = true;
    } else {
        answer_added(n, q, id);
    }
}

static void xadd_replied(struct redis_node *n, struct redis_request *q, const redisReply *reply)
{
    char name[61], text[400];
    if (reply->type == REDIS_REPLY_ERROR) {
        answer_error(n, q, reply);
    } else if (has_id(reply)) {
        if (q->f.mark->plain > 0)
            q->f.mark->plain--;
        entry_added(n, q, reply->str);
    } else {
        text_clean(name, sizeof name, q->f.mark->name, q->f.mark->n);
        snprintf(text, sizeof text, "%s gave no id for an entry of stream %s", n->url.label, name);
        window_end(&n->window, &q->f, &(struct sink_result){.status = SINK_RETRY, .text = text});
    }
}

/* Scripts */

/* Returns the `count` events from q on, which a script did not append. They are not blamed: the
 * plain XADD that follows will show what is wrong, and with which of them. After an unexpected
 * reply they may have been appended after all; then they arrive twice. */
static void run_stopped(struct redis_node *n, struct redis_request *q, size_t count,
                        const redisReply *why)
{
    struct redis_sink *r = n->sink;
    char said[REDIS_TEXT] = "no id", text[2 * REDIS_TEXT];
    q->f.mark->plain = PLAIN_EVENTS;
    if (why->type == REDIS_REPLY_ERROR) {
        redis_conn_text(&n->conn, why, said);
        bool can_do_without = !r->set.dedupe;
        if (can_do_without && redis_refuses_command(why->str)) {
            /* Scripts are retried after a while; the caution stays even if they work then. */
            r->scripts_from = redis_now(r) + NO_SCRIPTS_NS;
            broker_set_caution(&r->b,
                               "%s refuses scripts, so events of one key are sent one after the "
                               "other, a round trip each: %s (allow EVAL)",
                               n->url.label, said);
        }
    }
    snprintf(text, sizeof text, "%s: a script has stopped: %s", n->url.label, said);
    struct in_flight *next = &q->f;
    while (count-- > 0) {
        struct in_flight *f = next;
        next = f->next;
        window_end(&n->window, f, &(struct sink_result){.status = SINK_CANCELLED, .text = text});
    }
}

/* Handles the reply to a script for `count` events from q on: an id for each, or fewer and the
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

/* Handles the reply to the command that appended one event, or a run of them. */
static void append_replied(struct redis_node *n, struct redis_request *q, const redisReply *reply)
{
    size_t run = q->run;
    for (size_t i = 1; i < run; i++)
        n->awaited = (struct redis_request *)n->awaited->f.next;
    bool refused = n->sink->map && reply->type == REDIS_REPLY_ERROR;
    if (refused && redis_map_redirect(n, q, run, reply->str))
        return;
    if (run > 1) {
        run_replied(n, q, run, reply);
        return;
    }
    /* With dedupe, even a single event goes through a script. */
    bool in_array = reply->type == REDIS_REPLY_ARRAY && reply->elements == 1;
    if (n->sink->set.dedupe && in_array)
        reply = reply->element[0];
    xadd_replied(n, q, reply);
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
        snprintf(said, sizeof said, "%lld of %lld replicas have it", reply->integer, wanted);
    snprintf(text, sizeof text, "%s: %s", n->url.label, said);

    struct in_flight *next, *end = n->awaited ? &n->awaited->f : NULL;
    for (struct in_flight *f = n->window.first; f != end; f = next) {
        struct redis_request *q = (struct redis_request *)f;
        next = f->next;
        if (!q->added)
            continue;
        if (enough)
            answer_added(n, q, q->id);
        else
            window_end(&n->window, f, &(struct sink_result){.status = SINK_DOWN, .text = text});
    }
}

static void take_reply(struct redis_node *n, const redisReply *reply)
{
    struct redis_request *q = n->awaited;
    if (!q) {
        /* Unsolicited: an error that precedes closing, or the peer is not Redis. */
        n->stale = true;
        return;
    }
    n->awaited = (struct redis_request *)q->f.next;
    enum request_kind kind = q->kind;
    if (kind == REQUEST_XADD) {
        append_replied(n, q, reply);
        return;
    }
    window_remove(&n->window, &q->f);
    switch (kind) {
    case REQUEST_WAIT: wait_replied(n, reply); break;
    case REQUEST_EXTEND:
    case REQUEST_TAKE: redis_lease_answer(n->sink, kind, reply); break;
    case REQUEST_ASKING: /* the reply to the next command shows whether it took effect */
    case REQUEST_FORGET:
    case REQUEST_XADD: break;
    }
}

void redis_answer_reply(void *node, redisReply *reply)
{
    take_reply(node, reply);
    freeReplyObject(reply);
}

/* Failures */

/* Whether an event is the likely reason that connections end: some limits of a server close the
 * connection without an error. An event is to blame if it was alone in flight, several times in a
 * row, when a server that was ready closed the connection or fell silent. It does get to be alone:
 * after a failure the circuit lets single events through, and large ones always go alone. */
static bool is_suspect(struct redis_node *n)
{
    bool alone = n->conn.state == REDIS_READY && n->window.events == 1;
    for (struct redis_request *q = n->awaited; alone && q; q = (struct redis_request *)q->f.next)
        if (q->f.d)
            return window_blame(&n->window, q->f.d->ev);
    return false; /* the server has replied */
}

void redis_answer_all(struct redis_node *n, enum sink_status status, const char *why)
{
    int cuts = n->window.suspect.cuts;
    redis_conn_close(&n->conn);
    n->unwaited = n->stale = false;
    n->awaited = NULL;
    while (n->window.first) {
        struct redis_request *q = (struct redis_request *)n->window.first;
        struct sink_result res = {.status = status, .text = why};
        if (status == SINK_LATER && q->run == 0)
            res.status = SINK_CANCELLED; /* in a chain, only the first may wait on its own */
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
    /* An event that was not blamed remains suspect. */
    bool blamed = status == SINK_RETRY || status == SINK_CANCELLED;
    if (!blamed)
        n->window.suspect.cuts = cuts;
}

void redis_answer_lost(struct redis_node *n, const struct error *err)
{
    enum sink_status status = SINK_DOWN;
    if (n->sink->map)
        status = redis_map_away(n);
    if (is_suspect(n))
        status = SINK_RETRY;
    redis_route_lost(n, err);
    redis_answer_all(n, status, err->text);
}
