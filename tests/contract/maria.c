#include "maria.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store.h"
#include "store/store.h"

#define COMMAND_MAX 16384

static char url[512], database[64];

const char *maria_url(void)
{
    return url;
}

/* server_socket extracts the path from $OUTBOX_TEST_MARIADB, mariadb://USER@/?socket=PATH. */
static const char *server_socket(void)
{
    const char *server = getenv("OUTBOX_TEST_MARIADB");
    const char *path = server ? strstr(server, "socket=") : NULL;
    if (!path) {
        print_error("OUTBOX_TEST_MARIADB is not set: run this through ./test\n");
        exit(2);
    }
    return path + strlen("socket=");
}

static MYSQL *connect_to(const char *name)
{
    MYSQL *db = mysql_init(NULL);
    mysql_optionsv(db, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    if (!mysql_real_connect(db, NULL, "root", NULL, name, 0, server_socket(), 0))
        fail_msg("%s", mysql_error(db));
    return db;
}

MYSQL *maria_connect(void)
{
    return connect_to(database);
}

/* run runs a statement, and leaves it in `text`, for messages. */
__attribute__((format(printf, 3, 0))) static unsigned run(MYSQL *db, char text[COMMAND_MAX],
                                                          const char *fmt, va_list ap)
{
    vsnprintf(text, COMMAND_MAX, fmt, ap);
    return mysql_query(db, text) == 0 ? 0 : mysql_errno(db);
}

static void forget_result(MYSQL *db)
{
    do {
        MYSQL_RES *r = mysql_store_result(db);
        if (r)
            mysql_free_result(r);
    } while (mysql_next_result(db) == 0);
}

void maria_do(MYSQL *db, const char *fmt, ...)
{
    char text[COMMAND_MAX];
    va_list ap;
    va_start(ap, fmt);
    unsigned failed = run(db, text, fmt, ap);
    va_end(ap);
    if (failed)
        fail_msg("%s: %s", text, mysql_error(db));
    forget_result(db);
}

unsigned maria_try(MYSQL *db, const char *fmt, ...)
{
    char text[COMMAND_MAX];
    va_list ap;
    va_start(ap, fmt);
    unsigned failed = run(db, text, fmt, ap);
    va_end(ap);
    if (!failed)
        forget_result(db);
    return failed;
}

int64_t maria_number(MYSQL *db, const char *fmt, ...)
{
    char text[COMMAND_MAX];
    va_list ap;
    va_start(ap, fmt);
    unsigned failed = run(db, text, fmt, ap);
    va_end(ap);
    MYSQL_RES *r = failed ? NULL : mysql_store_result(db);
    MYSQL_ROW row = r ? mysql_fetch_row(r) : NULL;
    if (!row)
        fail_msg("%s: %s", text, mysql_error(db));
    int64_t n = row[0] ? strtoll(row[0], NULL, 10) : -1;
    mysql_free_result(r);
    return n;
}

/* on_server runs a command that concerns a whole database. */
static void on_server(const char *what, const char *name)
{
    MYSQL *db = connect_to(NULL);
    maria_do(db, "%s %s", what, name);
    mysql_close(db);
}

/* open_there opens the outbox at maria_url; NULL on failure, which is printed. */
static struct store *open_there(const struct store_options *opt)
{
    struct store *st;
    struct error err;
    if (store_open(url, opt, &st, &err) == 0)
        return st;
    print_error("%s\n", err.text);
    return NULL;
}

struct store *maria_fresh(const struct store_options *opt)
{
    static int n;
    struct error err;
    bool created;
    snprintf(database, sizeof database, "ob_%d_%d", (int)getpid(), ++n);
    snprintf(url, sizeof url, "mariadb://root@/%s?socket=%s", database, server_socket());
    on_server("CREATE DATABASE", database);
    struct store *st = open_there(opt);
    if (!st)
        return NULL;
    if (st->ops->init(st, &created, &err) == 0)
        return st;
    print_error("%s\n", err.text);
    store_close(st);
    return NULL;
}

struct store *maria_again(const struct store_options *opt)
{
    /* Deleting rows of the others writes to the last one. */
    static const char *const kept[] = {
        "fresh",         "order",   "consumer", "lane",    "claim",      "parked",
        "dead",          "handled", "receipt",  "mark",    "passed",     "setting",
        "former_filter", "ended",   "adopted",  "marking", "adopted_row"};
    if (!*database) {
        struct store_options create = *opt;
        create.create = true;
        return maria_fresh(&create);
    }
    MYSQL *db = maria_connect();
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        maria_do(db, "DELETE FROM outbox_%s", kept[i]);
    maria_do(db, "SET foreign_key_checks = 0");  /* TRUNCATE would be refused otherwise */
    maria_do(db, "TRUNCATE TABLE outbox_event"); /* its numbers restart */
    maria_do(db, "UPDATE outbox_sequencer SET next = 1, news = 0");
    mysql_close(db);
    return open_there(opt);
}

bool maria_sneak(struct store *st, const char *sql)
{
    return maria_try(mdb_handle(st), "%s", sql) == 0;
}

void maria_clean(void)
{
    on_server("DROP DATABASE", database);
}
