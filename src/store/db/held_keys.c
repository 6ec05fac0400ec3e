/* held_keys.c: the set of keys with parked events of a consumer, read in one query.
 *
 * For each event of a batch we need to know whether its key is held. One query for all parked keys
 * costs less than one query per event, unless there are far more keys than events. So a handle
 * keeps the set until another handle parks events, which changes the consumer's parked_stamp. Keys
 * it parks itself are added. When events are unparked, the set is read again.
 *
 * Everything here runs inside a transaction that has locked the consumer's row, after
 * held_keys_check. If that is rolled back, the stamp differs from the one noted, and the set is
 * unknown. */
#include "store/db/turn.h"

#include <stdlib.h>

#include "store_sql.h"

#define PLACES 512             /* at first */
#define MOST ((size_t)1 << 16) /* maximum number of keys in a set */
#define FEW 3                  /* events that are queried one by one */
#define PER_EVENT 2            /* parked keys that may be read for each event */

/* ---- a set of keys ---- */

/* Finds the key's slot, or the empty slot for it. */
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
    if (!h || !h->whole)
        return true;
    return key != 0 && h->slot[place_of(h, key)] == key;
}

static void forget(struct held_keys *h)
{
    free(h->slot);
    h->slot = NULL;
    h->whole = false;
    h->n = 0;
}

/* Doubles the slots. If memory runs out, or there are too many keys, the set becomes unknown. */
static void grow(struct held_keys *h)
{
    struct held_keys more = {.places = 2 * h->places};
    if (h->n < MOST)
        more.slot = calloc(more.places, sizeof *more.slot);
    if (!more.slot) {
        forget(h);
        return;
    }
    for (size_t i = 0; i < h->places; i++)
        if (h->slot[i] != 0)
            more.slot[place_of(&more, h->slot[i])] = h->slot[i];
    free(h->slot);
    h->slot = more.slot;
    h->places = more.places;
}

static void add(struct held_keys *h, int64_t key)
{
    if (!h || !h->whole || key == 0)
        return;
    size_t i = place_of(h, key);
    if (h->slot[i] == key)
        return;
    h->slot[i] = key;
    h->n++;
    if (2 * h->n > h->places)
        grow(h);
}

/* ---- one set per consumer ---- */

static struct held_keys *find(struct store *st, const char *consumer)
{
    struct held_keys *h = db_of(st)->held;
    while (h && strcmp(h->consumer, consumer) != 0)
        h = h->next;
    return h;
}

void held_keys_add(struct store *st, const char *consumer, int64_t key)
{
    add(find(st, consumer), key);
}

void held_keys_forget(struct store *st, const char *consumer)
{
    struct held_keys *h = find(st, consumer);
    if (h)
        forget(h);
}

void held_keys_release(struct store *st)
{
    while (db_of(st)->held) {
        struct held_keys *h = db_of(st)->held;
        db_of(st)->held = h->next;
        free(h->slot);
        free(h->consumer);
        free(h);
    }
}

/* ---- parked events ---- */

void held_keys_check(struct store *st, const char *consumer, int64_t stamp)
{
    bool never_parked = stamp == 0;
    struct held_keys *h = find(st, consumer);
    if (!h && !never_parked) {
        h = calloc(1, sizeof *h);
        char *name = strdup(consumer);
        if (!h || !name) {
            free(h);
            free(name);
            return; /* the set stays unknown */
        }
        *h = (struct held_keys){.consumer = name, .next = db_of(st)->held};
        db_of(st)->held = h;
    }
    if (!h)
        return;
    if (stamp != h->stamp)
        forget(h);
    h->stamp = stamp;
}

/* A random stamp never repeats, not even after a restore. */
int held_keys_change(struct store *st, const char *consumer, struct error *err)
{
    struct held_keys *h = find(st, consumer);
    int64_t stamp = (int64_t)rng_next(&db_of(st)->rng);
    if (h)
        h->stamp = stamp;
    return db_later(st, err, SQL(note_parked, .consumer = consumer, .stamp = stamp));
}

/* Reads the keys, unless there are more than `most`. */
static int read_all(struct store *st, struct held_keys *h, size_t most, struct error *err)
{
    size_t rows = 0;
    int r;
    h->places = PLACES;
    h->slot = calloc(h->places, sizeof *h->slot);
    if (!h->slot)
        return 0;

    h->whole = true;
    struct db_rows q = db_rows(st, err,
                               SQL(parked_keys, .consumer = h->consumer, .max = (int64_t)most + 1));
    while ((r = db_step(&q, err)) == 1) {
        add(h, db_int(&q, 0));
        rows++;
        if (!h->whole)
            break;
    }
    db_done(&q);
    if (r < 0 || rows > most)
        forget(h);
    return r < 0 ? -1 : 0;
}

int held_keys_read(struct store *st, const char *consumer, size_t events, struct held_keys **ret,
                   struct error *err)
{
    struct held_keys *h = find(st, consumer);
    *ret = h;
    if (!h || h->whole || events < FEW)
        return 0;

    /* Each separate query raises the number of keys that a later read may fetch at once. */
    size_t most = PER_EVENT * events;
    h->asked += events;
    if (h->asked >= h->read_at) {
        h->read_at = 2 * h->asked;
        most = PER_EVENT * h->asked;
    }
    if (read_all(st, h, most, err) != 0)
        return -1;
    if (h->whole) {
        h->asked = 0;
        h->read_at = 0;
    }
    return 0;
}
