/* store.h: the contract of a store, the database that holds the outbox. docs/extending.md is the
 * tutorial; every store passes tests/contract/store.c unchanged.
 *
 * A store handle is one connection: it belongs to one thread at a time. Any number of handles in
 * any number of processes may use one outbox.
 *
 * The protocol (see docs/architecture.md for the reasons): events are only ever inserted. Each
 * consumer has lanes; a lane's position is the point up to which its events have been handed out. A
 * claim is a range of events up to that position, or a set of parked events, leased to one owner.
 * Settling a claim records the exceptions and deletes the claim; all other events count as
 * delivered. When the lease of a claim expires, its events are parked as suspects, because one of
 * them may have crashed the worker. If events can crash a worker (see enum suspect_policy),
 * suspects are handed out one at a time, and if a worker vanishes again, that counts as an attempt
 * of its event. So a crash repeats only unsettled work, and a poison event affects no other
 * events. */
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
#include "store/operator.h"

struct db_driver;
struct pg_conn;
struct sqlite3;
struct st_mysql;

#define STORE_ALL_LANES (-1) /* in place of a lane: all lanes of the consumer */

/* A batch of events leased to one owner. (1) Events of one key are in seq order. (2) Everything in
 * it lives in the arena passed to the claim. (3) A claim without events is never recorded: if n is
 * 0, so is epoch. */
struct batch {
    struct event *ev;
    size_t n;
    bool parked;      /* parked events; otherwise a fresh range */
    bool suspect;     /* one event that was in flight when a worker vanished, handed out alone */
    bool blamed;      /* suspect; if this worker vanishes too, that counts as an attempt */
    int lane;         /* of a fresh range; may be STORE_ALL_LANES */
    int64_t epoch;    /* fencing token: grows with every claim of the consumer */
    int64_t from, to; /* the fresh range (from, to], by seq */
};

/* How to treat suspects: events that were in flight when a worker vanished. A worker that an event
 * can crash delivers a suspect alone, with nothing else in flight. */
enum suspect_policy {
    SUSPECT_SKIP, /* leave it, and claim other events */
    /* claim nothing until the events in flight are done, then take the suspect
     * (claim_hint.suspect) */
    SUSPECT_WAIT,
    SUSPECT_TAKE,   /* hand it out, alone and blamed */
    SUSPECT_BESIDE, /* hand it out alone, not blamed: this process also delivers another suspect */
    SUSPECT_ANY,    /* no event can crash this worker: treat suspects like all other events */
};

/* Events that were in flight during several crashes without being blamed are handed out again at
 * random times within this interval. So even if one of them crashes its worker through a bug in
 * outbox, the others are delivered. */
#define STORE_APART_MS 64000

struct claim_request {
    const char *consumer;
    const char *owner; /* unique per worker: "host:pid:random" */
    enum order order;  /* as registered */
    int lanes;
    int lane_hint;               /* the lane to try first for fresh events */
    bool sole;                   /* this process has no other worker for the consumer */
    enum suspect_policy suspect; /* what to do when a suspect is due */
    bool parked_first;           /* try parked events before fresh ones */
    const struct filter *filter; /* compiled from the next two */
    const char *events, *where;  /* as registered */
    const int64_t *known;        /* epochs of the fresh claims that the caller still holds */
    size_t n_known;
    size_t max_events;
    size_t max_bytes; /* the event that reaches this is the last one claimed */
    int64_t lease_ms;
    int max_attempts; /* an event blamed for this many crashes is buried */
    /* the caller may not call again soon: do not read ahead, do not arm the wake-up, and do not
     * wait for a consumer that another transaction has locked */
    bool one_shot;
    bool no_listen;     /* a watcher wakes the caller: this handle need not listen */
    bool no_readahead;  /* the handle also serves other consumers */
    bool batch_backlog; /* combine turns even during a backlog */
    /* the store's memory between this consumer's turns; NULL: only this consumer uses the handle,
     * which keeps it */
    struct turn_cache *cache;
};

