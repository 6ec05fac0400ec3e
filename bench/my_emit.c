/* my_emit: producers in threads on MariaDB, each with its own connection, one event to a
 * transaction, prepared, until -n events are stored. -d is a URL, -j how many producers.
 *   -m bare    the ceiling: an INSERT into bench_event, a table of the same columns and indexes,
 *              without CHECKs and trigger
 *   -m marked  BEGIN, the same INSERT, that of a marker by hand, COMMIT: in one round trip
 *   -m insert  a plain INSERT INTO outbox_event
 *   -m call    CALL outbox_emit(...)
 *   -m emit    outbox_emit, through the library */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "my.h"
#include "outbox.h"

static const struct mode {
    const char *name, *sql;
} modes[] = {
    {"bare", "INSERT INTO bench_event (type, aggregate_type, aggregate_id, payload) VALUES (?, ?, "
             "?, ?)"},
    {"marked", "BEGIN NOT ATOMIC START TRANSACTION; INSERT INTO bench_event (type, aggregate_type, "
               "aggregate_id, payload) VALUES (?, ?, ?, ?); INSERT INTO bench_marker VALUES "
               "(LAST_INSERT_ID()); COMMIT; END"},
    {"insert", "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) VALUES (?, "
               "?, ?, ?)"},
    {"call", "CALL outbox_emit(?, ?, ?, ?)"},
    {"emit", NULL},
};

struct work {
    const struct bench_options *o;
    const char *sql; /* NULL: through the library */
    pthread_barrier_t start;
    atomic_size_t next; /* event to be sent */
    int64_t *ns;        /* duration of each */
};

/* (1) One of q and ob is set. */
struct producer {
    MYSQL *db;
    MYSQL_STMT *q;
    outbox *ob;
};

static const char *statement(const struct bench_options *o)
{
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, o->mode) == 0)
            return modes[i].sql;
    bench_die("unknown mode %s; modes are bare, marked, insert, call and emit", o->mode);
}

static void open_producer(struct producer *p, const struct work *w)
{
    outbox_error err;
    *p = (struct producer){0};
    if (w->sql) {
        p->db = my_open(w->o->db);
        p->q = my_prepare(p->db, w->sql);
    } else if (outbox_open(w->o->db, NULL, &p->ob, &err) != 0) {
        bench_die("%s", err.text);
    }
}

static void close_producer(struct producer *p)
{
    if (p->q)
        mysql_stmt_close(p->q);
    if (p->db)
        mysql_close(p->db);
    outbox_close(p->ob);
}

static void emit(struct producer *p, const char *type, const char *key, const char *payload)
{
    const char *params[] = {type, "order", key, payload};
    outbox_error err;
    if (p->q) {
        my_run(p->q, params, 4);
        return;
    }
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = type;
    m.aggregate_type = "order";
    m.aggregate_id = key;
    m.payload = payload;
    if (outbox_emit(p->ob, &m, NULL, &err) != 0)
        bench_die("%s", err.text);
}

static void *produce(void *arg)
{
    struct work *w = arg;
    struct producer p;
    char *payload = malloc(w->o->payload + 64), key[24];
    if (!payload)
        bench_die("out of memory");
    open_producer(&p, w);
    pthread_barrier_wait(&w->start);
    for (size_t i; (i = atomic_fetch_add(&w->next, 1)) < w->o->n;) {
        int64_t from = bench_now();
        bench_payload(w->o, i, payload);
        snprintf(key, sizeof key, "%zu", i % w->o->keys);
        emit(&p, bench_type(w->o, i), key, payload);
        w->ns[i] = bench_now() - from;
    }
    free(payload);
    close_producer(&p);
    mysql_thread_end();
    return NULL;
}

int main(int argc, char **argv)
{
    struct bench_options o;
    bench_options(&o, argc, argv);
    struct bench_timing t;
    struct work w = {.o = &o, .sql = statement(&o)};
    pthread_t *threads = calloc(o.producers, sizeof *threads);
    if (!threads)
        bench_die("out of memory");
    mysql_library_init(0, NULL, NULL);
    pthread_barrier_init(&w.start, NULL, (unsigned)(o.producers + 1));
    bench_start(&t, o.n);
    w.ns = t.ns;
    for (size_t i = 0; i < o.producers; i++)
        if (pthread_create(&threads[i], NULL, produce, &w) != 0)
            bench_die("could not start a thread");
    pthread_barrier_wait(&w.start);
    t.started = bench_now();
    for (size_t i = 0; i < o.producers; i++)
        pthread_join(threads[i], NULL);
    t.n = o.n;
    bench_report(&t, o.n);
    pthread_barrier_destroy(&w.start);
    free(threads);
    return 0;
}
