/* check.c: the checker. It compares what it is told of with the producers' log, and with the
 * guarantees (docs/guarantees.md): whoever breaks one ends the run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/evidence.h"
#include "engine/live.h"
#include "sim.h"

/* a clock that ticks whenever it is looked at has ticked since the engine looked */
#define SLACK (20 * MS_NS)

static const char *name_of(const struct sim *w, int c)
{
    return w->subject[c].name;
}

/* ---- the producers' log ---- */

static int number_of(const struct event *ev)
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

/* check_number finds the event in the log: it must have been committed, and be what it was (G1,
 * G13). */
int check_number(struct sim *w, const struct event *ev)
{
    char payload[SIM_PAYLOAD];
    int n = number_of(ev);
    if (n < 0 || n >= w->n_facts)
        sim_fail(w, "phantom: an event with the payload %.*s", (int)ev->payload.n, ev->payload.p);
    const struct fact *f = &w->fact[n];
    if (f->told != TOLD_COMMITTED)
        sim_fail(w, "phantom: event %d, which was not committed", n);
    size_t size = check_payload(n, f, payload);
    if (ev->payload.n != size || memcmp(ev->payload.p, payload, size) != 0 ||
        !str_is(ev->type, sim_types[f->type]) || (f->seq && f->seq != ev->seq))
        sim_fail(w, "event %d is not what was emitted", n);
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

static bool there(const struct sim *w, int c, int n)
{
    const struct fact *f = &w->fact[n];
    const struct subject *s = &w->subject[c];
    if (f->told != TOLD_COMMITTED || (s->start == START_SEQ && f->seq < s->start_seq))
        return false;
    return f->ended > s->created || s->t[n].present;
}

/* matching says how many of the filters that were in force since the event was there it passes. */
static int matching(const struct subject *s, const struct fact *f, int *ret_of)
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
    int of, passes = matching(&w->subject[c], &w->fact[n], &of);
    return there(w, c, n) && passes == of;
}

/* ---- consumers ---- */

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
        /* the inbox knows, and it will not be called again */
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

/* ---- claims ---- */

static struct claim *find(struct sim *w, const struct relay *r, int c, int64_t epoch)
{
    for (size_t i = w->n_claims; i-- > 0;) {
        struct claim *k = &w->claim[i];
        if (k->consumer == c && k->epoch == epoch && k->relay == r->id && k->start == r->start)
            return k;
    }
    sim_fail(w, "claim %lld of %s was never made", (long long)epoch, name_of(w, c));
}

static struct claim *holder(struct sim *w, int c, int64_t epoch)
{
    for (size_t i = w->n_claims; i-- > 0;) {
        struct claim *k = &w->claim[i];
        if (k->consumer == c && k->epoch == epoch && k->life == w->subject[c].life)
            return k;
    }
    sim_fail(w, "claim %lld of %s was never made", (long long)epoch, name_of(w, c));
}

static int place_in(const struct claim *k, int n)
{
    for (size_t i = 0; i < k->n; i++)
        if (k->ev[i] == n)
            return (int)i;
    return -1;
}

/* check_claim_of: an event may be in two claims of a relay, if the consumer was removed and made
 * anew meanwhile. */
struct claim *check_claim_of(struct sim *w, const struct relay *r, int c, const struct delivery *d)
{
    struct claim *k = find(w, r, c, ((const struct item *)d)->live->b.epoch);
    int n = number_of(d->ev);
    if (place_in(k, n) < 0)
        sim_fail(w, "%s was handed event %d, which is not in claim %lld", name_of(w, c), n,
                 (long long)k->epoch);
    return k;
}

/* taken_over: what another claim has may be handed out again only when that one has run out, and
 * then carefully (G5, G9). */
static void taken_over(struct sim *w, const struct deed *by, const struct claim *now, int n)
{
    struct track *t = &w->subject[now->consumer].t[n];
    if (!t->holder)
        return;
    struct claim *k = holder(w, now->consumer, t->holder);
    if (k->state == CLAIM_LIVE && by->wall_most < k->until_least)
        sim_fail(w,
                 "stolen: %s event %d is handed out, while claim %lld has it for another %lld ms",
                 name_of(w, k->consumer), n, (long long)k->epoch,
                 (long long)(k->until_least - by->wall_most));
    k->state = CLAIM_SUPERSEDED;
    if (!now->careful)
        sim_fail(
            w,
            "%s event %d was in flight when its worker vanished, and is not handed out carefully",
            name_of(w, k->consumer), n);
}

