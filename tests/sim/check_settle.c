/* check_settle.c: the checker on settlements: outcomes are recorded as the sink reported them, and
 * a failure counts only if the event caused it (G2, G9). */
#include "check_impl.h"
#include "engine/failure.h"

static void keep_outcomes(struct sim *w, const struct settlement *s, struct settled *ret)
{
    for (size_t i = 0; i < ret->k->n; i++) {
        int n = ret->k->ev[i];
        ret->e[i].ev = n;
        ret->e[i].kind = OUTCOME_DELIVERED;
        ret->e[i].released = s->release_from && s->b->ev[i].seq >= s->release_from;
    }
    for (size_t i = 0; i < s->n; i++) {
        int at = check_place(ret->k, check_number_in(s->out[i].ev));
        if (at < 0)
            sim_fail(w, "a settlement names an event that is not in its claim");
        ret->e[at].kind = s->out[i].kind;
        ret->e[at].attempts = s->out[i].attempts;
    }
}

void check_settling(struct sim *w, const struct deed *by, const struct settlement *s, bool lost,
                    struct settled *ret)
{
    struct claim *k = check_find(w, by->r, by->c, s->b->epoch);
    *ret = (struct settled){.k = k, .n = k->n, .lost = lost};
    sim_trace(w, "relay %d settles %s epoch %lld: %s", by->r->id, check_name(w, by->c),
              (long long)k->epoch, lost ? "lost" : "recorded");
    ret->any = check_honoured(w, by, k, lost, "settled");
    if (ret->any)
        keep_outcomes(w, s, ret);
}

static void delivered(struct sim *w, struct claim *k, size_t i)
{
    struct subject *s = &w->subject[k->consumer];
    struct track *t = &s->t[k->ev[i]];
    /* An event in the inbox is delivered without a call. */
    bool calls = s->kind == KIND_EFFECTS || s->kind == KIND_EACH;
    if (!calls && !k->delivered[i])
        sim_fail(w, "%s event %d is recorded as delivered, but the sink did not deliver it",
                 s->name, k->ev[i]);
    if (s->kind == KIND_EFFECTS)
        check_arrived(w, k, k->consumer, k->ev[i], s->reg.order);
    t->settled = true;
    s->delivered++;
    w->totals->settled++;
}

static void died(struct sim *w, struct track *t)
{
    t->dead = t->was_dead = true;
    w->totals->dead++;
}

/* was_out tells whether the sink certainly caused the failure: it was out, and for a while longer,
 * so that no other delivery succeeded. */
static bool was_out(const struct subject *s, const struct sending *sent)
{
    if (!sent->outage)
        return false;
    bool goes_on = s->mood == MOOD_OUT && s->outages == sent->outage;
    return goes_on || s->outage_end[sent->outage] > sent->at + FAILURE_NEAR;
}

/* guilty tells whether it has failed at least once while the sink was not out. This is decided only
 * now, when the length of the outage is known. */
static bool guilty(const struct subject *s, const struct track *t)
{
    for (int i = 0; i < SIM_FAILURES && i < t->failures; i++)
        if (!was_out(s, &t->failed[i]))
            return true;
    return t->failures > SIM_FAILURES; /* the others are unknown */
}

/* passed_before returns when the last successful delivery before that time was sent. */
static int64_t passed_before(const struct model *m, size_t n, int64_t at)
{
    int64_t last = 0;
    for (size_t p = 0; p < n; p++)
        if (m->passed[p] < at && m->passed[p] > last)
            last = m->passed[p];
    return last;
}

/* others_passed tells whether the sink accepted another event sent right after event i, and had not
 * been out so long before that this was its recovery. The engine's times are those of the
 * simulator, give or take a tick. */
