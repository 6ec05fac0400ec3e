/* postgres.h: the inside of the PostgreSQL store, shared by its files: connect.c (connecting, again
 * and again), statement.c (statements and errors), migrate.c (tables and functions), validate.c and
 * doctor.c (whether all is well), emit.c, turn.c (claims), rows.c (events out of results), bell.c
 * (the doorbell), consumers.c, inspect.c, trim.c. The protocol itself is in sql/postgres: this is a
 * thin, fast caller of it. */
#ifndef STORE_POSTGRES_POSTGRES_H
#define STORE_POSTGRES_POSTGRES_H

#include <libpq-fe.h>
#include <stdarg.h>

#include "base/rng.h"
#include "base/uuid7.h"
#include "store/pull.h"
#include "store/store.h"

#define PG_SCHEMA_VERSION 5
#define PG_SCHEMA "outbox" /* where the URL names no other */
#define PG_STATEMENTS_MAX 64

/* Where names are looked up that are written without their schema: nowhere but in the server's
 * own. */
#define PG_PATH "pg_catalog, pg_temp"

/* PG_STRANGERS_SQL: who may create something in schema $1 besides the owner of the outbox there, or
 * of the one to be made: what they make could be called in place of ours. No row: there is no such
 * schema; NULL: nobody. Superusers need no such way. */
#define PG_STRANGERS_SQL \
    "SELECT CASE WHEN EXISTS (SELECT 1 FROM pg_catalog.aclexplode(n.nspacl) x WHERE x.grantee = " \
    "0 AND x.privilege_type = " \
    "'CREATE') THEN 'everybody (PUBLIC)' ELSE (SELECT string_agg(quote_ident(r.rolname), ', ' " \
    "ORDER BY r.rolname) FROM (SELECT " \
    "y.rolname FROM pg_catalog.pg_roles y WHERE NOT y.rolsuper AND y.rolname !~ '^pg_' AND y.oid " \
    "<> o.owner AND " \
    "has_schema_privilege(y.oid, n.oid, 'CREATE') AND NOT pg_has_role(y.oid, o.owner, 'MEMBER') " \
    "ORDER BY 1 LIMIT 5) r) END " \
    "FROM pg_catalog.pg_namespace n, LATERAL (SELECT coalesce((SELECT c.relowner FROM " \
    "pg_catalog.pg_class c WHERE " \
    "c.relnamespace = n.oid AND c.relname = 'event' AND c.relkind IN ('r', 'p')), (SELECT u.oid " \
    "FROM pg_catalog.pg_roles u " \
    "WHERE u.rolname = current_user)) AS owner) o WHERE n.nspname = $1"
/* What the body of a function says, and a statement of ours begins with, that does without: see
 * install.c, statement.c. */
#define PG_NAMED_MARK "-- Every name has its schema"
#define PG_NAMED PG_NAMED_MARK ".\n"

/* Whether this connection sleeps: holding the lock that makes producers ring, or beside somebody
 * who does. */
enum bell_state { BELL_AWAKE, BELL_HOLDER, BELL_LISTENER };

/* Where events are: between two snapshots, as text, with a seq in (from, to]; none is past
 * `end`. */
struct pg_window {
    const char *seen, *target;
    int64_t floor, from, to, end;
};

/* Events that were read. */
struct pg_chunk {
    struct event *ev;
    size_t n, cap;
    size_t scanned, bytes;
    int64_t last; /* seq of the last row read */
    bool cut;     /* there were more */
};

/* What is being read ahead: events that the next claims are likely to take, so that the server
 * reads them while this side delivers and the turn is made. Nothing is claimed by that: events
 * don't change, and the claim checks that the lane stands where it did. One chunk may be ready, the
 * next on its way. */
struct pg_ahead {
    bool ready, sent;
    char consumer[STORE_NAME_MAX + 1];
    const struct filter *filter;
    int lane;
    char *seen, *target; /* the window */
    int64_t floor, end;
    int64_t from, to; /* on its way on the second connection */
    size_t asked;     /* rows, at most */
    struct arena a;   /* ready: */
    struct pg_chunk c;
    int64_t c_from, c_to;
    size_t c_asked;

    /* What was taken for a claim that then was of parked events, and comes before what is ready. */
    struct {
        bool there;
        struct arena a;
        struct pg_chunk c;
        int64_t from, to;
        size_t asked;
    } kept;
};

