/* redis_lease.c: a lease on a key in Redis, by which relays take turns. The lease only saves work:
 * safety does not depend on it, because every settlement is fenced by an epoch in the database. SET
 * NX acquires the lease; scripts that compare the token extend and release it. */
#include <stdio.h>
#include <sys/random.h>

#include "redis/conn.h"
#include "sink/redis_impl.h"

#define AGAIN_NS (500 * MS_NS) /* between attempts to acquire the lease */
#define RELEASE_MS 1000

/* The scripts compare the token first: a relay whose lease has expired must not change another
 * relay's lease. */
#define EXTEND \
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) " \
    "else return 0 end"
#define EXTEND_SHA "53f2c61c14d7b92a6f44852b306cc8ed3636d4db"
#define RELEASE \
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 " \
    "end"

/* Returns the server that, as far as known, owns the key. */
static struct redis_node *lease_node(struct redis_sink *r)
{
    return redis_route_of(r, str_of(r->set.lease));
}

int redis_lease_init(struct redis_sink *r, struct error *err)
{
    char *token = r->lease.token;
    unsigned char bytes[(sizeof r->lease.token - 1) / 2];
    if (!r->set.lease)
        return 0;
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return err_set(err, ERR_UNAVAILABLE, "could not get random bytes from the kernel");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

bool redis_lease_held(struct redis_sink *r)
{
    struct sink_lease *counts = &r->lease.counts;
    if (!r->set.lease)
        return true;
    bool held = redis_now(r) < r->lease.until;
    if (counts->held && !held)
        counts->lost++;
    counts->held = held;
    return held;
}

static void queue(struct redis_node *n, enum request_kind kind, int argc, const char **argv)
{
    if (redis_conn_add(&n->conn, argc, argv) == 0)
        redis_node_push(n, kind, NULL, NULL);
}

/* Queues an extension even if we do not appear to hold the lease: the key may be ours if the reply
 * to an earlier request was lost. A SET follows in that case, since the key may be free. */
void redis_lease_drive(struct redis_sink *r)
{
    struct redis_lease *lease = &r->lease;
    const char *key = r->set.lease;
    struct error err;
    int64_t now = redis_now(r);
    if (!key || lease->asking != LEASE_NOTHING)
        return;
    struct redis_node *n = lease_node(r);
    bool has_room = n->window.count + 2 <= REDIS_WINDOW;
    if (!has_room || now < lease->next)
        return;
    if (n->conn.wire.state == WIRE_CLOSED && redis_node_connect(n, &err) != 0) {
        lease->next = now + AGAIN_NS;
        return;
    }

    /* The hash of the script, or its text if the server does not know the hash. */
    char ms[24], seconds[24]; /* EX requires whole seconds, hence rounded up */
    snprintf(ms, sizeof ms, "%lld", (long long)r->set.lease_ms);
    const char *extend[] = {"EVALSHA", EXTEND_SHA, "1", key, lease->token, ms};
    if (lease->no_script) {
        extend[0] = "EVAL";
        extend[1] = EXTEND;
    }
    lease->asked = now;
    lease->asking = LEASE_EXTEND;
    queue(n, REQUEST_EXTEND, 6, extend);
    if (redis_lease_held(r))
        return;
    snprintf(seconds, sizeof seconds, "%lld", (long long)((r->set.lease_ms + 999) / 1000));
    lease->asking = LEASE_TAKE;
    queue(n, REQUEST_TAKE, 6, (const char *[]){"SET", key, lease->token, "NX", "EX", seconds});
}

/* Records that no reply is awaited, and when to request the lease again. */
static void answered(struct redis_sink *r, int64_t next)
{
    r->lease.asking = LEASE_NOTHING;
    r->lease.next = next;
}

static void granted(struct redis_sink *r)
{
    int64_t ttl = r->set.lease_ms * MS_NS;
    if (redis_lease_held(r))
        r->lease.counts.renewed++;
    else
        r->lease.counts.acquired++;
    r->lease.until = r->lease.asked + ttl;
    redis_lease_held(r);
    answered(r, r->lease.asked + ttl / 2);
}

/* Ends the lease: another relay holds the key, or it was deleted. */
static void denied(struct redis_sink *r)
{
    if (redis_lease_held(r))
        r->lease.until = 0;
    redis_lease_held(r);
    answered(r, redis_now(r) + AGAIN_NS);
}

void redis_lease_answer(struct redis_sink *r, enum request_kind kind, const redisReply *reply)
{
    bool failed = reply && reply->type == REDIS_REPLY_ERROR;
    if (!reply || (failed && redis_fault_of(reply->str) != REDIS_FAULT_SCRIPT)) {
        /* Only schedules the next request: a lease that we hold stays ours until it expires. */
        if (r->lease.asking != LEASE_NOTHING && redis_lease_held(r))
            r->lease.counts.unanswered++;
        answered(r, redis_now(r) + AGAIN_NS);
        return;
    }
    bool alone = r->lease.asking == LEASE_EXTEND; /* otherwise the reply to the SET decides */
    if (r->lease.asking == LEASE_NOTHING)
        return; /* the reply to a SET whose preceding extension was granted */

    if (kind == REQUEST_TAKE) {
        if (reply->type == REDIS_REPLY_STATUS)
            granted(r);
        else
            denied(r);
    } else if (failed) {
        r->lease.no_script = true; /* the next extension, due now, sends the script's text */
        if (alone)
            answered(r, 0);
    } else {
        r->lease.no_script = false;
        if (reply->integer == 1)
            granted(r);
        else if (alone)
            denied(r);
    }
}

int64_t redis_lease_deadline(const struct redis_sink *r)
{
    bool waiting = r->set.lease && r->lease.asking == LEASE_NOTHING;
    if (!waiting)
        return CLOCK_NEVER;
    return r->lease.next;
}

void redis_lease_release(struct redis_sink *r)
{
    struct error err;
    redisReply *reply = NULL;
    if (!r->set.lease || !redis_lease_held(r))
        return;
    bool reachable = lease_node(r)->conn.wire.state == WIRE_READY &&
                     lease_node(r)->window.count == 0;
    if (!reachable)
        return;

    const char *argv[] = {"EVAL", RELEASE, "1", r->set.lease, r->lease.token};
    if (redis_conn_call(&lease_node(r)->conn, 5, argv, RELEASE_MS, -1, &reply, &err) == 0)
        freeReplyObject(reply);
    r->lease.until = 0;
}
