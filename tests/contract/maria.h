/* maria.h: databases on the test run's MariaDB server ($OUTBOX_TEST_MARIADB). */
#ifndef TESTS_CONTRACT_MARIA_H
#define TESTS_CONTRACT_MARIA_H

#include <mysql.h>

#include "store/store.h"

/* maria_fresh creates a database with an outbox in it and opens that. maria_clean drops it. */
struct store *maria_fresh(const struct store_options *opt);
void maria_clean(void);
/* maria_again does the same faster: it empties an existing outbox. */
struct store *maria_again(const struct store_options *opt);
bool maria_sneak(struct store *st, const char *sql);
/* maria_url is the URL of the present one. */
const char *maria_url(void);
/* maria_connect opens a connection to it, which the caller closes. */
MYSQL *maria_connect(void);
/* maria_do runs a statement; maria_number runs a query and returns its first number. Both fail the
 * test on failure. maria_try returns the error's number, 0 for none. */
void maria_do(MYSQL *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int64_t maria_number(MYSQL *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
unsigned maria_try(MYSQL *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
