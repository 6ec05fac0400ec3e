/* store.h: the contract of a store, the database that holds the outbox. docs/extending.md is
 * the tutorial, and tests/contract/store.c the suite every store passes unchanged.
 *
 * A store handle is one connection: it belongs to one thread at a time. Any number of handles, in
 * any number of processes, may work on one outbox.
 *
 * The protocol (docs/architecture.md gives the reasons): events are only ever inserted. Each
 * consumer has lanes; a lane's position says how far its events have been handed out. A claim is a
 * range of events up to that position, or a set of parked events, leased to one owner. Settling a
 * claim records the exceptions and forgets the claim; everything else was delivered. When the lease
 * of a claim runs out, its events are parked as suspects: one of them may have killed its worker.
 * Where that is possible at all (see enum suspect_policy), they are handed out one at a time, and a
 * worker that vanishes again counts against the one it had. So a crash repeats only unsettled
 * work, and a poison event dies alone. */
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
#include "store/operator.h"

struct db_driver;

#define STORE_ALL_LANES (-1) /* in place of a lane: all of the consumer's are meant */

/* A batch of events leased to one owner. (1) Events of one key are in seq order. (2) Everything in
 * it lives in the arena it was claimed with. (3) A claim without events is never recorded: epoch is
 * 0 if n is. */
struct batch {
    struct event *ev;
    size_t n;
    bool parked;      /* parked events; otherwise a fresh range */
    bool suspect;     /* one event that was in flight when a worker vanished, handed out alone */
    bool blamed;      /* suspect, and if this worker vanishes as well, that counts as an attempt */
    int lane;         /* of a fresh range; STORE_ALL_LANES: of all of them */
    int64_t epoch;    /* the fence: grows with every claim of the consumer */
    int64_t from, to; /* the fresh range (from, to], by seq */
};

/* What to do with suspects: events that were in flight when a worker vanished. A worker that an
 * event can kill delivers a suspect alone, with nothing else in flight. */
enum suspect_policy {
    SUSPECT_SKIP, /* leave it: claim other events */
    /* events are in flight: claim nothing, so that the suspect can follow (claim_hint.suspect) */
    SUSPECT_WAIT,
    SUSPECT_TAKE,   /* hand it out, alone and blamed */
    SUSPECT_BESIDE, /* hand it out alone, but not blamed: this process delivers another suspect */
    SUSPECT_ANY,    /* no event can kill this worker: hand suspects out like all others */
};

/* Events that have been through several crashes, of which none is to blame, are handed out again at
 * random times, up to this far apart. So even if one of them kills its worker all the same, by a
 * fault of ours, the others get through. */
#define STORE_APART_MS 64000

struct claim_request {
    const char *consumer;
    const char *owner; /* unique per worker: "host:pid:random" */
    enum order order;  /* as registered */
    int lanes;
    int lane_hint;               /* the lane in which to look for fresh events first */
    bool sole;                   /* no other worker of this process is at the consumer */
    enum suspect_policy suspect; /* what to do when a suspect is due */
    bool parked_first;           /* try parked events before fresh ones */
    const struct filter *filter; /* compiled from the next two */
    const char *events, *where;  /* as registered */
    const int64_t *known;        /* epochs of the fresh claims the caller still has in hand */
    size_t n_known;
    size_t max_events;
    size_t max_bytes; /* the event that reaches this is the last */
    int64_t lease_ms;
    int max_attempts; /* an event that was blamed for as many crashes is buried */
    /* the caller may not come back soon: do not read ahead, do not arm the wake-up, and do not wait
     * for a consumer that another transaction has locked */
    bool one_shot;
    bool no_listen;     /* a watcher wakes the caller: this handle need not listen */
    bool no_readahead;  /* the handle serves other consumers as well */
    bool batch_backlog; /* combine turns even when there is a backlog */
    /* what the store remembers of this consumer's turns; NULL: the handle belongs to this consumer
     * alone, and remembers it itself */
    struct turn_cache *cache;
};

