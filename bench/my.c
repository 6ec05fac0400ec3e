#include "my.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

#define PARAMS 8

MYSQL *my_open(const char *url)
{
    char user[64], name[64], path[256];
    if (sscanf(url, "mariadb://%63[^@]@/%63[^?]?socket=%255s", user, name, path) != 3)
        bench_die("%s: not mariadb://USER@/NAME?socket=PATH", url);
    MYSQL *db = mysql_init(NULL);
    if (!db)
        bench_die("out of memory");
    mysql_optionsv(db, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    if (!mysql_real_connect(db, NULL, user, NULL, name, 0, path, CLIENT_MULTI_RESULTS))
        bench_die("%s", mysql_error(db));
    my_sql(db, "SET SESSION tx_isolation = 'READ-COMMITTED'");
    return db;
}

void my_send(MYSQL *db, const char *sql)
{
    if (mysql_send_query(db, sql, strlen(sql)) != 0)
        bench_die("%s: %s", sql, mysql_error(db));
}

MYSQL_RES *my_take(MYSQL *db)
{
    if (mysql_read_query_result(db) != 0)
        bench_die("%s", mysql_error(db));
    MYSQL_RES *r = mysql_store_result(db);
    if (!r && mysql_errno(db) != 0)
        bench_die("%s", mysql_error(db));
    return r;
}

MYSQL_RES *my_rows(MYSQL *db, const char *sql)
{
    my_send(db, sql);
    return my_take(db);
}

void my_sql(MYSQL *db, const char *sql)
{
    MYSQL_RES *r = my_rows(db, sql);
    if (r)
        mysql_free_result(r);
}

MYSQL_STMT *my_prepare(MYSQL *db, const char *sql)
{
    MYSQL_STMT *q = mysql_stmt_init(db);
    if (!q || mysql_stmt_prepare(q, sql, strlen(sql)) != 0)
        bench_die("%s: %s", sql, q ? mysql_stmt_error(q) : "out of memory");
    return q;
}

void my_run(MYSQL_STMT *q, const char *const *params, size_t n)
{
    MYSQL_BIND bind[PARAMS] = {0};
    for (size_t i = 0; i < n; i++) {
        bind[i].buffer_type = MYSQL_TYPE_STRING;
        bind[i].buffer = (void *)params[i];
        bind[i].buffer_length = strlen(params[i]);
    }
    bool bound = n == 0 || mysql_stmt_bind_param(q, bind) == 0;
    if (!bound || mysql_stmt_execute(q) != 0)
        bench_die("%s", mysql_stmt_error(q));
    while (mysql_stmt_next_result(q) == 0) /* a CALL sends a status after its rows */
        continue;
}
