/* shop.c: a shop whose orders take effect once: in its stock, and in the letters it writes.
 *
 *     shop [STORE-URL [COUNT]]
 *
 * It takes orders 1 to COUNT (100), each in one transaction with the event about it; every seventh
 * customer has second thoughts, and nobody hears of that order. Then it runs two handlers until
 * they are through: `stock` takes what was ordered off the shelf, in the database, and `mail`
 * appends a letter to mail.txt, outside of it. At the end it prints what there is, as one line of
 * JSON.
 *
 * The store is sqlite:shop.db unless told otherwise; with postgres://... the same program works
 * there. Kill it whenever you like and start it again: what was done is not done twice, what was
 * not is. (A letter may be, if it dies in the moment between writing one and recording it; it has
 * the same id then.) */
#include <stdio.h>
#include <stdlib.h>

#include <libpq-fe.h>
#include <sqlite3.h>

#include "outbox.h"

static outbox_error err; /* of the main thread */

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "shop: %s: %s\n", what, why);
    exit(1);
}

static void must(int result, const char *what)
{
    if (result != 0)
        die(what, err.text);
}

/* ---- one SQL for both databases ---- */

/* A connection to one of them. */
struct db {
    sqlite3 *lite;
    PGconn *pg;
};

static int sql_lite(sqlite3 *db, const char *text, const char *const *values, int n, long *ret)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(db, text, -1, &q, NULL) != SQLITE_OK)
        return -1;
    for (int i = 0; i < n; i++)
        sqlite3_bind_text(q, i + 1, values[i], -1, SQLITE_STATIC);
    int step = sqlite3_step(q), rows = step == SQLITE_ROW;
    if (rows)
        *ret = (long)sqlite3_column_int64(q, 0);
    if (step != SQLITE_ROW && step != SQLITE_DONE)
        rows = -1;
    return sqlite3_finalize(q) == SQLITE_OK ? rows : -1;
}

static int sql_pg(PGconn *db, const char *text, const char *const *values, int n, long *ret)
{
    PGresult *r = PQexecParams(db, text, n, NULL, values, NULL, NULL, 0);
    int ok = PQresultStatus(r) == PGRES_TUPLES_OK || PQresultStatus(r) == PGRES_COMMAND_OK,
        rows = PQntuples(r);
    if (rows > 0)
        *ret = strtol(PQgetvalue(r, 0, 0), NULL, 10);
    PQclear(r);
    return ok ? rows > 0 : -1;
}

/* sql runs a statement with values for $1, $2, ...; returns 1 and the number it gave, 0 if none, -1
 * if it failed. */
static int sql(struct db db, const char *text, const char *const *values, int n, long *ret)
{
    return db.lite ? sql_lite(db.lite, text, values, n, ret) : sql_pg(db.pg, text, values, n, ret);
}

/* own is the outbox's own connection, for use between outbox_begin and outbox_commit. */
static struct db own(outbox *ob)
{
    return (struct db){outbox_sqlite(ob), outbox_pg(ob)};
}

static long number(outbox *ob, const char *text)
{
    long n = 0;
    if (sql(own(ob), text, NULL, 0, &n) < 0)
        die("could not", text);
    return n;
}

/* ---- orders ---- */

static void open_shop(outbox *ob)
{
    must(outbox_begin(ob, &err), "begin");
    number(ob, "CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, item text NOT NULL, "
               "quantity bigint NOT NULL)");
    number(ob,
           "CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, quantity bigint NOT NULL)");
    number(ob, "INSERT INTO stock VALUES ('apple', 100000), ('pear', 100000), ('plum', 100000) ON "
               "CONFLICT DO NOTHING");
    must(outbox_commit(ob, &err), "commit");
}

/* order writes an order and its event in one transaction: both are there, or neither. Returns
 * whether it is new. */
