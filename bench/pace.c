/* pace: producers that together emit -a events a second for -e seconds, each at a time fixed in
 * advance, measuring the time until each event was handled: until its line could be read from
 * descriptor -l, the standard output of a relay or of a bare loop. -d is a URL, -m how to emit (see
 * producer.h), -j how many producers, -y how many types the events have in turn; lines arrive for
 * the first of them, and for none with -y 0.
 *
 * It first emits one event of the type warm.up and waits for its line, prints `ready`, and starts
 * when it receives a line: the harness takes its first readings in between. Without -l it waits for
 * no lines. Producers that cannot keep up stop at the end of the time. They stay connected until
 * another line or the end of input. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "producer.h"

#define SECOND INT64_C(1000000000)
#define WARM_UP_S 30 /* for the line of the first event */
#define PATIENCE_S 3 /* for the next of the lines that are missing at the end */

/* Times of one event, in ns; 0: not reached yet. */
struct times {
    int64_t due, started, returned;
    _Atomic int64_t seen;
};

struct pace {
    const struct bench_options *o;
    struct times *t; /* n + 1 of them; the last is the one to warm up with */
    size_t n;
    pthread_barrier_t connected, start, emitted;
    int64_t end;
    atomic_size_t next, seen;
};

/* ---- emitting ---- */

static void emit_one(struct pace *p, struct producer *by, size_t i, const char *type)
{
    char payload[400], key[24];
    struct times *t = &p->t[i];
    t->started = bench_now();
    int n = snprintf(payload, sizeof payload, "{\"wake\":%zu,\"text\":\"", i);
    snprintf(payload + n, sizeof payload - (size_t)n, "%0*d\"}", 300 - 2 - n, 0);
    snprintf(key, sizeof key, "%zu", i % p->o->keys);
    producer_emit(by, &(struct produced){type, key, payload});
    t->returned = bench_now();
}

static void *produce(void *arg)
{
    struct pace *p = arg;
    char type[32] = "unwanted";
    struct producer *by = producer_new(p->o);
    pthread_barrier_wait(&p->connected);
    pthread_barrier_wait(&p->start);
    for (size_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n;) {
        bench_sleep_until(p->t[i].due);
        if (bench_now() > p->end)
            break;
        if (p->o->types)
            snprintf(type, sizeof type, "wake.%zu", i % p->o->types);
        emit_one(p, by, i, type);
    }
    pthread_barrier_wait(&p->emitted);
    return by; /* stay connected, so that the usage of its server process stays visible */
}

/* ---- watching ---- */

static void note_line(struct pace *p, const char *line, int64_t now)
{
    const char *wake = strstr(line, "\"wake\":");
    size_t i = wake ? strtoull(wake + 7, NULL, 10) : p->n + 1;
    if (i > p->n || atomic_load(&p->t[i].seen))
        return;
    atomic_store(&p->t[i].seen, now);
    atomic_fetch_add(&p->seen, 1);
}

/* Reads lines until the other end is closed. */
static void *watch(void *arg)
{
    struct pace *p = arg;
    static char text[1 << 20];
    size_t n = 0;
    for (ssize_t k; (k = read(p->o->lines, text + n, sizeof text - n - 1)) > 0;) {
        int64_t now = bench_now();
        char *line = text, *end;
        n += (size_t)k;
        while ((end = memchr(line, '\n', n - (size_t)(line - text))) != NULL) {
            *end = '\0';
            note_line(p, line, now);
            line = end + 1;
        }
        n -= (size_t)(line - text);
        memmove(text, line, n);
    }
    return NULL;
}

/* Waits for n lines, as long as one arrives every `seconds`; returns whether all did. A bare loop
 * loses some. */
static bool await_seen(struct pace *p, size_t n, int64_t seconds)
{
    size_t before = 0, seen = atomic_load(&p->seen);
    int64_t end = bench_now() + seconds * SECOND;
    while (seen < n && bench_now() < end) {
        if (seen > before)
            end = bench_now() + seconds * SECOND;
        before = seen;
        usleep(2000);
        seen = atomic_load(&p->seen);
    }
    return seen >= n;
}

/* ---- the run ---- */

/* Spreads the events: 0 to 2 times the mean distance apart. */
static void plan(struct pace *p)
{
    double apart = (double)SECOND / p->o->rate;
    double at = (double)bench_now();
    srandom(1);
    for (size_t i = 0; i < p->n; i++) {
        at += apart * 2 * (double)random() / (double)RAND_MAX;
        p->t[i].due = (int64_t)at;
    }
    p->end = bench_now() + (int64_t)(1.2 * (double)p->o->seconds * (double)SECOND);
}

