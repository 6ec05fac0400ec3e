/* pages.c: the pages of the HTTP server. */
#include "admin/look.h"
#include "admin/server.h"

#include <time.h>

#define STORE_WAIT_S 3 /* how long to wait for another scrape to release the store */
#define OK 200
#define UNAVAILABLE 503

/* open_store opens the store for scrapes, once. It needs the lock. */
static bool open_store(struct admin *s)
{
    outbox *ob = atomic_load(&s->cfg.ob);
    if (s->st)
        return true;
    return ob && manage_store(ob, &s->st, NULL) == 0;
}

/* lock_store returns the store for scrapes, locked. It returns NULL, with nothing locked, if
 * another scrape keeps it busy or it cannot be opened; the page is then made without it. */
static struct store *lock_store(struct admin *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STORE_WAIT_S;
    if (pthread_mutex_timedlock(&s->store_lock, &until) != 0)
        return NULL;
    if (open_store(s))
        return s->st;
    pthread_mutex_unlock(&s->store_lock);
    return NULL;
}

static void unlock_store(struct admin *s, const struct store *st)
{
    if (st)
        pthread_mutex_unlock(&s->store_lock);
}

/* page_metrics looks at everything while it holds the store, and formats it afterwards. */
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

/* details_for returns where the details of a page go, or NULL if there are to be none. If they are
 * withheld, the page says so. */
static struct buf *details_for(enum page_detail detail, struct buf *b)
{
    if (detail == PAGE_VERBOSE)
        return b;
    if (detail == PAGE_WITHHELD)
        buf_adds(b, "details need the token\n");
    return NULL;
}

static unsigned page_livez(struct admin *s, enum page_detail detail, struct buf *b)
{
    struct buf *details = details_for(detail, b);
    bool alive = admin_health(&s->cfg, NULL, details).alive;
    buf_adds(b, alive ? "ok\n" : "a consumer is stuck\n");
    return alive ? OK : UNAVAILABLE;
}

/* is_ready asks the store only if we do not seem ready: a paused consumer may look stuck. */
static bool is_ready(struct admin *s, struct buf *details)
{
    if (admin_health(&s->cfg, NULL, NULL).ready) {
        if (!details)
            return true;
        return admin_health(&s->cfg, NULL, details).ready;
    }
    struct store *st = lock_store(s);
    bool ready = admin_health(&s->cfg, st, details).ready;
    unlock_store(s, st);
    return ready;
}

static unsigned page_readyz(struct admin *s, enum page_detail detail, struct buf *b)
{
    struct buf *details = details_for(detail, b);
    bool ready = is_ready(s, details);
    buf_adds(b, ready ? "ready\n" : "not ready\n");
    return ready ? OK : UNAVAILABLE;
}

static unsigned page_index(struct admin *s, enum page_detail detail, struct buf *b)
{
    (void)s;
    (void)detail;
    buf_adds(b, "outbox " OUTBOX_VERSION "\n\n"
                "/metrics           for Prometheus\n"
                "/livez[?verbose]   is it alive?\n"
                "/readyz[?verbose]  is it making progress?\n");
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
