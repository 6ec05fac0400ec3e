/* exchange.c: a pipeline's dealings with its store. It settles the batch that has ended and claims
 * the next one, both in one exchange. */
#include <stdio.h>

#include "base/num.h"

#include "engine/pipeline_impl.h"

#define NO_MEMORY_WAIT (1000 * MS_NS) /* pause after a claimed batch found no memory */
#define PARKED_PAUSE (20 * MS_NS) /* between claims of few parked events, while others are new */

/* One exchange with the store: what to settle, what to claim, and the answer. The store does both
 * in one transaction. Everything it needs to know is in here, and so is everything it says. */
struct exchange {
    int64_t at; /* when it was made, monotonic */

    struct live *settled; /* the batch to settle; NULL: none */
    size_t place;         /* settled == hand.live[place] */
    struct settlement settlement;

    struct live *next; /* where the claimed batch goes; NULL: nothing is claimed */
    struct claim_request request;
    int64_t known[HAND_MAX]; /* request.known points here */

    /* The answer. */
    bool lost; /* the claim of `settled` is no longer ours */
    struct batch batch;
    struct claim_hint hint;
};

/* ---- the store's health ---- */

void exchange_store_failed(struct pipeline *p, const struct error *err)
{
    p->store_error = *err;
    p->stats.meter.store_errors++;
    if (!p->stats.stalled_since) {
        p->stats.stalled_since = pipeline_now(p);
    }
    snprintf(p->stats.why, sizeof p->stats.why, "store: %s", err->text);

    if (err->retry_class == CLASS_FATAL) {
        pipeline_fail(p, err, pipeline_now(p));
        return;
    }
    int64_t delay = schedule_store_failed(&p->schedule, pipeline_now(p));
    log_at(p->cfg.log, LOG_WARN_, p->c->name, "store: %s; trying again in %lld ms", err->text,
           (long long)(delay / MS_NS));
}

void exchange_store_back(struct pipeline *p)
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

/* ---- dropping batches ---- */

/* forget_failures forgets what failed of a lost claim. It would count when the event comes again,
 * perhaps to a consumer that was made anew. */
static void forget_failures(struct pipeline *p, const struct live *l)
{
    for (size_t i = 0; i < l->b.n; i++)
        evidence_forget(&p->evidence, l->b.ev[i].seq);
}

void exchange_drop(struct pipeline *p, size_t i)
{
    struct live *l = p->hand.live[i];
    if (l->lost)
        forget_failures(p, l);
    if (l->b.suspect)
        suspect_end(&p->suspect);
    effects_drop(p, l);
    hand_drop(&p->hand, i);
    room_count(p);
}

void exchange_drop_lost(struct pipeline *p)
{
    size_t before = p->hand.n;
    for (size_t i = 0; i < p->hand.n;) {
        const struct live *l = p->hand.live[i];
        bool over = l->lost && l->flying == 0;
        if (over) {
            exchange_drop(p, i);
        } else {
            i++;
        }
    }
    if (p->hand.n < before)
        hand_remap(&p->hand);
}

static bool wants_work(struct pipeline *p, int64_t now, size_t settling)
{
    return schedule_look_due(&p->schedule, now) && room_for_batch(p, now, settling);
}

/* ---- the request ---- */

/* known_epochs lists the claims in hand. Any other claim of ours that the store has is one whose
 * answer was lost, and its events must come first. */
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

/* begin prepares an exchange that does not settle or claim anything yet. */
static void begin(const struct pipeline *p, struct exchange *x)
{
    *x = (struct exchange){.at = pipeline_now(p)};
    bool parked_first = p->parked_turn && x->at >= p->parked_at;
    x->request = (struct claim_request){
        .consumer = p->c->name,
        .owner = p->cfg.owner,
        .events = p->c->events,
        .where = p->c->where,
        .filter = p->filter,
        .order = p->c->order,
        .lanes = p->c->lanes,
        .lane_hint = p->lane,
        .sole = p->cfg.sole,
        .parked_first = parked_first,
        .known = x->known,
        .n_known = known_epochs(p, x->known),
        .lease_ms = p->c->lease_ms,
        .max_attempts = p->c->retry.attempts,
    };
}

struct settlement exchange_settlement(struct pipeline *p, const struct live *l)
{
    struct settlement s = {.consumer = p->c->name,
                           .owner = p->cfg.owner,
                           .order = p->c->order,
                           .b = &l->b,
                           .out = l->out,
                           .n = l->n_out,
                           .release_from = l->release_from};
    marks_add(p, &s);
    return s;
}

/* add_settlement adds the settlement of live[i], whose events have all ended. Returns -1 when out
 * of memory. */
