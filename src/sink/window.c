#include "sink/window.h"

#include <assert.h>
#include <stdlib.h>

#include "base/str.h"

#define BUCKETS 4096
#define STREAMS_MANY 8192 /* from this number of streams on, idle ones are dropped */
#define CUTS_MAX 3        /* connections that an event may end before it counts as the reason */

int window_marks_init(struct window_marks *s)
{
    *s = (struct window_marks){.bucket = calloc(BUCKETS, sizeof(struct stream *))};
    return s->bucket ? 0 : -1;
}

/* Drops the idle streams; with `all`, every stream. */
static void drop_idle(struct window_marks *s, bool all)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        struct stream **p = &s->bucket[i];
        while (*p) {
            struct stream *st = *p;
            bool in_use = st->in_flight > 0 || st->dirty;
            if (in_use && !all) {
                p = &st->next;
                continue;
            }
            *p = st->next;
            free(st);
            s->count--;
        }
    }
}

void window_marks_release(struct window_marks *s)
{
    if (s->bucket)
        drop_idle(s, true);
    free(s->bucket);
    free(s->list);
    *s = (struct window_marks){0};
}

struct stream *window_marks_get(struct window_marks *s, struct str name)
{
    bool many_idle = s->count >= STREAMS_MANY && s->n_dirty < s->count / 2;
    if (many_idle)
        drop_idle(s, false);

    uint64_t hash = hash_end(hash_add(HASH_INIT, name));
    struct stream **slot = &s->bucket[hash % BUCKETS];
    struct stream *st = *slot;
    while (st && !str_eq((struct str){st->name, st->n}, name)) {
        slot = &st->next;
        st = *slot;
    }
    if (st)
        return st;

    st = calloc(1, sizeof *st + name.n + 1);
    if (!st)
        return NULL;
    memcpy(st->name, name.p, name.n);
    st->n = name.n;
    *slot = st;
    s->count++;
    return st;
}

void window_marks_advance(struct window_marks *s, struct stream *st, int64_t hi, int64_t lo)
{
    bool past = hi > st->hi || (hi == st->hi && lo > st->lo);
    if (!past)
        return;
    st->hi = hi;
    st->lo = lo;

    if (st->dirty)
        return;
    st->dirty = true;
    st->next_dirty = s->dirty;
    s->dirty = st;
    s->n_dirty++;
}

size_t window_marks_list(struct window_marks *s, const struct hwm **ret)
{
    if (s->n_dirty > s->list_cap) {
        struct hwm *list = realloc(s->list, s->n_dirty * 2 * sizeof *list);
        if (!list)
            return 0; /* the marks stay dirty and are listed next time */
        s->list = list;
        s->list_cap = s->n_dirty * 2;
    }

    size_t n = 0;
    for (const struct stream *st = s->dirty; st; st = st->next_dirty)
        s->list[n++] = (struct hwm){{st->name, st->n}, st->hi, st->lo};
    *ret = s->list;
    return n;
}

void window_marks_recorded(struct window_marks *s)
{
    for (struct stream *st = s->dirty; st; st = st->next_dirty)
        st->dirty = false;
    s->dirty = NULL;
    s->n_dirty = 0;
}

/* The window */

int window_init(struct window *w, struct sink *sk, size_t max, size_t size, struct error *err)
{
    *w = (struct window){.sk = sk, .size = size, .items = calloc(max, size)};
    if (!w->items)
        return err_nomem(err);
    w->max = max;
    return 0;
}

void window_release(struct window *w)
{
    free(w->items);
    *w = (struct window){0};
}

struct in_flight *window_add(struct window *w, struct delivery *d, struct stream *mark)
{
    struct in_flight *f = w->free;
    assert(w->count < w->max);
    if (f)
        w->free = f->next;
    else
        f = (struct in_flight *)(void *)(w->items + w->used++ * w->size);
    *f = (struct in_flight){
        .prev = w->last, .d = d, .mark = mark, .since = clock_mono(w->sk->cfg.clock)};
    if (w->last)
        w->last->next = f;
    else
        w->first = f;
    w->last = f;
    w->count++;

    if (d) {
        f->bytes = event_bytes(d->ev);
        w->bytes += f->bytes;
        w->events++;
    }
    if (mark)
        mark->in_flight++;
    return f;
}

void window_remove(struct window *w, struct in_flight *f)
{
    if (f->prev)
        f->prev->next = f->next;
    else
        w->first = f->next;
    if (f->next)
        f->next->prev = f->prev;
    else
        w->last = f->prev;
    w->count--;

    if (f->d) {
        w->events--;
        w->bytes -= f->bytes;
    }
    if (f->mark)
        f->mark->in_flight--;
    f->d = NULL;
    f->next = w->free;
    w->free = f;
}

void window_end(struct window *w, struct in_flight *f, const struct sink_result *r)
{
    struct delivery *d = f->d;
    assert(d);
    window_remove(w, f); /* before reporting the result: done may inspect the window */
    if (d->ev->seq == w->suspect.seq)
        w->suspect.cuts = 0;
    sink_done(w->sk, d, r);
}

void window_end_all(struct window *w, const struct sink_result *r)
{
    int cuts = w->suspect.cuts;
    while (w->first) {
        if (w->first->d)
            window_end(w, w->first, r);
        else
            window_remove(w, w->first);
    }
    /* An event that did not count as faulty remains suspect. */
    bool blamed = r->status == SINK_RETRY || r->status == SINK_CANCELLED;
    if (!blamed)
        w->suspect.cuts = cuts;
}

int64_t window_due(const struct window *w)
{
    int64_t limit_ms = w->sk->cfg.timeout_ms;
    if (limit_ms <= 0 || !w->first)
        return CLOCK_NEVER;
    return w->first->since + limit_ms * MS_NS;
}

bool window_blame(struct window *w, const struct event *ev)
{
    if (w->suspect.seq != ev->seq)
        w->suspect.cuts = 0;
    w->suspect.seq = ev->seq;
    w->suspect.cuts++;
    return w->suspect.cuts >= CUTS_MAX;
}

void window_describe(const struct window *w, struct sink_broker *ret)
{
    if (w->events == 0)
        return;
    bool is_oldest = ret->unconfirmed == 0 || w->first->since < ret->since;
    if (is_oldest)
        ret->since = w->first->since;
    ret->unconfirmed += w->events;
}
