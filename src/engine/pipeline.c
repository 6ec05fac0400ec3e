/* pipeline.c: the front door: claim -> deliver -> settle, for one consumer. See
 * docs/architecture.md. */
#include "engine/pipeline.h"

#include <stdlib.h>

#include "base/num.h"
#include "engine/pipeline_impl.h"

#define SWEEP_MS 30000 /* unless the host or the consumer says otherwise */
#define POLL_MS 500

/* set_intervals fills in how often to look where the host has left that open. The consumer's own
 * interval wins. */
static void set_intervals(struct pipeline *p)
{
    if (!p->cfg.sweep_ms)
        p->cfg.sweep_ms = SWEEP_MS;
    if (p->c->poll_ms)
        p->cfg.sweep_ms = p->c->poll_ms;
    if (!p->cfg.poll_ms)
        p->cfg.poll_ms = POLL_MS;
}

int pipeline_new(const struct pipeline_config *cfg, struct pipeline **ret, struct error *err)
{
    struct pipeline *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(err);
    p->cfg = *cfg;
    p->c = cfg->consumer;
    set_intervals(p);
    batch_size_init(&p->batch_size, (size_t)p->c->concurrency, (size_t)p->c->batch);
    bool takes_all_lanes = cfg->sole && p->c->lanes > 1;
    if (takes_all_lanes)
        batch_size_start_small(&p->batch_size);
    p->memory = (struct budget_part){.b = cfg->budget};
    p->suspect.all = cfg->suspects;
    schedule_init(&p->schedule);
    circuit_init(&p->circuit);
    evidence_init(&p->evidence);
    effects_init(&p->effects, cfg);

    if (hand_init(&p->hand, p->c) != 0) {
        err_nomem(err);
        goto fail;
    }
    if (filter_new(p->c->events, p->c->where, &p->filter, err) != 0)
        goto fail;
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

/* say_caution logs what the sink warns of, once for each text. */
static void say_caution(struct pipeline *p)
{
    const char *caution = NULL;
    if (p->sk->ops->caution)
        caution = p->sk->ops->caution(p->sk);
    bool news = caution && caution != p->caution;
    if (news)
        log_at(p->cfg.log, LOG_WARN_, p->c->name, "%s", caution);
    p->caution = caution;
}

void pipeline_attach(struct pipeline *p, struct sink *sk)
{
    p->sk = sk;
    say_caution(p);
}

int pipeline_register(struct pipeline *p, struct error *err)
{
    return standby_register(p, err);
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    suspect_end(&p->suspect);
    effects_leave(&p->effects);
    hand_release(&p->hand);
    budget_hold(&p->memory, 0);
    filter_free(p->filter);
    free(p);
}

/* set_state is the one place where the state changes. It never goes back. */
static void set_state(struct pipeline *p, enum pipeline_state s)
{
    if (p->state < s)
        p->state = s;
}

void pipeline_fail(struct pipeline *p, const struct error *err, int64_t deadline)
{
    if (p->error.code)
        return;
    p->error = *err;
    if (!p->error.code)
        p->error.code = ERR_INTERNAL;
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

/* keeps_lease says whether the sink must be driven even when idle, to keep its lease or to ask for
 * it. Not while we stand by: the lease then expires, and a worker with the current settings gets
 * it. */
static bool keeps_lease(const struct pipeline *p)
{
    return pipeline_leased(p) && !p->standby.code;
}

/* is_attended says whether the sink has something to look after besides deliveries. */
static bool is_attended(const struct pipeline *p)
{
    if (!p->sk->ops->attended || p->standby.code)
        return false;
    return p->sk->ops->attended(p->sk);
}

/* awaits_sink says whether the sink has anything to do for us. */
static bool awaits_sink(const struct pipeline *p)
{
    return hand_flying(&p->hand) > 0 || keeps_lease(p) || is_attended(p);
}

/* stands_by says whether newer settings are in force and everything claimed under ours is settled.
 * */
static bool stands_by(const struct pipeline *p)
{
    return p->standby.code && p->hand.n == 0;
}

/* hear_sink lets the sink make progress. Events it hands back are queued again. If it is not our
 * turn to deliver, events that were not started go back to the store, for whoever's turn it is. */
static void hear_sink(struct pipeline *p)
{
    if (awaits_sink(p))
        p->sk->ops->drive(p->sk);
    say_caution(p);
    if (!pipeline_our_turn(p))
        hand_give_back(&p->hand);
    hand_tidy(&p->hand);
}

/* forget_all drops all batches if the time for draining is up, because the store cannot settle
 * them; their leases will expire. They go together, or a later one could overtake an earlier one.
 * Deliveries in flight must be cancelled first, which the next step does. Returns whether there is
 * a next step to do. */
static bool forget_all(struct pipeline *p)
{
    if (!schedule_drain_over(&p->schedule, pipeline_now(p)))
        return false;
    if (hand_flying(&p->hand) > 0)
        return true;
    while (p->hand.n > 0)
        exchange_drop(p, p->hand.n - 1);
    return true;
}

/* stop ends a drain. */
static void stop(struct pipeline *p)
{
    if (p->error.code)
        set_state(p, PIPELINE_FAILED);
    else
        set_state(p, PIPELINE_STOPPED);
}

/* drain gives back what was not started, newest batch first (see hand_next), waits for deliveries
 * in flight and settles them. Past the deadline it cancels them, and asks the store even if that
 * was to be left alone. */
static bool drain(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    bool over = schedule_drain_over(&p->schedule, now);
    if (over && hand_flying(&p->hand) > 0)
        p->sk->ops->cancel(p->sk);
    hand_give_back(&p->hand);
    exchange_drop_lost(p);
    if (p->hand.n == 0) {
        stop(p);
        return false;
    }

    bool must_wait = !over && schedule_store_away(&p->schedule, now);
    if (must_wait)
        return false;
    size_t next = hand_next(&p->hand);
    if (p->hand.live[next]->open > 0)
        return false;
    if (exchange_settle(p, next))
        return true;
    return forget_all(p);
}

/* work hands events to the sink, settles what has ended and claims more. Sink and store can both
 * make the pipeline fail; then another step is due at once, which drains. */
static bool work(struct pipeline *p)
{
    bool submitted = deliver_submit(p);
    if (submitted && hand_flying(&p->hand) > 0)
        p->sk->ops->drive(p->sk);
    outage_report(p);
    if (p->state == PIPELINE_DRAINING)
        return true;

    bool turned = exchange_step(p);
    if (p->state == PIPELINE_DRAINING)
        return true;
    return submitted || turned;
}

/* step is pipeline_step without what comes before and after. */
static bool step(struct pipeline *p)
{
    outage_report(p);
    if (!effects_resolve(p))
        return false;
    hear_sink(p);
    lease_keep(p);

    if (p->state == PIPELINE_DRAINING)
        return drain(p);
    if (stands_by(p))
        return standby_try(p);
    return work(p);
}

bool pipeline_step(struct pipeline *p)
{
    if (p->state >= PIPELINE_STOPPED)
        return false;
    p->stepped_at = pipeline_now(p);
    bool again = step(p);
    effects_rest(&p->effects);
    return again;
}

/* lease_wake returns when the first of the claims in hand has to be extended. */
static int64_t lease_wake(const struct pipeline *p)
{
    int64_t at = CLOCK_NEVER;
    for (size_t i = 0; i < p->hand.n; i++) {
        const struct live *l = p->hand.live[i];
        if (!l->lost)
            at = min_i64(at, pipeline_half_lease(p, l));
    }
    return at;
}

/* wait_for_work adds the bell to what is polled for, and brings *at forward to the next look, if
 * there is room for more work at all. */
static size_t wait_for_work(struct pipeline *p, int64_t now, struct pollfd *fds, size_t max,
                            int64_t *at)
{
    int64_t company_by = exchange_company_by(p, now);
    size_t settling = 0;
    if (company_by > 0) {
        *at = min_i64(*at, company_by);
        settling = 1;
    }
    if (!room_for_batch(p, now, settling))
        return 0;
    if (schedule_store_away(&p->schedule, now))
        return 0;
    *at = min_i64(*at, schedule_look_wake(&p->schedule, now));
    if (!schedule_listens(&p->schedule, now))
        return 0;

    int bell = p->cfg.st->ops->wake_fd(p->cfg.st);
    bool has_bell = bell >= 0;
    if (!has_bell || max == 0)
        return 0;
    fds[0] = (struct pollfd){.fd = bell, .events = POLLIN};
    return 1;
}

/* pipeline_wait judges by the time of the last step, not by the time it is now. What came due
 * between the two was not done by the step, and nobody would be woken for it: seen from the step,
 * it is still to come, and its time, which is past, ends the wait at once. */
size_t pipeline_wait(struct pipeline *p, struct pollfd *fds, size_t max, int64_t *ret_deadline)
{
    *ret_deadline = CLOCK_NEVER;
    if (p->state >= PIPELINE_STOPPED)
        return 0;

    int64_t now = p->stepped_at;
    int64_t at = lease_wake(p);
    size_t n = 0;

    if (awaits_sink(p)) {
        n += p->sk->ops->fds(p->sk, fds, max);
        at = min_i64(at, p->sk->ops->deadline(p->sk));
    }
    if (p->circuit.until > now) {
        at = min_i64(at, p->circuit.until);
    }
    if (stands_by(p)) {
        at = min_i64(at, p->standby_at);
    }
    if (p->state == PIPELINE_DRAINING) {
        at = min_i64(at, p->schedule.drain_by);
    } else {
        n += wait_for_work(p, now, fds + n, max - n, &at);
    }

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

size_t pipeline_held(const struct pipeline *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->hand.n; i++)
        n += p->hand.live[i]->open;
    return n;
}

const struct sink_lease *pipeline_sink_lease(const struct pipeline *p)
{
    return pipeline_leased(p);
}

struct sink_broker pipeline_broker(const struct pipeline *p)
{
    return sink_broker_of(p->sk);
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
