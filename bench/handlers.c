/* handlers URL EVENTS BATCH CONSUMER: a handler inserts one row for each of EVENTS events, through
 * the library, in batches of BATCH at most. With "-" for a consumer a bare loop inserts as many
 * rows with the same statement, BATCH to a transaction, and reads no events. Time is measured from
 * the first row on. The table is bench_effect (event, note).
 *
 * handlers URL EVENTS latency: a separate process commits events, 200 a second; measures the time
 * from each commit until the handler was done, and until another connection could see its row. */
#include <libpq-fe.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "outbox.h"
#include "pg.h"

#define APART 5000000 /* ns */

/* A connection to either database, with the statement prepared on it. */
struct target {
    PGconn *pg;
    sqlite3 *db;
    sqlite3_stmt *q;
};

static const char note[] = "one of many rows that a handler makes of an event";

static void target_use(struct target *t, PGconn *pg, sqlite3 *db)
{
    if (t->pg == pg && t->db == db)
        return;
    *t = (struct target){.pg = pg, .db = db};
    if (pg)
        pg_prepare(pg, "bench_insert", "INSERT INTO bench_effect (event, note) VALUES ($1, $2)");
    else
        t->q = bench_prepare(db, "INSERT INTO bench_effect (event, note) VALUES (?, ?)");
}

static int64_t first_at; /* when the first row was about to be inserted */

