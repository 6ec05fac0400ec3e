/* effect.c: the effects of handlers, rows of a table of the application, written in the transaction
 * that a handler is given. The table has no key: only the engine keeps an effect from happening
 * twice. */
#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim.h"
#include "store/postgres/postgres.h"
#include "store/sqlite/sqlite.h"

static int run(struct sim *w, struct store *st, const char *sql)
{
    if (!w->postgres)
        return sqlite3_exec(sqlite_of(st)->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : -1;
    PGresult *r = PQexec(pg_of(st)->db, sql);
    bool ok = PQresultStatus(r) == PGRES_COMMAND_OK;
    PQclear(r);
    return ok ? 0 : -1;
}

void effect_init(struct sim *w)
{
    char sql[256];
    snprintf(sql, sizeof sql,
             "DROP TABLE IF EXISTS %s; CREATE TABLE %s (at %s, handler int, consumer int, n int)",
             w->effects, w->effects,
             w->postgres ? "bigserial" : "INTEGER PRIMARY KEY AUTOINCREMENT");
    if (run(w, w->st, sql) != 0)
        sim_fail(w, "the application's table cannot be made");
}

int effect_put(struct sim *w, struct store *tx, int handler, int consumer, int n)
{
    char sql[200];
    snprintf(sql, sizeof sql, "INSERT INTO %s (handler, consumer, n) VALUES (%d, %d, %d)",
             w->effects, handler, consumer, n);
    return run(w, tx, sql);
}

void effect_each(struct sim *w, void (*visit)(struct sim *w, int handler, int consumer, int n))
{
    char sql[160];
    snprintf(sql, sizeof sql, "SELECT handler, consumer, n FROM %s ORDER BY at", w->effects);
    if (w->postgres) {
        PGresult *r = PQexec(pg_of(w->st)->db, sql);
        for (int i = 0; i < PQntuples(r); i++)
            visit(w, atoi(PQgetvalue(r, i, 0)), atoi(PQgetvalue(r, i, 1)),
                  atoi(PQgetvalue(r, i, 2)));
        PQclear(r);
        return;
    }
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(sqlite_of(w->st)->db, sql, -1, &q, NULL) != SQLITE_OK)
        sim_fail(w, "the application's table cannot be read");
    while (sqlite3_step(q) == SQLITE_ROW)
        visit(w, sqlite3_column_int(q, 0), sqlite3_column_int(q, 1), sqlite3_column_int(q, 2));
    sqlite3_finalize(q);
}
