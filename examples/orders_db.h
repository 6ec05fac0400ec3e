/* orders_db.h: the database interface of the shop in orders.c. Each function exits on failure. */
#ifndef ORDERS_DB_H
#define ORDERS_DB_H

#include <stdint.h>

#include "outbox.h"

struct order {
    int64_t id;
    const char *customer;
    int64_t cents;
};

/* The shop's own connection, in which it begins and ends its own transactions; the outbox is in the
 * same database. */
struct shop_db {
    const char *scheme; /* of the outbox's URL */
    void *(*open)(const char *url);
    void (*close)(void *db);
    /* run runs a statement without values. */
    void (*run)(void *db, const char *text);
    /* insert writes a new order, pay marks it as paid. */
    void (*insert)(void *db, const struct order *o);
    void (*pay)(void *db, const struct order *o);
    /* emit emits an event in the open transaction. */
    int (*emit)(outbox *ob, void *db, const outbox_message *m, outbox_error *err);
    /* last returns the number of the newest order; 0 if there is none. */
    int64_t (*last)(void *db);
    const char *begin;
};

extern const struct shop_db orders_sqlite, orders_postgres, orders_mariadb;

_Noreturn void orders_die(const char *what, const char *why);

#endif
