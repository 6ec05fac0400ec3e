/* db.h: what the tests of handlers need of a database, SQLite (db_sqlite.c) or PostgreSQL
 * (db_pg.c). */
#ifndef TESTS_API_DB_H
#define TESTS_API_DB_H

#include <stdbool.h>

#include "outbox.h"

extern const bool db_one_writer; /* a handler's transaction keeps everybody else from writing */

/* db_fresh makes an outbox, and a table effect (handler, key, at) beside it, `at` telling the
 * order. db_open opens it once more. */
outbox *db_fresh(const outbox_options *o);
outbox *db_open(const outbox_options *o);
void db_clean(void);

/* On a connection of its own. @ stands before the name of each table: @event, @handled, @effect. */
void db_do(const char *sql);
long db_number(const char *sql);
/* The same through a handler's transaction; -1: it failed. */
int db_tx(outbox_tx *tx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* db_once is an application that got a message otherwise: on a connection of its own it asks the
 * inbox, makes an effect if it is the first, and commits if told to. db_once_bare asks without a
 * transaction. */
int db_once(outbox *ob, const char *key, const char *payload, bool keep, int *ret_first,
            outbox_error *err);
int db_once_bare(outbox *ob, const char *key, int *ret_first, outbox_error *err);

#endif
