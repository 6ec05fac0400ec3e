/* check_impl.h: shared by the files of the checker. Functions for the rest of the simulator are in
 * sim.h. */
#ifndef TESTS_SIM_CHECK_IMPL_H
#define TESTS_SIM_CHECK_IMPL_H

#include "sim.h"

/* The simulator's clock ticks whenever it is looked at, so it has moved on since the engine looked.
 * */
#define SLACK (20 * MS_NS)

static inline const char *check_name(const struct sim *w, int c)
{
    return w->subject[c].name;
}

/* check_number_in reads the number of an event out of its payload; -1 if it has none. It does not
 * say whether that event exists, as check_number does. */
int check_number_in(const struct event *ev);
/* check_there tells whether event n is committed, and not from before c's start. */
bool check_there(const struct sim *w, int c, int n);
/* check_matching counts the filters that were in force while the event was there, and returns how
 * many of them it passes. */
int check_matching(const struct subject *s, const struct fact *f, int *ret_of);

/* check_find finds the claim that this run of a relay made, check_holder the claim of the consumer
 * as it is now. There must be one. */
struct claim *check_find(struct sim *w, const struct relay *r, int c, int64_t epoch);
struct claim *check_holder(struct sim *w, int c, int64_t epoch);
/* check_place is where in a claim event n stands; -1: it does not. */
int check_place(const struct claim *k, int n);
/* check_honoured checks the store's verdict on a claim (G5): if it let the holder do `what`, the
 * claim must be that holder's and alive; if it refused, the claim must not be alive. It returns
 * whether the store let it. */
bool check_honoured(struct sim *w, const struct deed *by, const struct claim *k, bool lost,
                    const char *what);

#endif
