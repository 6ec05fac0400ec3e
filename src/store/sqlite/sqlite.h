/* sqlite.h: what the files of the SQLite store share. */
#ifndef STORE_SQLITE_SQLITE_H
#define STORE_SQLITE_SQLITE_H

#include <sqlite3.h>
#include <sys/types.h>

#include "base/rng.h"
#include "base/uuid7.h"
#include "store/pull.h"
#include "store/store.h"

#define SQLITE_SCHEMA_VERSION 4
#define STATEMENTS_MAX 160
#define SQLITE_IDENTITY 33 /* 32 digits */
#define SQLITE_LOG_LIFE 12 /* bytes */

/* Which file we have open: see home.c. */
struct sqlite_home {
    int pin; /* O_PATH: keeps its inode from being used again; -1: not known yet */
    dev_t dev;
    ino_t ino;
    ino_t log;   /* of the write-ahead log beside it; 0: not known */
    ino_t index; /* of the log's index, "-shm"; 0: not known */
    /* that all three are in; NULL: the path is a link, or there was no memory for it */
    char *folder;
    struct sqlite_folder {
        dev_t dev;
        ino_t ino;       /* 0: not known */
        int64_t changed; /* ns since 1970, as below */
    } quiet;
    /* the folder when all three were last seen in it, if it had not changed for a while */
    /* until then it has changed too lately to be relied on; 0: not known to have */
    int64_t noisy;
    bool moving; /* we are at it: don't look again */
    /* another outbox was found in it: our consumer may have to be registered there */
    bool unknown;
};

/* (1) in_tx is set between sqlite_begin and commit or rollback. (2) cached[i].sql is the text of a
 *   struct sql, or a string
 * literal: it is compared by address. */
