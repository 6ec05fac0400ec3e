/* held_keys.h: the keys of which a consumer has events parked, read at once.
 *
 * A batch asks for each of its events whether the key is held. One query for all parked keys costs
 * less than one for each event, unless there are far more of them than events. So a handle keeps
 * what it has read until another one parks events, which changes the consumer's parked_stamp. What
 * it parks itself, it adds. When events are parked no longer, it reads anew.
 *
 * Everything here runs inside a transaction that has the consumer's row, after held_keys_check. If
 * that is rolled back, the stamp is no longer the one that was noted, and nothing is known. */
#ifndef STORE_DB_HELD_KEYS_H
#define STORE_DB_HELD_KEYS_H

#include "store/db/db.h"

/* (1) Without `whole` nothing is known: any key may be held. (2) slot has a power of two of places,
 * at least twice as many as there are keys; 0 is an empty one, and no key. (3) What is known is
 * true if the consumer has this stamp. */
struct held_keys {
    bool whole;
    int64_t *slot;
    size_t places, n;
    int64_t stamp;
    size_t asked, read_at; /* one by one, since they were read; when it pays to read more of them */
    char *consumer;
    struct held_keys *next;
};

/* held_keys_check takes the stamp as it is now, and forgets what is no longer true. */
void held_keys_check(struct store *st, const char *consumer, int64_t stamp);
/* held_keys_read gives what is known of a consumer, and reads it if that pays for a batch of so
 * many events. Without memory, or if there are too many, nothing is known. *ret lives as long as
 * the handle; NULL: without memory. */
int held_keys_read(struct store *st, const char *consumer, size_t events, struct held_keys **ret,
                   struct error *err);
/* held_keys_change comes with any change to what is parked, in the same transaction. What was known
 * is still known to this handle. */
int held_keys_change(struct store *st, const char *consumer, struct error *err);
/* held_keys_forget forgets what is known of a consumer, held_keys_release all, with the handle. */
void held_keys_forget(struct store *st, const char *consumer);
void held_keys_release(struct store *st);

/* held_keys_may says whether an event of this key may be parked: surely, if h is whole. h may be
 * NULL. */
bool held_keys_may(const struct held_keys *h, int64_t key);
/* held_keys_add notes that an event of the consumer with this key is, now. */
void held_keys_add(struct store *st, const char *consumer, int64_t key);

#endif
