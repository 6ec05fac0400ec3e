/* lease.c: extends the claims of the batches in hand, and finds out if they are lost. */
#include "engine/pipeline_impl.h"

void lease_lose(struct pipeline *p, struct live *l, const char *why)
{
    if (l->lost)
        return;
    hand_lose(&p->hand, l);
    p->stats.lost++;
    log_at(p->cfg.log, LOG_WARN_, p->c->name,
           "claim %lld is lost: %s; what it held will be delivered again: %zu",
           (long long)l->b.epoch, why, l->b.n);
}

/* extend asks the store for a new lease that begins now. Returns -1 if the store failed. */
static int extend(struct pipeline *p, struct live *l)
{
    int64_t now = pipeline_now(p);
    struct error err;
    bool lost;
    struct claim_lease lease = pipeline_lease(p, &l->b);
    if (p->cfg.st->ops->extend(p->cfg.st, &lease, &lost, &err) != 0) {
        schedule_store_pause(&p->schedule, now);
        p->stats.meter.renewals[RENEWAL_ERROR]++;
        log_at(p->cfg.log, LOG_WARN_, p->c->name, "could not extend a claim: %s", err.text);
        return -1;
    }
    if (lost) {
        p->stats.meter.renewals[RENEWAL_LOST]++;
        lease_lose(p, l, "another worker has taken it over");
        return 0;
    }
    p->stats.meter.renewals[RENEWAL_OK]++;
    l->deadline = now + p->c->lease_ms * MS_NS;
    return 0;
}

/* extend_all goes from the newest claim to the oldest and stops at a failure. So of two claims of a
 * lane, the older never expires after the newer, and whoever takes over gets their events in
 * order. */
static void extend_all(struct pipeline *p)
{
    for (size_t i = p->hand.n; i-- > 0;) {
        struct live *l = p->hand.live[i];
        if (l->lost)
            continue;
        if (extend(p, l) != 0)
            return;
    }
}

/* any_half_gone says whether a claim has used up half of its lease. */
static bool any_half_gone(const struct pipeline *p, int64_t now)
{
    for (size_t i = 0; i < p->hand.n; i++) {
        const struct live *l = p->hand.live[i];
        if (!l->lost && now >= pipeline_half_lease(p, l))
            return true;
    }
    return false;
}

/* lease_keep extends all claims once half of any lease is over. A claim past its deadline may
 * belong to somebody else: nothing of it is submitted (see lease_allows in deliver.c) until the
 * store has said that it is still ours. */
void lease_keep(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    if (schedule_store_away(&p->schedule, now))
        return;
    if (any_half_gone(p, now))
        extend_all(p);
}
