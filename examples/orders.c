/* orders.c: a small shop that publishes events about its orders.
 *
 *     orders DATABASE [COUNT [RATE]]
 *
 * It places and pays COUNT orders (0: until SIGINT or SIGTERM), RATE per second (0: as fast as it
 * can). Each change of the orders table and the event about it are one transaction, so both exist
 * or neither does. Every seventh order is rolled back on purpose: no consumer ever sees it. At the
 * end it prints a summary as one line of JSON.
 *
 * DATABASE is the URL of an outbox: sqlite:FILE, postgres://..., or mariadb://... (for the
 * differences see orders_*.c). */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "orders_db.h"
#include "outbox.h"

struct shop {
    const struct shop_db *ops;
    void *db; /* the shop's own connection */
    outbox *ob;
    int64_t committed, rolled_back, paid;
};

static volatile sig_atomic_t stopping;

static void on_signal(int number)
{
    (void)number;
    stopping = 1;
}

void orders_die(const char *what, const char *why)
{
    fprintf(stderr, "orders: %s: %s\n", what, why);
    exit(1);
}

/* Emits an event about an order, in the open transaction. */
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
    if (shop->ops->emit(shop->ob, shop->db, &m, &err) != 0)
        orders_die("emit", err.text);
}

/* Writes the order and its event together, or neither if the customer has second thoughts. */
static void place(struct shop *shop, const struct order *o, int keep)
{
    const struct shop_db *ops = shop->ops;
    ops->run(shop->db, ops->begin);
    ops->insert(shop->db, o);
    tell(shop, "order.created", o);
    if (keep) {
        ops->run(shop->db, "COMMIT");
        shop->committed++;
    } else {
        ops->run(shop->db, "ROLLBACK");
        shop->rolled_back++;
    }
}

static void pay(struct shop *shop, const struct order *o)
{
    const struct shop_db *ops = shop->ops;
    ops->run(shop->db, ops->begin);
    ops->pay(shop->db, o);
    tell(shop, "order.paid", o);
    ops->run(shop->db, "COMMIT");
    shop->paid++;
}

static const struct shop_db *database_of(const char *url)
{
    static const struct shop_db *const all[] = {
        &orders_sqlite,
        &orders_postgres,
#ifdef OUTBOX_MARIADB
        &orders_mariadb,
#endif
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strncmp(url, all[i]->scheme, strlen(all[i]->scheme)) == 0)
            return all[i];
    orders_die(url, "not the URL of a database this shop was built for");
}

static void shop_open(struct shop *shop, const char *url)
{
    outbox_options options = OUTBOX_OPTIONS_INIT;
    outbox_error err;
    options.create = 1;
    shop->ops = database_of(url);
    if (outbox_open(url, &options, &shop->ob, &err) != 0)
        orders_die("could not open the outbox", err.text);
    shop->db = shop->ops->open(url);
    shop->ops->run(shop->db,
                   "CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, customer TEXT NOT "
                   "NULL, total BIGINT NOT NULL, state TEXT NOT NULL)");
}

int main(int argc, char **argv)
{
    static const char *const customers[] = {"Ada", "Grace", "Linus", "Barbara", "Dennis"};
    if (argc < 2 || argc > 4)
        orders_die("usage", "orders DATABASE [COUNT [RATE]]");
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
    int64_t first = shop.ops->last(shop.db) + 1;
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
    shop.ops->close(shop.db);
    outbox_close(shop.ob);
    return 0;
}
