#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "db.h"

const bool db_one_writer = true, db_goes_on = true, db_defers = true;
static char dir[64], url[128];

/* expand replaces each @ by outbox_, except before effect, which belongs to the application. */
static const char *expand(const char *sql, char *out, size_t size)
{
    size_t n = 0;
    for (; *sql && n + 8 < size; sql++) {
        if (*sql != '@')
            out[n++] = *sql;
        else if (strncmp(sql, "@effect", 7) != 0)
            n += (size_t)snprintf(out + n, size - n, "outbox_");
    }
    out[n] = '\0';
    return out;
}

static sqlite3 *connect_db(void)
{
    sqlite3 *db;
    if (sqlite3_open(url + strlen("sqlite:"), &db) != SQLITE_OK)
        db_give_up(url, sqlite3_errmsg(db));
    sqlite3_busy_timeout(db, 10000);
    return db;
}

outbox *db_open(const outbox_options *o)
{
    outbox *ob;
    outbox_error err;
    if (outbox_open(url, o, &ob, &err) != 0)
        db_give_up("open", err.text);
    return ob;
}

outbox *db_fresh(const outbox_options *o)
{
    outbox_options with = o ? *o : (outbox_options)OUTBOX_OPTIONS_INIT;
    with.create = 1;
    strcpy(dir, "/tmp/outbox-XXXXXX");
    if (!mkdtemp(dir))
        db_give_up(dir, "could not be made");
    snprintf(url, sizeof url, "sqlite:%s/t.db", dir);
    outbox *ob = db_open(&with);
    db_do("CREATE TABLE @effect (handler text, key text, at INTEGER PRIMARY KEY AUTOINCREMENT)");
    return ob;
}

void db_clean(void)
{
    static const char *const names[] = {"t.db", "t.db-wal", "t.db-shm"};
    for (size_t i = 0; i < 3; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

void db_do(const char *sql)
{
    char text[1024];
    sqlite3 *db = connect_db();
    /* In a file without an outbox both fail, and neither matters. */
    sqlite3_exec(db, "INSERT INTO outbox_meta VALUES ('change_events', '')", NULL, NULL, NULL);
    if (sqlite3_exec(db, expand(sql, text, sizeof text), NULL, NULL, NULL) != SQLITE_OK)
        db_give_up(text, sqlite3_errmsg(db));
    sqlite3_exec(db, "DELETE FROM outbox_meta WHERE name = 'change_events'", NULL, NULL, NULL);
    sqlite3_close(db);
}

long db_number(const char *sql)
{
    char text[1024];
    sqlite3 *db = connect_db();
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(db, expand(sql, text, sizeof text), -1, &q, NULL) != SQLITE_OK ||
        sqlite3_step(q) != SQLITE_ROW)
        db_give_up(text, sqlite3_errmsg(db));
    long n = (long)sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

int db_tx_run(outbox_tx *tx, const char *sql)
{
    char text[1024];
    sqlite3 *db = outbox_tx_sqlite(tx);
    if (!db)
        db_give_up(sql, "no transaction");
    int r = sqlite3_exec(db, expand(sql, text, sizeof text), NULL, NULL, NULL);
    return r == SQLITE_OK ? 0 : -1;
}

int db_once(outbox *ob, const char *key, const char *payload, bool keep, int *ret_first,
            outbox_error *err)
{
    char sql[200];
    sqlite3 *db = connect_db();
    snprintf(sql, sizeof sql, "INSERT INTO effect (handler, key) VALUES ('queue', '%s')", key);
    sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    int r = outbox_handle_once_sqlite(ob, db, "queue", key, payload, 0, ret_first, err);
    if (r == 0 && *ret_first && sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        db_give_up(sql, sqlite3_errmsg(db));
    sqlite3_exec(db, r == 0 && keep ? "COMMIT" : "ROLLBACK", NULL, NULL, NULL);
    sqlite3_close(db);
    return r;
}

int db_once_bare(outbox *ob, const char *key, int *ret_first, outbox_error *err)
{
    sqlite3 *db = connect_db();
    int r = outbox_handle_once_sqlite(ob, db, "queue", key, NULL, 0, ret_first, err);
    sqlite3_close(db);
    return r;
}
