/* bench.h: what the programs in this folder share. They print one line of JSON; bench/run makes
 * sense of it. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

/* What the emitting programs do, from their command line. */
struct bench_options {
    const char *db;
    const char *mode;
    size_t n;
    size_t per_tx;  /* events in a transaction; 0: each commits by itself, without BEGIN */
    size_t payload; /* bytes */
    size_t keys;
    size_t rare; /* every so many events one is of the type order.rare; 0: none */
    size_t producers;
};

/* How long transactions took. */
struct bench_timing {
    int64_t started; /* ns */
    int64_t *ns;
    size_t n;
};

_Noreturn void bench_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int64_t bench_now(void); /* monotonic ns, the same clock in every process */

/* bench_options reads `-d DB -m MODE -n N -t PER_TX -s PAYLOAD -k KEYS -r RARE -j PRODUCERS`; ends
 * the program if it cannot. */
void bench_options(struct bench_options *o, int argc, char **argv);
/* bench_payload makes the JSON text of event i, o->payload bytes and a NUL, at p; it takes 64 at
 * least. */
void bench_payload(const struct bench_options *o, size_t i, char *p);
const char *bench_type(const struct bench_options *o, size_t i);

/* bench_open connects as the library does: synchronous = FULL, the journal as it is in the file. */
sqlite3 *bench_open(const char *path);
void bench_sql(sqlite3 *db, const char *sql);
sqlite3_stmt *bench_prepare(sqlite3 *db, const char *sql);
void bench_step(sqlite3 *db, sqlite3_stmt *q); /* to the end, and resets */

void bench_start(struct bench_timing *t, size_t max);
void bench_lap(struct bench_timing *t, int64_t from);
/* bench_report prints `events` and the timings, and frees them. */
void bench_report(struct bench_timing *t, size_t events);
/* bench_quantile sorts ns; q of 0 to 1. */
int64_t bench_quantile(int64_t *ns, size_t n, double q);

#endif
