/* dead.c: dead letters, and events that wait for a retry. */
#include <stdio.h>
#include <stdlib.h>

#include "mdb_sql.h"
#include "store/mariadb/mariadb.h"

/* ---- listing ---- */

/* read_letter reads a row of list_letters; false if there is no memory. */
static bool read_letter(const struct mdb_rows *q, struct arena *a, struct dead_letter *d)
{
    enum { CONSUMER = MDB_EVENT_COLUMNS, ATTEMPTS, WHY, DEAD_AT, RETRYING };
    bool ok = mdb_event_row(q, a, &d->ev);
    d->consumer = mdb_copy(q, CONSUMER, a, &ok).p;
    d->attempts = (int)mdb_int(q, ATTEMPTS);
    d->error = mdb_copy(q, WHY, a, &ok).p;
    d->dead_at = mdb_int(q, DEAD_AT);
    d->retrying = (int)mdb_int(q, RETRYING) != 0;
    return ok;
}

int mdb_dead(struct store *base, const struct dead_query *query, dead_visit *visit, void *ctx,
             struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    size_t left = query->limit ? query->limit : SIZE_MAX;
    int64_t seq = store_seq_of(query->id);
    int r = 0, stop = 0;
    struct arena a;
    arena_init(&a, 0);
    struct mdb_rows *q = mdb_rows(
        st, err, SQL(list_letters, .consumer = query->consumer, .id = query->id, .seq = seq));
    while ((r = mdb_step(&q)) == 1) {
        struct dead_letter d;
        if (!read_letter(q, &a, &d)) {
            r = err_nomem(err);
            break;
        }
        bool wanted = !query->type || pattern_match(str_of(query->type), d.ev.type);
        if (wanted) {
            stop = visit(ctx, &d);
            left--;
        }
        arena_reset(&a);
        if (stop || left == 0)
            break;
    }
    mdb_done(q);
    arena_release(&a);
    return r < 0 ? -1 : 0;
}

/* ---- sending back and dropping ---- */

/* The letters that a query selects. They are collected first: a table must not change while it is
 * being read. */
struct picked {
    struct dead_pick {
        char consumer[STORE_NAME_MAX + 1];
        int64_t seq;
        uint64_t key;
    } * p;
    size_t n, cap;
    bool failed; /* there was no memory for one */
};

static bool make_room(struct picked *l)
{
    if (l->n < l->cap)
        return true;
    size_t cap = l->cap ? 2 * l->cap : 64;
    struct dead_pick *p = realloc(l->p, cap * sizeof *p);
    if (!p)
        return false;
    l->p = p;
    l->cap = cap;
    return true;
}

/* pick is the dead_visit that collects a letter, unless it has been sent back already. */
static int pick(void *ctx, const struct dead_letter *d)
{
    struct picked *l = ctx;
    if (d->retrying)
        return 0;
    if (!make_room(l)) {
        l->failed = true;
        return 1;
    }
    struct dead_pick *k = &l->p[l->n++];
    snprintf(k->consumer, sizeof k->consumer, "%s", d->consumer);
    k->seq = d->ev.seq;
    k->key = d->ev.key;
    return 0;
}

/* What to do with one letter, inside a transaction. */
typedef int act_on(struct mdb_store *st, const struct dead_pick *k, struct error *err);

/* retry_one sends a letter back: as a parked event, in the order of its consumer. */
static int retry_one(struct mdb_store *st, const struct dead_pick *k, struct error *err)
{
    int64_t order_key = 0, now = mdb_now(st);
    struct mdb_rows *q;
    int r = mdb_row(st, &q, err, SQL(ordering_of, .consumer = k->consumer));
    if (r < 0)
        return -1;
    if (r == 1) {
        order_key = (int64_t)store_order_key(store_order_of(mdb_text(q, 0)), k->key);
        mdb_done(q);
    }

    if (mdb_run(st, err,
                SQL(park_letter, .consumer = k->consumer, .seq = k->seq, .key = order_key,
                    .now = now)) != 0)
        return -1;
    return mdb_run(st, err, SQL(mark_retrying, .consumer = k->consumer, .seq = k->seq));
}

static int drop_one(struct mdb_store *st, const struct dead_pick *k, struct error *err)
{
    return mdb_run(st, err, SQL(drop_letter, .consumer = k->consumer, .seq = k->seq));
}

static int act_on_picked(struct mdb_store *st, const struct dead_query *query, act_on *act,
                         struct picked *l, struct error *err)
{
    if (mdb_dead(&st->base, query, pick, l, err) != 0)
        return -1;
    if (l->failed)
        return err_nomem(err);
    for (size_t i = 0; i < l->n; i++)
        if (act(st, &l->p[i], err) != 0)
            return -1;
    return 0;
}

/* for_picked acts on every letter that the query selects, all in one transaction. */
static int for_picked(struct store *base, const struct dead_query *query, act_on *act,
                      int64_t *ret_n, struct error *err)
{
    struct picked l = {0};
    if (mdb_begin(base, err) != 0)
        return -1;
    int r = act_on_picked(mdb_of(base), query, act, &l, err);
    if (r == 0)
        r = mdb_commit(base, err);
    else
        mdb_rollback(base);
    free(l.p);
    if (r != 0)
        return -1;
    *ret_n = (int64_t)l.n;
    mdb_news(mdb_of(base));
    return 0;
}

int mdb_dead_retry(struct store *base, const struct dead_query *query, int64_t *ret_n,
                   struct error *err)
{
    return for_picked(base, query, retry_one, ret_n, err);
}

int mdb_dead_drop(struct store *base, const struct dead_query *query, int64_t *ret_n,
                  struct error *err)
{
    return for_picked(base, query, drop_one, ret_n, err);
}

int mdb_retry_now(struct store *base, const char *consumer, int64_t seq, bool *ret_waited,
                  struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    int64_t now = mdb_now(st);
    if (mdb_run(st, err, SQL(retry_now, .consumer = consumer, .seq = seq, .now = now)) != 0)
        return -1;
    *ret_waited = st->changed > 0;
    if (*ret_waited)
        mdb_news(st);
    return 0;
}
