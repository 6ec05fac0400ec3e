/* trimming.h: trimming at a pace that leaves room for other work. A call of store_ops.trim is one
 * short transaction; this decides how large the next one is, when it is due, and where it begins.
 */
#ifndef STORE_TRIMMING_H
#define STORE_TRIMMING_H

#include "base/clock.h"
#include "store/store.h"

/* State between calls; all zeros at the start. (1) after is 0, or the upto of the previous call. */
struct trimming {
    size_t rows;      /* of the next call; 0: the initial number */
    int64_t after;    /* where the next call begins */
    int64_t all_at;   /* monotonic: earliest time to start over at the first event */
    int64_t pause_ns; /* until the next call, if there is more to do */
};

/* trimming_step makes one call of trim for req, whose max_rows and after it sets. */
int trimming_step(struct trimming *t, struct store *st, const struct clock *clock,
                  const struct trim_request *req, struct trim_result *ret, struct error *err);

/* trimming_took adjusts to a call that took took_ns and returned res: how many rows the next one
 * may delete, where it begins, and how long to pause before it. With one writer at a time,
 * producers wait during a call, so calls are short and pauses as long as the calls. */
void trimming_took(struct trimming *t, bool one_writer, int64_t now_ns, int64_t took_ns,
                   const struct trim_result *res);

#endif
