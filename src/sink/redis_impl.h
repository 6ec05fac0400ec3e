/* redis_impl.h: what the files of the Redis sink share: redis.c (sending), redis_command.c
 * (what is sent), redis_answer.c (what replies mean), redis_lease.c and redis_settings.c. */
#ifndef SINK_REDIS_IMPL_H
#define SINK_REDIS_IMPL_H

#include "event/message.h"
#include "event/template.h"
#include "redis/conn.h"
#include "sink/sink.h"
#include "sink/streams.h"

#define REDIS_ID 48       /* an id, "18446744073709551615-18446744073709551615", and its NUL */
#define REDIS_WINDOW 4096 /* requests in flight; a power of two */

/* What the URL says besides where the server is. Strings are owned. */
struct redis_settings {
    char *stream;              /* template of the stream's name */
    int64_t maxlen, maxage_ms; /* 0: no limit; at most one of them is set */
    int64_t replicas, replicas_wait_ms;
    char *lease; /* key; NULL: no lease */
    int64_t lease_ms;
    enum message_format format;
    char *source; /* of CloudEvents; NULL: the usual one */
};

/* redis_settings_read reads a URL into *s and *u, which the caller releases, also after an error.
 * Errors: ERR_CONFIG, ERR_NOMEM. */
int redis_settings_read(const char *url, struct redis_settings *s, struct redis_url *u,
                        struct error *err);
void redis_settings_release(struct redis_settings *s);

/* What a reply will be about: an event, replicas, or the lease. */
enum request_kind { REQUEST_XADD, REQUEST_WAIT, REQUEST_EXTEND, REQUEST_TAKE };

/* A request whose reply is awaited. (1) d == NULL: it is not for an event, or the event has been
 * answered for. (2) With replicas, an XADD that succeeded is `added`, and stays until the WAIT
 * after it is answered. (3) The events of one script are adjacent and share one reply. The first of
 * them has their number in `run`, the others have 0. */
struct request {
    enum request_kind kind;
    bool added;
    struct delivery *d;
    struct stream *stream;
    int64_t since; /* monotonic: when it was queued */
    size_t run;    /* how many events the reply is for; 1 without a script */
    char id[REDIS_ID];
};

/* What we are asking about the lease. */
enum lease_asking {
    LEASE_NOTHING,
    LEASE_EXTEND, /* an extension */
    LEASE_TAKE,   /* an extension, followed by a SET if the key is free */
};

/* (1) The lease is held until `until`, which is counted from before it was asked for. (2) `next` is
 * when to ask again; it counts only while asking == LEASE_NOTHING. Times are monotonic. */
struct redis_lease {
    char token[33]; /* the value of the key while the lease is ours */
    int64_t until, asked, next;
    enum lease_asking asking;
    bool no_script; /* the server does not have the script: send its text */
    struct sink_lease counts;
};

/* An event that was alone in flight when the connection was cut or fell silent, and how often that
 * has happened in a row. */
struct redis_suspect {
    int64_t seq;
    int cuts;
};

/* (1) ring[first..next) is in flight, and ring[first..heard) of it has been replied to but waits
 * for a WAIT; indexes are modulo REDIS_WINDOW. (2) `events` counts the deliveries in flight that
 * have not been answered for. (3) Nothing is in flight while the connection is closed. */
struct redis_sink {
    struct sink base;
    struct redis_settings set;
    struct redis_url url;
    struct template *name;
    bool fixed; /* every event goes to the same stream */
    struct streams streams;
    struct redis_conn conn;
    char client[80];
    struct request *ring;
    size_t first, heard, next;
    size_t events;
    bool unwaited; /* an XADD was queued since the last WAIT */
    bool stale;    /* reconnect once nothing is in flight */
    bool alone;    /* the last event sent is large: no other is sent while it is in flight */
    struct message_style style;
    struct buf stream_name, envelope;
    struct buf args;      /* of a script */
    int64_t scripts_from; /* monotonic: no scripts before then, because the server refuses them */
    char caution[160];
    char no_scripts[512]; /* the caution once it did; "" if never */
    struct redis_suspect suspect;
    struct redis_lease lease;
};

static inline size_t redis_inflight(const struct redis_sink *r)
{
    return r->next - r->first;
}

static inline int64_t redis_now(const struct redis_sink *r)
{
    return clock_mono(r->base.cfg.clock);
}

static inline struct request *redis_at(const struct redis_sink *r, size_t i)
{
    return &r->ring[i & (REDIS_WINDOW - 1)];
}

static inline bool redis_limited(const struct redis_sink *r)
{
    return r->set.maxlen || r->set.maxage_ms;
}

/* redis_command_xadd queues the XADD of one event, redis_command_run a script that appends the
 * first *n events to one stream; it makes *n smaller if it meets one that cannot be expressed. On
 * failure they queue nothing: ERR_NOMEM, or ERR_INVALID if the first cannot be expressed. */
int redis_command_xadd(struct redis_sink *r, const struct delivery *d, const struct stream *st,
                       struct error *err);
int redis_command_run(struct redis_sink *r, struct delivery *const *d, size_t *n,
                      const struct stream *st, struct error *err);

/* redis_push takes the next place in the ring; there must be one. */
struct request *redis_push(struct redis_sink *r, enum request_kind kind);

/* redis_answer_reply takes the next reply, and calls done for the events it decides. It is a
 * redis_reply_fn. */
void redis_answer_reply(void *sink, redisReply *reply);
/* redis_answer_lost ends everything in flight because the connection failed, and closes it. */
void redis_answer_lost(struct redis_sink *r, const struct error *err);
/* redis_answer_cancelled does the same on behalf of cancel. */
void redis_answer_cancelled(struct redis_sink *r, const char *why);

/* redis_lease_init draws the token. Without a lease in the settings all of these do nothing, and
 * the lease is always held. */
int redis_lease_init(struct redis_sink *r, struct error *err);
/* redis_lease_drive asks for the lease, or for an extension, when that is due. */
void redis_lease_drive(struct redis_sink *r);
/* redis_lease_answer takes the reply to such a request; NULL if the connection was lost first. */
void redis_lease_answer(struct redis_sink *r, enum request_kind kind, const redisReply *reply);
/* redis_lease_held says whether the lease is ours now. It counts a lease that has run out. */
bool redis_lease_held(struct redis_sink *r);
/* redis_lease_deadline returns when redis_lease_drive wants to be called. */
int64_t redis_lease_deadline(const struct redis_sink *r);
/* redis_lease_release gives the lease back, if we hold it and the server is there. */
void redis_lease_release(struct redis_sink *r);

#endif
