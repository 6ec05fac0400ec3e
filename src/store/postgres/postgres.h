/* postgres.h: shared by the files of the PostgreSQL store, and by no others. The protocol is in
 * sql/postgres; this is a thin, fast client of it.
 *
 *   url.c        parsing URLs
 *   connect.c    connecting and reconnecting, and whether the outbox there is usable
 *   open.c       handles, transactions, and the table of operations
 *   statement.c  sending statements and reading their rows
 *   result.c     waiting for results, and the values and events in them
 *   fail.c       what PostgreSQL's errors mean
 *   migrate.c    creating and upgrading tables, in numbered steps
 *   install.c    installing functions and views
 *   validate.c   comparing the outbox with the one that this program would create
 *   doctor.c     checking the server and the outbox for known problems
 *   emit.c       inserting events and inbox rows
 *   turn.c       settling and claiming
 *   turn_many.c  the same for simple turns, of one consumer or of several
 *   request.c    the request of a turn, as a parameter (turn.h is the header of all three)
 *   waiting.c    which events of a claim have to wait
 *   read.c       reading the events of a claim
 *   ahead.c      reading events before they are claimed
 *   wakeup.c     learning of commits; polling for new events
 *   effects.c    transactions that the application's handlers take part in
 *   consumers.c  registering, listing and measuring consumers
 *   inspect.c    the outbox as a whole, dead letters and marks
 *   events.c     listing events; event_states.c: their states
 *   admin.c      grants, adopted tables, trimming
 *
 * A handle and its connections belong to one thread at a time. Functions return 0, or -1 with *err
 * filled in, unless their comment says otherwise; those of struct store_ops keep the contract in
 * store/store.h. */
#ifndef STORE_POSTGRES_POSTGRES_H
#define STORE_POSTGRES_POSTGRES_H

#include <libpq-fe.h>
#include <stdarg.h>

#include "base/rng.h"
#include "store/store.h"

#define PG_SCHEMA_VERSION 1
#define PG_SCHEMA "outbox" /* unless the URL names another */
#define PG_STATEMENTS_MAX 64

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

/* Events that were read. */
struct pg_chunk {
    struct event *ev;
    size_t n, cap;
    size_t scanned, bytes;
    size_t passed_bytes; /* of payloads that the filter rejected */
    int64_t last;        /* seq of the last row read */
    bool cut;            /* more rows follow */
};

/* A chunk is full if it has reached one of these. */
struct pg_chunk_limits {
    size_t bytes, events, scanned, passed_bytes;
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
    char *conninfo;    /* for libpq: the URL without our own parameters */
    char *shown;       /* for messages: no password */
    char *schema;      /* its name */
    char *quoted;      /* its name as an identifier */
    char *literal;     /* the quoted identifier inside a literal, without the outer quotes */
    char *tenant;      /* NULL: the platform */
    char *answer;      /* answer_timeout as written in the URL; NULL: the default */
    int64_t answer_ms; /* 0: no limit */

    /* The connections (connect.c, statement.c, result.c). */
    PGconn *db;                    /* PG_MAIN */
    PGconn *reader;                /* PG_READER */
    unsigned generation[PG_LINKS]; /* grows with each connection */
    bool pooled;       /* connected through a pooler: session state cannot be relied on */
    bool worked;       /* an outbox was seen: if it is missing now, a restore may be under way */
    unsigned brief_at; /* the generation that pg_be_brief was set on */
    bool stale;        /* prepared statements of this connection are outdated: reconnect */
    bool patient;      /* the statement may take long: no answer timeout */
    bool silent;       /* a connection was dropped because nothing arrived for answer_ms */
    char state[6];     /* SQLSTATE of the last error */
    struct pg_cached cached[PG_STATEMENTS_MAX];
    size_t n_cached;

    /* The transaction (open.c, effects.c). */
    bool in_tx;
    bool tx_shared;  /* the application's statements run in it too */
    char *path_was;  /* its search_path, while a statement of ours uses another */
    bool exposed;    /* to handlers: see pg_expose */
    int64_t idle_ms; /* how long a transaction may idle, if exposed */

    /* Emitting (emit.c). */
    struct uuid7 uuid;
    struct rng rng;
    bool given_ids;   /* this role is limited to a tenant, and may not choose event ids */
    char *foreign[3]; /* statements for the application's connections */

    struct pg_wakeup wakeup;

