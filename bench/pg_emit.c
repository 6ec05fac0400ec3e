/* pg_emit: producers in threads, each with its own connection and one prepared INSERT to a
 * transaction, until -n events are stored. -d is a URL, -j the number of producers.
 *   -m bare    the ceiling: into bench_event, a table of the same columns and indexes, without
 *              CHECKs, row-level security and trigger
 *   -m notify  the same, and a NOTIFY in each transaction, with a listening session
 *   -m insert  a plain INSERT INTO outbox.event
 *   -m emit    SELECT outbox.emit(...) */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "pg.h"

static const struct mode {
    const char *name, *sql;
} modes[] = {
    {"bare", "INSERT INTO bench_event (type, aggregate_type, aggregate_id, payload) VALUES ($1, "
             "$2, $3, $4)"},
    {"notify", "INSERT INTO bench_notify (type, aggregate_type, aggregate_id, payload) VALUES ($1, "
               "$2, $3, $4)"},
    {"insert", "INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload) VALUES ($1, "
               "$2, $3, $4)"},
    {"emit", "SELECT outbox.emit($1, $2, $3, $4)"},
};

struct work {
    const struct bench_options *o;
    pthread_barrier_t start;
    atomic_size_t next; /* event to be sent */
    atomic_bool end;    /* for the listener */
    int64_t *ns;        /* duration of each */
};

static const char *statement(const struct bench_options *o)
{
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, o->mode) == 0)
            return modes[i].sql;
    bench_die("unknown mode %s; modes are bare, notify, insert and emit", o->mode);
}

static void *produce(void *arg)
{
    struct work *w = arg;
    PGconn *db = pg_open(w->o->db);
    char *payload = malloc(w->o->payload + 64), key[24];
    if (!payload)
        bench_die("out of memory");
    pg_prepare(db, "emit", statement(w->o));
    pthread_barrier_wait(&w->start);
    for (size_t i; (i = atomic_fetch_add(&w->next, 1)) < w->o->n;) {
        const char *params[] = {bench_type(w->o, i), "order", key, payload};
        int64_t from = bench_now();
        bench_payload(w->o, i, payload);
        snprintf(key, sizeof key, "%zu", i % w->o->keys);
        pg_run(db, "emit", params, 4);
        w->ns[i] = bench_now() - from;
    }
    free(payload);
    PQfinish(db);
    return NULL;
}

static void *listen_to_all(void *arg)
{
    struct work *w = arg;
    PGconn *db = pg_open(w->o->db);
    pg_sql(db, "LISTEN bench");
    pthread_barrier_wait(&w->start);
    while (!atomic_load(&w->end)) {
        struct pollfd fd = {.fd = PQsocket(db), .events = POLLIN};
        poll(&fd, 1, 100);
        if (!PQconsumeInput(db))
            bench_die("%s", PQerrorMessage(db));
        for (PGnotify *n; (n = PQnotifies(db)) != NULL;)
            PQfreemem(n);
    }
    PQfinish(db);
    return NULL;
}

static pthread_t thread(void *(*run)(void *), struct work *w)
{
    pthread_t t;
    if (pthread_create(&t, NULL, run, w) != 0)
        bench_die("could not start a thread");
    return t;
}

int main(int argc, char **argv)
{
    struct bench_options o;
    bench_options(&o, argc, argv);
    bool listens = strcmp(o.mode, "notify") == 0;
    struct bench_timing t;
    struct work w = {.o = &o};
    pthread_t *threads = calloc(o.producers, sizeof *threads), listener = 0;
    if (!threads)
        bench_die("out of memory");
    pthread_barrier_init(&w.start, NULL, (unsigned)(o.producers + 1 + listens));
    if (listens)
        listener = thread(listen_to_all, &w);
    bench_start(&t, o.n);
    w.ns = t.ns;
    for (size_t i = 0; i < o.producers; i++)
        threads[i] = thread(produce, &w);
    pthread_barrier_wait(&w.start);
    t.started = bench_now();
    for (size_t i = 0; i < o.producers; i++)
        pthread_join(threads[i], NULL);
    t.n = o.n;
    bench_report(&t, o.n);
    atomic_store(&w.end, true);
    if (listens)
        pthread_join(listener, NULL);
    pthread_barrier_destroy(&w.start);
    free(threads);
    return 0;
}
