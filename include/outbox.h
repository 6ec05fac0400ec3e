/*
** outbox.h: the C interface of liboutbox.
**
** An application changes its data and must tell others about it. With liboutbox it writes the event
** in the same database transaction as the change; every committed event is delivered, at least once
** and in order, to every consumer subscribed to it.
**
**     outbox *ob;
**     outbox_error err;
**     if (outbox_open("sqlite:shop.db", NULL, &ob, &err) != 0) die(err.text);
**
**     sqlite3_exec(db, "BEGIN IMMEDIATE", 0, 0, 0);
**     sqlite3_exec(db, "INSERT INTO orders ...", 0, 0, 0);
**     outbox_message m = OUTBOX_MESSAGE_INIT;
**     m.type = "order.created";
**     m.aggregate_type = "order"; m.aggregate_id = "42";
**     m.payload = "{\"total\":99}";
**     outbox_emit_sqlite(ob, db, &m, NULL, &err);
**     sqlite3_exec(db, "COMMIT", 0, 0, 0);
**
** CONVENTIONS
**
** Functions return 0 on success and -1 on failure. On failure they fill in *err (which may be NULL)
** and leave every other output as it was. Strings are UTF-8 and end with a NUL; they are borrowed
** for the call unless stated otherwise. The library never prints, never exits and leaves signals
** alone.
**
** THREADS
**
** Different outbox handles are independent. On one handle, outbox_emit, outbox_begin ...
** outbox_commit, outbox_stop and outbox_wake may be called from any thread; the others state what
** they allow.
*/
#ifndef OUTBOX_H
#define OUTBOX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OUTBOX_VERSION_MAJOR 0
#define OUTBOX_VERSION_MINOR 1
#define OUTBOX_VERSION_PATCH 0

#if defined(__GNUC__)
#define OUTBOX_API __attribute__((visibility("default")))
#else
#define OUTBOX_API
#endif

struct sqlite3;
struct pg_conn;  /* PGconn */
struct st_mysql; /* MYSQL */

/*
** CAPI: Version
**
** The version of the library that is running, such as "0.1.0". Thread-safe.
*/
OUTBOX_API const char *outbox_version(void);

/*
** CAPI: Errors
**
** code is the kind of error, and retry_class whether a retry can help. native is the error code of
** the other side (an errno, a SQLite result code, an exit status), or 0. text is one line for
** humans, without secrets.
*/
enum outbox_code {
    OUTBOX_OK = 0,
    OUTBOX_NOMEM = 1,    /* out of memory */
    OUTBOX_INVALID = 2,  /* bad data: not JSON, not UTF-8, too long, ... */
    OUTBOX_MISUSE = 3,   /* the call violates the function's contract */
    OUTBOX_CONFIG = 4,   /* a bad setting */
    OUTBOX_NOTFOUND = 5, /* no such thing */
    OUTBOX_CONFLICT = 6, /* the object exists already, with other content */
    OUTBOX_NOTOURS = 7, /* the database has no outbox: use outbox_options.create or `outbox init` */
    OUTBOX_NEWER = 8,   /* the outbox was created by a newer version */
    OUTBOX_READONLY = 9,     /* no permission to write */
    OUTBOX_FULL = 10,        /* no space left */
    OUTBOX_BUSY = 11,        /* locked by another session for longer than busy_ms: try again */
    OUTBOX_UNAVAILABLE = 12, /* store or sink cannot be reached */
    OUTBOX_LOST = 13,        /* the claim went to another worker */
    OUTBOX_INTERNAL = 14,    /* a bug in the library */
    OUTBOX_UNDELIVERED = 15  /* committed, but a delivery failed: only in eager mode */
};

enum outbox_retry_class {
    OUTBOX_CLASS_NONE = 0,   /* not about a delivery */
    OUTBOX_CLASS_RETRY = 1,  /* trying again may help */
    OUTBOX_CLASS_REJECT = 2, /* trying again cannot help */
    OUTBOX_CLASS_DOWN = 3,   /* the other side is down: wait for it */
    OUTBOX_CLASS_FATAL = 4   /* the configuration is wrong */
};

