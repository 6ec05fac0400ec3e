/* batcher.c: group commit. The first thread to arrive makes all waiting turns, including its own;
 * threads that arrive meanwhile wait for the next batch. So no turn waits for others to arrive, and
 * batches grow with the load on the store. */
#include <stdlib.h>

#include "pool/pool_impl.h"

#define BATCH_MAX 256

/* Takes up to BATCH_MAX waiting turns off the queue. */
static struct batched *take_waiting(struct batcher *b, size_t *ret_n)
{
    struct batched *first = b->first;
    struct batched **end = &first;
    size_t n = 0;
    for (; *end && n < BATCH_MAX; n++)
        end = &(*end)->next;
    b->first = *end;
    *end = NULL;
    *ret_n = n;
    return first;
}

static int ask_store(struct pool *p, struct batched_turn *t, size_t n, struct error *err)
{
    struct pool_user user = {.urgent = true};
    struct pool_conn *c;
    if (pool_acquire(&p->turns, &user, &c, err) != 0)
        return -1;
    int result = c->st->ops->turn_many(c->st, t, n, err);
    pool_release(&p->turns, c, result != 0 ? err : NULL);
    return result;
}

/* Makes the turns of a list. If the store is unreachable, or another session holds the write lock
 * of a store with one writer, every turn would fail the same way, so all fail. After any other
 * error none was made: each is then made separately, and gets its own error. */
static void make_turns(struct pool *p, struct batched *first, size_t n)
{
    struct error err = {0};
    struct batched_turn *t = calloc(n, sizeof *t);
    if (!t)
        return;
    size_t i = 0;
    for (const struct batched *w = first; w; w = w->next)
        t[i++] = w->turn;
    int result = ask_store(p, t, n, &err);

    bool no_writer = err.code == ERR_BUSY && pool_one_writer(p->origin);
    bool same_for_all = result != 0 && (err.code == ERR_UNAVAILABLE || no_writer);
    i = 0;
    for (struct batched *w = first; w; w = w->next, i++) {
        if (result == 0)
            w->turn = t[i];
        if (same_for_all && w->err)
            *w->err = err;
        w->failed = same_for_all;
    }
    free(t);
}

/* Wakes the thread of a turn; w may be gone afterwards. */
static void resume_turn(struct batched *w, int state)
{
    w->state = state;
    sem_post(&w->ready);
}

/* Makes all waiting turns, then hands the lead to the first thread that arrived meanwhile. Threads
 * are woken one by one, outside the lock, so that they do not queue for it. */
static void lead_batch(struct pool *p)
{
    size_t n;
    pthread_mutex_lock(&p->lock);
    struct batched *first = take_waiting(&p->batcher, &n);
    pthread_mutex_unlock(&p->lock);
    make_turns(p, first, n);

    pthread_mutex_lock(&p->lock);
    struct batched *leads_next = p->batcher.first;
    p->batcher.led = leads_next != NULL;
    pthread_mutex_unlock(&p->lock);
    if (leads_next)
        resume_turn(leads_next, TURN_LEADS);

    while (first) {
        struct batched *w = first;
        first = w->next;
        resume_turn(w, TURN_OVER);
    }
}

static void wait_resumed(struct batched *w)
{
    while (sem_wait(&w->ready) != 0)
        continue; /* interrupted by a signal */
}

int batcher_turn(struct pool *p, struct batched_turn *t, struct error *err)
{
    struct batcher *b = &p->batcher;
    struct batched w = {.turn = *t, .err = err, .state = TURN_WAITS};
    w.turn.made = false;
    sem_init(&w.ready, 0, 0);

    pthread_mutex_lock(&p->lock);
    if (!b->first)
        b->end = &b->first;
    *b->end = &w;
    b->end = &w.next;
    if (!b->led) {
        b->led = true;
        resume_turn(&w, TURN_LEADS);
    }
    pthread_mutex_unlock(&p->lock);

    wait_resumed(&w);
    if (w.state == TURN_LEADS) {
        lead_batch(p);
        wait_resumed(&w);
    }
    sem_destroy(&w.ready);
    *t = w.turn;
    return w.failed ? -1 : 0;
}
