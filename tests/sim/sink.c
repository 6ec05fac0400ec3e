/* sink.c: the destination of events. A sink, with SINK_FAILSTOP, SINK_CHAINS or neither, that keeps
 * its deliveries until the scheduler ends them; and handlers that write to the application's
 * table. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

void sink_mood(struct sim *w, int c, enum mood mood)
{
    struct subject *s = &w->subject[c];
    if (s->mood == mood || (mood == MOOD_OUT && s->outages == SIM_OUTAGES - 1))
        return;
    if (s->mood == MOOD_OUT)
        s->outage_end[s->outages] = w->mono;
    s->mood = mood;
    if (mood != MOOD_OUT)
        return;
    s->outages++;
    sim_fault(w, FAULT_OUTAGE);
    sim_trace(w, "outage %d of %s", s->outages, s->name);
}

static struct sending sending(const struct sim *w, int c)
{
    const struct subject *s = &w->subject[c];
    return (struct sending){.at = w->mono, .outage = s->mood == MOOD_OUT ? s->outages : 0};
}

/* out decides the answer to a delivery by its send time. While the sink is out it fails, in one
 * way or another; earlier deliveries arrive. */
static enum sink_status out(struct sim *w, const struct sending *sent, bool failstop)
{
    if (!sent->outage)
        return SINK_DELIVERED;
    sim_fault(w, FAULT_SINK);
    return failstop || sim_one_in(w, 8) ? SINK_DOWN : SINK_RETRY;
}

static enum sink_status verdict(struct sim *w, int c, bool failstop, const struct sending *sent)
{
    static const enum sink_status failures[] = {SINK_RETRY, SINK_RETRY,    SINK_RETRY,  SINK_DOWN,
                                                SINK_DOWN,  SINK_NOT_MINE, SINK_REFUSED};
    enum mood mood = w->subject[c].mood;
    if (mood == MOOD_OUT || sent->outage)
        return out(w, sent, failstop);
    if (mood == MOOD_GOOD || (mood == MOOD_FLAKY && !sim_one_in(w, 4)))
        return SINK_DELIVERED;
    sim_fault(w, FAULT_SINK);
    if (sim_one_in(w, 60))
        return SINK_FATAL;
    if (failstop && sim_one_in(w, 2))
        return SINK_REFUSED;
    if (mood == MOOD_DOWN || failstop)
        return SINK_DOWN;
    if (mood == MOOD_REJECTS || sim_one_in(w, 12))
        return sim_one_in(w, 2) ? SINK_REJECT : SINK_DELIVERED;
    return failures[sim_below(w, 7)];
}

/* ---- the model sink ---- */

static void end(struct model *m, size_t k, enum sink_status said, bool arrives)
{
    struct sim *w = m->w;
    struct delivery *d = m->d[k];
    int n = check_number(w, d->ev);
    struct claim *claim = m->k[k];
    struct sending sent = m->sent[k];
    bool passes = said == SINK_DELIVERED || said == SINK_REJECT || said == SINK_NOT_MINE;
    if (passes && m->n_passed < SIM_PASSED)
        m->passed[m->n_passed++] = sent.at;
    m->n--;
    memmove(&m->d[k], &m->d[k + 1], (m->n - k) * sizeof m->d[0]);
    memmove(&m->k[k], &m->k[k + 1], (m->n - k) * sizeof m->k[0]);
    memmove(&m->sent[k], &m->sent[k + 1], (m->n - k) * sizeof m->sent[0]);
    if (arrives)
        check_arrived(w, claim, m->c, n, m->r->pipe[m->c].as.order);
    check_answered(w, claim, n, said, &sent);
    sink_done(
        &m->base, d,
        &(struct sink_result){.status = said, .text = said == SINK_DELIVERED ? NULL : "simulated"});
}

/* head_of finds the first delivery of the chain that the k-th belongs to. Those before the first
 * have been delivered. */
static size_t head_of(const struct model *m, size_t k)
{
    while (m->d[k]->chained)
        k--;
    return k;
}

/* end_chain ends the deliveries chained to the one at k. If that was delivered, the next one
 * becomes the first. If its answer was lost, some of its followers may have arrived, too. */
static void end_chain(struct model *m, size_t k, enum sink_status said, bool arrives)
{
    enum sink_status rest = said == SINK_DOWN ? SINK_DOWN : SINK_CANCELLED;
    while (k < m->n && m->d[k]->chained) {
        if (said == SINK_DELIVERED) {
            m->d[k]->chained = false;
            return;
        }
        arrives = arrives && said == SINK_DOWN && sim_one_in(m->w, 2);
        end(m, k, rest, arrives);
    }
}

