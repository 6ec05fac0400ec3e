/* held_keys.h: the keys of which a consumer has events parked, read at once.
 *
 * A batch asks for each of its events whether the key is held. One query for all parked keys costs
 * less than one for each event, unless there are far more of them than events. */
#ifndef STORE_SQLITE_HELD_KEYS_H
#define STORE_SQLITE_HELD_KEYS_H

#include "store/sqlite/sqlite.h"

/* (1) Without `whole` nothing is known: any key may be held. (2) slot has a power of two of places,
 * at least twice as many as there are keys; 0 is an empty one, and no key. */
struct held_keys {
    bool whole;
    int64_t *slot;
    size_t places, n;
};

/* held_keys_read reads the keys of what is parked, for a batch of so many events. The caller
 * releases *ret. Without memory, or if there are too many, nothing is known. */
int held_keys_read(struct sqlite_store *st, const char *consumer, size_t events,
                   struct held_keys *ret, struct error *err);
void held_keys_release(struct held_keys *h);

/* held_keys_may says whether an event of this key may be parked: surely, if h is whole. */
bool held_keys_may(const struct held_keys *h, int64_t key);

/* held_keys_add notes that one is, now. */
void held_keys_add(struct held_keys *h, int64_t key);

#endif
