/* operator.h: what operators tell a store, and what they are shown: consumers, events and their
 * states, dead letters, trimming, rights, adopted tables, findings. The operations themselves are
 * those of store.h. */
#ifndef STORE_OPERATOR_H
#define STORE_OPERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "event/event.h"
#include "event/hwm.h"

/* ---- a consumer as it is registered, and the settings it has or had ---- */

enum order { ORDER_NONE, ORDER_KEY, ORDER_GLOBAL };

#define STORE_NAME_MAX 63 /* bytes of a consumer's name: [A-Za-z0-9_.-]+ */
#define STORE_LANES_MAX 64

/* Where a new consumer starts. */
enum start { START_BEGINNING, START_END, START_SEQ };

/* Who registers a consumer, and so what they may do. Settings are events, where, order and lanes;
 * the retry policy is kept for people to read and may change freely. */
enum put {
    /* a worker that starts: creates the consumer, or gives it settings it has never had */
    PUT_START,
    /* a worker that was running: the same, but a removed consumer is not created again
     * (ERR_NOTFOUND) */
    PUT_AGAIN,
    /* an operator: may also bring back settings that were replaced. The consumer must exist */
    PUT_PURPOSE,
};

/* A consumer as the database keeps it. Strings are borrowed on the way in and live in the
 * arena on the way out. */
struct consumer_spec {
    const char *name;
    const char *events; /* patterns; "" for all */
    const char *where;  /* predicate; "" for none */
    const char *retry;  /* policy as text, for people to read */
    enum order order;
    int lanes;
    enum start start; /* used only when the consumer is created */
    int64_t start_seq;
    enum put how;
    const char *by; /* who registers it, for people to read; NULL: unknown */
};

/* Settings that a consumer has or had. */
struct consumer_settings {
    int generation; /* the highest one is in force */
    const char *events, *where;
    enum order order;
    int lanes;
    int64_t since;  /* wall ms */
    const char *by; /* NULL: unknown */
};
#define STORE_GENERATIONS 100 /* how many settings of a consumer are remembered */

/* ---- what operators are shown ---- */

enum delivery_state {
    /* not claimed: not handed out yet, parked with no attempt used, or its claim ran out */
    STATE_PENDING,
    STATE_INFLIGHT, /* in a live claim */
    STATE_DELIVERED,
    STATE_FAILED,       /* an attempt failed; it will be tried again */
    STATE_EXPIRED,      /* a dead letter */
    STATE_SKIPPED,      /* the filter it was, or will be, handed out under does not match */
    STATE_DROPPED,      /* it was a dead letter, which an operator deleted */
    STATE_BEFORE_START, /* it is older than the place where the consumer was told to start */
};
#define STATE_COUNT 8
extern const char *const delivery_state_names[STATE_COUNT + 1]; /* "pending", ..., NULL */

/* The parked event that a consumer has owed for longest. Its key waits for it. */
struct parked_info {
    int64_t seq;   /* 0: there is none, or all just wait for their not_before */
    int64_t since; /* when it could first have been delivered, as overdue_at */
    int attempts;
    int64_t due_at;    /* of its next attempt, or of the one that is being made */
    const char *error; /* of its last attempt; NULL: it has not failed */
};

struct consumer_info {
    struct consumer_spec spec;
    bool paused;
    int64_t created_at;
    int64_t position; /* the lowest of its lanes */
    /* events its filter wants that are not delivered: those not claimed (not handed out yet, or
     * their claim ran out), those in flight and those parked */
    int64_t behind;
    bool behind_exact;    /* false: an estimate, from STORE_COUNT_EVENTS and STORE_PROBE_ROWS */
    int64_t oldest_at;    /* created_at of the oldest of those that were found; 0: none */
    int64_t unclaimed_at; /* the same of those that are not claimed */
    /* when the first of them could have been delivered: its created_at, or its not_before if that
     * is later; 0: none is due */
    int64_t overdue_at;
    int64_t delivered;   /* since the consumer was created */
    int64_t inflight;    /* events in live claims */
    bool inflight_exact; /* false: an upper bound; the predicate was not applied to all of them */
    int64_t claims;      /* live ones */
    const char *owner;   /* of one live claim; NULL: there is none */
    /* events that wait for a retry, for their time or behind another, without those in live
     * claims */
    int64_t parked;
    bool parked_exact; /* false: an estimate, from STORE_PROBE_ROWS */
    struct parked_info first_parked;
    int64_t dead;
    const char *report; /* what its relay said last, at report_at; NULL: nothing */
    int64_t report_at;
    bool down;        /* the report says that its sink is down, since report_at */
    int64_t next_due; /* wall ms of the next retry; 0: none */
    /* of the one that failed last of the first STORE_PROBE_EVENTS parked events, or the report, if
     * that is later; NULL: none */
    const char *last_error;
    int64_t last_error_at;
    int64_t floor;         /* events up to here are no longer needed */
    const char *floor_pin; /* what needs the next one: "position", "parked" or "claim" */
};

