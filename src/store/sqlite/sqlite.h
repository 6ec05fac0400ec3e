/* sqlite.h: what the files of the SQLite store share. A function's comment names the file it is
 * in. */
#ifndef STORE_SQLITE_SQLITE_H
#define STORE_SQLITE_SQLITE_H

#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/rng.h"
#include "base/uuid7.h"
#include "store/clock_repair.h"
#include "store/db/db.h"

#define SQLITE_SCHEMA_VERSION 1
#define STATEMENTS_MAX 200 /* all of sql_all, and a dozen for transactions and pragmas */
#define SQLITE_IDENTITY 33 /* 32 digits and the NUL */
#define SQLITE_LOG_LIFE 12 /* bytes */

/* Which file this handle has open; see home.c. */
struct sqlite_home {
    int pin; /* O_PATH descriptor that keeps the inode from being reused; -1: none yet */
    dev_t dev;
    ino_t ino;
    ino_t log;   /* inode of the write-ahead log, "-wal"; 0: not known */
    ino_t index; /* inode of the log's index, "-shm"; 0: not known */
    /* the folder that holds all three; NULL: the path is a link, or there was no memory */
    char *folder;
    /* the folder as it was when all three were last seen in it and it had been quiet for a while */
    struct sqlite_folder {
        dev_t dev;
        ino_t ino;       /* 0: not known */
        int64_t changed; /* ns since 1970 */
    } quiet;
    int64_t noisy; /* until then the folder's time is too recent to rely on, ns since 1970 */
    bool moving;   /* we are moving to another file already: do not check again */
    bool unknown;  /* another outbox is in the file: our consumer may not be registered there */
};

/* A consumer that was registered through a handle, and what the handle remembers of it. */
struct sqlite_member {
    struct consumer_spec spec; /* owns its strings */
    int64_t epoch_seen;        /* of the last claim; 0: none */
    bool asked;                /* a lane may be set aside for it, see lanes.c */
    struct sqlite_member *next;
};

/* What a handle and its duplicates have in common. */
struct sqlite_family {
    atomic_uint handles;
    /* Commits that nobody has to be woken for, see look.c. It is changed under the write lock
     * only. */
    atomic_uint quiet_commits;
    atomic_uint members; /* consumers that its handles remember */
};

struct sqlite_window;
struct held_keys;

/* Up to where a handle has looked, see look.c. */
struct sqlite_looked {
    bool known;
    int64_t seq;
    uint32_t commits, quiet_commits;
    bool doubt;      /* a commit may have been anything, and not all were told yet */
    int64_t rung_at; /* when all were told last because of a doubt, monotonic */
};

/* (1) in_tx is true between sqlite_begin and the commit or rollback. (2) cached[i].sql is the text
 * of a struct sql or a string literal, and is compared by address. */
struct sqlite_store {
    struct store base;
    sqlite3 *db;
    char *path;  /* what sqlite3_open_v2 was given: an absolute path, or a URI for memory */
    char *shown; /* the path as the user wrote it, for messages */
    struct sqlite_home home;
    char identity[SQLITE_IDENTITY]; /* of the outbox in the file; "": not known */
    struct sqlite_member *members;  /* registered through this handle */
    struct sqlite_family *family;
    struct sqlite_looked looked;
    struct sqlite_window *window;            /* see window.h; NULL: none */
    struct held_keys *held;                  /* see held_keys.h; one of each consumer */
    bool lent;                               /* handlers work on this connection; see effects.c */
    bool synced;                             /* the database file was, in this life of the log */
    unsigned char log_life[SQLITE_LOG_LIFE]; /* see durable.c */
    bool memory;
    bool in_tx;
    bool stuck;      /* a ROLLBACK failed for want of memory; see sqlite_unstick */
    bool committing; /* the COMMIT that runs is ours; see effects.c */
    bool quiet;      /* the open transaction has written, which is no news to our relay: look.c */
    bool for_deaf;   /* workers that are deaf use this handle */
    struct store_options opt;
    struct clock_repair repair;
    int64_t turn_now;   /* the one "now" of a turn; 0: outside of a turn */
    int64_t turn_ahead; /* sqlite_ahead at turn_now */
    int64_t boot;       /* clock_boot of our clock */
    int64_t began;      /* wall ms when the open transaction got the write lock */
    struct uuid7 uuid;
    struct rng rng;
    int bell; /* inotify descriptor; -1: none yet */
    struct {
        const char *sql;
        sqlite3_stmt *stmt;
    } cached[STATEMENTS_MAX];
    size_t n_cached;
};