/* When a store next searches for events that a wrong clock has parked for too long. The search
 * covers all parked events of a consumer, so not every turn runs it. A worker waiting for a parked
 * event asks again in time for the next search, since that event's due time may be wrong. Times are
 * monotonic. */
#define CLOCK_REPAIR_EVERY (10000 * MS_NS)

struct clock_repair {
    int64_t at; /* when to search again; 0: at once */
};

/* clock_repair_due returns whether a search is due; clock_repair_done notes that one has run. */
static inline bool clock_repair_due(const struct clock_repair *p, int64_t now)
{
    return now >= p->at;
}

static inline void clock_repair_done(struct clock_repair *p, int64_t now)
{
    p->at = now + CLOCK_REPAIR_EVERY;
}

/* clock_repair_left_ms returns the time until the next search, if none is due. */
static inline int64_t clock_repair_left_ms(const struct clock_repair *p, int64_t now)
{
    return (p->at - now) / MS_NS + 1;
}

/* A store's memory between the turns of one consumer. Initially all zeros. */
struct turn_cache {
    struct clock_repair repair;
    unsigned unread; /* consecutive claims that could not be read and were released */
};

/* When to ask again, if nothing was claimed. */
struct claim_hint {
    bool paused;
    bool busy; /* blocked by another owner's live claim, which may end at any time */
    /* no event is left to claim, claimed by a worker, or waiting for a retry */
    bool through;
    /* until the next due time (of a retry, a delay, the end of a lease); -1: only a commit can
     * bring work */
    int64_t wait_ms;
    int64_t poll_in_ms; /* > 0: commits may not wake us at present; poll after this time */
    /* events skipped because the filter or the lane did not match; > 0: ask again at once */
    size_t skipped;
    size_t crashed; /* events of expired claims that this call took over */
    size_t buried;  /* events that this call buried because they crashed workers too often */
    bool suspect;   /* a suspect is due, but the request did not allow it */
    /* the unrelated session that holds the lock our wake-ups need; NULL: none. Valid until the next
     * turn */
    const char *wake_blocker;
    /* the registered order, lanes or filter differ from the request: nothing was claimed */
    bool changed;
    /* events may have been claimed but could not be read. Their claim was released, or its lease
     * will expire. The settlement was recorded */
    bool unread;
    /* with a batch: no event was left to claim, and a wake-up will announce the next one, so the
     * caller need not ask earlier */
    bool quiet;
};

enum outcome_kind {
    /* needed only to carry a receipt: an event without an outcome counts as delivered */
    OUTCOME_DELIVERED,
    OUTCOME_RETRY, /* park it until now + delay_ms */
    OUTCOME_DEAD,  /* bury it */
    /* not tried: park it, due at once unless an earlier event of its key is parked */
    OUTCOME_BEHIND,
    OUTCOME_DELAY, /* not tried: park it until its not_before */
};

struct outcome {
    const struct event *ev;
    enum outcome_kind kind;
    int attempts; /* used so far */
    /* OUTCOME_RETRY: the event caused the failure, not the sink; this is recorded */
    bool proven;
    int64_t delay_ms;    /* OUTCOME_RETRY */
    const char *error;   /* OUTCOME_RETRY, OUTCOME_DEAD: why */
    const char *receipt; /* OUTCOME_DELIVERED */
};

/* A row of the inbox: the handler has taken effect for this key. */
struct inbox_key {
    struct str handler, key;
};

/* A claim whose lease is to be renewed. */
struct claim_lease {
    const char *consumer, *owner;
    int64_t epoch;
    int64_t lease_ms;
    bool absolve; /* the event is no longer blamed if the worker vanishes; see batch.blamed */
};

/* An existing claim, live or expired. */
struct claim_info {
    int64_t epoch;
    const char *owner;
};

enum savepoint { SAVEPOINT_SET, SAVEPOINT_RELEASE, SAVEPOINT_UNDO };

/* The state of the transaction that begin opened. */
enum tx_state {
    TX_OPEN,
    TX_FAILED, /* the database accepts only a rollback, in full or to a savepoint */
    TX_GONE,   /* the application ended it */
    TX_LOST,   /* the connection was lost */
};

