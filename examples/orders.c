/* orders.c: a small shop that tells others what happens in it.
 *
 *     orders DATABASE [COUNT [RATE]]
 *
 * It places and pays COUNT orders (0: until SIGINT or SIGTERM), RATE per second (0: as fast as it
 * can). Each change of the orders table and the event about it are one transaction, so both exist
 * or neither does. Every seventh order is rolled back on purpose: nobody will ever hear of it. At
 * the end it prints what it did as one line of JSON. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <sqlite3.h>

#include "outbox.h"

struct shop {
    sqlite3 *db; /* the shop's own connection; the outbox lives in the same file */
    outbox *ob;
    int64_t committed, rolled_back, paid;
};

struct order {
    int64_t id;
    const char *customer;
    int64_t cents;
};

static volatile sig_atomic_t stopping;

static void on_signal(int number)
{
    (void)number;
    stopping = 1;
}

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "orders: %s: %s\n", what, why);
    exit(1);
}

static void sql(struct shop *shop, const char *text)
{
    if (sqlite3_exec(shop->db, text, NULL, NULL, NULL) != SQLITE_OK)
        die(text, sqlite3_errmsg(shop->db));
}

/* change runs a statement about one order: ?1 is its id, ?2 the customer, ?3 the total in cents. */
static void change(struct shop *shop, const char *text, const struct order *o)
{
    sqlite3_stmt *stmt;
    if (sqlite3_prepare_v2(shop->db, text, -1, &stmt, NULL) != SQLITE_OK)
        die(text, sqlite3_errmsg(shop->db));
    sqlite3_bind_int64(stmt, 1, o->id);
    sqlite3_bind_text(stmt, 2, o->customer, -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 3, o->cents);
    if (sqlite3_step(stmt) != SQLITE_DONE)
        die(text, sqlite3_errmsg(shop->db));
    sqlite3_finalize(stmt);
}

/* tell emits an event about an order, in the transaction that is open. */
static void tell(struct shop *shop, const char *type, const struct order *o)
{
    char id[24], payload[160];
    snprintf(id, sizeof id, "%" PRId64, o->id);
    snprintf(payload, sizeof payload,
             "{\"order\":%" PRId64 ",\"customer\":\"%s\",\"total\":%" PRId64 ".%02" PRId64 "}",
             o->id, o->customer, o->cents / 100, o->cents % 100);

    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = type;
    m.aggregate_type = "order";
    m.aggregate_id = id;
    m.payload = payload;
    outbox_error err;
    if (outbox_emit_sqlite(shop->ob, shop->db, &m, NULL, &err) != 0)
        die("emit", err.text);
}

/* place writes the order and its event together, or neither if the customer has second thoughts. */
static void place(struct shop *shop, const struct order *o, int keep)
{
    sql(shop, "BEGIN IMMEDIATE");
    change(shop, "INSERT INTO orders VALUES (?1, ?2, ?3, 'created')", o);
    tell(shop, "order.created", o);
    if (keep) {
        sql(shop, "COMMIT");
        shop->committed++;
    } else {
        sql(shop, "ROLLBACK");
        shop->rolled_back++;
    }
}

static void pay(struct shop *shop, const struct order *o)
{
    sql(shop, "BEGIN IMMEDIATE");
    change(shop, "UPDATE orders SET state = 'paid' WHERE id = ?1", o);
    tell(shop, "order.paid", o);
    sql(shop, "COMMIT");
    shop->paid++;
}

static void shop_open(struct shop *shop, const char *path)
{
    outbox_options options = OUTBOX_OPTIONS_INIT;
    outbox_error err;
    char url[4096];
    options.create = 1;
    snprintf(url, sizeof url, "sqlite:%s", path);
    if (outbox_open(url, &options, &shop->ob, &err) != 0)
        die(path, err.text);

    if (sqlite3_open(path, &shop->db) != SQLITE_OK)
        die(path, sqlite3_errmsg(shop->db));
    sqlite3_busy_timeout(shop->db, 10000);
    sql(shop, "PRAGMA journal_mode = WAL");
    sql(shop, "PRAGMA synchronous = FULL");
    sql(shop, "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL,"
              " total INTEGER NOT NULL, state TEXT NOT NULL)");
}

/* last_order returns the number at which an earlier run stopped; 0 if there was none. */
static int64_t last_order(struct shop *shop)
{
    sqlite3_stmt *stmt;
    const char *text = "SELECT max(id) FROM orders";
    if (sqlite3_prepare_v2(shop->db, text, -1, &stmt, NULL) != SQLITE_OK)
        die(text, sqlite3_errmsg(shop->db));
    int64_t id = 0;
    if (sqlite3_step(stmt) == SQLITE_ROW)
        id = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return id;
}

int main(int argc, char **argv)
{
    static const char *const customers[] = {"Ada", "Grace", "Linus", "Barbara", "Dennis"};
    if (argc < 2 || argc > 4)
        die("usage", "orders DATABASE [COUNT [RATE]]");
    int64_t count = 0;
    double rate = 0;
    if (argc > 2)
        count = strtoll(argv[2], NULL, 10);
    if (argc > 3)
        rate = strtod(argv[3], NULL);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);

    struct shop shop = {0};
    shop_open(&shop, argv[1]);
    int64_t first = last_order(&shop) + 1;
    int64_t end = count > 0 ? first + count : INT64_MAX;
    for (int64_t id = first; !stopping && id < end; id++) {
        struct order o = {.id = id, .customer = customers[id % 5], .cents = 500 + id * 37 % 9500};
        int keep = id % 7 != 0;
        place(&shop, &o, keep);
        if (keep)
            pay(&shop, &o);
        if (rate > 0)
            usleep((useconds_t)(1e6 / rate));
    }

    printf("{\"committed\":%" PRId64 ",\"rolled_back\":%" PRId64 ",\"paid\":%" PRId64 "}\n",
           shop.committed, shop.rolled_back, shop.paid);
    sqlite3_close(shop.db);
    outbox_close(shop.ob);
    return 0;
}
