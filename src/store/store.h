/* store.h: the contract of a store, the database that holds the outbox. docs/adding-a-store.md is
 * the tutorial, and tests/contract/store.c the suite every store passes unchanged.
 *
 * A store handle is one connection: it belongs to one thread at a time. Any number of handles, in
 * any number of processes, may work on one outbox.
 *
 * The protocol (docs/architecture.md tells why): events are only ever inserted. Each consumer has
 * lanes; a lane's position says how far its events have been handed out. A claim is a range behind
 * that position, or a set of parked events, leased to one owner. Settling a claim records the
 * exceptions and forgets the claim; what is not an exception was delivered. A claim whose lease ran
 * out is turned into parked events marked careful, which are handed out one at a time with the
 * attempt recorded first, so a crash repeats only unsettled work and a poison event dies alone. */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "event/event.h"
#include "event/filter.h"
#include "event/hwm.h"

enum order { ORDER_NONE, ORDER_KEY, ORDER_GLOBAL };

#define STORE_NAME_MAX 63 /* bytes of a consumer's name: [A-Za-z0-9_.-]+ */
#define STORE_LANES_MAX 64

/* Where a new consumer starts. */
enum start { START_BEGINNING, START_END, START_SEQ };

/* Who registers a consumer, and so what they may do. Settings are events, where, order and lanes; a
 * policy for retries is for people to read, and may change freely. */
enum put {
    /* a worker that starts: makes the consumer, or gives it settings that it has never had */
    PUT_START,
    /* one that was at work: as above, but a consumer that was removed is not made anew
     * (ERR_NOTFOUND) */
    PUT_AGAIN,
    /* an operator: may also bring back settings that were replaced. The consumer must be there */
    PUT_PURPOSE,
};

/* A consumer as it is kept in the database. Strings are borrowed on the way in and live in the
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
    const char *by; /* who registers, for people to read; NULL: not said */
};

/* Settings that a consumer has, or had. */
struct consumer_settings {
    int generation; /* the highest are those that count */
    const char *events, *where;
    enum order order;
    int lanes;
    int64_t since;  /* wall ms */
    const char *by; /* NULL: not known */
};
#define STORE_GENERATIONS 100 /* as many settings are remembered of a consumer */

/* A batch of events leased to one owner. (1) Events of one key stand in seq order. (2) Everything
 * in it lives in the arena it was claimed with. (3) n == 0 and epoch != 0 cannot be: a claim
 * without events is never recorded. */
struct batch {
    struct event *ev;
    size_t n;
    bool parked;  /* from the parked events, else a fresh range */
    bool careful; /* one event whose attempt has been recorded already; a crash counts against it */
    int lane;
    int64_t epoch;    /* the fence: grows with every claim of the consumer */
    int64_t from, to; /* the fresh range (from, to], by seq */
};

/* A careful event may only be handed out while nothing else is being delivered. */
enum careful {
    CAREFUL_SKIP, /* not here, not now: claim other events */
    /* something is being delivered: claim nothing, so that its turn comes (claim_hint.careful) */
    CAREFUL_WAIT,
    CAREFUL_TAKE, /* hand it out, alone */
};

struct claim_request {
    const char *consumer;
    const char *owner; /* unique per worker: "host:pid:random" */
    enum order order;  /* as registered */
    int lanes;
    int lane_hint;               /* fresh events are looked for in this lane first */
    enum careful careful;        /* what to do when a careful event is due */
    bool parked_first;           /* which kind to try first; the other is tried next */
    const struct filter *filter; /* compiled from these two, which must be what is registered */
    const char *events, *where;
    const int64_t *known; /* epochs of the fresh claims the caller still has in hand */
    size_t n_known;
    size_t max_events;
    size_t max_bytes; /* stop after the event that crosses it */
    int64_t lease_ms;
    int max_attempts; /* a careful event with as many crashes behind it is buried */
    /* the caller may not come again soon: nothing is read ahead, and no bell is listened for */
    bool once;
};

