/* pipeline.c: the front door: claim -> deliver -> settle, for one consumer. See
 * docs/architecture.md. */
#include "engine/pipeline.h"

#include <stdlib.h>

#include "engine/pipeline_impl.h"

#define SWEEP_MS 30000 /* unless the host or the consumer sets another value */
#define POLL_MS 500
#define STANDBY_MIN (1000 * MS_NS) /* between tries to register again */
#define STANDBY_MAX (15000 * MS_NS)
#define LEASE_OVER_MS 1

/* ---- creating and ending a pipeline ---- */

int pipeline_new(const struct pipeline_config *cfg, struct pipeline **ret, struct error *err)
{
    struct pipeline *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(err);
    p->cfg = *cfg;
    p->c = cfg->consumer;
    if (!p->cfg.sweep_ms)
        p->cfg.sweep_ms = SWEEP_MS;
    if (p->c->poll_ms)
        p->cfg.sweep_ms = p->c->poll_ms;
    if (!p->cfg.poll_ms)
        p->cfg.poll_ms = POLL_MS;

    bool all_lanes = cfg->sole && p->c->lanes > 1;
    claim_quota_init(&p->quota, (size_t)p->c->concurrency, (size_t)p->c->batch, all_lanes,
                     cfg->budget);
    p->suspect.all = cfg->suspects;
    schedule_init(&p->schedule);
    circuit_init(&p->circuit);
    effects_init(&p->effects, cfg);

    if (inflight_init(&p->inflight, p->c) != 0) {
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
    return (struct handler_guard){p, calls_enter, calls_leave};
}

/* Logs a warning of the sink, unless it repeats the last one. */
static void log_caution(struct pipeline *p)
{
    const char *caution = NULL;
    if (p->sk->ops->caution)
        caution = p->sk->ops->caution(p->sk);
    bool news = caution && caution != p->caution;
    if (news)
        pipeline_log(p, LOG_WARN_, "%s", caution);
    p->caution = caution;
}

void pipeline_attach(struct pipeline *p, struct sink *sk)
{
    p->sk = sk;
    log_caution(p);
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    suspect_end(&p->suspect);
    effects_close(&p->effects);
    inflight_release(&p->inflight);
    claim_quota_hold(&p->quota, 0);
    filter_free(p->filter);
    free(p);
}

/* The only function that changes the state. The state never returns to an earlier one. */
static void set_state(struct pipeline *p, enum pipeline_state s)
{
    if (p->stats.state < s)
        p->stats.state = s;
}

void pipeline_fail(struct pipeline *p, const struct error *err, int64_t deadline)
{
    if (p->stats.error.code)
        return;
    p->stats.error = *err;
    if (!p->stats.error.code)
        p->stats.error.code = ERR_INTERNAL;
    pipeline_log(p, LOG_ERROR_, "stopping: %s", err->text);
    pipeline_drain(p, deadline);
}

void pipeline_done(void *pipeline, struct delivery *d, const struct sink_result *r)
{
    deliver_done(pipeline, (struct slot *)d, r);
}

void pipeline_drain(struct pipeline *p, int64_t deadline)
{
    schedule_drain(&p->schedule, deadline);
    set_state(p, PIPELINE_DRAINING);
}

/* ---- registering, and standing by ----
 *
 * In a rolling deploy, workers with old and new settings run side by side. The store refuses
 * settings that were replaced, so the old workers stand by: they settle their claims, claim nothing
 * more, and retry periodically, in case an operator restores their settings. */

static int register_consumer(struct pipeline *p, enum put how, struct error *err)
{
    char retry_text[RETRY_TEXT];
    struct consumer_spec spec = consumer_spec_of(p->c, retry_text);
    spec.how = how;
    spec.by = p->cfg.owner;
    return p->cfg.st->ops->consumer_put(p->cfg.st, &spec, NULL, err);
}

/* Notes why we stand by, logs it if the reason is new, and sets the time of the next try. */
static void stay_on_standby(struct pipeline *p, const struct error *why)
{
    struct standby *s = &p->standby;
    bool news = strcmp(p->stats.standby_why.text, why->text) != 0;
    p->stats.standby_why = *why;
    s->delay = max_i64(STANDBY_MIN, min_i64(2 * s->delay, STANDBY_MAX));
    s->at = pipeline_now(p) + s->delay;
    if (news)
        pipeline_log(p, LOG_WARN_, "standing by: %s", why->text);
}

/* Ends the leases of workers whose process is known to have ended, oldest claim first. A relay that
 * was killed is usually restarted at once. If anything fails here, leases simply expire. */
static void end_leases(struct pipeline *p)
{
    struct store *st = p->cfg.st;
    struct claim_info *claims;
    struct arena a;
    struct error err;
    size_t n = 0, ended = 0;
    bool lost;
    if (!p->cfg.gone)
        return;

    arena_init(&a, 0);
    if (st->ops->claims(st, p->c->name, &a, &claims, &n, &err) != 0)
        n = 0;
    for (size_t i = 0; i < n; i++) {
        struct claim_lease l = {.consumer = p->c->name,
                                .owner = claims[i].owner,
                                .epoch = claims[i].epoch,
                                .lease_ms = LEASE_OVER_MS};
        if (p->cfg.gone(l.owner) && st->ops->extend(st, &l, &lost, &err) == 0)
            ended++;
    }
    arena_release(&a);
    if (ended > 0)
        pipeline_log(p, LOG_INFO_,
                     "a worker on this machine ended and left %zu claim%s; taking over", ended,
                     ended == 1 ? "" : "s");
}

int pipeline_register(struct pipeline *p, struct error *err)
{
    struct error why;
    if (register_consumer(p, PUT_START, &why) == 0) {
        end_leases(p);
        return 0;
    }

    bool replaced = why.code == ERR_CONFLICT;
    if (replaced && p->cfg.stand_by) {
        stay_on_standby(p, &why);
        return 0;
    }
    return err_copy(err, &why);
}

void pipeline_stand_by(struct pipeline *p)
{
    p->stats.standby_why = (struct error){.code = ERR_CONFLICT, .text = ""};
    p->standby.at = 0; /* the next step tries at once; the store's error gives the reason */
}

/* Registers our settings again if a try is due. Returns whether the pipeline may continue. */
static bool try_again(struct pipeline *p)
{
    struct error err;
    int64_t now = pipeline_now(p);
    if (now < p->standby.at || schedule_store_away(&p->schedule, now))
        return false;
    if (register_consumer(p, PUT_AGAIN, &err) == 0) {
        pipeline_log(p, LOG_INFO_, "the settings of this relay are in force again; resuming");
        p->standby = (struct standby){0};
        p->stats.standby_why = (struct error){0};
        schedule_look_now(&p->schedule);
        return true;
    }
    if (err.code == ERR_CONFLICT)
        stay_on_standby(p, &err);
    else
        exchange_store_failed(p, &err);
    return false;
}

/* ---- a step ---- */

/* Whether the sink needs to be driven. A sink with a lease must renew or acquire it even when idle,
 * but not while we stand by: then a worker with the current settings acquires it. */
static bool awaits_sink(const struct pipeline *p)
{
    if (inflight_deliveries(&p->inflight) > 0)
        return true;
    if (p->stats.standby_why.code)
        return false;
    if (pipeline_sink_lease(p))
        return true;
    return p->sk->ops->attended && p->sk->ops->attended(p->sk);
}

/* Whether newer settings are in force and everything claimed under ours is settled. */
static bool stands_by(const struct pipeline *p)
{
    return p->stats.standby_why.code && p->inflight.n == 0;
}

/* Gives back unstarted events, newest batch first (see inflight_next_settled), waits for deliveries
 * in flight and settles them. Past the deadline it cancels them, and calls the store even during
 * its backoff. If the store cannot settle the batches, all of them are dropped together, and their
 * leases will expire: otherwise a later one could overtake an earlier one. */
static bool drain(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    bool over = schedule_drain_over(&p->schedule, now);
    if (over && inflight_deliveries(&p->inflight) > 0)
        p->sk->ops->cancel(p->sk);
    inflight_give_back(&p->inflight);
    exchange_drop_lost(p);
    if (p->inflight.n == 0) {
        set_state(p, p->stats.error.code ? PIPELINE_FAILED : PIPELINE_STOPPED);
        return false;
    }

    bool must_wait = !over && schedule_store_away(&p->schedule, now);
    if (must_wait)
        return false;
    size_t next = inflight_next_settled(&p->inflight);
    if (p->inflight.batch[next]->open > 0)
        return false;
    if (exchange_settle(p, next))
        return true;

    if (!schedule_drain_over(&p->schedule, pipeline_now(p)))
        return false;
    if (inflight_deliveries(&p->inflight) > 0)
        return true; /* the next step cancels them */
    while (p->inflight.n > 0)
        exchange_drop(p, p->inflight.n - 1);
    return true;
}

/* Submits events to the sink, settles finished batches and claims more. Both sink and store can
 * make the pipeline fail; then another step, which drains, is due at once. */
static bool deliver_and_claim(struct pipeline *p)
{
    bool submitted = deliver_submit(p);
    if (submitted && inflight_deliveries(&p->inflight) > 0)
        p->sk->ops->drive(p->sk);
    circuit_report_write(p);
    if (p->stats.state == PIPELINE_DRAINING)
        return true;

    bool turned = exchange_step(p);
    if (p->stats.state == PIPELINE_DRAINING)
        return true;
    return submitted || turned;
}

static bool step(struct pipeline *p)
{
    circuit_report_write(p);
    if (!effects_resolve(p))
        return false;

    /* Let the sink make progress; events it returns are queued again. If it is not our turn to
     * deliver, unstarted events go back to the store, for the relay whose turn it is. */
    if (awaits_sink(p))
        p->sk->ops->drive(p->sk);
    log_caution(p);
    if (!pipeline_our_turn(p))
        inflight_give_back(&p->inflight);
    inflight_tidy(&p->inflight);

    exchange_renew(p);

    if (p->stats.state == PIPELINE_DRAINING)
        return drain(p);
    if (stands_by(p))
        return try_again(p);
    return deliver_and_claim(p);
}

bool pipeline_step(struct pipeline *p)
{
    if (p->stats.state >= PIPELINE_STOPPED)
        return false;
    p->stepped_at = pipeline_now(p);
    bool again = step(p);
    effects_release(&p->effects);
    return again;
}

/* ---- when to wake up ---- */

/* Adds the wake-up descriptor to the poll set, and brings *at forward to the next look, if there is
 * room for more work. */
static size_t add_store_wakeup(struct pipeline *p, int64_t now, struct pollfd *fds, size_t max,
                               int64_t *at)
{
    int64_t settle_at = exchange_settle_delay_until(p, now);
    size_t settling = 0;
    if (settle_at > 0) {
        *at = min_i64(*at, settle_at);
        settling = 1;
    }
    if (!claim_quota_allows(p, now, settling))
        return 0;
    if (schedule_store_away(&p->schedule, now))
        return 0;
    *at = min_i64(*at, schedule_look_wake(&p->schedule, now));
    if (!schedule_listens(&p->schedule, now))
        return 0;

    int wake_fd = p->cfg.st->ops->wake_fd(p->cfg.st);
    if (wake_fd < 0 || max == 0)
        return 0;
    fds[0] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    return 1;
}

/* Computed as of the last step, not as of now. Work that became due in between was not done by the
 * step, and nothing would wake the worker for it: as of the step, it is still due in the future,
 * and its time, already past, ends the wait at once. */
size_t pipeline_wait(struct pipeline *p, struct pollfd *fds, size_t max, int64_t *ret_deadline)
{
    *ret_deadline = CLOCK_NEVER;
    if (p->stats.state >= PIPELINE_STOPPED)
        return 0;

    int64_t now = p->stepped_at;
    int64_t at = exchange_renewal_at(p);
    size_t n = 0;

    if (awaits_sink(p)) {
        n += p->sk->ops->fds(p->sk, fds, max);
        at = min_i64(at, p->sk->ops->deadline(p->sk));
    }
    if (p->circuit.until > now) {
        at = min_i64(at, p->circuit.until);
    }
    if (stands_by(p)) {
        at = min_i64(at, p->standby.at);
    }
    if (p->stats.state == PIPELINE_DRAINING) {
        at = min_i64(at, p->schedule.drain_by);
    } else {
        n += add_store_wakeup(p, now, fds + n, max - n, &at);
    }

    *ret_deadline = schedule_wake_at(&p->schedule, now, at);
    return n;
}

void pipeline_wake(struct pipeline *p)
{
    schedule_woken(&p->schedule);
    p->stats.through = false;
}

/* ---- reports about the pipeline ---- */

bool pipeline_busy(const struct pipeline *p)
{
    return p->inflight.n > 0;
}

const struct pipeline_stats *pipeline_stats(const struct pipeline *p)
{
    return &p->stats;
}

size_t pipeline_held(const struct pipeline *p)
{
    return inflight_open(&p->inflight);
}

const struct sink_lease *pipeline_sink_lease(const struct pipeline *p)
{
    if (!p->sk->ops->lease)
        return NULL;
    return p->sk->ops->lease(p->sk);
}
