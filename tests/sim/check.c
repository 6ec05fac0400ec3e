/* check.c: the checker. It compares reports with the producers' log and with the guarantees
 * (docs/guarantees.md); a breach ends the run. This file has the log, the consumers and the sinks;
 * claims, settlements and the end are in the check_*.c files beside it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_impl.h"

int check_number_in(const struct event *ev)
{
    return strncmp(ev->payload.p, "{\"n\":", 5) == 0 ? atoi(ev->payload.p + 5) : -1;
}

size_t check_payload(int n, const struct fact *f, char out[SIM_PAYLOAD])
{
    int size = snprintf(out, SIM_PAYLOAD, "{\"n\":%d,\"k\":%d", n, f->key);
    if (f->big)
        size += snprintf(out + size, SIM_PAYLOAD - (size_t)size, ",\"big\":\"%0*d\"", SIM_BIG, n);
    return (size_t)(size + snprintf(out + size, SIM_PAYLOAD - (size_t)size, "}"));
}

int check_number(struct sim *w, const struct event *ev)
{
    char payload[SIM_PAYLOAD];
    int n = check_number_in(ev);
    if (n < 0 || n >= w->n_facts)
        sim_fail(w, "phantom: an event with the payload %.*s", (int)ev->payload.n, ev->payload.p);
    const struct fact *f = &w->fact[n];
    if (f->told != TOLD_COMMITTED)
        sim_fail(w, "phantom: event %d, which was not committed", n);
    size_t size = check_payload(n, f, payload);
    if (ev->payload.n != size || memcmp(ev->payload.p, payload, size) != 0 ||
        !str_is(ev->type, sim_types[f->type]) || (f->seq && f->seq != ev->seq))
        sim_fail(w, "event %d differs from the emitted one", n);
    return n;
}

bool check_matches(int filter, const struct fact *f)
{
    switch (filter) {
    case 1: return f->type != 2;
    case 2: return f->key != 1;
    case 3: return f->type != 1 && f->key != 2;
    default: return true;
    }
}

bool check_there(const struct sim *w, int c, int n)
{
    const struct fact *f = &w->fact[n];
    const struct subject *s = &w->subject[c];
    if (f->told != TOLD_COMMITTED || (s->start == START_SEQ && f->seq < s->start_seq))
        return false;
    return f->ended > s->created || s->t[n].present;
}

int check_matching(const struct subject *s, const struct fact *f, int *ret_of)
{
    int passes = 0;
    *ret_of = 0;
    for (int i = 0; i < s->n_versions; i++) {
        if (i + 1 < s->n_versions && s->version[i + 1].since < f->ended)
            continue;
        ++*ret_of;
        passes += check_matches(s->version[i].filter, f);
    }
    return passes;
}

bool check_required(const struct sim *w, int c, int n)
{
    int of, passes = check_matching(&w->subject[c], &w->fact[n], &of);
    return check_there(w, c, n) && passes == of;
}

void check_created(struct sim *w, int c)
{
    struct subject *s = &w->subject[c];
    s->there = true;
    s->paused = false;
    s->life++;
    s->created = w->tick;
    s->floor = -1;
    s->delivered = 0;
    s->n_versions = 0;
    memset(s->t, 0, sizeof s->t);
    for (int n = 0; n < w->n_facts; n++) {
        const struct fact *f = &w->fact[n];
        /* The inbox remembers it, so the handler will not be called again. */
        s->t[n].first = s->kind == KIND_EACH && s->outside[n];
        if (f->told != TOLD_COMMITTED || f->trimmed)
            continue;
        s->t[n].present = s->start != START_END;
    }
}

void check_version(struct sim *w, int c, int filter)
{
    struct subject *s = &w->subject[c];
    if (s->n_versions > 0 && s->version[s->n_versions - 1].filter == filter)
        return;
    if (s->n_versions == SIM_VERSIONS)
        sim_fail(w, "too many changes for this simulator");
    s->version[s->n_versions].filter = filter;
    s->version[s->n_versions++].since = w->tick;
}

static bool same_order(const struct fact *a, const struct fact *b, enum order order)
{
    if (order == ORDER_NONE)
        return false;
    return order == ORDER_GLOBAL || (a->key >= 0 && a->key == b->key);
}

