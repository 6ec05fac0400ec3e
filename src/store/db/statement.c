/* statement.c: statements by name, their rows, rows as events, and transactions. */
#include <stdio.h>

#include "store/db/db.h"

/* Returns whether this statement is a no-op for the store. */
static bool nothing_to_do(const struct store *st, const struct sql *sql)
{
    const char *text = sql->in[st->ops->driver->dialect].text;
    return text && !*text;
}

/* ---- running ---- */

struct db_rows db_rows(struct store *st, struct error *err, const struct sql *sql, const void *args)
{
    return (struct db_rows){.st = st, .at = st->ops->driver->rows(st, sql, args, err)};
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

int db_finish(struct db_rows *q, struct error *err)
{
    int r;
    do
        r = db_step(q, err);
    while (r == 1);
    return r;
}

int db_run(struct store *st, struct error *err, const struct sql *sql, const void *args)
{
    if (nothing_to_do(st, sql))
        return 0;
    struct db_rows q = db_rows(st, err, sql, args);
    return db_finish(&q, err);
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

int db_run_all(struct store *st, struct error *err, bool later, const struct db_question *all)
{
    int r = 0;
    for (; r == 0 && all->sql; all++)
        if (later)
            r = db_later(st, err, all->sql, all->args);
        else
            r = db_run(st, err, all->sql, all->args);
    return r;
}

int db_later(struct store *st, struct error *err, const struct sql *sql, const void *args)
{
    if (nothing_to_do(st, sql))
        return 0;
    if (!st->ops->driver->later)
        return db_run(st, err, sql, args);
    return st->ops->driver->later(st, sql, args, err);
}

int db_insert_new(struct store *st, bool *ret_new, struct error *err, const struct sql *sql,
                  const void *args)
{
    const struct db_driver *d = st->ops->driver;
    struct error why;
    int64_t n;
    if (db_change(st, &n, &why, sql, args) == 0) {
        *ret_new = n > 0;
        return 0;
    }
    if (d->duplicate && why.native == d->duplicate) {
        *ret_new = false;
        return 0;
    }
    return err_copy(err, &why);
}

int db_ask_all(struct store *st, const struct db_question *ask, size_t n, struct db_rows *ret,
               struct error *err)
{
    int r = 1;
    if (st->ops->driver->ask_all)
        r = st->ops->driver->ask_all(st, ask, n, ret, err);
    if (r <= 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        ret[i] = db_rows(st, err, ask[i].sql, ask[i].args);
        if (ret[i].at)
            continue;
        while (i-- > 0)
            db_done(&ret[i]);
        return -1;
    }
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

int db_values(struct store *st, struct error *err, const struct db_number *wanted)
{
    for (; wanted->to; wanted++)
        if (db_value(st, err, wanted->to, wanted->sql, wanted->args) != 0)
            return -1;
    return 0;
}

int db_list(struct store *st, struct db_list *l, struct error *err, const struct sql *sql,
            const void *args)
{
    int r = 0;
    struct db_rows q = db_rows(st, err, sql, args);
    l->n = 0;
    l->elements = arena_grow(l->a, NULL, 0, l->size);
    bool ok = l->elements != NULL;
    while (ok && (r = db_step(&q, err)) == 1) {
        l->elements = arena_grow(l->a, l->elements, l->n, l->size);
        ok = l->elements && l->read(&q, l->a, (char *)l->elements + l->n * l->size);
        l->n++;
    }
    db_done(&q);
    if (!ok)
        return err_nomem(err);
    return r;
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
    *ev = (struct event){
        .seq = db_int(q, EVENT_SEQ),
        .id = db_text(q, EVENT_ID),
        .type = db_text(q, EVENT_TYPE),
        .aggregate_type = db_text(q, EVENT_AGGREGATE_TYPE),
        .aggregate_id = db_text(q, EVENT_AGGREGATE_ID),
        .has_version = !db_null(q, EVENT_VERSION),
        .version = db_int(q, EVENT_VERSION),
        .payload = db_text(q, EVENT_PAYLOAD),
        .headers = db_text(q, EVENT_HEADERS),
        .tenant = db_text(q, EVENT_TENANT),
        .created_at = db_int(q, EVENT_CREATED_AT),
        .not_before = db_int(q, EVENT_NOT_BEFORE),
        .idempotency_key = db_text(q, EVENT_IDEMPOTENCY_KEY),
    };
    ev->key = event_key(ev->aggregate_type, ev->aggregate_id);
    return db_event_copy(ev, a);
}

/* All texts share one allocation, NUL-terminated: a drain spends most of its time here. */
bool db_event_copy(struct event *ev, struct arena *a)
{
    struct str *texts[] = {&ev->id,      &ev->type,    &ev->aggregate_type, &ev->aggregate_id,
                           &ev->payload, &ev->headers, &ev->tenant,         &ev->idempotency_key};
    size_t n = sizeof texts / sizeof *texts, size = 0;
    for (size_t i = 0; i < n; i++)
        size += texts[i]->n + 1;

    char *at = arena_raw(a, size);
    if (!at)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct str *s = texts[i];
        if (!s->p)
            continue;
        memcpy(at, s->p, s->n);
        at[s->n] = '\0';
        s->p = at;
        at += s->n + 1;
    }
    return true;
}

/* ---- the rest of a driver ---- */

void db_store_init(struct db_store *st, const struct store_ops *ops,
                   const struct store_options *opt)
{
    st->store.ops = ops;
    st->store.caps = ops->caps;
    st->opt = *opt;
    if (!st->opt.clock)
        st->opt.clock = &clock_system;
    if (!st->opt.busy_ms)
        st->opt.busy_ms = 5000;
    if (!st->opt.payload_max)
        st->opt.payload_max = EVENT_PAYLOAD_MAX;
    rng_seed_os(&st->rng);
}

/* ---- transactions ---- */

static int begin(struct store *st, bool ours, struct error *err)
{
    if (db_of(st)->in_tx)
        return err_set(err, ERR_MISUSE, "a transaction is already open");
    if (st->ops->driver->begin(st, ours, err) != 0)
        return -1;
    db_of(st)->in_tx = true;
    db_of(st)->own_commit = false;
    db_of(st)->savepoints = 0;
    return 0;
}

int db_begin(struct store *st, struct error *err)
{
    return begin(st, true, err);
}

int db_begin_open(struct store *st, struct error *err)
{
    return begin(st, false, err);
}

int db_commit(struct store *st, struct error *err)
{
    const struct db_driver *d = st->ops->driver;
    if (!db_of(st)->in_tx)
        return err_set(err, ERR_MISUSE, "no transaction is open");
    if (d->tx_gone(st, err) != 0 || d->commit(st, err) != 0) {
        db_rollback(st);
        return -1;
    }
    db_of(st)->in_tx = false;
    return d->committed ? d->committed(st, err) : 0;
}

void db_rollback(struct store *st)
{
    st->ops->driver->rollback(st);
    db_of(st)->in_tx = false;
}

/* Each depth has its own name: MariaDB deletes an earlier savepoint of the same name. */
static int savepoint(struct store *st, const char *verb, int depth, struct error *err)
{
    char text[64];
    snprintf(text, sizeof text, "%s outbox_handler_%d", verb, depth);
    return st->ops->driver->exec(st, text, err);
}

int db_savepoint(struct store *base, enum savepoint what, struct error *err)
{
    static const char ended[] = "a handler ended the transaction";
    struct db_store *st = db_of(base);
    struct error why;
    int r = 0;
    if (base->ops->tx_state(base) == TX_GONE)
        return err_set(err, ERR_MISUSE, ended);
    if (what == SAVEPOINT_SET) {
        if (savepoint(base, "SAVEPOINT", st->savepoints + 1, err) != 0)
            return -1;
        st->savepoints++;
        return 0;
    }

    st->own_commit = false;
    if (what == SAVEPOINT_UNDO)
        r = savepoint(base, "ROLLBACK TO SAVEPOINT", st->savepoints, &why);
    if (r == 0)
        r = savepoint(base, "RELEASE SAVEPOINT", st->savepoints, &why);
    if (r != 0 && why.native == base->ops->driver->no_savepoint)
        return err_set(err, ERR_MISUSE, ended);
    if (r != 0)
        return err_copy(err, &why);
    st->savepoints--;
    return 0;
}

int db_end(struct store *st, int r, struct error *err)
{
    if (r == 0)
        return db_commit(st, err);
    db_rollback(st);
    return -1;
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
    /* In a transaction there is nothing to do: events committed before it have their numbers. */
    if (!st->ops->driver->number || db_of(st)->in_tx)
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
