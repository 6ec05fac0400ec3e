/* redis_impl.h: what the files of the Redis sink share: redis.c (deliveries), redis_lease.c,
 * redis_config.c. */
#ifndef SINK_REDIS_IMPL_H
#define SINK_REDIS_IMPL_H

#include "event/template.h"
#include "redis/conn.h"
#include "sink/sink.h"
#include "sink/streams.h"

#define REDIS_ID 48       /* an id, "18446744073709551615-18446744073709551615", and its NUL */
#define REDIS_WINDOW 4096 /* requests in flight; a power of two */

/* What the URL says besides where the server is. */
struct redis_settings {
    char *stream; /* template */
    int64_t maxlen, maxage_ms;
    int64_t replicas, replicas_wait_ms;
    char *lease;
    int64_t lease_ms;
};

extern const struct option_def redis_options[];
int redis_settings_read(const char *url, struct redis_settings *s, struct redis_url *u,
                        struct error *err);
void redis_settings_release(struct redis_settings *s);

enum request_kind { REQUEST_XADD, REQUEST_WAIT, REQUEST_EXTEND, REQUEST_TAKE };

/* One request whose answer is awaited. (1) d == NULL: not an event, or one that has been answered
 * for. (2) With replicas, an XADD that was answered well stays until the WAIT behind it is
 * answered: `added`. */
struct request {
    enum request_kind kind;
    bool added;
    struct delivery *d;
    struct stream *stream;
    int64_t since; /* monotonic: when it was queued */
    char id[REDIS_ID];
};

/* (1) ring[first..next) is in flight, [first..heard) of it answered and waiting for their WAIT; all
 *   modulo REDIS_WINDOW;
 * `events` of it have not been answered for. (2) Nothing is in flight while the connection is
 * closed. */
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
    bool stale;    /* connect anew once nothing is in flight */
    bool alone;    /* the last one sent is large: while it is in flight, no other goes with it */
    struct buf stream_name, envelope;
    char caution[160];

    /* An event that was alone in flight when the connection was cut, or no answer came, and how
     * often in a row. */
    int64_t suspect;
    int cuts;

    /* Lease: (3) token is ours; held until `lease_until`, monotonic, counted from before it was
     * asked for. */
    char token[33];
    int64_t lease_until, lease_asked, lease_at; /* lease_at: when to ask next */
    struct sink_lease lease;
    bool lease_asking, lease_taking, no_script; /* taking: a SET went along */
};

static inline size_t redis_inflight(const struct redis_sink *r)
{
    return r->next - r->first;
}

static inline int64_t redis_now(const struct redis_sink *r)
{
    return clock_mono(r->base.cfg.clock);
}

/* redis_push takes the next place in the ring; there must be one. */
struct request *redis_push(struct redis_sink *r, enum request_kind kind);

/* redis_lease_drive asks for the lease, or for more of it, when that is due. redis_lease_answer
 * takes the answer to such a request, a lost connection being one, too (NULL). redis_lease_held: it
 * is ours now. redis_lease_release gives it back. */
int redis_lease_init(struct redis_sink *r, struct error *err);
void redis_lease_drive(struct redis_sink *r);
void redis_lease_answer(struct redis_sink *r, enum request_kind kind, const redisReply *reply);
bool redis_lease_held(struct redis_sink *r);
int64_t redis_lease_deadline(struct redis_sink *r);
void redis_lease_release(struct redis_sink *r);

#endif