/* What claim says when there was nothing, so that the caller knows when to ask again. */
struct claim_hint {
    bool paused;
    bool busy; /* another owner's live claim is in the way; it may finish any time */
    /* no event is left to claim, none claimed by anyone, none waiting for a retry */
    bool through;
    /* until something falls due (a retry, a delay, another's lease); -1: nothing will by itself */
    int64_t wait_ms;
    int64_t nap_ms; /* > 0: nothing rings for all of it now, so look again this soon in any case */
    /* events passed over because filter or lane did not match: call again if > 0 */
    size_t skipped;
    size_t crashed; /* events of expired claims taken over by this call */
    size_t buried;  /* events buried by this call because the process died on them too often */
    bool careful;   /* a careful event is due, but was not allowed */
    const char *
        /* who keeps us from being woken, and has no business here; NULL: nobody. Lives until the
         * next turn */
        in_the_way;
    /* order, lanes or filter registered are not those of the request: nothing was claimed */
    bool changed;
};

enum outcome_kind {
    /* only needed to carry a receipt: delivered is what an event is when no outcome names it */
    OUTCOME_DELIVERED,
    OUTCOME_RETRY, /* park until now + delay_ms */
    OUTCOME_DEAD,  /* bury */
    /* not tried: park behind its key, due at once if nothing of its key is parked before it */
    OUTCOME_BEHIND,
    OUTCOME_DELAY, /* not tried: park until its not_before */
};

struct outcome {
    const struct event *ev;
    enum outcome_kind kind;
    int attempts; /* used up by now */
    /* OUTCOME_RETRY: it was the event's own fault, and not the sink's; that is remembered */
    bool proven;
    int64_t delay_ms;    /* OUTCOME_RETRY */
    const char *error;   /* OUTCOME_RETRY, OUTCOME_DEAD: why */
    const char *receipt; /* OUTCOME_DELIVERED */
};

/* What a handler has taken effect for: a row of the inbox. */
struct inbox_key {
    struct str handler, key;
};

enum savepoint { SAVEPOINT_SET, SAVEPOINT_RELEASE, SAVEPOINT_UNDO };

/* What has become of the transaction that begin opened. */
enum tx_state {
    TX_OPEN,
    TX_FAILED, /* the database takes nothing but a rollback, to a savepoint or of all */
    TX_GONE,   /* somebody ended it */
    TX_LOST,   /* the connection was lost */
};

struct settlement {
    const char *consumer;
    const char *owner;
    enum order order;
    const struct batch *b;
    const struct outcome *out; /* exceptions and receipts, in batch order */
    size_t n;
    /* Events of a fresh batch from this seq on were never tried: give them back by moving the
     * position, where no later claim stands behind this one (then they are parked, as
     * OUTCOME_BEHIND). 0: none. No outcome names them. */
    int64_t release_from;
    /* How far streams on the other side have come. Kept if further than what is there, whether or
     * not the claim is lost: it is what happened over there. */
    const struct hwm *marks;
    size_t n_marks;
};

/* ---- what operators see ---- */

enum delivery_state {
    /* nobody has it: not handed out yet, or waiting with no attempt used, or its claim ran out */
    STATE_PENDING,
    STATE_INFLIGHT,     /* in a live claim */
    STATE_DELIVERED,    /* delivered, and nothing else */
    STATE_FAILED,       /* an attempt was used; will be tried again */
    STATE_EXPIRED,      /* a dead letter */
    STATE_SKIPPED,      /* the filter it was handed out under, or will be, does not match */
    STATE_DROPPED,      /* was a dead letter, which was deleted */
    STATE_BEFORE_START, /* came before the consumer, as that was told to start */
};
#define STATE_COUNT 8
extern const char *const delivery_state_names[STATE_COUNT + 1]; /* "pending", ..., NULL */

