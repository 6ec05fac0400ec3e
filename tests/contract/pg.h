/* pg.h: a separate database on the test run's PostgreSQL server, for tests in C. */
#ifndef TESTS_CONTRACT_PG_H
#define TESTS_CONTRACT_PG_H

#include <libpq-fe.h>

#include "store/store.h"

/* pg_fresh creates an empty outbox in a separate database and opens it. With `clock`, the database
 * uses the store suite's clock, which is in a file then. pg_clean drops the database. */
struct store *pg_fresh(const struct store_options *opt, bool clock);
void pg_clean(void);
/* pg_again does the same faster: it empties an existing outbox. */
struct store *pg_again(const struct store_options *opt, bool clock);

/* pg_url is the URL of the outbox of the last pg_fresh; pg_schema the name of its schema. */
const char *pg_url(void);
const char *pg_schema(void);

/* pg_connect opens another connection, with that schema as its search_path. pg_do runs commands and
 * fails the test if one fails; pg_number returns the number that a query yields. Both take printf
 * arguments. */
PGconn *pg_connect(void);
void pg_do(PGconn *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int64_t pg_number(PGconn *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
