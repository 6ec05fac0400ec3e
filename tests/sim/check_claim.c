/* check_claim.c: the checker on claims: which worker has which events, and for how long (G5,
 * G9). */
#include "check_impl.h"
#include "engine/inflight.h"

struct claim *check_find(struct sim *w, const struct relay *r, int c, int64_t epoch)
{
    for (size_t i = w->n_claims; i-- > 0;) {
        struct claim *k = &w->claim[i];
        if (k->consumer == c && k->epoch == epoch && k->relay == r->id && k->start == r->start)
            return k;
    }
    sim_fail(w, "claim %lld of %s does not exist", (long long)epoch, check_name(w, c));
}

struct claim *check_holder(struct sim *w, int c, int64_t epoch)
{
    for (size_t i = w->n_claims; i-- > 0;) {
        struct claim *k = &w->claim[i];
        if (k->consumer == c && k->epoch == epoch && k->life == w->subject[c].life)
            return k;
    }
    sim_fail(w, "claim %lld of %s does not exist", (long long)epoch, check_name(w, c));
}

int check_place(const struct claim *k, int n)
{
    for (size_t i = 0; i < k->n; i++)
        if (k->ev[i] == n)
            return (int)i;
    return -1;
}

/* An event may be in two claims of one relay, if the consumer was removed and recreated meanwhile;
 * so the claim is found by its epoch, not by the event. */
struct claim *check_claim_of(struct sim *w, const struct relay *r, int c, const struct delivery *d)
{
    struct claim *k = check_find(w, r, c, ((const struct slot *)d)->batch->claim.epoch);
    int n = check_number_in(d->ev);
    if (check_place(k, n) < 0)
        sim_fail(w, "%s received event %d, which is not in claim %lld", check_name(w, c), n,
                 (long long)k->epoch);
    return k;
}

/* taken_over checks that an event in another claim is claimed again only after that claim has
 * expired, and then alone if it can kill its worker (G5, G9). */
static void taken_over(struct sim *w, const struct deed *by, const struct claim *now, int n)
{
    struct track *t = &w->subject[now->consumer].t[n];
    if (!t->holder)
        return;
    struct claim *k = check_holder(w, now->consumer, t->holder);
    if (k->state == CLAIM_LIVE && by->wall_most < k->until_least)
        sim_fail(w,
                 "stolen: %s event %d is handed out, while claim %lld has it for another %lld ms",
                 check_name(w, k->consumer), n, (long long)k->epoch,
                 (long long)(k->until_least - by->wall_most));
    k->state = CLAIM_SUPERSEDED;
    t->attempts += k->blamed;
    bool deadly = relay_deadly(w->subject[k->consumer].kind);
    if (deadly && !now->suspect)
        sim_fail(
            w,
            "%s event %d was in flight when its worker vanished, and is not handed out carefully",
            check_name(w, k->consumer), n);
}

static void claimed_event(struct sim *w, const struct deed *by, struct claim *k,
                          const struct batch *b, const struct event *ev)
{
    struct subject *s = &w->subject[k->consumer];
    int n = check_number(w, ev), of;
    struct track *t = &s->t[n];
    const struct fact *f = &w->fact[n];
    if (!check_there(w, k->consumer, n))
        sim_fail(w, "%s received event %d from before its start", s->name, n);
    if (!(b->parked ? check_matching(s, f, &of) > 0 : check_matches(s->reg.filter, f)))
        sim_fail(w, "%s received event %d, which its filter excludes", s->name, n);
    if (t->settled)
        sim_fail(w, "duplicate: %s received event %d, whose delivery was recorded", s->name, n);
    if (t->dead || t->dropped)
        sim_fail(w, "%s received event %d, which is a dead letter", s->name, n);
    taken_over(w, by, k, n);
    if (ev->attempts != t->attempts)
        sim_fail(w, "%s received event %d with %d attempts, expected %d", s->name, n, ev->attempts,
                 t->attempts);
    if (ev->attempts >= SIM_ATTEMPTS)
        sim_fail(w, "%s event %d has exhausted its attempts but was not buried", s->name, n);
    t->holder = k->epoch;
    k->ev[k->n++] = n;
}

