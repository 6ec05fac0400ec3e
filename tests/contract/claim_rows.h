/* claim_rows.h: a database to claim rows in, by the database's own path or by the portable one, for
 * test_claim_rows.c. */
#ifndef TESTS_CONTRACT_CLAIM_ROWS_H
#define TESTS_CONTRACT_CLAIM_ROWS_H

// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "extra/rows/rows.h"
#include "outbox_rows.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct st_mysql;

/* (1) Exactly one of db, pg and my is set, or none without a test server. */
struct rig {
    bool portable;
    sqlite3 *db;
    PGconn *pg;
    struct st_mysql *my;
    char dir[32]; /* of the SQLite file */
};

/* Group fixtures. Those for PostgreSQL create a database on the server that $OUTBOX_TEST_PG
 * names. */
int rig_sqlite(void **state);
int rig_sqlite_portable(void **state);
int rig_memory(void **state);
int rig_postgres(void **state);
int rig_postgres_portable(void **state);
int rig_mariadb(void **state); /* on the server that $OUTBOX_TEST_MARIADB names */
int rig_mariadb_portable(void **state);
int rig_end(void **state);

/* rig_jobs runs before each test, and creates a table `jobs` with the rows 1 to 9. */
int rig_jobs(void **state);
/* rig_of returns a test's rig; it skips the test without PostgreSQL. */
struct rig *rig_of(void **state);

/* rig_again is another connection to the same database; rig_close closes it. */
struct rig rig_again(const struct rig *g);
void rig_close(struct rig *g);

/* rig_exec and rig_number fail the test if the statement fails. */
void rig_exec(const struct rig *g, const char *sql);
int64_t rig_number(const struct rig *g, const char *sql);

/* rig_database is the name of the database on a server. */
const char *rig_database(void);
/* rig_dialect returns the dialect of the rig's database. rig_idle tells whether no transaction is
 * open. */
const struct rows_dialect *rig_dialect(const struct rig *g);
bool rig_idle(const struct rig *g);
/* rig_claim claims by the rig's path. */
int rig_claim(const struct rig *g, outbox_row_claim c, outbox_rows **ret, outbox_error *err);

/* rig_expect claims and fails the test unless it gets the rows with these ids (of up to four
 * digits, in column 0), in this order: "3 1 2". The caller frees what it returns. */
outbox_rows *rig_expect(const struct rig *g, outbox_row_claim c, const char *ids);

/* WITH(c, criteria, list) fills the array fields of a claim. */
#define WITH(c, part, array) ((c).part = (array), (c).n_##part = COUNT(array))

/* claim_rows_race.c: many claimers at once get each row exactly once. */
void racing_claimers_get_each_row_exactly_once(void **state);

#endif
