/* turn.c: what a pipeline does with its store: settles what has ended and claims what comes next,
 * both in one exchange. */
#include <stdio.h>

#include "engine/pipeline_impl.h"

#define BATCH_BYTES (2 * 1024 * 1024) /* of events in a batch; what bounds memory */
#define PROBE_EVENTS 16               /* to claim while the sink is down */
/* when another pipeline of this process is at a careful event */
#define CAREFUL_AGAIN (20 * MS_NS)
#define NO_MEMORY_WAIT (1000 * MS_NS)

/* One exchange with the store: what is settled and what is asked for, in one transaction, and the
 * answer. Everything the store needs to know is in here, and everything it says. */
struct exchange {
    int64_t at; /* when it was made */

    struct live *settled; /* NULL: nothing is settled */
    size_t place;         /* of it in the hand */
    struct settlement settlement;

    struct live *next; /* where the next batch goes; NULL: none is asked for */
    struct claim_request request;
    int64_t known[HAND_MAX]; /* what request.known points to */

    bool lost; /* the claim that was to be settled is not ours any more */
    struct batch batch;
    struct claim_hint hint;
};

/* ---- the store's health ---- */

void turn_store_failed(struct pipeline *p, const struct error *err)
{
    p->store_error = *err;
    p->stats.meter.store_errors++;
    if (!p->stats.stalled_since) {
        p->stats.stalled_since = pipeline_now(p);
    }
    snprintf(p->stats.why, sizeof p->stats.why, "store: %s", err->text);

    if (err->fate == FATE_FATAL) {
        pipeline_fail(p, err, pipeline_now(p));
        return;
    }
    int64_t delay = schedule_store_failed(&p->schedule, pipeline_now(p));
    log_at(p->cfg.log, LOG_WARN_, p->c->name, "store: %s; trying again in %lld ms", err->text,
           (long long)(delay / MS_NS));
}

void turn_store_back(struct pipeline *p)
{
    schedule_store_back(&p->schedule);
    if (!p->store_error.code)
        return;
    p->store_error.code = 0;
    if (!p->stats.down) {
        p->stats.why[0] = '\0';
    }
    log_at(p->cfg.log, LOG_INFO_, p->c->name, "store is back");
}

/* ---- batches that go ---- */

void turn_drop(struct pipeline *p, size_t i)
{
    struct live *l = p->hand.live[i];
    if (l->b.careful) {
        careful_leave(&p->careful);
    }
    effects_drop(p, l);
    hand_drop(&p->hand, i);
}

void turn_drop_lost(struct pipeline *p)
{
    size_t before = p->hand.n;
    for (size_t i = 0; i < p->hand.n;) {
        const struct live *l = p->hand.live[i];
        bool over = l->lost && l->flying == 0;
        if (over) {
            turn_drop(p, i);
        } else {
            i++;
        }
    }
    if (p->hand.n < before)
        hand_remap(&p->hand);
}

/* ---- is this a time for new work? ---- */

/* batches_at_once is how many batches may be in hand. With a sink that keeps order by itself one is
 * enough, and it is what makes that safe. Handlers' effects are one transaction for one batch. */
static size_t batches_at_once(const struct pipeline *p)
{
    if (pipeline_failstop(p))
        return 1;
    if (effects_used(&p->effects))
        return 1;
    return HAND_MAX;
}

/* may_join says whether a batch may be claimed beside those in hand. */
static bool may_join(const struct pipeline *p)
{
    /* What went back is somebody else's once it is settled. Claimed again, the last of a key would
     * know of nothing before it. */
    if (p->hand.gave_back)
        return false;

    /* While a careful event is on its way, or waits to be, nothing else is started: if the process
     * dies, it was that event. */
    const struct live *newest = p->hand.live[p->hand.n - 1];
    return !p->careful.due && !newest->b.careful;
}

bool turn_may_claim(struct pipeline *p, int64_t now, size_t settling)
{
    size_t others = p->hand.n - settling;
    if (p->state != PIPELINE_RUNNING || !pipeline_our_turn(p))
        return false;
    if (p->hand.ready.head)
        return false; /* there is work in hand */
    if (others >= batches_at_once(p))
        return false;
    if (others > 0 && !may_join(p))
        return false;
    return circuit_room(&p->circuit, now, hand_flying(&p->hand)) > 0;
}

