/* buf.h: a growing byte buffer with a ceiling. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* (1) n <= cap. (2) After a failed append, `failed` stays set until buf_clear, and the content is
 * as it was before that append: callers append freely and check once. (3) full implies failed: the
 * ceiling was reached rather than memory exhausted, so retrying later is pointless. */
struct buf {
    char *p;
    size_t n, cap;
    size_t max; /* ceiling for n */
    bool failed, full;
};

/* buf_init makes an empty buffer that takes up to max bytes. It allocates nothing. */
void buf_init(struct buf *b, size_t max);

/* buf_release frees the content; the buffer is then empty and can be reused. */
void buf_release(struct buf *b);

/* buf_wipe overwrites the content, a secret, and empties the buffer. */
void buf_wipe(struct buf *b);

/* buf_clear empties the buffer, keeps its memory and clears the failure. */
void buf_clear(struct buf *b);

/* buf_truncate cuts back to n bytes and clears the failure: it undoes a half-written record. */
void buf_truncate(struct buf *b, size_t n);

/* buf_addi64 appends the number in decimal. */
void buf_addi64(struct buf *b, int64_t v);

/* buf_addf appends what printf would print. */
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* buf_cstr terminates the content with a NUL (not counted in n) and returns it, valid until the
 * next change; NULL if an append failed. */
const char *buf_cstr(struct buf *b);

/* buf_grow is the slow path of buf_reserve, for when there is not enough room. */
char *buf_grow(struct buf *b, size_t n);

/* buf_reserve makes room for n more bytes and returns where they go, or NULL (and sets failed). The
 * caller writes there and then advances b->n itself. */
static inline char *buf_reserve(struct buf *b, size_t n)
{
    bool has_room = b->p && !b->failed && n <= b->cap - b->n;
    if (has_room)
        return b->p + b->n;
    return buf_grow(b, n);
}

/* buf_expect reserves room for about n more bytes. It is only a hint: near the ceiling it does
 * nothing, and each append checks for itself. */
static inline void buf_expect(struct buf *b, size_t n)
{
    bool below_ceiling = b->n <= b->max && n <= b->max - b->n;
    if (below_ceiling)
        (void)buf_reserve(b, n);
}

/* buf_add appends n bytes. It and the functions below are inline because they format every line of
 * hundreds of thousands of events a second. */
static inline void buf_add(struct buf *b, const void *p, size_t n)
{
    if (n == 0)
        return;
    char *to = buf_reserve(b, n);
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