static inline struct sqlite_store *sqlite_of(struct store *st)
{
    return (struct sqlite_store *)st;
}

/* sqlite_now is wall time in ms; inside a turn it stands still. */
static inline int64_t sqlite_now(const struct sqlite_store *st)
{
    return st->turn_now ? st->turn_now : clock_wall(st->opt.clock);
}

/* sqlite_ahead is by how many ms the wall clock, which has just said `now`, is ahead of boot_ms,
 * which processes with the same clock_boot share; 0 if that is not known. */
static inline int64_t sqlite_ahead(const struct sqlite_store *st, int64_t now)
{
    const struct clock *c = st->opt.clock;
    if (!st->boot)
        return 0;
    return st->turn_now ? st->turn_ahead : now - c->boot_ms(c->ctx);
}

/* ---- statement.c: prepared statements, result codes, rows ---- */

/* sqlite_fail turns a result code of db into our error and returns -1. st may be NULL, and so may
 * db. */
int sqlite_fail(struct sqlite_store *st, sqlite3 *db, int rc, struct error *err);

/* sqlite_rows gives the statement with its arguments bound, to be passed to sqlite_step; NULL on
 * failure. It is prepared once per handle, so asking for it again starts it over. */
sqlite3_stmt *sqlite_rows(struct sqlite_store *st, struct error *err, const struct sql *sql,
                          const void *args);
/* sqlite_row runs the statement up to its first row. 1: *ret is at that row, and the caller resets
 * it; 0: there is none; -1: it failed. */
int sqlite_row(struct sqlite_store *st, sqlite3_stmt **ret, struct error *err,
               const struct sql *sql, const void *args);
/* sqlite_run runs the statement to its end; returns 0 or -1. */
int sqlite_run(struct sqlite_store *st, struct error *err, const struct sql *sql, const void *args);
/* sqlite_value reads one number. *ret keeps its value if there is no row or the number is NULL. */
int sqlite_value(struct sqlite_store *st, struct error *err, int64_t *ret, const struct sql *sql,
                 const void *args);
/* sqlite_step returns 1 for a row, 0 at the end, -1 on failure; the last two reset the statement.
 * For q == NULL, which sqlite_rows gave with an error, it returns -1 and leaves err alone. */
int sqlite_step(struct sqlite_store *st, sqlite3_stmt *q, struct error *err);
/* sqlite_bind binds the arguments to a statement that was prepared elsewhere from sql. */
void sqlite_bind(sqlite3_stmt *q, const struct sql *sql, const void *args);

/* sqlite_plain is sqlite_rows for a string literal without parameters: a pragma, a BEGIN.
 * sqlite_exec runs it to its end; returns 0 or -1. */
sqlite3_stmt *sqlite_plain(struct sqlite_store *st, const char *sql, struct error *err);
int sqlite_exec(struct sqlite_store *st, const char *sql, struct error *err);

/* sqlite_text is a column of the current row, valid until the next step; p is NULL for SQL NULL. */
static inline struct str sqlite_text(sqlite3_stmt *q, int col)
{
    const char *p = (const char *)sqlite3_column_text(q, col);
    return (struct str){p, p ? (size_t)sqlite3_column_bytes(q, col) : 0};
}

/* sqlite_copy is sqlite_text, copied into the arena with a NUL behind it. *ok becomes false if
 * there is no memory, and is left alone otherwise. */
struct str sqlite_copy(sqlite3_stmt *q, int col, struct arena *a, bool *ok);

/* sqlite_event_row is db_event_row. */
bool sqlite_event_row(sqlite3_stmt *q, struct arena *a, struct event *ev);

/* ---- driver.c ---- */

extern const struct db_driver sqlite_driver;

/* ---- open.c: connecting ---- */

