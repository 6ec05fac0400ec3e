/* check_end.c: the checker on what operators do, and on the final state of a consumer (G8, G10). */
#include <string.h>

#include "check_impl.h"

void check_jumped(struct sim *w, int64_t back_ms)
{
    if (back_ms <= 0)
        return;
    for (size_t i = 0; i < w->n_claims; i++) {
        struct claim *k = &w->claim[i];
        if (w->wall + back_ms >= k->until_least)
            k->until_least = 0;
        if (k->until_least > w->wall + SIM_LEASE)
            k->until_least = w->wall + SIM_LEASE;
    }
}

void check_redriven(struct sim *w, int c)
{
    for (int n = 0; n < w->n_facts; n++) {
        struct track *t = &w->subject[c].t[n];
        if (!t->dead)
            continue;
        t->dead = false;
        t->attempts = 0;
    }
}

void check_dropped(struct sim *w, int c)
{
    for (int n = 0; n < w->n_facts; n++) {
        struct track *t = &w->subject[c].t[n];
        t->dropped = t->dropped || t->dead;
        t->dead = false;
    }
}

void check_trimmed(struct sim *w, int64_t tail)
{
    for (int n = 0; n < w->n_facts; n++) {
        struct fact *f = &w->fact[n];
        if (f->told != TOLD_COMMITTED || f->trimmed || (tail && f->seq >= tail))
            continue;
        f->trimmed = true;
        for (int c = 0; c < SIM_CONSUMERS; c++) {
            const struct track *t = &w->subject[c].t[n];
            if (!w->subject[c].there || !check_required(w, c, n) || t->settled || t->was_dead)
                continue;
            sim_fail(w, "retention: event %d was trimmed before %s received it", n,
                     check_name(w, c));
        }
    }
}

void check_info(struct sim *w, int c, const struct consumer_info *i)
{
    struct subject *s = &w->subject[c];
    /* On PostgreSQL an event below the floor may still commit, and released events are counted
     * together with events that the predicate excludes. */
    if (w->on->numbers == NUMBERED_AT_INSERT)
        return;
    if (i->delivered != s->delivered)
        sim_fail(w, "%s: the store counts %lld delivered, the checker %lld", s->name,
                 (long long)i->delivered, (long long)s->delivered);
    if (i->floor < s->floor)
        sim_fail(w, "%s: its floor moved back from %lld to %lld", s->name, (long long)s->floor,
                 (long long)i->floor);
    s->floor = i->floor;
    for (int n = 0; n < w->n_facts; n++) {
        const struct track *t = &s->t[n];
        if (w->fact[n].seq <= i->floor && check_required(w, c, n) && !t->settled && !t->was_dead)
            sim_fail(w, "%s: event %d is below its floor but was not delivered", s->name, n);
    }
}

static int took_effect[SIM_HANDLERS][SIM_CONSUMERS][SIM_EVENTS];

static void count_effect(struct sim *w, int handler, int consumer, int n)
{
    if (w->fact[n].told != TOLD_COMMITTED)
        sim_fail(w, "phantom: an effect of event %d, which was not committed", n);
    took_effect[handler][consumer][n]++;
    w->totals->effects++;
}

/* check_effects checks that each delivered event took effect once in the database, and at least
 * once outside of it (G8). */
static void check_effects(struct sim *w, int c)
{
    const struct subject *s = &w->subject[c];
    memset(took_effect, 0, sizeof took_effect);
    effect_each(w, count_effect);
    for (int n = 0; n < w->n_facts; n++)
        for (int h = 0; h < SIM_HANDLERS; h++) {
            bool outside = s->kind == KIND_EACH && h == 1;
            int times = outside ? s->outside[n] : took_effect[h][c][n];
            if (times > 1 && !outside)
                sim_fail(w, "%s handler %d took effect %d times for event %d", s->name, h, times,
                         n);
            if (times == 0 && s->t[n].settled)
                sim_fail(w, "%s handler %d had no effect for event %d", s->name, h, n);
        }
}

void check_end(struct sim *w, int c, const struct consumer_info *i)
{
    const struct subject *s = &w->subject[c];
    int64_t dead = 0;
    if (i->parked || i->inflight || i->behind)
        sim_fail(w, "%s has caught up but reports %lld parked, %lld in flight, %lld behind",
                 s->name, (long long)i->parked, (long long)i->inflight, (long long)i->behind);
    for (int n = 0; n < w->n_facts; n++) {
        const struct track *t = &s->t[n];
        dead += t->dead;
        if (check_required(w, c, n) && !t->settled && !t->dead && !t->dropped)
            sim_fail(w, "lost: %s never received event %d", s->name, n);
    }
    if (dead != i->dead)
        sim_fail(w, "%s has %lld dead letters, the checker counts %lld", s->name,
                 (long long)i->dead, (long long)dead);
    if (s->kind == KIND_EFFECTS || s->kind == KIND_EACH)
        check_effects(w, c);
}
