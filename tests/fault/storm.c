/* storm.c: an application with three handlers, which tests kill, stop and cut off.
 *
 *     fault_storm URL FOLDER ATTEMPTS CALLS LAG
 *
 * It runs until no work is left, or until SIGTERM if the file FOLDER/stay exists. "shop.stock"
 * and "shop.odd" insert a row into the table effect, in their transactions; "shop.post" appends "ID
 * SEQ KEY" to FOLDER/post and syncs it, as an external one. With the CALLS-th call of stock or odd
 * (0: never) the process kills itself LAG microseconds later, and at once, in the call, if that is
 * 0. While FOLDER/hold exists, a call of stock creates FOLDER/held and waits. If FOLDER/patient
 * exists, leases are long.
 *
 * Types of events that odd takes otherwise: "fail" always fails, "sometimes" now and then, "abort"
 * aborts the process. */
#include <fcntl.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_MARIADB
#include <mysql.h>
#endif

#include "outbox.h"

static atomic_long calls_left;
static long lag_us;
static const char *folder;
static outbox *ob;

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "storm: %s: %s\n", what, why);
    exit(1);
}

static void nap(long us)
{
    struct timespec ts = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&ts, NULL);
}

static const char *path_of(const char *name, char *buf, size_t size)
{
    snprintf(buf, size, "%s/%s", folder, name);
    return buf;
}

static int there(const char *name)
{
    char path[4096];
    return access(path_of(name, path, sizeof path), F_OK) == 0;
}

static void *kill_later(void *arg)
{
    (void)arg;
    nap(lag_us);
    raise(SIGKILL);
    return NULL;
}

static void count_down(void)
{
    pthread_t thread;
    if (atomic_fetch_sub(&calls_left, 1) != 1)
        return;
    if (lag_us == 0)
        raise(SIGKILL);
    if (pthread_create(&thread, NULL, kill_later, NULL) != 0)
        raise(SIGKILL);
}

static int effect_sqlite(sqlite3 *db, const char *handler, const outbox_event *ev)
{
    char *sql = sqlite3_mprintf(
        "INSERT INTO effect (handler, event, seq, key, pid) VALUES (%Q, %Q, %lld, %Q, %d)", handler,
        outbox_event_id(ev), (long long)outbox_event_seq(ev), outbox_event_aggregate_id(ev),
        (int)getpid());
    int r = sqlite3_exec(db, sql, NULL, NULL, NULL);
    sqlite3_free(sql);
    return r == SQLITE_OK ? 0 : -1;
}

static int effect_pg(PGconn *db, const char *handler, const outbox_event *ev)
{
    char seq[24], pid[24];
    snprintf(seq, sizeof seq, "%lld", (long long)outbox_event_seq(ev));
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    const char *params[] = {handler, outbox_event_id(ev), seq, outbox_event_aggregate_id(ev), pid};
    PGresult *r = PQexecParams(
        db, "INSERT INTO effect (handler, event, seq, key, pid) VALUES ($1, $2, $3, $4, $5)", 5,
        NULL, params, NULL, NULL, 0);
    int bad = PQresultStatus(r) != PGRES_COMMAND_OK;
    PQclear(r);
    return bad ? -1 : 0;
}

#ifdef WITH_MARIADB
/* effect_mariadb needs no escaping: none of these values contains a quote. */
static int effect_mariadb(MYSQL *db, const char *handler, const outbox_event *ev)
{
    char sql[400];
    snprintf(
        sql, sizeof sql,
        "INSERT INTO effect (handler, event, seq, `key`, pid) VALUES ('%s', '%s', %lld, '%s', %d)",
        handler, outbox_event_id(ev), (long long)outbox_event_seq(ev),
        outbox_event_aggregate_id(ev), (int)getpid());
    return mysql_query(db, sql) == 0 ? 0 : -1;
}
#endif

