/* backend_sqlite.c: the world on SQLite, in memory: it has one writer at a time. */
#include <sqlite3.h>
#include <stdio.h>

#include "sim.h"
#include "store/sqlite/sqlite.h"

static struct store *open_memory(struct sim *w, const struct store_options *opt)
{
    struct store *st;
    struct error err;
    (void)w;
    if (store_open("sqlite::memory:", opt, &st, &err) == 0)
        return st;
    fprintf(stderr, "%s\n", err.text);
    return NULL;
}

static int run(struct store *st, const char *sql)
{
    return sqlite3_exec(sqlite_of(st)->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : -1;
}

static int each(struct sim *w, const char *sql, effect_visit *visit)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(sqlite_of(w->st)->db, sql, -1, &q, NULL) != SQLITE_OK)
        return -1;
    while (sqlite3_step(q) == SQLITE_ROW)
        visit(w, sqlite3_column_int(q, 0), sqlite3_column_int(q, 1), sqlite3_column_int(q, 2));
    sqlite3_finalize(q);
    return 0;
}

const struct backend backend_sqlite = {
    .shown = "",
    .numbers = NUMBERED_AT_COMMIT,
    .one_writer = true,
    .effects = "sim_effect",
    .counter = "INTEGER PRIMARY KEY AUTOINCREMENT",
    .open = open_memory,
    .run = run,
    .each = each,
};