struct settlement {
    const char *consumer;
    const char *owner;
    enum order order;
    const struct batch *b;
    const struct outcome *out; /* exceptions and receipts, in batch order */
    size_t n;
    /* Events of a fresh batch from this seq on were never tried, and have no outcome. They are
     * released by moving the position back; if a later claim exists, they are parked instead, as
     * with OUTCOME_BEHIND. 0: none. */
    int64_t release_from;
    /* High-water marks of the sink's streams. A mark is recorded if it is ahead of the stored one,
     * even if the claim is lost, because it describes the state of the sink. */
    const struct hwm *marks;
    size_t n_marks;
};

/* One of several turns taken in one transaction, each of a different consumer. The first three
 * fields are the arguments of turn; the request asks for events. The rest is the answer. */
struct batched_turn {
    const struct settlement *s; /* NULL: nothing is settled */
    const struct claim_request *req;
    struct arena *a;

    bool made; /* false: the turn is not simple; nothing was done, and turn has to be called */
    bool lost; /* as in turn */
    struct batch batch;
    struct claim_hint hint;
};

/* The result of poll_new. */
struct watch_result {
    size_t n;   /* new events that were visited */
    bool all;   /* there may be events that were not visited: wake all consumers */
    bool again; /* call poll_new again at once */
    /* the next call is due after this time, or at an earlier wake-up; -1: at a wake-up */
    int64_t wait_ms;
    /* as in claim_hint. Valid until the next call */
    const char *wake_blocker;
};

/* new_event_visit is called with a new event, borrowed for the call. Only its type and payload are
 * set; payload.p == NULL: it was not read. */
typedef void new_event_visit(void *ctx, const struct event *ev);

enum {
    STORE_WAKEUP = 1, /* wake_fd becomes readable when it is time to ask */
    STORE_SHARED = 2, /* other processes can reach it */
    /* calls with a foreign connection do not touch the handle, so any thread may make them */
    STORE_FREE = 4,
    /* while a transaction is open on one handle, no other handle can write or take over a claim */
    STORE_ONE_WRITER = 8,
    STORE_REMOTE = 16, /* a server, which may be unreachable for a while */
};

struct store;

struct store_options {
    const struct clock *clock;
    int64_t busy_ms;     /* how long to wait for a lock; 0: 5 s */
    int64_t payload_max; /* 0: EVENT_PAYLOAD_MAX */
    bool create;         /* create a database that does not exist (init) */
    /* open an outbox of any version and change nothing: only for schema_status, validate and
     * doctor */
    bool any_version;
    /* init installs this program's functions even over those of a later build */
    bool replace;
    int64_t lock_ms; /* how long init tries to acquire its locks; 0: ten minutes */

    /* progress is called with a line describing what init is waiting for. May be NULL. */
    void (*progress)(void *ctx, const char *text);
    void *progress_ctx;
};

struct store_ops {
    const char *scheme; /* "sqlite" */
    const char *synopsis;
    unsigned caps;
    const struct db_driver *driver; /* for stores built on store/db; NULL otherwise */

    /* open connects and, unless opt->create, checks that the outbox there has a version we know. On
     * success the caller owns *ret and releases it with close. Errors: ERR_CONFIG (URL),
     * ERR_NOTOURS, ERR_NEWER, ERR_UNAVAILABLE, ERR_READONLY (only if nothing can be read),
     * ERR_NOMEM. */
    int (*open)(const char *url, const struct store_options *opt, struct store **ret,
                struct error *err);
    void (*close)(struct store *st);

    /* dup opens another handle on the same outbox, for another thread; the way to share
     * sqlite::memory:. Thread-safe as long as st is not being closed. */
    int (*dup)(struct store *st, struct store **ret, struct error *err);

    /* init creates the tables or upgrades them to this version, all or nothing; *ret_created:
     * something was changed. Producers and workers may be active, and are not blocked. ERR_BUSY:
     * other sessions used the tables throughout opt->lock_ms. */
    int (*init)(struct store *st, bool *ret_created, struct error *err);

