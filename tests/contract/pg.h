/* pg.h: a database of its own on the test run's PostgreSQL server, for tests in C. */
#ifndef TESTS_CONTRACT_PG_H
#define TESTS_CONTRACT_PG_H

#include <libpq-fe.h>

#include "store/store.h"

/* pg_fresh makes an empty outbox in a database of its own and opens it. With `clock`, the database
 * goes by the store suite's clock, which is in a file then. pg_clean drops the database. */
struct store *pg_fresh(const struct store_options *opt, bool clock);
void pg_clean(void);
/* pg_again does the same, but quicker: if there is an outbox already, it empties that. */
struct store *pg_again(const struct store_options *opt, bool clock);

/* pg_url is the URL of the outbox of the last pg_fresh; pg_schema the name of its schema. */
const char *pg_url(void);
const char *pg_schema(void);

/* pg_connect opens another connection, with that schema as its search_path. pg_do runs commands and
 * fails the test if one fails; pg_number gives the number that a query gives. Both take printf
 * arguments. */
PGconn *pg_connect(void);
void pg_do(PGconn *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int64_t pg_number(PGconn *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
