/* backend_postgres.c: the world on PostgreSQL, whose clock is moved by hand, too. */
#include <libpq-fe.h>
#include <stdlib.h>

#include "../contract/pg.h"
#include "../contract/store.h"
#include "sim.h"
#include "store/postgres/postgres.h"

static struct test_clock own_clock;
struct test_clock *store_now_at = &own_clock;

static struct store *open_again(struct sim *w, const struct store_options *opt)
{
    (void)w;
    return pg_again(opt, true);
}

static void tick(const struct sim *w)
{
    store_now = (struct test_clock){w->mono, w->wall};
}

static int run(struct store *st, const char *sql)
{
    PGresult *r = PQexec(pg_of(st)->db, sql);
    bool ok = PQresultStatus(r) == PGRES_COMMAND_OK;
    PQclear(r);
    return ok ? 0 : -1;
}

static int each(struct sim *w, const char *sql, effect_visit *visit)
{
    PGresult *r = PQexec(pg_of(w->st)->db, sql);
    bool ok = PQresultStatus(r) == PGRES_TUPLES_OK;
    for (int i = 0; i < PQntuples(r); i++)
        visit(w, atoi(PQgetvalue(r, i, 0)), atoi(PQgetvalue(r, i, 1)), atoi(PQgetvalue(r, i, 2)));
    PQclear(r);
    return ok ? 0 : -1;
}

const struct backend backend_postgres = {
    .name = "postgres",
    .shown = " on PostgreSQL",
    .numbers = NUMBERED_AT_INSERT,
    .effects = "public.sim_effect",
    .counter = "bigserial",
    .open = open_again,
    .clean = pg_clean,
    .tick = tick,
    .run = run,
    .each = each,
};