/* sqlite_connect opens st->path, checks what is there, and notes which file and outbox it is.
 * sqlite_disconnect undoes that, even if it was only half done. */
int sqlite_connect(struct sqlite_store *st, struct error *err);
void sqlite_disconnect(struct sqlite_store *st);
/* sqlite_url_check refuses a URL that names no file, and parameters that only PostgreSQL's URLs
 * have: taken as part of a file name, ?tenant= would separate nobody. */
int sqlite_url_check(const char *url, struct error *err);
/* sqlite_script runs any number of statements, none of which is cached. */
int sqlite_script(struct sqlite_store *st, const char *sql, struct error *err);

/* ---- schema.c: the tables and their version ---- */

/* sqlite_schema_check refuses a database without an outbox, or with one of another version. */
int sqlite_schema_check(struct sqlite_store *st, struct error *err);
int sqlite_schema_status(struct store *st, struct schema_status *ret, struct error *err);
int sqlite_init(struct store *st, bool *ret_created, struct error *err);
int sqlite_ddl(const struct ddl_request *req, struct error *err);
/* sqlite_identity_read sets st->identity: "" for an outbox too old to have one. */
void sqlite_identity_read(struct sqlite_store *st);

/* ---- transaction.c ---- */

int sqlite_begin(struct store *st, struct error *err);
int sqlite_commit(struct store *st, struct error *err);
void sqlite_rollback(struct store *st);
/* sqlite_tx_prepare prepares BEGIN, COMMIT and ROLLBACK, so that leaving a transaction needs no
 * memory. */
int sqlite_tx_prepare(struct sqlite_store *st, struct error *err);
/* sqlite_unstick ends a transaction whose ROLLBACK failed. Until it succeeds nothing else may run
 * on the connection: it would become part of that transaction and be reported as committed. */
int sqlite_unstick(struct sqlite_store *st, struct error *err);
/* sqlite_tx_gone fails if SQLite has rolled back, by itself, the transaction that sqlite_begin
 * opened, as it does when the disk is full: each further statement would commit on its own. */
int sqlite_tx_gone(struct sqlite_store *st, struct error *err);
/* sqlite_snapshot_begin opens a read transaction, so that several statements see the same state;
 * inside an open transaction it does nothing. *ret_own goes to sqlite_snapshot_end. */
int sqlite_snapshot_begin(struct sqlite_store *st, bool *ret_own, struct error *err);
void sqlite_snapshot_end(struct sqlite_store *st, bool own);

/* ---- bell.c ---- */

int sqlite_bell_fd(struct store *st);
void sqlite_bell_clear(struct store *st);

/* ---- look.c ---- */

int sqlite_look(struct store *st, bool blind, bool payloads, new_event_visit *visit, void *ctx,
                struct watch_result *ret, struct error *err);

/* ---- home.c: is the file at our path still the one we have open? ---- */

/* sqlite_home_settle notes which file was opened; sqlite_home_leave forgets it. */
void sqlite_home_settle(struct sqlite_store *st);
void sqlite_home_leave(struct sqlite_store *st);
/* sqlite_home_check looks, outside of a transaction, whether our file is still at the path. If not,
 * it connects to what is there now and fails even so, with ERR_UNAVAILABLE and a fate of retry, so
 * that the caller learns that what it had begun is gone. */
int sqlite_home_check(struct sqlite_store *st, struct error *err);
/* sqlite_home_adopt registers our consumer in an outbox that was restored into the file, if it is
 * missing there. */
int sqlite_home_adopt(struct sqlite_store *st, struct error *err);
/* sqlite_home_paired refuses a file beside which another process still uses the write-ahead log of
 * the file that was there before. */
int sqlite_home_paired(struct sqlite_store *st, struct error *err);

/* ---- durable.c ---- */

/* sqlite_durable makes sure, after the commit of a claim, that the events it hands out are on disk,
 * whatever their producers set PRAGMA synchronous to. */
int sqlite_durable(struct sqlite_store *st, struct error *err);

/* ---- numbers.c, inside a transaction ---- */

/* sqlite_numbers_broken says whether event numbers began again below what this consumer, or any if
 * NULL, was handed. */