/* precedes tells whether event b was inserted after a had committed, or later in the same
 * transaction. With a single writer, the numbers show it. */
static bool precedes(const struct sim *w, int a, int b)
{
    const struct fact *x = &w->fact[a], *y = &w->fact[b];
    if (w->on->numbers == NUMBERED_AT_COMMIT)
        return x->seq < y->seq;
    return x->ended < y->inserted || (x->ended == y->ended && a < b);
}

void check_arrived(struct sim *w, struct claim *k, int c, int n, enum order order)
{
    struct subject *s = &w->subject[c];
    w->totals->arrivals++;
    /* The consumer was removed, so this is allowed; but the inbox remembers. */
    if (k->life != s->life || !s->there) {
        if (s->kind == KIND_EACH && !s->t[n].first)
            s->t[n].first = ++w->arrivals;
        return;
    }
    sim_trace(w, "%s gets event %d%s", s->name, n, s->t[n].first ? " again" : "");
    if (s->t[n].first) {
        w->totals->repeats++;
        return;
    }
    s->t[n].first = ++w->arrivals;
    if (s->t[n].was_dead)
        return; /* retried, or delivered past its lease: it does not count for the order */
    for (int a = 0; a < w->n_facts; a++) {
        const struct track *t = &s->t[a];
        if (a == n || t->first || t->was_dead || !same_order(&w->fact[a], &w->fact[n], order))
            continue;
        if (check_required(w, c, a) && precedes(w, a, n))
            sim_fail(w, "order: %s received event %d before event %d of the same key (%d)", s->name,
                     n, a, w->fact[n].key);
    }
}

/* continues_chain tells whether the last delivery in flight is one that event n may be chained
 * to. */
static bool continues_chain(const struct sim *w, const struct model *m, int n, enum order order)
{
    bool chains = (m->base.ops->caps & SINK_CHAINS) != 0;
    if (!chains || m->n == 0)
        return false;
    int last = check_number_in(m->d[m->n - 1]->ev);
    return same_order(&w->fact[last], &w->fact[n], order);
}

struct claim *check_submitted(struct sim *w, const struct model *m, const struct delivery *d)
{
    const struct subject *s = &w->subject[m->c];
    int n = check_number(w, d->ev);
    struct claim *k = check_claim_of(w, m->r, m->c, d);
    enum order order = m->r->pipe[m->c].as.order;
    if (w->mono >= k->mono_until + SLACK)
        sim_fail(w, "%s event %d is submitted past its lease", s->name, n);
    if (k->delivered[check_place(k, n)])
        sim_fail(w, "%s event %d is submitted again after its delivery", s->name, n);
    if (k->suspect && m->n > 0)
        sim_fail(w, "%s careful event %d is submitted beside others", s->name, n);
    if (d->chained && !continues_chain(w, m, n, order))
        sim_fail(w, "%s event %d is chained to an event of another key", s->name, n);
    for (size_t i = 0; i < m->n; i++) {
        int a = check_number_in(m->d[i]->ev);
        if (m->k[i]->suspect)
            sim_fail(w, "%s event %d is submitted beside careful event %d", s->name, n, a);
        /* A delivery past its lease may still arrive, as a repeat. */
        if (m->k[i]->state == CLAIM_SUPERSEDED)
            continue;
        bool in_a_row = s->kind == KIND_FAILSTOP || d->chained;
        if (!in_a_row && same_order(&w->fact[a], &w->fact[n], order))
            sim_fail(w, "%s event %d is submitted while event %d of its key is in flight", s->name,
                     n, a);
    }
    return k;
}

void check_answered(struct sim *w, struct claim *k, int n, enum sink_status said,
                    const struct sending *sent)
{
    struct subject *s = &w->subject[k->consumer];
    int i = check_place(k, n);
    k->delivered[i] = said == SINK_DELIVERED;
    k->refused[i] = said == SINK_REFUSED;
    if (said == SINK_REJECT)
        k->rejected[i] = true;
    if (said != SINK_RETRY && said != SINK_REJECT)
        return;
    k->failed[i]++;
    k->sent[i] = *sent;
    if (k->life != s->life)
        return;
    struct track *t = &s->t[n];
    t->failed[t->failures++ % SIM_FAILURES] = *sent;
}
