/* mariadb.h: internals of the MariaDB store. Headings name the files. */
#ifndef STORE_MARIADB_MARIADB_H
#define STORE_MARIADB_MARIADB_H

#include <mysql.h>
#include <stdlib.h>

#include "base/buf.h"
#include "store/db/db.h"
#include "store/db/turn.h"

#define MDB_SCHEMA_VERSION 1
#define MDB_TRIGGERS 5 /* that an outbox has */

/* ---- url.c: the parts of a mariadb: URL ---- */

enum mdb_tls {
    MDB_TLS_DEFAULT, /* MDB_TLS_OFF for a socket or this machine, otherwise MDB_TLS_VERIFY */
    MDB_TLS_OFF,
    MDB_TLS_ON,     /* encrypted, certificate not checked */
    MDB_TLS_VERIFY, /* encrypted, and the certificate must match the host */
};

/* Where to connect. Strings are owned; NULL where the URL leaves them out. */
struct mdb_url {
    char *user, *host, *socket, *database;
    char *password;
    char *password_file;
    char *ca, *cert, *key;
    unsigned port;
    enum mdb_tls tls;
    int64_t answer_ms;
};

int mdb_url_read(const char *url, struct mdb_url *ret, struct error *err);
void mdb_url_release(struct mdb_url *u);
/* mdb_url_password returns the password, or NULL if there is none. The caller erases it with
 * explicit_bzero and frees it. */
int mdb_url_password(const struct mdb_url *u, char **ret, struct error *err);

/* ---- the handle ---- */

/* The last reading of the server's clock. */
struct mdb_clock {
    int64_t wall; /* ms */
    int64_t mono; /* when it was read; 0: never */
};

/* A second connection, on which the server announces new events; see watch.c. */
struct mdb_wakeup {
    MYSQL *db;          /* NULL: not connected */
    bool asked;         /* a query is in flight */
    int64_t again;      /* when to reconnect, monotonic */
    int64_t next, news; /* the state of the sequencer known to this handle */
    int64_t active;     /* when the last change was seen, monotonic */
};

/* The place of an event: seq in commit order, nr in the table. */
struct mdb_place {
    int64_t seq, nr;
};

/* Which events to read: up to max after a position. A payload of more than `most` bytes is
 * omitted. */
struct mdb_after {
    int64_t position, max, most;
};

/* A connection on which the next events are read while others are delivered; see read.c. */
struct mdb_ahead {
    MYSQL *db;             /* NULL: not connected */
    bool asked;            /* a query is in flight: for `what`, from places[at] on */
    struct mdb_rows *rows; /* the fetched result; NULL: not yet */
    struct mdb_after what;
    struct mdb_place *places; /* n consecutive places; those before `at` were read */
    size_t n, at;
    int64_t again; /* when to reconnect, monotonic */
};

/* Deferred statements, to be sent with the next query: n of them, in the first `size` bytes of the
 * text. */
struct mdb_later {
    size_t n, size;
    bool begins; /* the transaction begins with the first of them */
};

/* A statement that the server has prepared. */
struct mdb_prepared {
    MYSQL_STMT *q; /* NULL: not yet */
    bool refused;  /* the server refused to prepare it */
};

/* (1) `later` is empty outside of a transaction. */
struct mdb_store {
    struct db_store base;
    MYSQL *db; /* NULL: not connected */
    char *url_text;
    struct mdb_url url;
    char *quoted;    /* `name`. */
    bool wrote;      /* the open transaction has changed something */
    bool unhurried;  /* the server lets its transactions idle, see mdb_hurry */
    bool moved;      /* the server became read-only: its address may lead to another server now */
    bool dirty;      /* handlers have used the session since it was set up */
    bool grouped;    /* multi-statements are on, see mdb_group */
    bool beside;     /* fetch the events read ahead while waiting for the next results */
    int64_t idle_ms; /* see mdb_expose */
    int64_t packet_max; /* bytes of the largest statement that the server accepts; 0: not known */
    int64_t changed;    /* rows that the last statement changed or matched */
    struct buf text;    /* the statements to send next */
    struct mdb_later later;
    struct mdb_prepared insert, insert_plain; /* see mdb_insert */
    struct mdb_clock clock;
    struct mdb_wakeup wakeup;
    struct mdb_ahead ahead;
    int unlooked;   /* turns since the last one that looked for new events */
    int64_t looked; /* the last seq covered by a poll; -1: none yet */
    int64_t looked_news;
};