static bool wants_work(struct pipeline *p, int64_t now, size_t settling)
{
    return schedule_look_due(&p->schedule, now) && turn_may_claim(p, now, settling);
}

/* ---- what is asked of the store ---- */

/* known_epochs lists the claims in hand, so that the store finds one that we don't know of. */
static size_t known_epochs(const struct pipeline *p, int64_t known[HAND_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < p->hand.n; i++) {
        const struct live *l = p->hand.live[i];
        if (!l->lost)
            known[n++] = l->b.epoch;
    }
    return n;
}

/* begin makes an exchange that settles nothing and asks for nothing yet. */
static void begin(const struct pipeline *p, struct exchange *x)
{
    *x = (struct exchange){.at = pipeline_now(p)};
    x->request = (struct claim_request){
        .consumer = p->c->name,
        .owner = p->cfg.owner,
        .events = p->c->events,
        .where = p->c->where,
        .filter = p->filter,
        .order = p->c->order,
        .lanes = p->c->lanes,
        .lane_hint = p->lane,
        .parked_first = p->parked_turn,
        .known = x->known,
        .n_known = known_epochs(p, x->known),
        .max_bytes = BATCH_BYTES,
        .lease_ms = p->c->lease_ms,
        .max_attempts = p->c->retry.attempts,
    };
}

struct settlement turn_settlement(const struct pipeline *p, const struct live *l)
{
    struct settlement s = {.consumer = p->c->name,
                           .owner = p->cfg.owner,
                           .order = p->c->order,
                           .b = &l->b,
                           .out = l->out,
                           .n = l->n_out,
                           .release_from = l->release_from};
    if (p->sk->ops->marks)
        s.n_marks = p->sk->ops->marks(p->sk, &s.marks);
    return s;
}

/* add_settlement has the exchange settle live[i], all of which has ended. -1: out of memory. */
static int add_settlement(struct pipeline *p, struct exchange *x, size_t i, struct error *err)
{
    struct live *l = p->hand.live[i];
    judge_batch(p, l);
    if (live_outcomes(l) != 0)
        return err_nomem(err);

    x->settled = l;
    x->place = i;
    x->settlement = turn_settlement(p, l);
    if (l->b.careful) {
        careful_leave(&p->careful); /* nothing of it is on its way any more */
        l->b.careful = false;
    }
    schedule_look_now(&p->schedule); /* for what it leaves behind, a retry or the next of a key */
    return 0;
}

/* claim_size is how many events to ask for: a few, while they only serve to probe the sink. */
static size_t claim_size(const struct pipeline *p)
{
    size_t most = p->batch_size.n;
    bool probing = circuit_open(&p->circuit);
    if (probing && most > PROBE_EVENTS)
        return PROBE_EVENTS;
    return most;
}

/* add_claim has the exchange claim the next batch, if this is a time for new work. The bell is
 * emptied before the look, never after it: what rings meanwhile stays in it. */
static void add_claim(struct pipeline *p, struct exchange *x)
{
    size_t settling = x->settled ? 1 : 0;
    if (!wants_work(p, x->at, settling))
        return;
    x->next = hand_spare(&p->hand);
    if (!x->next)
        return;

    p->cfg.st->ops->bell_clear(p->cfg.st);
    x->request.max_events = claim_size(p);
    x->request.careful = careful_mode(&p->careful, p->hand.n - settling);
}

/* ---- what follows from the answer ---- */

void turn_settled(struct pipeline *p, size_t i, bool lost)
{
    struct live *l = p->hand.live[i];
    if (p->sk->ops->marks_kept)
        p->sk->ops->marks_kept(p->sk);
    if (lost)
        lease_lose(p, l, "another worker has taken it over, or its lease ran out");
    batch_size_tune(&p->batch_size, l->b.n, pipeline_now(p) - l->claimed_at);
    turn_drop(p, i);
    schedule_look_now(&p->schedule); /* for what it leaves behind, a retry or the next of a key */
}

