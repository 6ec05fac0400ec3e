/* pipeline.c: claim -> deliver -> settle, for one consumer. See docs/architecture.md. */
#include "engine/pipeline.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/circuit.h"
#include "engine/live.h"

#define LIVE_MAX 4                    /* batches at once, for sinks that answer late */
#define BATCH_BYTES (2 * 1024 * 1024) /* of events in a batch; what bounds memory */
#define BATCH_START 64
#define BATCH_QUICK (100 * MS_NS) /* a full batch that took less: double the next */
#define BATCH_SLOW (1000 * MS_NS) /* one that took more: halve it */
#define STANDBY (50 * MS_NS)      /* while another owner has the lane, look no more often than this */
#define STORE_RETRY_MAX (5000 * MS_NS)
#define CAREFUL_AGAIN (20 * MS_NS) /* when another pipeline of this process is at a careful event */
#define OFFER 256
#define SUBMIT_SLICE (50 * MS_NS) /* then leases and the wish to stop are looked at */

/* (1) live[0..n_live) are in the order they were claimed, and are settled in that order, so that what holds a key back
 * is recorded before what waits behind it. (2) look_at is when to ask the store again; 0: at once. */
struct pipeline {
    struct pipeline_config cfg;
    const struct consumer *c;
    struct filter *filter;
    struct sink *sk;
    enum pipeline_state state;
    struct error error; /* why it failed, or the last failure of an event */
    struct pipeline_stats stats;

    struct live pool[LIVE_MAX];
    struct live *live[LIVE_MAX];
    size_t n_live;
    struct keymap keys;
    struct ready ready;
    bool requeue; /* items came back: the queue must be made anew */
    size_t flying;
    struct circuit circuit;

    size_t batch_size;
    int lane;
    bool parked_turn;
    bool careful_due;  /* a careful event waits for the live batches to end */
    bool careful_held; /* we have cfg.careful */
    int64_t look_at;
    int64_t deaf_until; /* ignore the bell until then */
    int64_t store_retry_at, store_retry_delay;
    int64_t drain_deadline;
    char failure[256];
};

int pipeline_new(const struct pipeline_config *cfg, struct pipeline **ret, struct error *err)
{
    char retry_text[RETRY_TEXT];
    struct consumer_spec spec = consumer_spec_of(cfg->consumer, retry_text);
    struct pipeline *p = calloc(1, sizeof *p);
    if (!p) return err_nomem(err);
    p->cfg = *cfg;
    p->c = cfg->consumer;
    if (!p->cfg.sweep_ms) p->cfg.sweep_ms = 30000;
    if (!p->cfg.poll_ms) p->cfg.poll_ms = 500;
    p->batch_size = p->c->batch < BATCH_START ? (size_t)p->c->batch : BATCH_START;
    p->drain_deadline = CLOCK_NEVER;
    circuit_init(&p->circuit);
    ready_init(&p->ready);
    for (size_t i = 0; i < LIVE_MAX; i++) arena_init(&p->pool[i].a, 0);
    if (keymap_init(&p->keys, (size_t)p->c->batch * 2) != 0) {
        err_nomem(err);
        goto fail;
    }
    if (filter_new(p->c->events, p->c->where, &p->filter, err) != 0) goto fail;
    if (cfg->st->ops->consumer_put(cfg->st, &spec, NULL, err) != 0) goto fail;
    *ret = p;
    return 0;
fail:
    pipeline_free(p);
    return -1;
}

void pipeline_attach(struct pipeline *p, struct sink *sk)
{
    p->sk = sk;
}

void pipeline_free(struct pipeline *p)
{
    if (!p) return;
    if (p->careful_held) atomic_flag_clear(p->cfg.careful);
    for (size_t i = 0; i < LIVE_MAX; i++) arena_release(&p->pool[i].a);
    keymap_release(&p->keys);
    filter_free(p->filter);
    free(p);
}

static int64_t now_of(const struct pipeline *p)
{
    return clock_mono(p->cfg.clock);
}

static bool failstop(const struct pipeline *p)
{
    return (p->sk->ops->caps & SINK_FAILSTOP) != 0;
}

/* set_state is the one place where the state changes. */
static void set_state(struct pipeline *p, enum pipeline_state s)
{
    if (p->state < s) p->state = s;
}

