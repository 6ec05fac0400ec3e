/* watcher.c: which consumers are woken, and when. Only the watcher's thread listens for the store's
 * wake-ups. It then polls once for new events, on behalf of all consumers, and wakes those that
 * want them.
 *
 * No commit is missed: each is covered by a poll, the poll wakes a consumer only after the commit
 * is visible, and a consumer clears its wake-up before its turn, so a wake-up during the turn leads
 * to another turn. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/num.h"
#include "pool/pool_impl.h"

#define QUERY_FROM 3         /* from this many consumers on, a query costs less than their turns */
#define UNREACHABLE_WAIT 500 /* ms between polls while the store is unreachable */
#define WAIT_MAX (3600 * 1000) /* ms */

static void wake_all(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    for (const struct pooled_store *ps = p->stores; ps; ps = ps->next) {
        if (ps->filter)
            wake_fd_signal(ps->wake_fd);
    }
    pthread_mutex_unlock(&p->lock);
}

/* Whether a consumer may want an event. A payload that was not read counts as a match. */
static bool wants_event(const struct pooled_store *ps, const struct event *ev)
{
    if (!ps->filter || !filter_type(ps->filter, ev->type))
        return false;
    bool unread = ev->payload.p == NULL;
    return unread || !filter_has_where(ps->filter) || filter_payload(ps->filter, ev->payload);
}

static void wake_for(void *ctx, const struct event *ev)
{
    struct pool *p = ctx;
    pthread_mutex_lock(&p->lock);
    for (const struct pooled_store *ps = p->stores; ps; ps = ps->next) {
        if (wants_event(ps, ev))
            wake_fd_signal(ps->wake_fd);
    }
    pthread_mutex_unlock(&p->lock);
}

/* Notes which session blocks wake-ups, for the consumers to report. Returns whether that
 * changed. */
static bool note_blocker(struct pool *p, const char *blocker)
{
    char now[POOL_BLOCKER] = "";
    if (blocker)
        snprintf(now, sizeof now, "%s", blocker);
    pthread_mutex_lock(&p->lock);
    bool news = strcmp(now, p->wake_blocker) != 0;
    memcpy(p->wake_blocker, now, sizeof now);
    pthread_mutex_unlock(&p->lock);
    return news;
}

/* Reports each reason for failing polls once: until polls succeed again, consumers are woken only
 * at intervals, so events wait longer. */
static void report_status(struct pool *p, const struct error *why)
{
    static const struct error none;
    struct error *reported = &p->watcher.reported;
    const struct error *now = why ? why : &none;
    bool same = now->code == reported->code && strcmp(now->text, reported->text) == 0;
    if (same)
        return;
    if (p->cfg.watch_status)
        p->cfg.watch_status(p->cfg.ctx, why);
    *reported = *now;
}

/* Wakes the consumers that want new events. Returns when the next poll is due, in ms; -1: at the
 * store's wake-up. */
static int64_t poll_once(struct pool *p)
{
    struct store *st = p->watcher.st;
    struct watch_result found;
    struct error why = {0};
    bool payloads = false;
    pthread_mutex_lock(&p->lock);
    bool skip_query = p->n_consumers < QUERY_FROM;
    for (const struct pooled_store *ps = p->stores; ps; ps = ps->next)
        payloads = payloads || (ps->filter && filter_has_where(ps->filter));
    pthread_mutex_unlock(&p->lock);

    do {
        st->ops->wake_clear(st);
        if (st->ops->poll_new(st, skip_query, payloads, wake_for, p, &found, &why) != 0) {
            report_status(p, &why);
            wake_all(p);
            return UNREACHABLE_WAIT;
        }
        report_status(p, NULL);
        bool news = note_blocker(p, found.wake_blocker);
        if (found.all || news)
            wake_all(p);
    } while (found.again);
    return found.wait_ms;
}

/* Waits for the store's wake-up, but no longer than until the next poll or sweep is due. Returns
 * false if the watcher is to stop. */
static bool wait_wakeup(struct watcher *w, int64_t poll_ms, int64_t sweep_ms)
{
    struct pollfd fds[] = {{.fd = w->stop_fd, .events = POLLIN},
                           {.fd = w->st->ops->wake_fd(w->st), .events = POLLIN}};
    int64_t wait_ms = min_i64(sweep_ms, WAIT_MAX);
    if (poll_ms >= 0)
        wait_ms = min_i64(wait_ms, poll_ms);
    poll(fds, 2, (int)wait_ms); /* a negative descriptor is ignored */
    return fds[0].revents == 0;
}

static void *watcher_main(void *arg)
{
    struct pool *p = arg;
    int64_t sweep_ns = p->cfg.sweep_ms * MS_NS;
    int64_t sweep_at = clock_mono(p->cfg.clock) + sweep_ns;
    int64_t poll_ms, sweep_ms;
    do {
        poll_ms = poll_once(p);
        int64_t now = clock_mono(p->cfg.clock);
        if (now >= sweep_at) {
            wake_all(p);
            sweep_at = now + sweep_ns;
        }
        sweep_ms = (sweep_at - now) / MS_NS + 1;
    } while (wait_wakeup(&p->watcher, poll_ms, sweep_ms));
    return NULL;
}

int pool_watch(struct pool *p, struct error *err)
{
    struct watcher *w = &p->watcher;
    w->stop_fd = wake_fd_new();
    if (w->stop_fd < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not create an eventfd");
    int e = pthread_create(&w->thread, NULL, watcher_main, p);
    if (e != 0) {
        close(w->stop_fd);
        return err_errno(err, ERR_UNAVAILABLE, e,
                         "could not start a thread (out of memory, or too many)");
    }
    w->running = true;
    return 0;
}

void watcher_stop(struct pool *p)
{
    struct watcher *w = &p->watcher;
    if (!w->running)
        return;
    wake_fd_signal(w->stop_fd);
    pthread_join(w->thread, NULL);
    close(w->stop_fd);
    w->running = false;
}