/* When a store searches again for events that a wrong clock has parked for longer than they were
 * told to wait. The search covers all parked events of a consumer, so it is not made at every turn.
 * A worker that waits for a parked event comes back in time for the next one: such a clock may have
 * set the time it waits for. Times are monotonic. */
#define CLOCK_REPAIR_EVERY (10000 * MS_NS)

struct clock_repair {
    int64_t at; /* when to search again; 0: at once */
};

/* clock_repair_due says whether it is time to search; clock_repair_done that it was done. */
static inline bool clock_repair_due(const struct clock_repair *p, int64_t now)
{
    return now >= p->at;
}

static inline void clock_repair_done(struct clock_repair *p, int64_t now)
{
    p->at = now + CLOCK_REPAIR_EVERY;
}

/* clock_repair_left_ms is the time until the next search, if none is due. */
static inline int64_t clock_repair_left_ms(const struct clock_repair *p, int64_t now)
{
    return (p->at - now) / MS_NS + 1;
}

/* What a store remembers between the turns of one consumer. Zeros: nothing yet. */
struct turn_cache {
    struct clock_repair repair;
    unsigned unread; /* claims in a row that could not be read and were given back */
};

/* When to ask again, if nothing was claimed. */
struct claim_hint {
    bool paused;
    bool busy; /* another owner's live claim is in the way; it may end at any time */
    /* no event is left: none to claim, none claimed by anyone, none waiting for a retry */
    bool through;
    /* until something falls due (a retry, a delay, the end of a lease); -1: nothing will by
     * itself */
    int64_t wait_ms;
    int64_t poll_in_ms; /* > 0: not every commit wakes us now; ask again this soon */
    /* events skipped because the filter or the lane did not match; > 0: ask again at once */
    size_t skipped;
    size_t crashed; /* events of expired claims that this call took over */
    size_t buried;  /* events that this call buried, because the process died on them too often */
    bool suspect;   /* a suspect is due, but the request did not allow it */
    /* the unrelated session that holds the lock our wake-ups need; NULL: none. Lives until the next
     * turn */
    const char *wake_blocker;
    /* the registered order, lanes or filter are not those of the request: nothing was claimed */
    bool changed;
    /* events may have been claimed, but could not be read. Their claim was given back, or its lease
     * will run out. What the turn settled is settled */
    bool unread;
    /* beside a batch: there was nothing else to claim, and a wake-up announces whatever comes next,
     * so there is no need to ask before */
    bool quiet;
};

enum outcome_kind {
    /* only needed to carry a receipt: an event that no outcome names was delivered */
    OUTCOME_DELIVERED,
    OUTCOME_RETRY, /* park it until now + delay_ms */
    OUTCOME_DEAD,  /* bury it */
    /* not tried: park it, due at once unless an event of its key is parked before it */
    OUTCOME_BEHIND,
    OUTCOME_DELAY, /* not tried: park it until its not_before */
};

struct outcome {
    const struct event *ev;
    enum outcome_kind kind;
    int attempts; /* used up by now */
    /* OUTCOME_RETRY: the failure was the event's own fault, not the sink's; that is remembered */
    bool proven;
    int64_t delay_ms;    /* OUTCOME_RETRY */
    const char *error;   /* OUTCOME_RETRY, OUTCOME_DEAD: why */
    const char *receipt; /* OUTCOME_DELIVERED */
};

/* A row of the inbox: the handler has taken effect for this key. */
struct inbox_key {
    struct str handler, key;
};

/* A claim whose lease is to begin anew. */
struct claim_lease {
    const char *consumer, *owner;
    int64_t epoch;
    int64_t lease_ms;
    bool absolve; /* if the worker vanishes, its event is not to blame any more; see batch.blamed */
};

/* A claim that is there, whether or not its lease has run out. */
struct claim_info {
    int64_t epoch;
    const char *owner;
};

enum savepoint { SAVEPOINT_SET, SAVEPOINT_RELEASE, SAVEPOINT_UNDO };

