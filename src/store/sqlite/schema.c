/* schema.c: the version of an outbox's tables, and their migration to the current one. */
#include <stdio.h>
#include <time.h>

#include "base/buf.h"
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

extern const char *const sqlite_schema[];

#define INIT_TELL (10000 * MS_NS) /* how often init reports that it is waiting */

/* ---- versions ---- */

int sqlite_schema_status(struct store *base, struct schema_status *ret, struct error *err)
{
    int64_t there;
    if (db_schema_version(base, &there, err) != 0)
        return -1;
    *ret = (struct schema_status){.there = there, .known = SQLITE_SCHEMA_VERSION};
    return 0;
}

/* The statement is not cached: in an outbox of another version preparing it may fail. */
void sqlite_identity_read(struct sqlite_store *st)
{
    sqlite3_stmt *q;
    st->identity[0] = '\0';
    if (sqlite3_prepare_v2(st->db, sql_identity.in[SQL_SQLITE].text, -1, &q, NULL) != SQLITE_OK)
        return;
    if (sqlite3_step(q) == SQLITE_ROW)
        snprintf(st->identity, sizeof st->identity, "%s", sqlite3_column_text(q, 0));
    sqlite3_finalize(q);
}

/* ---- creating and dropping ---- */

int sqlite_ddl(const struct ddl_request *req, struct error *err)
{
    if (req->url && sqlite_url_check(req->url, err) != 0)
        return -1;
    for (int i = 0; i < SQLITE_SCHEMA_VERSION; i++)
        buf_adds(req->up, sqlite_schema[i]);
    for (int i = 0; i < SQLITE_SCHEMA_VERSION; i++)
        db_schema_drops(sqlite_schema[i], "\nCREATE VIEW ", "VIEW", req->down);
    for (int i = 0; i < SQLITE_SCHEMA_VERSION; i++)
        db_schema_drops(sqlite_schema[i], "\nCREATE TABLE ", "TABLE", req->down);

    bool failed = req->up->failed || req->down->failed;
    return failed ? err_nomem(err) : 0;
}

/* Refuses a UTF-16 database, in which the tables' checks would test the wrong bytes. */
static int check_encoding(struct sqlite_store *st, struct error *err)
{
    sqlite3_stmt *q = sqlite_plain(st, "PRAGMA encoding", err);
    if (sqlite_step(st, q, err) < 0)
        return -1;
    bool utf8 = str_is(sqlite_text(q, 0), "UTF-8");
    sqlite3_reset(q);
    if (utf8)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "%s: this database is encoded in UTF-16, and an outbox needs UTF-8; the "
                   "encoding cannot change once a database exists: copy it into a UTF-8 database "
                   "(PRAGMA encoding), or use another file",
                   st->base.shown);
}

/* Runs the missing migrations. Another process may have migrated before we took the write lock. */
static int migrate(struct store *base, bool *ret_created, struct error *err)
{
    int64_t version;
    if (db_begin(base, err) != 0)
        return -1;
    int r = db_schema_known(base, &version, err);
    *ret_created = r == 0 && version < SQLITE_SCHEMA_VERSION;
    for (; r == 0 && version < SQLITE_SCHEMA_VERSION; version++)
        r = sqlite_script(sqlite_of(base), sqlite_schema[version], err);
    return db_end(base, r, err);
}

/* Creates the tables, or migrates them to our version. */
static int init_once(struct store *base, bool *ret_created, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    int64_t version;
    *ret_created = false;
    if (db_schema_known(base, &version, err) != 0)
        return -1;
    if (version < SQLITE_SCHEMA_VERSION) {
        if (version == 0 && check_encoding(st, err) != 0)
            return -1;
        if (!st->memory && sqlite_script(st, "PRAGMA journal_mode = WAL", err) != 0)
            return -1;
        if (migrate(base, ret_created, err) != 0)
            return -1;
    }
    sqlite_identity_read(st);
    return 0;
}

/* Retries for opt.lock_ms, because SQLite does not wait for the lock that a switch to WAL needs. */
int sqlite_init(struct store *base, bool *ret_created, struct error *err)
{
    const struct store_options *opt = &db_of(base)->opt;
    int64_t began = clock_mono(&clock_system), told = 0;
    for (;;) {
        struct error why;
        if (init_once(base, ret_created, &why) == 0)
            return 0;

        int64_t now = clock_mono(&clock_system);
        bool again = why.code == ERR_BUSY && now - began < opt->lock_ms * MS_NS;
        if (!again)
            return err_copy(err, &why);
        bool tell = opt->progress && now - told >= INIT_TELL;
        if (tell) {
            opt->progress(opt->progress_ctx,
                          "other connections keep writing to the database; nothing has changed "
                          "yet; retrying");
            told = now;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20 * MS_NS}, NULL);
    }
}
