#include "producer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "outbox.h"
#include "pg.h"

#define PG_COLUMNS "(type, aggregate_type, aggregate_id, payload) VALUES ($1, 'order', $2, $3)"

/* (1) One of pg, ob and db is set. */
struct producer {
    PGconn *pg;
    outbox *ob;
    sqlite3 *db;
    sqlite3_stmt *q;
};

static const struct mode {
    const char *name, *sql;
} modes[] = {
    {"bare", "INSERT INTO bench_event " PG_COLUMNS},
    {"notify", "INSERT INTO bench_notify " PG_COLUMNS},
    {"insert", "INSERT INTO outbox.event " PG_COLUMNS},
    {"emit", "SELECT outbox.emit($1, 'order', $2, $3)"},
};

static const char bare_insert[] =
    "INSERT INTO bench_event (id, type, aggregate_type, aggregate_id, payload, created_at) "
    "VALUES (lower(hex(randomblob(16))), ?, 'order', ?, ?, unixepoch() * 1000)";

static void open_postgres(struct producer *p, const struct bench_options *o)
{
    p->pg = pg_open(o->db);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, o->mode) == 0) {
            pg_prepare(p->pg, "emit", modes[i].sql);
            return;
        }
    }
    bench_die("unknown mode %s; modes are bare, notify, insert and emit", o->mode);
}

static void open_sqlite(struct producer *p, const struct bench_options *o)
{
    outbox_error err;
    if (strcmp(o->mode, "notify") == 0) {
        p->db = bench_open(o->db + strlen("sqlite:"));
        p->q = bench_prepare(p->db, bare_insert);
        return;
    }
    if (outbox_open(o->db, NULL, &p->ob, &err) != 0)
        bench_die("%s", err.text);
}

struct producer *producer_new(const struct bench_options *o)
{
    struct producer *p = calloc(1, sizeof *p);
    if (!p)
        bench_die("out of memory");
    if (strncmp(o->db, "sqlite:", 7) == 0)
        open_sqlite(p, o);
    else
        open_postgres(p, o);
    return p;
}

void producer_free(struct producer *p)
{
    if (!p)
        return;
    sqlite3_finalize(p->q);
    sqlite3_close(p->db);
    PQfinish(p->pg);
    outbox_close(p->ob);
    free(p);
}

static void emit_through_us(struct producer *p, const struct produced *ev)
{
    outbox_error err;
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = ev->type;
    m.aggregate_type = "order";
    m.aggregate_id = ev->key;
    m.payload = ev->payload;
    if (outbox_emit(p->ob, &m, NULL, &err) != 0)
        bench_die("%s", err.text);
}

static void insert_bare(struct producer *p, const struct produced *ev)
{
    sqlite3_bind_text(p->q, 1, ev->type, -1, SQLITE_STATIC);
    sqlite3_bind_text(p->q, 2, ev->key, -1, SQLITE_STATIC);
    sqlite3_bind_text(p->q, 3, ev->payload, -1, SQLITE_STATIC);
    bench_step(p->db, p->q);
}

void producer_emit(struct producer *p, const struct produced *ev)
{
    const char *params[] = {ev->type, ev->key, ev->payload};
    if (p->pg)
        pg_run(p->pg, "emit", params, 3);
    else if (p->db)
        insert_bare(p, ev);
    else
        emit_through_us(p, ev);
}