/* What has become of the transaction that begin opened. */
enum tx_state {
    TX_OPEN,
    TX_FAILED, /* the database accepts nothing but a rollback, of all or to a savepoint */
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
    /* Events of a fresh batch from this seq on were never tried, and no outcome names them. They
     * are given back by moving the position; if a later claim exists, they are parked instead, as
     * with OUTCOME_BEHIND. 0: none. */
    int64_t release_from;
    /* How far streams on the other side have come. A mark is kept if it is further than the
     * recorded one, even if the claim is lost: it tells what happened over there. */
    const struct hwm *marks;
    size_t n_marks;
};

/* One of several turns made in one transaction, each of a different consumer. The first three
 * fields are what turn is given; the request asks for events. The rest is the answer. */
struct batched_turn {
    const struct settlement *s; /* NULL: nothing is settled */
    const struct claim_request *req;
    struct arena *a;

    bool made; /* false: it is not simple, nothing was done about it, and turn has to be called */
    bool lost; /* as in turn */
    struct batch batch;
    struct claim_hint hint;
};

/* What poll_new found. */
struct watch_result {
    size_t n;   /* new events that were visited */
    bool all;   /* there may be others: wake all consumers */
    bool again; /* call poll_new once more at once */
    /* the next call is due in this time, unless a wake-up comes before; -1: at the wake-up */
    int64_t wait_ms;
    /* as in claim_hint. Lives until the next call */
    const char *wake_blocker;
};

/* new_event_visit is called with a new event, borrowed for the call. Only its type and payload are
 * set; payload.p == NULL: it was not read. */
typedef void new_event_visit(void *ctx, const struct event *ev);

enum {
    STORE_WAKEUP = 1, /* wake_fd says when to ask */
    STORE_SHARED = 2, /* other processes can reach it */
    /* calls with a foreign connection do not touch the handle: they may come from any thread */
    STORE_FREE = 4,
    /* while a transaction is open on one handle, no other can write, nor take a claim over */
    STORE_ONE_WRITER = 8,
    STORE_REMOTE = 16, /* a server, which may be unreachable for a while */
};

struct store;

struct store_options {
    const struct clock *clock;
    int64_t busy_ms;     /* how long to wait for a lock; 0: 5 s */
    int64_t payload_max; /* 0: EVENT_PAYLOAD_MAX */
    bool create;         /* create a database that does not exist (init) */
    /* open whatever is there and change nothing: only for schema_status, validate and doctor */
    bool any_version;
    /* init installs this program's functions even if a later build has replaced them */
    bool replace;
    int64_t lock_ms; /* how long init tries to get its locks; 0: ten minutes */

    /* progress is called with a line that says what init is waiting for. May be NULL. */
    void (*progress)(void *ctx, const char *text);
    void *progress_ctx;
};

struct store_ops {
    const char *scheme; /* "sqlite" */
    const char *synopsis;
    unsigned caps;
    const struct db_driver *driver; /* what store/db asks of it; NULL: it does without store/db */

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

    /* init makes the tables or brings them up to this version, all or nothing; *ret_created says
     * whether anything was done. Producers and workers may go on meanwhile, and are not kept
     * waiting. ERR_BUSY: other sessions kept the tables in use for all of opt->lock_ms. */
    int (*init)(struct store *st, bool *ret_created, struct error *err);

    /* schema_status compares versions. A version newer than this program is no error here. */
    int (*schema_status)(struct store *st, struct schema_status *ret, struct error *err);
    /* validate compares everything in the database with what this program would make, and reports
     * each difference as a finding. It changes nothing. NULL: this store cannot. */
    int (*validate)(struct store *st, finding_visit *visit, void *ctx, struct error *err);
    /* ddl appends the SQL that init runs and the SQL that undoes it, without a database.
     * *ret_schema gets the name of the schema, or nothing where there are no schemas. */
    int (*ddl)(const struct ddl_request *req, struct error *err);
    /* doctor looks for what can be wrong with this kind of store, whatever its version. It only
     * reads. */
    int (*doctor)(struct store *st, const struct doctor_request *req, struct error *err);