/* (1) db is NULL before the first connection. (2) in_tx is true exactly between begin and commit or
 *   rollback. (3) A
 * statement is prepared on the connection if its generation is that of the connection. (4) reader
 * is a second connection, made when there is a backlog: the server reads ahead there while the
 * first one settles and claims. */
struct pg_store {
    struct store base;
    PGconn *db;
    unsigned generation; /* grows with each connection */
    PGconn *reader;
    unsigned reader_generation;
    char *conninfo;    /* what libpq gets: the URL without what is ours */
    char *shown;       /* for messages: no password */
    char *schema;      /* as it is called */
    char *quoted;      /* as an identifier */
    char *literal;     /* the quoted identifier inside a literal, without the outer quotes */
    char *tenant;      /* NULL: the platform's */
    char *answer;      /* answer_timeout as the URL has it; NULL: ANSWER_MS counts */
    int64_t answer_ms; /* 0: for ever */
    bool patient;      /* at something that may take its time: no limit */
    unsigned unread;   /* claims in a row that could not be read, and were given back */
    bool silent;       /* a connection was given up because nothing came for so long */
    struct store_options opt;
    bool in_tx;
    bool tx_shared; /* the application's statements are in the transaction, too */
    char *path_was; /* its search_path, while a statement of ours has another; else NULL */
    bool given_ids; /* this role is held to a tenant, and does not choose the ids of its events */
    bool lent;      /* see effects.c */
    /* there was an outbox when we connected first: one that is away now may come back */
    bool worked;
    bool stale;      /* what is prepared on this connection is no good any more: make a new one */
    char state[6];   /* SQLSTATE of the last error */
    int64_t idle_ms; /* of a transaction, if lent */
    bool pooled;     /* another process stands between: nothing of a session can be relied on */
    struct uuid7 uuid;
    struct rng rng;
    struct {
        const char *sql; /* a literal, compared by address */
        char *text;      /* with the schema in it */
        unsigned generation, reader_generation;
    } cached[PG_STATEMENTS_MAX];
    size_t n_cached;
    char *foreign[3]; /* what goes through connections of others: see emit.c */

    enum bell_state bell;
    bool bell_works, listening;
    bool rang;          /* libpq has read a notification that nobody acted on yet */
    bool told;          /* one came while this was a listener */
    bool vacated;       /* the connection broke while it held the lock: who listens was not told */
    int rang_fd;        /* always readable; -1: not opened yet */
    int64_t found_at;   /* monotonic: when events were last found */
    char squatter[200]; /* who has a lock of the bell, and no business with it; "": nobody */
    int64_t nap_ms;     /* how long to wait while somebody is about to commit */
    struct pull pull;
    struct pg_ahead ahead;
    size_t row_bytes; /* what an event takes, on average of late */
};

static inline struct pg_store *pg_of(struct store *st)
{
    return (struct pg_store *)st;
}

/* ---- statement.c ---- */

/* pg_fail turns what a result or the connection says into our error; returns -1. r may be NULL. */
int pg_fail(struct pg_store *st, PGconn *db, const PGresult *r, struct error *err);
/* pg_result is PQgetResult, which would wait for ever, with a limit: where nothing comes for
 * answer_ms the connection is given up, and the result says so. pg_last_result gives the last one
 * of what was sent; the others are cleared. */
PGresult *pg_result(struct pg_store *st, PGconn *db);
PGresult *pg_last_result(struct pg_store *st, PGconn *db);
/* pg_clear_results takes away what a handler, to whom the connection was lent, sent and did not
 * read to its end. */
void pg_clear_results(PGconn *db);
/* pg_expand puts the schema into any text; the caller frees it. */
char *pg_expand(const struct pg_store *st, const char *sql);

/* pg_query runs the statement of a string literal on our connection and gives its rows; NULL on
 * failure. fmt has one letter per parameter: s const char * (NULL is fine), t struct str (p == NULL
 * is SQL NULL), i int64_t, b int (boolean). At most 32. Rows come as text. */
PGresult *pg_query(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...);
/* pg_query_on runs a text on a connection of the caller's, on which nothing is left behind. It
 * changes nothing in st. */
PGresult *pg_query_on(struct pg_store *st, PGconn *db, struct error *err, const char *text,
                      const char *fmt, ...);
/* pg_exec is pg_query without rows; ret_n (may be NULL) gets how many rows it changed. */
int pg_exec(struct pg_store *st, struct error *err, int64_t *ret_n, const char *sql,
            const char *fmt, ...);
/* pg_start sends a statement as pg_query does, pg_finish waits for its rows: something else can be
 * done between. */
