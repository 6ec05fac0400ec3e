/* shop.c: a shop whose orders take effect once, in its stock and in its letters.
 *
 *     shop [STORE-URL [COUNT]]
 *
 * It takes orders 1 to COUNT (100), each in one transaction with the event about it; every seventh
 * customer has second thoughts, and that order is rolled back. Then it runs two handlers until no
 * work is left: `stock` takes the ordered items off the shelf, in the database, and `mail` appends
 * a letter to mail.txt, outside the database. At the end it prints the totals as one line of JSON.
 *
 * The store is sqlite:shop.db by default; with postgres://... the same program works there. Kill it
 * whenever you like and start it again: no work is done twice, and none is lost. (A letter may be
 * written twice, if the program dies between writing it and recording it; it has the same id then.)
 */
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

/* A connection to one of the databases. */
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
    int rows = 0;
    if (sqlite3_step(q) == SQLITE_ROW) {
        *ret = (long)sqlite3_column_int64(q, 0);
        rows = 1;
    }
    if (sqlite3_finalize(q) != SQLITE_OK)
        return -1; /* why the step failed */
    return rows;
}

static int sql_pg(PGconn *db, const char *text, const char *const *values, int n, long *ret)
{
    PGresult *r = PQexecParams(db, text, n, NULL, values, NULL, NULL, 0);
    ExecStatusType status = PQresultStatus(r);
    int rows = -1;
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
        rows = PQntuples(r) > 0;
    if (rows > 0)
        *ret = strtol(PQgetvalue(r, 0, 0), NULL, 10);
    PQclear(r);
    return rows;
}

/* Runs a statement with values for $1, $2, .... Returns 1 and the number it returned, 0 if it
 * returned none, -1 if it failed. */
static int sql(struct db db, const char *text, const char *const *values, int n, long *ret)
{
    if (db.lite)
        return sql_lite(db.lite, text, values, n, ret);
    return sql_pg(db.pg, text, values, n, ret);
}

/* Returns the outbox's own connection, for use between outbox_begin and outbox_commit. */
static struct db own(outbox *ob)
{
    return (struct db){outbox_sqlite(ob), outbox_pg(ob)};
}

/* Runs a statement and returns its number. */
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

/* Writes an order and its event in one transaction: both exist, or neither. Returns whether the
 * order is new. */
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
    if (is_new) {
        outbox_message m = OUTBOX_MESSAGE_INIT;
        m.type = "order.placed";
        m.aggregate_type = "order";
        m.aggregate_id = key;
        must(outbox_emit(ob, &m, NULL, &err), "emit");
    }

    if (second_thoughts)
        outbox_rollback(ob);
    else
        must(outbox_commit(ob, &err), "commit");
    return is_new && !second_thoughts;
}

/* ---- handlers ---- */

/* Takes the ordered items off the shelf. The UPDATE, its record in the inbox and the settlement of
 * the delivery are one transaction. */
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
    if (rows == 0)
        return outbox_fail(tx, OUTBOX_REJECT, "there is no such thing in this shop");
    return OUTBOX_DONE;
}

/* Acts outside the database, and is recorded right afterwards. The id lets readers recognise a
 * duplicate letter. */
static outbox_verdict mail(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    FILE *letters = ctx;
    fprintf(letters, "%s order %s is on its way\n", outbox_event_id(ev),
            outbox_event_aggregate_id(ev));
    if (fflush(letters) != 0)
        return outbox_fail(tx, OUTBOX_RETRY, "could not write the letter");
    return OUTBOX_DONE;
}

static void run_handlers(outbox *ob, FILE *letters)
{
    outbox_consumer *shop;
    must(outbox_consumer_new(ob, "shop", &shop, &err), "consumer");
    must(outbox_add_handler(shop, "stock", "order.placed", stock, NULL, 0, &err), "stock");
    must(outbox_add_handler(shop, "mail", "order.placed", mail, letters, OUTBOX_EXTERNAL, &err),
         "mail");
    /* how long a killed process keeps its events from the next */
    must(outbox_consumer_set(shop, "lease", "2s", &err), "lease");
    must(outbox_run(ob, OUTBOX_UNTIL_THROUGH, &err), "run");
}

static void say(void *ctx, int level, const char *consumer, const char *text)
{
    (void)ctx;
    (void)level;
    fprintf(stderr, "shop: %s: %s\n", consumer ? consumer : "outbox", text);
}

/* Prints the totals, and returns whether the ordered items match those that left the shelf. */
static int report(outbox *ob, long placed)
{
    must(outbox_begin(ob, &err), "begin");
    long orders = number(ob, "SELECT count(*) FROM orders");
    long ordered = number(ob, "SELECT sum(quantity) FROM orders");
    long taken = 300000 - number(ob, "SELECT sum(quantity) FROM stock");
    outbox_rollback(ob);
    printf("{\"placed\":%ld,\"orders\":%ld,\"ordered\":%ld,\"taken\":%ld}\n", placed, orders,
           ordered, taken);
    return ordered == taken;
}

int main(int argc, char **argv)
{
    const char *store = "sqlite:shop.db";
    long count = 100;
    if (argc > 3)
        die("usage", "shop [STORE-URL [COUNT]]");
    if (argc > 1)
        store = argv[1];
    if (argc > 2)
        count = strtol(argv[2], NULL, 10);

    FILE *letters = fopen("mail.txt", "a");
    if (!letters)
        die("mail.txt", "could not be opened");
    outbox *ob;
    outbox_options options = OUTBOX_OPTIONS_INIT;
    options.create = 1;
    options.log = say;
    options.log_level = 2;
    must(outbox_open(store, &options, &ob, &err), store);

    long placed = 0;
    open_shop(ob);
    for (long id = 1; id <= count; id++)
        placed += order(ob, id, id % 7 == 0);
    run_handlers(ob, letters);

    int exact = report(ob, placed);
    outbox_close(ob);
    fclose(letters);
    return exact ? 0 : 1;
}