struct consumer_info {
    struct consumer_spec spec;
    bool paused;
    int64_t created_at;
    int64_t position; /* least lane position */
    /* events its filter wants that nobody has: not handed out yet, or their claim ran out */
    int64_t behind;
    /* else about so many: STORE_COUNT_EVENTS were looked at, and stand for the rest */
    bool behind_exact;
    int64_t oldest_at;   /* created_at of the oldest of those that were found; 0: none */
    int64_t delivered;   /* since the consumer was created */
    int64_t inflight;    /* events in live claims */
    bool inflight_exact; /* else at most so many: the predicate was not asked about all of them */
    int64_t claims;      /* alive */
    const char *owner;   /* of one live claim; NULL */
    int64_t
        /* events that wait for a retry, for their time or behind another; those in live claims
         * are not among them */
        parked;
    int64_t dead;
    const char *report; /* what its relay last said, at report_at; NULL */
    int64_t report_at;
    bool down;        /* what it said is that its sink is down, since report_at */
    int64_t next_due; /* wall ms of the next retry; 0: none */
    /* of the parked event that failed last, or what the relay reported, if that was later; NULL */
    const char *last_error;
    int64_t last_error_at;
    int64_t floor;         /* events up to here are no longer needed */
    const char *floor_pin; /* what holds it: "position", "parked", "claim" */
};

/* What is asked of a consumer again and again, at a price that does not grow with the backlog:
 * positions, and probes of an index that end after a fixed number of rows. */
/* events behind the position that are looked at to count those that wait */
#define STORE_COUNT_EVENTS 10000
#define STORE_PROBE_EVENTS 1000 /* the same by type, or where payloads have to be read */
#define STORE_PROBE_ROWS 10000  /* parked events and dead letters are counted up to this */

struct gauge_type {
    const char *type;
    int64_t n;         /* of the events looked at */
    int64_t oldest_at; /* created_at of the first of them */
};

struct consumer_gauge {
    const char *events; /* patterns, "" for all */
    bool paused;
    /* events of these patterns that nobody has; the predicate is not asked */
    int64_t behind;
    /* of those among the first STORE_PROBE_EVENTS; most frequent first */
    const struct gauge_type *type;
    size_t n_types;
    /* how many were looked at; less than STORE_PROBE_EVENTS: all there are, and behind is exact */
    int64_t probed;
    int64_t parked, dead; /* STORE_PROBE_ROWS: that many or more */
    int64_t down_since;   /* when its relay said that its sink is down; 0: it is not */
    int64_t now_ms;       /* the database's clock */
};

struct store_info {
    int schema_version;
    int64_t events;    /* rows kept */
    bool events_exact; /* else at most so many, by the ends of seq: there are too many to count */
    int64_t head;      /* highest seq */
    int64_t tail;      /* lowest seq kept; 0: none */
    int64_t oldest_at; /* created_at of tail */
    /* since when every consumer is done with tail, as far as is known; -1: it is not */
    int64_t passed_at;
    int64_t consumers, dead;
    int64_t now_ms; /* the database's clock */
};

/* Which events to list. Zero means: no restriction. */
struct event_query {
    const char *type; /* pattern */
    struct str aggregate_type, aggregate_id;
    const char *consumer; /* states of this consumer only */
    int state;            /* enum delivery_state + 1 */
    /* instead of a state: pending, an expired claim's included, or failed and due again */
    bool unprocessed;
    const char *id; /* event id, or a seq in decimal */
    int64_t after;  /* seq */
    size_t limit;   /* 0: 100 */
    bool newest_first;
};

/* One event x consumer. */
struct delivery_info {
    const char *consumer;
    enum delivery_state state;
    int attempts;
    int64_t due_at; /* failed, or pending with a delay */
    const char *error;
    int64_t delivered_at; /* of its receipt; 0: there is none */
    const char *receipt;  /* the sink's own id for it, a stream id for one; NULL: none */
};

/* Calls back per event; `ev` and `d` are borrowed for the call. A non-zero return ends the listing
 * without error. */
typedef int event_visit(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n);

struct dead_letter {
    struct event ev;
    const char *consumer;
    int attempts;
    const char *error;
    int64_t dead_at;
    bool retrying; /* was sent back and has not been settled since */
};
struct dead_query {
    const char *consumer; /* NULL: all */
    const char *id;       /* event id or seq; NULL: all */
    const char *type;     /* pattern; NULL: all */
    size_t limit;         /* 0: all */
};
typedef int dead_visit(void *ctx, const struct dead_letter *d);

/* One consumer's high-water mark of a stream; borrowed for the call. */
typedef int mark_visit(void *ctx, const char *consumer, const struct hwm *m, int64_t at);

