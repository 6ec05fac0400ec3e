/* trimming.h: trimming at a pace that leaves room for others. A call of store_ops.trim is one
 * short transaction; this decides how large the next one is, when it is due, and where it begins.
 */
#ifndef STORE_TRIMMING_H
#define STORE_TRIMMING_H

#include "base/clock.h"
#include "store/store.h"

/* What is known between the calls. Zero is the beginning.
 * (1) after is 0, or the upto of the call before. */
struct trimming {
    size_t rows;      /* in the next call; 0: as many as in the first */
    int64_t after;    /* where it begins */
    int64_t all_at;   /* monotonic: not before this it begins with the first event again */
    int64_t pause_ns; /* to the next call, if there is more to do */
};

/* trimming_step makes one call of trim for req, whose max_rows and after it sets. */
int trimming_step(struct trimming *t, struct store *st, const struct clock *clock,
                  const struct trim_request *req, struct trim_result *ret, struct error *err);

/* trimming_took learns from a call that took so many ns, with what it answered: how many rows the
 * next one may take, where it begins, and how long to pause before it. Where one session writes at
 * a time, producers wait meanwhile, so calls are short and pauses as long. */
void trimming_took(struct trimming *t, bool one_writer, int64_t now_ns, int64_t took_ns,
                   const struct trim_result *res);

#endif
