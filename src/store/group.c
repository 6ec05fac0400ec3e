/* group.c: turns that are made together. Whoever comes first makes the turns of all that wait, its
 * own among them; those who come meanwhile wait for the next. So nobody waits for company, and
 * there is more of it the busier the store is. */
#include <stdlib.h>

#include "store/share_impl.h"

#define GROUP_MAX 256

/* join adds a turn to those that wait. */
static void join(struct group *g, struct group_turn *w)
{
    if (!g->first)
        g->end = &g->first;
    *g->end = w;
    g->end = &w->next;
}

/* take_all takes the turns that wait, at most GROUP_MAX of them. */
static struct group_turn *take_all(struct group *g, size_t *ret_n)
{
    struct group_turn *first = g->first;
    struct group_turn **end = &first;
    size_t n = 0;
    for (; *end && n < GROUP_MAX; n++)
        end = &(*end)->next;
    g->first = *end;
    *end = NULL;
    *ret_n = n;
    return first;
}

/* ask has the store make n turns. */
static int ask(struct share *sh, struct batched_turn *t, size_t n, struct error *err)
{
    size_t h;
    if (share_borrow(sh, NULL, &h, err) != 0)
        return -1;
    struct store *st = sh->handle[h].st;
    int result = st->ops->turn_many(st, t, n, err);
    share_return(sh, h, result != 0 ? err : NULL);
    return result;
}

/* is_for_all says whether each of the turns would meet the same error: the store cannot be reached,
 * or its one writer is somebody else. */
static bool is_for_all(const struct share *sh, const struct error *err)
{
    bool one_writer = (sh->origin->caps & STORE_ONE_WRITER) != 0;
    return err->code == ERR_UNAVAILABLE || (err->code == ERR_BUSY && one_writer);
}

/* tell hands each turn of the list its answer, or says that the store cannot be asked. Any other
 * error is not known to be everybody's: each turn is made by itself then, and meets its own. */
static void tell(const struct share *sh, struct group_turn *first, const struct batched_turn *t,
                 int result, const struct error *err)
{
    bool unreachable = result != 0 && is_for_all(sh, err);
    for (struct group_turn *w = first; w; w = w->next, t++) {
        if (result == 0)
            w->turn = *t;
        if (unreachable && w->err)
            *w->err = *err;
        w->failed = unreachable;
    }
}

/* make makes the turns of a list. Without memory none is made: each is then made by itself. */
static void make(struct share *sh, struct group_turn *first, size_t n)
{
    struct batched_turn *t = calloc(n, sizeof *t);
    struct error err = {0};
    size_t i = 0;
    if (!t)
        return;
    for (const struct group_turn *w = first; w; w = w->next)
        t[i++] = w->turn;
    int result = ask(sh, t, n, &err);
    tell(sh, first, t, result, &err);
    free(t);
}

/* wake ends the wait of a turn, which may be gone afterwards. */
static void wake(struct group_turn *w, int state)
{
    w->state = state;
    sem_post(&w->over);
}

/* hand_on ends the lead: who waits first leads next. */
static void hand_on(struct share *sh)
{
    pthread_mutex_lock(&sh->lock);
    struct group_turn *next = sh->group.first;
    sh->group.led = next != NULL;
    pthread_mutex_unlock(&sh->lock);
    if (next)
        wake(next, GROUP_LEADS);
}

/* lead makes the turns of all that wait. Those who are woken need no lock: each would have to wait
 * for it, one after the other. */
static void lead(struct share *sh)
{
    size_t n;
    pthread_mutex_lock(&sh->lock);
    struct group_turn *first = take_all(&sh->group, &n);
    pthread_mutex_unlock(&sh->lock);
    make(sh, first, n);
    hand_on(sh);

    while (first) {
        struct group_turn *w = first;
        first = w->next;
        wake(w, GROUP_OVER);
    }
}

/* ask_for_turn adds a turn to those that wait. Who finds nobody who leads does so. */
static void ask_for_turn(struct share *sh, struct group_turn *w)
{
    pthread_mutex_lock(&sh->lock);
    join(&sh->group, w);
    if (!sh->group.led) {
        sh->group.led = true;
        wake(w, GROUP_LEADS);
    }
    pthread_mutex_unlock(&sh->lock);
}

/* await waits until a turn is over, or is to lead. */
static void await(struct group_turn *w)
{
    while (sem_wait(&w->over) != 0)
        continue; /* a signal came */
}

int group_turn(struct share *sh, struct batched_turn *t, struct error *err)
{
    struct group_turn w = {.turn = *t, .err = err, .state = GROUP_WAITS};
    w.turn.made = false;
    sem_init(&w.over, 0, 0);

    ask_for_turn(sh, &w);
    await(&w);
    if (w.state == GROUP_LEADS) {
        lead(sh);
        await(&w);
    }

    sem_destroy(&w.over);
    *t = w.turn;
    return w.failed ? -1 : 0;
}
