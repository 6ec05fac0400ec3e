/* orders_sqlite.c: the shop of orders.c in a SQLite file. */
#include <sqlite3.h>
#include <string.h>

#include "orders_db.h"

static void run(void *db, const char *text)
{
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK)
        orders_die(text, sqlite3_errmsg(db));
}

/* Runs a statement about one order: ?1 is its id, ?2 the customer, ?3 the total in cents. */
static void change(void *db, const char *text, const struct order *o)
{
    sqlite3_stmt *stmt;
    if (sqlite3_prepare_v2(db, text, -1, &stmt, NULL) != SQLITE_OK)
        orders_die(text, sqlite3_errmsg(db));
    sqlite3_bind_int64(stmt, 1, o->id);
    sqlite3_bind_text(stmt, 2, o->customer, -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 3, o->cents);
    if (sqlite3_step(stmt) != SQLITE_DONE)
        orders_die(text, sqlite3_errmsg(db));
    sqlite3_finalize(stmt);
}

static void insert(void *db, const struct order *o)
{
    change(db, "INSERT INTO orders VALUES (?1, ?2, ?3, 'created')", o);
}

static void pay(void *db, const struct order *o)
{
    change(db, "UPDATE orders SET state = 'paid' WHERE id = ?1", o);
}

static int emit(outbox *ob, void *db, const outbox_message *m, outbox_error *err)
{
    return outbox_emit_sqlite(ob, db, m, NULL, err);
}

static int64_t last(void *db)
{
    sqlite3_stmt *stmt;
    const char *text = "SELECT max(id) FROM orders";
    if (sqlite3_prepare_v2(db, text, -1, &stmt, NULL) != SQLITE_OK)
        orders_die(text, sqlite3_errmsg(db));
    int64_t id = 0;
    if (sqlite3_step(stmt) == SQLITE_ROW)
        id = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return id;
}

static void *open_file(const char *url)
{
    sqlite3 *db;
    if (sqlite3_open(url + strlen("sqlite:"), &db) != SQLITE_OK)
        orders_die(url, sqlite3_errmsg(db));
    sqlite3_busy_timeout(db, 10000);
    run(db, "PRAGMA journal_mode = WAL");
    run(db, "PRAGMA synchronous = FULL");
    return db;
}

static void close_file(void *db)
{
    sqlite3_close(db);
}

/* A transaction that will write begins with IMMEDIATE: upgrading after a read could fail. */
const struct shop_db orders_sqlite = {
    .scheme = "sqlite:",
    .open = open_file,
    .close = close_file,
    .run = run,
    .insert = insert,
    .pay = pay,
    .emit = emit,
    .last = last,
    .begin = "BEGIN IMMEDIATE",
};