static inline struct mdb_store *mdb_of(struct store *st)
{
    return (struct mdb_store *)st;
}

extern const struct store_ops store_mariadb;

/* ---- fail.c: errors ---- */

/* mdb_fail turns the last error of db, which may be NULL, into ours and returns -1. */
int mdb_fail(const struct mdb_store *st, MYSQL *db, struct error *err);
/* mdb_fail_since is mdb_fail for an operation begun at a monotonic time: it distinguishes a server
 * that does not answer from one that hung up. */
int mdb_fail_since(const struct mdb_store *st, MYSQL *db, int64_t since, struct error *err);
/* mdb_is_elsewhere returns whether an error code means that this server is, or became, a replica,
 * and another server accepts writes. */
bool mdb_is_elsewhere(unsigned code);
/* mdb_is_lost returns whether an error code means that the connection is lost. */
bool mdb_is_lost(unsigned code);

/* ---- statement.c ---- */

extern const struct db_driver mdb_driver;

/* The result of a statement, stored on the client, so other statements may run meanwhile. With
 * places, which are sorted by nr like the rows, the first column is an nr, which is read as the seq
 * of its place, and a row without a place is skipped. */
struct mdb_rows {
    MYSQL_RES *res;
    MYSQL_ROW row;
    const unsigned long *size;
    struct mdb_place *places; /* owned */
    size_t n_places, place;
};

/* mdb_rows_free frees a result; NULL is fine. mdb_count counts its rows. */
void mdb_rows_free(struct mdb_rows *q);
size_t mdb_count(const struct db_rows *q);
/* mdb_exec runs a text unchanged. mdb_start does so as db_driver.rows. */
void *mdb_start(struct store *st, const char *text, struct error *err);
int mdb_exec(struct store *st, const char *text, struct error *err);

/* mdb_group switches multi-statements on or, for a connection that the application also uses,
 * off. */
int mdb_group(struct mdb_store *st, bool on, struct error *err);
/* mdb_exec_later defers a text whose result is not needed yet; see db_later. */
int mdb_exec_later(struct mdb_store *st, const char *text, struct error *err);
/* mdb_forget_later drops deferred statements, since their transaction is over. */
void mdb_forget_later(struct mdb_store *st);

/* How texts are written into a statement. */
enum mdb_literals {
    MDB_QUOTED, /* the session uses utf8mb4 */
    MDB_HEX,    /* the session is the application's, and may use any character set */
    MDB_OPEN,   /* placeholders, for a prepared statement */
};
/* mdb_add_name appends a name in backticks, mdb_add_hex a text in hexadecimal digits. */
void mdb_add_name(struct buf *b, struct str name);
void mdb_add_hex(struct buf *b, struct str s);
/* mdb_write appends the text of a statement to b. */
void mdb_write(const struct mdb_store *st, enum mdb_literals how, const struct sql *sql,
               const void *args, struct buf *b);
/* mdb_ask sends a text on a connection and returns its rows, if any. */
int mdb_ask(const struct mdb_store *st, MYSQL *db, const char *text, size_t n, struct db_rows *ret,
            struct error *err);

/* ---- open.c ---- */

/* mdb_connect connects, if not connected, and sets up the session; mdb_disconnect drops the
 * connection. */
int mdb_connect(struct mdb_store *st, struct error *err);
void mdb_disconnect(struct mdb_store *st);
/* mdb_hurry sets whether the server ends an idle transaction on our connection; a transaction of
 * the application may idle. */
