/* command.c: commands without parameters. */
#include <stdlib.h>

#include "store/postgres/postgres.h"
#include "store/postgres/statement.h"

PGresult *pg_ask(struct pg_store *st, PGconn *db, const char *text)
{
    if (!PQsendQuery(db, text))
        return NULL;
    return pg_last_result(st, db);
}

int pg_command(struct pg_store *st, PGconn *db, const char *text, struct error *err)
{
    int result = 0;
    PGresult *r = pg_ask(st, db, text);
    if (!pg_went_well(r))
        result = pg_fail(st, db, r, err);
    PQclear(r);
    return result;
}

int pg_simple(struct pg_store *st, const char *text, struct error *err)
{
    pg_clear_results(st->db);
    return pg_command(st, st->db, text, err);
}

int pg_script(struct pg_store *st, const char *sql, struct error *err)
{
    char *text = pg_expand(st, sql);
    if (!text)
        return err_nomem(err);
    int result = pg_simple(st, text, err);
    free(text);
    return result;
}
