/* pg.h: a database of its own on the test run's PostgreSQL server, for tests in C. */
#ifndef TESTS_CONTRACT_PG_H
#define TESTS_CONTRACT_PG_H

#include <libpq-fe.h>

#include "store/store.h"

/* pg_fresh makes an empty outbox in a schema of its own and opens it. With a clock, the outbox goes
 * by that of the store suite: it is in a file that both processes look at. pg_clean drops the
 * schema. */
struct store *pg_fresh(const struct store_options *opt, bool clock);
void pg_clean(void);
/* pg_again is pg_fresh, but empties the outbox of the one before, if there was one: that is
 * quicker. */
struct store *pg_again(const struct store_options *opt, bool clock);

/* pg_url is the URL of the outbox of the last pg_fresh; pg_schema the name of its schema. */
const char *pg_url(void);
const char *pg_schema(void);

/* pg_connect opens a connection of one's own with search_path on that schema. pg_do runs commands
 * on it, failing the test if one does; pg_number gives the number a query gives. Both take printf
 * arguments. */
PGconn *pg_connect(void);
void pg_do(PGconn *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int64_t pg_number(PGconn *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
