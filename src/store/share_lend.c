/* share_lend.c: who gets a handle of a share. Who finds none free waits in a queue, and is woken
 * when one is its own. If all were woken for each handle that comes back, a thousand consumers
 * would do little else. */
#include "store/share_impl.h"

#define BAD_WAIT (1000 * MS_NS) /* until a handle that failed is as good as others again */

/* One that waits; it is on the stack of who waits. */
struct share_waiter {
    struct share_seat_store *seat; /* NULL: a group */
    bool served;
    size_t handle; /* what it got */
    pthread_cond_t got;
    struct share_waiter *next;
};

/* ---- the queue ---- */

/* join puts a waiter into the queue, a group at its head. */
static void join(struct share_queue *q, struct share_waiter *w)
{
    bool is_group = !w->seat;
    struct share_waiter **at = is_group ? &q->first : q->end;
    w->next = *at;
    *at = w;
    if (!w->next)
        q->end = &w->next;
}

/* leave takes the waiter at a place out of the queue. */
static struct share_waiter *leave(struct share_queue *q, struct share_waiter **at)
{
    struct share_waiter *w = *at;
    *at = w->next;
    if (!*at)
        q->end = at;
    return w;
}

/* ---- the handles ---- */

/* any_good says whether there is a handle, lent or not, that is not known to be of no use now. */
static bool any_good(const struct share *sh, int64_t now)
{
    for (size_t i = 0; i < sh->n_handles; i++) {
        if (now >= sh->handle[i].bad_until)
            return true;
    }
    return false;
}

/* free_handle finds a handle that nobody has: the one that was borrowed last, which may have read
 * ahead, or else one that is open, or else any. While there is a good one, no other is taken: a
 * server may have no connection left in place of one that broke, and serve the others all the same.
 * Returns n_handles if there is none. */
static size_t free_handle(const struct share *sh, size_t last)
{
    size_t found = sh->n_handles;
    int64_t now = clock_mono(sh->cfg.clock);
    bool choosy = any_good(sh, now);
    for (size_t i = sh->n_handles; i-- > 0;) {
        const struct share_handle *h = &sh->handle[i];
        if (h->lent || (choosy && now < h->bad_until))
            continue;
        if (h->opened && i == last)
            return i;
        if (h->opened || found == sh->n_handles)
            found = i;
    }
    return found;
}

/* must_wait says whether a seat has to leave a free handle to others. One that failed last time
 * does not take the last handle: it may have waited for its consumer's lock, for a second, and
 * would do so again while nobody else gets anything. */
static bool must_wait(const struct share *sh, const struct share_seat_store *seat)
{
    bool crowded = sh->n_handles > 1 && sh->n_failing + 1 >= sh->n_handles;
    return seat && seat->failed && crowded;
}

/* lend gives a waiter a handle. */
static void lend(struct share *sh, struct share_waiter *w, size_t i)
{
    struct share_handle *h = &sh->handle[i];
    h->lent = true;
    h->failing = w->seat && w->seat->failed;
    if (h->failing)
        sh->n_failing++;
    if (w->seat)
        w->seat->last = i;
    w->handle = i;
    w->served = true;
    pthread_cond_signal(&w->got);
}

/* serve lends what is free to those that wait. It is called whenever a handle or a waiter came. */
static void serve(struct share *sh)
{
    struct share_waiter **at = &sh->queue.first;
    while (*at) {
        const struct share_seat_store *seat = (*at)->seat;
        size_t i = free_handle(sh, seat ? seat->last : sh->n_handles);
        if (i == sh->n_handles)
            return;
        if (must_wait(sh, seat))
            at = &(*at)->next;
        else
            lend(sh, leave(&sh->queue, at), i);
    }
}

/* wait_for_handle waits until there is one. */
static size_t wait_for_handle(struct share *sh, struct share_seat_store *seat)
{
    struct share_waiter w = {.seat = seat};
    pthread_cond_init(&w.got, NULL);

    pthread_mutex_lock(&sh->lock);
    join(&sh->queue, &w);
    serve(sh);
    while (!w.served)
        pthread_cond_wait(&w.got, &sh->lock);
    pthread_mutex_unlock(&sh->lock);

    pthread_cond_destroy(&w.got);
    return w.handle;
}

/* open_handle opens a handle that was borrowed, if that was not done yet. */
static int open_handle(struct share *sh, struct share_handle *h, struct error *err)
{
    if (h->st)
        return 0;
    return sh->origin->ops->dup(sh->origin, &h->st, err);
}

/* others_open says whether there is an open handle that is good. */
static bool others_open(struct share *sh)
{
    int64_t now = clock_mono(sh->cfg.clock);
    bool found = false;
    pthread_mutex_lock(&sh->lock);
    for (size_t i = 0; i < sh->n_handles; i++) {
        const struct share_handle *h = &sh->handle[i];
        found = found || (h->opened && now >= h->bad_until);
    }
    pthread_mutex_unlock(&sh->lock);
    return found;
}

int share_borrow(struct share *sh, struct share_seat_store *seat, size_t *ret, struct error *err)
{
    do {
        size_t i = wait_for_handle(sh, seat);
        if (open_handle(sh, &sh->handle[i], err) == 0) {
            *ret = i;
            return 0;
        }
        share_return(sh, i, err);
    } while (others_open(sh));
    return -1;
}

void share_return(struct share *sh, size_t i, const struct error *why)
{
    struct share_handle *h = &sh->handle[i];
    bool bad = why && why->code == ERR_UNAVAILABLE;
    pthread_mutex_lock(&sh->lock);
    h->lent = false;
    h->bad_until = bad ? clock_mono(sh->cfg.clock) + BAD_WAIT : 0;
    h->opened = h->st != NULL;
    if (h->failing)
        sh->n_failing--;
    serve(sh);
    pthread_mutex_unlock(&sh->lock);
}