/* fail stops the consumer for good: nothing else can be done here. */
static void fail(struct pipeline *p, const struct error *err)
{
    if (p->error.code) return;
    p->error = *err;
    if (!p->error.code) p->error.code = ERR_INTERNAL;
    log_at(p->cfg.log, LOG_ERROR_, p->c->name, "stopping: %s", err->text);
    pipeline_drain(p, now_of(p));
}

/* ---- how deliveries end ---- */

static void report(struct pipeline *p, const char *text)
{
    struct error ignored; /* a note for operators: the next one will do */
    p->cfg.st->ops->consumer_report(p->cfg.st, p->c->name, text, &ignored);
}

static void sink_is_down(struct pipeline *p, const struct sink_result *r)
{
    char text[400];
    int64_t now = now_of(p);
    bool was_open = circuit_open(&p->circuit) && now < p->circuit.until;
    bool opened = circuit_down(&p->circuit, now, r->retry_after_ms, p->cfg.rng);
    p->stats.down = true;
    if (was_open) return;
    long long wait = (long long)((p->circuit.until - now) / MS_NS);
    log_at(p->cfg.log, opened ? LOG_WARN_ : LOG_DEBUG_, p->c->name, "sink is down: %s; trying again in %lld ms",
           r->text ? r->text : "no reason given", wait);
    if (!opened) return;
    snprintf(text, sizeof text, "sink is down: %s", r->text ? r->text : "no reason given");
    report(p, text);
}

static void sink_is_up(struct pipeline *p)
{
    if (!circuit_up(&p->circuit)) return;
    p->stats.down = false;
    log_at(p->cfg.log, LOG_INFO_, p->c->name, "sink is back");
    report(p, NULL);
}

static void bury(struct pipeline *p, struct item *it, int attempts, const char *text)
{
    p->stats.buried++;
    log_at(p->cfg.log, LOG_ERROR_, p->c->name, "event %s (%s) is a dead letter after %d attempts: %s", it->d.ev->id.p,
           it->d.ev->type.p, attempts, text);
    item_end(it, &(struct outcome){.kind = OUTCOME_DEAD, .attempts = attempts, .error = text}, true, &p->ready);
}

static void retry(struct pipeline *p, struct item *it, int attempts, const char *text, int64_t at_least_ms)
{
    int64_t delay = retry_delay(&p->c->retry, attempts, p->cfg.rng);
    if (delay < at_least_ms) delay = at_least_ms;
    p->stats.retried++;
    log_at(p->cfg.log, LOG_WARN_, p->c->name, "event %s (%s) failed, attempt %d of %d: %s; next in %lld ms",
           it->d.ev->id.p, it->d.ev->type.p, attempts, p->c->retry.attempts, text, (long long)delay);
    item_end(it, &(struct outcome){.kind = OUTCOME_RETRY, .attempts = attempts, .delay_ms = delay, .error = text}, true,
             &p->ready);
}

static void event_failed(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    int attempts = it->d.ev->attempts + 1;
    const char *text = r->text ? r->text : "no reason given";
    snprintf(p->failure, sizeof p->failure, "%s: %s", it->d.ev->type.p, text);
    if (r->status == SINK_REJECT || attempts >= p->c->retry.attempts) bury(p, it, attempts, text);
    else retry(p, it, attempts, text, r->retry_after_ms);
}

static void event_delivered(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    p->stats.delivered++;
    sink_is_up(p);
    item_end(it, &(struct outcome){.kind = OUTCOME_DELIVERED, .receipt = r->receipt}, p->c->receipts, &p->ready);
}

static void sink_is_gone(struct pipeline *p, const struct sink_result *r)
{
    struct error err;
    err_fate(&err, ERR_UNAVAILABLE, FATE_FATAL, r->native, "%s", r->text ? r->text : "the sink gave up");
    fail(p, &err);
}

static void not_tried(struct pipeline *p, struct item *it)
{
    item_land(it);
    p->requeue = true;
}

void pipeline_done(void *pipeline, struct delivery *d, const struct sink_result *r)
{
    struct pipeline *p = pipeline;
    struct item *it = (struct item *)d;
    p->flying--;
    switch (r->status) {
    case SINK_DELIVERED: event_delivered(p, it, r); break;
    case SINK_RETRY:
    case SINK_REJECT:
        sink_is_up(p); /* it answered */
        event_failed(p, it, r);
        break;
    case SINK_DOWN:
        not_tried(p, it);
        sink_is_down(p, r);
        break;
    case SINK_FATAL:
        not_tried(p, it);
        sink_is_gone(p, r);
        break;
    case SINK_CANCELLED: not_tried(p, it); break;
    }
}

