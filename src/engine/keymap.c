#include "engine/keymap.h"

#include <stdlib.h>

#include "engine/live.h"

int keymap_init(struct keymap *m, size_t items)
{
    m->n = 64;
    while (m->n < items)
        m->n *= 2;
    m->bucket = calloc(m->n, sizeof(struct item *));
    return m->bucket ? 0 : -1;
}

void keymap_release(struct keymap *m)
{
    free(m->bucket);
    m->bucket = NULL;
}

/* keymap_slot returns where the pointer to the last item of the key is, or would be. */
static struct item **keymap_slot(struct keymap *m, uint64_t key)
{
    struct item **p = &m->bucket[key & (m->n - 1)];
    while (*p && (*p)->key != key)
        p = &(*p)->next_in_bucket;
    return p;
}

bool keymap_has(struct keymap *m, uint64_t key)
{
    return *keymap_slot(m, key) != NULL;
}

struct item *keymap_put(struct keymap *m, struct item *it)
{
    struct item **p = keymap_slot(m, it->key);
    struct item *last = *p;
    it->next_in_bucket = NULL;
    it->mapped = true;
    if (last) {
        it->next_in_bucket = last->next_in_bucket;
        last->mapped = false;
    }
    *p = it;
    return last;
}

void keymap_drop(struct keymap *m, struct item *it)
{
    if (!it->mapped)
        return;
    *keymap_slot(m, it->key) = it->next_in_bucket;
    it->mapped = false;
}