static int add_settlement(struct pipeline *p, struct exchange *x, size_t i, struct error *err)
{
    struct live *l = p->hand.live[i];
    judge_batch(p, l);
    if (live_outcomes(l) != 0)
        return err_nomem(err);

    x->settled = l;
    x->place = i;
    x->settlement = exchange_settlement(p, l);
    if (l->b.suspect) {
        suspect_end(&p->suspect);
        l->b.suspect = false;
    }
    schedule_look_now(&p->schedule); /* settling may make a retry or a follower due */
    return 0;
}

/* add_claim adds a claim of the next batch, if there is room for one and it is time to look. It
 * clears the bell before the store is asked, never after: a ring in between must not be missed. */
static void add_claim(struct pipeline *p, struct exchange *x)
{
    size_t settling = x->settled ? 1 : 0;
    if (!wants_work(p, x->at, settling))
        return;
    x->next = hand_spare(&p->hand);
    if (!x->next)
        return;
    x->request.max_bytes = room_bytes(p);
    if (x->request.max_bytes == 0) {
        x->next = NULL; /* another pipeline was faster */
        return;
    }

    p->cfg.st->ops->wake_clear(p->cfg.st);
    x->request.max_events = room_events(p, x->request.max_bytes);
    x->request.suspect = SUSPECT_ANY;
    if (pipeline_in_process(p))
        x->request.suspect = suspect_ask(&p->suspect, p->hand.n - settling);
}

/* ---- the answer ---- */

/* took is how long a batch was with the sink, without what it waited for company. */
static int64_t took(const struct pipeline *p, const struct live *l)
{
    bool alone = p->hand.n == 1 && p->stats.ended_at >= l->claimed_at;
    int64_t end = alone ? p->stats.ended_at : pipeline_now(p);
    return end - l->claimed_at;
}

void exchange_settled(struct pipeline *p, size_t i, bool lost)
{
    struct live *l = p->hand.live[i];
    marks_kept(p);
    if (lost)
        lease_lose(p, l, "another worker has it, its lease ran out, or the store was set back");
    else
        live_settled(l, p->sk);

    batch_size_tune(&p->batch_size, l->b.n, took(p, l));
    exchange_drop(p, i);
    schedule_look_now(&p->schedule); /* settling may have made a retry or a follower due */
}

/* note_crashes counts and logs what the store took over from workers that vanished. */
static void note_crashes(struct pipeline *p, const struct claim_hint *h)
{
    p->stats.crashed += (int64_t)h->crashed;
    p->stats.buried += (int64_t)h->buried;
    meter_buried(&p->stats.meter, STR(""), BURIAL_CRASHED, (int64_t)h->buried);
    if (h->crashed) {
        log_at(p->cfg.log, LOG_WARN_, p->c->name,
               "took over %zu event%s of a worker that vanished%s", h->crashed,
               h->crashed == 1 ? "" : "s",
               pipeline_in_process(p) ? "; delivering one at a time" : "");
    }
    if (h->buried) {
        log_at(p->cfg.log, LOG_ERROR_, p->c->name,
               "dead letters, because the process died on each attempt to deliver: %zu", h->buried);
    }
}

/* note_unread notes that the store may have a claim of ours that we know nothing of. */
static void note_unread(struct pipeline *p)
{
    hand_forgot(&p->hand);
    p->stats.meter.store_errors++;
    log_at(p->cfg.log, LOG_WARN_, p->c->name,
           "store: claimed events could not be read; looking again");
}

/* superseded stops claiming, because another worker has registered the consumer with newer
 * settings. The pipeline stands by if it may, and fails otherwise. */
static void superseded(struct pipeline *p)
{
    if (p->cfg.stand_by) {
        standby_enter(p);
        return;
    }
    struct error err;
    err_class(&err, ERR_CONFLICT, CLASS_FATAL, 0,
              "this consumer was given another order, number of lanes or filter meanwhile (outbox "
              "consumers history %s); start it again with those",
              p->c->name);
    /* Deliveries in flight may end within their lease. */
    pipeline_fail(p, &err, pipeline_now(p) + p->c->lease_ms * MS_NS);
}

/* say_who_is_in_the_way logs which session keeps the doorbell from waking this relay, once for each
 * such session. NULL means that nobody does. */
static void say_who_is_in_the_way(struct pipeline *p, const char *who)
{
    const char *now = who ? who : "";
    bool same = strncmp(p->wake_blocker, now, sizeof p->wake_blocker - 1) == 0;
    if (same)
        return;
    snprintf(p->wake_blocker, sizeof p->wake_blocker, "%s", now);
    if (!who) {
        log_at(p->cfg.log, LOG_INFO_, p->c->name, "the doorbell works again");
        return;
    }
    log_at(p->cfg.log, LOG_WARN_, p->c->name,
           "nobody can wake this relay: a lock of the doorbell is held by %s, who has no business "
           "with it; looking every second until that ends",
           who);
}

