/* waiting.c: which events of a claim may not be delivered now, because their not_before is in the
 * future or because a parked event of their key holds them up. The server reports either these
 * events or the held keys, whichever it has at hand. */
#include <stdlib.h>

#include "store/postgres/postgres.h"

/* ---- keys as hashed by the server ---- */

/* sql/postgres/internal/values.sql hashes keys with hashtextextended: Bob Jenkins's lookup3 on
 * three words, with PostgreSQL's own start value. It can never change, because hash partitions
 * depend on it; the server still checks a sample. */
struct words {
    uint32_t a, b, c;
};

static uint32_t turned(uint32_t x, int bits)
{
    return x << bits | x >> (32 - bits);
}

static void mix(struct words *w)
{
    static const int by[] = {4, 6, 8, 16, 19, 4};
    for (int i = 0; i < 6; i++) {
        w->a = (w->a - w->c) ^ turned(w->c, by[i]);
        w->c += w->b;
        /* The next step does the same to b, c and a. */
        *w = (struct words){w->b, w->c, w->a};
    }
}

static uint64_t finish(struct words *w)
{
    static const int by[] = {14, 11, 25, 16, 4, 14, 24};
    for (int i = 0; i < 7; i++) {
        w->c = (w->c ^ w->b) - turned(w->b, by[i]);
        *w = (struct words){w->b, w->c, w->a};
    }
    return (uint64_t)w->a << 32 | w->b;
}

/* A string that is hashed in pieces, twelve bytes at a time. */
struct hashing {
    struct words w;
    unsigned char held[12];
    size_t n;
};

static uint32_t word(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void hash_block(struct hashing *h)
{
    h->w.a += word(h->held);
    h->w.b += word(h->held + 4);
    h->w.c += word(h->held + 8);
    mix(&h->w);
    h->n = 0;
}

static void hash_piece(struct hashing *h, struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        h->held[h->n++] = (unsigned char)s.p[i];
        if (h->n == sizeof h->held)
            hash_block(h);
    }
}

/* Hashes the rest, less than a block. The lowest byte of c is for the length. */
static uint64_t hash_rest(struct hashing *h)
{
    memset(h->held + h->n, 0, sizeof h->held - h->n);
    h->w.a += word(h->held);
    h->w.b += word(h->held + 4);
    h->w.c += word(h->held + 8) << 8;
    return finish(&h->w);
}

int64_t pg_key(struct str aggregate_type, struct str aggregate_id)
{
    if (!aggregate_id.p)
        return 0;
    uint32_t start = UINT32_C(0x9e3779b9) + UINT32_C(3923095) +
                     (uint32_t)(aggregate_type.n + 1 + aggregate_id.n);
    struct hashing h = {.w = {start, start, start}};
    hash_piece(&h, aggregate_type);
    hash_piece(&h, STR("\1"));
    hash_piece(&h, aggregate_id);
    uint64_t key = hash_rest(&h);
    return key ? (int64_t)key : 1;
}

int64_t pg_key_sample(void)
{
    return pg_key(STR("outbox"), STR("a key of more than a few bytes"));
}

/* ---- a set of keys ---- */

/* A hash table with at least twice as many slots as keys; 0 is a free one. The keys are hashes
 * already. */
struct keys {
    int64_t *at;
    size_t mask;
};

static size_t place_of(const struct keys *k, int64_t key)
{
    size_t i = (size_t)key & k->mask;
    while (k->at[i] != 0 && k->at[i] != key)
        i = (i + 1) & k->mask;
    return i;
}

/* Reads a list of keys. An event without a key holds up no others: 0 is left out. */
static int read_keys(const char *text, struct keys *k, struct error *err)
{
    size_t n = 1;
    for (const char *p = text; *p; p++)
        n += *p == ',';
    size_t size = 4;
    while (size < 2 * n)
        size *= 2;
    *k = (struct keys){.at = calloc(size, sizeof *k->at), .mask = size - 1};
    if (!k->at)
        return err_nomem(err);
    for (int64_t key; pg_next_number(&text, &key);)
        if (key != 0)
            k->at[place_of(k, key)] = key;
    return 0;
}

static int mark_by_keys(struct batch *b, const char *text, struct error *err)
{
    struct keys held;
    if (read_keys(text, &held, err) != 0)
        return -1;
    for (size_t i = 0; i < b->n; i++) {
        struct event *ev = &b->ev[i];
        int64_t key = pg_key(ev->aggregate_type, ev->aggregate_id);
        ev->behind = key != 0 && held.at[place_of(&held, key)] == key;
    }
    free(held.at);
    return 0;
}

/* ---- events by their seq ---- */

/* Finds an event by seq, by which a batch is ordered; NULL: the filter excluded it. */
static struct event *find_event(const struct batch *b, int64_t seq)
{
    size_t low = 0;
    size_t high = b->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (b->ev[mid].seq < seq)
            low = mid + 1;
        else
            high = mid;
    }
    bool found = low < b->n && b->ev[low].seq == seq;
    return found ? &b->ev[low] : NULL;
}

static void mark_by_seq(struct batch *b, const char *held)
{
    for (int64_t seq; pg_next_number(&held, &seq);) {
        struct event *ev = find_event(b, seq);
        if (ev)
            ev->behind = true;
    }
}

int pg_mark_waiting(struct batch *b, const char *held, const char *keys, int64_t now,
                    struct error *err)
{
    for (size_t i = 0; i < b->n; i++)
        b->ev[i].delayed = b->ev[i].not_before > now;
    if (held)
        mark_by_seq(b, held);
    return keys ? mark_by_keys(b, keys, err) : 0;
}