int mdb_hurry(struct mdb_store *st, bool hurry, struct error *err);
/* mdb_dial opens another connection with our session settings. */
MYSQL *mdb_dial(struct mdb_store *st, struct error *err);
/* mdb_answer_seconds returns a connection's answer timeout, in whole seconds. */
int64_t mdb_answer_seconds(const struct mdb_store *st);
/* mdb_by_server returns whether time is the server's; otherwise it is a test's clock. */
bool mdb_by_server(const struct mdb_store *st);
/* mdb_now returns the server's time in ms, which is constant during a turn. */
int64_t mdb_now(struct store *st);
/* mdb_heard notes a reading of the server's time. */
void mdb_heard(struct store *st, int64_t wall);

/* ---- schema.c: the tables and their version ---- */

int mdb_schema_status(struct store *st, struct schema_status *ret, struct error *err);
int mdb_init(struct store *st, bool *ret_created, struct error *err);
int mdb_ddl(const struct ddl_request *req, struct error *err);

/* ---- transaction.c ---- */

int mdb_begin(struct store *st, bool ours, struct error *err);
void mdb_rollback(struct store *st);
/* mdb_tx_gone fails if the transaction that mdb_begin opened is no longer open. */
int mdb_tx_gone(struct store *st, struct error *err);
/* mdb_by_hand fails if the application has begun a transaction on our connection: beginning one of
 * our own would commit it. */
int mdb_by_hand(const struct mdb_store *st, struct error *err);
/* mdb_is_open returns whether a transaction is open on a connection, or will be with its next
 * statement. */
bool mdb_is_open(MYSQL *db);
int mdb_snapshot_begin(struct store *st, bool *ret_own, struct error *err);
void mdb_snapshot_end(struct store *st, bool own);
int mdb_expose(struct store *st, int64_t idle_ms, struct error *err);
enum tx_state mdb_tx_state(struct store *st);

/* ---- read.c: the driver's part of a turn, see db.h ---- */

int mdb_before_turns(struct turn *t, size_t n, struct error *err);
int mdb_read_fresh(struct turn *t, int lane, int64_t position, struct chunk *ret,
                   struct error *err);
void mdb_read_on(struct turn *t);
int mdb_after_turns(struct turn *t, size_t n, struct error *err);
/* mdb_ahead_fetch waits for the result of reading ahead. mdb_ahead_release closes the
 * connection. */
void mdb_ahead_fetch(struct mdb_store *st);
void mdb_ahead_release(struct mdb_store *st);

/* ---- watch.c ---- */

/* mdb_sequence assigns a seq to every committed event, outside of a transaction. On a read-only
 * server it does nothing. */
int mdb_sequence(struct store *st, struct error *err);
/* mdb_news notifies relays of a change other than an event. */
void mdb_news(struct store *st);

int mdb_wake_fd(struct store *st);
void mdb_wake_clear(struct store *st);
void mdb_wakeup_release(struct mdb_store *st);
int mdb_poll_new(struct store *st, bool skip_query, bool payloads, new_event_visit *visit,
                 void *ctx, struct watch_result *ret, struct error *err);

/* ---- emit.c ---- */

int mdb_target(struct store *st, void *foreign, struct db_target *ret, struct error *err);
struct db_rows mdb_target_rows(const struct db_target *t, const struct sql *sql, const void *args,
                               struct error *err);
int64_t mdb_target_changed(const struct db_target *t);
int mdb_insert(const struct db_target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
               bool *ret_duplicate, struct error *err);
void mdb_prepared_release(struct mdb_prepared *p);

/* ---- adopted tables, in extra/adopt ---- */

extern const struct adopt_driver adopt_mariadb;
/* adopt_mariadb_renew recreates triggers of adopted tables that run as an account that no longer
 * exists, as far as accounts may be seen: they then run as our account. */
int adopt_mariadb_renew(struct mdb_store *st, struct error *err);
/* adopt_mark_rows notes which rows of adopted tables the consumer has received, according to the
 * settlement, and marks them. It waits for no lock: a later turn marks rows that another session
 * has locked. A problem with a table is recorded for `doctor`, and is not a failure. */
int adopt_mark_rows(struct store *st, const char *consumer, const struct settlement *s,
                    struct error *err);

/* ---- grant.c, doctor.c ---- */

int mdb_grant(struct store *st, const struct grant_request *req, bool *ret_changed,
              struct error *err);
int mdb_doctor(struct store *st, const struct doctor_request *req, struct error *err);

#endif
