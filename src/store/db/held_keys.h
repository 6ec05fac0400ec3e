/* held_keys.h: the set of keys with parked events of a consumer, read in one query.
 *
 * For each event of a batch we need to know whether its key is held. One query for all parked keys
 * costs less than one query per event, unless there are far more keys than events. So a handle
 * keeps the set until another handle parks events, which changes the consumer's parked_stamp. Keys
 * it parks itself are added. When events are unparked, the set is read again.
 *
 * Everything here runs inside a transaction that has locked the consumer's row, after
 * held_keys_check. If that is rolled back, the stamp differs from the one noted, and the set is
 * unknown. */
#ifndef STORE_DB_HELD_KEYS_H
#define STORE_DB_HELD_KEYS_H

#include "store/db/db.h"

/* (1) Unless `whole`, the set is unknown: any key may be held. (2) The number of slots is a power
 * of two, at least twice the number of keys; 0 is an empty slot, and never a key. (3) The set is
 * valid while the consumer has this stamp. */
struct held_keys {
    bool whole;
    int64_t *slot;
    size_t places, n;
    int64_t stamp;
    size_t asked,
        read_at; /* separate queries since the last read; the number at which a read pays off */
    char *consumer;
    struct held_keys *next;
};

/* held_keys_check takes the current stamp, and drops a set that is out of date. */
void held_keys_check(struct store *st, const char *consumer, int64_t stamp);
/* held_keys_read returns the set of a consumer, reading it first if that pays off for a batch of
 * `events` events. The set is unknown if memory ran out or there are too many keys. *ret lives as
 * long as the handle; NULL: out of memory. */
int held_keys_read(struct store *st, const char *consumer, size_t events, struct held_keys **ret,
                   struct error *err);
/* held_keys_change must accompany any change to parked events, in the same transaction. This
 * handle's set stays valid. */
int held_keys_change(struct store *st, const char *consumer, struct error *err);
/* held_keys_forget drops the set of a consumer; held_keys_release all sets, with the handle. */
void held_keys_forget(struct store *st, const char *consumer);
void held_keys_release(struct store *st);

/* held_keys_may returns whether an event of this key may be parked; exact if h is whole. h may be
 * NULL. */
bool held_keys_may(const struct held_keys *h, int64_t key);
/* held_keys_add notes that an event of the consumer with this key is now parked. */
void held_keys_add(struct store *st, const char *consumer, int64_t key);

#endif
