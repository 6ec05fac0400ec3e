#include "pg.h"

#include <stdbool.h>

#include "bench.h"

PGconn *pg_open(const char *url)
{
    PGconn *db = PQconnectdb(url);
    if (PQstatus(db) != CONNECTION_OK)
        bench_die("%s", PQerrorMessage(db));
    return db;
}

static bool good(const PGresult *r)
{
    ExecStatusType status = PQresultStatus(r);
    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK || status == PGRES_SINGLE_TUPLE;
}

void pg_sql(PGconn *db, const char *sql)
{
    PGresult *r = PQexec(db, sql);
    if (!good(r))
        bench_die("%s: %s", sql, PQerrorMessage(db));
    PQclear(r);
}

void pg_prepare(PGconn *db, const char *name, const char *sql)
{
    PGresult *r = PQprepare(db, name, sql, 0, NULL);
    if (!good(r))
        bench_die("%s: %s", sql, PQerrorMessage(db));
    PQclear(r);
}

void pg_send(PGconn *db, const char *name, const char *const *params, int n)
{
    if (!PQsendQueryPrepared(db, name, n, params, NULL, NULL, 1))
        bench_die("%s: %s", name, PQerrorMessage(db));
}

PGresult *pg_take(PGconn *db)
{
    PGresult *r = PQgetResult(db), *end;
    if (!good(r))
        bench_die("%s", PQerrorMessage(db));
    while ((end = PQgetResult(db)) != NULL)
        PQclear(end);
    return r;
}

void pg_run(PGconn *db, const char *name, const char *const *params, int n)
{
    pg_send(db, name, params, n);
    PQclear(pg_take(db));
}

int64_t pg_int8(const PGresult *r, int row, int column)
{
    const unsigned char *p = (const unsigned char *)PQgetvalue(r, row, column);
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v = v << 8 | p[i];
    return (int64_t)v;
}