static void target_insert(struct target *t, const char *event)
{
    if (!first_at)
        first_at = bench_now();
    if (t->pg) {
        PQclear(PQexecPrepared(t->pg, "bench_insert", 2, (const char *const[]){event, note}, NULL,
                               NULL, 0));
        return;
    }
    sqlite3_bind_text(t->q, 1, event, -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(t->q, 2, note, -1, SQLITE_STATIC);
    bench_step(t->db, t->q);
}

static void target_do(struct target *t, const char *sql)
{
    if (t->pg)
        pg_sql(t->pg, sql);
    else
        bench_sql(t->db, sql);
}

static struct target target_open(const char *url)
{
    struct target t = {0};
    if (strncmp(url, "sqlite:", 7) == 0)
        target_use(&t, NULL, bench_open(url + 7));
    else
        target_use(&t, pg_open(url), NULL);
    return t;
}

static void target_close(struct target *t)
{
    sqlite3_finalize(t->q);
    sqlite3_close(t->db);
    PQfinish(t->pg);
}

static void check(int rc, const outbox_error *err)
{
    if (rc != 0)
        bench_die("%s", err->text);
}

/* ---- how many ---- */

static void insert_bare(const char *url, size_t n, size_t batch)
{
    struct target t = target_open(url);
    for (size_t i = 0; i < n;) {
        target_do(&t, "BEGIN");
        for (size_t end = i + batch < n ? i + batch : n; i < end; i++)
            target_insert(&t, "0191e2a4-0000-7000-8000-000000000000");
        target_do(&t, "COMMIT");
    }
    target_close(&t);
}

struct work {
    struct target t;
    size_t n, stop_at;
    outbox *ob;
    struct times *times;
};

static outbox_verdict insert(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct work *w = ctx;
    target_use(&w->t, outbox_tx_pg(tx), outbox_tx_sqlite(tx));
    target_insert(&w->t, outbox_event_id(ev));
    if (++w->n == w->stop_at)
        outbox_stop(w->ob);
    return OUTBOX_DONE;
}

static void insert_handled(const char *url, size_t n, const char *batch, const char *name)
{
    struct work w = {.stop_at = n};
    outbox_consumer *c;
    outbox_error err;
    check(outbox_open(url, NULL, &w.ob, &err), &err);
    check(outbox_consumer_new(w.ob, name, &c, &err), &err);
    check(outbox_consumer_set(c, "batch", batch, &err), &err);
    check(outbox_add_handler(c, "insert", "*", insert, &w, 0, &err), &err);
    check(outbox_run(w.ob, 0, &err), &err);
    if (w.n < n)
        bench_die("%zu events instead of %zu", w.n, n);
    sqlite3_finalize(w.t.q);
    outbox_close(w.ob);
}

/* ---- how soon ---- */

struct times {
    int64_t returned, done, seen;
};

static void emit_all(const char *url, struct times *t, size_t n)
{
    outbox *ob;
    outbox_error err;
    check(outbox_open(url, NULL, &ob, &err), &err);
    int64_t due = bench_now();
    for (size_t i = 0; i < n; i++) {
        char payload[32];
        outbox_message m = OUTBOX_MESSAGE_INIT;
        m.type = "wake.up";
        m.payload = payload;
        snprintf(payload, sizeof payload, "%zu", i);
        due += APART;
        bench_sleep_until(due);
        check(outbox_emit(ob, &m, NULL, &err), &err);
        t[i].returned = bench_now();
    }
    outbox_close(ob);
}

static outbox_verdict note_done(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct work *w = ctx;
    outbox_verdict v = insert(ev, tx, ctx);
    w->times[strtoull(outbox_event_payload(ev, NULL), NULL, 10)].done = bench_now();
    return v;
}

struct watch {
    const char *url;
    struct times *t;
    size_t n;
};

/* Returns the current number of rows. */
static size_t count_rows(struct target *t)
{
    if (t->pg) {
        pg_send(t->pg, "bench_count", NULL, 0);
        PGresult *r = pg_take(t->pg);
        size_t n = (size_t)pg_int8(r, 0, 0);
        PQclear(r);
        return n;
    }
    sqlite3_step(t->q);
    size_t n = (size_t)sqlite3_column_int64(t->q, 0);
    sqlite3_reset(t->q);
    return n;
}

/* Polls for rows every 200 us, in the order of their arrival. */
static void *watch_rows(void *arg)
{
    static const char sql[] = "SELECT coalesce(max(id), 0) FROM bench_effect";
    struct watch *w = arg;
    struct target t = target_open(w->url);
    if (t.pg) {
        pg_prepare(t.pg, "bench_count", sql);
    } else {
        sqlite3_finalize(t.q);
        t.q = bench_prepare(t.db, sql);
    }
    size_t first = count_rows(&t);
    for (size_t seen = 0; seen < w->n;) {
        size_t there = count_rows(&t) - first;
        int64_t now = bench_now();
        for (; seen < there && seen < w->n; seen++)
            w->t[seen].seen = now;
        struct timespec ts = {0, 200000};
        nanosleep(&ts, NULL);
    }
    target_close(&t);
    return NULL;
}

static void latency(const char *url, size_t n)
{
    struct times *t = mmap(NULL, n * sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                           -1, 0);
    int64_t *ns = calloc(n, sizeof *ns);
    struct work w = {.stop_at = n, .times = t};
    struct watch watch = {url, t, n};
    outbox_consumer *c;
    outbox_error err;
    pthread_t watcher;
    int status;
    if (t == MAP_FAILED || !ns)
        bench_die("out of memory");
    pid_t child = fork();
    if (child == 0) {
        sleep(1); /* until all are running */
        emit_all(url, t, n);
        _exit(0);
    }
    check(outbox_open(url, NULL, &w.ob, &err), &err);
    check(outbox_consumer_new(w.ob, "latency", &c, &err), &err);
    check(outbox_consumer_set(c, "from", "end", &err), &err);
    check(outbox_add_handler(c, "insert", "*", note_done, &w, 0, &err), &err);
    if (pthread_create(&watcher, NULL, watch_rows, &watch) != 0)
        bench_die("no thread");
    check(outbox_run(w.ob, 0, &err), &err);
    pthread_join(watcher, NULL);
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_die("the committing process failed");
    printf("{\"events\":%zu,", n);
    for (size_t i = 0; i < n; i++)
        ns[i] = t[i].done - t[i].returned;
    bench_print("done", ns, n);
    for (size_t i = 0; i < n; i++)
        ns[i] = t[i].seen - t[i].returned;
    printf(",");
    bench_print("seen", ns, n);
    printf("}\n");
    free(ns);
    sqlite3_finalize(w.t.q);
    outbox_close(w.ob);
}

int main(int argc, char **argv)
{
    struct bench_timing timing;
    if (argc != 5 && (argc != 4 || strcmp(argv[3], "latency") != 0))
        bench_die("usage: %s URL EVENTS BATCH CONSUMER, or URL EVENTS latency", argv[0]);
    size_t n = strtoull(argv[2], NULL, 10);
    if (argc == 4) {
        latency(argv[1], n);
        return 0;
    }
    bench_start(&timing, 1);
    if (strcmp(argv[4], "-") == 0)
        insert_bare(argv[1], n, strtoull(argv[3], NULL, 10));
    else
        insert_handled(argv[1], n, argv[3], argv[4]);
    timing.started = first_at;
    bench_report(&timing, n);
    return 0;
}