    /* schema_status compares versions. A version newer than this program is not an error here. */
    int (*schema_status)(struct store *st, struct schema_status *ret, struct error *err);
    /* validate compares the database with the objects that this program would create, and reports
     * each difference as a finding. It changes nothing. NULL: not supported. */
    int (*validate)(struct store *st, finding_visit *visit, void *ctx, struct error *err);
    /* ddl appends the SQL that init runs and the SQL that undoes it, without a database.
     * *ret_schema is set to the schema's name, or stays empty if the store has no schemas. */
    int (*ddl)(const struct ddl_request *req, struct error *err);
    /* doctor checks for known problems of this kind of store, whatever its version. It only
     * reads. */
    int (*doctor)(struct store *st, const struct doctor_request *req, struct error *err);

    /* begin, commit and rollback bracket several emits on this handle in one transaction. */
    int (*begin)(struct store *st, struct error *err);
    int (*commit)(struct store *st, struct error *err);
    void (*rollback)(struct store *st);

    /* emit checks and inserts one event and returns its id. With `foreign` (a sqlite3 * or PGconn
     * *) it takes part in the transaction that must be open there; with NULL it uses this handle's
     * own connection, and commits unless begin was called. *ret_duplicate: the idempotency key was
     * used before, and the id is that of the first event. Errors: ERR_CONFLICT (the key was used
     * with different content), ERR_MISUSE (no transaction is open on foreign), ERR_BUSY, ERR_FULL,
     * ERR_READONLY, ERR_NOTOURS (foreign has no outbox). */
    int (*emit)(struct store *st, void *foreign, const struct new_event *ev,
                char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err);

    /* consumer_put registers a consumer, or updates its filter and retry policy. ERR_CONFLICT:
     * order or lanes would change while the consumer still has undelivered events; or these
     * settings were replaced before, and spec->how is not PUT_PURPOSE. Either conflict may resolve
     * with time. *ret_created may be NULL. */
    int (*consumer_put)(struct store *st, const struct consumer_spec *spec, bool *ret_created,
                        struct error *err);
    /* consumer_history lists the settings a consumer has had, newest first; n == 0: they never
     * changed. ERR_NOTFOUND: the consumer does not exist. */
    int (*consumer_history)(struct store *st, const char *name, struct arena *a,
                            struct consumer_settings **ret, size_t *ret_n, struct error *err);
    /* consumer_list lists all consumers, or the named one, in the arena. ERR_NOTFOUND: the consumer
     * does not exist. */
    int (*consumer_list)(struct store *st, const char *name, struct arena *a,
                         struct consumer_info **ret, size_t *ret_n, struct error *err);
    /* consumer_specs lists only the settings, which is cheap: those of the named consumer, or of
     * all consumers that this handle may claim for and that are not paused. ERR_NOTFOUND: the
     * consumer does not exist. */
    int (*consumer_specs)(struct store *st, const char *name, struct arena *a,
                          struct consumer_spec **ret, size_t *ret_n, struct error *err);
    /* consumer_gauge reads the state of a consumer at low cost. ERR_NOTFOUND: the consumer does not
     * exist. */
    int (*consumer_gauge)(struct store *st, const char *name, struct arena *a,
                          struct consumer_gauge *ret, struct error *err);
    int (*consumer_pause)(struct store *st, const char *name, bool paused, struct error *err);
    /* consumer_remove deletes a consumer with all its state. ERR_CONFLICT: it has dead letters,
     * parked events or a live claim, and `force` is false. */
    int (*consumer_remove)(struct store *st, const char *name, bool force, struct error *err);
    /* consumer_forget declares that this handle no longer works for a consumer, so that it is not
     * registered again if another outbox replaces this one. The consumer itself stays. NULL: this
     * store remembers no consumers. */
    void (*consumer_forget)(struct store *st, const char *name);
    /* consumer_report stores a line for operators ("sink down: ..."); NULL clears it. */
    int (*consumer_report)(struct store *st, const char *name, const char *text, struct error *err);

