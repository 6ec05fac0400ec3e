/* claim.c: outbox_claim_batch, which claims events that the application delivers itself, and what
 * the application does with a batch. */
#include <stdio.h>
#include <stdlib.h>

#include "api/api_impl.h"
#include "base/rng.h"
#include "base/text.h"

#define WORKER_MAX 255
#define LIMIT_MAX 100000
#define LIMIT 100
#define LEASE_MAX_MS ((int64_t)24 * 3600 * 1000)
#define LEASE_MS 30000
#define BATCH_BYTES (8 * 1024 * 1024) /* ceiling on the events of one claim; bounds memory */
#define LOOKS_MAX 1000                /* turns in one call that may find only events to skip */
#define NOT_MINE_MS 1000              /* up to twice as long, at random, as for handlers */
#define WHY_MAX 255
/* A longer delay could not be added to a time by every database, and would fail the settlement. */
#define DELAY_MAX_MS (INT64_C(365) * 24 * 3600000)

/* What the application said about an event. */
enum said { SAID_NOTHING, SAID_DONE, SAID_RETRY, SAID_REJECT, SAID_DOWN, SAID_NOT_MINE };

/* One event of a batch. (1) The delivery comes first: the application sees it as outbox_event. */
struct item {
    struct delivery d;
    enum said said;
    int64_t delay_ms;
    const char *why;
};

/* One consumer's claim. The parts of a batch are a list, because the application has pointers to
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

/* (1) Parts and items live in the arena. */
struct outbox_batch {
    struct outbox *ob;
    struct arena a;
    struct rng rng;
    char worker[WORKER_MAX + 1];
    struct part *first, *last;
    struct part *at; /* outbox_batch_next goes on in this part */
    size_t i;        /* with this item */
    size_t n;        /* events that may be delivered */
    int64_t wait_ms; /* when there may be more; -1: not known */
};

/* ---- claiming ---- */

static bool lease_fits(int64_t ms)
{
    return ms >= 1 && ms <= LEASE_MAX_MS;
}

static int bad_lease(struct error *err)
{
    return err_set(err, ERR_INVALID, "lease_ms: 1 ms to a day (%lld)", (long long)LEASE_MAX_MS);
}

/* check_claim copies what the caller knows of an outbox_claim, fills in defaults and checks it. */
static int check_claim(const outbox_claim *given, outbox_claim *c, struct error *err)
{
    *c = (outbox_claim)OUTBOX_CLAIM_INIT;
    bool initialised = given && given->size > 0;
    if (!initialised)
        return err_set(err, ERR_MISUSE, "claim was not initialised with OUTBOX_CLAIM_INIT");
    size_t known = sizeof *c;
    if (given->size < known)
        known = given->size;
    memcpy(c, given, known);

    if (c->limit == 0)
        c->limit = LIMIT;
    if (c->lease_ms == 0)
        c->lease_ms = LEASE_MS;

    size_t name = 0;
    if (c->worker)
        name = strlen(c->worker);
    bool named = name > 0 && name <= WORKER_MAX;
    if (!named)
        return err_set(err, ERR_INVALID, "worker: 1 to %d bytes, another name for each that claims",
                       WORKER_MAX);
    if (c->limit > LIMIT_MAX)
        return err_set(err, ERR_INVALID, "limit: 1 to %d events", LIMIT_MAX);
    if (!lease_fits(c->lease_ms))
        return bad_lease(err);
    return 0;
}

/* own_turn locks the handle's connection, for a transaction of our own. */
static int own_turn(outbox *ob, const char *what, struct error *err)
{
    pthread_mutex_lock(&ob->lock);
    if (!ob->in_tx)
        return 0;
    pthread_mutex_unlock(&ob->lock);
    return err_set(
        err, ERR_MISUSE,
        "%s inside an open transaction would not be durable: refused; call outbox_commit first",
        what);
}

static bool may_be_delivered(const struct event *ev)
{
    return !ev->behind && !ev->delayed;
}

static size_t count_deliverable(const struct batch *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        n += may_be_delivered(&b->ev[i]);
    return n;
}

