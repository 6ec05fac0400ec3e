#include "admin/look.h"
#include "admin/server.h"

#include <time.h>

#define STORE_WAIT_S 3 /* for another scrape to be done with the store; then without it */
#define OK 200
#define UNAVAILABLE 503

/* lock_store gives the store for scrapes; NULL if it cannot be had, and then there is nothing to
 * unlock. */
static struct store *lock_store(struct admin *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STORE_WAIT_S;
    if (pthread_mutex_timedlock(&s->store_lock, &until) != 0)
        return NULL;
    outbox *ob = atomic_load(&s->cfg.ob);
    if (s->st || (ob && manage_store(ob, &s->st, NULL) == 0))
        return s->st;
    pthread_mutex_unlock(&s->store_lock);
    return NULL;
}

static void unlock_store(struct admin *s, const struct store *st)
{
    if (st)
        pthread_mutex_unlock(&s->store_lock);
}

static unsigned page_metrics(struct admin *s, enum page_detail detail, struct buf *b)
{
    struct look l;
    (void)detail;
    struct store *st = lock_store(s);
    int r = look_take(&l, &s->cfg, st, NULL);
    unlock_store(s, st);
    if (r != 0)
        return UNAVAILABLE;
    for (size_t i = 0; i < METRICS_REFUSALS; i++)
        l.m.refused[i] = atomic_load(&s->refused[i]);
    metrics_add(b, &l.m);
    look_release(&l);
    return OK;
}

static void withhold(enum page_detail detail, struct buf *b)
{
    if (detail == PAGE_WITHHELD)
        buf_adds(b, "details are for those who send the token\n");
}

static unsigned page_livez(struct admin *s, enum page_detail detail, struct buf *b)
{
    withhold(detail, b);
    bool alive = admin_health(&s->cfg, NULL, detail == PAGE_VERBOSE ? b : NULL).alive;
    buf_adds(b, alive ? "ok\n" : "a consumer stands still\n");
    return alive ? OK : UNAVAILABLE;
}

static unsigned page_readyz(struct admin *s, enum page_detail detail, struct buf *b)
{
    withhold(detail, b);
    bool ready = admin_health(&s->cfg, NULL, NULL).ready;
    if (!ready || detail == PAGE_VERBOSE) {
        /* one that is paused may look as if it were stuck */
        struct store *st = ready ? NULL : lock_store(s);
        ready = admin_health(&s->cfg, st, detail == PAGE_VERBOSE ? b : NULL).ready;
        unlock_store(s, st);
    }
    buf_adds(b, ready ? "ready\n" : "not ready\n");
    return ready ? OK : UNAVAILABLE;
}

static unsigned page_index(struct admin *s, enum page_detail detail, struct buf *b)
{
    (void)s;
    (void)detail;
    buf_adds(b, "outbox " OUTBOX_VERSION "\n\n"
                "/metrics           for Prometheus\n"
                "/livez[?verbose]   does it turn?\n"
                "/readyz[?verbose]  does it get on with its work?\n");
    return OK;
}

static const struct page pages[] = {
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", false, page_metrics},
    {"/livez", PAGES_TEXT, true, page_livez},
    {"/readyz", PAGES_TEXT, true, page_readyz},
    {"/", PAGES_TEXT, false, page_index},
};

const struct page *pages_find(const char *path)
{
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strcmp(pages[i].path, path) == 0)
            return &pages[i];
    return NULL;
}
