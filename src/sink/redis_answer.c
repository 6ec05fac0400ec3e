/* redis_answer.c: what the replies of a Redis server, or their absence, mean for the events. */
#include <stdio.h>

#include "base/text.h"
#include "redis/reply.h"
#include "sink/redis_impl.h"

/* how many connections an event may cost before it is blamed */
#define CUTS_MAX 3
#define PLAIN_EVENTS 32               /* appended one by one after a script has stopped */
#define NO_SCRIPTS_NS (60000 * MS_NS) /* how long to do without, if the server refuses them */

/* What an error reply means for the event. docs/brokers.md has the same table for people. */
static const enum sink_status statuses[] = {
    [REDIS_FAULT_UNKNOWN] = SINK_RETRY, [REDIS_FAULT_STREAM] = SINK_REFUSED,
    [REDIS_FAULT_AWAY] = SINK_DOWN,     [REDIS_FAULT_LOGIN] = SINK_DOWN,
    [REDIS_FAULT_SIZE] = SINK_REJECT,   [REDIS_FAULT_SETUP] = SINK_DOWN,
    [REDIS_FAULT_SCRIPT] = SINK_RETRY,
};

/* status_of looks up what an error means. */
static enum sink_status status_of(const struct redis_node *n, enum redis_fault fault)
{
    if (fault == REDIS_FAULT_AWAY && n->sink->map)
        return redis_map_fate(n);
    return statuses[fault];
}

static void answer(struct redis_node *n, struct request *q, const struct sink_result *res)
{
    struct delivery *d = q->d;
    q->d = NULL;
    q->stream->flying--;
    n->events--;
    if (d->ev->seq == n->suspect.seq)
        n->suspect = (struct redis_suspect){0};
    sink_done(&n->sink->base, d, res);
}

/* answer_added notes the high-water mark. An id that no clock can give, because somebody set it by
 * hand, is a receipt, but not a mark that a store could keep. */
static void answer_added(struct redis_node *n, struct request *q, const char *id)
{
    int64_t hi, lo;
    if (redis_id(id, &hi, &lo))
        streams_note(&n->sink->streams, q->stream, hi, lo);
    if (n->sink->map)
        redis_map_good(n);
    answer(n, q, &(struct sink_result){.status = SINK_DELIVERED, .receipt = id});
}

static void answer_error(struct redis_node *n, struct request *q, const redisReply *reply)
{
    char said[REDIS_TEXT], name[201], text[2 * REDIS_TEXT + 400];
    const char *advice = redis_advice_of(reply->str);
    redis_conn_text(&n->conn, reply, said);
    text_clean(name, sizeof name, q->stream->name, q->stream->n);
    if (advice)
        snprintf(text, sizeof text, "%s, stream %s: %s (%s)", n->url.label, name, said, advice);
    else
        snprintf(text, sizeof text, "%s, stream %s: %s", n->url.label, name, said);

    enum redis_fault fault = redis_fault_of(reply->str);
    struct sink_result res = {.status = status_of(n, fault), .text = text};
    if (res.status == SINK_LATER)
        res.retry_after_ms = REDIS_AWAY_MS;
    if (redis_reconnects(reply->str))
        n->stale = true;
    bool works = fault == REDIS_FAULT_STREAM;
    if (n->sink->map && works)
        redis_map_good(n);
    else if (n->sink->map)
        n->sink->map->wanted = true;
    answer(n, q, &res);
}

/* answer_odd answers for an event whose XADD was replied to with neither an id nor an error. */
static void answer_odd(struct redis_node *n, struct request *q)
{
    char name[61], text[400];
    text_clean(name, sizeof name, q->stream->name, q->stream->n);
    snprintf(text, sizeof text, "%s gave no id for an entry of stream %s", n->url.label, name);
    answer(n, q, &(struct sink_result){.status = SINK_RETRY, .text = text});
}

static bool has_id(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_STRING && redis_is_id(reply->str);
}

/* entry_added answers for an event that is in its stream, unless it waits for replicas. */
static void entry_added(struct redis_node *n, struct request *q, const char *id)
{
    if (n->sink->set.replicas) {
        snprintf(q->id, sizeof q->id, "%s", id);
        q->added = true;
    } else {
        answer_added(n, q, id);
    }
}