static int add_items(outbox_batch *b, struct part *p, struct error *err)
{
    p->items = arena_zalloc(&b->a, p->b.n, sizeof *p->items);
    if (!p->items)
        return err_nomem(err);
    for (size_t i = 0; i < p->b.n; i++)
        p->items[i].d = (struct delivery){.ev = &p->b.ev[i], .attempt = p->b.ev[i].attempts + 1};
    return 0;
}

static void append(outbox_batch *b, struct part *p)
{
    if (b->last)
        b->last->next = p;
    else
        b->first = b->at = p;
    b->last = p;
    b->n += count_deliverable(&p->b);
}

static void note_wait(outbox_batch *b, const struct claim_hint *h)
{
    int64_t ms = h->wait_ms;
    if (ms >= 0 && (b->wait_ms < 0 || ms < b->wait_ms))
        b->wait_ms = ms;
}

static int settle_part(outbox_batch *b, struct part *p, bool in_tx, bool *ret_lost,
                       struct error *err);

/* settle_held settles a part of which nothing may be delivered now, and empties it. */
static int settle_held(outbox_batch *b, struct part *p, struct error *err)
{
    bool lost;
    int r = settle_part(b, p, false, &lost, err);
    p->b.n = 0;
    return r;
}

/* look makes one claim for a consumer. *ret_again: it found only events that may not be delivered
 * now, so look again. */
static int look(outbox_batch *b, struct part *p, const struct claim_request *req, bool *ret_again,
                struct error *err)
{
    struct store *st = b->ob->st;
    struct claim_hint hint = {0};
    *ret_again = false;
    p->b = (struct batch){0};
    if (st->ops->turn(st, NULL, NULL, req, &b->a, &p->b, &hint, err) != 0)
        return -1;
    if (hint.changed)
        return err_set(err, ERR_CONFLICT,
                       "consumer \"%s\" was given other settings just now; claim again",
                       p->consumer);

    if (p->b.n == 0) {
        *ret_again = hint.skipped > 0;
        note_wait(b, &hint);
        return 0;
    }
    if (add_items(b, p, err) != 0)
        return -1;
    if (count_deliverable(&p->b) > 0)
        return 0;
    *ret_again = true;
    return settle_held(b, p, err);
}

/* new_part makes an empty part for a consumer. A retry policy that this version cannot read counts
 * as `fast`. */
static struct part *new_part(outbox_batch *b, const struct consumer_spec *spec, struct error *err)
{
    struct part *p = arena_zalloc(&b->a, 1, sizeof *p);
    if (!p) {
        err_nomem(err);
        return NULL;
    }
    p->consumer = spec->name;
    p->order = spec->order;
    bool known = retry_parse(spec->retry, &p->retry, NULL) == 0;
    if (!known && retry_parse("fast", &p->retry, err) != 0)
        return NULL;
    return p;
}

/* claim_for adds what one consumer has to the batch. A careful event must be alone in it. */
static int claim_for(outbox_batch *b, const outbox_claim *c, const struct consumer_spec *spec,
                     struct error *err)
{
    struct filter *filter = NULL;
    struct part *p = new_part(b, spec, err);
    if (!p)
        return -1;
    if (filter_new(spec->events, spec->where, &filter, err) != 0)
        return -1;
    enum careful careful = b->n == 0 ? CAREFUL_TAKE : CAREFUL_SKIP;
    struct claim_request req = {
        .consumer = spec->name,
        .owner = b->worker,
        .order = spec->order,
        .lanes = spec->lanes,
        .lane_hint = (int)rng_below(&b->rng, (uint64_t)spec->lanes),
        .parked_first = true,
        .careful = careful,
        .filter = filter,
        .events = spec->events,
        .where = spec->where,
        .max_events = c->limit - b->n,
        .max_bytes = BATCH_BYTES,
        .lease_ms = c->lease_ms,
        .max_attempts = p->retry.attempts,
        .once = true,
    };

    int r = 0;
    bool again = true;
    for (int i = 0; r == 0 && again && i < LOOKS_MAX; i++)
        r = look(b, p, &req, &again, err);
    filter_free(filter);
    if (r == 0 && p->b.n > 0)
        append(b, p);
    return r;
}

