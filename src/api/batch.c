/* batch.c: batches that an application claims, delivers itself, and settles. */
#include <stdio.h>
#include <stdlib.h>

#include "api/api_impl.h"
#include "base/num.h"
#include "base/rng.h"

#define WORKER_MAX 255
#define LIMIT 100
#define LIMIT_MAX 100000
#define LEASE_MS 30000
#define LEASE_MAX_MS ((int64_t)24 * 3600 * 1000)
#define BATCH_BYTES (8 * 1024 * 1024) /* ceiling on the events of one claim; bounds memory */
#define TURNS_MAX 1000 /* claims in one call, each of which may find only events to skip */
#define WHY_MAX 255
/* Some databases cannot add a longer delay to a timestamp, so the settlement would fail. */
#define DELAY_MAX_MS (INT64_C(365) * 24 * 3600000)
#define NOT_MINE_MS 1000 /* up to twice as long, at random, as for handlers */

#define NO_VERDICT (-1) /* in place of an outbox_verdict */

/* One event of a batch. (1) The delivery comes first: the application sees it as outbox_event. */
struct item {
    struct delivery d;
    int verdict;
    int64_t delay_ms;
    const char *why;
};

/* One consumer's claim. The parts of a batch are a list, because the application holds pointers to
 * their items. */
struct part {
    struct part *next;
    const char *consumer;
    enum order order;
    struct retry_policy retry;
    struct batch b;
    struct item *items; /* one for each of b.ev */
    size_t held_back;   /* items that make others wait */
    bool settled, lost;
};

/* The batch that the application holds. (1) Parts and items live in the arena. */
struct outbox_batch {
    struct outbox *ob;
    struct arena a;
    struct rng rng;
    char worker[WORKER_MAX + 1];
    struct part *first, *last;
    struct part *at; /* outbox_batch_next continues in this part */
    size_t i;        /* with this item */
    size_t n;        /* events that may be delivered */
    int64_t wait_ms; /* when more events may be due; -1: not known */
};

/* Whether the event may be delivered now. Other events of a claim wait behind an earlier event of
 * their key, or for the end of their delay; settling parks those events again. */
static bool may_deliver(const struct event *ev)
{
    return !ev->behind && !ev->delayed;
}

static int check_lease(int64_t lease_ms, struct error *err)
{
    bool fits = lease_ms >= 1 && lease_ms <= LEASE_MAX_MS;
    if (fits)
        return 0;
    return err_set(err, ERR_INVALID, "lease_ms must be 1 to %lld, which is a day",
                   (long long)LEASE_MAX_MS);
}

/* ---- settling ---- */

/* Returns the outcome of a failed attempt: a retry, or a dead letter after the last one. */
static struct outcome failed_outcome(outbox_batch *b, const struct part *p, const struct item *it)
{
    const struct event *ev = it->d.ev;
    struct outcome o = {.ev = ev,
                        .kind = OUTCOME_RETRY,
                        .attempts = ev->attempts + 1,
                        .proven = true,
                        .error = it->why ? it->why : "failed"};
    if (o.attempts >= p->retry.attempts)
        o.kind = OUTCOME_DEAD;
    else
        o.delay_ms = max_i64(retry_delay(&p->retry, o.attempts, &b->rng), it->delay_ms);
    return o;
}

/* Fills in the outcome of an event and returns true, unless the event was delivered: a settlement
 * lists only exceptions. */
static bool outcome_of(outbox_batch *b, const struct part *p, const struct item *it,
                       struct outcome *ret)
{
    const struct event *ev = it->d.ev;
    struct outcome o = {.ev = ev, .kind = OUTCOME_BEHIND, .attempts = ev->attempts};
    if (ev->delayed)
        o.kind = OUTCOME_DELAY;
    switch (it->verdict) {
    case OUTBOX_DONE: return false;
    case OUTBOX_RETRY: o = failed_outcome(b, p, it); break;
    case OUTBOX_REJECT:
        o.kind = OUTCOME_DEAD;
        o.attempts = ev->attempts + 1;
        o.error = it->why ? it->why : "rejected";
        break;
    case OUTBOX_NOT_MINE:
        o.kind = OUTCOME_RETRY;
        o.delay_ms = NOT_MINE_MS + (int64_t)rng_below(&b->rng, NOT_MINE_MS);
        o.error = it->why ? it->why : "left to another worker";
        break;
    case NO_VERDICT:
    case OUTBOX_DOWN: break; /* not tried */
    }
    *ret = o;
    return true;
}

