#include "sink/streams.h"

#include <stdlib.h>

#include "base/hash.h"

#define BUCKETS 4096
#define FORGET 8192 /* from this many streams on, idle ones are dropped */

int streams_init(struct streams *s)
{
    *s = (struct streams){.bucket = calloc(BUCKETS, sizeof(struct stream *))};
    if (!s->bucket)
        return -1;
    return 0;
}

/* Drops the idle streams, or all of them. */
static void drop_idle(struct streams *s, bool all)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        struct stream **p = &s->bucket[i];
        while (*p) {
            struct stream *st = *p;
            bool at_rest = st->flying == 0 && !st->dirty;
            bool drop = all || at_rest;
            if (!drop) {
                p = &st->next;
                continue;
            }
            *p = st->next;
            free(st);
            s->count--;
        }
    }
}

void streams_release(struct streams *s)
{
    if (s->bucket)
        drop_idle(s, true);
    free(s->bucket);
    free(s->list);
    *s = (struct streams){0};
}

/* Returns the link to the stream of that name, or where it would be. */
static struct stream **slot_of(struct streams *s, struct str name)
{
    uint64_t hash = hash_end(hash_add(HASH_INIT, name));
    struct stream **p = &s->bucket[hash % BUCKETS];
    while (*p && !str_eq((struct str){(*p)->name, (*p)->n}, name))
        p = &(*p)->next;
    return p;
}

struct stream *streams_get(struct streams *s, struct str name)
{
    bool worth_it = s->count >= FORGET && s->n_dirty < s->count / 2;
    if (worth_it)
        drop_idle(s, false);

    struct stream **slot = slot_of(s, name), *st = *slot;
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

void streams_note(struct streams *s, struct stream *st, int64_t hi, int64_t lo)
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

size_t streams_dirty(struct streams *s, const struct hwm **ret)
{
    if (s->n_dirty > s->list_cap) {
        struct hwm *list = realloc(s->list, s->n_dirty * 2 * sizeof *list);
        if (!list)
            return 0; /* they stay dirty and are listed next time */
        s->list = list;
        s->list_cap = s->n_dirty * 2;
    }

    size_t n = 0;
    for (const struct stream *st = s->dirty; st; st = st->next_dirty)
        s->list[n++] = (struct hwm){{st->name, st->n}, st->hi, st->lo};
    *ret = s->list;
    return n;
}

void streams_kept(struct streams *s)
{
    for (struct stream *st = s->dirty; st; st = st->next_dirty)
        st->dirty = false;
    s->dirty = NULL;
    s->n_dirty = 0;
}