/* shuffle puts the consumers in random order. Otherwise one that always has more events than the
 * limit would starve those after it. */
static void shuffle(struct consumer_spec *list, size_t n, struct rng *rng)
{
    for (size_t i = n; i > 1; i--) {
        size_t k = rng_below(rng, i);
        struct consumer_spec kept = list[i - 1];
        list[i - 1] = list[k];
        list[k] = kept;
    }
}

/* is_full says whether nothing more fits: the limit is reached, or the batch is a careful event. */
static bool is_full(const outbox_batch *b, const outbox_claim *c)
{
    bool careful = b->last && b->last->b.careful;
    return careful || b->n >= c->limit;
}

/* claim_all goes through the consumers until the batch is full. If one fails, the others are served
 * all the same, and its error counts only if there is nothing to deliver. */
static int claim_all(outbox_batch *b, const outbox_claim *c, struct error *err)
{
    struct consumer_spec *list;
    struct error first = {0};
    size_t n;
    struct store *st = b->ob->st;
    if (st->ops->consumer_specs(st, c->target, &b->a, &list, &n, err) != 0)
        return -1;
    shuffle(list, n, &b->rng);
    for (size_t i = 0; i < n && !is_full(b, c); i++) {
        struct error why = {0};
        bool failed = claim_for(b, c, &list[i], &why) != 0;
        if (failed && !first.code)
            first = why;
    }

    if (!first.code || b->n > 0)
        return 0;
    if (err)
        *err = first;
    return -1;
}

OUTBOX_API int outbox_claim_batch(outbox *ob, const outbox_claim *claim, outbox_batch **ret,
                                  outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    outbox_claim c;
    if (check_claim(claim, &c, err) != 0)
        return -1;
    outbox_batch *b = calloc(1, sizeof *b);
    if (!b)
        return err_nomem(err);
    b->ob = ob;
    b->wait_ms = -1;
    snprintf(b->worker, sizeof b->worker, "%s", c.worker);
    arena_init(&b->a, 0);
    rng_seed_os(&b->rng);
    int r = own_turn(ob, "a claim", err);
    if (r == 0) {
        r = claim_all(b, &c, err);
        pthread_mutex_unlock(&ob->lock);
    }
    if (r == 0)
        *ret = b;
    else
        outbox_batch_free(b);
    return r;
}

OUTBOX_API void outbox_batch_free(outbox_batch *b)
{
    if (!b)
        return;
    arena_release(&b->a);
    free(b);
}

/* ---- going through a batch ---- */

OUTBOX_API size_t outbox_batch_count(const outbox_batch *b)
{
    return b->n;
}

OUTBOX_API int64_t outbox_batch_wait(const outbox_batch *b)
{
    return b->wait_ms;
}

/* makes_wait says whether an item comes again, so that later ones must not overtake it. */
static bool makes_wait(const struct item *it)
{
    return it->said != SAID_NOTHING && it->said != SAID_DONE && it->said != SAID_REJECT;
}

static bool same_key(const struct part *p, size_t i, size_t k)
{
    if (p->order == ORDER_GLOBAL)
        return true;
    return p->b.ev[i].key && p->b.ev[i].key == p->b.ev[k].key;
}

/* must_wait says whether an earlier item comes again that this one must not overtake. */
static bool must_wait(const struct part *p, size_t at)
{
    if (p->order == ORDER_NONE || p->held_back == 0)
        return false;
    for (size_t i = 0; i < at; i++) {
        if (same_key(p, i, at) && makes_wait(&p->items[i]))
            return true;
    }
    return false;
}

OUTBOX_API const outbox_event *outbox_batch_next(outbox_batch *b)
{
    while (b->at) {
        struct part *p = b->at;
        while (b->i < p->b.n) {
            size_t i = b->i++;
            if (may_be_delivered(&p->b.ev[i]) && !must_wait(p, i))
                return (const outbox_event *)&p->items[i].d;
        }
        b->at = p->next;
        b->i = 0;
    }
    return NULL;
}

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