/* ---- deliver ---- */

/* make_queue orders what may go anew, after items have come back. */
static void make_queue(struct pipeline *p)
{
    ready_init(&p->ready);
    for (size_t i = 0; i < p->n_live; i++)
        for (size_t k = 0; k < p->live[i]->b.n; k++)
            if (p->live[i]->items[k].state == ITEM_READY && !p->live[i]->lost)
                ready_push(&p->ready, &p->live[i]->items[k]);
    p->requeue = false;
}

/* offer hands up to `room` queued items to the sink; returns how many it took. */
static size_t offer(struct pipeline *p, size_t room)
{
    struct delivery *d[OFFER];
    d[0] = NULL;
    size_t n = 0, max = failstop(p) ? OFFER : 1;
    if (room < max) max = room;
    for (struct item *it = p->ready.head; it && n < max; it = it->next_ready) d[n++] = &it->d;
    /* They fly before the sink has said so, because it may answer from within submit. */
    for (size_t i = 0; i < n; i++) item_fly((struct item *)d[i]);
    for (size_t i = 0; i < n; i++) ready_pop(&p->ready);
    p->flying += n;
    size_t took = p->sk->ops->submit(p->sk, d, n);
    for (size_t i = n; i > took; i--) {
        item_land((struct item *)d[i - 1]);
        ready_unshift(&p->ready, (struct item *)d[i - 1]);
        p->flying--;
    }
    return took;
}

static int64_t half_lease(const struct pipeline *p, const struct live *l)
{
    return l->deadline - p->c->lease_ms * MS_NS / 2;
}

/* lease_allows: nothing is submitted of a claim past its deadline, nor past half of its lease while it can be extended
 * first: handlers take their time inside submit. */
static bool lease_allows(const struct pipeline *p, const struct live *l, int64_t now)
{
    return now < l->deadline && (now < half_lease(p, l) || now < p->store_retry_at);
}

static bool submit(struct pipeline *p)
{
    bool any = false;
    int64_t now = now_of(p), until = now + SUBMIT_SLICE;
    for (; p->ready.head && p->state == PIPELINE_RUNNING && now < until; now = now_of(p)) {
        if (!lease_allows(p, p->ready.head->live, now)) break;
        size_t room = circuit_room(&p->circuit, now, p->flying);
        if (room == 0 || offer(p, room) == 0) break;
        any = true;
        if (p->requeue) break;
    }
    if (p->requeue) make_queue(p);
    return any;
}

/* ---- leases ---- */

static void abandon(struct pipeline *p, struct live *l, const char *why)
{
    if (l->lost) return;
    l->lost = true;
    p->stats.lost++;
    log_at(p->cfg.log, LOG_WARN_, p->c->name, "claim %lld of %zu events is lost: %s; they will be delivered again",
           (long long)l->b.epoch, l->b.n, why);
    live_give_up(l, &p->ready);
    make_queue(p);
}

/* extend_all goes from the newest claim to the oldest and stops at a failure, so that of two claims of a lane the earlier
 * never outlives the later one: whoever takes over finds them in order. */
static void extend_all(struct pipeline *p)
{
    for (size_t i = p->n_live; i-- > 0;) {
        struct live *l = p->live[i];
        int64_t now = now_of(p);
        struct error err;
        bool lost;
        if (l->lost) continue;
        if (p->cfg.st->ops->extend(p->cfg.st, p->c->name, p->cfg.owner, &l->b, p->c->lease_ms, &lost, &err) != 0) {
            p->store_retry_at = now + 200 * MS_NS;
            log_at(p->cfg.log, LOG_WARN_, p->c->name, "could not extend a claim: %s", err.text);
            return;
        }
        if (lost) abandon(p, l, "another worker has taken it over");
        else l->deadline = now + p->c->lease_ms * MS_NS;
    }
}

/* keep_leases: past its deadline a claim may be someone else's. Nothing of it is submitted then (see submit) until the
 * store has said that it is still ours. */
static void keep_leases(struct pipeline *p)
{
    int64_t now = now_of(p);
    if (now < p->store_retry_at) return;
    for (size_t i = 0; i < p->n_live; i++) {
        if (p->live[i]->lost || now < half_lease(p, p->live[i])) continue;
        extend_all(p);
        return;
    }
}

/* ---- settle and claim ---- */

