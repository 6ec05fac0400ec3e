/* buf.h: a growing byte buffer with a ceiling. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* (1) n <= cap. (2) After a failed append `failed` stays set until buf_clear, and the content is as
 *   it was before
 * the first append that failed: callers append freely and check once. (3) full implies failed: it
 * was the ceiling, not memory, so that trying again later is no use. */
struct buf {
    char *p;
    size_t n, cap;
    size_t max; /* ceiling for n */
    bool failed, full;
};

void buf_init(struct buf *b, size_t max);
void buf_release(struct buf *b);
void buf_clear(struct buf *b);
/* buf_truncate cuts back to n bytes and forgives a failed append: how a half-written record is
 * undone. */
void buf_truncate(struct buf *b, size_t n);
void buf_addi64(struct buf *b, int64_t v);
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* buf_cstr terminates the content with a NUL (not counted in n) and returns it; NULL if anything
 * failed. */
const char *buf_cstr(struct buf *b);
/* buf_grow is buf_reserve when there is not room enough yet. */
char *buf_grow(struct buf *b, size_t n);

/* buf_reserve makes room for n more bytes and returns where they go, or NULL (and sets failed). The
 * caller then writes there and adds to b->n itself. */
static inline char *buf_reserve(struct buf *b, size_t n)
{
    return b->p && !b->failed && n <= b->cap - b->n ? b->p + b->n : buf_grow(b, n);
}

/* buf_expect makes room once for about n more bytes. Only a hint: close to the ceiling the appends
 * find out exactly. */
static inline void buf_expect(struct buf *b, size_t n)
{
    if (b->n <= b->max && n <= b->max - b->n)
        (void)buf_reserve(b, n);
}

/* Inline, because lines of hundreds of thousands of events a second are made of these. */
static inline void buf_add(struct buf *b, const void *p, size_t n)
{
    char *to = n ? buf_reserve(b, n) : NULL;
    if (!to)
        return;
    memcpy(to, p, n);
    b->n += n;
}

static inline void buf_addc(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

static inline void buf_adds(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

static inline void buf_addstr(struct buf *b, struct str s)
{
    buf_add(b, s.p, s.n);
}

#endif
