#include "store/sqlite/held_keys.h"

#include <stdlib.h>

#include "store_sql.h"

#define PLACES 512             /* at first */
#define MOST ((size_t)1 << 16) /* keys that are kept */
#define FEW 3                  /* events that are asked for one by one */
#define PER_EVENT 2            /* parked keys that may be read for each event */

/* ---- a set of keys ---- */

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

/* grow doubles the places. Without memory, or with too many keys, nothing is known any more. */
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

void held_keys_add(struct held_keys *h, int64_t key)
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

/* ---- one of each consumer ---- */

struct held_keys *held_keys_known(struct sqlite_store *st, const char *consumer)
{
    struct held_keys *h = st->held;
    while (h && strcmp(h->consumer, consumer) != 0)
        h = h->next;
    return h;
}

static struct held_keys *find_or_make(struct sqlite_store *st, const char *consumer)
{
    struct held_keys *h = held_keys_known(st, consumer);
    if (h)
        return h;
    h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->consumer = strdup(consumer);
    if (!h->consumer) {
        free(h);
        return NULL;
    }
    h->next = st->held;
    st->held = h;
    return h;
}

void held_keys_forget(struct sqlite_store *st, const char *consumer)
{
    struct held_keys *h = held_keys_known(st, consumer);
    if (h)
        forget(h);
}

void held_keys_release(struct sqlite_store *st)
{
    while (st->held) {
        struct held_keys *h = st->held;
        st->held = h->next;
        free(h->slot);
        free(h->consumer);
        free(h);
    }
}

/* ---- what is parked ---- */

/* check_stamp forgets what is no longer true. */
static int check_stamp(struct sqlite_store *st, struct held_keys *h, struct error *err)
{
    int64_t stamp = 0;
    if (sqlite_value(st, err, &stamp, SQL(parked_stamp, .consumer = h->consumer)) != 0)
        return -1;
    if (stamp != h->stamp)
        forget(h);
    h->stamp = stamp;
    return 0;
}

int held_keys_change(struct sqlite_store *st, const char *consumer, struct error *err)
{
    struct held_keys *h = held_keys_known(st, consumer);
    if (h && check_stamp(st, h, err) != 0)
        return -1;
    if (sqlite_run(st, err, SQL(note_parked, .consumer = consumer)) != 0)
        return -1;
    if (!h)
        return 0;
    return sqlite_value(st, err, &h->stamp, SQL(parked_stamp, .consumer = consumer));
}

/* read_all reads the keys, unless there are more than `most`. */
static int read_all(struct sqlite_store *st, struct held_keys *h, size_t most, struct error *err)
{
    size_t rows = 0;
    int r;
    h->places = PLACES;
    h->slot = calloc(h->places, sizeof *h->slot);
    if (!h->slot)
        return 0;

    h->whole = true;
    sqlite3_stmt *q = sqlite_rows(
        st, err, SQL(parked_keys, .consumer = h->consumer, .max = (int64_t)most + 1));
    while ((r = sqlite_step(st, q, err)) == 1) {
        held_keys_add(h, sqlite3_column_int64(q, 0));
        rows++;
        if (!h->whole)
            break;
    }
    sqlite3_reset(q);
    if (r < 0 || rows > most)
        forget(h);
    return r < 0 ? -1 : 0;
}

/* worth_reading returns how many keys may be read for a batch of so many events. Each event that is
 * asked for by itself makes it worth to read a few more of them some time. */
static size_t worth_reading(struct held_keys *h, size_t events)
{
    size_t most = PER_EVENT * events;
    h->asked += events;
    if (h->asked < h->read_at)
        return most;
    h->read_at = 2 * h->asked;
    return PER_EVENT * h->asked;
}

int held_keys_read(struct sqlite_store *st, const char *consumer, size_t events,
                   struct held_keys **ret, struct error *err)
{
    struct held_keys *h = find_or_make(st, consumer);
    *ret = h;
    if (!h)
        return 0;
    if (check_stamp(st, h, err) != 0)
        return -1;
    if (h->whole || events < FEW)
        return 0;
    if (read_all(st, h, worth_reading(h, events), err) != 0)
        return -1;
    if (h->whole) {
        h->asked = 0;
        h->read_at = 0;
    }
    return 0;
}
