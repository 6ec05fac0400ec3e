/* check_impl.h: shared by the files of the checker. Functions for the rest of the simulator are in
 * sim.h. */
#ifndef TESTS_SIM_CHECK_IMPL_H
#define TESTS_SIM_CHECK_IMPL_H

#include "sim.h"

/* The simulator's clock ticks at every read, so it has advanced since the engine read it.
 * */
#define SLACK (20 * MS_NS)

static inline const char *check_name(const struct sim *w, int c)
{
    return w->subject[c].name;
}

/* check_number_in reads the number of an event from its payload; -1 if it has none. Unlike
 * check_number, it does not check that the event exists. */
int check_number_in(const struct event *ev);
/* check_there tells whether event n is committed and c's start does not exclude it. */
bool check_there(const struct sim *w, int c, int n);
/* check_matching counts the filters in force since the event was committed, and returns how many of
 * them it passes. */
int check_matching(const struct subject *s, const struct fact *f, int *ret_of);

/* check_find finds the claim that this run of a relay made, check_holder the claim of the consumer
 * as it is now. There must be one. */
struct claim *check_find(struct sim *w, const struct relay *r, int c, int64_t epoch);
struct claim *check_holder(struct sim *w, int c, int64_t epoch);
/* check_place returns the index of event n in a claim; -1 if it is not in it. */
int check_place(const struct claim *k, int n);
/* check_honoured checks the store's verdict on a claim (G5): if it allowed the holder to do `what`,
 * the claim must be that holder's and valid; if it refused, the claim must not be valid. It returns
 * whether the store allowed it. */
bool check_honoured(struct sim *w, const struct deed *by, const struct claim *k, bool lost,
                    const char *what);

#endif
