/* orders_mariadb.c: the shop of orders.c in MariaDB, whose client library does not parse URLs: this
 * program accepts mariadb://USER@/DATABASE?socket=PATH. */
#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "orders_db.h"

static void run(void *db, const char *text)
{
    if (mysql_query(db, text) != 0)
        orders_die(text, mysql_error(db));
}

/* Runs a statement with `values`. */
static void change(void *db, const char *text, MYSQL_BIND *values)
{
    MYSQL_STMT *stmt = mysql_stmt_init(db);
    if (!stmt)
        orders_die(text, "out of memory");
    if (mysql_stmt_prepare(stmt, text, strlen(text)) != 0)
        orders_die(text, mysql_stmt_error(stmt));
    if (mysql_stmt_bind_param(stmt, values) != 0 || mysql_stmt_execute(stmt) != 0)
        orders_die(text, mysql_stmt_error(stmt));
    mysql_stmt_close(stmt);
}

static MYSQL_BIND number(const int64_t *n)
{
    return (MYSQL_BIND){.buffer_type = MYSQL_TYPE_LONGLONG, .buffer = (void *)n};
}

static void insert(void *db, const struct order *o)
{
    MYSQL_BIND customer = {
        .buffer_type = MYSQL_TYPE_STRING,
        .buffer = (void *)o->customer,
        .buffer_length = strlen(o->customer),
    };
    MYSQL_BIND values[] = {number(&o->id), customer, number(&o->cents)};
    change(db, "INSERT INTO orders VALUES (?, ?, ?, 'created')", values);
}

static void pay(void *db, const struct order *o)
{
    MYSQL_BIND values[] = {number(&o->id)};
    change(db, "UPDATE orders SET state = 'paid' WHERE id = ?", values);
}

static int emit(outbox *ob, void *db, const outbox_message *m, outbox_error *err)
{
    return outbox_emit_mariadb(ob, db, m, NULL, err);
}

static int64_t last(void *db)
{
    run(db, "SELECT COALESCE(MAX(id), 0) FROM orders");
    MYSQL_RES *r = mysql_store_result(db);
    if (!r)
        orders_die("last order", mysql_error(db));
    MYSQL_ROW row = mysql_fetch_row(r);
    int64_t id = row ? strtoll(row[0], NULL, 10) : 0;
    mysql_free_result(r);
    return id;
}

static void *open_server(const char *url)
{
    char user[64], name[64], path[256];
    if (sscanf(url, "mariadb://%63[^@]@/%63[^?]?socket=%255s", user, name, path) != 3)
        orders_die(url, "not mariadb://USER@/DATABASE?socket=PATH");
    MYSQL *db = mysql_init(NULL);
    if (!db)
        orders_die(url, "out of memory");
    mysql_optionsv(db, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    if (!mysql_real_connect(db, NULL, user, NULL, name, 0, path, 0))
        orders_die("could not connect", mysql_error(db));
    return db;
}

static void close_server(void *db)
{
    mysql_close(db);
}

const struct shop_db orders_mariadb = {
    .scheme = "mariadb:",
    .open = open_server,
    .close = close_server,
    .run = run,
    .insert = insert,
    .pay = pay,
    .emit = emit,
    .last = last,
    .begin = "START TRANSACTION",
};