static void claimed_event(struct sim *w, const struct deed *by, struct claim *k,
                          const struct batch *b, const struct event *ev)
{
    struct subject *s = &w->subject[k->consumer];
    int n = check_number(w, ev), of;
    struct track *t = &s->t[n];
    const struct fact *f = &w->fact[n];
    if (!there(w, k->consumer, n))
        sim_fail(w, "%s is handed event %d, which is before its start", s->name, n);
    if (!(b->parked ? matching(s, f, &of) > 0 : check_matches(s->reg.filter, f)))
        sim_fail(w, "%s is handed event %d, which its filter excludes", s->name, n);
    if (t->settled)
        sim_fail(w, "duplicate: %s is handed event %d, whose delivery was recorded", s->name, n);
    if (t->dead || t->dropped)
        sim_fail(w, "%s is handed event %d, which is a dead letter", s->name, n);
    taken_over(w, by, k, n);
    if (ev->attempts != t->attempts)
        sim_fail(w, "%s event %d comes with %d attempts, it has had %d", s->name, n, ev->attempts,
                 t->attempts);
    if (ev->attempts >= SIM_ATTEMPTS)
        sim_fail(w, "%s event %d has had all its attempts, and lives", s->name, n);
    t->attempts += b->careful;
    t->holder = k->epoch;
    k->ev[k->n++] = n;
}

void check_claimed(struct sim *w, const struct deed *by, const struct batch *b)
{
    struct subject *s = &w->subject[by->c];
    if (w->n_claims == SIM_CLAIMS)
        sim_fail(w, "too many claims for this simulator");
    if (s->paused)
        sim_fail(w, "%s is paused and is handed events", s->name);
    if (b->n > (size_t)SIM_BATCH)
        sim_fail(w, "%s is handed %zu events at once", s->name, b->n);
    if (b->epoch <= s->epoch)
        sim_fail(w, "%s: epoch %lld after %lld", s->name, (long long)b->epoch, (long long)s->epoch);
    if (b->careful && b->n != 1)
        sim_fail(w, "%s: %zu events in a careful batch", s->name, b->n);
    s->epoch = b->epoch;
    struct claim *k = &w->claim[w->n_claims++];
    *k = (struct claim){.consumer = by->c,
                        .life = s->life,
                        .relay = by->r->id,
                        .start = by->r->start,
                        .epoch = b->epoch,
                        .careful = b->careful,
                        .until_least = by->wall + SIM_LEASE,
                        .mono_until = w->mono + SIM_LEASE * MS_NS};
    for (size_t i = 0; i < b->n; i++)
        claimed_event(w, by, k, b, &b->ev[i]);
    w->totals->claims++;
    sim_trace(w, "relay %d claims %s epoch %lld: events %d..%d (%zu)%s%s", by->r->id, s->name,
              (long long)b->epoch, k->ev[0], k->ev[k->n - 1], k->n, b->parked ? " parked" : "",
              b->careful ? " careful" : "");
}

/* honoured: the store let the holder of a claim do something. Then it must be that one's, and
 * alive; and if it did not, it must not be (G5). */
static bool honoured(struct sim *w, const struct deed *by, const struct claim *k, bool lost,
                     const char *what)
{
    const struct subject *s = &w->subject[by->c];
    bool current = s->there && k->life == s->life;
    if (lost) {
        w->totals->lost_claims++;
        if (current && k->state == CLAIM_LIVE && by->wall_most < k->until_least)
            sim_fail(w, "claim %lld of %s is alive for another %lld ms, and was refused to be %s",
                     (long long)k->epoch, s->name, (long long)(k->until_least - by->wall_most),
                     what);
        return false;
    }
    if (!current)
        sim_fail(w, "zombie: claim %lld was %s, of a %s that is no more", (long long)k->epoch, what,
                 s->name);
    if (k->state != CLAIM_LIVE)
        sim_fail(w, "zombie: claim %lld of %s is over, and was %s", (long long)k->epoch, s->name,
                 what);
    return true;
}

