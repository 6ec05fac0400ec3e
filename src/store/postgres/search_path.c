/* search_path.c: the search_path that a statement of ours runs with. */
#include <stdlib.h>

#include "store/postgres/postgres.h"
#include "store/postgres/statement.h"

enum pg_path pg_path_for(const struct pg_store *st, enum pg_link link, const char *sql)
{
    bool needs_none = strncmp(sql, PG_NAMED, sizeof PG_NAMED - 1) == 0;
    bool shared_tx = st->in_tx && st->tx_shared;
    bool foreign_session = !st->in_tx && (st->pooled || st->lent);

    if (needs_none || link == PG_READER)
        return PG_PATH_IS_OURS;
    if (shared_tx)
        return PG_PATH_CHANGED;
    if (foreign_session)
        return PG_PATH_SENT_ALONG;
    return PG_PATH_IS_OURS;
}

int pg_path_change(struct pg_store *st, struct error *err)
{
    pg_clear_results(st->db);
    PGresult *r = pg_ask(st, st->db,
                         "SELECT pg_catalog.current_setting('search_path'), " PG_SET_PATH);
    free(st->path_was);
    st->path_was = NULL;
    if (!pg_went_well(r)) {
        pg_fail(st, st->db, r, err);
        PQclear(r);
        return -1;
    }
    st->path_was = strdup(PQgetvalue(r, 0, 0));
    PQclear(r);
    if (!st->path_was)
        return err_nomem(err);
    return 0;
}

void pg_path_restore(struct pg_store *st)
{
    const char *path = st->path_was;
    if (!path)
        return;
    if (PQsendQueryParams(st->db, "SELECT pg_catalog.set_config('search_path', $1, true)", 1, NULL,
                          &path, NULL, NULL, 0))
        PQclear(pg_last_result(st, st->db));
    free(st->path_was);
    st->path_was = NULL;
}
