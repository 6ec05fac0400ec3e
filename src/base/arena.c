#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"

#define ARENA_FIRST ((size_t)64 * 1024)

/* (1) used <= size. (2) Allocations come from the block at the head of the list; those after it are
 * not touched. */
struct arena_block {
    struct arena_block *next;
    size_t size, used;
    alignas(max_align_t) char data[];
};

void arena_init(struct arena *a, size_t limit)
{
    *a = (struct arena){.limit = limit};
}

/* Frees every block except `keep`, which becomes the only one. */
static void free_except(struct arena *a, struct arena_block *keep)
{
    for (struct arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        if (b != keep)
            free(b);
    }
    a->head = keep;
    a->used = 0;
    a->held = 0;
    if (keep) {
        keep->next = NULL;
        keep->used = 0;
        a->held = keep->size;
    }
}

void arena_release(struct arena *a)
{
    free_except(a, NULL);
}

void arena_reset(struct arena *a)
{
    struct arena_block *largest = a->head;
    for (struct arena_block *b = a->head; b; b = b->next)
        if (b->size > largest->size)
            largest = b;
    free_except(a, largest);
}

/* Returns twice a size, or the size itself if that would overflow. */
static size_t doubled(size_t size)
{
    if (size > SIZE_MAX / 2)
        return size;
    return 2 * size;
}

/* Returns the size of the next block, which must hold n bytes. Sizes double, so after a few rounds
 * the block kept by arena_reset holds a whole batch. No block exceeds the limit. */
static size_t block_size(const struct arena *a, size_t n)
{
    size_t size = ARENA_FIRST;
    if (a->head)
        size = max_size(size, doubled(a->head->size));
    if (a->limit && size > a->limit)
        size = a->limit;
    return max_size(size, n);
}

/* Adds an empty block of at least n bytes; NULL when out of memory. A block for an unusually large
 * allocation goes behind the head, which keeps serving the others. */
static struct arena_block *add_block(struct arena *a, size_t n)
{
    size_t size = block_size(a, n);
    if (size > SIZE_MAX - sizeof(struct arena_block))
        return NULL;

    struct arena_block *b = malloc(sizeof *b + size);
    if (!b)
        return NULL;
    struct arena_block **at = &a->head;
    bool apart = a->head && n > doubled(a->head->size);
    if (apart)
        at = &a->head->next;
    *b = (struct arena_block){.next = *at, .size = size};
    *at = b;
    a->held += size;
    return b;
}

static void *arena_take(struct arena *a, size_t n, size_t align)
{
    struct arena_block *b = a->head;
    size_t pad = 0;
    if (b)
        pad = (align - b->used % align) % align;
    size_t left = b ? b->size - b->used : 0;
    bool fits = b && pad <= left && n <= left - pad;
    if (!fits)
        pad = 0; /* a new block starts aligned */

    size_t allowed = a->limit ? a->limit - a->used : SIZE_MAX;
    if (pad > allowed || n > allowed - pad)
        return NULL;
    if (!fits)
        b = add_block(a, n);
    if (!b)
        return NULL;

    void *p = b->data + b->used + pad;
    b->used += pad + n;
    a->used += pad + n;
    return p;
}

void *arena_alloc(struct arena *a, size_t n)
{
    return arena_take(a, n, alignof(max_align_t));
}

void *arena_zalloc(struct arena *a, size_t count, size_t size)
{
    size_t n;
    if (__builtin_mul_overflow(count, size, &n))
        return NULL;
    void *p = arena_alloc(a, n);
    if (p)
        memset(p, 0, n);
    return p;
}

void *arena_grow(struct arena *a, void *list, size_t n, size_t size)
{
    bool full = (n & (n - 1)) == 0;
    if (!full)
        return list;
    void *larger = arena_zalloc(a, n > 0 ? 2 * n : 1, size);
    if (larger && n > 0)
        memcpy(larger, list, n * size);
    return larger;
}

char *arena_raw(struct arena *a, size_t n)
{
    return arena_take(a, n, 1);
}

char *arena_bytes(struct arena *a, const void *p, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *to = arena_raw(a, n + 1);
    if (!to)
        return NULL;
    if (n)
        memcpy(to, p, n);
    to[n] = '\0';
    return to;
}
