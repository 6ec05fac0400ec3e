/* emit: events through the library.
 *   -m own     outbox_emit, on the handle's own connection
 *   -m caller  outbox_emit_sqlite, inside BEGIN ... COMMIT on a connection of ours; needs -t */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "outbox.h"

struct emitter {
    outbox *ob;
    sqlite3 *db; /* NULL: the handle's own */
    sqlite3_stmt *begin, *commit;
    bool tx;
};

static void check(int r, const outbox_error *err)
{
    if (r != 0)
        bench_die("%s", err->text);
}

static void open_emitter(struct emitter *e, const struct bench_options *o)
{
    char url[4096];
    outbox_error err;
    outbox_options opt = OUTBOX_OPTIONS_INIT;
    opt.payload_max = 64 << 20;
    snprintf(url, sizeof url, "sqlite:%s", o->db);
    *e = (struct emitter){.tx = o->per_tx > 0};
    check(outbox_open(url, &opt, &e->ob, &err), &err);
    if (strcmp(o->mode, "caller") != 0)
        return;
    if (!e->tx)
        bench_die("-m caller needs -t");
    e->db = bench_open(o->db);
    e->begin = bench_prepare(e->db, "BEGIN IMMEDIATE");
    e->commit = bench_prepare(e->db, "COMMIT");
}

static void close_emitter(struct emitter *e)
{
    sqlite3_finalize(e->begin);
    sqlite3_finalize(e->commit);
    sqlite3_close(e->db);
    outbox_close(e->ob);
}

static void begin(struct emitter *e)
{
    outbox_error err;
    if (!e->tx)
        return;
    if (e->db)
        bench_step(e->db, e->begin);
    else
        check(outbox_begin(e->ob, &err), &err);
}

static void commit(struct emitter *e)
{
    outbox_error err;
    if (!e->tx)
        return;
    if (e->db)
        bench_step(e->db, e->commit);
    else
        check(outbox_commit(e->ob, &err), &err);
}

static void emit(struct emitter *e, const struct bench_options *o, size_t i, const char *payload)
{
    char key[24];
    outbox_error err;
    outbox_message m = OUTBOX_MESSAGE_INIT;
    snprintf(key, sizeof key, "%zu", i % o->keys);
    m.type = bench_type(o, i);
    m.aggregate_type = "order";
    m.aggregate_id = key;
    m.payload = payload;
    check(e->db ? outbox_emit_sqlite(e->ob, e->db, &m, NULL, &err)
                : outbox_emit(e->ob, &m, NULL, &err),
          &err);
}

int main(int argc, char **argv)
{
    struct bench_options o;
    struct bench_timing t;
    struct emitter e;
    bench_options(&o, argc, argv);
    open_emitter(&e, &o);
    char *payload = malloc(o.payload + 64);
    if (!payload)
        bench_die("out of memory");
    bench_start(&t, o.n);
    for (size_t i = 0; i < o.n;) {
        int64_t from = bench_now();
        begin(&e);
        for (size_t k = 0; i < o.n && k < (o.per_tx ? o.per_tx : 1); k++, i++) {
            bench_payload(&o, i, payload);
            emit(&e, &o, i, payload);
        }
        commit(&e);
        bench_lap(&t, from);
    }
    bench_report(&t, o.n);
    free(payload);
    close_emitter(&e);
    return 0;
}
