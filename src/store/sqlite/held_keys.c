#include "store/sqlite/held_keys.h"

#include <stdlib.h>

#include "store_sql.h"

#define PLACES 512  /* at first */
#define FEW 3       /* events that are asked for one by one */
#define PER_EVENT 2 /* parked keys that may be read for each event */

/* place_of finds the key's place, or the empty one where it belongs. */
static size_t place_of(const struct held_keys *h, int64_t key)
{
    size_t mask = h->places - 1;
    size_t i = ((uint64_t)key * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & mask;
    while (h->slot[i] != 0 && h->slot[i] != key)
        i = (i + 1) & mask;
    return i;
}

bool held_keys_may(const struct held_keys *h, int64_t key)
{
    return !h->whole || (key != 0 && h->slot[place_of(h, key)] == key);
}

/* grow doubles the places. Without memory nothing is known any more. */
static void grow(struct held_keys *h)
{
    struct held_keys more = {.whole = true, .places = 2 * h->places, .n = h->n};
    more.slot = calloc(more.places, sizeof *more.slot);
    if (!more.slot) {
        h->whole = false;
        return;
    }
    for (size_t i = 0; i < h->places; i++)
        if (h->slot[i] != 0)
            more.slot[place_of(&more, h->slot[i])] = h->slot[i];
    free(h->slot);
    *h = more;
}

void held_keys_add(struct held_keys *h, int64_t key)
{
    if (!h->whole || key == 0)
        return;
    size_t i = place_of(h, key);
    if (h->slot[i] == key)
        return;
    h->slot[i] = key;
    h->n++;
    if (2 * h->n > h->places)
        grow(h);
}

void held_keys_release(struct held_keys *h)
{
    free(h->slot);
    *h = (struct held_keys){0};
}

int held_keys_read(struct sqlite_store *st, const char *consumer, size_t events,
                   struct held_keys *ret, struct error *err)
{
    size_t most = PER_EVENT * events, rows = 0;
    struct held_keys h = {.places = PLACES};
    int r;
    *ret = (struct held_keys){0};
    if (events < FEW)
        return 0;
    h.slot = calloc(h.places, sizeof *h.slot);
    if (!h.slot)
        return 0;

    h.whole = true;
    sqlite3_stmt *q = sqlite_rows(st, err,
                                  SQL(parked_keys, .consumer = consumer, .max = (int64_t)most + 1));
    while ((r = sqlite_step(st, q, err)) == 1) {
        held_keys_add(&h, sqlite3_column_int64(q, 0));
        rows++;
    }
    if (r < 0 || rows > most) {
        held_keys_release(&h);
        return r;
    }
    *ret = h;
    return 0;
}