/* careful_take gets the process's only permission for a careful event; careful_leave gives it back. */
static bool careful_take(struct pipeline *p)
{
    if (p->careful_held || !p->cfg.careful) return true;
    p->careful_held = !atomic_flag_test_and_set(p->cfg.careful);
    return p->careful_held;
}

static void careful_leave(struct pipeline *p)
{
    if (p->careful_held) atomic_flag_clear(p->cfg.careful);
    p->careful_held = false;
}

static void drop(struct pipeline *p, size_t i)
{
    if (p->live[i]->b.careful) careful_leave(p);
    live_release(p->live[i], &p->keys);
    p->n_live--;
    for (; i < p->n_live; i++) p->live[i] = p->live[i + 1];
}

static struct live *spare(struct pipeline *p)
{
    for (size_t i = 0; i < LIVE_MAX; i++)
        if (!p->pool[i].used) return &p->pool[i];
    return NULL;
}

/* may_claim: with a sink that keeps order by itself one batch at a time is enough, and it is what makes that safe. While
 * a careful event is on its way, or waits to be, nothing else is started: if the process dies, it was that event. */
static bool may_claim(struct pipeline *p, int64_t now, size_t settling)
{
    size_t live = p->n_live - settling;
    if (p->state != PIPELINE_RUNNING || p->ready.head) return false;
    if (live >= (failstop(p) ? 1 : LIVE_MAX)) return false;
    if (live > 0 && (p->careful_due || p->live[p->n_live - 1]->b.careful)) return false;
    return circuit_room(&p->circuit, now, p->flying) > 0;
}

static bool wants_work(struct pipeline *p, int64_t now, size_t settling)
{
    return now >= p->look_at && may_claim(p, now, settling);
}

static void tune(struct pipeline *p, const struct live *l)
{
    int64_t took = now_of(p) - l->claimed_at;
    if (l->b.n >= p->batch_size && took < BATCH_QUICK) p->batch_size *= 2;
    else if (took > BATCH_SLOW && p->batch_size > 1) p->batch_size /= 2;
    if (p->batch_size > (size_t)p->c->batch) p->batch_size = (size_t)p->c->batch;
}

static void store_failed(struct pipeline *p, const struct error *err)
{
    if (err->fate == FATE_FATAL) {
        fail(p, err);
        return;
    }
    int64_t delay = p->store_retry_delay ? p->store_retry_delay * 2 : 100 * MS_NS;
    p->store_retry_delay = delay < STORE_RETRY_MAX ? delay : STORE_RETRY_MAX;
    p->store_retry_at = now_of(p) + p->store_retry_delay;
    log_at(p->cfg.log, LOG_WARN_, p->c->name, "store: %s; trying again in %lld ms", err->text,
           (long long)(p->store_retry_delay / MS_NS));
}

static void found_nothing(struct pipeline *p, const struct claim_hint *h, int64_t now)
{
    int64_t wait = p->cfg.sweep_ms;
    if (p->cfg.st->ops->bell_fd(p->cfg.st) < 0 && p->cfg.poll_ms < wait) wait = p->cfg.poll_ms;
    if (h->wait_ms >= 0 && h->wait_ms < wait) wait = h->wait_ms;
    p->careful_due = h->careful; /* then may_claim waits for the live batches to end */
    p->look_at = h->skipped || h->careful ? 0 : now + wait * MS_NS;
    p->deaf_until = h->busy ? now + STANDBY : 0;
    if (h->busy && wait * MS_NS < STANDBY && p->look_at) p->look_at = now + STANDBY;
    p->stats.paused = h->paused;
    p->stats.through = h->through && p->n_live == 0;
}

static void took_batch(struct pipeline *p, struct live *l)
{
    p->stats.claims++;
    p->stats.through = p->stats.paused = p->careful_due = false;
    p->look_at = 0;
    p->lane = (l->b.lane + 1) % p->c->lanes;
    p->parked_turn = !p->parked_turn;
    p->live[p->n_live++] = l;
    if (live_load(l, p->c->order, !failstop(p), &p->keys, &p->ready) != 0) {
        p->n_live--; /* out of memory: the lease will run out, and the batch come again */
        l->used = false;
        arena_reset(&l->a);
        p->look_at = now_of(p) + 1000 * MS_NS;
    }
}

