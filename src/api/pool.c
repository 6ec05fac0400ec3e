#include "api/pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define LONG (1000 * MS_NS) /* a handle that was lent for longer does not count */
#define LOOK (100 * MS_NS)  /* between looks whether one has been */

/* A handle. (1) Only who borrowed it touches st. */
struct pooled {
    struct store *st;
    const void *consumer; /* who had it last */
    int64_t lent_at;      /* monotonic; 0: nobody has it */
    struct pooled *next;
};

/* Everything below `lock` is protected by it. (1) n is the number of handles in the list, and of
 * those that are being opened. */
struct pool {
    struct store *origin;
    const struct clock *clock;
    size_t size;

    pthread_mutex_t lock;
    pthread_cond_t came_back;
    struct pooled *first;
    size_t n;
};

int pool_new(struct store *st, const struct clock *clock, size_t size, struct pool **ret,
             struct error *err)
{
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(err);
    *p = (struct pool){.origin = st, .clock = clock, .size = size};
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->came_back, &attr);
    pthread_condattr_destroy(&attr);
    *ret = p;
    return 0;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    for (struct pooled *h = p->first, *next; h; h = next) {
        next = h->next;
        store_close(h->st);
        free(h);
    }
    pthread_cond_destroy(&p->came_back);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- under the lock ---- */

/* at_rest finds a handle that nobody has: the one that the consumer had last, or any. */
static struct pooled *at_rest(const struct pool *p, const void *consumer)
{
    struct pooled *found = NULL;
    for (struct pooled *h = p->first; h; h = h->next) {
        if (h->lent_at)
            continue;
        if (h->consumer == consumer)
            return h;
        found = h;
    }
    return found;
}

/* may_open says whether there is room for one more. */
static bool may_open(const struct pool *p, int64_t now)
{
    size_t held_up = 0;
    for (const struct pooled *h = p->first; h; h = h->next) {
        if (h->lent_at && now - h->lent_at > LONG)
            held_up++;
    }
    return p->n < p->size + held_up;
}

/* wait_a_little waits until a handle has come back, or it is time to look again. */
static void wait_a_little(struct pool *p)
{
    int64_t until = clock_mono(&clock_system) + LOOK;
    struct timespec ts = {until / 1000000000, until % 1000000000};
    pthread_cond_timedwait(&p->came_back, &p->lock, &ts);
}

static void forget(struct pool *p, const struct pooled *gone)
{
    struct pooled **at = &p->first;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    p->n--;
    pthread_cond_signal(&p->came_back);
}

/* choose returns a handle to lend, or NULL: a new one has to be opened, for which there is room. */
static struct pooled *choose(struct pool *p, const void *consumer)
{
    for (;;) {
        int64_t now = clock_mono(p->clock);
        struct pooled *h = at_rest(p, consumer);
        if (h) {
            h->lent_at = now;
            return h;
        }
        if (may_open(p, now)) {
            p->n++;
            return NULL;
        }
        wait_a_little(p);
    }
}

/* ---- lending ---- */

/* open_handle opens one more, whose place is counted already. */
static int open_handle(struct pool *p, struct pooled **ret, struct error *err)
{
    struct pooled *h = calloc(1, sizeof *h);
    int result = h ? 0 : err_nomem(err);
    if (result == 0)
        result = p->origin->ops->dup(p->origin, &h->st, err);

    pthread_mutex_lock(&p->lock);
    if (result == 0) {
        h->lent_at = clock_mono(p->clock);
        h->next = p->first;
        p->first = h;
    } else {
        p->n--;
        pthread_cond_signal(&p->came_back);
    }
    pthread_mutex_unlock(&p->lock);
    if (result != 0)
        free(h);
    else
        *ret = h;
    return result;
}

static void discard(struct pool *p, struct pooled *h)
{
    pthread_mutex_lock(&p->lock);
    forget(p, h);
    pthread_mutex_unlock(&p->lock);
    store_close(h->st);
    free(h);
}

int pool_take(struct pool *p, const struct pool_user *who, struct store **ret, struct error *err)
{
    pthread_mutex_lock(&p->lock);
    struct pooled *h = choose(p, who->consumer);
    pthread_mutex_unlock(&p->lock);
    if (!h && open_handle(p, &h, err) != 0)
        return -1;

    bool same = h->consumer == who->consumer;
    if (!same && h->st->ops->lend(h->st, who->idle_ms, err) != 0) {
        discard(p, h);
        return -1;
    }
    h->consumer = who->consumer;
    *ret = h->st;
    return 0;
}

void pool_give(struct pool *p, struct store *st)
{
    pthread_mutex_lock(&p->lock);
    struct pooled *h = p->first;
    while (h->st != st)
        h = h->next;
    bool spare = p->n > p->size;
    if (spare) {
        forget(p, h);
    } else {
        h->lent_at = 0;
        pthread_cond_signal(&p->came_back);
    }
    pthread_mutex_unlock(&p->lock);
    if (!spare)
        return;
    store_close(h->st);
    free(h);
}