struct trim_request {
    int64_t older_than_ms;
    int64_t inbox_ms; /* the same for the inbox; 0: as old as the rest */
    bool dry_run;
    size_t max_rows; /* per call, so that nobody waits for long; 0: 1000 */
};
struct trim_result {
    /* deleted by this call, or with dry_run what repeated calls would delete */
    int64_t events;
    int64_t keys;         /* idempotency keys deleted */
    int64_t inbox;        /* inbox rows */
    int64_t receipts;     /* receipts */
    bool more;            /* call again */
    int64_t kept_for_pin; /* old enough, but still needed; with the call that has no more to do */
    bool kept_more;       /* so many, or more: not all were counted */
    char pin[160];        /* by whom: `consumer "search" (position 120)`; "" when nothing pins */
};

/* What a role of the database may do: "producer", "consumer" or "operator". */
struct grant_request {
    const char *part, *role;
    const char *const *consumers; /* of the part consumer: which; none: every one */
    size_t n_consumers;
    const char *tenant; /* the role is held to it; NULL: not by this */
    bool revoke, dry_run;
};

/* A table of the application's own whose rows become events. */
struct adopt_request {
    const char *table;          /* as SQL writes it */
    const char *shape;          /* "auto", "processed_at", "debezium" */
    const char *const *columns; /* FIELD=COLUMN, where the shape's names are not the table's */
    size_t n_columns;
    const char *existing; /* "copy" or "skip" rows there are; NULL: copy, if it is the first time */
    /* column that is set when `consumer` has had the row; NULL: none, or as it was */
    const char *mark;
    const char *consumer; /* never NULL beside a mark */
    bool undo, dry_run;
    bool drop_mark; /* rows are no longer marked; nothing else changes */
};
struct adopt_result {
    bool changed;       /* false: it was so already */
    bool other_columns; /* it was adopted, and has other columns now */
    int64_t copied;     /* rows that became events at once */
    char mapping[2000]; /* of a dry run: {"FIELD":"COLUMN",...} */
};

/* Something somebody looked into and has a word to say about (validate, doctor). */
enum finding_level { FINDING_OK, FINDING_NOTE, FINDING_WARNING, FINDING_PROBLEM };
#define FINDING_LEVELS 4
/* "ok", "note", "warning", "problem", NULL */
extern const char *const finding_level_names[FINDING_LEVELS + 1];

struct finding {
    enum finding_level level;
    const char *name;   /* a word for programs: "transaction", "grants" */
    const char *text;   /* what there is, and why it matters */
    const char *advice; /* what to do; NULL: nothing */
};

/* Takes one finding; its strings are borrowed for the call. */
typedef void finding_visit(void *ctx, const struct finding *f);

struct doctor_request {
    int64_t
        /* how old a transaction, a claim that ran out and the like may be before it is worth a
         * warning */
        patience_ms;
    finding_visit *visit;
    void *ctx;
};

/* Functions and views in the database, where a store has them: this program's own, those of an
 * earlier build, or those of a later build that replaced this program's. */
enum functions_status { FUNCTIONS_SAME, FUNCTIONS_OLDER, FUNCTIONS_NEWER };

struct schema_status {
    /* version over there (0: no outbox), version this program makes */
    int64_t there, known;
    enum functions_status functions; /* if there == known */
};

struct buf;

/* What to make and unmake an outbox with, for tools that do migrations themselves. */
struct ddl_request {
    const char *url;    /* not connected to */
    const char *schema; /* where the URL names none; NULL: the store's default */
    struct buf *up, *down, *ret_schema;
};

enum {
    STORE_DOORBELL = 1, /* bell_fd says when to look */
    STORE_SHARED = 2,   /* other processes can reach it */
    /* what goes through a foreign connection needs nothing of the handle: any thread, any time */
    STORE_FREE = 4,
    /* while a transaction is open on one handle, no other can write, nor a claim change hands */
    STORE_ONE_WRITER = 8,
    STORE_REMOTE = 16, /* a server, which may be away for a while */
};

struct store;

struct store_options {
    const struct clock *clock;
    int64_t busy_ms;     /* how long to wait for a lock; 0: 5 s */
    int64_t payload_max; /* 0: EVENT_PAYLOAD_MAX */
    bool create;         /* make a database that does not exist (init) */
    /* open whatever is there and change nothing: only for schema_status, validate and doctor */
    bool any_version;
    /* init puts this program's functions in place though a later build's replaced them */
    bool replace;
    int64_t lock_ms; /* how long init goes on trying to get its locks; 0: ten minutes */

