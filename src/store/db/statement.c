/* statement.c: statements by name, their rows, and rows as events. */
#include "store/db/db.h"

/* nothing_to_do says whether the store has nothing to do where another runs this statement. */
static bool nothing_to_do(const struct store *st, const struct sql *sql)
{
    const char *text = sql->in[st->ops->driver->dialect].text;
    return text && !*text;
}

/* ---- running ---- */

struct db_rows db_rows(struct store *st, struct error *err, const struct sql *sql, const void *args)
{
    return (struct db_rows){st, st->ops->driver->rows(st, sql, args, err)};
}

int db_step(struct db_rows *q, struct error *err)
{
    if (!q->at)
        return -1;
    int r = q->st->ops->driver->step(q, err);
    if (r != 1)
        q->at = NULL;
    return r;
}

void db_done(struct db_rows *q)
{
    if (q->at)
        q->st->ops->driver->done(q);
    q->at = NULL;
}

int db_row(struct store *st, struct db_rows *ret, struct error *err, const struct sql *sql,
           const void *args)
{
    *ret = db_rows(st, err, sql, args);
    return db_step(ret, err);
}

int db_run(struct store *st, struct error *err, const struct sql *sql, const void *args)
{
    if (nothing_to_do(st, sql))
        return 0;
    struct db_rows q = db_rows(st, err, sql, args);
    int r;
    do
        r = db_step(&q, err);
    while (r == 1);
    return r;
}

int db_change(struct store *st, int64_t *ret_n, struct error *err, const struct sql *sql,
              const void *args)
{
    if (db_run(st, err, sql, args) != 0)
        return -1;
    *ret_n = 0;
    if (!nothing_to_do(st, sql))
        *ret_n = st->ops->driver->changed(st);
    return 0;
}

int db_value(struct store *st, struct error *err, int64_t *ret, const struct sql *sql,
             const void *args)
{
    struct db_rows q;
    if (nothing_to_do(st, sql))
        return 0;
    int r = db_row(st, &q, err, sql, args);
    if (r <= 0)
        return r;
    if (!db_null(&q, 0))
        *ret = db_int(&q, 0);
    db_done(&q);
    return 0;
}

int db_values(struct store *st, struct error *err, const struct db_number *wanted, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (db_value(st, err, wanted[i].to, wanted[i].sql, wanted[i].args) != 0)
            return -1;
    return 0;
}

/* ---- rows ---- */

bool db_null(const struct db_rows *q, int col)
{
    return q->st->ops->driver->null(q, col);
}

int64_t db_int(const struct db_rows *q, int col)
{
    return q->st->ops->driver->integer(q, col);
}

struct str db_text(const struct db_rows *q, int col)
{
    return q->st->ops->driver->text(q, col);
}

struct str db_copy(const struct db_rows *q, int col, struct arena *a, bool *ok)
{
    struct str s = db_text(q, col);
    if (!s.p)
        return s;
    s.p = arena_bytes(a, s.p, s.n);
    if (!s.p)
        *ok = false;
    return s;
}

bool db_event_row(const struct db_rows *q, struct arena *a, struct event *ev)
{
    return q->st->ops->driver->event_row(q, a, ev);
}

/* keep copies s to *at, with a NUL behind it, and moves *at past both. */
static void keep(struct str *s, char **at)
{
    if (!s->p)
        return;
    memcpy(*at, s->p, s->n);
    (*at)[s->n] = '\0';
    s->p = *at;
    *at += s->n + 1;
}

/* db_event_keep copies all texts into one allocation, because this is where a drain spends its
 * time. */
bool db_event_keep(struct event *ev, struct arena *a)
{
    struct str *texts[] = {&ev->id,      &ev->type,    &ev->aggregate_type, &ev->aggregate_id,
                           &ev->payload, &ev->headers, &ev->tenant,         &ev->idempotency_key};
    size_t n = sizeof texts / sizeof *texts, size = 0;
    for (size_t i = 0; i < n; i++)
        size += texts[i]->n + 1;

    char *at = arena_raw(a, size);
    if (!at)
        return false;
    for (size_t i = 0; i < n; i++)
        keep(texts[i], &at);
    ev->key = event_key(ev->aggregate_type, ev->aggregate_id);
    return true;
}

/* ---- the rest of a driver ---- */

int db_begin(struct store *st, struct error *err)
{
    return st->ops->driver->begin(st, err);
}

int db_commit(struct store *st, struct error *err)
{
    return st->ops->driver->commit(st, err);
}

void db_rollback(struct store *st)
{
    st->ops->driver->rollback(st);
}

int64_t db_now(struct store *st)
{
    return st->ops->driver->now(st);
}

int db_snapshot_begin(struct store *st, bool *ret_own, struct error *err)
{
    return st->ops->driver->snapshot_begin(st, ret_own, err);
}

void db_snapshot_end(struct store *st, bool own)
{
    st->ops->driver->snapshot_end(st, own);
}

int db_give_numbers(struct store *st, struct error *err)
{
    if (!st->ops->driver->number)
        return 0;
    return st->ops->driver->number(st, err);
}

int db_keep_numbers(struct store *st, struct error *err)
{
    if (!st->ops->driver->keep_numbers)
        return 0;
    return st->ops->driver->keep_numbers(st, err);
}

void db_news(struct store *st)
{
    if (st->ops->driver->news)
        st->ops->driver->news(st);
}

int64_t db_page(const struct store *st, int64_t rows)
{
    return st->ops->driver->streams ? INT64_MAX : rows;
}
