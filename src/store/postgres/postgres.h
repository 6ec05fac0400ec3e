/* postgres.h: shared by the files of the PostgreSQL store, and by no others. The protocol is in
 * sql/postgres; this is a thin, fast client of it.
 *
 *   connections  url.c, connect.c, open.c (handles, transactions, the table of operations)
 *   statements   statement.c, result.c (waiting for results; values and events in them), fail.c
 *   the schema   migrate.c (tables, in numbered steps), install.c (functions and views), validate.c
 *   producers    emit.c
 *   workers      turn.c, simple_turns.c (simple turns), request.c, waiting.c, read.c, wakeup.c
 *   operators    consumers.c, events.c, admin.c, doctor.c
 *
 * A handle and its connections belong to one thread at a time. Functions return 0, or -1 with *err
 * filled in, unless their comment says otherwise; those of struct store_ops keep the contract in
 * store/store.h. */
#ifndef STORE_POSTGRES_POSTGRES_H
#define STORE_POSTGRES_POSTGRES_H

#include <libpq-fe.h>
#include <stdarg.h>

#include "base/buf.h"
#include "base/rng.h"
#include "store/store.h"

#define PG_SCHEMA_VERSION 1
#define PG_SCHEMA "outbox" /* unless the URL names another */
#define PG_STATEMENTS_MAX 64
#define PG_FOREIGN 4

/* The search_path of our own statements: names without a schema are the server's own. */
#define PG_PATH "pg_catalog, pg_temp"

/* Begins a statement in which every name is schema-qualified, so that it needs no search_path
 * (statement.c). A function whose body contains the mark gets none (install.c). */
#define PG_NAMED_MARK "-- Every name is schema-qualified"
#define PG_NAMED PG_NAMED_MARK ".\n"

/* Our two connections. The second exists during a backlog: it reads ahead while the first one
 * settles and claims. */
enum pg_link { PG_MAIN, PG_READER, PG_LINKS };

/* A window is a set of events: those committed between two snapshots (as text), with a seq in
 * (from, to]. None has a seq past `end`. */
struct pg_window {
    const char *seen, *target;
    int64_t floor, from, to, end;
};

/* Events that were read. cut: more rows follow. */
struct pg_chunk {
    struct event *ev;
    size_t n, cap;
    size_t scanned, bytes;
    size_t passed_bytes; /* of payloads that the filter rejected */
    int64_t last;        /* seq of the last row read */
    bool cut;
};

/* Reading ahead: events that the next claims are likely to take. The server reads them during
 * deliveries and turns. Reading claims nothing. Events do not change, and the claim checks that the
 * lane's position is still the same. */
struct pg_ahead {
    bool on; /* the other fields are valid */
    char consumer[STORE_NAME_MAX + 1];
    const struct filter *filter;
    int lane;
    int64_t members; /* the lanes of the events, a bit for each */

    /* the window */
    char *seen, *target;
    int64_t floor, end;

    /* the stream that the server is sending, on the second connection */
    struct {
        bool open;
        int64_t to; /* it ends here, or at the last of the requested rows */
        size_t left;
        size_t claims; /* length of the next stream, in claims */
        int64_t sent_at;
    } stream;

    /* the chunk that is being read: events in (from, to]. The stream continues after it */
    struct arena a;
    struct pg_chunk c;
    int64_t from, to;

    /* taken for a claim that turned out to be of parked events; precedes the chunk */
    struct {
        bool there;
        struct arena a;
        struct pg_chunk c;
        int64_t from, to;
    } kept;
};

/* A statement and its text. It is prepared on a connection if both have the same generation. */
struct pg_cached {
    const char *sql; /* a constant, compared by address */
    char *text;      /* with the schema in it */
    unsigned generation[PG_LINKS];
};

/* Notifications that arrived. for_all: one of them was for every consumer, not for an event (see
 * _wakeup_notify_all). */
struct pg_notices {
    size_t n;
    bool for_all;
};

/* Private to wakeup.c. All zeros at the start, except readable_fd. */
struct pg_wakeup {
    enum { WAKEUP_AWAKE, WAKEUP_HOLDER, WAKEUP_LISTENER } state;
    bool possible;  /* producers of this database notify */
    bool listening; /* this connection listens */
    bool lock_lost; /* the connection broke while it held the lock: listeners were not notified */
    bool holder_moved;             /* a listener was notified: the holder may have woken up */
    int64_t found_at;              /* when events were last found, monotonic */
    int64_t backoff_ms;            /* wait while a producer is about to commit; 0: none */
    char foreign_lock_holder[200]; /* the unrelated session that holds the lock; "": none */