    /* turn takes over expired claims, settles `s` (may be NULL) and then claims up to
     * req->max_events (0: none), in one transaction. The order matters: the events of an expired
     * claim must be parked before any that wait behind them. *ret_lost: the claim was no longer
     * ours, and only the marks of s were recorded; claiming continues regardless. If ret_batch->n
     * == 0, nothing was claimed, and *ret_hint says when to ask again. After an error either
     * nothing was done or, if the outcome of the commit is unknown, everything; a retry is safe. */
    int (*turn)(struct store *st, const struct settlement *s, bool *ret_lost,
                const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                struct claim_hint *ret_hint, struct error *err);
    /* turn_many takes those of n turns that are simple, in one transaction. A simple turn settles
     * claims that were delivered completely, and finds few new events or none. All requests set
     * no_listen. After an error the outcome is unknown, as with turn. NULL: this store takes each
     * turn separately. */
    int (*turn_many)(struct store *st, struct batched_turn *t, size_t n, struct error *err);
    /* extend moves the end of a claim to now + lease_ms. *ret_lost: the owner no longer holds
     * it. */
    int (*extend)(struct store *st, const struct claim_lease *l, bool *ret_lost, struct error *err);
    /* claims lists the claims of a consumer in the arena, in the order of their epochs. */
    int (*claims)(struct store *st, const char *consumer, struct arena *a, struct claim_info **ret,
                  size_t *ret_n, struct error *err);

    /* wake_fd is readable when another session may have committed; -1 without STORE_WAKEUP.
     * wake_clear resets it; call it before the turn, so that no wake-up is lost. */
    int (*wake_fd)(struct store *st);
    void (*wake_clear)(struct store *st);

    /* poll_new visits the events committed since the last call on this handle, for a watcher that
     * wakes handles with no_listen. Call wake_clear first, so that no commit is missed. With
     * skip_query it sends no query while producers notify, and sets ret->all. With `payloads` it
     * also reads payloads that are not large. A store with STORE_ONE_WRITER waits for the write
     * lock. NULL: not supported. */
    int (*poll_new)(struct store *st, bool skip_query, bool payloads, new_event_visit *visit,
                    void *ctx, struct watch_result *ret, struct error *err);

    /* ---- effects of handlers, committed together with their settlement ---- */

    /* expose_connection lets the application's code use this handle's connection between begin and
     * commit. The session has the application's default settings, and nothing the code does there
     * (DISCARD ALL, SET) breaks the handle. Where supported, the server ends a transaction that is
     * idle for idle_ms, so that a hung process does not hold its locks forever. Called again, it
     * removes any state that the application left in the session. */
    int (*expose_connection)(struct store *st, int64_t idle_ms, struct error *err);
    /* savepoint sets, releases or undoes a savepoint between begin and commit; they may be nested.
     * UNDO rolls back to the last one and releases it. ERR_MISUSE: the savepoint is gone, because
     * the application ended the transaction. */
    int (*savepoint)(struct store *st, enum savepoint what, struct error *err);
    /* tx_state returns the state of the transaction, without a round trip. */
    enum tx_state (*tx_state)(struct store *st);
    /* settle records s as turn does, in the open transaction. A store with STORE_ONE_WRITER uses
     * the state the claim had at begin. */
    int (*settle)(struct store *st, const struct settlement *s, bool *ret_lost, struct error *err);
    /* handled returns for each key whether it is recorded, whatever the payload. handled_put
     * records the keys for which skip[i] is false, with an empty payload. *ret_all: all of them
     * were new; if false, the transaction must be rolled back. */
    int (*handled)(struct store *st, const struct inbox_key *k, size_t n, bool *ret,
                   struct error *err);
    int (*handled_put)(struct store *st, const struct inbox_key *k, const bool *skip, size_t n,
                       bool *ret_all, struct error *err);

    /* handle_once is the inbox: it records (handler, key) with a hash of the payload, in the open
     * transaction of `foreign` or of this handle. *ret_first: the key is new. ERR_CONFLICT: it was
     * recorded with another payload. */
    int (*handle_once)(struct store *st, void *foreign, struct str handler, struct str key,
                       struct str payload, bool *ret_first, struct error *err);

