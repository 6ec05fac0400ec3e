/* bare_emit: the cost of an INSERT and its COMMIT without our code, the ceiling for outbox_emit.
 *   -m plain  into a table of the same columns and indexes, without CHECKs and DEFAULTs
 *   -m same   into outbox_event itself */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

#define COLUMNS \
    "(id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, not_before, " \
    "created_at)"
#define VALUES " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

static const char plain_table[] =
    "CREATE TABLE IF NOT EXISTS bench_event (seq INTEGER PRIMARY KEY AUTOINCREMENT, "
    "id TEXT NOT NULL UNIQUE, type TEXT NOT NULL, aggregate_type TEXT, "
    "aggregate_id TEXT, version INTEGER, payload TEXT NOT NULL, headers TEXT, "
    "tenant TEXT, not_before INTEGER, created_at INTEGER NOT NULL)";

static void bind(sqlite3_stmt *q, int i, const char *text)
{
    sqlite3_bind_text(q, i, text, (int)strlen(text), SQLITE_STATIC);
}

/* Binds the same columns as the library. The id is the time followed by a counter: it grows, like
 * ours. */
static void insert_event(sqlite3 *db, sqlite3_stmt *q, const struct bench_options *o, size_t i,
                         const char *payload)
{
    char id[37], key[24];
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    int64_t now = (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
    snprintf(id, sizeof id, "%08x-%04x-7000-8000-%012zx", (unsigned)(now >> 16),
             (unsigned)(now & 0xffff), i);
    snprintf(key, sizeof key, "%zu", i % o->keys);
    bind(q, 1, id);
    bind(q, 2, bench_type(o, i));
    bind(q, 3, "order");
    bind(q, 4, key);
    bind(q, 6, payload);
    sqlite3_bind_int64(q, 10, now);
    bench_step(db, q);
}

int main(int argc, char **argv)
{
    struct bench_options o;
    struct bench_timing t;
    bench_options(&o, argc, argv);
    bool same = strcmp(o.mode, "same") == 0;
    sqlite3 *db = bench_open(o.db);
    if (!same)
        bench_sql(db, plain_table);
    const char *insert = "INSERT INTO bench_event " COLUMNS VALUES;
    if (same)
        insert = "INSERT INTO outbox_event " COLUMNS VALUES;
    sqlite3_stmt *q = bench_prepare(db, insert);
    sqlite3_stmt *begin = bench_prepare(db, "BEGIN IMMEDIATE");
    sqlite3_stmt *commit = bench_prepare(db, "COMMIT");
    char *payload = malloc(o.payload + 64);
    if (!payload)
        bench_die("out of memory");
    bench_start(&t, o.n);
    for (size_t i = 0; i < o.n;) {
        int64_t from = bench_now();
        if (o.per_tx)
            bench_step(db, begin);
        size_t end = i + (o.per_tx ? o.per_tx : 1);
        for (; i < o.n && i < end; i++) {
            bench_payload(&o, i, payload);
            insert_event(db, q, &o, i, payload);
        }
        if (o.per_tx)
            bench_step(db, commit);
        bench_lap(&t, from);
    }
    bench_report(&t, o.n);
    free(payload);
    sqlite3_finalize(q);
    sqlite3_finalize(begin);
    sqlite3_finalize(commit);
    sqlite3_close(db);
    return 0;
}