int pg_start(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...);
PGresult *pg_finish(struct pg_store *st, struct error *err);
/* pg_simple runs commands without parameters, several at once if need be. */
int pg_simple(struct pg_store *st, const char *text, struct error *err);

/* pg_send starts a statement whose rows come one at a time in binary form, to be read with
 * pg_next_row, on our connection or on the one for reading ahead. pg_next_row: 1 a row (clear it),
 * 0 the end, -1 failed. pg_stop ends it early. */
enum pg_link { PG_MAIN, PG_READER };
int pg_send(struct pg_store *st, enum pg_link link, struct error *err, const char *sql,
            const char *fmt, ...);
int pg_next_row(struct pg_store *st, enum pg_link link, PGresult **ret, struct error *err);
void pg_stop(struct pg_store *st, enum pg_link link);

int64_t pg_int(const PGresult *r, int row, int col);     /* 0 for NULL */
bool pg_true(const PGresult *r, int row, int col);       /* false for NULL */
const char *pg_str(const PGresult *r, int row, int col); /* NULL for NULL */

/* ---- connect.c ---- */

/* pg_new makes a handle of a URL, without connecting; `schema` counts where the URL names none.
 * NULL on failure. */
struct pg_store *pg_new(const char *url, const char *schema, const struct store_options *opt,
                        struct error *err);
void pg_close(struct store *st);
/* pg_ready connects if there is no connection, or the last one broke. */
int pg_ready(struct pg_store *st, struct error *err);
/* pg_reader_ready does the same for the connection that reads ahead; pg_reader_close gives it
 * up. */
int pg_reader_ready(struct pg_store *st, struct error *err);
void pg_reader_close(struct pg_store *st);
/* pg_check looks at the outbox over there: ERR_NOTOURS, ERR_NEWER. */
int pg_check(struct pg_store *st, struct error *err);
/* pg_begin opens a transaction for statements of ours alone, pg_begin_shared one in which the
 * application works, too. */
int pg_begin(struct store *st, struct error *err);
int pg_begin_shared(struct store *st, struct error *err);
int pg_commit(struct store *st, struct error *err);
void pg_rollback(struct store *st);

/* migrate.c */
int pg_init(struct store *st, bool *ret_created, struct error *err);
/* pg_version reads the schema version over there, and refuses one that is newer; 0: there is no
 * outbox. */
int pg_version(struct pg_store *st, int64_t *ret, struct error *err);
int pg_schema_status(struct store *st, struct schema_status *ret, struct error *err);
int pg_ddl(const struct ddl_request *req, struct error *err);

/* validate.c, doctor.c */
int pg_validate(struct store *st, finding_visit *visit, void *ctx, struct error *err);
int pg_doctor(struct store *st, const struct doctor_request *req, struct error *err);

/* emit.c: pg_emit_texts makes the texts that go through connections of others, once and for all
 * threads. */
int pg_emit_texts(struct pg_store *st, struct error *err);
int pg_emit(struct store *st, void *foreign, const struct new_event *ev, char ret_id[UUID_TEXT + 1],
            bool *ret_duplicate, struct error *err);
int pg_handle_once(struct store *st, void *foreign, struct str handler, struct str key,
                   struct str payload, bool *ret_first, struct error *err);

/* effects.c */
int pg_lend(struct store *st, int64_t idle_ms, struct error *err);
int pg_speak_utf8(struct pg_store *st, struct error *err);
int pg_savepoint(struct store *st, enum savepoint what, struct error *err);
enum tx_state pg_tx_state(struct store *st);
int pg_handled(struct store *st, const struct inbox_key *k, size_t n, bool *ret, struct error *err);
int pg_handled_put(struct store *st, const struct inbox_key *k, const bool *skip, size_t n,
                   bool *ret_all, struct error *err);

/* turn.c */
int pg_settle(struct store *st, const struct settlement *s, bool *ret_lost, struct error *err);
int pg_turn(struct store *st, const struct settlement *s, bool *ret_lost,
            const struct claim_request *req, struct arena *a, struct batch *ret_batch,
            struct claim_hint *ret_hint, struct error *err);
int pg_extend(struct store *st, const char *consumer, const char *owner, const struct batch *b,
              int64_t lease_ms, bool *ret_lost, struct error *err);

