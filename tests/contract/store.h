/* store.h: the suite that every store must pass. A program per store describes it (struct
 * store_case), adds tests of promises that only this store makes, and calls store_suite_run. */
#ifndef TESTS_CONTRACT_STORE_H
#define TESTS_CONTRACT_STORE_H

#include "../suite.h"
#include "store/store.h"

struct store_case {
    const char *name;
    /* fresh creates an empty outbox and opens a handle on it, with these options. */
    struct store *(*fresh)(const struct store_options *opt);
    /* clean removes the outbox that fresh created, once all handles are closed. */
    void (*clean)(void);
    /* sneak runs SQL on the store's own connection, as a handler could; false: it failed. */
    bool (*sneak)(struct store *st, const char *sql);
    /* unsettling lists changes that a handler may make to the session; it ends with NULL. */
    const char *const *unsettling;
};

/* store_suite_run runs the suite and then the parts that only this store has, as one group. It
 * returns the number of failures. */
int store_suite_run(const struct store_case *c, const struct suite_part *own, size_t n_own);

/* A clock that stands still until a test moves it. */
struct test_clock {
    int64_t mono, wall;
};
/* A store that runs in another process may keep the clock elsewhere, where both can read it. */
extern struct test_clock *store_now_at;
#define store_now (*store_now_at)
extern const struct clock store_clock;

/* The state of a test is a handle on a fresh outbox. */
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