struct sqlite_store {
    struct store base;
    sqlite3 *db;
    char *path;  /* what sqlite3_open_v2 was given: absolute, or a URI for memory */
    char *shown; /* the path for messages */
    struct sqlite_home home;
    char identity[SQLITE_IDENTITY]; /* of the outbox there; "" not known */
    /* what was registered through this handle; its strings are owned */
    struct consumer_spec spec;
    /* of the last claim that was made for that consumer through this handle */
    int64_t epoch_seen;
    bool lent;   /* see effects.c */
    bool synced; /* the database was, in this life of its log: see durable.c */
    unsigned char log_life[SQLITE_LOG_LIFE];
    bool memory;
    bool in_tx;
    /* a ROLLBACK failed for want of memory: its transaction is still open, and nothing may be
     * done in it */
    bool stuck;
    bool committing; /* by us: see effects.c */
    struct store_options opt;
    struct pull pull;
    int64_t turn_now; /* inside a turn: its one "now"; else 0 */
    int64_t began;    /* wall: when the open transaction got the write lock */
    struct uuid7 uuid;
    struct rng rng;
    int bell; /* inotify; -1: none yet */
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

static inline int64_t sqlite_now(const struct sqlite_store *st)
{
    return st->turn_now ? st->turn_now : clock_wall(st->opt.clock);
}

/* sqlite_fail turns a result code into our error; returns -1. */
int sqlite_fail(struct sqlite_store *st, sqlite3 *db, int rc, struct error *err);

/* A statement of sql/sqlite/statements, as scripts/statements makes it: sqlite_sql.h has them all.
 * Its parameters are in the order in which SQLite numbers them. type is a letter as below; at is
 * the offset in the struct of its arguments. */
struct sql_parameter {
    const char *name;
    char type;
    size_t at;
};
struct sql {
    const char *name, *text;
    const struct sql_parameter *parameter;
    size_t n;
};
extern const struct sql *const sql_all[]; /* the last is NULL */

/* SQL names a statement and gives its arguments, as two arguments of one of the three calls below:
 *     sqlite_run(st, err, SQL(drop_claim, .consumer = name, .epoch = epoch))
 * What is not given is 0 or NULL. Strings are borrowed until the statement is done. */
#define SQL(name, ...) \
    &sql_##name, &(struct sql_##name) \
    { \
        __VA_ARGS__ \
    }

/* sqlite_rows gives the statement, ready to be stepped; NULL on failure. There is one of each: to
 * ask again begins anew. */
sqlite3_stmt *sqlite_rows(struct sqlite_store *st, struct error *err, const struct sql *sql,
                          const void *args);
/* sqlite_run is sqlite_rows and steps to the end; returns 0 or -1. */
int sqlite_run(struct sqlite_store *st, struct error *err, const struct sql *sql, const void *args);
/* sqlite_value asks for one number; *ret keeps its value when there is no row or a NULL. */
int sqlite_value(struct sqlite_store *st, struct error *err, int64_t *ret, const struct sql *sql,
                 const void *args);

/* sqlite_query gives the cached statement for a string literal with its parameters bound, ready to
 * be stepped; NULL on failure. fmt has one letter per parameter: s const char * (NULL is fine), t
 * struct str (p == NULL is SQL NULL), i int64_t. Bound strings are borrowed until the statement is
 * done. */
sqlite3_stmt *sqlite_query(struct sqlite_store *st, struct error *err, const char *sql,
                           const char *fmt, ...);
/* sqlite_step: 1 a row, 0 done, -1 failed; the last two reset the statement. */
int sqlite_step(struct sqlite_store *st, sqlite3_stmt *q, struct error *err);
/* sqlite_exec is query and step to the end; returns 0 or -1. */
int sqlite_exec(struct sqlite_store *st, struct error *err, const char *sql, const char *fmt, ...);
/* sqlite_number runs a query for one number; *ret keeps its value when there is no row or a
 * NULL. */
int sqlite_number(struct sqlite_store *st, struct error *err, int64_t *ret, const char *sql,
                  const char *fmt, ...);
void sqlite_bind(sqlite3_stmt *q, const char *fmt, va_list ap);

/* sqlite_unstick ends a transaction whose ROLLBACK failed, before anything else is done on the
 * connection: it would become part of that, and be told of as committed. */
int sqlite_unstick(struct sqlite_store *st, struct error *err);
/* sqlite_tx_gone says whether SQLite has rolled back by itself the transaction that sqlite_begin
 * opened, as it does when the disk is full. What follows would commit by itself: it is refused. */
int sqlite_tx_gone(struct sqlite_store *st, struct error *err);

static inline struct str sqlite_text(sqlite3_stmt *q, int col)
{
    const char *p = (const char *)sqlite3_column_text(q, col);
    return (struct str){p, p ? (size_t)sqlite3_column_bytes(q, col) : 0};
}

/* sqlite_copy is sqlite_text in the arena; *ok becomes false when there is no room. */
struct str sqlite_copy(sqlite3_stmt *q, int col, struct arena *a, bool *ok);

#define EVENT_COLUMN_COUNT 12

/* sqlite_event_row copies the current row, which begins with EVENT_COLUMNS, into *ev; false when
 * there is no room. */
bool sqlite_event_row(sqlite3_stmt *q, struct arena *a, struct event *ev);

/* home.c: sqlite_home_settle notes which file was opened. sqlite_home_check looks, outside of a
 * transaction, whether it is still the one at the path; if not, it connects to what is there, and
 * fails in any case, so that whoever is at work knows: ERR_UNAVAILABLE, to be tried again.
 * sqlite_home_adopt makes ourselves known in an outbox that was put into the file, if need be.
 * sqlite_home_paired refuses a file whose write-ahead log belongs to another that was there
 * before. */
void sqlite_home_settle(struct sqlite_store *st);
void sqlite_home_leave(struct sqlite_store *st);
int sqlite_home_check(struct sqlite_store *st, struct error *err);
int sqlite_home_adopt(struct sqlite_store *st, struct error *err);
int sqlite_home_paired(struct sqlite_store *st, struct error *err);

/* durable.c: after the commit of a claim: what it hands out is on the disk, whatever its producers
 * have set. */
int sqlite_durable(struct sqlite_store *st, struct error *err);

/* numbers.c, inside a transaction: sqlite_numbers_broken says whether the numbers of events began
 * again below what this consumer (NULL: any) was handed; sqlite_numbers_repair gives all events new
 * ones; sqlite_numbers_keep does so if need be. */
int sqlite_numbers_broken(struct sqlite_store *st, const char *consumer, bool *ret,
                          struct error *err);
int sqlite_numbers_repair(struct sqlite_store *st, int64_t *ret_events, int64_t *ret_from,
                          struct error *err);
int sqlite_numbers_keep(struct sqlite_store *st, struct error *err);

/* open.c: sqlite_connect opens st->path, checks what is there and notes which file and outbox it
 * is; sqlite_disconnect undoes it, also halfway. */
int sqlite_connect(struct sqlite_store *st, struct error *err);
void sqlite_disconnect(struct sqlite_store *st);
int sqlite_begin(struct store *st, struct error *err);
int sqlite_commit(struct store *st, struct error *err);
void sqlite_rollback(struct store *st);

/* doctor.c */
int sqlite_doctor(struct store *st, const struct doctor_request *req, struct error *err);

/* adopt.c: sqlite_adopt_mark marks the rows that delivered events were made of, inside the
 * settlement's transaction. */
int sqlite_adopt(struct store *st, const struct adopt_request *req, struct adopt_result *ret,
                 struct error *err);
int sqlite_adopt_mark(struct sqlite_store *st, const struct settlement *s, struct error *err);

/* emit.c */
int sqlite_emit(struct store *st, void *foreign, const struct new_event *ev,
                char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err);
int sqlite_handle_once(struct store *st, void *foreign, struct str handler, struct str key,
                       struct str payload, bool *ret_first, struct error *err);

/* effects.c */
int sqlite_lend(struct store *st, int64_t idle_ms, struct error *err);
int sqlite_savepoint(struct store *st, enum savepoint what, struct error *err);
enum tx_state sqlite_tx_state(struct store *st);
int sqlite_settle_here(struct store *st, const struct settlement *s, bool *ret_lost,
                       struct error *err);
int sqlite_handled(struct store *st, const struct inbox_key *k, size_t n, bool *ret,
                   struct error *err);
int sqlite_handled_put(struct store *st, const struct inbox_key *k, const bool *skip, size_t n,
                       bool *ret_all, struct error *err);

/* claim.c */
int sqlite_turn(struct store *st, const struct settlement *s, bool *ret_lost,
                const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                struct claim_hint *ret_hint, struct error *err);
int sqlite_extend(struct store *st, const char *consumer, const char *owner, const struct batch *b,
                  int64_t lease_ms, bool *ret_lost, struct error *err);

/* settle.c: settle applies s inside the open transaction; park and bury are what claim.c needs for
 * expired claims. */
int sqlite_settle(struct sqlite_store *st, const struct settlement *s, bool *ret_lost,
                  struct error *err);

/* How to park one event. due_at counts only if nothing of its key is parked before it; 0: at
 * once. */
struct parking {
    const char *consumer;
    enum order order;
    const struct event *ev;
    int attempts;
    int64_t due_at;
    int64_t wait_ms; /* what due_at was made of, if of a wait */
    bool careful, delayed;
    bool proven;       /* see struct outcome */
    const char *error; /* NULL: keep what is there */
};
int sqlite_park(struct sqlite_store *st, const struct parking *p, struct error *err);
int sqlite_bury(struct sqlite_store *st, const char *consumer, int64_t seq, int attempts,
                const char *error, struct error *err);
/* sqlite_promote makes the first parked event of a key due if it waits behind one that is gone. */
int sqlite_promote(struct sqlite_store *st, const char *consumer, int64_t key, struct error *err);
/* sqlite_waits_behind says whether an event of the same key is parked before this one; never for
 * key 0. */
int sqlite_waits_behind(struct sqlite_store *st, const char *consumer, int64_t key, int64_t seq,
                        bool *ret, struct error *err);

/* backlog.c: counts what waits for a consumer and what is in flight, and tells of each that
 * waits. */
struct backlog {
    const struct consumer_spec *spec;
    int64_t max; /* events to look at behind the position */
    /* called, if not NULL, for each that was found to wait; the row has type and created_at as
     * columns 1 and 2 */
    int (*visit)(void *ctx, sqlite3_stmt *row, struct error *err);
    void *ctx;
    /* the answer */
    int64_t scanned;   /* behind the position; less than max: all there are */
    int64_t behind;    /* that wait; about so many if not all were looked at */
    int64_t oldest_at; /* 0: none was found */
    int64_t inflight;  /* in live claims */
};
int sqlite_backlog(struct sqlite_store *st, struct backlog *b, struct error *err);

/* former.c: keep notes, before a consumer's filter is replaced, how far it was used. taken_over
 * notes what it no longer tells of a fresh claim that was made under it and ran out. */
struct taken_over {
    const char *consumer;
    int64_t epoch, from, to;
    int lane, lanes;
    const struct filter *filter; /* the one of now */
};
int sqlite_former_keep(struct sqlite_store *st, const char *name, struct error *err);
int sqlite_former_taken_over(struct sqlite_store *st, const struct taken_over *t,
                             struct error *err);

/* consumers.c, inspect.c, trim.c */
void sqlite_spec_forget(struct sqlite_store *st);
int sqlite_consumer_put(struct store *st, const struct consumer_spec *spec, bool *ret_created,
                        struct error *err);
int sqlite_consumer_specs(struct store *, const char *name, struct arena *,
                          struct consumer_spec **ret, size_t *ret_n, struct error *);
int sqlite_consumer_history(struct store *st, const char *name, struct arena *a,
                            struct consumer_settings **ret, size_t *ret_n, struct error *err);
int sqlite_consumer_list(struct store *st, const char *name, struct arena *a,
                         struct consumer_info **ret, size_t *ret_n, struct error *err);
/* sqlite_consumer_floors lists all of them with what they hold, and without what takes counting. */
int sqlite_consumer_floors(struct sqlite_store *st, struct arena *a, struct consumer_info **ret,
                           size_t *ret_n, struct error *err);
int sqlite_consumer_gauge(struct store *st, const char *name, struct arena *a,
                          struct consumer_gauge *ret, struct error *err);
int sqlite_consumer_pause(struct store *st, const char *name, bool paused, struct error *err);
int sqlite_consumer_remove(struct store *st, const char *name, bool force, struct error *err);
int sqlite_consumer_report(struct store *st, const char *name, const char *text, struct error *err);
int sqlite_info(struct store *st, struct store_info *ret, struct error *err);
int sqlite_events(struct store *st, const struct event_query *q, event_visit *visit, void *ctx,
                  struct error *err);
int sqlite_dead(struct store *st, const struct dead_query *q, dead_visit *visit, void *ctx,
                struct error *err);
int sqlite_dead_retry(struct store *st, const struct dead_query *q, int64_t *ret_n,
                      struct error *err);
int sqlite_retry_now(struct store *st, const char *consumer, int64_t seq, bool *ret_waited,
                     struct error *err);
int sqlite_dead_drop(struct store *st, const struct dead_query *q, int64_t *ret_n,
                     struct error *err);
int sqlite_marks(struct store *st, const char *stream, mark_visit *visit, void *ctx,
                 struct error *err);
int sqlite_trim(struct store *st, const struct trim_request *req, struct trim_result *ret,
                struct error *err);

#endif
