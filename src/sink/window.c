#include "sink/window.h"

#include <assert.h>
#include <stdlib.h>

#define CUTS_MAX 3 /* connections that an event may cost before it is blamed */

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

struct flight *window_take(struct window *w, struct delivery *d, struct stream *mark)
{
    struct flight *f = w->free;
    assert(w->count < w->max);
    if (f)
        w->free = f->next;
    else
        f = (struct flight *)(void *)(w->items + w->used++ * w->size);
    *f = (struct flight){
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
        mark->flying++;
    return f;
}

void window_drop(struct window *w, struct flight *f)
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
        f->mark->flying--;
    f->d = NULL;
    f->next = w->free;
    w->free = f;
}

void window_end(struct window *w, struct flight *f, const struct sink_result *r)
{
    struct delivery *d = f->d;
    assert(d);
    window_drop(w, f); /* before the result is reported: done may inspect the window */
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
            window_drop(w, w->first);
    }
    /* An event that was not blamed remains suspect. */
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