void check_claimed(struct sim *w, const struct deed *by, const struct batch *b)
{
    struct subject *s = &w->subject[by->c];
    if (w->n_claims == SIM_CLAIMS)
        sim_fail(w, "too many claims for this simulator");
    if (s->paused)
        sim_fail(w, "%s received events while paused", s->name);
    if (b->n > (size_t)SIM_BATCH)
        sim_fail(w, "%s received %zu events at once", s->name, b->n);
    if (b->epoch <= s->epoch)
        sim_fail(w, "%s: epoch %lld after %lld", s->name, (long long)b->epoch, (long long)s->epoch);
    if (b->suspect && b->n != 1)
        sim_fail(w, "%s: %zu events in a careful batch", s->name, b->n);
    s->epoch = b->epoch;
    struct claim *k = &w->claim[w->n_claims++];
    *k = (struct claim){.consumer = by->c,
                        .life = s->life,
                        .relay = by->r->id,
                        .start = by->r->start,
                        .epoch = b->epoch,
                        .suspect = b->suspect,
                        .blamed = b->blamed,
                        .until_least = by->wall + SIM_LEASE,
                        .mono_until = w->mono + SIM_LEASE * MS_NS};
    for (size_t i = 0; i < b->n; i++)
        claimed_event(w, by, k, b, &b->ev[i]);
    w->totals->claims++;
    sim_trace(w, "relay %d claims %s epoch %lld: events %d..%d (%zu)%s%s", by->r->id, s->name,
              (long long)b->epoch, k->ev[0], k->ev[k->n - 1], k->n, b->parked ? " parked" : "",
              b->suspect ? " careful" : "");
}

bool check_honoured(struct sim *w, const struct deed *by, const struct claim *k, bool lost,
                    const char *what)
{
    const struct subject *s = &w->subject[by->c];
    bool current = s->there && k->life == s->life;
    if (lost) {
        w->totals->lost_claims++;
        if (current && k->state == CLAIM_LIVE && by->wall_most < k->until_least)
            sim_fail(w, "claim %lld of %s is valid for another %lld ms but could not be %s",
                     (long long)k->epoch, s->name, (long long)(k->until_least - by->wall_most),
                     what);
        return false;
    }
    if (!current)
        sim_fail(w, "zombie: claim %lld was %s, of a removed %s", (long long)k->epoch, what,
                 s->name);
    if (k->state != CLAIM_LIVE)
        sim_fail(w, "zombie: claim %lld of %s was %s after it ended", (long long)k->epoch, s->name,
                 what);
    return true;
}

void check_absolved(struct sim *w, const char *consumer, int64_t epoch)
{
    sim_trace(w, "%s epoch %lld is not alone", consumer, (long long)epoch);
    for (size_t i = 0; i < w->n_claims; i++) {
        struct claim *k = &w->claim[i];
        if (k->epoch == epoch && strcmp(check_name(w, k->consumer), consumer) == 0)
            k->blamed = false;
    }
}

void check_extended(struct sim *w, const struct deed *by, int64_t epoch, bool lost)
{
    struct claim *k = check_find(w, by->r, by->c, epoch);
    sim_trace(w, "relay %d extends %s epoch %lld: %s", by->r->id, check_name(w, by->c),
              (long long)k->epoch, lost ? "lost" : "done");
    if (!check_honoured(w, by, k, lost, "extended"))
        return;
    k->mono_until = w->mono + SIM_LEASE * MS_NS;
    /* Within a transaction the new lease counts only once that has committed; until then the old
     * one does. */
    if (!by->in_tx)
        k->until_least = by->wall + SIM_LEASE;
}