    /* begin, commit and rollback bracket several emits on this handle in one transaction. */
    int (*begin)(struct store *st, struct error *err);
    int (*commit)(struct store *st, struct error *err);
    void (*rollback)(struct store *st);

    /* emit checks and inserts one event and returns its id. With `foreign` (a sqlite3 * or PGconn
     * *) it takes part in the transaction that must be open there; with NULL it uses this handle's
     * own connection, and commits by itself unless begin was called. *ret_duplicate: the
     * idempotency key was used before, and the id is that of the first event. Errors: ERR_CONFLICT
     * (the key was used with other content), ERR_MISUSE (no transaction is open on foreign),
     * ERR_BUSY, ERR_FULL, ERR_READONLY, ERR_NOTOURS (foreign has no outbox). */
    int (*emit)(struct store *st, void *foreign, const struct new_event *ev,
                char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err);

    /* consumer_put registers a consumer, or brings filter and retry up to date. ERR_CONFLICT: order
     * or lanes would change while the consumer is not through; or these settings were replaced
     * before, and spec->how is not PUT_PURPOSE. Either may pass with time. *ret_created may be
     * NULL. */
    int (*consumer_put)(struct store *st, const struct consumer_spec *spec, bool *ret_created,
                        struct error *err);
    /* consumer_history lists the settings a consumer has had, newest first; n == 0: they never
     * changed. ERR_NOTFOUND: there is no consumer of that name. */
    int (*consumer_history)(struct store *st, const char *name, struct arena *a,
                            struct consumer_settings **ret, size_t *ret_n, struct error *err);
    /* consumer_list lists all consumers, or the one named, in the arena. ERR_NOTFOUND: there is no
     * consumer of that name. */
    int (*consumer_list)(struct store *st, const char *name, struct arena *a,
                         struct consumer_info **ret, size_t *ret_n, struct error *err);
    /* consumer_specs lists the settings alone, which is cheap: of the one named, or of all that
     * this handle may claim for and that are not paused. ERR_NOTFOUND: there is no consumer of that
     * name. */
    int (*consumer_specs)(struct store *st, const char *name, struct arena *a,
                          struct consumer_spec **ret, size_t *ret_n, struct error *err);
    /* consumer_gauge says cheaply how a consumer is doing. ERR_NOTFOUND: there is none of that
     * name. */
    int (*consumer_gauge)(struct store *st, const char *name, struct arena *a,
                          struct consumer_gauge *ret, struct error *err);
    int (*consumer_pause)(struct store *st, const char *name, bool paused, struct error *err);
    /* consumer_remove forgets a consumer with all its state. ERR_CONFLICT: it has dead letters,
     * parked events or a live claim, and `force` is false. */
    int (*consumer_remove)(struct store *st, const char *name, bool force, struct error *err);
    /* consumer_forget says that this handle is no longer used for a consumer: where another outbox
     * takes the place of this one, it is not registered there. The consumer itself stays. NULL:
     * this store remembers none. */
    void (*consumer_forget)(struct store *st, const char *name);
    /* consumer_report keeps a line for operators ("sink down: ..."), or clears it with NULL. */
    int (*consumer_report)(struct store *st, const char *name, const char *text, struct error *err);

