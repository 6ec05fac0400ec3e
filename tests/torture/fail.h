/* fail.h: makes the n-th allocation, or the n-th call on a file, fail.
 *
 * The linker sends every malloc, calloc, realloc, reallocarray, strdup and free of the library and
 * of the test through fail.c (-Wl,--wrap); SQLite, which we only link to, gets a separate
 * allocator. Any thread. */
#ifndef TESTS_TORTURE_FAIL_H
#define TESTS_TORTURE_FAIL_H

#include <stdbool.h>

enum {
    FAIL_OURS = 1,   /* the library's own allocations */
    FAIL_SQLITE = 2, /* and SQLite's, without its cache of small ones */
};

enum fail_mode {
    FAIL_ONCE,    /* the n-th, and no other */
    FAIL_LASTING, /* the n-th and all that follow, for 50 ms: memory is short for a while */
};

/* fail_setup hooks SQLite's allocator. Call it before any other function of SQLite. */
void fail_setup(void);

/* fail_arm starts counting calls; the at-th of them (from 1; 0: none) fails. */
void fail_arm(unsigned kinds, long at, enum fail_mode mode);
/* fail_disarm stops that, and returns whether any call has failed since fail_arm. */
bool fail_disarm(void);
/* fail_blocks is the number of allocations, ours and SQLite's, that have not been freed. */
long fail_blocks(void);

#endif
