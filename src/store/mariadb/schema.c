/* schema.c: the tables of an outbox: their version, and migrating them to ours. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

extern const char *const mdb_schema[];
extern const char *const mdb_functions[];

#define INIT_SECONDS 600 /* how long init waits for another init, unless the options set it */

/* ---- versions ---- */

/* Identifies builds by their triggers, procedures and views. */
static void functions_hash(char out[32])
{
    uint64_t h = hash_end(hash_add(HASH_INIT, str_of(mdb_functions[0])));
    snprintf(out, 32, "%016llx", (unsigned long long)h);
}

static int same_functions(struct mdb_store *st, bool *ret, struct error *err)
{
    char ours[32];
    struct db_rows q;
    functions_hash(ours);
    int r = db_row(&st->base.store, &q, err, SQL(meta, .name = "functions"));
    if (r < 0)
        return -1;
    *ret = r == 1 && str_is(db_text(&q, 0), ours);
    if (r == 1)
        db_done(&q);
    return 0;
}

/* Returns whether the triggers exist and, as far as we may see accounts, run as accounts that
 * exist. */
static int sound_triggers(struct mdb_store *st, bool *ret, struct error *err)
{
    int64_t n = 0;
    struct db_rows lost;
    if (db_value(&st->base.store, err, &n, SQL(count_triggers, .schema = st->url.database)) != 0)
        return -1;
    *ret = n >= MDB_TRIGGERS;
    if (db_row(&st->base.store, &lost, NULL, SQL(lost_definers, .schema = st->url.database)) != 1)
        return 0;
    db_done(&lost);
    *ret = false;
    return 0;
}

int mdb_schema_status(struct store *base, struct schema_status *ret, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    int64_t there;
    bool same = true;
    if (db_schema_version(base, &there, err) != 0)
        return -1;
    if (there == MDB_SCHEMA_VERSION && same_functions(st, &same, err) != 0)
        return -1;
    *ret = (struct schema_status){
        .there = there,
        .known = MDB_SCHEMA_VERSION,
        .functions = same ? FUNCTIONS_SAME : FUNCTIONS_OLDER,
    };
    return 0;
}

/* ---- scripts ---- */

/* Runs a script like the command-line client: a statement ends at the end of a line, with a
 * semicolon or the current DELIMITER. */
static int run_script(struct mdb_store *st, const char *script, struct error *err)
{
    static const char delimiter[] = "DELIMITER ";
    const char *end = ";";
    struct buf b;
    int r = 0;
    buf_init(&b, 1 << 20);
    for (const char *line = script, *next; r == 0 && *line; line = next) {
        size_t n = strcspn(line, "\n"), n_end = strlen(end);
        next = line + n + (line[n] ? 1 : 0);
        bool outside = b.n == 0;
        if (outside && (n == 0 || strncmp(line, "--", 2) == 0))
            continue;
        if (outside && strncmp(line, delimiter, strlen(delimiter)) == 0) {
            end = line[strlen(delimiter)] == ';' ? ";" : "//";
            continue;
        }
        bool last = n >= n_end && memcmp(line + n - n_end, end, n_end) == 0;
        buf_add(&b, line, n - (last ? n_end : 0));
        buf_addc(&b, '\n');
        if (!last)
            continue;
        const char *text = buf_cstr(&b);
        r = text ? mdb_exec(&st->base.store, text, err) : err_nomem(err);
        buf_clear(&b);
    }
    buf_release(&b);
    return r;
}

/* ---- migrating ---- */

/* Runs the missing migrations. Each can be repeated, so an interrupted one is finished by the next
 * run. */
static int migrate(struct mdb_store *st, int64_t version, struct error *err)
{
    char text[16], hash[32];
    for (; version < MDB_SCHEMA_VERSION; version++)
        if (run_script(st, mdb_schema[version], err) != 0)
            return -1;
    if (run_script(st, mdb_functions[0], err) != 0)
        return -1;
    snprintf(text, sizeof text, "%d", MDB_SCHEMA_VERSION);
    functions_hash(hash);
    if (DB_RUN_ALL(&st->base.store, err, {SQL(put_meta, .name = "functions", .value = hash)},
                   {SQL(put_meta, .name = "schema_version", .value = text)}) != 0)
        return -1;
    return adopt_mariadb_renew(st, err);
}

/* Read the version again: another process may have migrated first. */
static int init_locked(struct mdb_store *st, bool *ret_created, struct error *err)
{
    int64_t version;
    bool same = false;
    if (db_schema_known(&st->base.store, &version, err) != 0)
        return -1;
    if (version == MDB_SCHEMA_VERSION && same_functions(st, &same, err) != 0)
        return -1;
    if (same && sound_triggers(st, &same, err) != 0)
        return -1;
    *ret_created = !same;
    return same ? 0 : migrate(st, version, err);
}

int mdb_init(struct store *base, bool *ret_created, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    int64_t got = 0, seconds = st->base.opt.lock_ms ? st->base.opt.lock_ms / 1000 : INIT_SECONDS;
    char name[64];
    uint64_t h = hash_end(hash_add(HASH_INIT, str_of(st->url.database)));
    snprintf(name, sizeof name, "outbox init %016llx", (unsigned long long)h);
    if (db_value(&st->base.store, err, &got, SQL(lock_init, .name = name, .patience = seconds)) !=
        0)
        return -1;
    if (!got)
        return err_class(err, ERR_BUSY, CLASS_RETRY, 0,
                         "%s: another `outbox init` is still running; try again later",
                         st->base.shown);
    int r = init_locked(st, ret_created, err);
    int64_t ignored = 0;
    db_value(&st->base.store, NULL, &ignored, SQL(unlock_init, .name = name));
    return r;
}

/* ---- the script itself ---- */

int mdb_ddl(const struct ddl_request *req, struct error *err)
{
    if (req->url) {
        struct mdb_url u;
        if (mdb_url_read(req->url, &u, err) != 0)
            return -1;
        mdb_url_release(&u);
    }
    char hash[32];
    functions_hash(hash);
    for (int i = 0; i < MDB_SCHEMA_VERSION; i++)
        buf_adds(req->up, mdb_schema[i]);
    buf_adds(req->up, "\n");
    buf_adds(req->up, mdb_functions[0]);
    buf_addf(req->up,
             "\nREPLACE INTO outbox_meta (name, value) VALUES ('functions', '%s'), "
             "('schema_version', '%d');\n",
             hash, MDB_SCHEMA_VERSION);

    db_schema_drops(mdb_functions[0], "INVOKER VIEW ", "VIEW", req->down);
    db_schema_drops(mdb_functions[0], "OR REPLACE PROCEDURE ", "PROCEDURE", req->down);
    db_schema_drops(mdb_functions[0], "OR REPLACE FUNCTION ", "FUNCTION", req->down);
    buf_adds(req->down, "DROP TABLE IF EXISTS outbox_guard;\n"); /* references outbox_event */
    for (int i = 0; i < MDB_SCHEMA_VERSION; i++)
        db_schema_drops(mdb_schema[i], "CREATE TABLE ", "TABLE", req->down);

    bool failed = req->up->failed || req->down->failed;
    return failed ? err_nomem(err) : 0;
}
