#include "sink/streams.h"

#include <stdlib.h>

#include "base/hash.h"

#define BUCKETS 4096
#define FORGET 8192 /* streams, from which on those at rest are forgotten */

int streams_init(struct streams *s)
{
    *s = (struct streams){.bucket = calloc(BUCKETS, sizeof(struct stream *))};
    return s->bucket ? 0 : -1;
}

/* forget drops streams at rest, or all of them. */
static void forget(struct streams *s, bool all)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct stream **p = &s->bucket[i]; *p;) {
            struct stream *st = *p;
            if (!all && (st->flying || st->dirty)) {
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
        forget(s, true);
    free(s->bucket);
    free(s->list);
    *s = (struct streams){0};
}

static struct stream **slot_of(struct streams *s, struct str name)
{
    struct stream **p = &s->bucket[hash_end(hash_add(HASH_INIT, name)) % BUCKETS];
    while (*p && !str_eq((struct str){(*p)->name, (*p)->n}, name))
        p = &(*p)->next;
    return p;
}

struct stream *streams_get(struct streams *s, struct str name)
{
    if (s->count >= FORGET && s->n_dirty < s->count / 2)
        forget(s, false);
    struct stream **slot = slot_of(s, name), *st = *slot;
    if (st)
        return st;
    st = calloc(1, sizeof *st + name.n + 1);
    if (!st)
        return NULL;
    memcpy(st->name, name.p, name.n);
    st->n = name.n;
    s->count++;
    *slot = st;
    return st;
}

void streams_note(struct streams *s, struct stream *st, int64_t hi, int64_t lo)
{
    if (hi < st->hi || (hi == st->hi && lo <= st->lo))
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
    size_t n = 0;
    if (s->list_cap < s->n_dirty) {
        struct hwm *list = realloc(s->list, s->n_dirty * 2 * sizeof *list);
        if (!list)
            return 0; /* they stay dirty: next time */
        s->list = list;
        s->list_cap = s->n_dirty * 2;
    }
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