/* Returns the index of the first event of the untried tail. Settling a fresh range releases its
 * tail; parked events are settled one by one, so they have none. */
static size_t untried_from(const struct part *p)
{
    size_t i = p->b.n;
    if (p->b.parked)
        return i;
    while (i > 0 && p->items[i - 1].verdict == NO_VERDICT && may_deliver(&p->b.ev[i - 1]))
        i--;
    return i;
}

/* Settles one consumer's claim, in the application's transaction if in_tx is set, and otherwise in
 * a new one. *ret_lost: the lease had expired, and another worker has the events. The settlement
 * lists only exceptions, and releases the untried tail as a range, so its size does not depend on
 * the number of delivered events. The caller holds the handle's lock. */
static int settle_part(outbox_batch *b, struct part *p, bool in_tx, bool *ret_lost,
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

    int result;
    if (in_tx)
        result = st->ops->settle(st, &s, ret_lost, err);
    else
        result = st->ops->turn(st, &s, ret_lost, NULL, NULL, NULL, NULL, err);
    free(out);
    return result;
}

/* The error of a claim that another worker has taken over. Delivered events may be delivered again.
 */
static int claim_lost(const struct part *p, struct error *err)
{
    return err_set(err, ERR_LOST,
                   "consumer \"%s\": the claim is lost: its lease expired and another "
                   "worker has the events",
                   p->consumer);
}

/* outbox_batch_settle settles the other parts even if the claim of one was lost, and reports the
 * loss at the end. Outside a transaction, a settled part is not settled again by a later call. */
OUTBOX_API int outbox_batch_settle(outbox_batch *b, outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    const struct part *lost = NULL;
    int result = 0;
    pthread_mutex_lock(&b->ob->lock);
    /* An open transaction is this thread's: acquiring the lock waits for the transactions of
     * others. */
    bool in_tx = b->ob->in_tx;
    for (struct part *p = b->first; p && result == 0; p = p->next) {
        if (!p->settled)
            result = settle_part(b, p, in_tx, &p->lost, err);
        if (result == 0 && p->lost)
            lost = p;
        p->settled = result == 0 && !in_tx; /* a transaction may be rolled back */
    }
    pthread_mutex_unlock(&b->ob->lock);
    if (result == 0 && lost)
        return claim_lost(lost, err);
    return result;
}

OUTBOX_API int outbox_batch_extend(outbox_batch *b, int64_t lease_ms, outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    struct store *st = b->ob->st;
    const struct part *lost = NULL;
    int result = 0;
    if (check_lease(lease_ms, err) != 0)
        return -1;
    if (api_lock_own(b->ob, "extending a lease", err) != 0)
        return -1;
    for (struct part *p = b->first; p && result == 0; p = p->next) {
        bool is_lost = false;
        struct claim_lease l = {
            .consumer = p->consumer, .owner = b->worker, .epoch = p->b.epoch, .lease_ms = lease_ms};
        result = st->ops->extend(st, &l, &is_lost, err);
        if (result == 0 && is_lost)
            lost = p;
    }
    pthread_mutex_unlock(&b->ob->lock);
    if (result == 0 && lost)
        return claim_lost(lost, err);
    return result;
}

/* ---- claiming ---- */

/* Copies the fields that the caller's header has, fills in defaults, and checks them. */
static int read_claim(const outbox_claim *given, outbox_claim *c, struct error *err)
{
    *c = (outbox_claim)OUTBOX_CLAIM_INIT;
    bool initialised = given && given->size > 0;
    if (!initialised)
        return err_set(err, ERR_MISUSE, "claim was not initialised with OUTBOX_CLAIM_INIT");
    memcpy(c, given, min_size(given->size, sizeof *c));
    if (c->limit == 0)
        c->limit = LIMIT;
    if (c->lease_ms == 0)
        c->lease_ms = LEASE_MS;

    size_t name = c->worker ? strlen(c->worker) : 0;
    bool named = name > 0 && name <= WORKER_MAX;
    if (!named)
        return err_set(
            err, ERR_INVALID,
            "worker must have 1 to %d bytes, and differ for each process or thread that claims",
            WORKER_MAX);
    if (c->limit > LIMIT_MAX)
        return err_set(err, ERR_INVALID, "limit must be 1 to %d events", LIMIT_MAX);
    return check_lease(c->lease_ms, err);
}

static size_t count_deliverable(const struct batch *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        n += may_deliver(&b->ev[i]);
    return n;
}

/* Makes one claim for a consumer. *ret_again: the claim had only events that may not be delivered
 * now, and was settled; more events may be available. */