    int (*info)(struct store *st, struct store_info *ret, struct error *err);
    int (*events)(struct store *st, const struct event_query *q, event_visit *visit, void *ctx,
                  struct error *err);
    int (*dead)(struct store *st, const struct dead_query *q, dead_visit *visit, void *ctx,
                struct error *err);
    /* dead_retry parks the events of dead letters for a retry, due at once and with no attempt
     * used. They stay dead letters (retrying) until settled. dead_drop deletes them. *ret_n: the
     * number of letters changed. */
    int (*dead_retry)(struct store *st, const struct dead_query *q, int64_t *ret_n,
                      struct error *err);
    int (*dead_drop)(struct store *st, const struct dead_query *q, int64_t *ret_n,
                     struct error *err);
    /* retry_now makes an event that waits for its next attempt due at once; attempts used still
     * count. An event waiting behind another event of the same key, or for its not_before, keeps
     * waiting. *ret_waited: it was waiting for an attempt. */
    int (*retry_now)(struct store *st, const char *consumer, int64_t seq, bool *ret_waited,
                     struct error *err);
    int (*trim)(struct store *st, const struct trim_request *req, struct trim_result *ret,
                struct error *err);

    /* marks visits the high-water marks of a stream, or of all if NULL; the highest mark of each
     * stream comes first. */
    int (*marks)(struct store *st, const char *stream, mark_visit *visit, void *ctx,
                 struct error *err);

    /* grant grants the rights of a part to a role, or revokes them: all or nothing, and nothing
     * with dry_run. *ret_changed is false if there was nothing to revoke. ERR_NOTFOUND: the role
     * does not exist; ERR_CONFLICT: it is limited to another tenant. NULL: this store has no
     * roles. */
    int (*grant)(struct store *st, const struct grant_request *req, bool *ret_changed,
                 struct error *err);
    /* adopt turns the unprocessed rows of a table into events, and each new row in the transaction
     * that inserts it. ERR_NOTFOUND: the table or a column does not exist; ERR_CONFLICT: an earlier
     * adoption of the table was undone, and req->existing does not say what to do with its rows.
     * NULL: not supported. */
    int (*adopt)(struct store *st, const struct adopt_request *req, struct adopt_result *ret,
                 struct error *err);
};

/* The base of every store; it comes first in the backend's own struct. */
struct store {
    const struct store_ops *ops;
    unsigned caps; /* a subset of ops->caps: sqlite::memory: has fewer */
};

extern const struct store_ops *const store_kinds[]; /* ends with NULL */

/* store_kind finds the store for a URL's scheme; NULL: unknown. */
const struct store_ops *store_kind(const char *url);
/* store_url_check rejects a URL with an unknown scheme, and suggests the most similar one:
 * ERR_CONFIG. */
int store_url_check(const char *url, struct error *err);
/* store_open opens a store of the URL's kind, as store_ops.open does. */
int store_open(const char *url, const struct store_options *opt, struct store **ret,
               struct error *err);
void store_close(struct store *st); /* NULL is fine */

/* ---- trimming at a pace that leaves room for other work ----
 *
 * A call of store_ops.trim is one short transaction. These functions decide how large the next one
 * is, when it is due, and where it begins. */

/* State between calls; all zeros at the start. (1) after is 0, or the upto of the previous call. */
struct trimming {
    size_t rows;      /* of the next call; 0: the initial number */
    int64_t after;    /* where the next call begins */
    int64_t all_at;   /* monotonic: earliest time to start over at the first event */
    int64_t pause_ns; /* until the next call, if there is more to do */
};

/* store_trim_step calls trim once for req, whose max_rows and after it sets. */
int store_trim_step(struct trimming *t, struct store *st, const struct clock *clock,
                    const struct trim_request *req, struct trim_result *ret, struct error *err);

