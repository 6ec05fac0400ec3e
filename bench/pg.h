/* pg.h: PostgreSQL for the programs in this folder: plain libpq. Any failure ends the program. */
#ifndef BENCH_PG_H
#define BENCH_PG_H

#include <libpq-fe.h>
#include <stdint.h>

PGconn *pg_open(const char *url);
void pg_sql(PGconn *db, const char *sql);
/* pg_prepare prepares a statement under `name`; the server infers the types of its parameters. */
void pg_prepare(PGconn *db, const char *name, const char *sql);

/* pg_send starts a prepared statement with n parameters, as text, and does not wait; results come
 * in binary. */
void pg_send(PGconn *db, const char *name, const char *const *params, int n);
/* pg_take waits for the started statement; the caller clears the result. */
PGresult *pg_take(PGconn *db);
/* pg_run does both and discards the result. */
void pg_run(PGconn *db, const char *name, const char *const *params, int n);

int64_t pg_int8(const PGresult *r, int row, int column); /* of a binary result */

#endif