/* rest_ms returns how long to wait before the next look, if no bell rings before. */
static int64_t rest_ms(const struct pipeline *p, const struct claim_hint *h)
{
    bool has_bell = p->cfg.st->ops->wake_fd(p->cfg.st) >= 0;
    int64_t wait = p->cfg.sweep_ms;
    if (!has_bell) {
        wait = min_i64(wait, p->cfg.poll_ms);
    }
    if (h->wait_ms >= 0) {
        wait = min_i64(wait, h->wait_ms);
    }
    if (h->poll_in_ms > 0) {
        wait = min_i64(wait, h->poll_in_ms);
    }
    return wait;
}

/* found_nothing decides when to look again after a claim that returned no events. A careful event
 * that the store left behind waits for our own batches to end. */
static void found_nothing(struct pipeline *p, const struct exchange *x)
{
    const struct claim_hint *h = &x->hint;
    bool look_on = h->skipped > 0 || h->suspect;

    say_who_is_in_the_way(p, h->wake_blocker);
    p->suspect.due = h->suspect;
    if (look_on) {
        schedule_look_now(&p->schedule);
    } else {
        schedule_rest(&p->schedule, x->at, rest_ms(p, h) * MS_NS, h->busy);
    }

    p->stats.paused = h->paused;
    p->stats.through = h->through && p->hand.n == 0;
    if (p->stats.through) {
        p->stats.stalled_since = 0; /* there is no work that could be stuck */
    }
}

/* note_turn decides what the next claim starts with: the next lane, and parked events if this one
 * started with fresh ones, and the other way round. But retries become due one by one, and a claim
 * of a few costs as much as one of a full batch. So where fresh events wait, parked ones gather for
 * a while. Not for long: meanwhile whatever else comes of their keys has to be parked as well. */
static void note_turn(struct pipeline *p, const struct live *l)
{
    bool few = 4 * l->b.n < p->batch_size.n;
    p->lane = (l->b.lane + 1) % p->c->lanes;
    p->parked_turn = !p->parked_turn;
    if (l->b.parked && few && !l->b.suspect)
        p->parked_at = l->claimed_at + PARKED_PAUSE;
}

/* took_batch takes a claimed batch in hand. */
static void took_batch(struct pipeline *p, struct live *l, const struct claim_hint *h)
{
    p->stats.claims++;
    p->stats.through = false;
    p->stats.paused = false;
    if (!p->stats.stalled_since) {
        p->stats.stalled_since = l->claimed_at;
        p->stats.ended_at = l->claimed_at;
    }
    p->wall_ahead_ms = clock_wall(p->cfg.clock) - pipeline_now(p) / MS_NS;
    note_turn(p, l);
    p->suspect.due = l->b.suspect; /* probably not the only one */
    if (h->quiet) {
        schedule_rest(&p->schedule, l->claimed_at, p->cfg.sweep_ms * MS_NS, false);
    } else {
        schedule_look_now(&p->schedule);
    }

    if (hand_take(&p->hand, l, !pipeline_failstop(p)) != 0) {
        suspect_end(&p->suspect);
        schedule_rest(&p->schedule, pipeline_now(p), NO_MEMORY_WAIT, false);
        return;
    }
    batch_size_took(&p->batch_size, live_bytes(l));
}

/* suspect_claimed begins the delivery of a suspect. If others of this process are in flight as
 * well, a crash is held against none of them. A store that cannot be told so is no reason to wait:
 * one crash too many is counted then, at the worst. */
static void suspect_claimed(struct pipeline *p, const struct batch *b)
{
    struct suspect_claim cleared[2];
    struct claim_lease ours = pipeline_lease(p, b);
    size_t n = suspect_begin(&p->suspect, &ours, b->blamed, cleared);
    for (size_t i = 0; i < n; i++) {
        struct claim_lease l = suspect_lease(&cleared[i]);
        struct error err;
        bool gone;
        if (p->cfg.st->ops->extend(p->cfg.st, &l, &gone, &err) != 0)
            log_at(p->cfg.log, LOG_WARN_, p->c->name, "store: %s", err.text);
    }
}

/* claimed handles the answer to a claim: a batch, or a hint when to ask again. */
static void claimed(struct pipeline *p, const struct exchange *x)
{
    struct live *l = x->next;
    l->b = x->batch;
    l->claimed_at = x->at;
    l->deadline = x->at + p->c->lease_ms * MS_NS;
    if (l->b.suspect)
        suspect_claimed(p, &l->b);
    else
        suspect_withdraw(&p->suspect);

    if (l->b.n > 0) {
        took_batch(p, l, &x->hint);
        return;
    }
    arena_reset(&l->a);
    found_nothing(p, x);
}

/* withdraw releases what add_claim has set aside. */
static void withdraw(struct pipeline *p, struct exchange *x)
{
    if (x->next)
        arena_reset(&x->next->a);
    suspect_withdraw(&p->suspect);
}

