/* batch_settle.c: settles a batch by the verdicts of the application, and extends its lease. */
#include <stdlib.h>

#include "api/batch.h"

#define LEASE_MAX_MS ((int64_t)24 * 3600 * 1000)
#define NOT_MINE_MS 1000 /* up to twice as long, at random, as for handlers */

int api_batch_check_lease(int64_t lease_ms, struct error *err)
{
    bool fits = lease_ms >= 1 && lease_ms <= LEASE_MAX_MS;
    if (fits)
        return 0;
    return err_set(err, ERR_INVALID, "lease_ms: 1 ms to a day (%lld)", (long long)LEASE_MAX_MS);
}

static const char *reason(const struct item *it, const char *usual)
{
    return it->why ? it->why : usual;
}

/* failed returns the outcome of a failed attempt: a retry, or a dead letter after the last one. */
static struct outcome failed(outbox_batch *b, const struct part *p, const struct item *it)
{
    const struct event *ev = it->d.ev;
    struct outcome o = {.ev = ev,
                        .kind = OUTCOME_RETRY,
                        .attempts = ev->attempts + 1,
                        .proven = true,
                        .error = reason(it, "failed")};
    if (o.attempts >= p->retry.attempts) {
        o.kind = OUTCOME_DEAD;
        return o;
    }
    o.delay_ms = retry_delay(&p->retry, o.attempts, &b->rng);
    if (o.delay_ms < it->delay_ms)
        o.delay_ms = it->delay_ms;
    return o;
}

/* outcome_of fills in the outcome of an event, unless it was delivered: a settlement lists only
 * exceptions. It returns whether it did. */
static bool outcome_of(outbox_batch *b, const struct part *p, const struct item *it,
                       struct outcome *ret)
{
    const struct event *ev = it->d.ev;
    struct outcome o = {.ev = ev, .kind = OUTCOME_BEHIND, .attempts = ev->attempts};
    if (ev->delayed)
        o.kind = OUTCOME_DELAY;
    switch (it->said) {
    case SAID_DONE: return false;
    case SAID_RETRY: o = failed(b, p, it); break;
    case SAID_REJECT:
        o.kind = OUTCOME_DEAD;
        o.attempts = ev->attempts + 1;
        o.error = reason(it, "rejected");
        break;
    case SAID_NOT_MINE:
        o.kind = OUTCOME_RETRY;
        o.delay_ms = NOT_MINE_MS + (int64_t)rng_below(&b->rng, NOT_MINE_MS);
        o.error = reason(it, "left to another worker");
        break;
    case SAID_NOTHING:
    case SAID_DOWN: break; /* not tried */
    }
    *ret = o;
    return true;
}

/* untried says whether the application could have delivered the event, and said nothing about
 * it. */
static bool untried(const struct part *p, size_t i)
{
    return p->items[i].said == SAID_NOTHING && api_batch_may_deliver(&p->b.ev[i]);
}

/* untried_from returns where the events begin of which none was tried, up to the end. This rest of
 * a fresh range is given back as it was. Parked events are settled one by one. */
static size_t untried_from(const struct part *p)
{
    size_t i = p->b.n;
    if (p->b.parked)
        return i;
    while (i > 0 && untried(p, i - 1))
        i--;
    return i;
}

/* api_batch_settle_part lists only the exceptions, and gives back the untried end as a range: what
 * it sends does not grow with the number of delivered events. */
int api_batch_settle_part(outbox_batch *b, struct part *p, bool in_tx, bool *ret_lost,
                          struct error *err)
{
    struct store *st = b->ob->st;
    size_t tried = untried_from(p);
    struct outcome *out = calloc(tried + 1, sizeof *out);
    if (!out)
        return err_nomem(err);
    struct settlement s = {
        .consumer = p->consumer, .owner = b->worker, .order = p->order, .b = &p->b, .out = out};
    for (size_t i = 0; i < tried; i++)
        s.n += outcome_of(b, p, &p->items[i], &out[s.n]);
    if (tried < p->b.n)
        s.release_from = p->b.ev[tried].seq;

    int r;
    if (in_tx)
        r = st->ops->settle(st, &s, ret_lost, err);
    else
        r = st->ops->turn(st, &s, ret_lost, NULL, NULL, NULL, NULL, err);
    free(out);
    return r;
}

/* say_lost is the error of a claim that has gone to another worker. What was delivered may be
 * delivered again. */
static int say_lost(const struct part *p, struct error *err)
{
    return err_set(err, ERR_LOST,
                   "consumer \"%s\": the claim is no longer ours: its lease ran out and another "
                   "worker has the events",
                   p->consumer);
}

/* outbox_batch_settle settles the other parts even if the claim of one was lost, and reports the
 * loss at the end. Outside of a transaction, a part that is settled is not settled again by a later
 * call. */
OUTBOX_API int outbox_batch_settle(outbox_batch *b, outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    const struct part *gone = NULL;
    int r = 0;
    pthread_mutex_lock(&b->ob->lock);
    /* An open transaction is this thread's: one of another thread would have kept us waiting. */
    bool in_tx = b->ob->in_tx;
    for (struct part *p = b->first; p && r == 0; p = p->next) {
        if (!p->settled)
            r = api_batch_settle_part(b, p, in_tx, &p->lost, err);
        if (r == 0 && p->lost)
            gone = p;
        p->settled = r == 0 && !in_tx; /* a transaction may be rolled back */
    }
    pthread_mutex_unlock(&b->ob->lock);
    if (r == 0 && gone)
        return say_lost(gone, err);
    return r;
}

OUTBOX_API int outbox_batch_extend(outbox_batch *b, int64_t lease_ms, outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    struct store *st = b->ob->st;
    const struct part *gone = NULL;
    int r = 0;
    if (api_batch_check_lease(lease_ms, err) != 0)
        return -1;
    if (api_lock_own(b->ob, "extending a lease", err) != 0)
        return -1;
    for (struct part *p = b->first; p && r == 0; p = p->next) {
        bool lost = false;
        struct claim_lease l = {
            .consumer = p->consumer, .owner = b->worker, .epoch = p->b.epoch, .lease_ms = lease_ms};
        r = st->ops->extend(st, &l, &lost, err);
        if (r == 0 && lost)
            gone = p;
    }
    pthread_mutex_unlock(&b->ob->lock);
    if (r == 0 && gone)
        return say_lost(gone, err);
    return r;
}
