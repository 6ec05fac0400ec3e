/* heart.c: extends the claims of handlers that take long. Handlers occupy the threads of their
 * consumers, so it has a thread and a store handle of its own. */
#include <time.h>

#include "api/heart.h"
#include "api/runner.h"

/* give_up notes that a call is past its time limit. Its claim will expire, and once another worker
 * has taken over, nothing that the call still does will be committed. But while the claim cannot
 * change hands, what it does will count, however late. */
static void give_up(struct heart *h, struct runner *r, int64_t took)
{
    long long ms = (long long)(took / MS_NS);
    if (atomic_load(&r->pulse.frozen)) {
        log_at(h->crew->log, LOG_ERROR_, r->consumer->name,
               "a handler has run for %lld ms, which is its time limit, and nobody else can "
               "write to the database meanwhile",
               ms);
        return;
    }
    atomic_fetch_add(&r->hung, 1);
    log_at(h->crew->log, LOG_ERROR_, r->consumer->name,
           "a handler has run for %lld ms, which is its time limit: its claim is no longer "
           "extended, and its event will be delivered again",
           ms);
}

/* given_up says whether a call is past its time limit. Each call is given up once. */
static bool given_up(struct heart *h, struct runner *r, int64_t started, int64_t now)
{
    int64_t took = now - started;
    if (took < r->consumer->timeout_ms * MS_NS)
        return false;
    if (r->hung_since != started) {
        r->hung_since = started;
        give_up(h, r, took);
    }
    return true;
}

static int extend_lease(struct heart *h, const struct claim_lease *l, bool *ret_lost,
                        struct error *err)
{
    if (!h->st && crew_handle(h->crew, &h->st, err) != 0)
        return -1;
    return h->st->ops->extend(h->st, l, ret_lost, err);
}

static int extend(struct heart *h, const struct runner *r, int64_t epoch, bool *ret_lost,
                  struct error *err)
{
    struct claim_lease l = {.consumer = r->consumer->name,
                            .owner = r->owner,
                            .epoch = epoch,
                            .lease_ms = r->consumer->lease_ms};
    return extend_lease(h, &l, ret_lost, err);
}

/* beat extends the claim of a runner that is in a call, once half of the lease is over. It does no
 * harm if that comes too late or after the call, because the epoch identifies the claim. */
static void beat(struct heart *h, struct runner *r, int64_t now)
{
    int64_t lease = r->consumer->lease_ms * MS_NS;
    int64_t started = atomic_load(&r->pulse.started);
    int64_t deadline = atomic_load(&r->pulse.deadline);
    int64_t epoch = atomic_load(&r->pulse.epoch);
    if (started == 0)
        return;
    if (given_up(h, r, started, now))
        return;
    bool too_early = now < deadline - lease / 2;
    if (too_early || atomic_load(&r->pulse.frozen))
        return;

    struct error err;
    bool lost;
    if (extend(h, r, epoch, &lost, &err) != 0) {
        log_at(h->crew->log, LOG_WARN_, r->consumer->name, "could not extend a claim: %s",
               err.text);
        return;
    }
    if (!lost)
        atomic_compare_exchange_strong(&r->pulse.deadline, &deadline, now + lease);
}

/* period_of returns the pause between two beats: an eighth of the shortest lease. */
static int64_t period_of(const struct heart *h)
{
    int64_t least = INT64_C(30000);
    for (size_t i = 0; i < h->n; i++) {
        const struct runner *r = h->r[i];
        bool shorter = r->consumer->lease_ms < least;
        if (r->n_handlers > 0 && shorter)
            least = r->consumer->lease_ms;
    }
    return least * MS_NS / 8;
}

/* rest waits for the next beat. Returns false if the heart is to stop. */
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

/* absolve tells the store that the event which is being handled is not to blame if the process is
 * killed now: it is being stopped, and whoever stops it may lose patience. */
static void absolve(struct heart *h)
{
    struct suspect_claim c;
    struct error err;
    bool lost;
    if (!suspect_all_absolve(&h->crew->suspects, &c))
        return;
    struct claim_lease l = suspect_lease(&c);
    if (extend_lease(h, &l, &lost, &err) != 0)
        log_at(h->crew->log, LOG_WARN_, c.consumer, "store: %s", err.text);
}

static void *heart_main(void *arg)
{
    struct heart *h = arg;
    int64_t period = period_of(h);
    while (rest(h, period)) {
        if (atomic_load(&h->crew->stop))
            absolve(h);
        for (size_t i = 0; i < h->n; i++)
            beat(h, h->r[i], clock_mono(h->crew->clock));
    }
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
    if (e == 0) {
        h->beats = true;
        return 0;
    }
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    return err_errno(err, ERR_UNAVAILABLE, e,
                     "could not start a thread (out of memory, or too many)");
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