static void warm_up(struct pace *p)
{
    struct producer *by = producer_new(p->o);
    emit_one(p, by, p->n, "warm.up");
    producer_free(by);
    if (p->o->lines < 0)
        return;
    if (!await_seen(p, 1, WARM_UP_S))
        bench_die("no line arrived within %d s: is the relay running?", WARM_UP_S);
}

static void await_go(void)
{
    char line[16];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        exit(0);
}

/* Collects the time between two moments, for events that have both. */
static size_t between(const struct pace *p, int64_t *ns, bool emit, bool returned)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct times *t = &p->t[i];
        int64_t from = returned ? t->returned : t->started;
        int64_t to = emit ? t->returned : atomic_load(&t->seen);
        if (from && to)
            ns[n++] = to - from;
    }
    return n;
}

static void report(const struct pace *p, int64_t started, size_t missing)
{
    int64_t *ns = calloc(p->n, sizeof *ns), last = started, handled = started;
    size_t emitted = 0;
    if (!ns)
        bench_die("out of memory");
    for (size_t i = 0; i < p->n; i++) {
        int64_t seen = atomic_load(&p->t[i].seen);
        emitted += p->t[i].returned > 0;
        last = p->t[i].returned > last ? p->t[i].returned : last;
        handled = seen > handled ? seen : handled;
    }
    printf("{\"wanted\":%zu,\"emitted\":%zu,\"missing\":%zu,", p->n, emitted, missing);
    printf("\"seconds\":%.6f,\"handled_seconds\":%.6f,", (double)(last - started) / 1e9,
           (double)(handled - started) / 1e9);
    bench_print("emit", ns, between(p, ns, true, false));
    printf(",");
    bench_print("started", ns, between(p, ns, false, false));
    printf(",");
    bench_print("returned", ns, between(p, ns, false, true));
    printf("}\n");
    free(ns);
}

/* Returns the number of expected lines: those of the first type. */
static size_t expected(const struct pace *p)
{
    size_t n = 1;
    if (p->o->types == 0)
        return n;
    for (size_t i = 0; i < p->n; i += p->o->types)
        n += p->t[i].returned > 0;
    return n;
}

static pthread_t thread(void *(*run)(void *), struct pace *p)
{
    pthread_t t;
    if (pthread_create(&t, NULL, run, p) != 0)
        bench_die("could not start a thread");
    return t;
}

static void run(struct pace *p, pthread_t *threads)
{
    size_t producers = p->o->producers;
    for (size_t i = 0; i < producers; i++)
        threads[i] = thread(produce, p);
    pthread_barrier_wait(&p->connected);
    await_go();
    plan(p);
    int64_t started = bench_now();
    pthread_barrier_wait(&p->start);
    pthread_barrier_wait(&p->emitted);
    size_t lines = p->o->lines >= 0 ? expected(p) : 0;
    await_seen(p, lines, PATIENCE_S);
    report(p, started, lines - atomic_load(&p->seen));
}

/* Waits until the harness has taken its readings, and ends the producers. */
static void disconnect(pthread_t *threads, size_t producers)
{
    char line[16];
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        line[0] = '\0';
    for (size_t i = 0; i < producers; i++) {
        void *by;
        pthread_join(threads[i], &by);
        producer_free(by);
    }
}

int main(int argc, char **argv)
{
    struct bench_options o;
    bench_options(&o, argc, argv);
    struct pace p = {.o = &o, .n = (size_t)(o.rate * (double)o.seconds)};
    if (p.n == 0)
        bench_die("-a (events a second) and -e (seconds) are required");
    p.t = calloc(p.n + 1, sizeof *p.t);
    pthread_t *threads = calloc(o.producers, sizeof *threads);
    if (!p.t || !threads)
        bench_die("out of memory");
    pthread_barrier_init(&p.connected, NULL, (unsigned)(o.producers + 1));
    pthread_barrier_init(&p.start, NULL, (unsigned)(o.producers + 1));
    pthread_barrier_init(&p.emitted, NULL, (unsigned)(o.producers + 1));
    if (o.lines >= 0)
        pthread_detach(thread(watch, &p));
    warm_up(&p);
    run(&p, threads);
    disconnect(threads, o.producers);
    _exit(0); /* the watcher may still be running */
}
