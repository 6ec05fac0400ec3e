/* redis_lease.c: a key in Redis that says whose turn it is. It saves work where several relays
 * stand by; safety does not rest on it, because every settlement is fenced by an epoch in the
 * database. */
#include <stdio.h>
#include <sys/random.h>

#include "redis/reply.h"
#include "sink/redis_impl.h"

#define AGAIN_MS 500 /* between attempts to get it */
#define RELEASE_MS 1000

/* Extending and releasing compare first: a holder that slept through its time must not touch
 * another's lease. */
#define EXTEND \
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) " \
    "else return 0 end"
#define EXTEND_SHA "53f2c61c14d7b92a6f44852b306cc8ed3636d4db"
#define RELEASE \
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 " \
    "end"

int redis_lease_init(struct redis_sink *r, struct error *err)
{
    unsigned char bytes[(sizeof r->token - 1) / 2];
    if (!r->set.lease)
        return 0;
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return err_set(err, ERR_UNAVAILABLE, "no randomness to be had from the kernel");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(r->token + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

bool redis_lease_held(struct redis_sink *r)
{
    if (!r->set.lease)
        return true;
    bool held = redis_now(r) < r->lease_until;
    if (!held && r->lease.held)
        r->lease.lost++;
    r->lease.held = held;
    return held;
}

/* queue_extend sends the script by its hash, or whole where the server does not know it. */
static void queue_extend(struct redis_sink *r)
{
    char ttl[24];
    snprintf(ttl, sizeof ttl, "%lld", (long long)r->set.lease_ms);
    const char *argv[] = {r->no_script ? "EVAL" : "EVALSHA",
                          r->no_script ? EXTEND : EXTEND_SHA,
                          "1",
                          r->set.lease,
                          r->token,
                          ttl};
    if (redis_conn_add(&r->conn, 6, argv, NULL) == 0)
        redis_push(r, REQUEST_EXTEND);
}

/* queue_take asks for a key that is free; the seconds are rounded up, as EX has no fractions of
 * them. */
static void queue_take(struct redis_sink *r)
{
    char ttl[24];
    snprintf(ttl, sizeof ttl, "%lld", (long long)((r->set.lease_ms + 999) / 1000));
    const char *argv[] = {"SET", r->set.lease, r->token, "NX", "EX", ttl};
    if (redis_conn_add(&r->conn, 6, argv, NULL) == 0)
        redis_push(r, REQUEST_TAKE);
}

void redis_lease_drive(struct redis_sink *r)
{
    struct error err;
    int64_t now = redis_now(r);
    if (!r->set.lease || r->lease_asking || now < r->lease_at ||
        redis_inflight(r) + 2 > REDIS_WINDOW)
        return;
    if (r->conn.state == REDIS_CLOSED && redis_conn_open(&r->conn, &err) != 0) {
        r->lease_at = now + AGAIN_MS * MS_NS;
        return;
    }
    r->lease_asking = true;
    r->lease_taking = !redis_lease_held(r);
    r->lease_asked = now;
    /* Ours may be there although we do not know: the answer to an earlier request may have got
     * lost. So extend, then take. */
    queue_extend(r);
    if (r->lease_taking)
        queue_take(r);
}

static void got_it(struct redis_sink *r)
{
    if (redis_lease_held(r))
        r->lease.renewed++;
    else
        r->lease.acquired++;
    r->lease_until = r->lease_asked + r->set.lease_ms * MS_NS;
    r->lease_at = r->lease_asked + r->set.lease_ms * MS_NS / 2;
    r->lease_asking = false;
    redis_lease_held(r);
}

static void not_ours(struct redis_sink *r)
{
    if (redis_lease_held(r))
        r->lease_until = 0; /* someone else has it, or somebody deleted it */
    redis_lease_held(r);
    r->lease_at = redis_now(r) + AGAIN_MS * MS_NS;
    r->lease_asking = false;
}

void redis_lease_answer(struct redis_sink *r, enum request_kind kind, const redisReply *reply)
{
    if (!reply ||
        (reply->type == REDIS_REPLY_ERROR && redis_fault_of(reply->str) != REDIS_FAULT_SCRIPT)) {
        /* Nothing is known: it is ours until its time is over. */
        if (r->lease_asking && redis_lease_held(r))
            r->lease.unanswered++;
        r->lease_asking = false;
        r->lease_at = redis_now(r) + AGAIN_MS * MS_NS;
        return;
    }
    if (!r->lease_asking)
        return; /* the SET that went along with a successful extension */
    if (kind == REQUEST_EXTEND && reply->type == REDIS_REPLY_ERROR) {
        r->no_script = true;
        if (r->lease_taking)
            return; /* the SET behind it will tell */
        r->lease_asking = false;
        r->lease_at = 0;
        return;
    }
    if (kind == REQUEST_EXTEND) {
        r->no_script = false;
        if (reply->integer == 1)
            got_it(r);
        else if (!r->lease_taking)
            not_ours(r);
        return;
    }
    if (reply->type == REDIS_REPLY_STATUS)
        got_it(r);
    else
        not_ours(r);
}

int64_t redis_lease_deadline(struct redis_sink *r)
{
    if (!r->set.lease || r->lease_asking)
        return CLOCK_NEVER;
    return r->lease_at ? r->lease_at : 0;
}

void redis_lease_release(struct redis_sink *r)
{
    struct error err;
    redisReply *reply = NULL;
    if (!r->set.lease || !redis_lease_held(r) || redis_inflight(r) > 0 ||
        r->conn.state != REDIS_READY)
        return;
    const char *argv[] = {"EVAL", RELEASE, "1", r->set.lease, r->token};
    if (redis_conn_call(&r->conn, 5, argv, NULL, RELEASE_MS, -1, &reply, &err) == 0)
        freeReplyObject(reply);
    r->lease_until = 0;
}
