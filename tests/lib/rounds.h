/* rounds.h: how many rounds a repetitive test runs: a share of them in ./test, fewer with --quick
 * or under a sanitizer, all of them in a soak. The share is always the same, so that a run can be
 * repeated. */
#ifndef TESTS_LIB_ROUNDS_H
#define TESTS_LIB_ROUNDS_H

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS_SANITIZED 1
#else
#define ROUNDS_SANITIZED 0
#endif

/* rounds_step: every n-th round is run, in a soak every soak-th. */
static inline long rounds_step(long n, long soak)
{
    if (getenv("OUTBOX_SOAK"))
        return soak;
    if (ROUNDS_SANITIZED || getenv("OUTBOX_QUICK"))
        return 4 * n + 1;
    return n;
}

/* rounds_count returns how many of n rounds to run; in a soak, `soak` of them. */
static inline long rounds_count(long n, long soak)
{
    if (getenv("OUTBOX_SOAK"))
        return soak;
    if (ROUNDS_SANITIZED || getenv("OUTBOX_QUICK"))
        return (n + 3) / 4;
    return n;
}

#endif
