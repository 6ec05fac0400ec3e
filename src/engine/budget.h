/* budget.h: the memory that all pipelines of a process may use for events in hand, together.
 *
 * A pipeline may hold as much as is free: the more of them are busy, the less each may take, and
 * all get the same. None has to wait for another, because one with nothing in hand always gets a
 * little, or one event, however large. So the limit can be exceeded, by an event of each pipeline.
 * Nobody has to tune it. */
#ifndef ENGINE_BUDGET_H
#define ENGINE_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define BUDGET_LEAST ((size_t)16 * 1024) /* what a pipeline with nothing in hand gets always */
#define BUDGET_MORE ((size_t)64 * 1024)  /* less than this is not worth another batch */

/* Any thread may use it. (1) held is the sum of all parts. (2) peak is the most that it was. */
struct budget {
    size_t limit;
    atomic_size_t held, peak;
};

/* What one pipeline has of a budget; only its own thread uses it. (1) held bytes of the budget are
 * counted as its own. */
struct budget_part {
    struct budget *b; /* NULL: there is no limit */
    size_t held;
};

/* What a pipeline wants memory for: a batch with events of `most` bytes. */
struct budget_wish {
    size_t most;
    size_t have; /* memory for it that is counted already, kept from an earlier batch */
    bool first;  /* it has nothing in hand */
};

/* budget_room says how many bytes of events a batch may have now; 0: the pipeline has to end one of
 * those in hand first. budget_take also sets their memory aside, until budget_hold says how much it
 * became. */
size_t budget_room(const struct budget_part *p, const struct budget_wish *w);
size_t budget_take(struct budget_part *p, const struct budget_wish *w);

/* budget_hold notes how many bytes the pipeline has. */
void budget_hold(struct budget_part *p, size_t bytes);

/* budget_tight says whether so much is in use that nothing should be kept for later. */
bool budget_tight(const struct budget_part *p);

#endif