    /* progress is told, a line at a time, what init is waiting for; NULL: nobody listens. */
    void (*progress)(void *ctx, const char *text);
    void *progress_ctx;
};

struct store_ops {
    const char *scheme; /* "sqlite" */
    const char *synopsis;
    unsigned caps;

    /* open connects and checks that the outbox there is one we understand, unless opt->create. On
     * success the caller owns *ret and releases it with close. Errors: ERR_CONFIG (URL),
     * ERR_NOTOURS, ERR_NEWER, ERR_UNAVAILABLE, ERR_READONLY (only if nothing can be read),
     * ERR_NOMEM. */
    int (*open)(const char *url, const struct store_options *opt, struct store **ret,
                struct error *err);
    void (*close)(struct store *st);

    /* dup opens another handle on the same outbox, for another thread; the way to share
     * sqlite::memory:. Thread-safe as long as st is not being closed. */
    int (*dup)(struct store *st, struct store **ret, struct error *err);

    /* init makes the tables, or brings them up to this version, all of it or nothing; *ret_created
     * says whether anything was done. Producers and workers may be at work meanwhile, and are not
     * kept waiting. ERR_BUSY: somebody had the tables in use for all of opt->lock_ms. */
    int (*init)(struct store *st, bool *ret_created, struct error *err);

    /* schema_status compares versions; one that is newer than this program is no error here. */
    int (*schema_status)(struct store *st, struct schema_status *ret, struct error *err);
    /* validate compares tables, functions and all else with what this program would make, a finding
     * per difference. Nothing is changed. NULL: this store cannot. */
    int (*validate)(struct store *st, finding_visit *visit, void *ctx, struct error *err);
    /* ddl appends the SQL that init runs, and that which undoes it, without a database. *ret_schema
     * gets the schema's name, nothing where there are no schemas. */
    int (*ddl)(const struct ddl_request *req, struct error *err);
    /* doctor looks for what is wrong with this kind of store, whatever version is there; it only
     * reads. */
    int (*doctor)(struct store *st, const struct doctor_request *req, struct error *err);

    /* begin, commit and rollback bracket several emits on this handle in one transaction. */
    int (*begin)(struct store *st, struct error *err);
    int (*commit)(struct store *st, struct error *err);
    void (*rollback)(struct store *st);

    /* emit inserts one checked event and returns its id. In `foreign` (a sqlite3 *, PGconn *; NULL
     * for this handle's own connection) it takes part in the transaction that must be open there;
     * on the own connection without begin it commits by itself. *ret_duplicate: the idempotency key
     * was known, and the id is that of the first. Errors: ERR_CONFLICT (key known with other
     * content), ERR_MISUSE (foreign has no transaction open), ERR_BUSY, ERR_FULL, ERR_READONLY,
     * ERR_NOTOURS (foreign has no outbox). */
    int (*emit)(struct store *st, void *foreign, const struct new_event *ev,
                char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err);

    /* consumer_put registers, or brings filter and retry up to date. ERR_CONFLICT: order or lanes
     * would change while the consumer is not through; or these settings were replaced by others
     * before, and spec->how is not PUT_PURPOSE. Either may pass. *ret_created may be NULL. */
    int (*consumer_put)(struct store *st, const struct consumer_spec *spec, bool *ret_created,
                        struct error *err);
    /* consumer_history gives the settings it has had since they first changed, the newest first; n
     * == 0: they never did. ERR_NOTFOUND: there is no consumer of that name. */
    int (*consumer_history)(struct store *st, const char *name, struct arena *a,
                            struct consumer_settings **ret, size_t *ret_n, struct error *err);
    /* consumer_list appends all (or the one named) to an array in the arena. */
    int (*consumer_list)(struct store *st, const char *name, struct arena *a,
                         struct consumer_info **ret, size_t *ret_n, struct error *err);
    /* consumer_specs is the settings alone, at no cost: of the one named, or of all that this
     * handle may claim for and that are not paused. ERR_NOTFOUND: there is no consumer of that
     * name. */
    int (*consumer_specs)(struct store *st, const char *name, struct arena *a,
                          struct consumer_spec **ret, size_t *ret_n, struct error *err);
    /* consumer_gauge says how one is, cheaply. ERR_NOTFOUND: there is none of that name. */
    int (*consumer_gauge)(struct store *st, const char *name, struct arena *a,
                          struct consumer_gauge *ret, struct error *err);
    int (*consumer_pause)(struct store *st, const char *name, bool paused, struct error *err);
    /* consumer_remove forgets it with its state. ERR_CONFLICT if it has dead letters, parked events
     * or a live claim, unless `force`. */
    int (*consumer_remove)(struct store *st, const char *name, bool force, struct error *err);
    /* consumer_report keeps a line for operators ("sink down: ..."), or clears it with NULL. */
    int (*consumer_report)(struct store *st, const char *name, const char *text, struct error *err);