static void xadd_replied(struct redis_node *n, struct request *q, const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        answer_error(n, q, reply);
    } else if (!has_id(reply)) {
        answer_odd(n, q);
    } else {
        if (q->stream->plain > 0)
            q->stream->plain--;
        entry_added(n, q, reply->str);
    }
}

/* Scripts */

/* do_without_scripts notes that the server refuses scripts, and why. Scripts are tried again after
 * a while; the caution stays even if they work then. */
static void do_without_scripts(struct redis_node *n, const char *said)
{
    n->sink->scripts_from = redis_now(n->sink) + NO_SCRIPTS_NS;
    snprintf(n->sink->no_scripts, sizeof n->sink->no_scripts,
             "%s refuses scripts, so events of one key are sent one after the other, a round trip "
             "each: %s (allow EVAL)",
             n->url.label, said);
}

/* run_stopped gives back the events at ring[from..to), which a script did not append. They are not
 * blamed: the plain XADD that comes next will tell what is wrong, and with which of them. An odd
 * reply may mean that they were appended after all; then they arrive twice. */
static void run_stopped(struct redis_node *n, size_t from, size_t to, const redisReply *why)
{
    char said[REDIS_TEXT] = "no id", text[2 * REDIS_TEXT];
    redis_at(n, from)->stream->plain = PLAIN_EVENTS;
    if (why->type == REDIS_REPLY_ERROR) {
        redis_conn_text(&n->conn, why, said);
        bool can_do_without = !n->sink->set.dedupe;
        if (can_do_without && redis_refuses_command(why->str))
            do_without_scripts(n, said);
    }
    snprintf(text, sizeof text, "%s: a script has stopped: %s", n->url.label, said);
    for (size_t i = from; i < to; i++)
        answer(n, redis_at(n, i), &(struct sink_result){.status = SINK_CANCELLED, .text = text});
}

/* run_replied takes the reply to a script for `count` events from ring[at] on: an id for each, or
 * fewer and the error that stopped it, or nothing but an error. */
static void run_replied(struct redis_node *n, size_t at, size_t count, const redisReply *reply)
{
    size_t ids = 0;
    if (reply->type == REDIS_REPLY_ARRAY) {
        while (ids < count && ids < reply->elements && has_id(reply->element[ids])) {
            entry_added(n, redis_at(n, at + ids), reply->element[ids]->str);
            ids++;
        }
        if (ids < reply->elements)
            reply = reply->element[ids];
    }
    if (ids < count)
        run_stopped(n, at + ids, at + count, reply);
}

/* only_of returns the reply to one event: with dedupe, that was given to a script. */
static const redisReply *only_of(const struct redis_node *n, const redisReply *reply)
{
    bool one = reply->type == REDIS_REPLY_ARRAY && reply->elements == 1;
    if (n->sink->set.dedupe && one)
        return reply->element[0];
    return reply;
}

/* append_replied takes the reply to what has appended one event, or a run of them. */
static void append_replied(struct redis_node *n, struct request *q, const redisReply *reply)
{
    size_t at = n->heard - 1;
    n->heard = at + q->run;
    bool refused = n->sink->map && reply->type == REDIS_REPLY_ERROR;
    if (refused && redis_map_redirect(n, at, q->run, reply->str))
        return;
    if (q->run == 1) {
        xadd_replied(n, q, only_of(n, reply));
        return;
    }
    run_replied(n, at, q->run, reply);
}

/* too_few says why a WAIT does not confirm the entries before it. */
static void too_few(const struct redis_node *n, const redisReply *reply, char out[2 * REDIS_TEXT])
{
    char said[REDIS_TEXT];
    if (reply->type == REDIS_REPLY_ERROR)
        redis_conn_text(&n->conn, reply, said);
    else
        snprintf(said, sizeof said, "%lld of %lld replicas have it", reply->integer,
                 (long long)n->sink->set.replicas);
    snprintf(out, 2 * REDIS_TEXT, "%s: %s", n->url.label, said);
}

/* wait_replied answers for the entries before a WAIT, which was replied to with how many replicas
 * have them. */
static void wait_replied(struct redis_node *n, const redisReply *reply)
{
    char text[2 * REDIS_TEXT];
    bool enough = reply->type == REDIS_REPLY_INTEGER && reply->integer >= n->sink->set.replicas;
    too_few(n, reply, text);
    for (size_t i = n->first; i < n->heard; i++) {
        struct request *q = redis_at(n, i);
        bool waits = q->d && q->added;
        if (!waits)
            continue;
        if (enough)
            answer_added(n, q, q->id);
        else
            answer(n, q, &(struct sink_result){.status = SINK_DOWN, .text = text});
    }
}

