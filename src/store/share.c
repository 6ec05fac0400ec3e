#include "store/share.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "store/share_impl.h"

#define ALONE_MAX 15
#define CROWD 16 /* seats from which on a backlog is cheaper in company */

static struct share_seat_store *seat_of(struct store *st)
{
    return (struct share_seat_store *)st;
}

static bool has_one_writer(const struct store *st)
{
    return (st->caps & STORE_ONE_WRITER) != 0;
}

/* ---- what a seat does on a handle ---- */

/* A handle that a seat has borrowed for one operation. */
struct loan {
    struct share *share;
    struct share_seat_store *seat;
    size_t i;
    struct store *st;
};

static int take_loan(struct store *seat, struct loan *ret, struct error *err)
{
    ret->seat = seat_of(seat);
    ret->share = ret->seat->share;
    if (share_borrow(ret->share, ret->seat, &ret->i, err) != 0)
        return -1;
    ret->st = ret->share->handle[ret->i].st;
    return 0;
}

/* end_loan gives the handle back and returns the result of the operation. */
static int end_loan(const struct loan *l, int result, const struct error *err)
{
    share_return(l->share, l->i, result != 0 ? err : NULL);
    l->seat->failed = result != 0;
    return result;
}

/* seats_of counts the seats of consumers. */
static size_t seats_of(struct share *sh)
{
    pthread_mutex_lock(&sh->lock);
    size_t n = sh->n_seats;
    pthread_mutex_unlock(&sh->lock);
    return n;
}

/* say_who notes in the hint who keeps the bell from ringing. */
static void say_who(struct share_seat_store *seat, struct claim_hint *hint)
{
    struct share *sh = seat->share;
    pthread_mutex_lock(&sh->lock);
    memcpy(seat->wake_blocker, sh->wake_blocker, sizeof seat->wake_blocker);
    pthread_mutex_unlock(&sh->lock);
    hint->wake_blocker = *seat->wake_blocker ? seat->wake_blocker : NULL;
}

/* turn_alone makes a turn by itself, on a borrowed handle. */
static int turn_alone(struct share_seat_store *seat, struct batched_turn *t, bool *ret_lost,
                      struct error *err)
{
    struct loan l;
    if (take_loan(&seat->base, &l, err) != 0)
        return -1;
    int result = l.st->ops->turn(l.st, t->s, ret_lost, t->req, t->a, &t->batch, &t->hint, err);
    return end_loan(&l, result, err);
}

/* turn_in_company makes a turn together with those of others, if it is simple. After one that was
 * not, a few are made alone. Only the seat's own thread is here. */
static int turn_in_company(struct share_seat_store *seat, struct batched_turn *t, struct error *err)
{
    bool nothing_to_do = !t->s && t->req->max_events == 0;
    if (nothing_to_do)
        return 0;
    if (seat->alone > 0) {
        seat->alone--;
        return 0;
    }
    if (group_turn(seat->share, t, err) != 0)
        return -1;
    if (t->made) {
        seat->failed = false;
        seat->alone_last = 0;
        return 0;
    }
    if (seat->alone_last < ALONE_MAX)
        seat->alone_last = 2 * seat->alone_last + 1;
    seat->alone = seat->alone_last;
    return 0;
}

/* note_backlog has the next turn made alone while there is more than a simple turn hands out: a few
 * consumers that are behind each have a handle now and then, and larger batches. A crowd goes
 * through it in company. */
static void note_backlog(struct share_seat_store *seat, const struct batched_turn *t)
{
    bool backlog = t->batch.n > 0 && !t->hint.quiet;
    bool goes_alone = backlog && !t->req->batch_backlog;
    if (goes_alone && seat->alone == 0)
        seat->alone = 1;
    if (!backlog && seat->alone_last <= 1)
        seat->alone = 0;
}