    /* turn takes over what expired, settles `s` (may be NULL) and then claims up to req->max_events
     * (0: none), all in one transaction. In that order: what an expired claim held must be parked
     * before what waits behind it. *ret_lost: the claim was no longer ours, and nothing of s was
     * recorded; the claiming goes on regardless. ret_batch->n == 0 is success with nothing to do;
     * then *ret_hint says when to ask again. After an error nothing happened, or (ambiguous commit)
     * all of it did: asking again is safe. */
    int (*turn)(struct store *st, const struct settlement *s, bool *ret_lost,
                const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                struct claim_hint *ret_hint, struct error *err);
    /* extend moves the end of a live claim to now + lease_ms. *ret_lost as in turn. */
    int (*extend)(struct store *st, const char *consumer, const char *owner, const struct batch *b,
                  int64_t lease_ms, bool *ret_lost, struct error *err);

    /* bell_fd becomes readable when someone else may have committed; -1 without STORE_DOORBELL.
     * bell_clear empties it: call it before the turn that looks. No wake-up is lost between the
     * two. */
    int (*bell_fd)(struct store *st);
    void (*bell_clear)(struct store *st);

    /* ---- effects of handlers, in one transaction with their settlement ---- */

    /* lend: from now on the application's code works on this handle's connection between begin and
     * commit. The session is as it expects it, and nothing it may do there (DISCARD ALL, SET)
     * breaks the handle. A transaction in which nothing is asked for idle_ms is ended where the
     * server can: what a process holds that stands still would keep others waiting. */
    int (*lend)(struct store *st, int64_t idle_ms, struct error *err);
    /* savepoint, inside begin and commit; one may stand within another. UNDO goes back to the last
     * and releases it. ERR_MISUSE: it is gone, so the transaction is another one. */
    int (*savepoint)(struct store *st, enum savepoint what, struct error *err);
    /* tx_state costs no round trip. */
    enum tx_state (*tx_state)(struct store *st);
    /* settle records s as turn does, in the open transaction. For a store with STORE_ONE_WRITER the
     * claim counts as it was at begin. */
    int (*settle)(struct store *st, const struct settlement *s, bool *ret_lost, struct error *err);
    /* handled says for each key whether it was recorded, with any payload. handled_put records
     * those for which skip[i] is false, with an empty payload; *ret_all: none of them was there. If
     * not, the transaction must be rolled back. */
    int (*handled)(struct store *st, const struct inbox_key *k, size_t n, bool *ret,
                   struct error *err);
    int (*handled_put)(struct store *st, const struct inbox_key *k, const bool *skip, size_t n,
                       bool *ret_all, struct error *err);

    /* handle_once is the inbox: records (handler, key) with a hash of the payload in the open
     * transaction of `foreign` or of this handle. *ret_first: it was not there. ERR_CONFLICT: it
     * was, with another payload. */
    int (*handle_once)(struct store *st, void *foreign, struct str handler, struct str key,
                       struct str payload, bool *ret_first, struct error *err);

