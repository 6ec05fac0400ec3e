#include "store/topics.h"

#include <stdlib.h>
#include <string.h>

struct topic {
    const char *type;
    int64_t n[TOPIC_PLACES];
    int64_t oldest_at;
};

/* Finds the entry of a type, or appends it; NULL: out of memory. */
static struct topic *topic_of(struct topics *t, const struct topic_find *f, struct error *err)
{
    for (size_t i = 0; i < t->n; i++)
        if (str_is(f->type, t->list[i].type))
            return &t->list[i];

    struct topic *list = arena_grow(t->a, t->list, t->n, sizeof *list);
    const char *name = arena_bytes(t->a, f->type.p, f->type.n);
    if (!list || !name) {
        err_nomem(err);
        return NULL;
    }
    t->list = list;
    t->list[t->n] = (struct topic){.type = name, .oldest_at = f->oldest_at};
    return &t->list[t->n++];
}

int topics_add(struct topics *t, const struct topic_find *f, struct error *err)
{
    struct topic *to = topic_of(t, f, err);
    if (!to)
        return -1;
    to->n[f->place] += f->n;
    bool older = f->oldest_at && (!to->oldest_at || f->oldest_at < to->oldest_at);
    if (older)
        to->oldest_at = f->oldest_at;
    return 0;
}

static int most_first(const void *a, const void *b)
{
    const struct gauge_type *x = a, *y = b;
    if (x->n != y->n)
        return x->n < y->n ? 1 : -1;
    return strcmp(x->type, y->type);
}

int topics_end(struct topics *t, const int64_t all[TOPIC_PLACES], struct consumer_gauge *g,
               struct error *err)
{
    int64_t sample[TOPIC_PLACES] = {0};
    for (size_t i = 0; i < t->n; i++)
        for (size_t place = 0; place < TOPIC_PLACES; place++)
            sample[place] += t->list[i].n[place];

    struct gauge_type *list = arena_zalloc(t->a, t->n + 1, sizeof *list);
    if (!list)
        return err_nomem(err);
    for (size_t i = 0; i < t->n; i++) {
        const struct topic *from = &t->list[i];
        list[i] = (struct gauge_type){.type = from->type, .oldest_at = from->oldest_at};
        for (size_t place = 0; place < TOPIC_PLACES; place++) {
            double n = (double)from->n[place];
            if (all[place] > sample[place] && sample[place] > 0)
                n = n * (double)all[place] / (double)sample[place];
            list[i].n += (int64_t)(n + 0.5);
        }
    }
    if (t->n)
        qsort(list, t->n, sizeof *list, most_first);
    g->type = list;
    g->n_types = t->n;
    return 0;
}
