/* drain URL EVENTS BATCH CONSUMER...: each consumer gets all EVENTS events through the library and
 * discards them: its handler reads every byte of every field, as pg_drain does. BATCH 0 is the
 * library's default. Besides the total time, including connecting, prints when each tenth of the
 * first consumer's events was handled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench.h"
#include "outbox.h"

struct reader {
    size_t expected, n;
    uint64_t seen;
    int64_t tenths[10]; /* ns */
};

static unsigned sum_of(const char *p, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (unsigned char)p[i];
    return sum;
}

static unsigned sum_of_text(const char *p)
{
    return p ? sum_of(p, strlen(p)) : 0;
}

static outbox_verdict look(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct reader *r = ctx;
    size_t n;
    int64_t version = 0;
    const char *payload = outbox_event_payload(ev, &n);
    (void)tx;
    outbox_event_version(ev, &version);
    r->seen += sum_of(payload, n) + sum_of_text(outbox_event_id(ev)) +
               sum_of_text(outbox_event_type(ev)) + sum_of_text(outbox_event_aggregate_type(ev)) +
               sum_of_text(outbox_event_aggregate_id(ev)) + sum_of_text(outbox_event_headers(ev)) +
               sum_of_text(outbox_event_tenant(ev)) + (uint64_t)outbox_event_seq(ev) +
               (uint64_t)outbox_event_created_at(ev) + (uint64_t)version;
    r->n++;
    if (r->n * 10 % r->expected == 0 && r->n <= r->expected)
        r->tenths[r->n * 10 / r->expected - 1] = bench_now();
    return OUTBOX_DONE;
}

static void check(int rc, const outbox_error *err)
{
    if (rc != 0)
        bench_die("%s", err->text);
}

static void report(const struct reader *r, size_t consumers, int64_t started)
{
    struct rusage use;
    int64_t ended = bench_now();
    getrusage(RUSAGE_SELF, &use);
    printf("{\"events\":%zu,\"seconds\":%.6f,\"cpu\":%.6f,\"rss_mib\":%.1f,\"tenths\":[",
           r->expected * consumers, (double)(ended - started) / 1e9,
           (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
               (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6,
           (double)use.ru_maxrss / 1024);
    for (int i = 0; i < 10; i++)
        printf("%s%.6f", i ? "," : "", (double)(r->tenths[i] - started) / 1e9);
    printf("]}\n");
}

int main(int argc, char **argv)
{
    if (argc < 5)
        bench_die("usage: %s URL EVENTS BATCH CONSUMER...", argv[0]);
    size_t consumers = (size_t)argc - 4, expected = strtoull(argv[2], NULL, 10);
    outbox *ob;
    outbox_error err;
    struct reader *readers = calloc(consumers, sizeof *readers);
    if (!readers || expected == 0 || expected % 10 != 0)
        bench_die("EVENTS must be a multiple of ten");
    check(outbox_open(argv[1], NULL, &ob, &err), &err);
    for (size_t i = 0; i < consumers; i++) {
        outbox_consumer *c;
        readers[i].expected = expected;
        check(outbox_consumer_new(ob, argv[4 + i], &c, &err), &err);
        if (strcmp(argv[3], "0") != 0)
            check(outbox_consumer_set(c, "batch", argv[3], &err), &err);
        check(outbox_on(c, "*", look, &readers[i], &err), &err);
    }
    int64_t started = bench_now();
    check(outbox_run(ob, OUTBOX_UNTIL_THROUGH, &err), &err);
    report(readers, consumers, started);
    for (size_t i = 0; i < consumers; i++)
        if (readers[i].n != expected || !readers[i].seen)
            bench_die("%s got %zu events instead of %zu", argv[4 + i], readers[i].n, expected);
    outbox_close(ob);
    free(readers);
    return 0;
}