/* A failed delivery may have arrived nevertheless, if only its answer was lost. */
void model_end(struct model *m, size_t k)
{
    bool failstop = m->base.ops->caps & SINK_FAILSTOP;
    if (failstop)
        k = 0;
    k = head_of(m, k);
    enum sink_status said = verdict(m->w, m->c, failstop, &m->sent[k]);
    /* its stream accepts nothing now */
    if (said == SINK_NOT_MINE && sim_one_in(m->w, 2))
        said = SINK_LATER;
    bool unheard = said != SINK_REJECT && said != SINK_REFUSED && sim_one_in(m->w, 4);
    bool arrives = said == SINK_DELIVERED || unheard;
    end(m, k, said, arrives);
    end_chain(m, k, said, arrives);
    while (failstop && said != SINK_DELIVERED && m->n) { /* everything behind it fails, too */
        arrives = arrives && sim_one_in(m->w, 2);
        if (said == SINK_REFUSED && sim_one_in(m->w, 4))
            said = SINK_CANCELLED;
        end(m, 0, said, arrives);
    }
}

static size_t model_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct model *m = (struct model *)sk;
    size_t k = 0;
    while (k < n && m->n < m->capacity) {
        int number = check_number(m->w, d[k]->ev);
        struct claim *claim = check_submitted(m->w, m, d[k]);
        if (m->w->fact[number].poison && !m->w->healing) { /* a fault of ours, mended in the end */
            sim_fault(m->w, FAULT_POISON);
            sim_trace(m->w, "relay %d dies of event %d", m->r->id, number);
            relay_die(m->w, m->r);
        }
        m->k[m->n] = claim;
        m->sent[m->n] = sending(m->w, m->c);
        m->d[m->n++] = d[k++];
    }
    relay_call(m->w, m->r);
    return k;
}

static void model_drive(struct sink *sk)
{
    struct model *m = (struct model *)sk;
    while (m->w->healing && m->n)
        model_end(m, 0);
}

static size_t model_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    (void)sk, (void)out, (void)max;
    return 0;
}

static int64_t model_deadline(struct sink *sk)
{
    struct model *m = (struct model *)sk;
    return m->w->healing && m->n ? 0 : CLOCK_NEVER;
}

static void model_cancel(struct sink *sk)
{
    struct model *m = (struct model *)sk;
    while (m->n)
        end(m, 0, SINK_CANCELLED, false);
}

#define MODEL(flags) \
    { \
        .scheme = "model", .caps = flags, .submit = model_submit, .drive = model_drive, \
        .fds = model_fds, .deadline = model_deadline, .cancel = model_cancel \
    }
static const struct sink_ops async_ops = MODEL(0), failstop_ops = MODEL(SINK_FAILSTOP),
                             chains_ops = MODEL(SINK_CHAINS);

/* Of the sinks without SINK_FAILSTOP, half accept chains: those with more room. */
static const struct sink_ops *ops_of(enum kind kind, size_t capacity)
{
    if (kind == KIND_FAILSTOP)
        return &failstop_ops;
    return capacity > 4 ? &chains_ops : &async_ops;
}

struct model *model_new(struct sim *w, struct relay *r, int c)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        sim_fail(w, "out of memory");
    m->base.cfg = (struct sink_config){
        .clock = &w->clock, .done = pipeline_done, .done_ctx = r->pipe[c].p};
    m->w = w;
    m->r = r;
    m->c = c;
    m->capacity = 1 + sim_below(w, 8);
    m->base.ops = ops_of(w->subject[c].kind, m->capacity);
    return m;
}

/* ---- handlers ---- */

/* handler_act does its work before it reports failure, so that its work must be undone. */
enum sink_status handler_act(struct handler_call *call, const struct delivery *d, void *ctx)
{
    struct handler_ctx *h = ctx;
    struct sim *w = h->w;
    int n = check_number(w, d->ev);
    bool outside = call->tx == NULL;
    struct sending sent = sending(w, h->c);
    relay_call(w, h->r);
    if (w->fact[n].poison) {
        sim_fault(w, FAULT_POISON);
        relay_die(w, h->r);
    }
    enum sink_status said = verdict(w, h->c, false, &sent);
    if (said == SINK_FATAL)
        said = SINK_DOWN;
    if (said == SINK_REFUSED) /* which handlers never return */
        said = SINK_RETRY;
    if (said != SINK_DELIVERED)
        check_answered(w, check_claim_of(w, h->r, h->c, d), n, said, &sent);
    if (!outside && (h->r->pipe[h->c].gone || effect_put(w, call->tx, h->i, h->c, n) != 0))
        return SINK_RETRY;
    if (outside && (said == SINK_DELIVERED || sim_one_in(w, 4))) {
        w->subject[h->c].outside[n]++;
        check_arrived(w, check_claim_of(w, h->r, h->c, d), h->c, n, h->r->pipe[h->c].as.order);
    }
    sim_trace(w, "handler %d of %s acts on event %d: %d", h->i, w->subject[h->c].name, n,
              (int)said);
    relay_call(w, h->r);
    return said;
}