OUTBOX_API int outbox_batch_verdict(outbox_batch *b, const outbox_event *ev, outbox_verdict verdict,
                                    int64_t delay_ms, const char *why, outbox_error *public_err)
{
    static const enum said meaning[] = {[OUTBOX_DONE] = SAID_DONE,
                                        [OUTBOX_RETRY] = SAID_RETRY,
                                        [OUTBOX_REJECT] = SAID_REJECT,
                                        [OUTBOX_DOWN] = SAID_DOWN,
                                        [OUTBOX_NOT_MINE] = SAID_NOT_MINE};
    struct error *err = err_of(public_err);
    struct part *p = part_of(b, ev);
    struct item *it = (struct item *)(uintptr_t)ev;
    char *text = NULL;
    if (!p)
        return err_set(err, ERR_MISUSE, "the event is not of this batch");
    if ((unsigned)verdict > OUTBOX_NOT_MINE)
        return err_set(err, ERR_MISUSE, "%d is no verdict", (int)verdict);
    if (why && *why) {
        size_t n = strnlen(why, WHY_MAX);
        text = arena_bytes(&b->a, why, n);
        if (!text)
            return err_nomem(err);
    }

    p->held_back -= makes_wait(it);
    it->said = meaning[verdict];
    it->delay_ms = delay_ms;
    if (it->delay_ms > DELAY_MAX_MS)
        it->delay_ms = DELAY_MAX_MS;
    it->why = text;
    p->held_back += makes_wait(it);
    return 0;
}

/* ---- settling ---- */

static const char *reason(const struct item *it, const char *usual)
{
    return it->why ? it->why : usual;
}

/* failed is the outcome of a failed attempt: a retry, or a dead letter after the last one. */
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

/* outcome_of says whether the event is an exception, and fills in its outcome if so. */
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

static bool untried(const struct part *p, size_t i)
{
    return p->items[i].said == SAID_NOTHING && may_be_delivered(&p->b.ev[i]);
}

/* untried_from returns the index from which on nothing was tried, so that the rest of a fresh range
 * can be given back as it was. */
static size_t untried_from(const struct part *p)
{
    size_t i = p->b.n;
    if (p->b.parked)
        return i;
    while (i > 0 && untried(p, i - 1))
        i--;
    return i;
}

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

    int r;
    if (in_tx)
        r = st->ops->settle(st, &s, ret_lost, err);
    else
        r = st->ops->turn(st, &s, ret_lost, NULL, NULL, NULL, NULL, err);
    free(out);
    return r;
}

static int say_lost(const struct part *p, struct error *err)
{
    return err_set(err, ERR_LOST,
                   "consumer \"%s\": the claim is no longer ours: its lease ran out and another "
                   "worker has the events",
                   p->consumer);
}

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
            r = settle_part(b, p, in_tx, &p->lost, err);
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
    if (!lease_fits(lease_ms))
        return bad_lease(err);
    if (own_turn(b->ob, "a lease that is extended", err) != 0)
        return -1;
    for (struct part *p = b->first; p && r == 0; p = p->next) {
        bool lost = false;
        r = st->ops->extend(st, p->consumer, b->worker, &p->b, lease_ms, &lost, err);
        if (r == 0 && lost)
            gone = p;
    }
    pthread_mutex_unlock(&b->ob->lock);
    if (r == 0 && gone)
        return say_lost(gone, err);
    return r;
}

/* ---- registering ---- */

static int register_as(outbox *ob, const struct consumer *c, struct error *err)
{
    char retry[RETRY_TEXT];
    struct consumer_spec spec = consumer_spec_of(c, retry);
    return ob->st->ops->consumer_put(ob->st, &spec, NULL, err);
}

OUTBOX_API int outbox_consumer_register(outbox_consumer *c, outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    outbox *ob = c->ob;
    if (api_consumer_describe(c, err) != 0)
        return -1;
    if (own_turn(ob, "a consumer that is registered", err) != 0)
        return -1;
    int r = 0;
    if (c->n_parts == 0)
        r = register_as(ob, &c->c, err);
    for (size_t i = 0; r == 0 && i < c->n_parts; i++)
        r = register_as(ob, &c->parts[i], err);
    pthread_mutex_unlock(&ob->lock);
    return r;
}