void check_extended(struct sim *w, const struct deed *by, const struct batch *b, bool lost)
{
    struct claim *k = find(w, by->r, by->c, b->epoch);
    sim_trace(w, "relay %d extends %s epoch %lld: %s", by->r->id, name_of(w, by->c),
              (long long)k->epoch, lost ? "lost" : "done");
    if (!honoured(w, by, k, lost, "extended"))
        return;
    k->mono_until = w->mono + SIM_LEASE * MS_NS;
    /* In a transaction it counts only once that is committed; until then, and if it never is, the
     * old one does. */
    if (!by->in_tx)
        k->until_least = by->wall + SIM_LEASE;
}

/* ---- settlements ---- */

static void keep_outcomes(struct sim *w, const struct settlement *s, struct settled *ret)
{
    for (size_t i = 0; i < ret->k->n; i++) {
        int n = ret->k->ev[i];
        ret->e[i].ev = n;
        ret->e[i].kind = OUTCOME_DELIVERED;
        ret->e[i].released = s->release_from && s->b->ev[i].seq >= s->release_from;
    }
    for (size_t i = 0; i < s->n; i++) {
        int at = place_in(ret->k, number_of(s->out[i].ev));
        if (at < 0)
            sim_fail(w, "a settlement names an event that is not in its claim");
        ret->e[at].kind = s->out[i].kind;
        ret->e[at].attempts = s->out[i].attempts;
    }
}

void check_settling(struct sim *w, const struct deed *by, const struct settlement *s, bool lost,
                    struct settled *ret)
{
    struct claim *k = find(w, by->r, by->c, s->b->epoch);
    *ret = (struct settled){.k = k, .n = k->n, .lost = lost};
    sim_trace(w, "relay %d settles %s epoch %lld: %s", by->r->id, name_of(w, by->c),
              (long long)k->epoch, lost ? "lost" : "recorded");
    ret->any = honoured(w, by, k, lost, "settled");
    if (ret->any)
        keep_outcomes(w, s, ret);
}

