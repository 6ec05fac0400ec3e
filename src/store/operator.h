/* operator.h: requests and results of the operators' commands: consumers, events and their states,
 * dead letters, trimming, rights, adopted tables, findings. The operations are in store.h. */
#ifndef STORE_OPERATOR_H
#define STORE_OPERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "event/event.h"

/* ---- a registered consumer, and its settings ---- */

enum order { ORDER_NONE, ORDER_KEY, ORDER_GLOBAL };

#define STORE_NAME_MAX 63 /* bytes of a consumer's name: [A-Za-z0-9_.-]+ */
#define STORE_LANES_MAX 64

/* Where a new consumer starts. */
enum start { START_BEGINNING, START_END, START_SEQ };

/* Who registers a consumer, which determines which settings may change. Settings are events, where,
 * order and lanes; the retry policy is informational and may change freely. */
enum put {
    /* a starting worker: creates the consumer, or applies settings that it has never had */
    PUT_START,
    /* a running worker: the same, but does not recreate a removed consumer (ERR_NOTFOUND) */
    PUT_AGAIN,
    /* an operator: may also restore settings that were replaced. The consumer must exist */
    PUT_PURPOSE,
};

/* A consumer as stored in the database. Input strings are borrowed; output strings live in the
 * arena. */
struct consumer_spec {
    const char *name;
    const char *events; /* patterns; "" for all */
    const char *where;  /* predicate; "" for none */
    const char *retry;  /* policy as text, informational */
    enum order order;
    int lanes;
    enum start start; /* used only when the consumer is created */
    int64_t start_seq;
    enum put how;
    const char *by; /* who registers it, informational; NULL: unknown */
};

/* Settings of a consumer, present or former. */
struct consumer_settings {
    int generation; /* the highest one is in force */
    const char *events, *where;
    enum order order;
    int lanes;
    int64_t since;  /* wall ms */
    const char *by; /* NULL: unknown */
};
#define STORE_GENERATIONS 100 /* how many settings of a consumer are remembered */

/* ---- the state of events and consumers ---- */

enum delivery_state {
    /* not claimed: not handed out yet, parked with no attempt used, or its claim expired */
    STATE_PENDING,
    STATE_INFLIGHT, /* in a live claim */
    STATE_DELIVERED,
    STATE_FAILED,       /* an attempt failed; it will be retried */
    STATE_EXPIRED,      /* a dead letter */
    STATE_SKIPPED,      /* the filter in force when it was, or will be, handed out does not match */
    STATE_DROPPED,      /* it was a dead letter that an operator deleted */
    STATE_BEFORE_START, /* it is older than the configured start of the consumer */
};
#define STATE_COUNT 8
extern const char *const delivery_state_names[STATE_COUNT + 1]; /* "pending", ..., NULL */

/* The parked event that has been overdue for longest. Its key waits for it. */
struct parked_info {
    int64_t seq;   /* 0: none, or all are only waiting for their not_before */
    int64_t since; /* when it could first have been delivered; see overdue_at */
    int attempts;
    int64_t due_at;    /* of its next attempt, or of the current one */
    const char *error; /* of its last attempt; NULL: it has not failed */
};

struct consumer_info {
    struct consumer_spec spec;
    bool paused;
    int64_t created_at;
    int64_t position; /* the lowest of its lanes */
    /* undelivered events that match its filter: unclaimed (not handed out yet, or their claim
     * expired), in flight and parked */
    int64_t behind;
    bool behind_exact;    /* false: an estimate, see STORE_COUNT_EVENTS and STORE_PROBE_ROWS */
    int64_t oldest_at;    /* created_at of the oldest of those found; 0: none */
    int64_t unclaimed_at; /* the same for unclaimed events */
    /* when the first of them could have been delivered: its created_at, or its not_before if that
     * is later; 0: none is due */
    int64_t overdue_at;
    int64_t delivered;   /* since the consumer was created */
    int64_t inflight;    /* events in live claims */
    bool inflight_exact; /* false: an upper bound, the predicate was not evaluated for all */
    int64_t claims;      /* live ones */
    const char *owner;   /* of one live claim; NULL: none */
    /* events waiting for a retry, for their not_before, or behind another event, except those in
     * live claims */
    int64_t parked;
    bool parked_exact; /* false: an estimate, see STORE_PROBE_ROWS */
    struct parked_info first_parked;
    int64_t dead;
    const char *report; /* the last report from its relay, made at report_at; NULL: none */
    int64_t report_at;
    bool down;        /* the report says that its sink is down, since report_at */
    int64_t next_due; /* wall ms of the next retry; 0: none */
    /* the latest error among the first STORE_PROBE_EVENTS parked events, or the report, if that is
     * later; NULL: none */
    const char *last_error;
    int64_t last_error_at;
    int64_t floor;         /* events up to here are no longer needed */
    const char *floor_pin; /* why the next event is needed: "position", "parked" or "claim" */
};

/* Counts are bounded, so that their cost does not grow with the backlog. */
#define STORE_COUNT_EVENTS 10000 /* events examined after the position */
#define STORE_PROBE_EVENTS 1000 /* the same for counts by type, or where payloads have to be read */
#define STORE_PROBE_ROWS 10000  /* parked events are counted up to this, then estimated */
#define STORE_EXACT_ROWS 100000 /* kept events are counted up to this */
#define STORE_LOOK 200000       /* seqs a listing examines without a match: about a second */

struct gauge_type {
    const char *type;
    int64_t n;         /* not delivered; an estimate where not all events were examined */
    int64_t oldest_at; /* created_at of the oldest of those that were */
};

