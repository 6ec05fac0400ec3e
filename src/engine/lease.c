/* lease.c: renews the leases of the claims in flight after half of their time, and detects lost
 * claims. */
#include "base/num.h"
#include "engine/pipeline_impl.h"

struct claim_lease lease_of(const struct pipeline *p, const struct batch *claim)
{
    return (struct claim_lease){.consumer = p->c->name,
                                .owner = p->cfg.owner,
                                .epoch = claim->epoch,
                                .lease_ms = p->c->lease_ms};
}

void lease_start(const struct pipeline *p, struct batch_state *b, int64_t now)
{
    b->deadline = now + p->c->lease_ms * MS_NS;
}

/* Returns when half of the lease is over. */
static int64_t renewal_at(const struct pipeline *p, const struct batch_state *b)
{
    return b->deadline - p->c->lease_ms * MS_NS / 2;
}

int64_t lease_wake(const struct pipeline *p)
{
    int64_t at = CLOCK_NEVER;
    for (size_t i = 0; i < p->inflight.n; i++) {
        const struct batch_state *b = p->inflight.batch[i];
        if (!b->lost)
            at = min_i64(at, renewal_at(p, b));
    }
    return at;
}

static bool has_one_writer(const struct pipeline *p)
{
    return (p->cfg.st->caps & STORE_ONE_WRITER) != 0;
}

void lease_freeze(struct pipeline *p, bool frozen)
{
    if (p->cfg.progress && has_one_writer(p))
        atomic_store(&p->cfg.progress->frozen, frozen);
}

bool lease_allows(const struct pipeline *p, const struct batch_state *b, int64_t now)
{
    bool frozen = effects_in_tx(&p->effects) && has_one_writer(p);
    if (frozen)
        return true;
    if (now >= b->deadline)
        return false;
    bool first_half = now < renewal_at(p, b);
    return first_half || schedule_store_away(&p->schedule, now);
}

void lease_lose(struct pipeline *p, struct batch_state *b, const char *why)
{
    if (b->lost)
        return;
    inflight_lose(&p->inflight, b);
    p->stats.lost++;
    log_at(p->cfg.log, LOG_WARN_, p->c->name,
           "claim %lld is lost: %s; events that will be delivered again: %zu",
           (long long)b->claim.epoch, why, b->claim.n);
}

/* Asks the store for a new lease that begins now. Returns -1 if the store failed. */
static int renew(struct pipeline *p, struct batch_state *b)
{
    int64_t now = pipeline_now(p);
    struct error err;
    bool lost;
    struct claim_lease lease = lease_of(p, &b->claim);
    if (p->cfg.st->ops->extend(p->cfg.st, &lease, &lost, &err) != 0) {
        schedule_store_pause(&p->schedule, now);
        p->stats.meter.renewals[RENEWAL_ERROR]++;
        log_at(p->cfg.log, LOG_WARN_, p->c->name, "could not extend a claim: %s", err.text);
        return -1;
    }
    if (lost) {
        p->stats.meter.renewals[RENEWAL_LOST]++;
        lease_lose(p, b, "another worker has taken it over");
        return 0;
    }
    p->stats.meter.renewals[RENEWAL_OK]++;
    lease_start(p, b, now);
    return 0;
}

/* All leases are renewed together, from the newest claim to the oldest, up to the first failure. So
 * of two claims of a lane, the older never expires after the newer, and a worker that takes over
 * gets their events in order. A claim past its deadline may belong to another worker: none of its
 * events are submitted (see lease_allows) until the store confirms that it is still ours. */
void lease_renew(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    if (schedule_store_away(&p->schedule, now) || now < lease_wake(p))
        return;
    for (size_t i = p->inflight.n; i-- > 0;) {
        struct batch_state *b = p->inflight.batch[i];
        if (!b->lost && renew(p, b) != 0)
            return;
    }
}