int sqlite_numbers_broken(struct sqlite_store *st, const char *consumer, bool *ret,
                          struct error *err);
/* sqlite_numbers_repair gives all events new numbers: *ret_events of them, from *ret_from on. */
int sqlite_numbers_repair(struct sqlite_store *st, int64_t *ret_events, int64_t *ret_from,
                          struct error *err);
/* sqlite_numbers_keep repairs them if they are broken. */
int sqlite_numbers_keep(struct sqlite_store *st, struct error *err);

/* ---- emit.c ---- */

int sqlite_emit(struct store *st, void *foreign, const struct new_event *ev,
                char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err);
int sqlite_handle_once(struct store *st, void *foreign, struct str handler, struct str key,
                       struct str payload, bool *ret_first, struct error *err);

/* ---- turn.c, claim.c ---- */

int sqlite_turn(struct store *st, const struct settlement *s, bool *ret_lost,
                const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                struct claim_hint *ret_hint, struct error *err);
int sqlite_turns(struct store *st, struct batched_turn *t, size_t n, struct error *err);
int sqlite_extend(struct store *st, const struct claim_lease *l, bool *ret_lost, struct error *err);

/* ---- settle.c, inside a transaction ---- */

/* sqlite_settle records s. *ret_lost: the claim was no longer ours, and only the marks were. */
int sqlite_settle(struct sqlite_store *st, const struct settlement *s, bool *ret_lost,
                  struct error *err);

/* How to park one event. */
struct held_keys;
struct parking {
    const char *consumer;
    enum order order;
    const struct event *ev;
    int attempts;
    int64_t due_at;  /* 0: at once; ignored if something of its key is parked before it */
    int64_t wait_ms; /* the wait that due_at is the end of; 0: none */
    int crashes;
    bool delayed;
    bool proven;       /* see struct outcome */
    const char *error; /* NULL: keep what is known of the last failure */
};
int sqlite_park(struct sqlite_store *st, const struct parking *p, struct error *err);
/* sqlite_bury makes a dead letter of an event. Afterwards the event is no longer parked. */
int sqlite_bury(struct sqlite_store *st, const char *consumer, int64_t seq, int attempts,
                const char *error, struct error *err);
/* sqlite_promote makes the first parked event of a key due, if it waits behind one that is gone. */
int sqlite_promote(struct sqlite_store *st, const char *consumer, int64_t key, struct error *err);

/* ---- effects.c ---- */

int sqlite_lend(struct store *st, int64_t idle_ms, struct error *err);
int sqlite_savepoint(struct store *st, enum savepoint what, struct error *err);
enum tx_state sqlite_tx_state(struct store *st);
int sqlite_settle_here(struct store *st, const struct settlement *s, bool *ret_lost,
                       struct error *err);
int sqlite_handled(struct store *st, const struct inbox_key *k, size_t n, bool *ret,
                   struct error *err);
int sqlite_handled_put(struct store *st, const struct inbox_key *k, const bool *skip, size_t n,
                       bool *ret_all, struct error *err);

/* ---- members.c ---- */

/* sqlite_member finds a consumer that was registered through this handle; NULL: it was not.
 * sqlite_members_forget forgets them all; sqlite_members_moved forgets their claims only: those
 * were made in another file. */
struct sqlite_member *sqlite_member(const struct sqlite_store *st, const char *name);
void sqlite_members_forget(struct sqlite_store *st);
void sqlite_members_moved(struct sqlite_store *st);
int sqlite_consumer_put(struct store *st, const struct consumer_spec *spec, bool *ret_created,
                        struct error *err);
void sqlite_consumer_forget(struct store *st, const char *name);

/* ---- doctor.c ---- */

int sqlite_doctor(struct store *st, const struct doctor_request *req, struct error *err);

/* ---- adopt.c, adopt_mark.c ---- */

int sqlite_adopt(struct store *st, const struct adopt_request *req, struct adopt_result *ret,
                 struct error *err);
/* sqlite_adopt_mark marks the rows whose events s delivered, inside the settlement's
 * transaction. */
int sqlite_adopt_mark(struct sqlite_store *st, const struct settlement *s, struct error *err);

#endif
