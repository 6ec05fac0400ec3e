#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUF_FIRST 256

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_release(struct buf *b)
{
    free(b->p);
    *b = (struct buf){.max = b->max};
}

void buf_wipe(struct buf *b)
{
    if (b->p)
        explicit_bzero(b->p, b->cap);
    buf_clear(b);
}

void buf_clear(struct buf *b)
{
    buf_truncate(b, 0);
}

void buf_truncate(struct buf *b, size_t n)
{
    if (n < b->n)
        b->n = n;
    b->failed = b->full = false;
}

/* Doubles cap until it is at least `want` (<= max). Allocates one byte more than cap, for the NUL
 * of buf_cstr. */
static bool grow(struct buf *b, size_t want)
{
    size_t cap;
    if (__builtin_mul_overflow(b->cap, 2, &cap))
        cap = SIZE_MAX;
    if (cap < BUF_FIRST)
        cap = BUF_FIRST;
    if (cap < want)
        cap = want;
    if (cap > b->max)
        cap = b->max;
    if (cap == SIZE_MAX)
        return false;

    char *p = realloc(b->p, cap + 1);
    if (!p)
        return false;
    b->p = p;
    b->cap = cap;
    return true;
}

char *buf_grow(struct buf *b, size_t n)
{
    if (b->failed)
        return NULL;
    b->full = b->n > b->max || n > b->max - b->n;
    b->failed = b->full || !grow(b, b->n + n);
    if (b->failed)
        return NULL;
    return b->p + b->n;
}

void buf_addi64(struct buf *b, int64_t v)
{
    char digits[20];
    size_t at = sizeof digits;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do {
        digits[--at] = (char)('0' + u % 10);
        u /= 10;
    } while (u);
    if (v < 0)
        digits[--at] = '-';
    buf_add(b, digits + at, sizeof digits - at);
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = true;
        return;
    }
    char *to = buf_reserve(b, (size_t)n);
    if (!to)
        return;
    va_start(ap, fmt);
    vsnprintf(to, (size_t)n + 1, fmt, ap); /* its NUL lands on the byte past cap at worst */
    va_end(ap);
    b->n += (size_t)n;
}

const char *buf_cstr(struct buf *b)
{
    if (!buf_reserve(b, 0))
        return NULL;
    b->p[b->n] = '\0';
    return b->p;
}