/* Counting has bounds, so that its price does not grow with the backlog. */
#define STORE_COUNT_EVENTS 10000 /* events after the position that are looked at */
#define STORE_PROBE_EVENTS 1000  /* the same by type, or where payloads have to be read */
#define STORE_PROBE_ROWS 10000   /* parked events are counted up to this, then estimated */
#define STORE_EXACT_ROWS 100000  /* kept events are counted up to this */
#define STORE_LOOK 200000        /* numbers that a listing looks at in vain: about a second */

struct gauge_type {
    const char *type;
    int64_t n;         /* not delivered; an estimate where not all events were looked at */
    int64_t oldest_at; /* created_at of the oldest of those that were */
};

/* How a consumer is doing, cheap enough to be asked again and again. */
struct consumer_gauge {
    bool paused;
    /* the types of what is not delivered, most frequent first: of the first STORE_PROBE_EVENTS that
     * are not claimed, of as many parked ones, and of all in flight. The predicate is not
     * applied */
    const struct gauge_type *type;
    size_t n_types;
    int64_t overdue_at; /* as in consumer_info */
    int64_t parked;     /* as in consumer_info */
    int64_t dead;       /* STORE_PROBE_ROWS stands for that many or more */
    int64_t down_since; /* when its relay reported that its sink is down; 0: it is not */
    int64_t now_ms;     /* the database's clock */
};

struct store_info {
    int schema_version;
    int64_t events;    /* rows that are kept */
    bool events_exact; /* false: an upper bound, from the ends of seq: too many to count */
    int64_t head;      /* highest seq ever given */
    int64_t tail;      /* lowest seq that is kept; 0: none */
    int64_t oldest_at; /* created_at of tail */
    int64_t passed_at; /* since when every consumer has been done with tail; -1: unknown */
    int64_t consumers, dead;
    int64_t now_ms; /* the database's clock */
};

/* How far a listing has looked. Looking for events that match is bounded (event_query.look): if
 * `partial`, there are more than those between from and to, which may match or not. */
struct event_look {
    int64_t from, to; /* seq of the first and the last number looked at; partial only */
    bool partial;
};

/* Which events to list. Zero means no restriction. */
struct event_query {
    const char *type; /* pattern */
    struct str aggregate_type, aggregate_id;
    const char *consumer; /* states of this consumer only */
    int state;            /* enum delivery_state + 1 */
    bool unprocessed;     /* instead of a state: pending, or failed and due again */
    const char *id;       /* event id, or a seq in decimal */
    int64_t after;        /* a seq to go on behind, in the order of the listing */
    size_t limit;         /* 0: 100 */
    bool newest_first;

    /* How many numbers to look at in vain, about. What is recorded about single events (failed,
     * expired, dropped, in-flight) is found without looking. 0: STORE_LOOK; LOOK_ALL: no bound. */
    int64_t look;
    struct event_look *looked; /* filled in; NULL: not asked for */
    /* looking is called now and then with how many numbers were looked at, if it is not NULL. */
    void (*looking)(void *ctx, int64_t numbers);
};
#define LOOK_ALL INT64_MAX

/* The state of one event for one consumer. */
struct delivery_info {
    const char *consumer;
    enum delivery_state state;
    int attempts;
    int64_t due_at; /* failed, or pending with a delay */
    const char *error;
    int64_t delivered_at; /* from its receipt; 0: there is none */
    const char *receipt;  /* the sink's own id for it, such as a stream id; NULL: none */
};

/* event_visit is called for each event; `ev` and `d` are borrowed for the call. A non-zero return
 * ends the listing without an error. */
typedef int event_visit(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n);

struct dead_letter {
    struct event ev;
    const char *consumer;
    int attempts;
    const char *error;
    int64_t dead_at;
    bool retrying; /* it was sent back and has not been settled since */
};
struct dead_query {
    const char *consumer; /* NULL: all */
    const char *id;       /* event id or seq; NULL: all */
    const char *type;     /* pattern; NULL: all */
    size_t limit;         /* 0: all */
};
typedef int dead_visit(void *ctx, const struct dead_letter *d);