static int effect(outbox_tx *tx, const char *handler, const outbox_event *ev)
{
#ifdef WITH_MARIADB
    if (outbox_tx_mariadb(tx))
        return effect_mariadb(outbox_tx_mariadb(tx), handler, ev);
#endif
    return outbox_tx_pg(tx) ? effect_pg(outbox_tx_pg(tx), handler, ev)
                            : effect_sqlite(outbox_tx_sqlite(tx), handler, ev);
}

static outbox_verdict stock(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    char path[4096];
    (void)ctx;
    if (effect(tx, "stock", ev) != 0)
        return outbox_fail(tx, OUTBOX_RETRY, "no effect");
    count_down();
    if (there("hold"))
        close(open(path_of("held", path, sizeof path), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    while (there("hold"))
        nap(2000);
    return OUTBOX_DONE;
}

static outbox_verdict odd(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    const char *type = outbox_event_type(ev);
    (void)ctx;
    if (effect(tx, "odd", ev) != 0)
        return outbox_fail(tx, OUTBOX_RETRY, "no effect");
    count_down();
    if (strcmp(type, "abort") == 0)
        abort();
    if (strcmp(type, "fail") == 0)
        return outbox_fail(tx, OUTBOX_RETRY, "always fails");
    if (strcmp(type, "sometimes") == 0 && random() % 2)
        return outbox_fail(tx, OUTBOX_RETRY, "sometimes fails");
    return OUTBOX_DONE;
}

static outbox_verdict post(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    char line[256];
    const int *fd = ctx;
    int n = snprintf(line, sizeof line, "%s %lld %s\n", outbox_event_id(ev),
                     (long long)outbox_event_seq(ev), outbox_event_aggregate_id(ev));
    if (write(*fd, line, (size_t)n) != n || fdatasync(*fd) != 0)
        return outbox_fail(tx, OUTBOX_DOWN, "cannot write");
    return OUTBOX_DONE;
}

static void on_term(int number)
{
    (void)number;
    outbox_stop(ob);
}

static void say(void *ctx, int level, const char *consumer, const char *text)
{
    (void)ctx, (void)level;
    fprintf(stderr, "%s: %s\n", consumer ? consumer : "-", text);
}

static void set(outbox_consumer *c, const char *option, const char *value)
{
    outbox_error err;
    if (outbox_consumer_set(c, option, value, &err) != 0)
        die(option, err.text);
}

static void add(outbox_consumer *c, const char *name, outbox_handler fn, void *ctx, int flags)
{
    outbox_error err;
    if (outbox_add_handler(c, name, "*", fn, ctx, flags, &err) != 0)
        die(name, err.text);
}

int main(int argc, char **argv)
{
    outbox_error err;
    outbox_options o = OUTBOX_OPTIONS_INIT;
    outbox_consumer *c;
    char path[4096], retry[96];
    if (argc != 6)
        die("usage", "fault_storm URL FOLDER ATTEMPTS CALLS LAG");
    folder = argv[2];
    calls_left = strtol(argv[4], NULL, 10);
    lag_us = strtol(argv[5], NULL, 10);
    srandom((unsigned)getpid());
    signal(SIGTERM, on_term);
    int fd = open(path_of("post", path, sizeof path), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC,
                  0644);
    if (fd < 0)
        die("open", path);
    o.log = say;
    if (outbox_open(argv[1], &o, &ob, &err) != 0)
        die(argv[1], err.text);
    if (outbox_consumer_new(ob, "shop", &c, &err) != 0)
        die("shop", err.text);
    snprintf(retry, sizeof retry, "base=5ms,cap=20ms,attempts=%s,jitter=none,outage=0s", argv[3]);
    set(c, "retry", retry);
    set(c, "lease", there("patient") ? "30s" : "150ms");
    set(c, "timeout", "1s");
    set(c, "lanes", "4");
    set(c, "batch", "8");
    add(c, "stock", stock, NULL, 0);
    add(c, "odd", odd, NULL, 0);
    add(c, "post", post, &fd, OUTBOX_EXTERNAL);
    if (outbox_run(ob, there("stay") ? 0 : OUTBOX_UNTIL_THROUGH, &err) != 0)
        die("run", err.text);
    outbox_close(ob);
    close(fd);
    return 0;
}
