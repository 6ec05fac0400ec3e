/* db.h: the databases of the handler tests: SQLite (db_sqlite.c), PostgreSQL (db_pg.c), MariaDB
 * (db_maria.c), or memory, where only db_fresh and db_clean exist (db_memory.c). */
#ifndef TESTS_API_DB_H
#define TESTS_API_DB_H

#include <stdbool.h>

#include "outbox.h"

extern const bool db_one_writer; /* a handler's transaction blocks every other writer */
extern const bool db_goes_on;    /* a failed statement undoes nothing but itself */
extern const bool db_defers;     /* a constraint can be checked by the COMMIT */

/* db_fresh creates an outbox, and beside it a table effect (handler, key, at) in which `at` records
 * the order. db_open opens it once more. They abort if the test cannot continue. */
outbox *db_fresh(const outbox_options *o);
outbox *db_open(const outbox_options *o);
void db_clean(void);

/* db_do runs SQL on a separate connection, and may change events. db_number returns the number that
 * a query yields. In both, @ precedes the name of each table: @event, @handled, @effect. */
void db_do(const char *sql);
long db_number(const char *sql);
/* db_tx runs SQL in a handler's transaction; -1: it failed. db_tx_run does so without arguments. */
int db_tx(outbox_tx *tx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int db_tx_run(outbox_tx *tx, const char *sql);
void db_give_up(const char *what, const char *why) __attribute__((noreturn));

/* db_once is an application that received a message by other means. On a separate connection it
 * asks the inbox, takes effect if the message is new, and commits if `keep` is set. db_once_bare
 * asks without a transaction. */
int db_once(outbox *ob, const char *key, const char *payload, bool keep, int *ret_first,
            outbox_error *err);
int db_once_bare(outbox *ob, const char *key, int *ret_first, outbox_error *err);

#endif
