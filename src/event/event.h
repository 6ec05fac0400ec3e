/* event.h: an event, as emitted by a producer and as returned by a store. */
#ifndef EVENT_EVENT_H
#define EVENT_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/str.h"

/* The limits of an event, in bytes unless noted otherwise. docs/reference.md documents them,
 * sql/<store>/0001_outbox.sql enforces them in the databases, and tests/scenario/test_limits.py
 * tries them on every interface: change all of them together. */
#define EVENT_TYPE_MAX 255
#define EVENT_KEY_MAX 1024 /* of each: aggregate type, aggregate id, idempotency key, tenant */
#define EVENT_HEADERS_MAX 65536
#define EVENT_HEADERS_COUNT 64                            /* entries; repeated names count */
#define EVENT_PAYLOAD_MAX (1024 * 1024)                   /* the default */
#define EVENT_PAYLOAD_CEILING ((int64_t)64 * 1024 * 1024) /* the highest limit that can be set */
#define EVENT_AHEAD_MAX_MS ((int64_t)3653 * 24 * 3600000) /* limit on not_before: ten years */

/* An event to emit. All fields are borrowed for the call. Absent strings have p == NULL. */
struct new_event {
    struct str type;
    struct str aggregate_type, aggregate_id; /* both or neither; together the ordering key */
    struct str payload;                      /* JSON text; absent: null */
    struct str headers;                      /* a JSON object of strings; absent: no headers */
    struct str idempotency_key;
    struct str tenant;
    bool has_version;
    int64_t version;
    int64_t not_before; /* wall ms; 0: deliver at once */
};

/* A committed event. (1) key == 0 if and only if it has no aggregate. (2) Its strings live in the
 * batch's arena and are NUL-terminated. (3) id is UUID_TEXT characters. */
struct event {
    int64_t seq;
    struct str id;
    struct str type;
    struct str aggregate_type, aggregate_id;
    struct str payload;
    struct str headers; /* absent: none */
    struct str tenant;
    struct str idempotency_key; /* see event_inbox_key; absent: none, or unused there */
    int64_t version;
    bool has_version;
    int64_t created_at; /* wall ms */
    int64_t not_before; /* wall ms; 0: none */
    uint64_t key;       /* event_key of the aggregate */

    /* Delivery state, set by the claim. */
    int attempts;       /* attempts before this one */
    int64_t failing_ms; /* time since its first failure; 0 if it has not failed */
    bool proven;        /* it failed while other events were delivered, so it is at fault */
    bool crashed; /* it was in flight when its worker vanished, so it may have been delivered */
    bool behind;  /* its key is blocked: do not deliver, settle as OUTCOME_BEHIND */
    bool delayed; /* not_before is in the future: do not deliver, settle as OUTCOME_DELAY */
};

/* A high-water mark: the last id written to a stream of a sink, in the two parts that Redis writes
 * as hi-lo. */
struct hwm {
    struct str stream;
    int64_t hi, lo;
};

/* What event_check needs to know about the store. */
struct event_limits {
    int64_t payload_max; /* bytes */
    int64_t now;         /* wall ms */
};

/* event_check rejects an event that must not be emitted. Fails with ERR_INVALID; the message names
 * the part, the problem and the position. */
int event_check(const struct new_event *ev, const struct event_limits *limits, struct error *err);

/* event_check_stored rejects a stored event that no sink may receive: its producer bypassed the
 * checks, or SQLite stored text that is not UTF-8. Fails with ERR_INVALID, as event_check does. It
 * checks neither sizes, which sinks check, nor whether the payload is JSON, which databases
 * guarantee, because it runs for every delivery. */
int event_check_stored(const struct event *ev, struct error *err);

/* event_check_inbox rejects a handler name or key that the inbox cannot store: empty, too long, not
 * UTF-8, or with a NUL. */
int event_check_inbox(struct str handler, struct str key, struct error *err);

/* event_key hashes an aggregate to the number that determines lane and order; 0 if and only if the
 * aggregate id is absent. Databases store it, so it is the same in every version and on every
 * store. */
uint64_t event_key(struct str aggregate_type, struct str aggregate_id);

/* event_headers_of parses the headers. Returns false if there are none, or if they are not an
 * object, which is possible only if checks were disabled. */
bool event_headers_of(const struct event *ev, struct json *ret);

/* event_inbox_key returns the key under which a handler records that it took effect. */
static inline struct str event_inbox_key(const struct event *ev)
{
    return ev->idempotency_key.p ? ev->idempotency_key : ev->id;
}

/* event_bytes returns the approximate memory use of an event, which limits batches. */
static inline size_t event_bytes(const struct event *ev)
{
    return ev->payload.n + ev->headers.n + ev->type.n + ev->aggregate_id.n + ev->aggregate_type.n +
           sizeof *ev;
}

/* event_lane returns which of `lanes` lanes an event is in: by its key, or by seq if it has
 * none. */
static inline int event_lane(uint64_t key, int64_t seq, int lanes)
{
    if (lanes <= 1)
        return 0;
    uint64_t by = key ? key >> 16 : (uint64_t)seq;
    return (int)(by % (uint64_t)lanes);
}

#endif
