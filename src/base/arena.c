#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_FIRST ((size_t)64 * 1024)

/* (1) used <= size. (2) head is the block being filled; those behind it are full enough. */
struct arena_block {
    struct arena_block *next;
    size_t size, used;
    alignas(max_align_t) char data[];
};

void arena_init(struct arena *a, size_t limit)
{
    *a = (struct arena){.limit = limit};
}

/* free_except frees every block but `keep`, which becomes the only one. */
static void free_except(struct arena *a, struct arena_block *keep)
{
    for (struct arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        if (b != keep)
            free(b);
    }
    if (keep) {
        keep->next = NULL;
        keep->used = 0;
    }
    a->head = keep;
    a->used = 0;
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

/* add_block puts an empty block of at least n bytes in front. Sizes double, so that after a few
 * rounds the one that arena_reset keeps holds a whole batch; more than the limit in one block could
 * never be used. */
static struct arena_block *add_block(struct arena *a, size_t n)
{
    size_t size = ARENA_FIRST;
    if (a->head && a->head->size >= size)
        size = a->head->size > SIZE_MAX / 2 ? n : a->head->size * 2;
    if (a->limit && size > a->limit)
        size = a->limit;
    if (size < n)
        size = n;
    if (size > SIZE_MAX - sizeof(struct arena_block))
        return NULL;
    struct arena_block *b = malloc(sizeof *b + size);
    if (!b)
        return NULL;
    *b = (struct arena_block){.next = a->head, .size = size};
    a->head = b;
    return b;
}

static void *take(struct arena *a, size_t n, size_t align)
{
    struct arena_block *b = a->head;
    size_t pad = b ? (align - b->used % align) % align : 0;
    bool fits = b && pad <= b->size - b->used && n <= b->size - b->used - pad;
    if (!fits)
        pad = 0;
    if (a->limit && (pad > a->limit - a->used || n > a->limit - a->used - pad))
        return NULL;
    if (!fits && !(b = add_block(a, n)))
        return NULL;
    void *p = b->data + b->used + pad;
    b->used += pad + n;
    a->used += pad + n;
    return p;
}

void *arena_alloc(struct arena *a, size_t n)
{
    return take(a, n, alignof(max_align_t));
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

char *arena_raw(struct arena *a, size_t n)
{
    return take(a, n, 1);
}

char *arena_bytes(struct arena *a, const void *p, size_t n)
{
    char *to = n < SIZE_MAX ? arena_raw(a, n + 1) : NULL;
    if (!to)
        return NULL;
    if (n)
        memcpy(to, p, n);
    to[n] = '\0';
    return to;
}