    struct pg_notices pending; /* arrived since wake_clear */
    struct pg_notices taken;   /* arrived before the last wake_clear */
    int readable_fd;           /* always readable; -1: not opened yet */

    /* For poll_new. */
    char *snapshot;       /* of the last poll; NULL: no poll yet */
    unsigned generation;  /* of the snapshot's connection; see pg_store */
    bool unchanged;       /* nothing was written between the last two polls */
    int64_t counted_from; /* since when notifications are counted together, monotonic */
    size_t counted;
};

/* (1) db is NULL before the first connection. (2) in_tx is true exactly between begin and commit or
 * rollback. (3) path_was is NULL except while a statement of ours runs in a shared transaction. (4)
 * ahead.on and ahead.stream.open are false while reader is NULL. */
struct pg_store {
    struct store base;
    struct store_options opt;

    /* From the URL (url.c). */
    char *url;
    char *conninfo;    /* for libpq: the URL without our own parameters */
    char *shown;       /* for messages: no password */
    char *schema;      /* its name */
    char *quoted;      /* its name as an identifier */
    char *literal;     /* the quoted identifier inside a literal, without the outer quotes */
    char *tenant;      /* NULL: the platform */
    int64_t answer_ms; /* 0: no limit */

    /* The connections (connect.c, statement.c, result.c). */
    PGconn *db;                    /* PG_MAIN */
    PGconn *reader;                /* PG_READER */
    unsigned generation[PG_LINKS]; /* grows with each connection */
    bool pooled;       /* connected through a pooler: session state cannot be relied on */
    bool worked;       /* an outbox was seen: if it is missing now, a restore may be under way */
    unsigned brief_at; /* the generation that was told to be brief, see turn.c */
    bool stale;        /* prepared statements of this connection are outdated: reconnect */
    bool patient;      /* the statement may take long: no answer timeout */
    bool silent;       /* a connection was dropped because nothing arrived for answer_ms */
    char state[6];     /* SQLSTATE of the last error */
    struct pg_cached cached[PG_STATEMENTS_MAX];
    size_t n_cached;

    /* The transaction (open.c, connect.c). */
    bool in_tx;
    bool tx_shared;  /* the application's statements run in it too */
    char *path_was;  /* its search_path, while a statement of ours uses another */
    bool exposed;    /* to handlers: see pg_expose_connection */
    int64_t idle_ms; /* how long a transaction may idle, if exposed */

    /* Emitting (emit.c). */
    struct uuid7 uuid;
    struct rng rng;
    bool given_ids;            /* this role is limited to a tenant, and may not choose event ids */
    char *foreign[PG_FOREIGN]; /* statements for the application's connections */

    struct pg_wakeup wakeup;

    /* Claiming and reading (turn.c, read.c). */
    struct turn_cache cache; /* for requests without one */
    struct pg_ahead ahead;
    size_t row_bytes; /* moving average of the size of an event */
};

static inline struct pg_store *pg_of(struct store *st)
{
    return (struct pg_store *)st;
}

/* clang-format off */
/* The operations, with the contracts of struct store_ops; open.c has the table. */
#define PG_OPERATIONS(OP) \
    OP(open) OP(close) OP(dup) OP(init) OP(schema_status) OP(validate) OP(ddl) OP(doctor) \
    OP(begin) OP(commit) OP(rollback) OP(emit) OP(handle_once) \
    OP(consumer_put) OP(consumer_list) OP(consumer_history) OP(consumer_gauge) \
    OP(consumer_specs) OP(consumer_pause) OP(consumer_remove) OP(consumer_report) \
    OP(turn) OP(turn_many) OP(extend) OP(claims) OP(wake_fd) OP(wake_clear) OP(poll_new) \
    OP(expose_connection) OP(savepoint) OP(tx_state) OP(settle) OP(handled) OP(handled_put) \
    OP(info) OP(events) OP(dead) OP(dead_retry) OP(dead_drop) OP(retry_now) OP(trim) OP(marks) \
    OP(grant) OP(adopt)
#define PG_DECLARE(op) extern __typeof__(*((struct store_ops *)NULL)->op) pg_##op;
PG_OPERATIONS(PG_DECLARE)
/* clang-format on */

/* ---- url.c ---- */

