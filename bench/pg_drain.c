/* pg_drain URL MODE [CONSUMER]: ceilings for a relay that drains PostgreSQL to nowhere, with none
 * of our code. Batches of 1,000, prepared, binary; every byte of every field is read.
 *   cursor       seq > position from outbox.event, and the position recorded in a commit per batch.
 *                The next batch is read while one is processed and its position is committed (on
 *                its own connection). It would lose events that commit late, has no leases, no
 *                retries and a single reader
 *   pipelined    the same on one connection: it never waits for us, but reads nothing during the
 *                commit
 *   single-row   like cursor, in libpq's single-row mode
 *   skip-locked  as queue tables do: claims rows of bench_queue by their status, and marks them
 *                done */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "pg.h"

#define BATCH 1000
#define COLUMNS \
    "seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, created_at, " \
    "not_before"

struct drain {
    PGconn *reader, *writer;
    const char *consumer;
    bool single_row;
    bool writing;  /* a position update is in flight */
    uint64_t seen; /* checksum of all fields, so that no read is optimised away */
};

/* Touches all fields of a result. */
static void look(struct drain *d, const PGresult *r)
{
    int rows = PQntuples(r), columns = PQnfields(r);
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < columns; column++) {
            const unsigned char *p = (const unsigned char *)PQgetvalue(r, row, column);
            int n = PQgetlength(r, row, column);
            unsigned sum = 0;
            for (int i = 0; i < n; i++)
                sum += p[i];
            d->seen += sum;
        }
    }
}

static void start_read(struct drain *d, int64_t seq)
{
    char text[24];
    const char *params[] = {text};
    snprintf(text, sizeof text, "%" PRId64, seq);
    pg_send(d->reader, "read", params, 1);
    if (d->single_row)
        PQsetSingleRowMode(d->reader);
}

static void finish_write(struct drain *d)
{
    if (d->writing)
        PQclear(pg_take(d->writer));
    d->writing = false;
}

static void start_write(struct drain *d, int64_t seq)
{
    char text[24];
    const char *params[] = {text, d->consumer};
    finish_write(d);
    snprintf(text, sizeof text, "%" PRId64, seq);
    pg_send(d->writer, "position", params, 2);
    d->writing = true;
}

/* Reads each row as it arrives, and advances *seq; returns their number. The next read can only
 * start afterwards. */
static int take_rows(struct drain *d, int64_t *seq)
{
    int n = 0;
    for (PGresult *r; (r = PQgetResult(d->reader)) != NULL; PQclear(r)) {
        if (PQresultStatus(r) == PGRES_TUPLES_OK)
            continue;
        if (PQresultStatus(r) != PGRES_SINGLE_TUPLE)
            bench_die("%s", PQerrorMessage(d->reader));
        *seq = pg_int8(r, 0, 0);
        look(d, r);
        n++;
    }
    if (n == BATCH)
        start_read(d, *seq);
    return n;
}

static int take_batch(struct drain *d, int64_t *seq)
{
    PGresult *r = pg_take(d->reader);
    int n = PQntuples(r);
    if (n > 0)
        *seq = pg_int8(r, n - 1, 0);
    if (n == BATCH)
        start_read(d, *seq);
    look(d, r);
    PQclear(r);
    return n;
}

static size_t drain_cursor(struct drain *d, struct bench_timing *t)
{
    size_t events = 0;
    int64_t seq = 0;
    start_read(d, seq);
    for (int n = BATCH; n == BATCH; events += (size_t)n) {
        int64_t from = bench_now();
        n = d->single_row ? take_rows(d, &seq) : take_batch(d, &seq);
        start_write(d, seq);
        bench_lap(t, from);
    }
    finish_write(d);
    return events;
}

/* Sends a statement of a pipeline. */
static void queue(struct drain *d, const char *name, const char *const *params, int n)
{
    pg_send(d->reader, name, params, n);
    if (!PQpipelineSync(d->reader))
        bench_die("%s", PQerrorMessage(d->reader));
}

/* Returns the result of the next statement of a pipeline. */
static PGresult *take_queued(struct drain *d)
{
    PGresult *r = pg_take(d->reader), *sync = PQgetResult(d->reader);
    if (PQresultStatus(sync) != PGRES_PIPELINE_SYNC)
        bench_die("%s", PQerrorMessage(d->reader));
    PQclear(sync);
    return r;
}