static int claim_part(outbox_batch *b, struct part *p, const struct claim_request *req,
                      bool *ret_again, struct error *err)
{
    struct store *st = b->ob->st;
    struct claim_hint hint = {0};
    *ret_again = false;
    p->b = (struct batch){0};
    if (st->ops->turn(st, NULL, NULL, req, &b->a, &p->b, &hint, err) != 0)
        return -1;
    if (hint.changed)
        return err_set(err, ERR_CONFLICT,
                       "the settings of consumer \"%s\" have just changed; claim again",
                       p->consumer);
    if (p->b.n == 0) {
        *ret_again = hint.skipped > 0;
        bool sooner = hint.wait_ms >= 0 && (b->wait_ms < 0 || hint.wait_ms < b->wait_ms);
        if (sooner)
            b->wait_ms = hint.wait_ms;
        return 0;
    }

    p->items = arena_zalloc(&b->a, p->b.n, sizeof *p->items);
    if (!p->items)
        return err_nomem(err);
    for (size_t i = 0; i < p->b.n; i++)
        p->items[i] = (struct item){.d = {.ev = &p->b.ev[i], .attempt = p->b.ev[i].attempts + 1},
                                    .verdict = NO_VERDICT};
    if (count_deliverable(&p->b) > 0)
        return 0;

    bool lost;
    *ret_again = true;
    int result = settle_part(b, p, false, &lost, err);
    p->b.n = 0;
    return result;
}

/* Adds the events of one consumer to the batch. A suspect must be alone in the batch. */
static int claim_for(outbox_batch *b, const outbox_claim *c, const struct consumer_spec *spec,
                     bool only_consumer, struct error *err)
{
    struct filter *filter = NULL;
    struct part *p = arena_zalloc(&b->a, 1, sizeof *p);
    if (!p)
        return err_nomem(err);
    p->consumer = spec->name;
    p->order = spec->order;
    /* A retry policy that this version cannot read counts as `fast`. */
    bool known = retry_parse(spec->retry, &p->retry, NULL) == 0;
    if (!known && retry_parse("fast", &p->retry, err) != 0)
        return -1;
    if (filter_new(spec->events, spec->where, &filter, err) != 0)
        return -1;
    struct claim_request req = {
        .consumer = spec->name,
        .owner = b->worker,
        .order = spec->order,
        .lanes = spec->lanes,
        .lane_hint = (int)rng_below(&b->rng, (uint64_t)spec->lanes),
        .parked_first = true,
        .suspect = b->n == 0 ? SUSPECT_TAKE : SUSPECT_SKIP,
        .filter = filter,
        .events = spec->events,
        .where = spec->where,
        .max_events = c->limit - b->n,
        .max_bytes = BATCH_BYTES,
        .lease_ms = c->lease_ms,
        .max_attempts = p->retry.attempts,
        .one_shot = true,
        .no_readahead = !only_consumer,
    };
    int result = 0;
    bool again = true;
    for (int i = 0; result == 0 && again && i < TURNS_MAX; i++)
        result = claim_part(b, p, &req, &again, err);
    filter_free(filter);
    if (result != 0 || p->b.n == 0)
        return result;

    /* Append the part, so that outbox_batch_next returns earlier claims first. */
    if (b->last)
        b->last->next = p;
    else
        b->first = b->at = p;
    b->last = p;
    b->n += count_deliverable(&p->b);
    return 0;
}

/* Claims for one consumer after the other until the batch is full. If one fails, the others are
 * still served, and its error counts only if there is nothing to deliver. */
static int claim_all(outbox_batch *b, const outbox_claim *c, struct error *err)
{
    struct consumer_spec *list;
    struct error first = {0};
    size_t n;
    struct store *st = b->ob->st;
    if (st->ops->consumer_specs(st, c->target, &b->a, &list, &n, err) != 0)
        return -1;

    /* In random order: otherwise a consumer that always has more events than the limit would starve
     * those after it. */
    for (size_t i = n; i > 1; i--) {
        size_t k = rng_below(&b->rng, i);
        struct consumer_spec kept = list[i - 1];
        list[i - 1] = list[k];
        list[k] = kept;
    }

    for (size_t i = 0; i < n; i++) {
        bool has_suspect = b->last && b->last->b.suspect;
        if (has_suspect || b->n >= c->limit)
            break;
        struct error why = {0};
        bool failed = claim_for(b, c, &list[i], n == 1, &why) != 0;
        if (failed && !first.code)
            first = why;
    }

    if (!first.code || b->n > 0)
        return 0;
    return err_copy(err, &first);
}