/* pg_url_read parses st->url into conninfo, shown, schema, quoted, literal, tenant and answer_ms.
 * st->schema must be set, and is kept if the URL names none. ERR_CONFIG: the URL is invalid,
 * perhaps only by libpq's checks; the message never quotes a password. Does not connect. */
int pg_url_read(struct pg_store *st, struct error *err);

/* ---- connect.c ---- */

/* pg_ready connects if there is no connection, or if the last one broke or became stale.
 * ERR_UNAVAILABLE: no connection, or the open transaction was lost with it. ERR_NOTOURS: no outbox,
 * or one of an older version; ERR_NEWER; ERR_CONFIG: the tenant does not fit the role. */
int pg_ready(struct pg_store *st, struct error *err);
/* pg_reader_ready does the same for the connection that reads ahead, which must lead to the same
 * server as the main one. pg_reader_close closes it. */
int pg_reader_ready(struct pg_store *st, struct error *err);
void pg_reader_close(struct pg_store *st);

/* ---- open.c ---- */

/* pg_new creates a handle without connecting. `schema` is used if the URL names none. Returns NULL
 * on failure; pg_close frees the handle. */
struct pg_store *pg_new(const char *url, const char *schema, const struct store_options *opt,
                        struct error *err);
/* pg_begin_own opens a transaction for our own statements only; pg_begin, one that the application
 * uses too. ERR_MISUSE: one is open already. pg_commit rolls back and fails with ERR_MISUSE if a
 * statement of the transaction failed. */
int pg_begin_own(struct store *st, struct error *err);

/* ---- statement.c ---- */

/* pg_query runs a statement on the main connection and returns its rows, as text; NULL on failure.
 * `sql` must be a constant: it is cached by its address. fmt has a letter for each parameter, at
 * most 32: s const char * (may be NULL), t struct str (p == NULL is SQL's NULL), i int64_t, o const
 * int64_t * (may be NULL), b int (boolean). */
PGresult *pg_query(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...);
/* pg_query_on is pg_query on the application's connection, where it leaves nothing behind; `sql` is
 * one of the statements of pg_emit_texts. db == NULL: on the main connection. */
PGresult *pg_query_on(struct pg_store *st, PGconn *db, struct error *err, const char *sql,
                      const char *fmt, ...);
/* pg_query_number is pg_query for the first value of the first row: an integer, or a boolean as 0
 * or 1. No row, or NULL, is 0. */
int pg_query_number(struct pg_store *st, struct error *err, int64_t *ret, const char *sql,
                    const char *fmt, ...);
/* pg_exec is pg_query without rows. */
int pg_exec(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...);
/* pg_start sends a statement as pg_query does; pg_finish waits for its rows, in binary form. The
 * caller can do other work in between. */
int pg_start(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...);
PGresult *pg_finish(struct pg_store *st, struct error *err);

/* pg_send starts a statement whose rows arrive one at a time, in binary form. pg_next_row returns 1
 * with a row, which the caller clears; 0 at the end; -1 on failure. pg_stop ends it early. */
int pg_send(struct pg_store *st, enum pg_link link, struct error *err, const char *sql,
            const char *fmt, ...);
int pg_next_row(struct pg_store *st, enum pg_link link, PGresult **ret, struct error *err);
void pg_stop(struct pg_store *st, enum pg_link link);

/* A mark in our SQL, and its replacement. */
struct pg_mark {
    const char *mark, *text;
};
/* pg_fill appends a text with its marks replaced: @schema@, @version@, and those in `more`, which
 * ends with a NULL; more == NULL: none. pg_expand returns such a text without more marks, which the
 * caller frees. NULL: out of memory. */
void pg_fill(struct buf *b, const struct pg_store *st, const char *sql, const struct pg_mark *more);
char *pg_expand(const struct pg_store *st, const char *sql);

/* pg_ask sends one or more commands without parameters on any of our connections, and returns the
 * last result, even an error; NULL: there was none. pg_checked returns a successful result; it
 * reports and clears a failed one, and returns NULL. pg_command is both. pg_simple is pg_command on
 * the main connection; pg_script is pg_simple for a text that still has marks. */
PGresult *pg_ask(struct pg_store *st, PGconn *db, const char *text);
PGresult *pg_checked(struct pg_store *st, PGconn *db, PGresult *r, struct error *err);
int pg_command(struct pg_store *st, PGconn *db, const char *text, struct error *err);
int pg_simple(struct pg_store *st, const char *text, struct error *err);
int pg_script(struct pg_store *st, const char *sql, const struct pg_mark *more, struct error *err);

