/* pipeline.c: the front door: claim -> deliver -> settle, for one consumer. See docs/architecture.md. */
#include "engine/pipeline.h"

#include <stdlib.h>

#include "engine/pipeline_impl.h"

int pipeline_new(const struct pipeline_config *cfg, struct pipeline **ret, struct error *err)
{
    struct pipeline *p = calloc(1, sizeof *p);
    if (!p) return err_nomem(err);
    p->cfg = *cfg;
    p->c = cfg->consumer;
    if (!p->cfg.sweep_ms) p->cfg.sweep_ms = 30000;
    if (p->c->poll_ms) p->cfg.sweep_ms = p->c->poll_ms;
    if (!p->cfg.poll_ms) p->cfg.poll_ms = 500;
    batch_size_init(&p->batch_size, (size_t)p->c->concurrency, (size_t)p->c->batch);
    careful_init(&p->careful, cfg->careful);
    schedule_init(&p->schedule);
    circuit_init(&p->circuit);
    evidence_init(&p->evidence);
    effects_init(&p->effects, cfg->work, cfg->handlers, cfg->n_handlers);
    if (hand_init(&p->hand, p->c) != 0) {
        err_nomem(err);
        goto fail;
    }
    if (filter_new(p->c->events, p->c->where, &p->filter, err) != 0) goto fail;
    *ret = p;
    return 0;
fail:
    pipeline_free(p);
    return -1;
}

struct handler_guard pipeline_guard(struct pipeline *p)
{
    return effects_guard(p);
}

void pipeline_attach(struct pipeline *p, struct sink *sk)
{
    p->sk = sk;
    const char *caution = sk->ops->caution ? sk->ops->caution(sk) : NULL;
    if (caution) log_at(p->cfg.log, LOG_WARN_, p->c->name, "%s", caution);
}

void pipeline_free(struct pipeline *p)
{
    if (!p) return;
    careful_leave(&p->careful);
    hand_release(&p->hand);
    filter_free(p->filter);
    free(p);
}

/* set_state is the one place where the state changes. */
static void set_state(struct pipeline *p, enum pipeline_state s)
{
    if (p->state < s) p->state = s;
}

void pipeline_fail(struct pipeline *p, const struct error *err, int64_t deadline)
{
    if (p->error.code) return;
    p->error = *err;
    if (!p->error.code) p->error.code = ERR_INTERNAL;
    log_at(p->cfg.log, LOG_ERROR_, p->c->name, "stopping: %s", err->text);
    pipeline_drain(p, deadline);
}

void pipeline_done(void *pipeline, struct delivery *d, const struct sink_result *r)
{
    deliver_done(pipeline, (struct item *)d, r);
}

void pipeline_drain(struct pipeline *p, int64_t deadline)
{
    schedule_drain(&p->schedule, deadline);
    set_state(p, PIPELINE_DRAINING);
}

/* drain_turn: what was not started goes back, the newest batch first (see hand_next); then what is in flight ends, and is
 * settled. */
static bool drain_turn(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    if (schedule_drain_over(&p->schedule, now) && hand_flying(&p->hand) > 0) p->sk->ops->cancel(p->sk);
    hand_give_back(&p->hand);
    turn_drop_lost(p);
    if (p->hand.n == 0) {
        set_state(p, p->error.code ? PIPELINE_FAILED : PIPELINE_STOPPED);
        return false;
    }
    if (schedule_store_away(&p->schedule, now) && !schedule_drain_over(&p->schedule, now)) return false;
    size_t i = hand_next(&p->hand);
    if (p->hand.live[i]->open > 0) return false;
    if (turn_settle(p, (int)i)) return true;
    if (!schedule_drain_over(&p->schedule, pipeline_now(p))) return false;
    if (hand_flying(&p->hand) > 0)
        return true; /* it has only just passed, or was brought forward: the next step cancels */
    /* The store is away, too: the leases will run out. All of them, or a later batch would overtake an earlier one. */
    while (p->hand.n > 0) turn_drop(p, p->hand.n - 1);
    return true;
}

