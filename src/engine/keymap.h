/* keymap.h: the last event of each key, over all live batches of a pipeline. */
#ifndef ENGINE_KEYMAP_H
#define ENGINE_KEYMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct item; /* of live.h */

/* Items are chained in their bucket; the map owns none of them. */
struct keymap {
    struct item **bucket;
    size_t n; /* a power of two */
};

/* keymap_init makes room for about that many keys. Returns -1 when out of memory. */
int keymap_init(struct keymap *m, size_t items);
/* keymap_release frees the map. It is safe after a failed keymap_init. */
void keymap_release(struct keymap *m);

/* keymap_has says whether an item of the key is in the map. */
bool keymap_has(struct keymap *m, uint64_t key);
/* keymap_put makes the item the last of its key, and returns the one it replaces; NULL: none. */
struct item *keymap_put(struct keymap *m, struct item *it);
/* keymap_drop takes the item out of the map, if it is the last of its key. */
void keymap_drop(struct keymap *m, struct item *it);

#endif
