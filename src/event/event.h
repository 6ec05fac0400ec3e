/* event.h: an event, as a producer hands it in and as a store hands it out. */
#ifndef EVENT_EVENT_H
#define EVENT_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "base/uuid7.h"

/* What an event may be. docs/limits.md says each once for people, sql/<store>/0002_trust.sql says
 * them to the databases, and a test (tests/scenario/test_limits.py) tries them on every way in:
 * change all of them together. */
#define EVENT_TYPE_MAX 255
/* bytes of aggregate type, aggregate id, idempotency key, tenant: each */
#define EVENT_KEY_MAX 1024
#define EVENT_HEADERS_MAX 65536
/* entries, one that comes twice counted twice */
#define EVENT_HEADERS_COUNT 64
#define EVENT_PAYLOAD_MAX (1024 * 1024)                   /* the default; settable */
#define EVENT_PAYLOAD_CEILING ((int64_t)64 * 1024 * 1024) /* the most that can be set */
/* how far ahead not_before may be: ten years */
#define EVENT_AHEAD_MAX_MS ((int64_t)3653 * 24 * 3600000)

/* An event to be emitted. Everything is borrowed for the call. Absent strings have p == NULL. */
struct new_event {
    struct str type;
    /* both or neither: together they are the key that order = key keeps */
    struct str aggregate_type, aggregate_id;
    struct str payload; /* JSON text; absent means null */
    struct str headers; /* a JSON object of strings; absent means none */
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
    struct str
        /* by which the inbox knows it, see event_inbox_key; absent: none, or not usable there */
        idempotency_key;
    int64_t version;
    bool has_version;
    int64_t created_at; /* wall ms */
    int64_t not_before; /* wall ms; 0: none */
    uint64_t key;       /* event_key of the aggregate */

    /* What the claim says about this delivery. */
    int attempts;       /* attempts used up before this one */
    int64_t failing_ms; /* how long it has failed by now; 0: it has not */
    bool proven;        /* and at least once others got through, so that it was its own fault */
    bool behind;        /* its key is held back: don't deliver, settle as OUTCOME_BEHIND */
    bool delayed;       /* not_before has not come: don't deliver, settle as OUTCOME_DELAY */
};

/* What an event is measured by. */
struct event_limits {
    int64_t payload_max; /* bytes */
    int64_t now;         /* wall ms */
};

/* event_check refuses what may not be emitted: ERR_INVALID and a text that says which part, what is
 * wrong with it, and where. */
int event_check(const struct new_event *ev, const struct event_limits *limits, struct error *err);

/* event_check_stored refuses what no sink can be given: an event that came around every check
 * (those of an older version were fewer, and SQLite keeps text that is no UTF-8). ERR_INVALID and a
 * text, as event_check. Sizes are the sink's to judge, and that a payload is JSON is the
 * database's: this is called for every delivery. */
int event_check_stored(const struct event *ev, struct error *err);

/* event_check_inbox refuses what cannot stand in the inbox: a handler's name or a key that is
 * empty, too long, no UTF-8, or has a NUL. */
int event_check_inbox(struct str handler, struct str key, struct error *err);

/* event_key hashes an aggregate to the number that lanes and order go by; never 0, except that an
 * absent aggregate id gives 0. Equal aggregates give equal keys, in every version and on every
 * store: persisted. */
uint64_t event_key(struct str aggregate_type, struct str aggregate_id);

/* event_inbox_key is what a handler records that it has taken effect for. */
static inline struct str event_inbox_key(const struct event *ev)
{
    return ev->idempotency_key.p ? ev->idempotency_key : ev->id;
}

/* event_bytes is what an event takes in memory, about: what batches are cut by. */
static inline size_t event_bytes(const struct event *ev)
{
    return ev->payload.n + ev->headers.n + ev->type.n + ev->aggregate_id.n + ev->aggregate_type.n +
           sizeof *ev;
}

/* event_lane says which of `lanes` lanes an event belongs to: by key, or by seq for an event
 * without one. */
static inline int event_lane(uint64_t key, int64_t seq, int lanes)
{
    if (lanes <= 1)
        return 0;
    return (int)((key ? key >> 16 : (uint64_t)seq) % (uint64_t)lanes);
}

#endif