typedef struct outbox_error {
    int code;        /* enum outbox_code */
    int retry_class; /* enum outbox_retry_class */
    int native;
    int reserved;
    char text[496];
} outbox_error;

/*
** CAPI: Opening
**
** outbox_open connects to the outbox in a database.
**
**     sqlite:PATH                    a SQLite file, which may also hold your own tables
**     sqlite::memory:                in this process only, created at once; for tests
**     postgres://USER@HOST/DATABASE  as libpq reads it; ?schema=NAME if the schema is not "outbox"
**     mariadb://USER@HOST/DATABASE   a MariaDB database
**
** With options->create the tables are created if they do not exist, and upgraded if an older
** version created them. On success the caller owns *ret and releases it with outbox_close.
** Thread-safe.
**
** outbox_close must be the last call on a handle, with no other call running on it. It does nothing
** if ob is NULL.
*/
typedef struct outbox outbox;

/* The event that a log line refers to. Everything is borrowed for the call. */
typedef struct outbox_log_about {
    const char *event_id, *type;
    const char *key; /* aggregate type and id, TYPE/ID; "" if it has none */
    int attempt;
} outbox_log_about;

typedef struct outbox_options {
    size_t size;         /* sizeof(outbox_options): set by OUTBOX_OPTIONS_INIT */
    int create;          /* create or upgrade the tables */
    int64_t busy_ms;     /* how long to wait for a locked database; 0: 5000 */
    int64_t payload_max; /* largest payload in bytes; 0: 1 MiB */
    /* Called with each log line by the threads that run consumers, possibly by several at once.
    ** level is 0 debug, 1 info, 2 warning or 3 error; consumer may be NULL. NULL: no log. */
    void (*log)(void *ctx, int level, const char *consumer, const char *text);
    void *log_ctx;
    int log_level; /* lines below this level are not passed on */
    /* If set, called instead of log for lines about one event. */
    void (*log_about)(void *ctx, int level, const char *consumer, const char *text,
                      const outbox_log_about *about);
} outbox_options;

#define OUTBOX_OPTIONS_INIT \
    { \
        sizeof(outbox_options), 0, 0, 0, 0, 0, 1, 0 \
    }

OUTBOX_API int outbox_open(const char *url, const outbox_options *options, outbox **ret,
                           outbox_error *err);
OUTBOX_API void outbox_close(outbox *ob);

/*
** CAPI: Messages
**
** A message is an event to emit. Only type is required. A field over its limit (see
** docs/reference.md) is refused with OUTBOX_INVALID and a text that names the field and the limit.
**
**   type             what happened: "order.paid". 1 to 255 bytes, without white space or control
**                    characters
**   aggregate_type,
**   aggregate_id     what it happened to: "order", "42". Both or neither. Together they are the
**                    key; with order = key, events of one key stay in order
**   payload          JSON text, delivered byte for byte; NULL means null
**   payload_size     its length in bytes; 0 means strlen
**   headers          a JSON object of strings, or NULL
**   idempotency_key  or NULL. Emitting the same key again sets outbox_receipt.duplicate and does
**                    not create a second event. A key is remembered for at least "retention", and
**                    as long as its event is kept. After a rollback it can be used again
**   tenant           or NULL
**   version          of the aggregate, if has_version is not 0
**   not_before       the event is not delivered before this time, in milliseconds since 1970, at
**                    most ten years ahead; 0: at once. Later events of the same key wait for it
*/
typedef struct outbox_message {
    size_t size; /* sizeof(outbox_message): set by OUTBOX_MESSAGE_INIT */
    const char *type;
    const char *aggregate_type;
    const char *aggregate_id;
    const char *payload;
    size_t payload_size;
    const char *headers;
    const char *idempotency_key;
    const char *tenant;
    int has_version;
    int64_t version;
    int64_t not_before;
} outbox_message;

