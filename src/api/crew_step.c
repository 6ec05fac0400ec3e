/* crew_step.c: one turn of all runners, in the caller's thread. */
#include "api/crew.h"
#include "api/heart.h"
#include "api/runner.h"

static int64_t delivered_by(struct runner *const *r, size_t n)
{
    int64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += pipeline_stats(r[i]->p)->delivered;
    return total;
}

static int64_t failures_of(const struct runner *r)
{
    return pipeline_stats(r->p)->retried + pipeline_stats(r->p)->buried;
}

/* step_all goes round until a whole round delivers nothing, because a handler may emit events for a
 * consumer that has already had its turn. */
static int step_all(struct runner *const *r, size_t n, struct error *err)
{
    int64_t before;
    do {
        before = delivered_by(r, n);
        for (size_t i = 0; i < n; i++) {
            pipeline_ring(r[i]->p);
            if (runner_finish(r[i], err) != 0)
                return -1;
        }
    } while (delivered_by(r, n) != before);
    return 0;
}

static int open_to_step(struct runner *r, struct error *err)
{
    if (runner_open(r, false, err) != 0)
        return -1;
    if (pipeline_register(r->p, err) == 0)
        return 0;
    runner_close(r);
    return -1;
}

/* ready_to_step opens the runners that no earlier step has left open. */
static int ready_to_step(struct runner *const *r, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        bool is_open = r[i]->p != NULL;
        if (!is_open && open_to_step(r[i], err) != 0)
            return -1;
        r[i]->failures = failures_of(r[i]);
    }
    return 0;
}

/* tell_failure makes an event that failed in this step the caller's error, unless *result says that
 * there is one already. */
static void tell_failure(const struct runner *r, int *result, struct error *err)
{
    bool failed = failures_of(r) > r->failures;
    if (*result != 0 || !failed)
        return;
    *result = err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0, "consumer \"%s\": %s",
                        r->consumer->name, pipeline_failure(r->p));
}

static void show_all(struct crew *w, struct runner *const *r, size_t n)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < n; i++)
        runner_show(r[i]);
    pthread_mutex_unlock(&w->lock);
}

/* step is crew_step on runners that are open. */
static int step(struct crew *w, struct runner *const *r, size_t n, size_t *ret_delivered,
                struct error *err)
{
    struct heart heart;
    if (heart_start(&heart, w, r, n, err) != 0)
        return -1;
    int64_t before = delivered_by(r, n);
    int result = step_all(r, n, err);
    heart_stop(&heart);

    show_all(w, r, n);
    if (ret_delivered)
        *ret_delivered = (size_t)(delivered_by(r, n) - before);
    for (size_t i = 0; i < n; i++) {
        tell_failure(r[i], &result, err);
        runner_leave(r[i], err, &result);
    }
    return result;
}

int crew_step(struct crew *w, struct runner *const *r, size_t n, size_t *ret_delivered,
              struct error *err)
{
    struct crew_duty duty;
    crew_duty_begin(&duty, w);
    w->budget.limit = (size_t)w->memory;
    int result = ready_to_step(r, n, err);
    if (result == 0)
        result = step(w, r, n, ret_delivered, err);
    crew_duty_end(&duty);
    return result;
}