    /* turn takes over expired claims, settles `s` (may be NULL) and then claims up to
     * req->max_events (0: none), in one transaction. The order matters: what an expired claim held
     * must be parked before what waits behind it. *ret_lost: the claim was no longer ours, and
     * nothing of s but its marks was recorded; claiming goes on regardless. ret_batch->n == 0 means
     * that there is nothing to do; *ret_hint says when to ask again. After an error nothing has
     * happened or, if the commit was ambiguous, everything has: asking again is safe. */
    int (*turn)(struct store *st, const struct settlement *s, bool *ret_lost,
                const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                struct claim_hint *ret_hint, struct error *err);
    /* turn_many makes those of n turns that are simple, in one transaction: they settle claims that
     * were delivered whole, and find few new events, or none. All of them set no_listen. After an
     * error the outcome is unknown, as with turn. NULL: this store makes each turn separately. */
    int (*turn_many)(struct store *st, struct batched_turn *t, size_t n, struct error *err);
    /* extend moves the end of a claim to now + lease_ms. *ret_lost: it is no longer its owner's. */
    int (*extend)(struct store *st, const struct claim_lease *l, bool *ret_lost, struct error *err);
    /* claims lists the claims of a consumer in the arena, in the order of their epochs. */
    int (*claims)(struct store *st, const char *consumer, struct arena *a, struct claim_info **ret,
                  size_t *ret_n, struct error *err);

    /* wake_fd is readable when another session may have committed; -1 without STORE_WAKEUP.
     * wake_clear empties it. Call it before the turn, so that no wake-up is lost in between. */
    int (*wake_fd)(struct store *st);
    void (*wake_clear)(struct store *st);

    /* poll_new visits the events committed since the last call on this handle, for a watcher that
     * wakes handles with no_listen. Call wake_clear before it, so that no commit is missed in
     * between. With skip_query it sends no query while producers notify, and answers `all`. With
     * `payloads` it reads payloads that are not large. Where there is one writer at a time, it
     * waits for the write lock. NULL: this store cannot. */
    int (*poll_new)(struct store *st, bool skip_query, bool payloads, new_event_visit *visit,
                    void *ctx, struct watch_result *ret, struct error *err);

    /* ---- effects of handlers, in one transaction with their settlement ---- */

    /* expose_connection lets the application's code work on this handle's connection between begin
     * and commit.
     * The session is as it expects it, and nothing it may do there (DISCARD ALL, SET) breaks the
     * handle. Where the server can, it ends a transaction that is idle for idle_ms: locks of a
     * process that hangs would keep others waiting. Called again, it takes away what the
     * application has left in the session. */
    int (*expose_connection)(struct store *st, int64_t idle_ms, struct error *err);
    /* savepoint sets, releases or undoes a savepoint between begin and commit; they may be nested.
     * UNDO goes back to the last one and releases it. ERR_MISUSE: it is gone, so the application
     * ended the transaction. */
    int (*savepoint)(struct store *st, enum savepoint what, struct error *err);
    /* tx_state says what has become of the transaction, without a round trip. */
    enum tx_state (*tx_state)(struct store *st);
    /* settle records s as turn does, in the open transaction. A store with STORE_ONE_WRITER judges
     * the claim as it was at begin. */
    int (*settle)(struct store *st, const struct settlement *s, bool *ret_lost, struct error *err);
    /* handled says for each key whether it is recorded, with whatever payload. handled_put records
     * those for which skip[i] is false, with an empty payload. *ret_all: none of them was there; if
     * false, the transaction must be rolled back. */
    int (*handled)(struct store *st, const struct inbox_key *k, size_t n, bool *ret,
                   struct error *err);
    int (*handled_put)(struct store *st, const struct inbox_key *k, const bool *skip, size_t n,
                       bool *ret_all, struct error *err);

    /* handle_once is the inbox: it records (handler, key) with a hash of the payload, in the open
     * transaction of `foreign` or of this handle. *ret_first: it was not there. ERR_CONFLICT: it
     * was, with another payload. */
    int (*handle_once)(struct store *st, void *foreign, struct str handler, struct str key,
                       struct str payload, bool *ret_first, struct error *err);