static void note_hint(struct pipeline *p, const struct claim_hint *h)
{
    p->stats.crashed += (int64_t)h->crashed;
    p->stats.buried += (int64_t)h->buried;
    if (h->crashed)
        log_at(p->cfg.log, LOG_WARN_, p->c->name,
               "took over %zu events of a worker that vanished; delivering them one at a time", h->crashed);
    if (h->buried)
        log_at(p->cfg.log, LOG_ERROR_, p->c->name,
               "%zu events are dead letters: the process died on each attempt to deliver them", h->buried);
}

static struct claim_request request_of(struct pipeline *p)
{
    return (struct claim_request){
        .consumer = p->c->name,
        .owner = p->cfg.owner,
        .order = p->c->order,
        .lanes = p->c->lanes,
        .lane_hint = p->lane,
        .parked_first = p->parked_turn,
        .filter = p->filter,
        .max_events = p->batch_size,
        .max_bytes = BATCH_BYTES,
        .lease_ms = p->c->lease_ms,
        .max_attempts = p->c->retry.attempts,
    };
}

/* turn settles live[i] (i < 0: nothing) and claims the next batch, if one is wanted, in one transaction. */
static bool turn(struct pipeline *p, int i)
{
    struct live *l = i >= 0 ? p->live[i] : NULL, *next = NULL;
    struct settlement s;
    struct claim_request req = request_of(p);
    struct claim_hint hint = {0};
    struct batch b = {0};
    struct error err = {0};
    bool lost = false, skipping = false;
    int64_t now = now_of(p);
    if (l) {
        s = (struct settlement){.consumer = p->c->name,
                                .owner = p->cfg.owner,
                                .order = p->c->order,
                                .b = &l->b,
                                .release_from = l->release_from};
        s.out = live_outcomes(l, &s.n);
        if (!s.out) {
            err_nomem(&err);
            store_failed(p, &err);
            return false;
        }
    }
    if (l && l->b.careful) careful_leave(p);
    if (wants_work(p, now, l ? 1 : 0)) next = spare(p);
    if (next) {
        p->cfg.st->ops->bell_clear(p->cfg.st);
        req.careful = p->n_live > (l ? 1 : 0) ? CAREFUL_WAIT : careful_take(p) ? CAREFUL_TAKE : CAREFUL_SKIP;
        skipping = req.careful == CAREFUL_SKIP;
    }
    if (!next) req.max_events = 0;
    if (p->cfg.st->ops->turn(p->cfg.st, l ? &s : NULL, &lost, &req, next ? &next->a : NULL, &b, &hint, &err) != 0) {
        if (next) arena_reset(&next->a);
        careful_leave(p);
        store_failed(p, &err);
        return false;
    }
    if (next && !b.careful) careful_leave(p);
    p->store_retry_delay = p->store_retry_at = 0;
    if (l) {
        if (lost) abandon(p, l, "another worker has taken it over, or its lease ran out");
        tune(p, l);
        drop(p, (size_t)i);
    }
    note_hint(p, &hint);
    if (!next) return true;
    next->b = b;
    next->claimed_at = now;
    next->deadline = now + p->c->lease_ms * MS_NS;
    if (b.n > 0) {
        took_batch(p, next);
    } else {
        arena_reset(&next->a);
        found_nothing(p, &hint, now);
        if (skipping && p->look_at > now + CAREFUL_AGAIN) p->look_at = now + CAREFUL_AGAIN;
    }
    return b.n > 0 || l || hint.skipped;
}

/* drop_lost forgets batches that are not ours any more once nothing of them is with the sink. */
static void drop_lost(struct pipeline *p)
{
    for (size_t i = 0; i < p->n_live;) {
        if (p->live[i]->lost && p->live[i]->flying == 0) drop(p, i);
        else i++;
    }
}

static void hear_bell(struct pipeline *p, int64_t now)
{
    struct pollfd fd = {.fd = p->cfg.st->ops->bell_fd(p->cfg.st), .events = POLLIN};
    if (now < p->look_at && now >= p->deaf_until && fd.fd >= 0 && poll(&fd, 1, 0) == 1) p->look_at = 0;
}

static bool store_turn(struct pipeline *p)
{
    int64_t now = now_of(p);
    if (now < p->store_retry_at) return false;
    drop_lost(p);
    if (p->n_live > 0 && p->live[0]->open == 0) return turn(p, 0);
    hear_bell(p, now);
    return wants_work(p, now, 0) && turn(p, -1);
}

/* ---- stopping ---- */