    /* Claiming and reading (turn.c, read.c, ahead.c). */
    struct turn_cache cache; /* for requests without one */
    struct pg_ahead ahead;
    size_t row_bytes; /* moving average of the size of an event */
};

static inline struct pg_store *pg_of(struct store *st)
{
    return (struct pg_store *)st;
}

/* ---- url.c ---- */

/* pg_url_read parses a URL into conninfo, shown, schema, quoted, literal, tenant and answer_ms.
 * st->schema must be set, and is kept if the URL names none. ERR_CONFIG: the URL is invalid, also
 * by libpq's checks; the message never quotes a password. Does not connect. */
int pg_url_read(struct pg_store *st, const char *url, struct error *err);

/* ---- connect.c ---- */

/* pg_ready connects if there is no connection, or if the last one broke or became stale.
 * ERR_UNAVAILABLE: no connection, or the open transaction was lost with it. Others as pg_check. */
int pg_ready(struct pg_store *st, struct error *err);
/* pg_reader_ready does the same for the connection that reads ahead, which must lead to the same
 * server as the main one. pg_reader_close closes it. */
int pg_reader_ready(struct pg_store *st, struct error *err);
void pg_reader_close(struct pg_store *st);
/* pg_be_brief tells the session that others wait for it, so that it does not wait long for a
 * consumer locked by another session. */
int pg_be_brief(struct pg_store *st, struct error *err);
/* pg_check checks that the outbox is usable, and repairs it after a restore. ERR_NOTOURS: no
 * outbox, or one of an older version; ERR_NEWER; ERR_CONFIG: the tenant does not fit the role. */
int pg_check(struct pg_store *st, struct error *err);

/* ---- open.c ---- */

/* pg_new creates a handle without connecting. `schema` is used if the URL names none. Returns NULL
 * on failure; pg_close frees the handle. */
struct pg_store *pg_new(const char *url, const char *schema, const struct store_options *opt,
                        struct error *err);
void pg_close(struct store *st);
/* pg_begin opens a transaction for our own statements only; pg_begin_shared, one that the
 * application uses too. ERR_MISUSE: one is open already. */
int pg_begin(struct store *st, struct error *err);
int pg_begin_shared(struct store *st, struct error *err);
/* pg_commit rolls back and fails with ERR_MISUSE if a statement of the transaction failed. */
int pg_commit(struct store *st, struct error *err);
void pg_rollback(struct store *st);

/* ---- statement.c ---- */

/* pg_query runs a statement on the main connection and returns its rows, as text; NULL on failure.
 * `sql` must be a constant: it is cached by its address. fmt has a letter for each parameter, at
 * most 32: s const char * (may be NULL), t struct str (p == NULL is SQL's NULL), i int64_t, b int
 * (boolean). */
PGresult *pg_query(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...);
/* pg_query_on runs an expanded text on the caller's connection, and leaves nothing behind on it. */
PGresult *pg_query_on(struct pg_store *st, PGconn *db, struct error *err, const char *text,
                      const char *fmt, ...);
/* pg_query_number is pg_query for the first value of the first row: an integer, or a boolean as 0
 * or 1. No row, or NULL, is 0. */
int pg_query_number(struct pg_store *st, struct error *err, int64_t *ret, const char *sql,
                    const char *fmt, ...);
/* pg_exec is pg_query without rows. *ret_n (ret_n may be NULL) is how many rows it changed. */
int pg_exec(struct pg_store *st, struct error *err, int64_t *ret_n, const char *sql,
            const char *fmt, ...);
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

/* pg_expand replaces the marks @schema@ and @version@ in a text. The caller frees the copy. NULL:
 * out of memory. */
char *pg_expand(const struct pg_store *st, const char *sql);

/* pg_ask sends one or more commands without parameters on any of our connections, and returns the
 * last result, even an error; NULL: there was none. pg_command checks that it succeeded. pg_simple
 * is pg_command on the main connection; pg_script is pg_simple for a text that still has marks. */
PGresult *pg_ask(struct pg_store *st, PGconn *db, const char *text);
int pg_command(struct pg_store *st, PGconn *db, const char *text, struct error *err);
int pg_simple(struct pg_store *st, const char *text, struct error *err);
int pg_script(struct pg_store *st, const char *sql, struct error *err);

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

/* ---- fail.c ---- */

/* pg_fail converts the error of a result (r may be NULL) or of the connection into ours. Returns
 * -1. */
int pg_fail(struct pg_store *st, PGconn *db, const PGresult *r, struct error *err);