/* ---- result.c ---- */

/* pg_result is PQgetResult with a timeout: if nothing arrives for answer_ms the connection is
 * dropped, and the result is an error. pg_last_result returns the last result and clears the
 * others. The caller clears the returned result. */
PGresult *pg_result(struct pg_store *st, PGconn *db);
PGresult *pg_last_result(struct pg_store *st, PGconn *db);
/* pg_next_result is pg_result without the end of a pipeline. pg_went_well returns whether a result
 * is rows or a successful command. */
PGresult *pg_next_result(struct pg_store *st, PGconn *db);
bool pg_went_well(const PGresult *r);
/* pg_clear_results discards results that a handler on an exposed connection did not read. */
void pg_clear_results(PGconn *db);

/* PG_MS is a timestamp in milliseconds; NULL if it is infinite. */
#define PG_MS(column) \
    "CASE WHEN isfinite(" column ") THEN floor(extract(epoch FROM " column ") * 1000)::bigint END"

/* A value of a row in text format. pg_copy copies it into an arena; it returns NULL for NULL, and
 * if memory runs out, when it clears *ok. */
int64_t pg_int(const PGresult *r, int row, int col);     /* 0 for NULL */
bool pg_true(const PGresult *r, int row, int col);       /* false for NULL */
const char *pg_str(const PGresult *r, int row, int col); /* NULL for NULL */
const char *pg_copy(const PGresult *r, int row, int col, struct arena *a, bool *ok);
/* pg_next_number reads the next number of an array as text, {n,n,...}, and advances. False: the
 * end. */
bool pg_next_number(const char **list, int64_t *ret);

/* ---- fail.c ---- */

/* pg_fail converts the error of a result (r may be NULL) or of the connection into ours. Returns
 * -1. */
int pg_fail(struct pg_store *st, PGconn *db, const PGresult *r, struct error *err);

/* ---- migrate.c ---- */

/* pg_version reads the version of the outbox; 0: no outbox exists. ERR_NEWER: this program does not
 * know it. ERR_NOTOURS: the schema has a table event that is not ours. */
int pg_version(struct pg_store *st, int64_t *ret, struct error *err);
/* pg_foreign_creators queries which other roles may create functions in the schema. No row: the
 * schema does not exist. A row with NULL: no other role may. */
PGresult *pg_foreign_creators(struct pg_store *st, struct error *err);
/* pg_install creates tables, functions and views newer than version `from`, inside the open
 * transaction. */
int pg_install(struct pg_store *st, int64_t from, struct error *err);

/* ---- install.c ---- */

/* pg_functions_install installs functions and views, inside the open transaction. pg_functions_ddl
 * appends the SQL that does so. */
int pg_functions_install(struct pg_store *st, struct error *err);
void pg_functions_ddl(const struct pg_store *st, struct buf *to);
/* pg_functions_status compares the installed functions and views with this program's. */
int pg_functions_status(struct pg_store *st, enum functions_status *ret, struct error *err);

/* ---- emit.c ---- */

/* pg_emit_texts builds the statements for the application's connections. They are built once and
 * only read afterwards, so that several threads may emit. pg_emit_text finds one. */
int pg_emit_texts(struct pg_store *st, struct error *err);
const char *pg_emit_text(const struct pg_store *st, const char *sql);

/* ---- turns ---- */

/* How the server takes turns: see sql/postgres/internal/turn.sql. PATH_ANY is _turn, for one turn;
 * the others are _turns. */
enum pg_path { PATH_ANY, PATH_SINGLE, PATH_BATCH };

/* One turn of a call. */
struct pg_request {
    const struct settlement *s;      /* NULL: settles nothing */
    const struct claim_request *req; /* NULL: claims nothing */
    size_t max_events;               /* at most that of req */
    int64_t passed_over; /* seq of a parked event to skip, instead of the outcomes of s; 0: none */
    const struct pg_window *ahead; /* where n_ahead events were read ahead; NULL: none were */
    size_t n_ahead;
};

/* The columns of the type _answer (sql/postgres/0001_outbox.sql), which follow those of an event if
 * the call returns events. The first is the place of the request in the call. `held` and `keys` are
 * as in pg_mark_waiting; of a claim of parked events they are the seqs, and the history of each. */
