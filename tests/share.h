/* share.h: how much is run of a test that does the same again and again: a share in ./test, less of
 * it with --quick or under a sanitizer, everything in a soak. Which share is always the same, for
 * whoever has to repeat it. */
#ifndef TESTS_SHARE_H
#define TESTS_SHARE_H

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHARE_SANITIZED 1
#else
#define SHARE_SANITIZED 0
#endif

/* share_step: every n-th, in a soak every soak-th. */
static inline long share_step(long n, long soak)
{
    if (getenv("OUTBOX_SOAK"))
        return soak;
    if (SHARE_SANITIZED || getenv("OUTBOX_QUICK"))
        return 4 * n + 1;
    return n;
}

/* share_count: so many rounds, in a soak `soak` of them. */
static inline long share_count(long n, long soak)
{
    if (getenv("OUTBOX_SOAK"))
        return soak;
    if (SHARE_SANITIZED || getenv("OUTBOX_QUICK"))
        return (n + 3) / 4;
    return n;
}

#endif