/* store_trim_took adjusts to a call that took took_ns and returned res: how many rows the next one
 * may delete, where it begins, and how long to pause before it. With one writer at a time,
 * producers wait during a call, so calls are short and pauses as long as the calls. */
void store_trim_took(struct trimming *t, bool one_writer, int64_t now_ns, int64_t took_ns,
                     const struct trim_result *res);

/* ---- the connections of stores ----
 *
 * A store keeps its connection and replaces it when it reconnects, so ask for it each time. NULL
 * for a store of another kind, and while a server's store is not connected. pg_conn is a PGconn. */

struct pg_conn *pg_handle(struct store *st);
/* pg_is returns whether a store is a PostgreSQL store, connected or not. Any thread. */
bool pg_is(const struct store *st);
struct sqlite3 *sqlite_handle(struct store *st);
#ifdef OUTBOX_MARIADB
struct st_mysql *mdb_handle(struct store *st);
#else
static inline struct st_mysql *mdb_handle(struct store *st)
{
    (void)st;
    return NULL;
}
#endif

/* ---- functions that stores share ---- */

/* store_is returns whether the store has this scheme. Any thread. */
bool store_is(const struct store *st, const char *scheme);

/* The names of enum order in tables and settings; ends with NULL. */
extern const char *const store_order_names[];
/* store_order_of returns the order for a name from a table; ORDER_KEY if the name is unknown. */
enum order store_order_of(struct str name);
/* store_order_key returns the ordering key of an event with this key: events with the same value
 * are delivered one after the other. 0: the event waits for no other. */
uint64_t store_order_key(enum order order, uint64_t key);
/* store_seq_of returns the seq if an event's id is written as a seq; otherwise 0. */
int64_t store_seq_of(const char *id);
/* store_in_state returns whether a delivery is in the state that the query asks for; now_ms is the
 * database's clock. */
bool store_in_state(const struct event_query *q, const struct delivery_info *d, int64_t now_ms);
/* store_says_down returns whether a relay's report says that its sink is down. */
bool store_says_down(const char *report);

/* store_no_consumer fails with ERR_NOTFOUND. */
int store_no_consumer(const char *name, struct error *err);
/* store_replaced fails with ERR_CONFLICT: the settings `old` were replaced by `now`. */
int store_replaced(const char *name, const struct consumer_settings *now,
                   const struct consumer_settings *old, struct error *err);
/* store_removable refuses to remove a consumer that still has state: ERR_CONFLICT. */
int store_removable(const char *name, int64_t dead, int64_t parked, int64_t live,
                    struct error *err);
/* store_name_check refuses a consumer's name that is empty, too long or has invalid characters:
 * ERR_CONFIG. */
int store_name_check(const char *name, struct error *err);
/* store_spec_check refuses a consumer that no store may register, because of its name, lanes or
 * order: ERR_CONFIG. */
int store_spec_check(const struct consumer_spec *c, struct error *err);

/* ---- counts of undelivered events by type, estimated from samples ---- */

/* Where an undelivered event may be; each place is sampled separately. */
enum topic_place {
    TOPIC_UNCLAIMED, /* not handed out yet, or its claim expired */
    TOPIC_CLAIMED,   /* in a live claim of a lane */
    TOPIC_PARKED,    /* claimed or not */
};
#define TOPIC_PLACES 3

/* Events of one type found in one place. */
struct topic_find {
    enum topic_place place;
    struct str type;
    int64_t n;
    int64_t oldest_at; /* created_at of the oldest of them; 0: unknown */
};

struct topic;

/* The types found so far. Initialised with the arena only. */
struct topics {
    struct arena *a;
    struct topic *list;
    size_t n;
};

/* store_topics_add adds events found. The type is copied. */
int store_topics_add(struct topics *t, const struct topic_find *f, struct error *err);

/* store_topics_end sets the types of *g, most frequent first. all[place] is the total where the
 * sample covered only part of the events; 0: it covered all of them. A type's share of the sample
 * is then taken as its share of the total. */
int store_topics_end(struct topics *t, const int64_t all[TOPIC_PLACES], struct consumer_gauge *g,
                     struct error *err);

#endif
