#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../contract/pg.h"
#include "../contract/store.h"
#include "db.h"

const bool db_one_writer = false, db_goes_on = false, db_defers = true;
static struct test_clock own_clock;
struct test_clock *store_now_at = &own_clock;

/* expand writes the name of the schema and a dot for each @. */
static const char *expand(const char *sql, char *out, size_t size)
{
    size_t n = 0;
    for (; *sql && n + 1 < size; sql++) {
        if (*sql != '@')
            out[n++] = *sql;
        else
            n += (size_t)snprintf(out + n, size - n, "%s.", pg_schema());
    }
    out[n < size ? n : size - 1] = '\0';
    return out;
}

outbox *db_open(const outbox_options *o)
{
    outbox *ob;
    outbox_error err;
    if (outbox_open(pg_url(), o, &ob, &err) != 0)
        db_give_up("open", err.text);
    return ob;
}

outbox *db_fresh(const outbox_options *o)
{
    struct store *st = pg_fresh(&(struct store_options){.create = true}, false);
    if (!st)
        db_give_up("fresh", "no server");
    store_close(st);
    db_do("CREATE TABLE @effect (handler text, key text, at bigserial PRIMARY KEY)");
    return db_open(o);
}

void db_clean(void)
{
    pg_clean();
}

void db_do(const char *sql)
{
    char text[1024];
    PGconn *db = pg_connect();
    pg_do(db, "SET outbox.change_events = 'on'");
    pg_do(db, "%s", expand(sql, text, sizeof text));
    PQfinish(db);
}

long db_number(const char *sql)
{
    char text[1024];
    PGconn *db = pg_connect();
    long n = (long)pg_number(db, "%s", expand(sql, text, sizeof text));
    PQfinish(db);
    return n;
}

int db_tx_run(outbox_tx *tx, const char *sql)
{
    char text[1024];
    PGconn *db = outbox_tx_pg(tx);
    if (!db)
        db_give_up(sql, "no transaction");
    PGresult *r = PQexec(db, expand(sql, text, sizeof text));
    ExecStatusType s = PQresultStatus(r);
    PQclear(r);
    return s == PGRES_COMMAND_OK || s == PGRES_TUPLES_OK ? 0 : -1;
}

int db_once(outbox *ob, const char *key, const char *payload, bool keep, int *ret_first,
            outbox_error *err)
{
    PGconn *db = pg_connect();
    pg_do(db, "BEGIN");
    int r = outbox_handle_once_pg(ob, db, "queue", key, payload, 0, ret_first, err);
    if (r == 0 && *ret_first)
        pg_do(db, "INSERT INTO %s.effect (handler, key) VALUES ('queue', '%s')", pg_schema(), key);
    pg_do(db, "%s", r == 0 && keep ? "COMMIT" : "ROLLBACK");
    PQfinish(db);
    return r;
}

int db_once_bare(outbox *ob, const char *key, int *ret_first, outbox_error *err)
{
    PGconn *db = pg_connect();
    int r = outbox_handle_once_pg(ob, db, "queue", key, NULL, 0, ret_first, err);
    PQfinish(db);
    return r;
}
