/* lookout.c: who is rung, and when. The lookout of a share is the one who listens for the bell.
 * When it rings, the lookout looks what is new, once for all seats, and rings those that it
 * concerns.
 *
 * No commit is missed. Each is covered by a look; the look rings a seat after the commit is
 * visible; and a seat clears its own bell before its turn, so a ring that comes during the turn
 * counts for the next. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "store/share_impl.h"

#define LOOK_FROM 3        /* seats from which on a look costs less than their turns */
#define UNREACHED_WAIT 500 /* ms between looks while the store cannot be asked */

static void ring(const struct share_seat_store *seat)
{
    uint64_t one = 1;
    /* A write fails only where the counter is full, and then the seat is being rung anyway. */
    if (write(seat->bell, &one, sizeof one) < 0)
        return;
}

static void ring_all(struct share *sh)
{
    pthread_mutex_lock(&sh->lock);
    for (const struct share_seat_store *s = sh->seats; s; s = s->next) {
        if (s->filter)
            ring(s);
    }
    pthread_mutex_unlock(&sh->lock);
}

/* wants says whether an event may be of interest to a seat. */
static bool wants(const struct share_seat_store *seat, const struct event *ev)
{
    if (!seat->filter || !filter_type(seat->filter, ev->type))
        return false;
    bool unread = ev->payload.p == NULL;
    return unread || !filter_has_where(seat->filter) || filter_payload(seat->filter, ev->payload);
}

/* ring_for is the new_event_visit: it rings those who want the event. */
static void ring_for(void *ctx, const struct event *ev)
{
    struct share *sh = ctx;
    pthread_mutex_lock(&sh->lock);
    for (const struct share_seat_store *s = sh->seats; s; s = s->next) {
        if (wants(s, ev))
            ring(s);
    }
    pthread_mutex_unlock(&sh->lock);
}

/* How a look has to be made for the seats there are. */
struct manner {
    bool blind, payloads;
};

static struct manner manner_of(struct share *sh)
{
    struct manner m = {0};
    pthread_mutex_lock(&sh->lock);
    m.blind = sh->n_seats < LOOK_FROM;
    for (const struct share_seat_store *s = sh->seats; s; s = s->next)
        m.payloads = m.payloads || (s->filter && filter_has_where(s->filter));
    pthread_mutex_unlock(&sh->lock);
    return m;
}

/* note_who remembers who keeps the bell from ringing, for the seats to tell. Returns whether that
 * is news. */
static bool note_who(struct share *sh, const char *who)
{
    char now[SHARE_WHO];
    snprintf(now, sizeof now, "%s", who ? who : "");
    pthread_mutex_lock(&sh->lock);
    bool news = strcmp(now, sh->wake_blocker) != 0;
    memcpy(sh->wake_blocker, now, sizeof now);
    pthread_mutex_unlock(&sh->lock);
    return news;
}

/* tell_why says why looks fail, once for each reason: until they succeed again, seats are rung now
 * and then, and events wait longer than they should. */
static void tell_why(struct share *sh, const struct error *why)
{
    static const struct error none;
    struct error *told = &sh->lookout.why;
    const struct error *now = why ? why : &none;
    bool same = now->code == told->code && strcmp(now->text, told->text) == 0;
    if (same)
        return;
    if (sh->cfg.told)
        sh->cfg.told(sh->cfg.ctx, why);
    *told = *now;
}

/* look makes one look, and rings. Returns when the next one is due, in ms; -1: when the bell
 * rings. */
static int64_t look(struct share *sh)
{
    struct store *st = sh->lookout.st;
    struct manner m = manner_of(sh);
    struct watch_result found;
    struct error why = {0};
    do {
        st->ops->wake_clear(st);
        if (st->ops->poll_new(st, m.blind, m.payloads, ring_for, sh, &found, &why) != 0) {
            tell_why(sh, &why);
            ring_all(sh);
            return UNREACHED_WAIT;
        }
        tell_why(sh, NULL);
        bool told = note_who(sh, found.wake_blocker);
        if (found.all || told)
            ring_all(sh);
    } while (found.again);
    return found.wait_ms;
}

/* lesser returns the lesser of two waits, of which -1 is the longest. */
static int64_t lesser(int64_t a, int64_t b)
{
    if (a < 0)
        return b;
    if (b < 0)
        return a;
    return a < b ? a : b;
}

/* rest waits for the bell, the end of the wait, or the end of the lookout. Returns false at the
 * last. */
static bool rest(struct lookout *l, int64_t wait_ms)
{
    struct pollfd fds[] = {{.fd = l->stop_fd, .events = POLLIN},
                           {.fd = l->st->ops->wake_fd(l->st), .events = POLLIN}};
    int timeout = wait_ms < 0 ? -1 : (int)lesser(wait_ms, 3600 * 1000);
    poll(fds, 2, timeout); /* a negative descriptor is ignored */
    return fds[0].revents == 0;
}

static void *lookout_main(void *arg)
{
    struct share *sh = arg;
    int64_t sweep = sh->cfg.sweep_ms;
    int64_t sweep_at = clock_mono(sh->cfg.clock) + sweep * MS_NS;
    int64_t wait;
    do {
        wait = look(sh);
        int64_t now = clock_mono(sh->cfg.clock);
        if (now >= sweep_at) {
            ring_all(sh);
            sweep_at = now + sweep * MS_NS;
        }
        wait = lesser(wait, (sweep_at - now) / MS_NS + 1);
    } while (rest(&sh->lookout, wait));
    return NULL;
}

int lookout_start(struct share *sh, struct error *err)
{
    struct lookout *l = &sh->lookout;
    l->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (l->stop_fd < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not make a descriptor");
    int e = pthread_create(&l->thread, NULL, lookout_main, sh);
    if (e != 0) {
        close(l->stop_fd);
        return err_errno(err, ERR_UNAVAILABLE, e,
                         "could not start a thread (out of memory, or too many)");
    }
    l->runs = true;
    return 0;
}

void lookout_stop(struct share *sh)
{
    struct lookout *l = &sh->lookout;
    uint64_t one = 1;
    if (!l->runs)
        return;
    while (write(l->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
    pthread_join(l->thread, NULL);
    close(l->stop_fd);
    l->runs = false;
}
