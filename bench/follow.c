/* follow URL [MS]: the bare loop to compare a relay with at low rates, with none of our code. It
 * waits for new events, reads those after its position, writes the payloads to standard output, a
 * line each, and commits its position.
 *   postgres:...  waits for the NOTIFY of bench_notify, and reads that; with MS it waits so many
 *                 milliseconds instead, and reads bench_event
 *   sqlite:FILE   waits until the log of the file grows, and reads bench_event
 * It would lose events that commit late, and has no leases, no retries and no support for a second
 * reader. */
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "bench.h"
#include "pg.h"

/* ---- PostgreSQL ---- */

/* Writes new events and commits *position after them. */
static bool read_new(PGconn *db, int64_t *position)
{
    char text[24];
    const char *params[] = {text};
    snprintf(text, sizeof text, "%" PRId64, *position);
    pg_send(db, "read", params, 1);
    PGresult *r = pg_take(db);
    int n = PQntuples(r);
    for (int i = 0; i < n; i++)
        printf("%s\n", PQgetvalue(r, i, 1));
    fflush(stdout);
    if (n > 0) {
        *position = pg_int8(r, n - 1, 0);
        snprintf(text, sizeof text, "%" PRId64, *position);
        pg_run(db, "position", params, 1);
    }
    PQclear(r);
    return n > 0;
}

static void wait_for_ring(PGconn *db)
{
    for (PGnotify *got = NULL; !got; PQfreemem(got)) {
        if (!PQconsumeInput(db))
            exit(0); /* the server closed the connection */
        got = PQnotifies(db);
        if (got)
            continue;
        struct pollfd fd = {.fd = PQsocket(db), .events = POLLIN};
        poll(&fd, 1, -1);
    }
    for (PGnotify *more; (more = PQnotifies(db)) != NULL;)
        PQfreemem(more);
}

#define READ(table) \
    "SELECT seq, payload, id, type, aggregate_type, aggregate_id, version, headers, " \
    "tenant, created_at, not_before FROM " table " WHERE seq > $1 ORDER BY seq LIMIT 1000"

/* Returns the end of bench_event: a polling reader starts there. */
static int64_t last_event(PGconn *db)
{
    pg_prepare(db, "last", "SELECT coalesce(max(seq), 0) FROM bench_event");
    pg_send(db, "last", NULL, 0);
    PGresult *r = pg_take(db);
    int64_t last = pg_int8(r, 0, 0);
    PQclear(r);
    return last;
}

static void follow_postgres(const char *url, int every_ms)
{
    PGconn *db = pg_open(url);
    int64_t position = every_ms > 0 ? last_event(db) : 0;
    pg_sql(db, "LISTEN bench");
    pg_sql(db, "INSERT INTO bench_position VALUES ('follow', 0) ON CONFLICT (consumer) DO UPDATE "
               "SET position = 0");
    pg_prepare(db, "read", every_ms > 0 ? READ("bench_event") : READ("bench_notify"));
    pg_prepare(db, "position", "UPDATE bench_position SET position = $1 WHERE consumer = 'follow'");
    for (;;) {
        bool more = read_new(db, &position);
        if (every_ms > 0)
            poll(NULL, 0, every_ms);
        else if (!more)
            wait_for_ring(db);
    }
}

/* ---- SQLite ---- */

static void wait_for_log(int watch_fd, int ms)
{
    char events[4096];
    struct pollfd fd = {.fd = watch_fd, .events = POLLIN};
    poll(&fd, 1, ms);
    while (read(watch_fd, events, sizeof events) > 0)
        continue;
}

static int open_watch(const char *file)
{
    char log[4096];
    int watch_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    snprintf(log, sizeof log, "%s-wal", file);
    if (watch_fd < 0 || inotify_add_watch(watch_fd, log, IN_MODIFY) < 0)
        bench_die("%s: %m", log);
    return watch_fd;
}

static bool read_rows(sqlite3 *db, sqlite3_stmt *q, sqlite3_stmt *commit)
{
    int64_t position = 0;
    while (sqlite3_step(q) == SQLITE_ROW) {
        position = sqlite3_column_int64(q, 0);
        printf("%s\n", (const char *)sqlite3_column_text(q, 1));
    }
    sqlite3_reset(q);
    fflush(stdout);
    if (position == 0)
        return false;
    sqlite3_bind_int64(commit, 1, position);
    sqlite3_bind_int64(q, 1, position);
    bench_step(db, commit);
    return true;
}

static void follow_sqlite(const char *file)
{
    sqlite3 *db = bench_open(file);
    bench_sql(db, "CREATE TABLE IF NOT EXISTS bench_position (position INTEGER)");
    bench_sql(db, "DELETE FROM bench_position");
    bench_sql(db, "INSERT INTO bench_position VALUES (0)");
    sqlite3_stmt *q = bench_prepare(
        db,
        "SELECT seq, payload, id, type, aggregate_type, aggregate_id, version, headers, "
        "tenant, created_at, not_before FROM bench_event WHERE seq > ? ORDER BY seq LIMIT 1000");
    sqlite3_stmt *commit = bench_prepare(db, "UPDATE bench_position SET position = ?");
    int watch_fd = open_watch(file);
    sqlite3_bind_int64(q, 1, 0);
    for (int idle = 0;; idle++) {
        if (read_rows(db, q, commit))
            idle = 0;
        /* The log grows shortly before a commit becomes visible, so retry a few times. */
        wait_for_log(watch_fd, idle < 5 ? 1 : 1000);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3)
        bench_die("usage: %s URL [MS]", argv[0]);
    if (strncmp(argv[1], "sqlite:", 7) == 0)
        follow_sqlite(argv[1] + 7);
    else
        follow_postgres(argv[1], argc == 3 ? atoi(argv[2]) : 0);
    return 0;
}
