#include "bench.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

void bench_die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

int64_t bench_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void bench_options(struct bench_options *o, int argc, char **argv)
{
    *o = (struct bench_options){
        .mode = "", .n = 1000, .payload = 300, .keys = 10000, .producers = 1, .types = 1};
    o->lines = -1;
    for (int c; (c = getopt(argc, argv, "d:m:n:t:s:k:r:j:a:e:y:l:")) != -1;) {
        switch (c) {
        case 'd': o->db = optarg; break;
        case 'm': o->mode = optarg; break;
        case 'n': o->n = strtoull(optarg, NULL, 10); break;
        case 't': o->per_tx = strtoull(optarg, NULL, 10); break;
        case 's': o->payload = strtoull(optarg, NULL, 10); break;
        case 'k': o->keys = strtoull(optarg, NULL, 10); break;
        case 'r': o->rare = strtoull(optarg, NULL, 10); break;
        case 'j': o->producers = strtoull(optarg, NULL, 10); break;
        case 'a': o->rate = strtod(optarg, NULL); break;
        case 'e': o->seconds = strtoull(optarg, NULL, 10); break;
        case 'y': o->types = strtoull(optarg, NULL, 10); break;
        case 'l': o->lines = atoi(optarg); break;
        default: exit(64);
        }
    }
    bool complete = o->db && optind == argc;
    bool sensible = o->keys > 0 && o->n > 0 && o->producers > 0;
    if (!complete || !sensible)
        bench_die("usage: %s -d DB [-m MODE] [-n N] [-t PER_TX] [-s PAYLOAD] [-k KEYS] [-r RARE] "
                  "[-j PRODUCERS] [-a RATE] [-e SECONDS] [-y TYPES] [-l LINES]",
                  argv[0]);
}

void bench_sleep_until(int64_t at)
{
    struct timespec ts = {at / 1000000000, at % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

void bench_payload(const struct bench_options *o, size_t i, char *p)
{
    static const char words[] = "the quick brown fox jumps over the lazy dog and ";
    size_t size = o->payload < 64 ? 64 : o->payload;
    size_t n = (size_t)sprintf(p, "{\"n\":%zu,\"group\":%zu,\"text\":\"", i, i % 100);
    for (size_t k = 0; n < size - 2; n++, k++)
        p[n] = words[k % (sizeof words - 1)];
    strcpy(p + n, "\"}");
}

const char *bench_type(const struct bench_options *o, size_t i)
{
    bool rare = o->rare && i % o->rare == 0;
    return rare ? "order.rare" : "order.changed";
}

sqlite3 *bench_open(const char *path)
{
    sqlite3 *db;
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        bench_die("%s: %s", path, sqlite3_errmsg(db));
    sqlite3_busy_timeout(db, 10000);
    bench_sql(db, "PRAGMA synchronous = FULL");
    return db;
}

void bench_sql(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        bench_die("%s: %s", sql, sqlite3_errmsg(db));
}

sqlite3_stmt *bench_prepare(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &q, NULL) != SQLITE_OK)
        bench_die("%s: %s", sql, sqlite3_errmsg(db));
    return q;
}

void bench_step(sqlite3 *db, sqlite3_stmt *q)
{
    if (sqlite3_step(q) != SQLITE_DONE)
        bench_die("%s: %s", sqlite3_sql(q), sqlite3_errmsg(db));
    sqlite3_reset(q);
}

void bench_start(struct bench_timing *t, size_t max)
{
    *t = (struct bench_timing){.ns = calloc(max, sizeof *t->ns)};
    if (!t->ns)
        bench_die("out of memory");
    t->started = bench_now();
}

void bench_lap(struct bench_timing *t, int64_t from)
{
    t->ns[t->n++] = bench_now() - from;
}

static int compare(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int64_t bench_quantile(int64_t *ns, size_t n, double q)
{
    if (n == 0)
        return 0;
    qsort(ns, n, sizeof *ns, compare);
    return ns[(size_t)(q * (double)(n - 1) + 0.5)];
}

static double seconds_of(struct timeval tv)
{
    return (double)tv.tv_sec + (double)tv.tv_usec / 1e6;
}

void bench_report(struct bench_timing *t, size_t events)
{
    double seconds = (double)(bench_now() - t->started) / 1e9;
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("{\"events\":%zu,\"seconds\":%.6f,\"cpu\":%.6f,"
           "\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}\n",
           events, seconds, seconds_of(use.ru_utime) + seconds_of(use.ru_stime),
           (double)bench_quantile(t->ns, t->n, 0.5) / 1e3,
           (double)bench_quantile(t->ns, t->n, 0.99) / 1e3,
           (double)bench_quantile(t->ns, t->n, 1) / 1e3);
    free(t->ns);
}

void bench_print(const char *name, int64_t *ns, size_t n)
{
    printf("\"%s\":{\"n\":%zu,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}", name, n,
           (double)bench_quantile(ns, n, 0.5) / 1e3, (double)bench_quantile(ns, n, 0.99) / 1e3,
           (double)bench_quantile(ns, n, 1) / 1e3);
}