static void exchange_failed(struct pipeline *p, struct exchange *x, const struct error *err)
{
    if (x->next)
        hand_forgot(&p->hand); /* the claim may have been made, and only its answer was lost */
    withdraw(p, x);
    room_tidy(p);
    exchange_store_failed(p, err);
}

/* take_answer acts on the store's answer: first on what was settled, then on what was claimed. */
static void take_answer(struct pipeline *p, struct exchange *x)
{
    exchange_store_back(p);
    if (x->settled)
        exchange_settled(p, x->place, x->lost);
    note_crashes(p, &x->hint);
    if (x->hint.unread)
        note_unread(p);

    bool others_rule = x->hint.changed && p->state == PIPELINE_RUNNING;
    if (others_rule) {
        withdraw(p, x);
        superseded(p);
    } else if (x->next) {
        claimed(p, x);
    }

    room_tidy(p);

    bool idle = p->hand.n == 0 && !p->stats.down;
    if (idle) {
        p->stats.stalled_since = 0;
    }
}

/* ask sends an exchange to the store, which fills in the answer. */
static int ask(struct store *st, struct exchange *x, struct error *err)
{
    const struct settlement *s = NULL;
    struct arena *a = NULL;
    if (x->settled) {
        s = &x->settlement;
    }
    if (x->next) {
        a = &x->next->a;
    }
    return st->ops->turn(st, s, &x->lost, &x->request, a, &x->batch, &x->hint, err);
}

/* exchange is the one place where a pipeline settles and claims. Returns whether that got it any
 * further: something was settled, claimed or skipped, or a suspect can be claimed next. */
static bool exchange(struct pipeline *p, struct exchange *x)
{
    struct error err = {0};
    if (ask(p->cfg.st, x, &err) != 0) {
        exchange_failed(p, x, &err);
        return false;
    }
    take_answer(p, x);

    bool claimed_any = x->batch.n > 0;
    bool passed_any = x->hint.skipped > 0;
    bool suspect_next = p->suspect.due && p->hand.n == 0;
    return x->settled || claimed_any || passed_any || suspect_next;
}

/* ---- turns ---- */

bool exchange_settle(struct pipeline *p, size_t i)
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

/* claim asks for a batch without settling one. */
static bool claim(struct pipeline *p)
{
    struct exchange x;
    begin(p, &x);
    add_claim(p, &x);
    if (!x.next)
        return false;
    return exchange(p, &x);
}

/* hear_bell brings the next look forward if the bell has rung. It does not ask the bell when the
 * answer would change nothing: a look is due anyway, or another worker has the lane. */
static void hear_bell(struct pipeline *p, int64_t now)
{
    struct pollfd bell = {.fd = p->cfg.st->ops->wake_fd(p->cfg.st), .events = POLLIN};
    if (bell.fd < 0)
        return;
    if (schedule_look_due(&p->schedule, now))
        return;
    if (!schedule_listens(&p->schedule, now))
        return;

    bool rang = poll(&bell, 1, 0) == 1;
    if (rang)
        schedule_look_now(&p->schedule);
}

/* ended says whether there is a live[i] and all of its events have ended. */
static bool ended(const struct pipeline *p, size_t i)
{
    return i < p->hand.n && p->hand.live[i]->open == 0;
}

/* delivered_whole says whether nothing but the end of the batch has to be recorded. */
static bool delivered_whole(const struct live *l)
{
    if (l->b.parked || l->b.suspect || l->lost)
        return false;
    return l->exceptions == 0 && l->release_from == 0;
}

/* exchange_company_by is what makes a steady trickle of events cost one turn each instead of two.
 * It applies only while there is nothing to claim: then the bell rings for what comes next, and
 * both go into one transaction. */
int64_t exchange_company_by(const struct pipeline *p, int64_t now)
{
    bool alone = p->hand.n == 1 && ended(p, 0);
    if (!alone || p->cfg.settle_wait_ms == 0 || p->state != PIPELINE_RUNNING)
        return 0;
    if (effects_used(&p->effects) || schedule_look_due(&p->schedule, now))
        return 0;
    if (!delivered_whole(p->hand.live[0]))
        return 0;

    int64_t by = p->stats.ended_at + p->cfg.settle_wait_ms * MS_NS;
    return now < by ? by : 0;
}

bool exchange_step(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    if (effects_unsure(&p->effects))
        return false;
    if (schedule_store_away(&p->schedule, now))
        return false;

    exchange_drop_lost(p);
    hear_bell(p, now);
    if (exchange_company_by(p, now) > 0)
        return false;

    size_t next = hand_next(&p->hand);
    if (ended(p, next))
        return exchange_settle(p, next);
    if (!wants_work(p, now, 0))
        return false;
    return claim(p);
}