static bool others_passed(const struct sim *w, const struct claim *k, size_t i)
{
    const struct relay *r = &w->relay[k->relay];
    const struct model *m = r->pipe[k->consumer].model;
    if (!m || r->start != k->start)
        return false;
    int64_t sent = k->sent[i].at, before = passed_before(m, k->passed, sent);
    for (size_t p = 0; p < k->passed; p++) {
        bool near = m->passed[p] > sent + SLACK && m->passed[p] < sent + FAILURE_NEAR - SLACK;
        bool back = before == 0 || m->passed[p] - before >= FAILURE_PATIENCE - SLACK;
        if (near && !back)
            return true;
    }
    return false;
}

void check_judged(struct sim *w, const struct relay *r, int c, int64_t epoch)
{
    struct claim *k = check_find(w, r, c, epoch);
    if (k->judged || !r->pipe[c].model)
        return;
    k->judged = true;
    k->passed = r->pipe[c].model->n_passed;
}

/* check_counted checks that a failure counts against an event if others were delivered, and never
 * if the event has failed only while the sink was out. */
static void check_counted(struct sim *w, const struct claim *k, size_t i, int attempts)
{
    const struct subject *s = &w->subject[k->consumer];
    struct track *t = &w->subject[k->consumer].t[k->ev[i]];
    int counted = attempts - t->attempts;
    if (counted < 0 || counted > 2)
        sim_fail(w, "%s event %d failed and has %d attempts after %d", s->name, k->ev[i], attempts,
                 t->attempts);
    if (k->refused[i]) {
        if (counted != 1)
            sim_fail(w, "%s event %d was refused, but %d attempts were counted", s->name, k->ev[i],
                     counted);
        return;
    }
    if (counted > 0 && !guilty(s, t))
        sim_fail(w, "%s event %d failed only while the sink was out, but was counted", s->name,
                 k->ev[i]);
    if (counted == 0 && !w->plan.oom && others_passed(w, k, i))
        sim_fail(w, "%s event %d failed while others were delivered, but was not counted", s->name,
                 k->ev[i]);
}

void check_settled(struct sim *w, struct settled *s)
{
    if (!s->any)
        return;
    struct claim *k = s->k;
    struct subject *c = &w->subject[k->consumer];
    for (size_t i = 0; i < s->n; i++) {
        struct track *t = &c->t[s->e[i].ev];
        t->holder = 0;
        if (s->e[i].released)
            continue;
        switch (s->e[i].kind) {
        case OUTCOME_DELIVERED: delivered(w, k, i); continue;
        case OUTCOME_DEAD:
            if (!k->rejected[i])
                check_counted(w, k, i, s->e[i].attempts);
            died(w, t);
            break;
        case OUTCOME_RETRY:
            if (k->failed[i] || k->refused[i])
                check_counted(w, k, i, s->e[i].attempts);
            break;
        default: break;
        }
        t->attempts = s->e[i].attempts;
    }
    k->state = CLAIM_SETTLED;
    s->any = false;
}

struct burying {
    struct sim *w;
    int c;
    size_t n;
};

static int buried(void *ctx, const struct dead_letter *d)
{
    struct burying *b = ctx;
    int n = check_number(b->w, &d->ev);
    struct track *t = &b->w->subject[b->c].t[n];
    if (d->retrying || t->dead)
        return 0;
    if (t->holder) {
        struct claim *k = check_holder(b->w, b->c, t->holder);
        k->state = CLAIM_SUPERSEDED;
        t->attempts += k->blamed;
    }
    if (t->attempts < SIM_ATTEMPTS)
        sim_fail(b->w, "%s event %d is buried for killing its worker, after %d attempts",
                 check_name(b->w, b->c), n, t->attempts);
    t->holder = 0;
    died(b->w, t);
    b->n++;
    return 0;
}

void check_buried(struct sim *w, struct store *st, int c, size_t n)
{
    struct burying b = {w, c, 0};
    struct error err;
    fail_disarm(); /* the checker has memory */
    if (st->ops->dead(st, &(struct dead_query){.consumer = check_name(w, c)}, buried, &b, &err) !=
        0)
        sim_fail(w, "%s", err.text);
    if (b.n != n)
        sim_fail(w, "%s: %zu events were buried, but %zu dead letters are new", check_name(w, c), n,
                 b.n);
}