static int seat_turn(struct store *base, const struct settlement *s, bool *ret_lost,
                     const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                     struct claim_hint *ret_hint, struct error *err)
{
    struct share_seat_store *seat = seat_of(base);
    struct claim_request asked = *req;
    size_t seats = seats_of(seat->share);
    asked.no_listen = true;
    asked.no_readahead = seats > 1; /* or a handle may read ahead for it */
    asked.batch_backlog = seats >= CROWD || has_one_writer(seat->share->origin);
    asked.cache = &seat->cache;
    struct batched_turn t = {.s = s, .req = &asked, .a = a, .hint.wait_ms = -1};
    bool lost = false;

    if (turn_in_company(seat, &t, err) != 0)
        return -1;
    if (!t.made) {
        if (turn_alone(seat, &t, &lost, err) != 0)
            return -1;
    } else {
        lost = t.lost;
    }
    note_backlog(seat, &t);
    if (t.batch.n == 0)
        say_who(seat, &t.hint);

    if (ret_lost)
        *ret_lost = lost;
    *ret_batch = t.batch;
    *ret_hint = t.hint;
    return 0;
}

static int seat_extend(struct store *seat, const struct claim_lease *lease, bool *ret_lost,
                       struct error *err)
{
    struct loan l;
    if (take_loan(seat, &l, err) != 0)
        return -1;
    int result = l.st->ops->extend(l.st, lease, ret_lost, err);
    return end_loan(&l, result, err);
}

static int seat_claims(struct store *seat, const char *consumer, struct arena *a,
                       struct claim_info **ret, size_t *ret_n, struct error *err)
{
    struct loan l;
    if (take_loan(seat, &l, err) != 0)
        return -1;
    int result = l.st->ops->claims(l.st, consumer, a, ret, ret_n, err);
    return end_loan(&l, result, err);
}

/* note_consumer remembers whose seat it is. Without memory the handle remembers the consumer for
 * longer than it has to. */
static void note_consumer(struct share_seat_store *seat, const char *name)
{
    pthread_mutex_lock(&seat->share->lock);
    free(seat->consumer);
    seat->consumer = strdup(name);
    pthread_mutex_unlock(&seat->share->lock);
}

static int seat_put(struct store *seat, const struct consumer_spec *spec, bool *ret_created,
                    struct error *err)
{
    struct loan l;
    if (take_loan(seat, &l, err) != 0)
        return -1;
    int result = l.st->ops->consumer_put(l.st, spec, ret_created, err);
    if (result == 0)
        note_consumer(seat_of(seat), spec->name);
    return end_loan(&l, result, err);
}

static int seat_pause(struct store *seat, const char *name, bool paused, struct error *err)
{
    struct loan l;
    if (take_loan(seat, &l, err) != 0)
        return -1;
    return end_loan(&l, l.st->ops->consumer_pause(l.st, name, paused, err), err);
}

static int seat_report(struct store *seat, const char *name, const char *text, struct error *err)
{
    struct loan l;
    if (take_loan(seat, &l, err) != 0)
        return -1;
    return end_loan(&l, l.st->ops->consumer_report(l.st, name, text, err), err);
}

static int seat_trim(struct store *seat, const struct trim_request *req, struct trim_result *ret,
                     struct error *err)
{
    struct loan l;
    if (take_loan(seat, &l, err) != 0)
        return -1;
    return end_loan(&l, l.st->ops->trim(l.st, req, ret, err), err);
}

/* ---- the bell of a seat ---- */

static int seat_bell_fd(struct store *base)
{
    return seat_of(base)->bell;
}

static void seat_bell_clear(struct store *base)
{
    uint64_t count;
    if (read(seat_of(base)->bell, &count, sizeof count) < 0)
        return; /* it did not ring */
}

/* ---- seats come and go ---- */

/* is_seated says whether a seat is left for the consumer. */
static bool is_seated(struct share *sh, const char *consumer)
{
    bool found = false;
    pthread_mutex_lock(&sh->lock);
    for (const struct share_seat_store *s = sh->seats; s; s = s->next)
        found = found || (s->consumer && strcmp(s->consumer, consumer) == 0);
    pthread_mutex_unlock(&sh->lock);
    return found;
}

/* forget has the handle forget the consumer of a seat that is being closed. A store that remembers
 * consumers has one handle: see handles_of. */
static void forget(struct share *sh, const char *consumer)
{
    size_t i;
    struct error ignored; /* a handle that cannot be opened remembers nobody */
    if (!consumer || !sh->origin->ops->consumer_forget || is_seated(sh, consumer))
        return;
    if (share_borrow(sh, NULL, &i, &ignored) != 0)
        return;
    struct store *st = sh->handle[i].st;
    st->ops->consumer_forget(st, consumer);
    share_return(sh, i, NULL);
}

