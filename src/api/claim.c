/* claim.c: outbox_claim_batch, which claims events that the application delivers itself. */
#include <stdio.h>
#include <stdlib.h>

#include "api/batch.h"

#define LIMIT_MAX 100000
#define LIMIT 100
#define LEASE_MS 30000
#define BATCH_BYTES (8 * 1024 * 1024) /* ceiling on the events of one claim; bounds memory */
#define LOOKS_MAX 1000                /* turns in one call that may find only events to skip */

/* check_claim copies the fields that the caller's header has, fills in defaults, and checks
 * them. */
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
    bool named = name > 0 && name <= BATCH_WORKER_MAX;
    if (!named)
        return err_set(
            err, ERR_INVALID,
            "worker: 1 to %d bytes, and a different name for each process or thread that claims",
            BATCH_WORKER_MAX);
    if (c->limit > LIMIT_MAX)
        return err_set(err, ERR_INVALID, "limit: 1 to %d events", LIMIT_MAX);
    return api_batch_check_lease(c->lease_ms, err);
}

static size_t count_deliverable(const struct batch *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        n += api_batch_may_deliver(&b->ev[i]);
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

/* append adds a part at the end, so that earlier claims are handed out first. */
static void append(outbox_batch *b, struct part *p)
{
    if (b->last)
        b->last->next = p;
    else
        b->first = b->at = p;
    b->last = p;
    b->n += count_deliverable(&p->b);
}

/* note_wait keeps the shortest wait that a consumer has named: the batch may be asked for again
 * then. */
static void note_wait(outbox_batch *b, const struct claim_hint *h)
{
    int64_t ms = h->wait_ms;
    if (ms >= 0 && (b->wait_ms < 0 || ms < b->wait_ms))
        b->wait_ms = ms;
}

/* settle_held settles a part of which nothing may be delivered now, and empties it. */
static int settle_held(outbox_batch *b, struct part *p, struct error *err)
{
    bool lost;
    int r = api_batch_settle_part(b, p, false, &lost, err);
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
                       "consumer \"%s\" has just been given other settings; claim again",
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

/* claim_for adds what one consumer has to the batch, one of several that are asked if crowded. A
 * careful event must be alone in it. */
static int claim_for(outbox_batch *b, const outbox_claim *c, const struct consumer_spec *spec,
                     bool crowded, struct error *err)
{
    struct filter *filter = NULL;
    struct part *p = new_part(b, spec, err);
    if (!p)
        return -1;
    if (filter_new(spec->events, spec->where, &filter, err) != 0)
        return -1;
    enum suspect_policy careful = b->n == 0 ? SUSPECT_TAKE : SUSPECT_SKIP;
    struct claim_request req = {
        .consumer = spec->name,
        .owner = b->worker,
        .order = spec->order,
        .lanes = spec->lanes,
        .lane_hint = (int)rng_below(&b->rng, (uint64_t)spec->lanes),
        .parked_first = true,
        .suspect = careful,
        .filter = filter,
        .events = spec->events,
        .where = spec->where,
        .max_events = c->limit - b->n,
        .max_bytes = BATCH_BYTES,
        .lease_ms = c->lease_ms,
        .max_attempts = p->retry.attempts,
        .one_shot = true,
        .no_readahead = crowded,
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
    bool careful = b->last && b->last->b.suspect;
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
        bool failed = claim_for(b, c, &list[i], n > 1, &why) != 0;
        if (failed && !first.code)
            first = why;
    }

    if (!first.code || b->n > 0)
        return 0;
    if (err)
        *err = first;
    return -1;
}

/* outbox_claim_batch hands out an empty batch if there is nothing to do; only a failure is an
 * error. */
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
    int r = api_lock_own(ob, "claiming", err);
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