/* ---- migrate.c ---- */

/* pg_init creates or upgrades an outbox. *ret_created: something was changed. */
int pg_init(struct store *st, bool *ret_created, struct error *err);
/* pg_version reads the version of the outbox; 0: no outbox exists. ERR_NEWER: this program does not
 * know it. ERR_NOTOURS: the schema has a table event that is not ours. */
int pg_version(struct pg_store *st, int64_t *ret, struct error *err);
/* pg_foreign_creators queries which other roles may create functions in the schema. No row: the
 * schema does not exist. A row with NULL: no other role may. */
PGresult *pg_foreign_creators(struct pg_store *st, struct error *err);
/* pg_install creates tables, functions and views newer than version `from`, inside the open
 * transaction. */
int pg_install(struct pg_store *st, int64_t from, struct error *err);
int pg_schema_status(struct store *st, struct schema_status *ret, struct error *err);
int pg_ddl(const struct ddl_request *req, struct error *err);

/* ---- install.c ---- */

/* pg_functions_install installs functions and views, inside the open transaction. pg_functions_ddl
 * appends the SQL that does so, with its marks. */
int pg_functions_install(struct pg_store *st, struct error *err);
void pg_functions_ddl(struct buf *to);
/* pg_functions_status compares the installed functions and views with this program's. */
int pg_functions_status(struct pg_store *st, enum functions_status *ret, struct error *err);

/* ---- validate.c, doctor.c ---- */

int pg_validate(struct store *st, finding_visit *visit, void *ctx, struct error *err);
int pg_doctor(struct store *st, const struct doctor_request *req, struct error *err);

/* ---- emit.c ---- */

/* pg_emit_texts builds the statements for the application's connections. They are built once and
 * only read afterwards, so that several threads may emit. */
int pg_emit_texts(struct pg_store *st, struct error *err);
int pg_emit(struct store *st, void *foreign, const struct new_event *ev, char ret_id[UUID_TEXT + 1],
            bool *ret_duplicate, struct error *err);
int pg_handle_once(struct store *st, void *foreign, struct str handler, struct str key,
                   struct str payload, bool *ret_first, struct error *err);

/* ---- turn.c ---- */

int pg_settle(struct store *st, const struct settlement *s, bool *ret_lost, struct error *err);
int pg_turn(struct store *st, const struct settlement *s, bool *ret_lost,
            const struct claim_request *req, struct arena *a, struct batch *ret_batch,
            struct claim_hint *ret_hint, struct error *err);
int pg_extend(struct store *st, const struct claim_lease *l, bool *ret_lost, struct error *err);
int pg_claims(struct store *st, const char *consumer, struct arena *a, struct claim_info **ret,
              size_t *ret_n, struct error *err);

/* ---- turn_many.c ---- */

int pg_turn_many(struct store *st, struct batched_turn *t, size_t n, struct error *err);

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

/* pg_read_all sends the query for all events of a window, for any consumer; pg_next_row returns
 * them. */
int pg_read_all(struct pg_store *st, const struct pg_window *w, size_t max, struct error *err);

/* pg_read_window and pg_read_parked read the events of a claim into the arena, up to max_bytes. */
int pg_read_window(struct pg_store *st, const struct claim_request *req, int64_t members,
                   const struct pg_window *w, size_t max, struct arena *a, struct pg_chunk *ret,
                   struct error *err);
int pg_read_parked(struct pg_store *st, const struct claim_request *req, int64_t epoch,
                   struct arena *a, struct pg_chunk *ret, struct error *err);
/* Parked events in the result of a turn: their seqs, and the history of each. Both are arrays, as
 * text. */
struct pg_listed {
    const char *seqs, *past;
};
/* pg_read_listed reads such events. Trimmed events are left out. */
int pg_read_listed(struct pg_store *st, const struct claim_request *req,
                   const struct pg_listed *listed, struct arena *a, struct pg_chunk *ret,
                   struct error *err);
/* pg_window_send requests the events of a window, at most max of them. `members` are the lanes, bit
 * n for lane n; pg_all_lanes returns whether that is all of them. */
int pg_window_send(struct pg_store *st, enum pg_link link, const struct claim_request *req,
                   int64_t members, const struct pg_window *w, size_t max, struct error *err);
bool pg_all_lanes(int64_t members, int lanes);
/* pg_read_chunk adds requested rows to a chunk. 1: the chunk is full, and the rest can be read
 * later; 0: the end; -1: it failed. pg_note_size updates the moving average of the size of an
 * event. */