/* clang-format off */
#define PG_ANSWER(FLAG, NUMBER, TEXT) \
    FLAG(lost) FLAG(paused) FLAG(changed) FLAG(busy) FLAG(through) FLAG(skipped) \
    FLAG(suspect_due) NUMBER(crashed) NUMBER(buried) NUMBER(wait_ms) NUMBER(now_ms) \
    NUMBER(epoch) NUMBER(lane) NUMBER(n) FLAG(suspect) TEXT(held) TEXT(keys) TEXT(seen) \
    NUMBER(floor) TEXT(target) NUMBER(from_seq) NUMBER(to_seq) NUMBER(window_end) FLAG(quiet) \
    NUMBER(members)
#define PG_FLAG(column) bool column;
#define PG_NUMBER(column) int64_t column;
#define PG_TEXT(column) const char *column; /* belongs to the result */

/* The answer to one turn. If n == 0, there is no claim. */
struct pg_answer {
    size_t place;
    PG_ANSWER(PG_FLAG, PG_NUMBER, PG_TEXT)
    int row, rows;   /* its rows in the result */
    bool has_events; /* the events are in these rows */
};
/* clang-format on */

/* pg_request_add adds a turn to a call's list of requests, which is empty at first; the place of a
 * request is a number of the caller's. pg_turn_start ends the list and sends the call; pg_finish
 * waits for its result. pg_answer_at reads the answer in the rows from `row` on. */
void pg_request_add(struct buf *list, struct pg_store *st, size_t place,
                    const struct pg_request *q);
int pg_turn_start(struct pg_store *st, enum pg_path path, struct buf *list, struct error *err);
struct pg_answer pg_answer_at(const PGresult *r, int row);

/* pg_check_open connects, and refuses a turn inside a transaction, whether ours or begun by hand:
 * its claim would not be durable. */
int pg_check_open(struct pg_store *st, struct error *err);
/* pg_cache_of returns the turn cache of the consumer: the request's, or the handle's. */
struct turn_cache *pg_cache_of(struct pg_store *st, const struct claim_request *req);
/* pg_clock_repair_due returns whether clock repair is due, which examines all parked events. */
bool pg_clock_repair_due(struct pg_store *st, const struct claim_request *req);
/* pg_drop_claim settles a claim without wanted events, and empties *b. passed_over: see struct
 * pg_request. */
int pg_drop_claim(struct pg_store *st, const struct claim_request *req, struct batch *b,
                  int64_t passed_over, struct error *err);
/* pg_put_back releases a claim whose events could not be read, for example for lack of memory: no
 * worker has tried them, and an expired lease would count as an attempt. */
void pg_put_back(struct pg_store *st, const struct claim_request *req, struct batch *b);
/* pg_unread reports that the settlement was recorded and the claim could not be read. An error
 * would mean that nothing was done. */
void pg_unread(struct batch *b, struct claim_hint *hint);
/* pg_shrink ends a claim after `last`: later events did not fit into memory, and are claimed
 * again. */
int pg_shrink(struct pg_store *st, const struct claim_request *req, int64_t epoch, int64_t last,
              struct error *err);

/* ---- waiting.c ---- */

/* pg_key returns the server's hash of a key (_key), which orders events; 0: no key. */
int64_t pg_key(struct str aggregate_type, struct str aggregate_id);
/* pg_key_sample returns the hash of a sample key, which the server checks (_knows_keys). */
int64_t pg_key_sample(void);
/* pg_mark_waiting flags the events that may not be delivered now: those whose not_before is in the
 * future, and those that wait behind others. `held` lists some of the latter as {seq,seq,...}, in
 * any order; `keys` lists keys whose events all wait. Either may be NULL. */
int pg_mark_waiting(struct batch *b, const char *held, const char *keys, int64_t now,
                    struct error *err);

/* ---- read.c ---- */

/* pg_window_send requests the events of a window, at most max of them. `members` are the lanes, bit
 * n for lane n. req == NULL: for any consumer, all of them; pg_next_row returns them. */
int pg_window_send(struct pg_store *st, enum pg_link link, const struct claim_request *req,
                   int64_t members, const struct pg_window *w, size_t max, struct error *err);
/* pg_read_claim reads the events of a claim into the arena, up to max_bytes; w is its window. */
int pg_read_claim(struct pg_store *st, const struct claim_request *req, const struct pg_answer *an,
                  const struct pg_window *w, struct arena *a, struct pg_chunk *ret,
                  struct error *err);
/* pg_chunk_add adds the event of a row. pg_note_size updates the moving average of the size of an
 * event. */