/* mark_visit is called with a consumer's high-water mark of a stream, borrowed for the call. */
typedef int mark_visit(void *ctx, const char *consumer, const struct hwm *m, int64_t at);

#define STORE_TRIM_ROWS 1000

struct trim_request {
    int64_t older_than_ms;
    int64_t inbox_ms; /* the same for the inbox; 0: like the rest */
    bool dry_run;
    /* per call, so that other sessions do not wait long; 0: STORE_TRIM_ROWS, or with dry_run, which
     * looks at no more of each kind, STORE_EXACT_ROWS */
    size_t max_rows;
    int64_t after; /* what the call before, which said more, was through with; 0: look at all */
};
struct trim_result {
    /* how many were deleted by this call, or with dry_run would be by repeated calls */
    int64_t events;
    int64_t keys; /* idempotency keys */
    int64_t inbox;
    int64_t receipts;
    /* with dry_run: events is an estimate, and of the others there are at least so many */
    bool events_about, keys_more, inbox_more, receipts_more;
    bool more;            /* call again */
    int64_t upto;         /* the events up to here were looked at; 0: the next call looks at all */
    int64_t kept_for_pin; /* events old enough but still needed; counted when more is false */
    bool kept_more;       /* not all of those were counted: there may be more */
    char pin[160];        /* who needs them: `consumer "search" (position 120)`; "": none */
};

/* Gives a role of the database a part: "producer", "consumer" or "operator". */
struct grant_request {
    const char *part, *role;
    const char *const *consumers; /* with the part "consumer": which; none: all */
    size_t n_consumers;
    const char *tenant; /* the role is limited to it; NULL: no limit is set */
    bool revoke, dry_run;
};

/* A table of the application whose rows become events. */
struct adopt_request {
    const char *table;          /* as SQL writes it */
    const char *shape;          /* "auto", "processed_at", "debezium" */
    const char *const *columns; /* FIELD=COLUMN, where the table's names are not the usual ones */
    size_t n_columns;
    /* what to do with rows that exist: "copy" or "skip"; NULL: copy, the first time */
    const char *existing;
    /* the column to set when `consumer` has had the row; NULL: none, or the present one */
    const char *mark;
    const char *consumer; /* not NULL if mark is not */
    bool undo, dry_run;
    bool drop_mark; /* rows are no longer marked; nothing else changes */
};
struct adopt_result {
    bool changed;       /* false: nothing had to be done */
    bool other_columns; /* it was adopted before, with other columns */
    int64_t copied;     /* rows that became events at once */
    char mapping[2000]; /* of a dry run: {"FIELD":"COLUMN",...} */
};

/* What validate or doctor has to say about one thing. */
enum finding_level { FINDING_OK, FINDING_NOTE, FINDING_WARNING, FINDING_PROBLEM };
#define FINDING_LEVELS 4
/* "ok", "note", "warning", "problem", NULL */
extern const char *const finding_level_names[FINDING_LEVELS + 1];

struct finding {
    enum finding_level level;
    const char *name;   /* a word for programs: "transaction", "grants" */
    const char *text;   /* what was found, and why it matters */
    const char *advice; /* what to do; NULL: nothing */
};

/* finding_visit takes one finding, whose strings are borrowed for the call. */
typedef void finding_visit(void *ctx, const struct finding *f);

struct doctor_request {
    int64_t patience_ms; /* how old a transaction or an expired claim may be without a warning */
    finding_visit *visit;
    void *ctx;
};

/* The functions and views in the database, where a store has them: this program's own, those of an
 * earlier build, or those of a later build that replaced this program's. */
enum functions_status { FUNCTIONS_SAME, FUNCTIONS_OLDER, FUNCTIONS_NEWER };

struct schema_status {
    int64_t there;                   /* the version in the database; 0: it has no outbox */
    int64_t known;                   /* the version this program makes */
    enum functions_status functions; /* if there == known */
};

struct buf;

/* Asks for the SQL that makes and unmakes an outbox, for tools that run migrations themselves. */
struct ddl_request {
    const char *url;    /* nothing connects to it */
    const char *schema; /* where the URL names none; NULL: the store's default */
    struct buf *up, *down, *ret_schema;
};

#endif
