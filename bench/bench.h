/* bench.h: functions shared by the programs in this folder. Each prints one line of JSON for
 * bench/run. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

/* The command line of the emitting programs. */
struct bench_options {
    const char *db;
    const char *mode;
    size_t n;
    size_t per_tx;  /* events in a transaction; 0: each autocommits, without BEGIN */
    size_t payload; /* bytes */
    size_t keys;
    size_t rare; /* one in so many events has the type order.rare; 0: none */
    size_t producers;
    double rate;    /* events a second, of all producers together */
    size_t seconds; /* to emit for */
    size_t types;   /* event i has the type wake.(i % types); 0: a type that matches no consumer */
    int lines;      /* descriptor from which delivered lines can be read; -1: none */
};

/* Transaction times. */
struct bench_timing {
    int64_t started; /* ns */
    int64_t *ns;
    size_t n;
};

/* bench_die prints a message and ends the program. */
_Noreturn void bench_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* bench_now returns monotonic nanoseconds, of the same clock in every process. */
int64_t bench_now(void);

/* bench_options parses `-d DB -m MODE -n N -t PER_TX -s PAYLOAD -k KEYS -r RARE -j PRODUCERS
 * -a RATE -e SECONDS -y TYPES -l LINES`, and exits on an error. */
void bench_options(struct bench_options *o, int argc, char **argv);

/* bench_sleep_until sleeps to that time of bench_now. */
void bench_sleep_until(int64_t at);

/* bench_payload writes the JSON text of event i at p: o->payload bytes, but 64 at least, and a
 * NUL. */
void bench_payload(const struct bench_options *o, size_t i, char *p);

/* bench_type returns the type of event i. */
const char *bench_type(const struct bench_options *o, size_t i);

/* bench_open connects as the library does: synchronous = FULL, the journal as it is in the file. */
sqlite3 *bench_open(const char *path);

/* bench_sql, bench_prepare and bench_step exit on failure. */
void bench_sql(sqlite3 *db, const char *sql);
sqlite3_stmt *bench_prepare(sqlite3 *db, const char *sql);

/* bench_step runs a statement without rows, and resets it. */
void bench_step(sqlite3 *db, sqlite3_stmt *q);

/* bench_start starts the clock, with room for max transactions. */
void bench_start(struct bench_timing *t, size_t max);

/* bench_lap records the duration of a transaction that began at `from`. */
void bench_lap(struct bench_timing *t, int64_t from);

/* bench_report prints the number of events and the timings, and frees them. */
void bench_report(struct bench_timing *t, size_t events);

/* bench_quantile returns the quantile q (0 to 1) of n times, which it sorts. */
int64_t bench_quantile(int64_t *ns, size_t n, double q);

/* bench_print prints a member of an object: the quantiles of n times, which it sorts. */
void bench_print(const char *name, int64_t *ns, size_t n);

#endif