static int order(outbox *ob, long id, int second_thoughts)
{
    static const char *const things[] = {"apple", "pear", "plum"};
    char key[24], quantity[24];
    snprintf(key, sizeof key, "%ld", id);
    snprintf(quantity, sizeof quantity, "%ld", 1 + id % 5);
    const char *values[] = {key, things[id % 3], quantity};

    must(outbox_begin(ob, &err), "begin");
    int is_new = sql(own(ob),
                     "INSERT INTO orders VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING id",
                     values, 3, &id);
    if (is_new < 0)
        die("order", "could not be written");
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "order.placed";
    m.aggregate_type = "order";
    m.aggregate_id = key;
    if (is_new)
        must(outbox_emit(ob, &m, NULL, &err), "emit");
    if (second_thoughts)
        outbox_rollback(ob);
    else
        must(outbox_commit(ob, &err), "commit");
    return is_new && !second_thoughts;
}

/* ---- handlers ---- */

/* stock: the UPDATE, the record that it was made and the end of the delivery are one
 * transaction. */
static outbox_verdict stock(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct db db = {outbox_tx_sqlite(tx), outbox_tx_pg(tx)};
    const char *id = outbox_event_aggregate_id(ev);
    long left;
    (void)ctx;
    int rows = sql(db,
                   "UPDATE stock SET quantity = stock.quantity - o.quantity FROM orders o"
                   " WHERE o.id = $1 AND o.item = stock.item RETURNING stock.quantity",
                   &id, 1, &left);
    if (rows < 0)
        return outbox_fail(tx, OUTBOX_RETRY, "could not update the stock");
    return rows == 1 ? OUTBOX_DONE
                     : outbox_fail(tx, OUTBOX_REJECT, "there is no such thing in this shop");
}

/* mail acts outside of the database; that it did is recorded right after. The id tells a letter
 * that comes twice. */
static outbox_verdict mail(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    FILE *letters = ctx;
    fprintf(letters, "%s order %s is on its way\n", outbox_event_id(ev),
            outbox_event_aggregate_id(ev));
    return fflush(letters) == 0 ? OUTBOX_DONE
                                : outbox_fail(tx, OUTBOX_RETRY, "could not write the letter");
}

static void run_handlers(outbox *ob, FILE *letters)
{
    outbox_consumer *shop;
    must(outbox_consumer_new(ob, "shop", &shop, &err), "consumer");
    must(outbox_add_handler(shop, "stock", "order.placed", stock, NULL, 0, &err), "stock");
    must(outbox_add_handler(shop, "mail", "order.placed", mail, letters, OUTBOX_EXTERNAL, &err),
         "mail");
    /* how long to wait for one that was killed */
    must(outbox_consumer_set(shop, "lease", "2s", &err), "lease");
    must(outbox_run(ob, OUTBOX_UNTIL_THROUGH, &err), "run");
}

static void say(void *ctx, int level, const char *consumer, const char *text)
{
    (void)ctx, (void)level;
    fprintf(stderr, "shop: %s: %s\n", consumer ? consumer : "outbox", text);
}

/* report says what there is, and whether what was ordered is what left the shelf. */
static int report(outbox *ob, long placed)
{
    must(outbox_begin(ob, &err), "begin");
    long orders = number(ob, "SELECT count(*) FROM orders"),
         ordered = number(ob, "SELECT sum(quantity) FROM orders");
    long taken = 300000 - number(ob, "SELECT sum(quantity) FROM stock");
    outbox_rollback(ob);
    printf("{\"placed\":%ld,\"orders\":%ld,\"ordered\":%ld,\"taken\":%ld}\n", placed, orders,
           ordered, taken);
    return ordered == taken;
}

int main(int argc, char **argv)
{
    const char *store = argc > 1 ? argv[1] : "sqlite:shop.db";
    long count = argc > 2 ? strtol(argv[2], NULL, 10) : 100, placed = 0;
    outbox_options options = OUTBOX_OPTIONS_INIT;
    FILE *letters = fopen("mail.txt", "a");
    outbox *ob;
    if (argc > 3)
        die("usage", "shop [STORE-URL [COUNT]]");
    if (!letters)
        die("mail.txt", "could not be opened");
    options.create = 1;
    options.log = say;
    options.log_level = 2;
    must(outbox_open(store, &options, &ob, &err), store);

    open_shop(ob);
    for (long id = 1; id <= count; id++)
        placed += order(ob, id, id % 7 == 0);
    run_handlers(ob, letters);

    int exact = report(ob, placed);
    outbox_close(ob);
    fclose(letters);
    return exact ? 0 : 1;
}
