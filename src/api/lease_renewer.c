#include "api/worker.h"
#include "base/clock.h"
#include "base/num.h"

#define LEASE_MAX_MS 30000 /* longer leases are renewed as often as a lease of this length */

/* Whether a call is past its time limit. Its claim is then left to expire; once another worker has
 * taken it over, the call cannot commit anything. If no other worker takes it over, the call still
 * counts, however late it returns. Each call is reported once. */
static bool is_overdue(struct lease_renewer *l, struct worker *w, int64_t started, int64_t now)
{
    int64_t took = now - started;
    long long ms = (long long)(took / MS_NS);
    if (took < w->consumer->timeout_ms * MS_NS)
        return false;
    if (w->overdue_since == started)
        return true;

    w->overdue_since = started;
    if (atomic_load(&w->call.frozen)) {
        log_at(l->sv->log, LOG_ERROR_, w->consumer->name,
               "a handler has run for %lld ms, its time limit, and no other connection can "
               "write to the database until it returns",
               ms);
        return true;
    }
    atomic_fetch_add(&w->given_up, 1);
    log_at(l->sv->log, LOG_ERROR_, w->consumer->name,
           "a handler has run for %lld ms, its time limit: its claim is no longer "
           "extended, and its event will be delivered again",
           ms);
    return true;
}

static int extend_claim(struct lease_renewer *l, const struct claim_lease *lease, bool *ret_lost,
                        struct error *err)
{
    if (!l->st && supervisor_store(l->sv, &l->st, err) != 0)
        return -1;
    return l->st->ops->extend(l->st, lease, ret_lost, err);
}

/* Extends the claim of a worker that is in a call, once half of the lease is over. Extending too
 * late, or after the call, is harmless, because the epoch identifies the claim. */
static void renew_lease(struct lease_renewer *l, struct worker *w, int64_t now)
{
    int64_t lease_ns = w->consumer->lease_ms * MS_NS;
    int64_t started = atomic_load(&w->call.started);
    int64_t deadline = atomic_load(&w->call.deadline);
    int64_t epoch = atomic_load(&w->call.epoch);
    if (started == 0)
        return;
    if (is_overdue(l, w, started, now))
        return;
    bool too_early = now < deadline - lease_ns / 2;
    if (too_early || atomic_load(&w->call.frozen))
        return;

    struct claim_lease lease = {.consumer = w->consumer->name,
                                .owner = w->owner,
                                .epoch = epoch,
                                .lease_ms = w->consumer->lease_ms};
    struct error err;
    bool lost;
    if (extend_claim(l, &lease, &lost, &err) != 0) {
        log_at(l->sv->log, LOG_WARN_, w->consumer->name, "could not extend a claim: %s", err.text);
        return;
    }
    if (!lost)
        atomic_compare_exchange_strong(&w->call.deadline, &deadline, now + lease_ns);
}

/* Waits for a period; false: the renewer must stop. */
static bool wait_period(struct lease_renewer *l, int64_t period_ns)
{
    int64_t until = clock_mono(&clock_system) + period_ns;
    pthread_mutex_lock(&l->lock);
    if (!l->stop)
        cond_wait(&l->wake, &l->lock, until);
    bool stop = l->stop;
    pthread_mutex_unlock(&l->lock);
    return !stop;
}

static void *renewer_main(void *arg)
{
    struct lease_renewer *l = arg;
    int64_t shortest_ms = LEASE_MAX_MS;
    for (size_t i = 0; i < l->n; i++) {
        if (l->workers[i]->n_handlers > 0)
            shortest_ms = min_i64(shortest_ms, l->workers[i]->consumer->lease_ms);
    }
    int64_t period_ns = shortest_ms * MS_NS / 8;

    while (wait_period(l, period_ns)) {
        /* Tell the store that the event being handled is not to blame if the process is killed now:
         * it is being stopped, and the operator may lose patience. */
        struct suspect_claim c;
        if (atomic_load(&l->sv->stop) && suspect_all_absolve(&l->sv->suspects, &c)) {
            struct claim_lease lease = suspect_lease(&c);
            struct error err;
            bool lost;
            if (extend_claim(l, &lease, &lost, &err) != 0)
                log_at(l->sv->log, LOG_WARN_, c.consumer, "store: %s", err.text);
        }
        for (size_t i = 0; i < l->n; i++)
            renew_lease(l, l->workers[i], clock_mono(l->sv->clock));
    }
    return NULL;
}

int lease_renewer_start(struct lease_renewer *l, struct supervisor *sv, struct worker *const *w,
                        size_t n, struct error *err)
{
    bool any_handlers = false;
    *l = (struct lease_renewer){.sv = sv, .workers = w, .n = n};
    for (size_t i = 0; i < n; i++)
        any_handlers = any_handlers || w[i]->n_handlers > 0;
    if (!any_handlers)
        return 0;

    pthread_mutex_init(&l->lock, NULL);
    cond_init(&l->wake);
    int e = pthread_create(&l->thread, NULL, renewer_main, l);
    if (e == 0) {
        l->running = true;
        return 0;
    }
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    return err_errno(err, ERR_UNAVAILABLE, e,
                     "could not start a thread (out of memory, or too many)");
}

void lease_renewer_stop(struct lease_renewer *l)
{
    if (!l->running)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    store_close(l->st);
    l->running = false;
}
