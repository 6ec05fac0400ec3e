/* store.h: the store-contract suite. Every store passes it unchanged: a program per store gives a
 * struct store_case. */
#ifndef TESTS_CONTRACT_STORE_H
#define TESTS_CONTRACT_STORE_H

#include "../suite.h"
#include "store/store.h"

struct store_case {
    const char *name;
    /* fresh makes an empty outbox and opens a handle on it, with the given options but create
     * set. */
    struct store *(*fresh)(const struct store_options *opt);
    /* clean takes away what fresh made, after all handles were closed. */
    void (*clean)(void);
};

/* store_suite_run runs the suite and then the parts that only this store has, as one group. It
 * returns the number of failures. */
int store_suite_run(const struct store_case *c, const struct suite_part *own, size_t n_own);

/* A clock that stands still until it is moved. */
struct test_clock {
    int64_t mono, wall;
};
/* a store whose clock is in another process may move it there */
extern struct test_clock *store_now_at;
#define store_now (*store_now_at)
extern const struct clock store_clock;

/* The state of a test: a handle on a fresh outbox. */
struct store_rig {
    struct store *st;
    struct arena a;
    struct batch b;
    struct claim_hint hint;
};
int store_rig_setup(void **state);
int store_rig_teardown(void **state);
#define ON_A_STORE(test) cmocka_unit_test_setup_teardown(test, store_rig_setup, store_rig_teardown)

#endif