    int (*info)(struct store *st, struct store_info *ret, struct error *err);
    int (*events)(struct store *st, const struct event_query *q, event_visit *visit, void *ctx,
                  struct error *err);
    int (*dead)(struct store *st, const struct dead_query *q, dead_visit *visit, void *ctx,
                struct error *err);
    /* dead_retry sends dead letters back as parked events, due at once, attempts 0; they stay dead
     * letters (retrying) until settled. dead_drop deletes them. *ret_n: how many. */
    int (*dead_retry)(struct store *st, const struct dead_query *q, int64_t *ret_n,
                      struct error *err);
    int (*dead_drop)(struct store *st, const struct dead_query *q, int64_t *ret_n,
                     struct error *err);
    /* retry_now gives an event that waits for its next attempt that attempt at once; those it has
     * used stay used. One that waits behind another of its key, or for its not_before, goes on
     * waiting. *ret_waited: it waited for an attempt. */
    int (*retry_now)(struct store *st, const char *consumer, int64_t seq, bool *ret_waited,
                     struct error *err);
    int (*trim)(struct store *st, const struct trim_request *req, struct trim_result *ret,
                struct error *err);

    /* marks visits the high-water marks of a stream (NULL: of all), the furthest of each stream
     * first. */
    int (*marks)(struct store *st, const char *stream, mark_visit *visit, void *ctx,
                 struct error *err);

    /* grant gives a role its part, or takes it away; all of it, or nothing, and with dry_run
     * nothing. *ret_changed: false, there was nothing to take. ERR_NOTFOUND: no such role;
     * ERR_CONFLICT: held to another tenant. NULL: this store has no roles. */
    int (*grant)(struct store *st, const struct grant_request *req, bool *ret_changed,
                 struct error *err);
    /* adopt makes events of a table's rows that are not processed yet, and of every new one in the
     * transaction that inserts it. ERR_NOTFOUND: no such table or column; ERR_CONFLICT: was adopted
     * and given up before, and req->existing does not say what to do with its rows. NULL: this
     * store cannot. */
    int (*adopt)(struct store *st, const struct adopt_request *req, struct adopt_result *ret,
                 struct error *err);
};

/* Base of every store; comes first in the backend's own struct. */
struct store {
    const struct store_ops *ops;
    unsigned caps; /* of ops->caps, what this one has: sqlite::memory: has none */
};

extern const struct store_ops *const store_kinds[]; /* ends with NULL */

/* store_open finds the kind by the URL's scheme and opens it. store_url_check only looks for it:
 * ERR_CONFIG for an unknown one, naming the nearest. */
int store_url_check(const char *url, struct error *err);
int store_open(const char *url, const struct store_options *opt, struct store **ret,
               struct error *err);
void store_close(struct store *st); /* NULL is fine */
/* store_kind finds the kind by the URL's scheme; NULL: unknown. */
const struct store_ops *store_kind(const char *url);

/* What stores have in common. store_order_names: how an enum order is written in a table and by
 * people, ending with NULL. store_order_of reads what a table has. store_order_key is what an event
 * with this key is ordered by: events with the same one go one after the other; 0: it waits for no
 * other. store_seq_of: an event's id may be given as its seq; 0: it is none. store_no_consumer:
 * ERR_NOTFOUND. store_removable refuses (ERR_CONFLICT) to remove a consumer that has something to
 * lose. */
extern const char *const store_order_names[];
enum order store_order_of(struct str name);
uint64_t store_order_key(enum order order, uint64_t key);
int64_t store_seq_of(const char *id);
int store_no_consumer(const char *name, struct error *err);
/* store_replaced says (ERR_CONFLICT) that settings of the generation old.generation were replaced
 * by those that count. */
int store_replaced(const char *name, const struct consumer_settings *now,
                   const struct consumer_settings *old, struct error *err);
/* store_in_state: whether a delivery is what the query asks for; now_ms is the database's clock. */
bool store_in_state(const struct event_query *q, const struct delivery_info *d, int64_t now_ms);
/* store_says_down: whether what a relay reported is that its sink is down. */
bool store_says_down(const char *report);
#define STORE_EXACT_ROWS 100000 /* kept events are counted up to this */
int store_removable(const char *name, int64_t dead, int64_t parked, int64_t live,
                    struct error *err);

/* store_name_check refuses a consumer's name that is empty, too long or has other characters:
 * ERR_CONFIG. */
int store_name_check(const char *name, struct error *err);

#endif