/* The state of a consumer, cheap enough to poll. */
struct consumer_gauge {
    bool paused;
    /* the types of undelivered events, most frequent first: from the first STORE_PROBE_EVENTS
     * unclaimed ones, as many parked ones, and all in flight. The predicate is not evaluated */
    const struct gauge_type *type;
    size_t n_types;
    int64_t overdue_at; /* as in consumer_info */
    int64_t parked;     /* as in consumer_info */
    int64_t dead;       /* STORE_PROBE_ROWS means that many or more */
    int64_t down_since; /* when its relay reported that the sink is down; 0: it is not */
    int64_t now_ms;     /* the database's clock */
};

struct store_info {
    int schema_version;
    int64_t events;    /* rows that are kept */
    bool events_exact; /* false: too many to count; an upper bound, from the ends of seq */
    int64_t head;      /* highest seq ever assigned */
    int64_t tail;      /* lowest seq still kept; 0: none */
    int64_t oldest_at; /* created_at of tail */
    int64_t passed_at; /* when the last consumer finished with tail; -1: unknown */
    int64_t consumers, dead;
    int64_t now_ms; /* the database's clock */
};

/* How far a listing has searched. The search for matching events is bounded (event_query.look): if
 * `partial`, events outside [from, to] may match as well. */
struct event_look {
    int64_t from, to; /* the first and the last seq examined; partial only */
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
    int64_t after;        /* continue after this seq, in the order of the listing */
    size_t limit;         /* 0: 100 */
    bool newest_first;

    /* About how many seqs to examine without a match. States recorded per event (failed, expired,
     * dropped, in-flight) are found without a search. 0: STORE_LOOK; LOOK_ALL: no bound. */
    int64_t look;
    struct event_look *looked; /* output; NULL: not wanted */
    /* looking is called now and then with the number of seqs examined. May be NULL. */
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
    int64_t delivered_at; /* from its receipt; 0: none */
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
    bool retrying; /* it is being retried, and has not been settled since */
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
    int64_t inbox_ms; /* the same for the inbox; 0: older_than_ms */
    bool dry_run;
    /* per call, so that other sessions do not wait long; with dry_run, how many rows of each kind
     * to examine. 0: STORE_TRIM_ROWS, with dry_run STORE_EXACT_ROWS */
    size_t max_rows;
    int64_t after; /* upto of the previous call, if that set `more`; 0: examine all events */
};
struct trim_result {
    /* rows deleted by this call or, with dry_run, that repeated calls would delete */
    int64_t events;
    int64_t keys; /* idempotency keys */
    int64_t inbox;
    int64_t receipts;
    /* with dry_run: events is an estimate, the others are lower bounds */
    bool events_about, keys_more, inbox_more, receipts_more;
    bool more;            /* call again */
    int64_t upto;         /* events up to here were examined; 0: the next call examines all */
    int64_t kept_for_pin; /* events old enough but still needed; counted if more is false */
    bool kept_more;       /* not all of those were counted */
    char pin[160];        /* the consumer that needs them: `consumer "search" (position 120)`; "":
                           * nothing */
};

/* Grants a database role the rights of a part: "producer", "consumer" or "operator". */
struct grant_request {
    const char *part, *role;
    const char *const *consumers; /* for the part "consumer": which ones; none: all */
    size_t n_consumers;
    const char *tenant; /* limits the role to this tenant; NULL: no limit is set */
    bool revoke, dry_run;
};

/* A table of the application whose rows become events. */
struct adopt_request {
    const char *table;          /* as SQL writes it */
    const char *shape;          /* "auto", "processed_at", "debezium" */
    const char *const *columns; /* FIELD=COLUMN, where a column does not have the usual name */
    size_t n_columns;
    /* what to do with existing rows: "copy" or "skip"; NULL: copy, but only the first time */
    const char *existing;
    /* the column to set once `consumer` has received the row; NULL: none, or no change */
    const char *mark;
    const char *consumer; /* not NULL if mark is not */
    bool undo, dry_run;
    bool drop_mark; /* stop marking rows; nothing else changes */
};
struct adopt_result {
    bool changed;       /* false: nothing had to be done */
    bool other_columns; /* it was adopted before, with different columns */
    int64_t copied;     /* rows that became events at once */
    char mapping[2000]; /* of a dry run: {"FIELD":"COLUMN",...} */
};

/* One finding of validate or doctor. */
enum finding_level { FINDING_OK, FINDING_NOTE, FINDING_WARNING, FINDING_PROBLEM };
#define FINDING_LEVELS 4
/* "ok", "note", "warning", "problem", NULL */
extern const char *const finding_level_names[FINDING_LEVELS + 1];

struct finding {
    enum finding_level level;
    const char *name;   /* a machine-readable word: "transaction", "grants" */
    const char *text;   /* the problem found, and why it matters */
    const char *advice; /* NULL: none */
};

/* finding_visit is called for each finding, whose strings are borrowed for the call. */
typedef void finding_visit(void *ctx, const struct finding *f);

struct doctor_request {
    int64_t patience_ms; /* age up to which a transaction or an expired claim causes no warning */
    finding_visit *visit;
    void *ctx;
};

/* Which build installed the functions and views in the database: this one, an earlier one, or a
 * later one. */
enum functions_status { FUNCTIONS_SAME, FUNCTIONS_OLDER, FUNCTIONS_NEWER };

struct schema_status {
    int64_t there;                   /* the version in the database; 0: it has no outbox */
    int64_t known;                   /* the version this program creates */
    enum functions_status functions; /* if there == known */
};

struct buf;

/* Asks for the SQL that creates and drops an outbox, for external migration tools. */
struct ddl_request {
    const char *url;    /* no connection is made */
    const char *schema; /* used if the URL names none; NULL: the store's default */
    struct buf *up, *down, *ret_schema;
};

#endif
