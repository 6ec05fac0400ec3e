/* dead.c: dead letters, and events that wait for a retry. */
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "store/db/turn.h"
#include "store_sql.h"

/* ---- listing ---- */

int db_dead(struct store *st, const struct dead_query *query, dead_visit *visit, void *ctx,
            struct error *err)
{
    enum { CONSUMER = EVENT_COLUMN_COUNT, ATTEMPTS, WHY, DEAD_AT, RETRYING };
    size_t left = query->limit ? query->limit : SIZE_MAX;
    int64_t seq = store_seq_of(query->id);
    int r = 0, stop = 0;
    struct arena a;
    arena_init(&a, 0);
    struct db_rows q = db_rows(
        st, err, SQL(list_letters, .consumer = query->consumer, .id = query->id, .seq = seq));
    while ((r = db_step(&q, err)) == 1) {
        struct dead_letter d = {
            .attempts = (int)db_int(&q, ATTEMPTS),
            .dead_at = db_int(&q, DEAD_AT),
            .retrying = db_int(&q, RETRYING) != 0,
        };
        bool ok = db_event_row(&q, &a, &d.ev);
        d.consumer = db_copy(&q, CONSUMER, &a, &ok).p;
        d.error = db_copy(&q, WHY, &a, &ok).p;
        if (!ok) {
            r = err_nomem(err);
            break;
        }
        bool wanted = !query->type || filter_matches(str_of(query->type), d.ev.type);
        if (wanted) {
            stop = visit(ctx, &d);
            left--;
        }
        arena_reset(&a);
        if (stop || left == 0)
            break;
    }
    db_done(&q);
    arena_release(&a);
    return r < 0 ? -1 : 0;
}

/* ---- retrying and dropping ---- */

/* The letters that a query selects, collected first: a table must not change while it is read. */
struct picked {
    struct dead_pick {
        char consumer[STORE_NAME_MAX + 1];
        int64_t seq;
        uint64_t key;
        bool first; /* of its consumer */
    } * p;
    size_t n;
    bool failed; /* memory ran out */
};

/* A dead_visit that collects a letter, unless it is already being retried. */
static int pick(void *ctx, const struct dead_letter *d)
{
    struct picked *l = ctx;
    if (d->retrying)
        return 0;
    struct dead_pick *p = array_grow(l->p, l->n, sizeof *p);
    if (!p) {
        l->failed = true;
        return 1;
    }
    l->p = p;
    struct dead_pick *k = &l->p[l->n];
    k->first = l->n == 0 || strcmp(k[-1].consumer, d->consumer) != 0;
    l->n++;
    snprintf(k->consumer, sizeof k->consumer, "%s", d->consumer);
    k->seq = d->ev.seq;
    k->key = d->ev.key;
    return 0;
}

/* Parks the event of a letter for a retry, in its consumer's order. */
static int retry_one(struct store *st, const struct dead_pick *k, struct error *err)
{
    int64_t order_key = 0, now = db_now(st);
    struct db_rows q;
    int r = db_row(st, &q, err, SQL(ordering_of, .consumer = k->consumer));
    if (r < 0)
        return -1;
    if (r == 1) {
        order_key = (int64_t)store_order_key(store_order_of(db_text(&q, 0)), k->key);
        db_done(&q);
    }

    if (k->first && held_keys_change(st, k->consumer, err) != 0)
        return -1;
    held_keys_forget(st, k->consumer); /* the set may be older than another handle's change */
    return DB_RUN_ALL(
        st, err,
        {SQL(park_letter, .consumer = k->consumer, .seq = k->seq, .key = order_key, .now = now)},
        {SQL(mark_retrying, .consumer = k->consumer, .seq = k->seq)});
}

/* Retries or drops every letter that the query selects, in one transaction. */
static int end_letters(struct store *st, const struct dead_query *query, bool retry, int64_t *ret_n,
                       struct error *err)
{
    struct picked l = {0};
    if (db_begin(st, err) != 0)
        return -1;
    int r = db_dead(st, query, pick, &l, err);
    if (r == 0 && l.failed)
        r = err_nomem(err);
    for (size_t i = 0; i < l.n && r == 0; i++) {
        const struct dead_pick *k = &l.p[i];
        if (retry)
            r = retry_one(st, k, err);
        else
            r = db_run(st, err, SQL(drop_letter, .consumer = k->consumer, .seq = k->seq));
    }
    r = db_end(st, r, err);
    free(l.p);
    if (r != 0)
        return -1;
    *ret_n = (int64_t)l.n;
    db_news(st);
    return 0;
}

int db_dead_retry(struct store *st, const struct dead_query *query, int64_t *ret_n,
                  struct error *err)
{
    return end_letters(st, query, true, ret_n, err);
}

int db_dead_drop(struct store *st, const struct dead_query *query, int64_t *ret_n,
                 struct error *err)
{
    return end_letters(st, query, false, ret_n, err);
}

int db_retry_now(struct store *st, const char *consumer, int64_t seq, bool *ret_waited,
                 struct error *err)
{
    int64_t now = db_now(st), n;
    if (db_change(st, &n, err, SQL(retry_now, .consumer = consumer, .seq = seq, .now = now)) != 0)
        return -1;
    *ret_waited = n > 0;
    if (*ret_waited)
        db_news(st);
    return 0;
}
