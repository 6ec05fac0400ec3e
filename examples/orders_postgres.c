/* orders_postgres.c: the shop of orders.c in PostgreSQL. */
#include <inttypes.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>

#include "orders_db.h"

static void check(PGconn *db, const char *text, PGresult *r)
{
    ExecStatusType status = PQresultStatus(r);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        orders_die(text, PQerrorMessage(db));
}

static void run(void *db, const char *text)
{
    PGresult *r = PQexec(db, text);
    check(db, text, r);
    PQclear(r);
}

/* Runs a statement with the first n of: the order's id, the customer, the total in cents. */
static void change(void *db, const char *text, const struct order *o, int n)
{
    char id[24], cents[24];
    const char *values[] = {id, o->customer, cents};
    snprintf(id, sizeof id, "%" PRId64, o->id);
    snprintf(cents, sizeof cents, "%" PRId64, o->cents);
    PGresult *r = PQexecParams(db, text, n, NULL, values, NULL, NULL, 0);
    check(db, text, r);
    PQclear(r);
}

static void insert(void *db, const struct order *o)
{
    change(db, "INSERT INTO orders VALUES ($1, $2, $3, 'created')", o, 3);
}

static void pay(void *db, const struct order *o)
{
    change(db, "UPDATE orders SET state = 'paid' WHERE id = $1", o, 1);
}

static int emit(outbox *ob, void *db, const outbox_message *m, outbox_error *err)
{
    return outbox_emit_pg(ob, db, m, NULL, err);
}

static int64_t last(void *db)
{
    const char *text = "SELECT coalesce(max(id), 0) FROM orders";
    PGresult *r = PQexec(db, text);
    check(db, text, r);
    int64_t id = strtoll(PQgetvalue(r, 0, 0), NULL, 10);
    PQclear(r);
    return id;
}

static void ignore(void *ctx, const char *notice)
{
    (void)ctx;
    (void)notice;
}

static void *open_server(const char *url)
{
    PGconn *db = PQconnectdb(url);
    if (PQstatus(db) != CONNECTION_OK)
        orders_die("could not connect", PQerrorMessage(db));
    PQsetNoticeProcessor(db, ignore, NULL);
    return db;
}

static void close_server(void *db)
{
    PQfinish(db);
}

const struct shop_db orders_postgres = {
    .scheme = "postgres:",
    .open = open_server,
    .close = close_server,
    .run = run,
    .insert = insert,
    .pay = pay,
    .emit = emit,
    .last = last,
    .begin = "BEGIN",
};
