/* receive_check.c: compares received messages with the events in the store. */
#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"
#include "base/utf8.h"
#include "extra/receive/receive.h"

#define FIRST_SIZE 1024 /* initial size of a table; a power of two */

/* An entry of a table: a received event, or a key at a place. */
struct slot {
    uint64_t high, low; /* the id; for a key, its hash and 0 */
    uint64_t place;     /* the hash of where it was received */
    int64_t arrival;    /* arrival number of the event, or of the key's last event */
    bool used, seen;    /* seen: the store has it */
};

/* An open-addressing table that doubles when it is three quarters full. */
struct table {
    struct slot *slot;
    size_t size, n;
};

/* `events` has every received event, `keys` every key and place found in the store. */
struct receive_check {
    struct table events, keys;
    struct receive_counts counts;
    bool failed; /* out of memory */
};

static int table_init(struct table *t)
{
    *t = (struct table){.slot = calloc(FIRST_SIZE, sizeof(struct slot)), .size = FIRST_SIZE};
    return t->slot ? 0 : -1;
}

/* Returns the slot of these numbers, or the empty slot where they belong. */
static struct slot *find_slot(const struct table *t, uint64_t high, uint64_t low)
{
    size_t i = (size_t)hash_end(high ^ (low * UINT64_C(0x9e3779b97f4a7c15))) & (t->size - 1);
    while (t->slot[i].used && (t->slot[i].high != high || t->slot[i].low != low))
        i = (i + 1) & (t->size - 1);
    return &t->slot[i];
}

static int grow_table(struct table *t)
{
    struct table bigger = {.slot = calloc(2 * t->size, sizeof(struct slot)), .size = 2 * t->size};
    if (!bigger.slot)
        return -1;
    bigger.n = t->n;
    for (size_t i = 0; i < t->size; i++)
        if (t->slot[i].used)
            *find_slot(&bigger, t->slot[i].high, t->slot[i].low) = t->slot[i];
    free(t->slot);
    *t = bigger;
    return 0;
}

/* Finds or adds a slot; returns NULL if out of memory. */
static struct slot *put_slot(struct table *t, uint64_t high, uint64_t low, bool *ret_new)
{
    if (t->n >= t->size / 4 * 3 && grow_table(t) != 0)
        return NULL;
    struct slot *s = find_slot(t, high, low);
    *ret_new = !s->used;
    if (!s->used) {
        *s = (struct slot){.high = high, .low = low, .used = true};
        t->n++;
    }
    return s;
}

struct receive_check *receive_check_new(void)
{
    struct receive_check *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    bool made = table_init(&c->events) == 0 && table_init(&c->keys) == 0;
    if (made)
        return c;
    receive_check_free(c);
    return NULL;
}

void receive_check_free(struct receive_check *c)
{
    if (!c)
        return;
    free(c->events.slot);
    free(c->keys.slot);
    free(c);
}

const struct receive_counts *receive_check_counts(const struct receive_check *c)
{
    return &c->counts;
}

/* Reads the digits of an id as two numbers; letters may be upper case. */
static void number_of(struct str id, uint64_t *high, uint64_t *low)
{
    *high = *low = 0;
    for (size_t i = 0; i < id.n; i++) {
        int digit = char_hex(id.p[i]);
        if (digit < 0)
            continue;
        *high = *high << 4 | *low >> 60;
        *low = *low << 4 | (uint64_t)digit;
    }
}

int receive_check_add(struct receive_check *c, struct str id, struct str place)
{
    uint64_t high, low;
    bool is_new;
    number_of(id, &high, &low);
    struct slot *s = put_slot(&c->events, high, low, &is_new);
    if (!s)
        return -1;
    c->counts.received++;
    if (!is_new) {
        c->counts.repeats++;
        return 0;
    }
    s->arrival = c->counts.received;
    s->place = hash_end(hash_add(HASH_INIT, place));
    c->counts.events++;
    return 0;
}

void receive_check_strange(struct receive_check *c)
{
    c->counts.received++;
    c->counts.strange++;
}

/* The store */

/* Compares an event with the previous event of its key. Called in the order of sequence numbers. */
static void check_order(struct receive_check *c, const struct event *ev, const struct slot *came)
{
    bool is_new;
    if (ev->key == 0)
        return;
    struct slot *key = put_slot(&c->keys, ev->key, came->place, &is_new);
    if (!key) {
        c->failed = true;
        return;
    }
    if (came->arrival > key->arrival) {
        key->arrival = came->arrival;
        return;
    }
    if (c->counts.misordered++ == 0)
        snprintf(c->counts.misordered_id, sizeof c->counts.misordered_id, "%s", ev->id.p);
}

/* Returns whether the consumer has delivered the event; without a consumer, always true. */
static bool is_expected(const struct delivery_info *d, size_t n, const char *consumer)
{
    if (!consumer)
        return true;
    for (size_t i = 0; i < n; i++)
        if (strcmp(d[i].consumer, consumer) == 0)
            return d[i].state == STATE_DELIVERED;
    return false;
}

struct walk {
    struct receive_check *c;
    const char *consumer;
};

static int visit_event(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n)
{
    const struct walk *w = ctx;
    struct receive_check *c = w->c;
    uint64_t high, low;
    number_of(ev->id, &high, &low);
    struct slot *came = find_slot(&c->events, high, low);
    bool expected = is_expected(d, n, w->consumer);
    if (expected)
        c->counts.expected++;
    if (came->used) {
        came->seen = true;
        check_order(c, ev, came);
        return c->failed;
    }
    if (expected && c->counts.lost++ == 0)
        snprintf(c->counts.lost_id, sizeof c->counts.lost_id, "%s", ev->id.p);
    return 0;
}

int receive_check_store(struct receive_check *c, struct store *st, const char *consumer,
                        struct error *err)
{
    struct walk w = {c, consumer};
    struct event_query q = {.consumer = consumer, .limit = SIZE_MAX / 4, .look = LOOK_ALL};
    if (st->ops->events(st, &q, visit_event, &w, err) != 0)
        return -1;
    if (c->failed)
        return err_nomem(err);
    for (size_t i = 0; i < c->events.size; i++) {
        const struct slot *s = &c->events.slot[i];
        if (s->used && !s->seen)
            c->counts.unknown++;
    }
    return 0;
}
