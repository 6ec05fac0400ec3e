/* mariadb.h: what the files of the MariaDB store share. A function's comment names the file it is
 * in. */
#ifndef STORE_MARIADB_MARIADB_H
#define STORE_MARIADB_MARIADB_H

#include <mysql.h>
#include <stdlib.h>

#include "base/buf.h"
#include "store/db/turn.h"

#define MDB_SCHEMA_VERSION 1
#define MDB_TRIGGERS 5 /* that an outbox has */

/* ---- url.c: what a mariadb: URL says ---- */

enum mdb_tls {
    MDB_TLS_DEFAULT, /* as MDB_TLS_VERIFY, but for a socket or this machine as MDB_TLS_OFF */
    MDB_TLS_OFF,
    MDB_TLS_ON,     /* encrypted, whoever answers */
    MDB_TLS_VERIFY, /* encrypted, and the certificate is that of the host */
};

/* Where to connect. Strings are owned; NULL where the URL says nothing. */
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
/* mdb_url_password gives the password, or NULL if there is none: ours to free with explicit_bzero
 * and free. */
int mdb_url_password(const struct mdb_url *u, char **ret, struct error *err);

/* ---- the handle ---- */

/* The server's clock, as it was read last. */
struct mdb_clock {
    int64_t wall; /* ms */
    int64_t mono; /* when it was read; 0: never */
};

/* A second connection, on which the server tells when there is something new; see watch.c. */
struct mdb_wakeup {
    MYSQL *db;          /* NULL: not connected */
    bool asked;         /* an answer is on its way */
    int64_t again;      /* when to try to connect again, monotonic */
    int64_t next, news; /* the sequencer, as this handle knows it */
    int64_t active;     /* when there was something new last, monotonic */
};

/* Where an event is: seq in the order of commits, nr in the table. */
struct mdb_place {
    int64_t seq, nr;
};

/* Which events to read: up to max after a position. A payload of more than `most` bytes is left
 * out. */
struct mdb_after {
    int64_t position, max, most;
};

/* A connection on which the next events are read while others are delivered; see ahead.c. */
struct mdb_ahead {
    MYSQL *db;             /* NULL: not connected */
    bool asked;            /* an answer is on its way: to `what`, from places[at] on */
    struct mdb_rows *rows; /* the answer, once it was fetched; NULL: not yet */
    struct mdb_after what;
    struct mdb_place *places; /* n of them, in a row; those before `at` were read */
    size_t n, at;
    int64_t again; /* when to try to connect again, monotonic */
};

/* Statements that wait for the next question: n of them, in the first bytes of the text. */
struct mdb_later {
    size_t n, size;
    bool begins; /* the transaction begins with the first of them */
};

/* A statement that the server has prepared. */
struct mdb_prepared {
    MYSQL_STMT *q; /* NULL: not yet */
    bool refused;  /* the server would not */
};