/* read.c: pg_read_window and pg_read_parked read the events of a claim into the arena, until
 * max_bytes. pg_ahead_start asks for what is behind w; pg_ahead_fill reads what was asked for, and
 * asks for more; pg_ahead_take hands it over, if it is what the request may want, by exchanging the
 * arenas; pg_ahead_keep takes it back, for the next claim, if this one was of parked events;
 * pg_ahead_forget drops all of it. */
int pg_read_window(struct pg_store *st, const struct claim_request *req, int lane,
                   const struct pg_window *w, size_t max, struct arena *a, struct pg_chunk *ret,
                   struct error *err);
int pg_read_parked(struct pg_store *st, const struct claim_request *req, int64_t epoch,
                   struct arena *a, struct pg_chunk *ret, struct error *err);
void pg_ahead_start(struct pg_store *st, const struct claim_request *req, int lane,
                    const struct pg_window *w);
void pg_ahead_fill(struct pg_store *st, const struct claim_request *req);
bool pg_ahead_take(struct pg_store *st, const struct claim_request *req, struct arena *a,
                   struct pg_chunk *ret, struct pg_window *ret_w);
void pg_ahead_keep(struct pg_store *st, struct arena *a, const struct pg_chunk *c,
                   const struct pg_window *w);
void pg_ahead_forget(struct pg_store *st);

/* rows.c */
/* The columns every reader of whole events selects, in the order pg_event_row takes them: with the
 * key that the inbox knows it by for whoever delivers, with its own for whoever looks at it. */
#define PG_EVENT_COLUMNS PG_EVENT_FACTS("e") PG_INBOX_KEY("e") " AS idempotency_key"
#define PG_EVENT_SHOWN PG_EVENT_FACTS("e") "e.idempotency_key"
#define PG_DEAD_SHOWN PG_EVENT_FACTS("d") "d.idempotency_key"
#define PG_EVENT_FACTS(row) \
    row ".seq, " row ".id, " row ".type, " row ".aggregate_type, " row ".aggregate_id, " row \
        ".version, " row ".payload, " row ".headers, " row ".tenant, " row ".created_at, " row \
        ".not_before, "
#define PG_EVENT_COLUMN_COUNT 12
/* Two tenants may use the same key, and the platform's inbox has to do with both: there the event
 * goes by its id. */
#define PG_INBOX_KEY(row) \
    "CASE WHEN " row ".tenant IS NULL OR " row \
    ".tenant = (SELECT @schema@._acting_for(current_user)) THEN " row ".idempotency_key END"
/* pg_event_row copies a binary row into *ev; false when there is no room. */
bool pg_event_row(const PGresult *r, int row, struct arena *a, struct event *ev);
int64_t pg_binary_int8(const PGresult *r, int row, int col); /* 0 for NULL */

/* bell.c */
/* pg_bell_sleep: nothing was found. Returns 1 if the caller should look once more before it may
 * sleep, 0 if not (then *nap_ms says how soon it must look again in any case; 0: somebody will
 * ring), -1 on failure. */
int pg_bell_sleep(struct pg_store *st, int64_t *nap_ms, struct error *err);
/* pg_bell_wake: there is work, so nobody needs to ring. */
int pg_bell_wake(struct pg_store *st, struct error *err);
int pg_bell_fd(struct store *st);
void pg_bell_clear(struct store *st);

/* consumers.c, inspect.c, trim.c */
int pg_consumer_put(struct store *st, const struct consumer_spec *spec, bool *ret_created,
                    struct error *err);
int pg_consumer_specs(struct store *, const char *name, struct arena *, struct consumer_spec **ret,
                      size_t *ret_n, struct error *);
int pg_consumer_history(struct store *st, const char *name, struct arena *a,
                        struct consumer_settings **ret, size_t *ret_n, struct error *err);
int pg_consumer_list(struct store *st, const char *name, struct arena *a,
                     struct consumer_info **ret, size_t *ret_n, struct error *err);
int pg_consumer_gauge(struct store *st, const char *name, struct arena *a,
                      struct consumer_gauge *ret, struct error *err);
int pg_consumer_pause(struct store *st, const char *name, bool paused, struct error *err);
int pg_consumer_remove(struct store *st, const char *name, bool force, struct error *err);
int pg_consumer_report(struct store *st, const char *name, const char *text, struct error *err);
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
int pg_trim(struct store *st, const struct trim_request *req, struct trim_result *ret,
            struct error *err);

/* admin.c */
int pg_grant(struct store *st, const struct grant_request *req, bool *ret_changed,
             struct error *err);
int pg_adopt(struct store *st, const struct adopt_request *req, struct adopt_result *ret,
             struct error *err);

#endif
