#include "lite.h"

#include <unistd.h>

static char dir[64];

void lite_path(char out[LITE_PATH], const char *name)
{
    snprintf(out, LITE_PATH, "%s/%s", dir, name);
}

void lite_url(char out[LITE_PATH + 8])
{
    snprintf(out, LITE_PATH + 8, "sqlite:%s/t.db", dir);
}

static struct store *open_at(const char *url, const struct store_options *opt)
{
    struct store *st;
    struct error err;
    bool created;
    if (store_open(url, opt, &st, &err) != 0) {
        print_error("%s\n", err.text);
        return NULL;
    }
    if (st->ops->init(st, &created, &err) != 0) {
        print_error("%s\n", err.text);
        return NULL;
    }
    return st;
}

bool lite_sneak(struct store *st, const char *sql)
{
    return sqlite3_exec(sqlite_handle(st), sql, NULL, NULL, NULL) == SQLITE_OK;
}

struct store *lite_fresh(const struct store_options *opt)
{
    char url[LITE_PATH + 8];
    strcpy(dir, "/tmp/outbox-XXXXXX");
    if (!mkdtemp(dir))
        return NULL;
    lite_url(url);
    return open_at(url, opt);
}

void lite_clean(void)
{
    static const char *const names[] = {"t.db", "t.db-wal", "t.db-shm"};
    char path[LITE_PATH];
    for (size_t i = 0; i < COUNT(names); i++) {
        lite_path(path, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

struct store *lite_memory(const struct store_options *opt)
{
    return open_at("sqlite::memory:", opt);
}

void lite_nothing(void)
{
}

sqlite3 *lite_connect(void)
{
    sqlite3 *db;
    char path[LITE_PATH];
    lite_path(path, "t.db");
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    return db;
}

void lite_do(sqlite3 *db, const char *sql)
{
    char *why = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
}

void lite_force(sqlite3 *db, const char *sql)
{
    lite_do(db, "INSERT INTO outbox_meta (name, value) VALUES ('change_events', '')");
    lite_do(db, sql);
    lite_do(db, "DELETE FROM outbox_meta WHERE name = 'change_events'");
}

int64_t lite_count(struct store *st, const char *sql)
{
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_prepare_v2(sqlite_handle(st), sql, -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

int lite_emit(struct store *st, sqlite3 *db, const char *key, struct error *err)
{
    char id[UUID_TEXT + 1];
    bool dup;
    struct new_event ev = {.type = STR("x"), .payload = STR("{}"), .idempotency_key = str_of(key)};
    return st->ops->emit(st, db, &ev, id, &dup, err);
}

int lite_take(struct store_rig *g, struct error *err)
{
    struct claim_request req = request("c", "me");
    req.max_events = 10;
    arena_reset(&g->a);
    g->b = (struct batch){0};
    return g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, err);
}

const char *lite_taken(struct store_rig *g, const char *told)
{
    static char types[256];
    struct error err;
    types[0] = '\0';
    if (told) {
        assert_int_equal(lite_take(g, &err), -1);
        assert_int_equal(err.retry_class, CLASS_RETRY);
        if (!strstr(err.text, told))
            fail_msg("%s", err.text);
    }
    if (lite_take(g, &err) != 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < g->b.n; i++)
        strcat(strcat(types, i ? " " : ""), g->b.ev[i].type.p);
    return types;
}
