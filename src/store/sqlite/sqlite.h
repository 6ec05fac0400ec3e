/* sqlite.h: internals of the SQLite store. Headings name the files. */
#ifndef STORE_SQLITE_SQLITE_H
#define STORE_SQLITE_SQLITE_H

#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/rng.h"
#include "store/db/turn.h"

#define SQLITE_SCHEMA_VERSION 1
#define STATEMENTS_MAX 224 /* sql_all, and a dozen for transactions and pragmas */
#define SQLITE_IDENTITY 33 /* 32 digits and the NUL */
#define SQLITE_LOG_LIFE 12 /* bytes */

/* Which file this handle has open; see file_identity.c. */
struct sqlite_file {
    int pin; /* O_PATH descriptor that keeps the inode from being reused; -1: none yet */
    dev_t dev;
    ino_t ino;
    ino_t log;   /* inode of the write-ahead log, "-wal"; 0: unknown */
    ino_t index; /* inode of the log's index, "-shm"; 0: unknown */
    /* the folder of all three; NULL: the path is a link, or memory ran out */
    char *folder;
    /* the folder's state when all three were last seen in it and it had not changed for a while */
    struct sqlite_folder {
        dev_t dev;
        ino_t ino;       /* 0: not known */
        int64_t changed; /* ns since 1970 */
    } quiet;
    int64_t noisy; /* ns since 1970: until then, the folder's change time is too recent to trust */
    bool moving;   /* we are moving to another file already: do not check again */
    bool unknown;  /* another outbox is in the file: our consumer may not be registered there */
};

/* A consumer that was registered through a handle; see file_identity.c. */
struct sqlite_registration {
    struct arena a; /* owns the strings of spec */
    struct consumer_spec spec;
    int64_t epoch_seen; /* of the last claim; 0: none */
    bool asked;         /* a lane may be reserved for it, see turn.c */
    struct sqlite_registration *next;
};

/* State shared by a handle and its duplicates. */
struct sqlite_family {
    atomic_uint handles;
    /* Quiet commits: our own consumers need not be woken, see watch.c. Under the write lock. */
    atomic_uint quiet_commits;
    atomic_uint registrations; /* consumers that the handles remember */
};

struct sqlite_window;

/* How far a handle has polled, see watch.c. */
struct sqlite_watch {
    bool known;
    int64_t seq;
    uint32_t commits, quiet_commits;
    /* a commit of unknown content was seen, and not all consumers have been woken yet */
    bool doubt;
    int64_t told_at; /* when all were last woken because of a doubt, monotonic */
};