#define OUTBOX_MESSAGE_INIT \
    { \
        sizeof(outbox_message), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* The id of the event (UUIDv7). duplicate: the idempotency key was used before, so no event was
** stored, and the id is that of the first event. */
typedef struct outbox_receipt {
    char id[37];
    char duplicate;
} outbox_receipt;

/*
** CAPI: Emitting
**
** outbox_emit inserts one event through the handle's own connection and commits it; between
** outbox_begin and outbox_commit the event is part of that transaction. Any thread may call it;
** calls are serialised. ret may be NULL.
**
** outbox_emit_sqlite inserts one event through the caller's own connection, in the transaction that
** is open there: the event exists if and only if that transaction commits. Without an open
** transaction it fails with OUTBOX_MISUSE. One thread at a time may use the connection. The call
** leaves no statement or lock behind on it.
**
** outbox_emit_pg does the same through a libpq connection (PGconn *). Any number of threads may
** call it at once, each on its own connection. A failure that the server reports aborts the
** caller's transaction, as any failed statement does in PostgreSQL.
**
** outbox_emit_mariadb does the same through a connection of MariaDB's client library (MYSQL *),
** with a transaction open, or autocommit off. A failure undoes only the event, unless the server
** rolled the transaction back to end a deadlock.
**
** All of them refuse bad data with OUTBOX_INVALID and a text that names the field and the problem.
** They refuse an idempotency key that was used with another type, aggregate or payload with
** OUTBOX_CONFLICT. After a failure no part of the event is stored.
*/
OUTBOX_API int outbox_emit(outbox *ob, const outbox_message *m, outbox_receipt *ret,
                           outbox_error *err);
OUTBOX_API int outbox_emit_sqlite(outbox *ob, struct sqlite3 *db, const outbox_message *m,
                                  outbox_receipt *ret, outbox_error *err);
OUTBOX_API int outbox_emit_pg(outbox *ob, struct pg_conn *db, const outbox_message *m,
                              outbox_receipt *ret, outbox_error *err);
OUTBOX_API int outbox_emit_mariadb(outbox *ob, struct st_mysql *db, const outbox_message *m,
                                   outbox_receipt *ret, outbox_error *err);

/*
** CAPI: Transactions on the handle's own connection
**
** outbox_begin groups the following emits of this thread into one transaction, until outbox_commit
** or outbox_rollback. Other threads that emit through the same handle wait until then. If
** outbox_commit fails, the transaction has ended and none of it is stored.
**
** outbox_sqlite, outbox_pg and outbox_mariadb return that connection, on which the same thread may
** change its own tables between outbox_begin and outbox_commit; NULL if the store is of another
** kind.
*/
OUTBOX_API int outbox_begin(outbox *ob, outbox_error *err);
OUTBOX_API int outbox_commit(outbox *ob, outbox_error *err);
OUTBOX_API void outbox_rollback(outbox *ob);
OUTBOX_API struct sqlite3 *outbox_sqlite(outbox *ob);
OUTBOX_API struct pg_conn *outbox_pg(outbox *ob);
OUTBOX_API struct st_mysql *outbox_mariadb(outbox *ob);

/*
** CAPI: Events, as a handler sees them
**
** Everything returned lives until the handler returns. Absent strings are NULL.
*/
typedef struct outbox_event outbox_event;

OUTBOX_API const char *outbox_event_id(const outbox_event *ev);
/* the event's idempotency key, or its id if it has none: see below */
OUTBOX_API const char *outbox_event_inbox_key(const outbox_event *ev);
OUTBOX_API int64_t outbox_event_seq(const outbox_event *ev);
OUTBOX_API const char *outbox_event_type(const outbox_event *ev);
OUTBOX_API const char *outbox_event_aggregate_type(const outbox_event *ev);
OUTBOX_API const char *outbox_event_aggregate_id(const outbox_event *ev);
/* ret_size may be NULL */
OUTBOX_API const char *outbox_event_payload(const outbox_event *ev, size_t *ret_size);
OUTBOX_API const char *outbox_event_headers(const outbox_event *ev);
OUTBOX_API const char *outbox_event_tenant(const outbox_event *ev);
/* returns whether the event has a version */
OUTBOX_API int outbox_event_version(const outbox_event *ev, int64_t *ret_version);
/* milliseconds since 1970 */
OUTBOX_API int64_t outbox_event_created_at(const outbox_event *ev);
/* 1 for the first */
OUTBOX_API int outbox_event_attempt(const outbox_event *ev);

/*
** CAPI: Consumers
**
** outbox_consumer_new names a consumer: an independent reader with its own position, retries and
** dead letters. The handle owns it. A name has 1 to 63 characters of [A-Za-z0-9_.-].
**
** outbox_consumer_set sets an option, with the names and values of the command line and the config
** file (`outbox help relay` lists them): preset, sink, events, where, order, lanes, from, retry,
** lease, timeout, poll, concurrency, batch, receipts, webhook-*. An option overrides a preset,
** whichever is set first. Two more options, workers and fate, are for handlers only (see below).
**
** A consumer has handlers or a sink, not both.
**
** outbox_add_handler adds a named function, which is called for events whose type matches a
** pattern: "order.created", "order.*", "*", or several separated by commas. Each event takes effect
** once: the changes that the handler makes through its transaction (outbox_tx_sqlite, outbox_tx_pg,
** outbox_tx_emit), the outcome of the delivery, and a record in the inbox are committed together.
** The record has the handler's name and the event's idempotency key, or its id if it has none. If
** the commit fails, the handler is called again for the event. A name is unique within its
** consumer. In the inbox, the handler "stock" of the consumer "orders" is "orders.stock".
**
** The handlers of a consumer are independent: each is a consumer (`outbox status` shows
** "orders.stock") with its own position, retries and dead letters. After outbox_consumer_set(c,
** "fate", "shared") they share one position: an event is delivered when all of them have succeeded,
** and until then it is retried, without calling the handlers that have succeeded. A handler that
** keeps failing blocks the event for the others, indefinitely unless "retry" limits the attempts
** ("fast,attempts=5"). outbox_consumer_set(c, "workers", "4") runs each handler in four threads,
** which may call its function at the same time; this needs as many lanes, or order none.
**
** OUTBOX_EXTERNAL is for a handler that acts outside the database, such as one that sends an e-mail
** or takes a payment. It has no transaction; the inbox records the event right after it returns
** OUTBOX_DONE. If the process dies in between, the handler is called again for the same event, so
** pass outbox_event_inbox_key on as the idempotency key. If handlers share their fate and one of
** them is external, each call to the others has its own transaction.
**
** outbox_on adds a plain handler for one pattern, without a name, a transaction or a record in the
** inbox: each event is delivered at least once, as fast as possible. Plain handlers that match the
** same event are called in the order in which they were added; the first that does not return
** OUTBOX_DONE ends the attempt. The handlers of a consumer are all plain or all named. A consumer
** receives the events that match any of its handlers' patterns, unless `events` was set.
** Independent named handlers receive what matches their own patterns, and `events` must not be set.
**
** A call may take longer than the consumer's lease: the lease is renewed during the call, up to the
** option `timeout`. After that the event goes to another worker, and the handler's transaction is
** not committed. The call is never interrupted: its thread, and outbox_run, wait for it. In SQLite
** no other connection can write while a handler's transaction is open, and the event cannot go to
** another worker, so handlers should be quick there.
**
** docs/c.md describes what happens when the process dies at each step.
**
** The settings with which a consumer was last registered apply to all processes at once. A process
** that runs it with another order, number of lanes or filter, such as the older one in a rolling
** deployment, stands by: it claims nothing, logs the reason, and continues when its settings are in
** force again. Only `outbox consumers revert` or `set` restores replaced settings. outbox_step and
** OUTBOX_UNTIL_THROUGH return OUTBOX_CONFLICT instead of standing by.
**
** Call these from one thread at a time, and not while outbox_run or outbox_step is running on the
** handle.
*/
typedef struct outbox_consumer outbox_consumer;
typedef struct outbox_tx outbox_tx;

typedef enum outbox_verdict {
    OUTBOX_DONE = 0,    /* delivered */
    OUTBOX_RETRY = 1,   /* failed; try again as the retry policy says */
    OUTBOX_REJECT = 2,  /* failed; trying again cannot help: make it a dead letter */
    OUTBOX_DOWN = 3,    /* not the event's fault: wait and try again without counting an attempt */
    OUTBOX_NOT_MINE = 4 /* not known to this version: leave it to another worker, uncounted */
} outbox_verdict;

/* Called in a thread that runs the consumer. tx lives until the handler returns. */
typedef outbox_verdict (*outbox_handler)(const outbox_event *ev, outbox_tx *tx, void *ctx);

OUTBOX_API int outbox_consumer_new(outbox *ob, const char *name, outbox_consumer **ret,
                                   outbox_error *err);
OUTBOX_API int outbox_consumer_set(outbox_consumer *c, const char *option, const char *value,
                                   outbox_error *err);

#define OUTBOX_EXTERNAL 1 /* for flags */

OUTBOX_API int outbox_add_handler(outbox_consumer *c, const char *name, const char *pattern,
                                  outbox_handler handler, void *ctx, int flags, outbox_error *err);
OUTBOX_API int outbox_on(outbox_consumer *c, const char *pattern, outbox_handler handler, void *ctx,
                         outbox_error *err);

/*
** CAPI: In a handler
**
** outbox_fail records why the handler failed, for the dead letter and the operator, and returns
** verdict: `return outbox_fail(tx, OUTBOX_RETRY, "stock service said 503")`. At most 255 bytes of
** the text are copied. outbox_retry_in does the same with OUTBOX_RETRY, and delays the next attempt
** by at least that many milliseconds (at most a year).
**
** outbox_tx_sqlite, outbox_tx_pg and outbox_tx_mariadb return the connection with the handler's
** transaction; NULL if there is none, or the store is of another kind. The handler may use
** savepoints, but must not commit or roll back: if it does, the event becomes a dead letter with
** that reason. SQLite refuses its COMMIT; in PostgreSQL its changes stay committed, as do those of
** earlier calls in the same transaction, and those calls are repeated. A handler whose statements
** failed returns OUTBOX_RETRY. It must leave nothing unfinished on the connection, and must not
** call outbox_emit: in SQLite that would wait for the lock that the handler's own transaction
** holds.
**
** outbox_tx_emit emits in that transaction: the event exists if and only if the handler takes
** effect.
*/
OUTBOX_API outbox_verdict outbox_fail(outbox_tx *tx, outbox_verdict verdict, const char *text);
OUTBOX_API outbox_verdict outbox_retry_in(outbox_tx *tx, int64_t ms, const char *text);
OUTBOX_API struct sqlite3 *outbox_tx_sqlite(outbox_tx *tx);
OUTBOX_API struct pg_conn *outbox_tx_pg(outbox_tx *tx);
OUTBOX_API struct st_mysql *outbox_tx_mariadb(outbox_tx *tx);
OUTBOX_API int outbox_tx_emit(outbox_tx *tx, const outbox_message *m, outbox_receipt *ret,
                              outbox_error *err);

/*
** CAPI: The inbox
**
** outbox_handle_once records in a handler's transaction that `handler`, a name of your choice,
** takes effect for `key`, which identifies the effect: *ret_first is set to 1 the first time, and
** to 0 if it was recorded before. If the payload differs from the first one, the call fails with
** OUTBOX_CONFLICT, which in PostgreSQL also aborts the transaction. size is the length of the
** payload; 0 means strlen. payload may be NULL. The event of a named handler is recorded
** automatically; call this only for further effects.
**
** outbox_handle_once_sqlite, outbox_handle_once_pg and outbox_handle_once_mariadb do the same in a
** transaction that is open on the caller's own connection, for input that does not arrive through a
** handler, such as messages from a queue.
**
** Records are kept for "inbox-retention" (see outbox_set).
*/
OUTBOX_API int outbox_handle_once(outbox_tx *tx, const char *handler, const char *key,
                                  const char *payload, size_t size, int *ret_first,
                                  outbox_error *err);
OUTBOX_API int outbox_handle_once_sqlite(outbox *ob, struct sqlite3 *db, const char *handler,
                                         const char *key, const char *payload, size_t size,
                                         int *ret_first, outbox_error *err);
OUTBOX_API int outbox_handle_once_pg(outbox *ob, struct pg_conn *db, const char *handler,
                                     const char *key, const char *payload, size_t size,
                                     int *ret_first, outbox_error *err);
OUTBOX_API int outbox_handle_once_mariadb(outbox *ob, struct st_mysql *db, const char *handler,
                                          const char *key, const char *payload, size_t size,
                                          int *ret_first, outbox_error *err);

/*
** CAPI: Running
**
** outbox_set sets an option of the handle. Call it before outbox_run.
**
**   drain-deadline   (30s)   how long outbox_stop waits for deliveries in flight
**   sweep            (30s)   how often to look for work without a wake-up
**   retention        (168h)  how long an event is kept after its last consumer received it, checked
**                            at least once a minute while outbox_run is running; 0s: forever
**   inbox-retention  (720h)  how long the inbox keeps its records
**   connections      (4)     how many connections to a PostgreSQL server the consumers share
**   memory           (64MiB) how much memory the consumers share for the events they hold
**
** outbox_run delivers until outbox_stop. Each consumer, independent named handler and worker has a
** thread; the calling thread waits. On SQLite each thread has its own connections; on PostgreSQL
** they share "connections", and the transactions of named handlers have their own. A consumer that
** cannot continue (its sink is misconfigured, or it was removed) stops without stopping the others.
** Returns 0 after an orderly stop; -1 if a consumer could not be started (then none was started),
** or had to stop. With OUTBOX_UNTIL_THROUGH in flags it returns 0 as soon as every consumer has
** delivered or buried all events there are; it does not wait for events whose not_before is in the
** future, nor for paused consumers.
**
** outbox_stop makes outbox_run return once the deliveries in flight have ended, or at the drain
** deadline; those that have not ended by then are repeated later. It always waits for a handler to
** return, however long that takes. It may be called from any thread and from a signal handler. If
** it is called before outbox_run, that run ends at once.
**
** outbox_step delivers synchronously in the calling thread: every consumer of this handle delivers
** what is due now, including what handlers emit meanwhile. It does not wait for anything to become
** due, but it does wait for sinks outside the process. *ret_delivered (may be NULL) counts
** successes and is always set. A failed delivery is recorded as in outbox_run and makes outbox_step
** return -1 with the text of the error, after the other events have been delivered. Do not call it
** while outbox_run is running, nor from a handler.
**
** With OUTBOX_EAGER=1 in the environment, outbox_emit and outbox_commit call outbox_step
** themselves, on a handle that has consumers and is not running them: for development and tests. If
** a delivery fails they return -1 with OUTBOX_UNDELIVERED, although the transaction is committed.
** Events emitted by outbox_emit_sqlite, outbox_emit_pg and outbox_emit_mariadb need a call to
** outbox_step after the caller's COMMIT.
**
** outbox_wake makes running consumers look for work now. It is needed only after commits that the
** store cannot notice: those to sqlite::memory: through a connection other than the handle's own.
*/
#define OUTBOX_UNTIL_THROUGH 1

OUTBOX_API int outbox_set(outbox *ob, const char *option, const char *value, outbox_error *err);
OUTBOX_API int outbox_run(outbox *ob, int flags, outbox_error *err);
OUTBOX_API void outbox_stop(outbox *ob);
OUTBOX_API int outbox_step(outbox *ob, size_t *ret_delivered, outbox_error *err);
OUTBOX_API void outbox_wake(outbox *ob);

/*
** CAPI: Counting
**
** outbox_consumer_stats counts what a consumer of this handle, with all its handlers and workers,
** has done since outbox_run or outbox_step first ran it: deliveries, failures that will be retried,
** new dead letters, claims lost to another worker, and calls abandoned at their time limit. While
** the consumer runs, the numbers are a fraction of a second old. Any thread.
*/
typedef struct outbox_stats {
    size_t size; /* sizeof(outbox_stats): set by OUTBOX_STATS_INIT */
    int64_t delivered;
    int64_t retried;
    int64_t buried;
    int64_t lost;
    int64_t given_up;
} outbox_stats;

#define OUTBOX_STATS_INIT \
    { \
        sizeof(outbox_stats), 0, 0, 0, 0, 0 \
    }

OUTBOX_API int outbox_consumer_stats(outbox_consumer *c, outbox_stats *ret, outbox_error *err);

/*
** CAPI: High-water marks
**
** outbox_hwm returns the last id that any consumer of this outbox has written to a stream and
** recorded, such as "1748100000000-0". Everything in the stream up to that id was committed before,
** so rows read afterwards include it. OUTBOX_NOTFOUND: nothing was written. For an exact mark, read
** it in one transaction with your rows: `SELECT outbox.hwm('orders')` in PostgreSQL, the table
** outbox_mark in SQLite. Any thread.
*/
#define OUTBOX_HWM_SIZE 48

OUTBOX_API int outbox_hwm(outbox *ob, const char *stream, char ret[OUTBOX_HWM_SIZE],
                          outbox_error *err);

/*
** CAPI: Claiming events, to deliver them yourself
**
** Instead of calling outbox_run, a program may claim events, deliver them in any way, and settle
** the claim. This works on every store; docs/c.md has an example.
**
** outbox_consumer_register creates a consumer in the database, or updates its settings, as
** outbox_run does when it starts, and runs nothing: any process can then claim events for it. If it
** has neither a sink nor handlers, outbox_run and outbox_step ignore it. Each independent named
** handler is registered as a consumer, "orders.stock". The call fails with OUTBOX_CONFLICT if these
** settings have been replaced by others.
**
** outbox_claim_batch leases up to `limit` events to `worker`: events of the consumer `target`, or,
** if that is NULL, of all consumers that are not paused and that this connection may claim for
** (outbox_batch_consumer tells which). The consumer's filter has been applied. While the lease
** lasts no other worker receives these events. The lease is durable when the call returns, so
** between outbox_begin and outbox_commit it fails with OUTBOX_MISUSE. On success the caller owns
** *ret and releases it with outbox_batch_free, even if it is empty: then there is nothing to do
** now, and outbox_batch_wait returns when to try again at the latest. OUTBOX_NOTFOUND: no consumer
** has that name. Without a target, a failure to claim for one consumer is an error only if no other
** has events.
**
** outbox_batch_next returns the events one by one, and NULL after the last. An event lives until
** outbox_batch_free, and so do its strings. If an order is kept, events that must wait are left
** out: those of a key (order = key), or of the whole consumer (order = global), after an event with
** a verdict other than OUTBOX_DONE or OUTBOX_REJECT. A caller that delivers several at once may
** fetch them all first, and then has to keep the order itself. An event whose worker vanished is
** alone in its batch.
**
** outbox_batch_verdict reports the outcome of a delivery. Nothing is written until the batch is
** settled, and the last verdict counts. At most 255 bytes of why are copied. An event without a
** verdict counts as not tried: it is released, due at once.
**   OUTBOX_DONE      delivered; delay_ms and why are ignored
**   OUTBOX_RETRY     failed: retried as the consumer's retry policy says, but not before delay_ms
**                    (at most a year), or a dead letter once its attempts are used up
**   OUTBOX_REJECT    becomes a dead letter now
**   OUTBOX_DOWN      not the event's fault: released as if it had not been tried
**   OUTBOX_NOT_MINE  left to a worker that knows this kind of event: due again after a while,
**                    without counting an attempt
**
** outbox_batch_settle records all verdicts, in one transaction for each consumer, and ends the
** claim. Between outbox_begin and outbox_commit, in the same thread, it is part of that
** transaction: changes made through outbox_sqlite, outbox_pg or outbox_mariadb commit with it, or
** not at all. OUTBOX_LOST: the lease has expired and another worker holds the events. Their
** verdicts were not recorded (in a transaction: roll it back); those of other consumers were. After
** any other failure it may be called again: nothing is recorded twice, though a claim may be
** reported as lost if only the answer to the first call was lost.
**
** outbox_batch_extend renews the lease for lease_ms from now; call it in time if a delivery takes
** long. OUTBOX_LOST: as above; stop delivering. Between outbox_begin and outbox_commit it fails
** with OUTBOX_MISUSE.
**
** outbox_batch_free frees the batch in memory, settled or not; it does nothing if b is NULL. A
** claim that was not settled expires, and its events are claimed again, one at a time, with an
** attempt counted. Free all batches before outbox_close.
**
** Only one thread at a time may use a batch. Several threads may claim through one handle, each
** under its own worker name; their calls are serialised, and wait while one of them is between
** outbox_begin and outbox_commit.
*/
typedef struct outbox_batch outbox_batch;

typedef struct outbox_claim {
    size_t size; /* sizeof(outbox_claim): set by OUTBOX_CLAIM_INIT */
    /* who claims, 1 to 255 bytes: a different name for each thread and each start */
    const char *worker;
    size_t limit;       /* events at most, 1 to 100000; 0: 100 */
    const char *target; /* a consumer; NULL: all */
    int64_t lease_ms;   /* 1 to 86400000; 0: 30000 */
} outbox_claim;

#define OUTBOX_CLAIM_INIT \
    { \
        sizeof(outbox_claim), 0, 0, 0, 0 \
    }

OUTBOX_API int outbox_consumer_register(outbox_consumer *c, outbox_error *err);
OUTBOX_API int outbox_claim_batch(outbox *ob, const outbox_claim *claim, outbox_batch **ret,
                                  outbox_error *err);
OUTBOX_API size_t outbox_batch_count(const outbox_batch *b); /* total number of events */
/* ms until an event falls due; -1: unknown */
OUTBOX_API int64_t outbox_batch_wait(const outbox_batch *b);
OUTBOX_API const outbox_event *outbox_batch_next(outbox_batch *b);
OUTBOX_API const char *outbox_batch_consumer(const outbox_batch *b,
                                             const outbox_event *ev); /* NULL: not in this batch */
OUTBOX_API int outbox_batch_verdict(outbox_batch *b, const outbox_event *ev, outbox_verdict verdict,
                                    int64_t delay_ms, const char *why, outbox_error *err);
OUTBOX_API int outbox_batch_extend(outbox_batch *b, int64_t lease_ms, outbox_error *err);
OUTBOX_API int outbox_batch_settle(outbox_batch *b, outbox_error *err);
OUTBOX_API void outbox_batch_free(outbox_batch *b);

/*
** CAPI: Reading a stream
**
** outbox_consume reads a Redis stream that a relay writes: it joins a consumer group and calls the
** handler for each event, in the order of the stream, until outbox_stop, or with
** OUTBOX_UNTIL_THROUGH until nothing is left. The handle is for the reader's own database, which
** has the outbox's tables.
**
** The handler runs inside a transaction on the handle's own connection (outbox_sqlite, outbox_pg,
** outbox_mariadb), which begins with a record that `group` has handled the event's id. If it
** returns 0, both are committed and the entry is acknowledged. Otherwise the transaction is rolled
** back, and the event is retried after a while, before the events that follow it. An event that was
** handled before is acknowledged without a call. So changes made through that connection take
** effect exactly once, even if a process is killed. The handler may also call outbox_emit.
**
** Entries that another member of the group has not acknowledged for claim_ms are taken over.
** Several members can share the work of a group, but then the order is not kept. While Redis is
** down, the call waits. Returns -1 if it cannot continue: the URL is wrong, or the library was
** built without Redis (OUTBOX_CONFIG). Only one call at a time per handle, and not while outbox_run
** is running.
*/
typedef struct outbox_stream {
    size_t size; /* sizeof(outbox_stream): set by OUTBOX_STREAM_INIT */
    /* redis://HOST:PORT/DB?stream=NAME, or several names, comma-separated; see docs/brokers.md */
    const char *url;
    /* the consumer group, and the name under which events are remembered as handled */
    const char *group;
    const char *name; /* of this member, the same after a restart; NULL: the host's name */
    /* where a new group starts: NULL: the beginning; "$": the end; otherwise after this id */
    const char *from;
    int64_t claim_ms; /* 0: 60000 */
    int flags;        /* OUTBOX_UNTIL_THROUGH */
    int (*handler)(outbox *ob, const outbox_event *ev, void *ctx);
    void *ctx;
} outbox_stream;

#define OUTBOX_STREAM_INIT \
    { \
        sizeof(outbox_stream), 0, 0, 0, 0, 0, 0, 0, 0 \
    }

OUTBOX_API int outbox_consume(outbox *ob, const outbox_stream *stream, outbox_error *err);

#ifdef __cplusplus
}
#endif
#endif
