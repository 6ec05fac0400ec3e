/* event.h: an event, as a producer hands it in and as a store hands it out. */
#ifndef EVENT_EVENT_H
#define EVENT_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "base/uuid7.h"

/* The limits of an event, in bytes unless said otherwise. docs/reference.md has them for people,
 * sql/<store>/0001_outbox.sql for the databases, and tests/scenario/test_limits.py tries them on
 * every way in: change all of them together. */
#define EVENT_TYPE_MAX 255
#define EVENT_KEY_MAX 1024 /* aggregate type, aggregate id, idempotency key, tenant: each */
#define EVENT_HEADERS_MAX 65536
#define EVENT_HEADERS_COUNT 64                            /* entries; repeated names count */
#define EVENT_PAYLOAD_MAX (1024 * 1024)                   /* the default */
#define EVENT_PAYLOAD_CEILING ((int64_t)64 * 1024 * 1024) /* the most that can be configured */
#define EVENT_AHEAD_MAX_MS ((int64_t)3653 * 24 * 3600000) /* of not_before: ten years */

/* An event to be emitted. Everything is borrowed for the call. Absent strings have p == NULL. */
struct new_event {
    struct str type;
    struct str aggregate_type, aggregate_id; /* both or neither; together the key of order = key */
    struct str payload;                      /* JSON text; absent: null */
    struct str headers;                      /* a JSON object of strings; absent: none */
    struct str idempotency_key;
    struct str tenant;
    bool has_version;
    int64_t version;
    int64_t not_before; /* wall ms; 0: deliver at once */
};

/* An event that was committed. (1) key == 0 if and only if there is no aggregate. (2) Its strings
 * live in the batch's arena and are NUL-terminated. (3) id is UUID_TEXT characters. */
struct event {
    int64_t seq;
    struct str id;
    struct str type;
    struct str aggregate_type, aggregate_id;
    struct str payload;
    struct str headers; /* absent: none */
    struct str tenant;
    struct str idempotency_key; /* see event_inbox_key; absent: none, or of no use to the inbox */
    int64_t version;
    bool has_version;
    int64_t created_at; /* wall ms */
    int64_t not_before; /* wall ms; 0: none */
    uint64_t key;       /* event_key of the aggregate */

    /* What the claim says about this delivery. */
    int attempts;       /* how many came before this one */
    int64_t failing_ms; /* how long it has been failing; 0: it has not failed */
    bool proven;        /* it failed while others got through, so it is at fault itself */
    bool crashed;       /* a worker had it in hand when it vanished: it may have been delivered */
    bool behind;        /* its key is held back: do not deliver, settle as OUTCOME_BEHIND */
    bool delayed;       /* not_before has not come: do not deliver, settle as OUTCOME_DELAY */
};

/* What event_check goes by. */
struct event_limits {
    int64_t payload_max; /* bytes */
    int64_t now;         /* wall ms */
};

/* event_check refuses an event that may not be emitted: ERR_INVALID with a text that says which
 * part is wrong, how, and where. */
int event_check(const struct new_event *ev, const struct event_limits *limits, struct error *err);

/* event_check_stored refuses an event that no sink can be given, because it got past every check:
 * checks can be turned off, and SQLite keeps text that is not UTF-8. ERR_INVALID as event_check.
 * Sinks judge sizes themselves, and databases know that a payload is JSON, so neither is checked
 * here: this runs for every delivery. */
int event_check_stored(const struct event *ev, struct error *err);

/* event_check_inbox refuses a handler's name or a key that the inbox cannot have: one that is
 * empty, too long, not UTF-8, or has a NUL. */
int event_check_inbox(struct str handler, struct str key, struct error *err);

/* event_key hashes an aggregate to the number that lanes and order go by; 0 if and only if the
 * aggregate id is absent. Databases keep it: equal aggregates have equal keys in every version and
 * on every store. */
uint64_t event_key(struct str aggregate_type, struct str aggregate_id);

/* event_inbox_key returns the key under which a handler records that it took effect. */
static inline struct str event_inbox_key(const struct event *ev)
{
    return ev->idempotency_key.p ? ev->idempotency_key : ev->id;
}

/* event_bytes returns about how much memory an event takes, which is what limits batches. */
static inline size_t event_bytes(const struct event *ev)
{
    return ev->payload.n + ev->headers.n + ev->type.n + ev->aggregate_id.n + ev->aggregate_type.n +
           sizeof *ev;
}

/* event_lane returns which of `lanes` lanes an event belongs to, by its key, or by seq if it has
 * none. */
static inline int event_lane(uint64_t key, int64_t seq, int lanes)
{
    if (lanes <= 1)
        return 0;
    uint64_t by = key ? key >> 16 : (uint64_t)seq;
    return (int)(by % (uint64_t)lanes);
}

#endif