/* note_crashes counts and tells what the store took over from workers that vanished. */
static void note_crashes(struct pipeline *p, const struct claim_hint *h)
{
    p->stats.crashed += (int64_t)h->crashed;
    p->stats.buried += (int64_t)h->buried;
    meter_buried(&p->stats.meter, STR(""), BURIAL_CRASHED, (int64_t)h->buried);
    if (h->crashed) {
        log_at(p->cfg.log, LOG_WARN_, p->c->name,
               "took over %zu event%s of a worker that vanished; delivering one at a time",
               h->crashed, h->crashed == 1 ? "" : "s");
    }
    if (h->buried) {
        log_at(p->cfg.log, LOG_ERROR_, p->c->name,
               "dead letters, because the process died on each attempt to deliver: %zu", h->buried);
    }
}

/* superseded: another worker has registered the consumer with other settings, and those count. */
static void superseded(struct pipeline *p)
{
    if (p->cfg.stand_by) {
        standby_enter(p);
        return;
    }
    struct error err;
    err_fate(&err, ERR_CONFLICT, FATE_FATAL, 0,
             "this consumer was given another order, number of lanes or filter meanwhile (outbox "
             "consumers history %s); "
             "start it again with those",
             p->c->name);
    /* what is with the sink may end */
    pipeline_fail(p, &err, pipeline_now(p) + p->c->lease_ms * MS_NS);
}

/* say_who_is_in_the_way tells who keeps us from being woken: once, and again when it is somebody
 * else. */
static void say_who_is_in_the_way(struct pipeline *p, const char *who)
{
    const char *now = who ? who : "";
    bool same = strncmp(p->in_the_way, now, sizeof p->in_the_way - 1) == 0;
    if (same)
        return;
    snprintf(p->in_the_way, sizeof p->in_the_way, "%s", now);
    if (!who) {
        log_at(p->cfg.log, LOG_INFO_, p->c->name, "the doorbell works again");
        return;
    }
    log_at(p->cfg.log, LOG_WARN_, p->c->name,
           "nobody can wake this relay: a lock of the doorbell is held by %s, who has no business "
           "with it; looking every "
           "second until that ends",
           who);
}