    int (*info)(struct store *st, struct store_info *ret, struct error *err);
    int (*events)(struct store *st, const struct event_query *q, event_visit *visit, void *ctx,
                  struct error *err);
    int (*dead)(struct store *st, const struct dead_query *q, dead_visit *visit, void *ctx,
                struct error *err);
    /* dead_retry sends dead letters back as parked events, due at once and with no attempt used.
     * They stay dead letters (retrying) until settled. dead_drop deletes them. *ret_n: how many. */
    int (*dead_retry)(struct store *st, const struct dead_query *q, int64_t *ret_n,
                      struct error *err);
    int (*dead_drop)(struct store *st, const struct dead_query *q, int64_t *ret_n,
                     struct error *err);
    /* retry_now makes an event that waits for its next attempt due at once; attempts used stay
     * used. An event that waits behind another of its key, or for its not_before, goes on waiting.
     * *ret_waited: it was waiting for an attempt. */
    int (*retry_now)(struct store *st, const char *consumer, int64_t seq, bool *ret_waited,
                     struct error *err);
    int (*trim)(struct store *st, const struct trim_request *req, struct trim_result *ret,
                struct error *err);

    /* marks visits the high-water marks of a stream, or of all if NULL; the furthest of each stream
     * comes first. */
    int (*marks)(struct store *st, const char *stream, mark_visit *visit, void *ctx,
                 struct error *err);

    /* grant gives a role its part, or takes it away: all or nothing, and with dry_run nothing.
     * *ret_changed is false if there was nothing to take away. ERR_NOTFOUND: there is no such role;
     * ERR_CONFLICT: it is limited to another tenant. NULL: this store has no roles. */
    int (*grant)(struct store *st, const struct grant_request *req, bool *ret_changed,
                 struct error *err);
    /* adopt makes events of those rows of a table that are not processed yet, and of each new row
     * in the transaction that inserts it. ERR_NOTFOUND: there is no such table or column;
     * ERR_CONFLICT: the table was adopted and given up before, and req->existing does not say what
     * to do with its rows. NULL: this store cannot. */
    int (*adopt)(struct store *st, const struct adopt_request *req, struct adopt_result *ret,
                 struct error *err);
};

/* The base of every store; it comes first in the backend's own struct. */
struct store {
    const struct store_ops *ops;
    unsigned caps; /* those of ops->caps that this one has: sqlite::memory: has fewer */
};

extern const struct store_ops *const store_kinds[]; /* ends with NULL */

/* store_kind finds the kind by the URL's scheme; NULL: unknown. */
const struct store_ops *store_kind(const char *url);
/* store_url_check refuses a URL of an unknown kind, and names the nearest: ERR_CONFIG. */
int store_url_check(const char *url, struct error *err);
/* store_open opens a store of the URL's kind, as store_ops.open does. */
int store_open(const char *url, const struct store_options *opt, struct store **ret,
               struct error *err);
void store_close(struct store *st); /* NULL is fine */

/* ---- what stores have in common ---- */

/* How an enum order is written in a table and by people; ends with NULL. */
extern const char *const store_order_names[];
/* store_order_of reads what a table has; anything unknown is ORDER_KEY. */
enum order store_order_of(struct str name);
/* store_order_key gives what an event with this key is ordered by: events with the same value go
 * one after the other. 0: it waits for no other. */
uint64_t store_order_key(enum order order, uint64_t key);
/* store_seq_of reads an event's id that is given as its seq; 0: it is none. */
int64_t store_seq_of(const char *id);
/* store_in_state says whether a delivery is what the query asks for; now_ms is the database's
 * clock. */
bool store_in_state(const struct event_query *q, const struct delivery_info *d, int64_t now_ms);
/* store_says_down says whether a relay reported that its sink is down. */
bool store_says_down(const char *report);

/* store_no_consumer fails with ERR_NOTFOUND. */
int store_no_consumer(const char *name, struct error *err);
/* store_replaced fails with ERR_CONFLICT: the settings `old` were replaced by those in force. */
int store_replaced(const char *name, const struct consumer_settings *now,
                   const struct consumer_settings *old, struct error *err);
/* store_removable refuses to remove a consumer that has something to lose: ERR_CONFLICT. */
int store_removable(const char *name, int64_t dead, int64_t parked, int64_t live,
                    struct error *err);
/* store_name_check refuses a consumer's name that is empty, too long or has other characters:
 * ERR_CONFIG. */
int store_name_check(const char *name, struct error *err);

#endif
