/* my.h: libmariadb for the programs in this folder; any failure ends the program. */
#ifndef BENCH_MY_H
#define BENCH_MY_H

#include <mysql.h>
#include <stddef.h>

/* my_open connects to a URL as bench/run writes it: mariadb://USER@/NAME?socket=PATH. The session
 * is READ COMMITTED, like the library's. */
MYSQL *my_open(const char *url);

/* my_sql runs a statement without rows. */
void my_sql(MYSQL *db, const char *sql);

/* my_rows runs a statement and returns its rows, which the caller frees. */
MYSQL_RES *my_rows(MYSQL *db, const char *sql);

/* my_send sends a statement; my_take waits for its rows, NULL if it has none. */
void my_send(MYSQL *db, const char *sql);
MYSQL_RES *my_take(MYSQL *db);

/* my_prepare prepares a statement. */
MYSQL_STMT *my_prepare(MYSQL *db, const char *sql);

/* my_run runs a prepared statement with n text parameters. */
void my_run(MYSQL_STMT *q, const char *const *params, size_t n);

#endif