static int64_t shorter(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* rest_ms is how long to rest when nothing was found and nobody rings. */
static int64_t rest_ms(const struct pipeline *p, const struct claim_hint *h)
{
    bool has_bell = p->cfg.st->ops->bell_fd(p->cfg.st) >= 0;
    int64_t wait = p->cfg.sweep_ms;
    if (!has_bell) {
        wait = shorter(wait, p->cfg.poll_ms);
    }
    if (h->wait_ms >= 0) {
        wait = shorter(wait, h->wait_ms);
    }
    if (h->nap_ms > 0) {
        wait = shorter(wait, h->nap_ms);
    }
    return wait;
}

/* found_nothing decides when to look again. A careful event that was left behind waits either for
 * our own batches to end, or for another pipeline of this process, which is at one. */
static void found_nothing(struct pipeline *p, const struct exchange *x)
{
    const struct claim_hint *h = &x->hint;
    bool skipped_careful = h->careful && x->request.careful == CAREFUL_SKIP;
    bool careful_waits = h->careful && !skipped_careful;
    bool look_on = h->skipped > 0 || careful_waits;

    say_who_is_in_the_way(p, h->in_the_way);
    careful_note_due(&p->careful, careful_waits);
    if (look_on) {
        schedule_look_now(&p->schedule);
    } else {
        schedule_rest(&p->schedule, x->at, rest_ms(p, h) * MS_NS, h->busy);
    }
    if (skipped_careful) {
        schedule_look_by(&p->schedule, x->at + CAREFUL_AGAIN);
    }

    p->stats.paused = h->paused;
    p->stats.through = h->through && p->hand.n == 0;
    if (p->stats.through) {
        p->stats.stalled_since = 0; /* no work that could get stuck */
    }
}

/* took_batch takes a claimed batch in hand. The next claim tries the next lane, and the other kind
 * of events first. */
static void took_batch(struct pipeline *p, struct live *l)
{
    p->stats.claims++;
    p->stats.through = false;
    p->stats.paused = false;
    if (!p->stats.stalled_since) {
        p->stats.stalled_since = l->claimed_at;
        p->stats.ended_at = l->claimed_at;
    }
    p->wall_ahead_ms = clock_wall(p->cfg.clock) - pipeline_now(p) / MS_NS;
    p->lane = (l->b.lane + 1) % p->c->lanes;
    p->parked_turn = !p->parked_turn;
    careful_note_due(&p->careful, false);
    schedule_look_now(&p->schedule);

    if (hand_take(&p->hand, l, !pipeline_failstop(p)) != 0) {
        careful_leave(&p->careful);
        schedule_rest(&p->schedule, pipeline_now(p), NO_MEMORY_WAIT, false);
    }
}

/* claimed takes the answer to a claim: a batch, or word when to ask again. */
static void claimed(struct pipeline *p, const struct exchange *x)
{
    struct live *l = x->next;
    l->b = x->batch;
    l->claimed_at = x->at;
    l->deadline = x->at + p->c->lease_ms * MS_NS;
    if (!l->b.careful) {
        careful_leave(&p->careful);
    }
    if (l->b.n > 0) {
        took_batch(p, l);
        return;
    }
    arena_reset(&l->a);
    found_nothing(p, x);
}

/* withdraw gives up what was made ready for a claim. */
static void withdraw(struct pipeline *p, struct exchange *x)
{
    if (x->next)
        arena_reset(&x->next->a);
    careful_leave(&p->careful);
}

static void exchange_failed(struct pipeline *p, struct exchange *x, const struct error *err)
{
    if (x->next)
        hand_forgot(&p->hand); /* it may have been done, and the answer got lost */
    withdraw(p, x);
    turn_store_failed(p, err);
}

static void take_answer(struct pipeline *p, struct exchange *x)
{
    turn_store_back(p);
    if (x->settled)
        turn_settled(p, x->place, x->lost);
    note_crashes(p, &x->hint);

    bool others_rule = x->hint.changed && p->state == PIPELINE_RUNNING;
    if (others_rule) {
        withdraw(p, x);
        superseded(p);
    } else if (x->next) {
        claimed(p, x);
    }
    if (p->hand.n == 0 && !p->stats.down) {
        p->stats.stalled_since = 0;
    }
}

/* exchange is the one place where a pipeline settles and claims. Returns whether anything
 * happened. */
static bool exchange(struct pipeline *p, struct exchange *x)
{
    const struct settlement *s = x->settled ? &x->settlement : NULL;
    struct arena *a = x->next ? &x->next->a : NULL;
    struct error err = {0};
    if (p->cfg.st->ops->turn(p->cfg.st, s, &x->lost, &x->request, a, &x->batch, &x->hint, &err) !=
        0) {
        exchange_failed(p, x, &err);
        return false;
    }
    take_answer(p, x);
    return x->settled || x->batch.n > 0 || x->hint.skipped > 0;
}

/* ---- turns ---- */

bool turn_settle(struct pipeline *p, size_t i)
{
    struct exchange x;
    struct error err;
    begin(p, &x);
    if (add_settlement(p, &x, i, &err) != 0) {
        exchange_failed(p, &x, &err);
        return false;
    }
    add_claim(p, &x);
    return exchange(p, &x);
}

/* claim asks for a batch, with nothing to settle. */
static bool claim(struct pipeline *p)
{
    struct exchange x;
    begin(p, &x);
    add_claim(p, &x);
    return exchange(p, &x);
}

/* hear_bell looks at once if the bell has rung. */
static void hear_bell(struct pipeline *p, int64_t now)
{
    struct pollfd bell = {.fd = p->cfg.st->ops->bell_fd(p->cfg.st), .events = POLLIN};
    if (bell.fd < 0)
        return;
    if (schedule_look_due(&p->schedule, now) || !schedule_listens(&p->schedule, now))
        return;
    bool rang = poll(&bell, 1, 0) == 1;
    if (rang)
        schedule_look_now(&p->schedule);
}

static bool ended(const struct pipeline *p, size_t i)
{
    return i < p->hand.n && p->hand.live[i]->open == 0;
}

bool turn_store(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    if (effects_unsure(&p->effects))
        return false;
    if (schedule_store_away(&p->schedule, now))
        return false;

    turn_drop_lost(p);
    size_t next = hand_next(&p->hand);
    if (ended(p, next))
        return turn_settle(p, next);

    hear_bell(p, now);
    if (!wants_work(p, now, 0))
        return false;
    return claim(p);
}