/* (1) cached[i].sql is the text of a struct sql or a string literal, and is compared by address. */
struct sqlite_store {
    struct db_store base;
    sqlite3 *db;
    char *path; /* for sqlite3_open_v2: an absolute path, or a URI for memory */
    struct sqlite_file file;
    char identity[SQLITE_IDENTITY];            /* of the outbox in the file; "": unknown */
    struct sqlite_registration *registrations; /* made through this handle */
    struct sqlite_family *family;
    struct sqlite_watch watch;
    struct sqlite_window *window; /* see window.c; NULL: none */
    bool synced; /* the database file was synced since the log was last restarted */
    unsigned char log_life[SQLITE_LOG_LIFE]; /* see turn.c */
    bool memory;
    bool stuck;             /* a ROLLBACK failed for lack of memory; see sqlite_unstick */
    bool committing;        /* the running COMMIT is ours */
    int64_t changes_before; /* the open transaction */
    struct uuid7 uuid;
    int wake; /* inotify descriptor; -1: none yet */
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

/* ---- statement.c ---- */

extern const struct db_driver sqlite_driver;

/* sqlite_fail turns a result code of db, which may be NULL like st, into our error. Returns -1. */
int sqlite_fail(struct sqlite_store *st, sqlite3 *db, int rc, struct error *err);

/* sqlite_step returns 1 for a row, 0 at the end, -1 on failure; the last two reset the statement.
 * For q == NULL it returns -1 and leaves err alone. */
int sqlite_step(struct sqlite_store *st, sqlite3_stmt *q, struct error *err);
/* sqlite_bind binds the arguments to a statement that was prepared elsewhere from sql. */
void sqlite_bind(sqlite3_stmt *q, const struct sql *sql, const void *args);

/* sqlite_plain prepares a string literal without parameters, such as a pragma or BEGIN, once per
 * handle. It is returned reset, for sqlite_step; NULL on failure. sqlite_exec runs it to its
 * end. */
sqlite3_stmt *sqlite_plain(struct sqlite_store *st, const char *sql, struct error *err);
int sqlite_exec(struct sqlite_store *st, const char *sql, struct error *err);

/* sqlite_text is a column of the current row, valid until the next step; p is NULL for SQL NULL. */
static inline struct str sqlite_text(sqlite3_stmt *q, int col)
{
    const char *p = (const char *)sqlite3_column_text(q, col);
    return (struct str){p, p ? (size_t)sqlite3_column_bytes(q, col) : 0};
}

/* Transactions. */
/* sqlite_tx_prepare prepares COMMIT and ROLLBACK, so that leaving needs no memory. */
int sqlite_tx_prepare(struct sqlite_store *st, struct error *err);
/* sqlite_unstick ends a transaction whose ROLLBACK failed. Until it succeeds nothing else may run
 * on the connection: it would become part of that transaction and be reported as committed. */
int sqlite_unstick(struct sqlite_store *st, struct error *err);
/* sqlite_tx_gone fails if SQLite has rolled back the transaction that sqlite_begin opened, as it
 * does when the disk is full: each further statement would commit on its own. */
int sqlite_tx_gone(struct store *st, struct error *err);
int sqlite_snapshot_begin(struct store *st, bool *ret_own, struct error *err);
void sqlite_snapshot_end(struct store *st, bool own);
int sqlite_expose(struct store *st, int64_t idle_ms, struct error *err);
enum tx_state sqlite_tx_state(struct store *st);

/* ---- open.c: connecting ---- */

/* sqlite_connect opens st->path, checks its content, and notes which file and outbox it is.
 * sqlite_disconnect undoes that, even if only part of it was done. */
int sqlite_connect(struct sqlite_store *st, struct error *err);
void sqlite_disconnect(struct sqlite_store *st);
/* sqlite_url_check refuses a URL that names no file, and parameters that only PostgreSQL's URLs
 * have: taken as part of a file name, ?tenant= would isolate nothing. */
int sqlite_url_check(const char *url, struct error *err);
/* sqlite_script runs any number of statements, none of which is cached. */
int sqlite_script(struct sqlite_store *st, const char *sql, struct error *err);

/* ---- schema.c: the tables and their version ---- */

int sqlite_schema_status(struct store *st, struct schema_status *ret, struct error *err);
int sqlite_init(struct store *st, bool *ret_created, struct error *err);
int sqlite_ddl(const struct ddl_request *req, struct error *err);
/* sqlite_identity_read sets st->identity: "" if the database has no outbox. */
void sqlite_identity_read(struct sqlite_store *st);

/* ---- watch.c ---- */

int sqlite_wake_fd(struct store *st);
void sqlite_wake_clear(struct store *st);
int sqlite_poll_new(struct store *st, bool skip_query, bool payloads, new_event_visit *visit,
                    void *ctx, struct watch_result *ret, struct error *err);

/* ---- file_identity.c: whether the file at our path is still the open one ---- */

/* sqlite_file_settle notes which file was opened; sqlite_file_leave forgets it. */
void sqlite_file_settle(struct sqlite_store *st);
void sqlite_file_leave(struct sqlite_store *st);
/* sqlite_file_check checks, outside of a transaction, that our file is still at the path. If not,
 * it connects to the file that is there now and still fails, with ERR_UNAVAILABLE and CLASS_RETRY,
 * so that the caller learns that its unfinished work is lost. */
int sqlite_file_check(struct sqlite_store *st, struct error *err);
/* sqlite_file_adopt registers our consumers in an outbox that was restored without them. */
int sqlite_file_adopt(struct sqlite_store *st, struct error *err);
/* sqlite_file_paired refuses a file whose log another process uses for the previous file. */
int sqlite_file_paired(struct sqlite_store *st, struct error *err);

/* sqlite_registration finds a consumer registered through this handle; NULL: none.
 * sqlite_registrations_forget forgets all; sqlite_registrations_moved forgets only their claims,
 * which were made in another file. */
struct sqlite_registration *sqlite_registration(struct store *st, const char *name);
void sqlite_registrations_forget(struct sqlite_store *st);
void sqlite_registrations_moved(struct sqlite_store *st);
int sqlite_consumer_put(struct store *st, const struct consumer_spec *spec, bool *ret_created,
                        struct error *err);
void sqlite_consumer_forget(struct store *st, const char *name);

/* ---- turn.c, window.c: the driver's part of a turn, see db.h ---- */

int sqlite_before_turns(struct turn *t, size_t n, struct error *err);
int sqlite_check_outbox(struct turn *t, bool there, struct str identity, int64_t last,
                        struct error *err);
int sqlite_check_numbers(struct turn *t, struct error *err);
int sqlite_read_fresh(struct turn *t, int lane, int64_t position, struct chunk *ret,
                      struct error *err);
int sqlite_claim_all_lanes(struct turn *t, bool *ret_done, struct error *err);
int sqlite_claimed(struct turn *t, struct error *err);
int sqlite_after_turns(struct turn *t, size_t n, struct error *err);
/* sqlite_numbers_keep renumbers all events if event numbers restarted, inside a transaction. */
int sqlite_numbers_keep(struct store *st, struct error *err);
/* sqlite_lanes_together returns the common position of all lanes of the consumer, if this worker
 * may claim from all at once; -1 if not. Another worker may still hold one of them. */
int sqlite_lanes_together(struct turn *t, int64_t *ret, struct error *err);
/* sqlite_prefetch reads what will probably be claimed, before the write lock is taken. */
int sqlite_prefetch(struct turn *t, struct error *err);
/* sqlite_window_forget frees the window. */
void sqlite_window_forget(struct sqlite_store *st);

/* ---- emit.c ---- */

int sqlite_target(struct store *st, void *foreign, struct db_target *ret, struct error *err);
struct db_rows sqlite_target_rows(const struct db_target *t, const struct sql *sql,
                                  const void *args, struct error *err);
int64_t sqlite_target_changed(const struct db_target *t);
int sqlite_insert(const struct db_target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                  bool *ret_duplicate, struct error *err);

/* ---- doctor.c ---- */

int sqlite_doctor(struct store *st, const struct doctor_request *req, struct error *err);

/* ---- adopted tables, in extra/adopt ---- */

extern const struct adopt_driver adopt_sqlite;
/* adopt_sqlite_mark marks the rows whose events s delivered, in its transaction. */
int adopt_sqlite_mark(struct store *st, const char *consumer, const struct settlement *s,
                      struct error *err);

#endif