/* keeps_lease: the sink is driven when idle, too, to keep its lease or to ask for it. Not while we stand by: then it runs out,
 * and those who have the settings that count get it. */
static bool keeps_lease(const struct pipeline *p)
{
    return pipeline_leased(p) && !p->standby.code;
}

bool pipeline_step(struct pipeline *p)
{
    if (p->state >= PIPELINE_STOPPED) return false;
    deliver_report(p);
    if (!effects_resolve(p)) return false;
    if (hand_flying(&p->hand) > 0 || keeps_lease(p)) p->sk->ops->drive(p->sk);
    if (!pipeline_our_turn(p)) hand_give_back(&p->hand); /* to whoever has the say */
    hand_tidy(&p->hand);
    turn_keep_leases(p);
    if (p->state == PIPELINE_DRAINING) return drain_turn(p);
    if (p->standby.code && p->hand.n == 0) return standby_try(p);
    bool submitted = deliver_submit(p);
    if (submitted && hand_flying(&p->hand) > 0) p->sk->ops->drive(p->sk);
    deliver_report(p);
    if (p->state == PIPELINE_DRAINING) return true; /* the sink gave up meanwhile */
    bool turned = turn_store(p);
    return submitted || turned || p->state == PIPELINE_DRAINING;
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* wait_for_work: the bell and the next look, if this is a time for new work at all. */
static size_t wait_for_work(struct pipeline *p, int64_t now, struct pollfd *fds, size_t max, int64_t *at)
{
    if (!turn_may_claim(p, now, 0) || schedule_store_away(&p->schedule, now)) return 0;
    *at = sooner(*at, schedule_look_wake(&p->schedule, now));
    if (!schedule_listens(&p->schedule, now)) return 0;
    int bell = p->cfg.st->ops->bell_fd(p->cfg.st);
    if (bell < 0 || max == 0) return 0;
    fds[0] = (struct pollfd){.fd = bell, .events = POLLIN};
    return 1;
}

size_t pipeline_wait(struct pipeline *p, struct pollfd *fds, size_t max, int64_t *ret_deadline)
{
    size_t n = 0;
    int64_t now = pipeline_now(p), at = CLOCK_NEVER;
    *ret_deadline = CLOCK_NEVER;
    if (p->state >= PIPELINE_STOPPED) return 0;
    if (hand_flying(&p->hand) > 0 || keeps_lease(p)) {
        n += p->sk->ops->fds(p->sk, fds, max);
        at = sooner(at, p->sk->ops->deadline(p->sk));
    }
    for (size_t i = 0; i < p->hand.n; i++) {
        if (p->hand.live[i]->lost) continue;
        at = sooner(at, pipeline_half_lease(p, p->hand.live[i]));
    }
    if (p->circuit.until > now) at = sooner(at, p->circuit.until);
    if (p->standby.code && p->hand.n == 0) at = sooner(at, p->standby_at);
    if (p->state == PIPELINE_DRAINING) at = sooner(at, p->schedule.drain_by);
    else n += wait_for_work(p, now, fds + n, max - n, &at);
    *ret_deadline = schedule_wake(&p->schedule, now, at);
    return n;
}

bool pipeline_busy(const struct pipeline *p)
{
    return p->hand.n > 0;
}

void pipeline_ring(struct pipeline *p)
{
    schedule_ring(&p->schedule);
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

struct pipeline_held pipeline_held(const struct pipeline *p)
{
    struct pipeline_held h = {0};
    for (size_t i = 0; i < p->hand.n; i++) h.n += p->hand.live[i]->open;
    if (h.n == 0) return h;
    h.oldest_at = p->hand.live[0]->b.ev[0].created_at;
    h.type = p->hand.live[0]->b.ev[0].type;
    return h;
}

const struct sink_lease *pipeline_sink_lease(const struct pipeline *p)
{
    return pipeline_leased(p);
}

const struct error *pipeline_store_error(const struct pipeline *p)
{
    return &p->store_error;
}

const struct error *pipeline_standby(const struct pipeline *p)
{
    return &p->standby;
}

const char *pipeline_failure(const struct pipeline *p)
{
    return p->failure;
}