/* (1) Nothing waits in `later` outside of a transaction. */
struct mdb_store {
    struct db_store base;
    MYSQL *db; /* NULL: not connected */
    char *url_text;
    struct mdb_url url;
    char *quoted;   /* `name`. */
    bool wrote;     /* the open transaction has changed something */
    bool unhurried; /* the server lets its transactions stand still, see mdb_hurry */
    bool moved; /* the server may not be written to any more: the address may lead to another now */
    bool dirty; /* handlers have had the session since it was set up */
    bool grouped; /* the server takes several statements at once, see mdb_group */
    bool beside;  /* fetch what was read ahead while waiting for the next questions */
    int savepoints;
    int64_t idle_ms;    /* see mdb_lend */
    int64_t packet_max; /* bytes of a statement that the server takes; 0: not known */
    int64_t changed;    /* rows that the last statement changed, or would have */
    struct buf text;    /* what is to be sent */
    struct mdb_later later;
    struct mdb_prepared insert, insert_plain; /* see mdb_insert */
    struct mdb_clock clock;
    struct mdb_wakeup wakeup;
    struct mdb_ahead ahead;
    int unlooked;   /* turns since the last one that looked for what is new */
    int64_t looked; /* the last seq that a look has covered; -1: none yet */
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
/* mdb_fail_since is mdb_fail for what was begun at a time of the steady clock: it tells a server
 * that does not answer from one that hung up. */
int mdb_fail_since(const struct mdb_store *st, MYSQL *db, int64_t since, struct error *err);
/* mdb_is_elsewhere says whether an error code means that another server may be written to: this one
 * is a replica, or became one. */
bool mdb_is_elsewhere(unsigned code);
/* mdb_is_lost says whether an error code means that the connection is gone. */
bool mdb_is_lost(unsigned code);

/* ---- statement.c ---- */

extern const struct db_driver mdb_driver;

/* The answer to a statement: its rows are here, so other statements may run meanwhile. With places,
 * which grow by nr as the rows do, the first column is an nr, whose seq mdb_seq gives, and a row
 * that has no place is left out. */
struct mdb_rows {
    MYSQL_RES *res;
    MYSQL_ROW row;
    const unsigned long *size;
    struct mdb_place *places; /* owned */
    size_t n_places, place;
};

/* mdb_rows_free frees an answer; NULL is fine. mdb_count counts its rows. */
void mdb_rows_free(struct mdb_rows *q);
size_t mdb_count(const struct db_rows *q);
/* mdb_exec runs a text as it is. */
int mdb_exec(struct mdb_store *st, const char *text, struct error *err);

/* mdb_group has the connection take several statements at once, or one at a time, as is right for
 * a connection on which the application works as well. */
int mdb_group(struct mdb_store *st, bool on, struct error *err);
/* mdb_exec_later runs a text whose effect nothing waits for; see db_later. */
int mdb_exec_later(struct mdb_store *st, const char *text, struct error *err);
/* mdb_forget_later forgets what waits, since its transaction is over. */
void mdb_forget_later(struct mdb_store *st);

/* How texts are written into a statement. */
enum mdb_literals {
    MDB_QUOTED, /* the session speaks utf8mb4 */
    MDB_HEX,    /* the session is somebody else's, and may speak anything */
    MDB_OPEN,   /* not at all: the statement is to be prepared */
};
/* mdb_write appends the text of a statement to b. */
void mdb_write(const struct mdb_store *st, enum mdb_literals how, const struct sql *sql,
               const void *args, struct buf *b);
/* mdb_ask sends a text on a connection and gives its rows, if any. */
int mdb_ask(const struct mdb_store *st, MYSQL *db, const char *text, size_t n, struct db_rows *ret,
            struct error *err);

/* ---- connect.c ---- */

/* mdb_connect connects, unless that is done, and prepares the session; mdb_disconnect forgets a
 * connection. */
int mdb_connect(struct mdb_store *st, struct error *err);
void mdb_disconnect(struct mdb_store *st);
/* mdb_hurry says whether the server shall end a transaction of ours that stands still: one of the
 * application's may. */
int mdb_hurry(struct mdb_store *st, bool hurry, struct error *err);
/* mdb_dial makes a connection whose session is like ours. */
MYSQL *mdb_dial(struct mdb_store *st, struct error *err);
/* mdb_answer_seconds is how long a connection waits for an answer: it counts in seconds. */
int64_t mdb_answer_seconds(const struct mdb_store *st);
/* mdb_by_server says whether time is the server's; else it is a test's. */
bool mdb_by_server(const struct mdb_store *st);
/* mdb_now is the server's time in ms; inside a turn it stands still. */
int64_t mdb_now(struct store *st);
/* mdb_heard remembers the server's time. */
void mdb_heard(struct store *st, int64_t wall);

/* ---- schema.c: the tables and their version ---- */

int mdb_schema_status(struct store *st, struct schema_status *ret, struct error *err);
int mdb_init(struct store *st, bool *ret_created, struct error *err);
int mdb_ddl(const struct ddl_request *req, struct error *err);

/* ---- transaction.c ---- */

/* mdb_begin begins one of our own; mdb_begin_open one in which the application works. */
int mdb_begin(struct store *st, struct error *err);
int mdb_begin_open(struct store *st, struct error *err);
int mdb_commit(struct store *st, struct error *err);
void mdb_rollback(struct store *st);
/* mdb_tx_gone fails if the transaction that mdb_begin opened is not open any more. */
int mdb_tx_gone(struct store *st, struct error *err);
/* mdb_by_hand fails if somebody has begun a transaction on our connection: to begin one of our own
 * would commit it. */
int mdb_by_hand(const struct mdb_store *st, struct error *err);
/* mdb_is_open says whether a transaction is open on a connection, or will be with its next
 * statement. */
bool mdb_is_open(MYSQL *db);
int mdb_snapshot_begin(struct store *st, bool *ret_own, struct error *err);
void mdb_snapshot_end(struct store *st, bool own);
int mdb_lend(struct store *st, int64_t idle_ms, struct error *err);
int mdb_savepoint(struct store *st, enum savepoint what, struct error *err);
enum tx_state mdb_tx_state(struct store *st);

/* ---- sequence.c ---- */

/* mdb_sequence gives a seq to every event that is committed, outside of a transaction. A server
 * that may only be read leaves them without. */
int mdb_sequence(struct mdb_store *st, struct error *err);
/* mdb_news tells relays that something changed that is no event. */
void mdb_news(struct store *st);

/* ---- read.c: the driver's part of a turn, see db.h ---- */

int mdb_before_turns(struct turn *t, size_t n, struct error *err);
int mdb_read_fresh(struct turn *t, int lane, int64_t position, struct chunk *ret,
                   struct error *err);
void mdb_read_on(struct turn *t);
int mdb_after_turns(struct turn *t, size_t n, struct error *err);
/* mdb_ahead_fetch waits for what was asked for ahead. mdb_ahead_release closes the connection. */
void mdb_ahead_fetch(struct mdb_store *st);
void mdb_ahead_release(struct mdb_store *st);

/* ---- watch.c ---- */

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

/* ---- adopt.c ---- */

extern const struct adopt_driver mdb_adopt_driver;
/* mdb_adopt_renew makes triggers of adopted tables anew that run as an account that is gone, as far
 * as accounts may be seen: they run as ours then. */
int mdb_adopt_renew(struct mdb_store *st, struct error *err);

/* mdb_mark_rows notes which rows of adopted tables the consumer has had, by what is settled, and
 * marks those, except such as another transaction has locked: nothing is waited for, and a later
 * turn marks them. What is wrong with a table is written down for `doctor`, and is no failure. */
int mdb_mark_rows(struct store *st, const char *consumer, const struct settlement *s,
                  struct error *err);

/* ---- grant.c, doctor.c ---- */

int mdb_grant(struct store *st, const struct grant_request *req, bool *ret_changed,
              struct error *err);
int mdb_doctor(struct store *st, const struct doctor_request *req, struct error *err);

#endif