static void delivered(struct sim *w, struct claim *k, size_t i)
{
    struct subject *s = &w->subject[k->consumer];
    struct track *t = &s->t[k->ev[i]];
    /* may be in the inbox, then nobody is called */
    bool calls = s->kind == KIND_EFFECTS || s->kind == KIND_EACH;
    if (!calls && !k->delivered[i])
        sim_fail(w, "%s event %d is recorded as delivered, and the sink said no such thing",
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

/* was_out: the failure was the sink's, beyond doubt: it was out, and for a while yet, so that
 * nothing else got through. */
static bool was_out(const struct subject *s, const struct sending *sent)
{
    if (!sent->outage)
        return false;
    bool goes_on = s->mood == MOOD_OUT && s->outages == sent->outage;
    return goes_on || s->outage_end[sent->outage] > sent->at + EVIDENCE_NEAR;
}

/* guilty: it has failed at least once while the sink was not out. Asked only now: by now it is
 * known how long an outage was. */
static bool guilty(const struct subject *s, const struct track *t)
{
    for (int i = 0; i < SIM_FAILURES && i < t->failures; i++)
        if (!was_out(s, &t->failed[i]))
            return true;
    return t->failures > SIM_FAILURES; /* who knows what the others were */
}

/* passed_before is when the last was sent, before that time, that got through. */
static int64_t passed_before(const struct model *m, size_t n, int64_t at)
{
    int64_t last = 0;
    for (size_t p = 0; p < n; p++)
        if (m->passed[p] < at && m->passed[p] > last)
            last = m->passed[p];
    return last;
}

/* others_passed: the sink took something else that was sent right after it, and had not been out
 * for so long before that this was its return. The engine's times are those of the simulator, give
 * or take a tick. */
static bool others_passed(const struct sim *w, const struct claim *k, size_t i)
{
    const struct relay *r = &w->relay[k->relay];
    const struct model *m = r->pipe[k->consumer].model;
    if (!m || r->start != k->start)
        return false;
    int64_t sent = k->sent[i].at, before = passed_before(m, k->passed, sent);
    for (size_t p = 0; p < k->passed; p++) {
        bool near = m->passed[p] > sent + SLACK && m->passed[p] < sent + EVIDENCE_NEAR - SLACK;
        bool back = before == 0 || m->passed[p] - before >= EVIDENCE_PATIENCE - SLACK;
        if (near && !back)
            return true;
    }
    return false;
}

void check_judged(struct sim *w, const struct relay *r, int c, int64_t epoch)
{
    struct claim *k = find(w, r, c, epoch);
    if (k->judged || !r->pipe[c].model)
        return;
    k->judged = true;
    k->passed = r->pipe[c].model->n_passed;
}

/* check_counted: a failure is held against an event if others got through, and never if it has
 * failed only while the sink was out. */
static void check_counted(struct sim *w, const struct claim *k, size_t i, int attempts)
{
    const struct subject *s = &w->subject[k->consumer];
    struct track *t = &w->subject[k->consumer].t[k->ev[i]];
    int counted = attempts - (t->attempts - k->careful);
    if (counted < 0 || counted > 2)
        sim_fail(w, "%s event %d failed, and its attempts are %d after %d", s->name, k->ev[i],
                 attempts, t->attempts);
    if (counted > 0 && !guilty(s, t))
        sim_fail(w, "%s event %d has failed only while the sink was out, and it was counted",
                 s->name, k->ev[i]);
    if (counted == 0 && !w->plan.oom && others_passed(w, k, i))
        sim_fail(w, "%s event %d failed while others got through, and it was not counted", s->name,
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
            if (k->failed[i])
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
    if (t->attempts < SIM_ATTEMPTS)
        sim_fail(b->w, "%s event %d is buried for killing its worker, after %d attempts",
                 name_of(b->w, b->c), n, t->attempts);
    if (t->holder)
        holder(b->w, b->c, t->holder)->state = CLAIM_SUPERSEDED;
    t->holder = 0;
    died(b->w, t);
    b->n++;
    return 0;
}

/* check_buried: the store says it buried n events on which the process had died too often (G9). */
void check_buried(struct sim *w, struct store *st, int c, size_t n)
{
    struct burying b = {w, c, 0};
    struct error err;
    fail_disarm(); /* the checker has memory */
    if (st->ops->dead(st, &(struct dead_query){.consumer = name_of(w, c)}, buried, &b, &err) != 0)
        sim_fail(w, "%s", err.text);
    if (b.n != n)
        sim_fail(w, "%s: %zu events were buried, %zu are new dead letters", name_of(w, c), n, b.n);
}

/* ---- the sinks ---- */

static bool same_order(const struct fact *a, const struct fact *b, enum order order)
{
    if (order == ORDER_NONE)
        return false;
    return order == ORDER_GLOBAL || (a->key >= 0 && a->key == b->key);
}

/* precedes: b was inserted after a had committed, or later in the same transaction. Where there is
 * one writer: seq. */
static bool precedes(const struct sim *w, int a, int b)
{
    const struct fact *x = &w->fact[a], *y = &w->fact[b];
    if (!w->postgres)
        return x->seq < y->seq;
    return x->ended < y->inserted || (x->ended == y->ended && a < b);
}

/* check_arrived: it is on the other side. First arrivals of a key come in order (G4). */
void check_arrived(struct sim *w, struct claim *k, int c, int n, enum order order)
{
    struct subject *s = &w->subject[c];
    w->totals->arrivals++;
    /* of a consumer that is gone: nobody minds, but for the inbox */
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
        return; /* sent back, or by a zombie: out of turn */
    for (int a = 0; a < w->n_facts; a++) {
        const struct track *t = &s->t[a];
        if (a == n || t->first || t->was_dead || !same_order(&w->fact[a], &w->fact[n], order))
            continue;
        if (check_required(w, c, a) && precedes(w, a, n))
            sim_fail(w, "order: %s gets event %d before event %d of the same key (%d)", s->name, n,
                     a, w->fact[n].key);
    }
}

/* check_submitted: a relay hands this to its sink. The claim must be its own, and not past what it
 * knows of its lease; one of a key at a time; a careful one alone (G4, G5, G9). */
struct claim *check_submitted(struct sim *w, const struct model *m, const struct delivery *d)
{
    const struct subject *s = &w->subject[m->c];
    int n = check_number(w, d->ev);
    struct claim *k = check_claim_of(w, m->r, m->c, d);
    enum order order = m->r->pipe[m->c].as.order;
    if (w->mono >= k->mono_until + SLACK)
        sim_fail(w, "%s event %d is submitted past its lease", s->name, n);
    if (k->delivered[place_in(k, n)])
        sim_fail(w, "%s event %d is submitted again, after it was delivered", s->name, n);
    if (k->careful && m->n > 0)
        sim_fail(w, "%s careful event %d is submitted beside others", s->name, n);
    for (size_t i = 0; i < m->n; i++) {
        int a = number_of(m->d[i]->ev);
        if (m->k[i]->careful)
            sim_fail(w, "%s event %d is submitted beside careful event %d", s->name, n, a);
        /* a zombie's: it may arrive, as a repeat */
        if (m->k[i]->state == CLAIM_SUPERSEDED)
            continue;
        if (s->kind != KIND_FAILSTOP && same_order(&w->fact[a], &w->fact[n], order))
            sim_fail(w, "%s event %d is submitted while event %d of its key is in flight", s->name,
                     n, a);
    }
    return k;
}

void check_answered(struct sim *w, struct claim *k, int n, enum sink_status said,
                    const struct sending *sent)
{
    struct subject *s = &w->subject[k->consumer];
    int i = place_in(k, n);
    k->delivered[i] = said == SINK_DELIVERED;
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

/* ---- operators ---- */

/* check_jumped: the wall clock was set back. What had run out may be gone, and other leases are
 * pulled in, sooner or later. */
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

/* check_trimmed: what is gone now was needed by nobody (G10). */
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
            sim_fail(w, "retention: event %d is gone, and %s has not had it", n, name_of(w, c));
        }
    }
}

/* check_info: how the store says a consumer is. Nothing below its floor is needed, and that never
 * goes back. */
void check_info(struct sim *w, int c, const struct consumer_info *i)
{
    struct subject *s = &w->subject[c];
    /* On PostgreSQL an event below the floor may still commit, and what is given back is counted
     * with what the predicate excludes. */
    if (w->postgres)
        return;
    if (i->delivered != s->delivered)
        sim_fail(w, "%s: the store counts %lld delivered, the checker %lld", s->name,
                 (long long)i->delivered, (long long)s->delivered);
    if (i->floor < s->floor)
        sim_fail(w, "%s: its floor went back from %lld to %lld", s->name, (long long)s->floor,
                 (long long)i->floor);
    s->floor = i->floor;
    for (int n = 0; n < w->n_facts; n++) {
        const struct track *t = &s->t[n];
        if (w->fact[n].seq <= i->floor && check_required(w, c, n) && !t->settled && !t->was_dead)
            sim_fail(w, "%s: event %d is below its floor, and was not delivered", s->name, n);
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

/* check_effects: each event took effect once in the database, if it was delivered; outside at least
 * once (G8). */
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
                sim_fail(w, "%s handler %d took no effect for event %d", s->name, h, n);
        }
}

void check_end(struct sim *w, int c, const struct consumer_info *i)
{
    const struct subject *s = &w->subject[c];
    int64_t dead = 0;
    if (i->parked || i->inflight || i->behind)
        sim_fail(w, "%s is through, and has %lld parked, %lld in flight, is %lld behind", s->name,
                 (long long)i->parked, (long long)i->inflight, (long long)i->behind);
    for (int n = 0; n < w->n_facts; n++) {
        const struct track *t = &s->t[n];
        dead += t->dead;
        if (check_required(w, c, n) && !t->settled && !t->dead && !t->dropped)
            sim_fail(w, "lost: %s never got event %d", s->name, n);
    }
    if (dead != i->dead)
        sim_fail(w, "%s has %lld dead letters, the checker counts %lld", s->name,
                 (long long)i->dead, (long long)dead);
    if (s->kind == KIND_EFFECTS || s->kind == KIND_EACH)
        check_effects(w, c);
}