void pipeline_drain(struct pipeline *p, int64_t deadline)
{
    if (deadline < p->drain_deadline) p->drain_deadline = deadline;
    set_state(p, PIPELINE_DRAINING);
}

/* drain_turn: what was not started goes back, the newest batch first, so that its range can simply be handed out again;
 * then what is in flight ends, and is settled. */
static bool drain_turn(struct pipeline *p)
{
    int64_t now = now_of(p);
    if (now >= p->drain_deadline && p->flying > 0) p->sk->ops->cancel(p->sk);
    for (size_t i = p->n_live; i-- > 0;) live_give_up(p->live[i], &p->ready);
    ready_init(&p->ready);
    p->requeue = false;
    drop_lost(p);
    if (p->n_live == 0) {
        set_state(p, p->error.code ? PIPELINE_FAILED : PIPELINE_STOPPED);
        return false;
    }
    if (now < p->store_retry_at && now < p->drain_deadline) return false;
    size_t last = p->n_live - 1;
    const struct live *newest = p->live[last];
    bool whole = newest->release_from == newest->b.from + 1;
    size_t i = whole ? last : 0;
    if (p->live[i]->open > 0) return false;
    if (turn(p, (int)i)) return true;
    if (now >= p->drain_deadline) drop(p, i); /* the store is away, too: the lease will run out */
    return now >= p->drain_deadline;
}

/* ---- the loop's side ---- */

bool pipeline_step(struct pipeline *p)
{
    if (p->state >= PIPELINE_STOPPED) return false;
    if (p->flying > 0) p->sk->ops->drive(p->sk);
    if (p->requeue) make_queue(p);
    keep_leases(p);
    if (p->state == PIPELINE_DRAINING) return drain_turn(p);
    bool submitted = submit(p);
    if (submitted && p->flying > 0) p->sk->ops->drive(p->sk);
    if (p->state == PIPELINE_DRAINING) return true; /* the sink gave up meanwhile */
    bool turned = store_turn(p);
    return submitted || turned || p->state == PIPELINE_DRAINING;
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* wait_for_work: the bell and the next look, if this is a time for new work at all. */
static size_t wait_for_work(struct pipeline *p, int64_t now, struct pollfd *fds, size_t max, int64_t *at)
{
    if (!may_claim(p, now, 0)) return 0;
    *at = sooner(*at, p->look_at);
    if (now < p->deaf_until) {
        *at = sooner(*at, p->deaf_until);
        return 0;
    }
    int bell = p->cfg.st->ops->bell_fd(p->cfg.st);
    if (bell < 0 || max == 0) return 0;
    fds[0] = (struct pollfd){.fd = bell, .events = POLLIN};
    return 1;
}

size_t pipeline_wait(struct pipeline *p, struct pollfd *fds, size_t max, int64_t *ret_deadline)
{
    size_t n = 0;
    int64_t now = now_of(p), at = CLOCK_NEVER;
    *ret_deadline = CLOCK_NEVER;
    if (p->state >= PIPELINE_STOPPED) return 0;
    if (p->flying > 0) {
        n += p->sk->ops->fds(p->sk, fds, max);
        at = sooner(at, p->sk->ops->deadline(p->sk));
    }
    for (size_t i = 0; i < p->n_live; i++) {
        if (p->live[i]->lost) continue;
        at = sooner(at, half_lease(p, p->live[i]));
    }
    if (p->circuit.until > now) at = sooner(at, p->circuit.until);
    if (p->state == PIPELINE_DRAINING) at = sooner(at, p->drain_deadline);
    else n += wait_for_work(p, now, fds + n, max - n, &at);
    /* While the store is away there is no use in waking up for it earlier. */
    if (p->store_retry_at > now && (at <= now || p->store_retry_at < at)) at = p->store_retry_at;
    *ret_deadline = at;
    return n;
}

bool pipeline_busy(const struct pipeline *p)
{
    return p->n_live > 0;
}

void pipeline_ring(struct pipeline *p)
{
    p->look_at = 0;
    p->deaf_until = 0;
    p->stats.through = false;
}

enum pipeline_state pipeline_state(const struct pipeline *p)
{
    return p->state;
}

const struct error *pipeline_error(const struct pipeline *p)
{
    return &p->error;
}

const struct pipeline_stats *pipeline_stats(const struct pipeline *p)
{
    return &p->stats;
}

const char *pipeline_failure(const struct pipeline *p)
{
    return p->failure;
}
