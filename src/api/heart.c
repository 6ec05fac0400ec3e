/* heart.c: extends the claims of handlers that take long. A thread of its own, since they have the
 * consumer's; and a connection, which is made when it is needed first. */
#include <time.h>

#include "api/heart.h"
#include "api/runner.h"

/* given_up says, once, that a call is past its time limit: its claim runs out, and once another
 * worker has taken over, what it still does comes to nothing. */
static bool given_up(struct heart *h, struct runner *r, int64_t started, int64_t now)
{
    if (now - started < r->consumer->timeout_ms * MS_NS)
        return false;
    if (r->hung_since == started)
        return true;
    r->hung_since = started;
    /* its claim cannot change hands: what it does will count, however late */
    if (atomic_load(&r->pulse.frozen)) {
        log_at(h->crew->log, LOG_ERROR_, r->consumer->name,
               "a handler is at work for %lld ms, which is its time limit, and nobody else can "
               "write to the database "
               "meanwhile",
               (long long)((now - started) / MS_NS));
        return true;
    }
    atomic_fetch_add(&r->hung, 1);
    log_at(h->crew->log, LOG_ERROR_, r->consumer->name,
           "a handler is at work for %lld ms, which is its time limit: its claim is not extended "
           "any more, and its event "
           "will be delivered again",
           (long long)((now - started) / MS_NS));
    return true;
}

/* beat extends the claim of r if it is in a call and half of the lease is gone. What is extended
 * too late, or after the call, does no harm: the store knows the epoch. */
static void beat(struct heart *h, struct runner *r, int64_t now)
{
    int64_t started = atomic_load(&r->pulse.started), lease = r->consumer->lease_ms * MS_NS;
    int64_t deadline = atomic_load(&r->pulse.deadline);
    struct batch b = {.epoch = atomic_load(&r->pulse.epoch)};
    struct error err;
    bool lost;
    if (started == 0 || given_up(h, r, started, now))
        return;
    if (atomic_load(&r->pulse.frozen) || now < deadline - lease / 2)
        return;
    if ((!h->st && h->crew->st->ops->dup(h->crew->st, &h->st, &err) != 0) ||
        h->st->ops->extend(h->st, r->consumer->name, r->owner, &b, r->consumer->lease_ms, &lost,
                           &err) != 0) {
        log_at(h->crew->log, LOG_WARN_, r->consumer->name, "could not extend a claim: %s",
               err.text);
        return;
    }
    if (!lost)
        atomic_compare_exchange_strong(&r->pulse.deadline, &deadline, now + lease);
}

static int64_t period_of(const struct heart *h)
{
    int64_t least = INT64_C(30000);
    for (size_t i = 0; i < h->n; i++)
        if (h->r[i]->n_handlers && h->r[i]->consumer->lease_ms < least)
            least = h->r[i]->consumer->lease_ms;
    return least * MS_NS / 8;
}

static bool rest(struct heart *h, int64_t period)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    int64_t at = (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec + period;
    ts = (struct timespec){at / 1000000000, at % 1000000000};
    pthread_mutex_lock(&h->lock);
    if (!h->stop)
        pthread_cond_timedwait(&h->wake, &h->lock, &ts);
    bool stop = h->stop;
    pthread_mutex_unlock(&h->lock);
    return !stop;
}

static void *heart_main(void *arg)
{
    struct heart *h = arg;
    int64_t period = period_of(h);
    while (rest(h, period))
        for (size_t i = 0; i < h->n; i++)
            beat(h, h->r[i], clock_mono(h->crew->clock));
    return NULL;
}

int heart_start(struct heart *h, struct crew *w, struct runner *const *r, size_t n,
                struct error *err)
{
    pthread_condattr_t monotonic;
    bool any = false;
    *h = (struct heart){.crew = w, .r = r, .n = n};
    for (size_t i = 0; i < n; i++)
        any = any || r[i]->n_handlers > 0;
    if (!any)
        return 0;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&h->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int e = pthread_create(&h->thread, NULL, heart_main, h);
    h->beats = e == 0;
    if (e == 0)
        return 0;
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    return err_errno(err, ERR_UNAVAILABLE, e, "could not start a thread");
}

void heart_stop(struct heart *h)
{
    if (!h->beats)
        return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    store_close(h->st);
    h->beats = false;
}