/* outbox_claim_batch hands out an empty batch if there is nothing to do; only a failure is an
 * error. */
OUTBOX_API int outbox_claim_batch(outbox *ob, const outbox_claim *claim, outbox_batch **ret,
                                  outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    outbox_claim c;
    if (read_claim(claim, &c, err) != 0)
        return -1;
    outbox_batch *b = calloc(1, sizeof *b);
    if (!b)
        return err_nomem(err);
    b->ob = ob;
    b->wait_ms = -1;
    snprintf(b->worker, sizeof b->worker, "%s", c.worker);
    arena_init(&b->a, 0);
    rng_seed_os(&b->rng);
    int result = api_lock_own(ob, "claiming", err);
    if (result == 0) {
        result = claim_all(b, &c, err);
        pthread_mutex_unlock(&ob->lock);
    }
    if (result == 0)
        *ret = b;
    else
        outbox_batch_free(b);
    return result;
}

/* ---- walking a batch ---- */

OUTBOX_API void outbox_batch_free(outbox_batch *b)
{
    if (!b)
        return;
    arena_release(&b->a);
    free(b);
}

OUTBOX_API size_t outbox_batch_count(const outbox_batch *b)
{
    return b->n;
}

OUTBOX_API int64_t outbox_batch_wait(const outbox_batch *b)
{
    return b->wait_ms;
}

/* Whether an item will be delivered again, so that later ones must not overtake it. */
static bool makes_wait(const struct item *it)
{
    return it->verdict != NO_VERDICT && it->verdict != OUTBOX_DONE && it->verdict != OUTBOX_REJECT;
}

/* Whether an earlier item that this one must not overtake will be delivered again. */
static bool must_wait(const struct part *p, size_t at)
{
    const struct event *ev = p->b.ev;
    if (p->order == ORDER_NONE || p->held_back == 0)
        return false;
    for (size_t i = 0; i < at; i++) {
        if (!makes_wait(&p->items[i]))
            continue;
        if (p->order == ORDER_GLOBAL)
            return true;
        bool same_key = ev[at].key && ev[i].key == ev[at].key;
        if (same_key)
            return true;
    }
    return false;
}

/* outbox_batch_next skips events that must not be delivered now. They are settled as untried. */
OUTBOX_API const outbox_event *outbox_batch_next(outbox_batch *b)
{
    while (b->at) {
        struct part *p = b->at;
        while (b->i < p->b.n) {
            size_t i = b->i++;
            if (may_deliver(&p->b.ev[i]) && !must_wait(p, i))
                return (const outbox_event *)&p->items[i].d;
        }
        b->at = p->next;
        b->i = 0;
    }
    return NULL;
}

/* Finds the part by the address of the event, which is one of its items; NULL: not in this batch.
 */
static struct part *part_of(const outbox_batch *b, const outbox_event *ev)
{
    uintptr_t at = (uintptr_t)ev;
    for (struct part *p = b->first; p; p = p->next) {
        uintptr_t begin = (uintptr_t)p->items;
        uintptr_t end = (uintptr_t)(p->items + p->b.n);
        if (at >= begin && at < end)
            return p;
    }
    return NULL;
}

OUTBOX_API const char *outbox_batch_consumer(const outbox_batch *b, const outbox_event *ev)
{
    const struct part *p = part_of(b, ev);
    if (!p)
        return NULL;
    return p->consumer;
}

/* outbox_batch_verdict may be called again for the same event: the last verdict counts. held_back
 * is adjusted before and after, so that it always is the number of items that make others wait. */
OUTBOX_API int outbox_batch_verdict(outbox_batch *b, const outbox_event *ev, outbox_verdict verdict,
                                    int64_t delay_ms, const char *why, outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    struct part *p = part_of(b, ev);
    struct item *it = (struct item *)(uintptr_t)ev;
    char *text = NULL;
    if (!p)
        return err_set(err, ERR_MISUSE, "the event is not part of this batch");
    if ((unsigned)verdict > OUTBOX_NOT_MINE)
        return err_set(err, ERR_MISUSE, "%d is not a verdict", (int)verdict);
    if (why && *why) {
        size_t n = strnlen(why, WHY_MAX);
        text = arena_bytes(&b->a, why, n);
        if (!text)
            return err_nomem(err);
    }

    p->held_back -= makes_wait(it);
    it->verdict = (int)verdict;
    it->delay_ms = min_i64(delay_ms, DELAY_MAX_MS);
    it->why = text;
    p->held_back += makes_wait(it);
    return 0;
}