static void seat_close(struct store *base)
{
    struct share_seat_store *seat = seat_of(base);
    struct share *sh = seat->share;
    pthread_mutex_lock(&sh->lock);
    struct share_seat_store **at = &sh->seats;
    while (*at != seat)
        at = &(*at)->next;
    *at = seat->next;
    if (seat->filter)
        sh->n_seats--;
    pthread_mutex_unlock(&sh->lock);

    forget(sh, seat->consumer);
    free(seat->consumer);
    filter_free(seat->filter);
    if (seat->bell >= 0)
        close(seat->bell);
    free(seat);
}

static void take_seat(struct share *sh, struct share_seat_store *seat)
{
    pthread_mutex_lock(&sh->lock);
    seat->next = sh->seats;
    sh->seats = seat;
    if (seat->filter)
        sh->n_seats++;
    pthread_mutex_unlock(&sh->lock);
}

int share_seat(struct share *sh, const struct share_wants *wants, struct store **ret,
               struct error *err)
{
    struct share_seat_store *seat = calloc(1, sizeof *seat);
    if (!seat)
        return err_nomem(err);
    seat->base = (struct store){.ops = &sh->seat_ops, .caps = sh->origin->caps};
    seat->share = sh;
    seat->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int result = 0;
    if (seat->bell < 0)
        result = err_errno(err, ERR_UNAVAILABLE, errno, "could not make a bell");
    else if (wants)
        result = filter_new(wants->events, wants->where, &seat->filter, err);
    take_seat(sh, seat);
    if (result != 0) {
        seat_close(&seat->base);
        return -1;
    }
    *ret = &seat->base;
    return 0;
}

/* ---- shares come and go ---- */

bool share_possible(const struct store *st, size_t workers)
{
    bool rings = (st->caps & STORE_WAKEUP) != 0;
    if (!st->ops->turn_many || !st->ops->poll_new || !rings)
        return false;
    return !has_one_writer(st) || workers >= SHARE_WORKERS;
}

/* handles_of gives how many handles seats may borrow: one connection is the lookout's, one that of
 * whoever opened the outbox. Where one writes at a time, a second handle would only wait for the
 * first. */
static size_t handles_of(const struct store *st, int connections)
{
    if (has_one_writer(st) || connections <= 3)
        return 1;
    if (connections - 2 > SHARE_HANDLES)
        return SHARE_HANDLES;
    return (size_t)connections - 2;
}

static void share_free(struct share *sh)
{
    for (size_t i = 0; i < sh->n_handles; i++)
        store_close(sh->handle[i].st);
    store_close(sh->lookout.st);
    pthread_mutex_destroy(&sh->lock);
    free(sh);
}

int share_open(struct store *st, const struct share_config *cfg, struct share **ret,
               struct error *err)
{
    struct share *sh = calloc(1, sizeof *sh);
    if (!sh)
        return err_nomem(err);
    sh->origin = st;
    sh->cfg = *cfg;
    sh->n_handles = handles_of(st, cfg->connections);
    sh->seat_ops = (struct store_ops){
        .scheme = st->ops->scheme,
        .caps = st->ops->caps,
        .close = seat_close,
        .turn = seat_turn,
        .extend = seat_extend,
        .claims = seat_claims,
        .consumer_put = seat_put,
        .consumer_pause = seat_pause,
        .consumer_report = seat_report,
        .trim = seat_trim,
        .wake_fd = seat_bell_fd,
        .wake_clear = seat_bell_clear,
    };
    pthread_mutex_init(&sh->lock, NULL);
    sh->queue.end = &sh->queue.first;

    if (st->ops->dup(st, &sh->lookout.st, err) != 0) {
        share_free(sh);
        return -1;
    }
    *ret = sh;
    return 0;
}

int share_listen(struct share *sh, struct error *err)
{
    return lookout_start(sh, err);
}

void share_close(struct share *sh)
{
    if (!sh)
        return;
    lookout_stop(sh);
    share_free(sh);
}