/* forget_first drops answered requests from the front of the ring, as far as replies have come. */
static void forget_first(struct redis_node *n)
{
    while (n->first < n->heard && !redis_at(n, n->first)->d)
        n->first++;
}

static void take_reply(struct redis_node *n, const redisReply *reply)
{
    /* A reply that nobody asked for is an error that announces the end, or the peer is not
     * Redis. */
    bool unasked = n->heard == n->next;
    if (unasked) {
        n->stale = true;
        return;
    }

    struct request *q = redis_at(n, n->heard++);
    switch (q->kind) {
    case REQUEST_XADD: append_replied(n, q, reply); break;
    case REQUEST_WAIT: wait_replied(n, reply); break;
    case REQUEST_EXTEND:
    case REQUEST_TAKE: redis_lease_answer(n->sink, q->kind, reply); break;
    case REQUEST_ASKING: /* the reply to what follows tells whether it was heard */
    case REQUEST_FORGET: break;
    }
    forget_first(n);
}

void redis_answer_reply(void *node, redisReply *reply)
{
    take_reply(node, reply);
    freeReplyObject(reply);
}

/* Failures */

/* first_unanswered returns the first event in flight that the server has not replied to; NULL if it
 * has replied to all. */
static const struct event *first_unanswered(const struct redis_node *n)
{
    for (size_t i = n->heard; i < n->next; i++) {
        const struct request *q = redis_at(n, i);
        if (q->d)
            return q->d->ev;
    }
    return NULL;
}

/* is_suspect says whether an event is the likely reason that connections end. Some limits of a
 * server end a connection without a word. So an event is to blame if it was alone in flight, again
 * and again, when a server that had just greeted us hung up or fell silent. It does get to be
 * alone: after a failure the circuit lets single events through, and large ones always go alone. */
static bool is_suspect(struct redis_node *n)
{
    bool alone = n->conn.state == REDIS_READY && n->events == 1;
    if (!alone)
        return false;
    const struct event *ev = first_unanswered(n);
    if (!ev)
        return false;

    if (n->suspect.seq != ev->seq)
        n->suspect = (struct redis_suspect){.seq = ev->seq};
    n->suspect.cuts++;
    return n->suspect.cuts >= CUTS_MAX;
}

/* give_up answers for an event that was in flight. Of a chain only the first may wait by itself. */
static void give_up(struct redis_node *n, struct request *q, enum sink_status status,
                    const char *why)
{
    struct sink_result res = {.status = status, .text = why};
    if (status == SINK_LATER)
        res.retry_after_ms = REDIS_AWAY_MS;
    if (status == SINK_LATER && q->run == 0)
        res.status = SINK_CANCELLED;
    answer(n, q, &res);
}

/* fail_all ends everything in flight, and the connection. What was sent may have been added; it
 * will be sent again, with the same event id. */
static void fail_all(struct redis_node *n, enum sink_status status, const char *why)
{
    struct redis_suspect suspect = n->suspect;
    size_t first = n->first, next = n->next;
    redis_conn_close(&n->conn);
    n->unwaited = n->stale = false;
    n->first = n->heard = n->next; /* before the answers: done may look at it */

    for (size_t i = first; i < next; i++) {
        struct request *q = redis_at(n, i);
        bool about_lease = q->kind == REQUEST_EXTEND || q->kind == REQUEST_TAKE;
        if (about_lease)
            redis_lease_answer(n->sink, q->kind, NULL);
        else if (q->d)
            give_up(n, q, status, why);
    }
    /* The event was not blamed, so the count continues. */
    bool blamed = status == SINK_RETRY || status == SINK_CANCELLED;
    if (!blamed)
        n->suspect = suspect;
}

void redis_answer_lost(struct redis_node *n, const struct error *err)
{
    enum sink_status status = SINK_DOWN;
    if (n->sink->map)
        status = redis_map_fate(n);
    if (is_suspect(n))
        status = SINK_RETRY;
    redis_route_lost(n, err);
    fail_all(n, status, err->text);
}

void redis_answer_cancelled(struct redis_node *n, const char *why)
{
    fail_all(n, SINK_CANCELLED, why);
}
