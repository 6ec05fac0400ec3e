/* bug.h: bugs on purpose, one at a time, for the test that asks whether the other tests would see them
 * (tests/sim/test_mutations.py has the list). Nothing of it is in a build without OUTBOX_BUGS: BUG(NAME) is 0 there. */
#ifndef BASE_BUG_H
#define BASE_BUG_H

#ifdef OUTBOX_BUGS
#include <stdbool.h>

/* bug_is says whether it is the one that was asked for; that does not change while a program runs. */
bool bug_is(const char *name);
#define BUG(name) \
    ({ \
        static int on_ = -1; \
        if (on_ < 0) on_ = bug_is(#name); \
        on_; \
    })
#else
#define BUG(name) 0
#endif

#endif