int pg_read_chunk(struct pg_store *st, enum pg_link link, const struct filter *f,
                  const struct pg_chunk_limits *max, struct arena *a, struct pg_chunk *c,
                  struct error *err);
bool pg_chunk_full(const struct pg_chunk *c, const struct pg_chunk_limits *max);
/* pg_chunk_add adds the event of a row. */
int pg_chunk_add(struct pg_chunk *c, const PGresult *r, int row, struct arena *a,
                 struct error *err);
void pg_note_size(struct pg_store *st, const struct pg_chunk *c);

/* ---- ahead.c ---- */

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

void pg_wakeup_init(struct pg_wakeup *w);
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

int pg_wake_fd(struct store *st);
void pg_wake_clear(struct store *st);
int pg_poll_new(struct store *st, bool skip_query, bool payloads, new_event_visit *visit, void *ctx,
                struct watch_result *ret, struct error *err);

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

/* ---- effects.c ---- */

/* pg_expose permanently resets our session settings for the statements of handlers, and stops the
 * use of prepared statements. */
int pg_expose(struct store *st, int64_t idle_ms, struct error *err);
/* pg_expose_settings does so on a new connection. pg_renew resets a session to the state of a new
 * one.
 */
int pg_expose_settings(struct pg_store *st, struct error *err);
int pg_renew(struct pg_store *st, struct error *err);
/* pg_speak_utf8 resets the encoding after a handler changed it on an exposed connection. */
int pg_speak_utf8(struct pg_store *st, struct error *err);
int pg_savepoint(struct store *st, enum savepoint what, struct error *err);
enum tx_state pg_tx_state(struct store *st);
int pg_handled(struct store *st, const struct inbox_key *k, size_t n, bool *ret, struct error *err);
int pg_handled_put(struct store *st, const struct inbox_key *k, const bool *skip, size_t n,
                   bool *ret_all, struct error *err);

/* ---- consumers.c ---- */

int pg_consumer_put(struct store *st, const struct consumer_spec *spec, bool *ret_created,
                    struct error *err);
int pg_consumer_specs(struct store *, const char *name, struct arena *, struct consumer_spec **ret,
                      size_t *ret_n, struct error *);
/* pg_consumer_all_specs lists the settings of all consumers, or of the named one, by name,
 * regardless of the right to claim for them. */
int pg_consumer_all_specs(struct pg_store *st, const char *name, struct arena *a,
                          struct consumer_spec **ret, size_t *ret_n, struct error *err);
int pg_consumer_history(struct store *st, const char *name, struct arena *a,
                        struct consumer_settings **ret, size_t *ret_n, struct error *err);
int pg_consumer_list(struct store *st, const char *name, struct arena *a,
                     struct consumer_info **ret, size_t *ret_n, struct error *err);
int pg_consumer_pause(struct store *st, const char *name, bool paused, struct error *err);
int pg_consumer_remove(struct store *st, const char *name, bool force, struct error *err);
int pg_consumer_report(struct store *st, const char *name, const char *text, struct error *err);
int pg_consumer_gauge(struct store *st, const char *name, struct arena *a,
                      struct consumer_gauge *ret, struct error *err);

/* ---- inspect.c, events.c ---- */

int pg_info(struct store *st, struct store_info *ret, struct error *err);
int pg_events(struct store *st, const struct event_query *q, event_visit *visit, void *ctx,
              struct error *err);
int pg_dead(struct store *st, const struct dead_query *q, dead_visit *visit, void *ctx,
            struct error *err);
int pg_dead_retry(struct store *st, const struct dead_query *q, int64_t *ret_n, struct error *err);
int pg_retry_now(struct store *st, const char *consumer, int64_t seq, bool *ret_waited,
                 struct error *err);
int pg_dead_drop(struct store *st, const struct dead_query *q, int64_t *ret_n, struct error *err);
int pg_marks(struct store *st, const char *stream, mark_visit *visit, void *ctx, struct error *err);

/* ---- admin.c ---- */

int pg_trim(struct store *st, const struct trim_request *req, struct trim_result *ret,
            struct error *err);
int pg_grant(struct store *st, const struct grant_request *req, bool *ret_changed,
             struct error *err);
int pg_adopt(struct store *st, const struct adopt_request *req, struct adopt_result *ret,
             struct error *err);

#endif