int pg_chunk_add(struct pg_chunk *c, const PGresult *r, int row, struct arena *a,
                 struct error *err);
void pg_note_size(struct pg_store *st, const struct pg_chunk *c);

/* pg_ahead_start requests what follows w. pg_ahead_fill reads until the chunk is as large as a
 * claim may be. pg_ahead_take hands it over, by swapping the arenas, if the request can use it.
 * pg_ahead_keep takes it back for the next claim, if this one was of parked events. pg_ahead_forget
 * drops all of it. */
void pg_ahead_start(struct pg_store *st, const struct claim_request *req, const struct batch *b,
                    int64_t members, const struct pg_window *w);
void pg_ahead_fill(struct pg_store *st, const struct claim_request *req);
bool pg_ahead_take(struct pg_store *st, const struct claim_request *req, struct arena *a,
                   struct pg_chunk *ret, struct pg_window *ret_w);
void pg_ahead_keep(struct pg_store *st, struct arena *a, const struct pg_chunk *c,
                   const struct pg_window *w);
void pg_ahead_forget(struct pg_store *st);

/* ---- wakeup.c: learning of commits without polling and without making commits wait ----
 *
 * See sql/postgres/functions/wakeup.sql: a sleeping session holds an advisory lock, and producers
 * notify while it is held. Other sleeping sessions are the holder's listeners. None of this works
 * through a transaction pooler, nor where transactions are prepared for two-phase commit: there the
 * engine polls. */

void pg_wakeup_release(struct pg_wakeup *w);
/* pg_wakeup_disconnected notes that the main connection is gone, and its lock with it. */
void pg_wakeup_disconnected(struct pg_wakeup *w);

/* pg_wakeup_sleep is called when no event was found. *ret_again: poll once more before waiting.
 * Otherwise *poll_in_ms says how soon to poll in any case; 0: wait for a notification. It is left
 * unchanged where producers do not notify. */
int pg_wakeup_sleep(struct pg_store *st, bool *ret_again, int64_t *poll_in_ms, struct error *err);
/* pg_wakeup_found notes that n events were found; `all`: no other event is left. It releases the
 * lock, so that producers need not notify. If the events are few, it keeps the lock and sets
 * *ret_quiet: producers continue to notify. */
int pg_wakeup_found(struct pg_store *st, size_t n, bool all, bool *ret_quiet, struct error *err);
/* pg_wakeup_blocker is for claim_hint.wake_blocker. */
const char *pg_wakeup_blocker(const struct pg_store *st);

/* ---- events, in result.c ---- */

/* The columns that every reader of whole events selects, in pg_event_row's order. A reader that
 * delivers selects the event's key in the inbox (PG_EVENT_COLUMNS); one that shows events selects
 * their own key. */
#define PG_EVENT_COLUMNS PG_EVENT_FACTS("e") PG_INBOX_KEY("e") " AS idempotency_key"
#define PG_EVENT_SHOWN PG_EVENT_FACTS("e") "e.idempotency_key"
#define PG_DEAD_SHOWN PG_EVENT_FACTS("d") "d.idempotency_key"
#define PG_EVENT_COLUMN_COUNT 12
/* clang-format off */
#define PG_EVENT_FACTS(row) \
    row ".seq, " row ".id, " row ".type, " \
    row ".aggregate_type, " row ".aggregate_id, " row ".version, " \
    row ".payload, " row ".headers, " row ".tenant, " \
    row ".created_at, " row ".not_before, "
/* Two tenants may use the same key, and the platform's inbox handles both: there the event is
 * identified by its id. */
#define PG_INBOX_KEY(row) \
    "CASE WHEN " row ".tenant IS NULL " \
           "OR " row ".tenant OPERATOR(pg_catalog.=) " \
              "(SELECT @schema@._acting_for(current_user)) " \
         "THEN " row ".idempotency_key END"
/* clang-format on */

/* pg_event_row copies a binary row into *ev. False: out of memory. */
bool pg_event_row(const PGresult *r, int row, struct arena *a, struct event *ev);
int64_t pg_binary_int8(const PGresult *r, int row, int col); /* 0 for NULL */

/* ---- consumers.c ---- */

/* pg_consumer_all_specs lists the settings of all consumers, or of the named one, by name,
 * regardless of the right to claim for them. */
int pg_consumer_all_specs(struct pg_store *st, const char *name, struct arena *a,
                          struct consumer_spec **ret, size_t *ret_n, struct error *err);

#endif