static size_t drain_pipelined(struct drain *d, struct bench_timing *t)
{
    size_t events = 0;
    char text[24] = "0";
    const char *params[] = {text, d->consumer};
    PQenterPipelineMode(d->reader);
    queue(d, "read", params, 1);
    for (int n = BATCH; n == BATCH; events += (size_t)n) {
        int64_t from = bench_now();
        PGresult *r = take_queued(d);
        n = PQntuples(r);
        if (n > 0)
            snprintf(text, sizeof text, "%" PRId64, pg_int8(r, n - 1, 0));
        if (n == BATCH)
            queue(d, "read", params, 1);
        look(d, r);
        PQclear(r);
        if (d->writing)
            PQclear(take_queued(d));
        queue(d, "position", params, 2);
        d->writing = true;
        bench_lap(t, from);
    }
    PQclear(take_queued(d));
    return events;
}

static void mark_done(struct drain *d, const PGresult *r, char *list)
{
    const char *params[] = {list};
    char *to = list;
    for (int i = 0; i < PQntuples(r); i++)
        to += sprintf(to, "%c%" PRId64, i ? ',' : '{', pg_int8(r, i, 0));
    strcpy(to, "}");
    pg_run(d->reader, "done", params, 1);
}

static size_t drain_queue(struct drain *d, struct bench_timing *t)
{
    size_t events = 0;
    char *list = malloc(BATCH * 24);
    if (!list)
        bench_die("out of memory");
    for (int n = BATCH; n == BATCH; events += (size_t)n) {
        int64_t from = bench_now();
        pg_send(d->reader, "claim", NULL, 0);
        PGresult *r = pg_take(d->reader);
        n = PQntuples(r);
        look(d, r);
        if (n > 0)
            mark_done(d, r, list);
        PQclear(r);
        bench_lap(t, from);
    }
    free(list);
    return events;
}

static void prepare(struct drain *d, bool claims)
{
    const char *params[] = {d->consumer};
    if (claims) {
        pg_prepare(
            d->reader, "claim",
            "WITH next AS MATERIALIZED (SELECT q.seq FROM bench_queue q WHERE q.status = 'pending' "
            "ORDER BY q.seq "
            "LIMIT 1000 FOR UPDATE SKIP LOCKED) UPDATE bench_queue SET status = 'processing', "
            "locked_until = now() + interval '30 s' FROM next WHERE bench_queue.seq = next.seq "
            "RETURNING bench_queue.seq, id, type, aggregate_type, aggregate_id, version, payload, "
            "headers, tenant, "
            "created_at, not_before");
        pg_prepare(d->reader, "done",
                   "UPDATE bench_queue SET status = 'done', locked_until = NULL "
                   "WHERE seq = ANY ($1::bigint[])");
        return;
    }
    pg_sql(
        d->writer,
        "CREATE TABLE IF NOT EXISTS bench_position (consumer text PRIMARY KEY, position bigint)");
    pg_prepare(d->writer, "reset",
               "INSERT INTO bench_position VALUES ($1, 0) ON CONFLICT (consumer) DO UPDATE "
               "SET position = 0");
    pg_run(d->writer, "reset", params, 1);
    pg_prepare(d->writer, "position",
               "UPDATE bench_position SET position = $1 WHERE consumer = $2");
    pg_prepare(d->reader, "read",
               "SELECT " COLUMNS " FROM outbox.event WHERE seq > $1 ORDER BY seq LIMIT 1000");
}

int main(int argc, char **argv)
{
    if (argc < 3)
        bench_die("usage: %s URL cursor|pipelined|single-row|skip-locked [CONSUMER]", argv[0]);
    bool claims = strcmp(argv[2], "skip-locked") == 0, one = strcmp(argv[2], "pipelined") == 0;
    struct drain d = {.consumer = argc > 3 ? argv[3] : "bench",
                      .single_row = strcmp(argv[2], "single-row") == 0};
    d.reader = pg_open(argv[1]);
    d.writer = one ? d.reader : pg_open(argv[1]);
    pg_sql(d.reader, "SET plan_cache_mode = force_generic_plan");
    pg_sql(d.reader, "SET jit = off");
    prepare(&d, claims);
    struct bench_timing t;
    bench_start(&t, 1 << 20);
    size_t events = claims ? drain_queue(&d, &t)
                    : one  ? drain_pipelined(&d, &t)
                           : drain_cursor(&d, &t);
    if (events > 0 && d.seen == 0)
        bench_die("read no events");
    bench_report(&t, events);
    PQfinish(d.reader);
    if (!one)
        PQfinish(d.writer);
    return 0;
}
