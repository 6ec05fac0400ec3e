#include "engine/suspect.h"

#include <stdio.h>

void suspect_all_init(struct suspects *all)
{
    *all = (struct suspects){0};
    pthread_mutex_init(&all->lock, NULL);
    pthread_mutex_init(&all->asking, NULL);
}

void suspect_all_release(struct suspects *all)
{
    pthread_mutex_destroy(&all->asking);
    pthread_mutex_destroy(&all->lock);
}

/* Takes the right to claim an event that may be blamed. Returns false if another suspect is in
 * flight. */
static bool may_blame(struct suspect *s)
{
    struct suspects *all = s->all;
    if (!all)
        return true;
    pthread_mutex_lock(&all->asking);
    pthread_mutex_lock(&all->lock);
    size_t others = all->in_flight - s->in_flight;
    pthread_mutex_unlock(&all->lock);
    s->asking = others == 0;
    if (!s->asking)
        pthread_mutex_unlock(&all->asking);
    return s->asking;
}

enum suspect_policy suspect_ask(struct suspect *s, size_t others)
{
    if (others > 0 || !s->due)
        return SUSPECT_WAIT; /* others must end first; or the store has reported no suspect yet */
    if (may_blame(s))
        return SUSPECT_TAKE;
    return SUSPECT_BESIDE;
}

void suspect_withdraw(struct suspect *s)
{
    if (!s->asking)
        return;
    s->asking = false;
    pthread_mutex_unlock(&s->all->asking);
}

size_t suspect_begin(struct suspect *s, const struct claim_lease *c, bool blamed,
                     struct suspect_claim ret[2])
{
    struct suspects *all = s->all;
    size_t n = 0;
    suspect_end(s);
    s->claim = (struct suspect_claim){.epoch = c->epoch, .lease_ms = c->lease_ms};
    snprintf(s->claim.consumer, sizeof s->claim.consumer, "%s", c->consumer);
    snprintf(s->claim.owner, sizeof s->claim.owner, "%s", c->owner);
    s->in_flight = true;
    if (!all)
        return 0;

    if (!s->asking)
        pthread_mutex_lock(&all->asking);
    s->asking = true;
    pthread_mutex_lock(&all->lock);
    bool alone = all->in_flight++ == 0;
    if (alone && blamed) {
        all->blamed = s;
    } else {
        if (all->blamed)
            ret[n++] = all->blamed->claim;
        if (blamed)
            ret[n++] = s->claim;
        all->blamed = NULL;
    }
    pthread_mutex_unlock(&all->lock);
    suspect_withdraw(s);
    return n;
}

void suspect_end(struct suspect *s)
{
    struct suspects *all = s->all;
    if (!s->in_flight)
        return;
    s->in_flight = false;
    if (!all)
        return;
    pthread_mutex_lock(&all->lock);
    all->in_flight--;
    if (all->blamed == s)
        all->blamed = NULL;
    pthread_mutex_unlock(&all->lock);
}

bool suspect_all_absolve(struct suspects *all, struct suspect_claim *ret)
{
    pthread_mutex_lock(&all->lock);
    bool any = all->blamed != NULL;
    if (any)
        *ret = all->blamed->claim;
    all->blamed = NULL;
    pthread_mutex_unlock(&all->lock);
    return any;
}

struct claim_lease suspect_lease(const struct suspect_claim *c)
{
    return (struct claim_lease){.consumer = c->consumer,
                                .owner = c->owner,
                                .epoch = c->epoch,
                                .lease_ms = c->lease_ms,
                                .absolve = true};
}
