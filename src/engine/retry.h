/* retry.h: how often and how long to wait. */
#ifndef ENGINE_RETRY_H
#define ENGINE_RETRY_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/rng.h"

/* The n-th failed attempt is followed by a wait of base * 2^(n-1), at most cap; with jitter, a
 * random time up to it. A failure that may be the sink's uses up no attempt (see evidence.h); an
 * event that has failed for outage_ms, and it is still not known whose fault it is, is buried all
 * the same. 0: every failure counts at once. */
struct retry_policy {
    int64_t base_ms, cap_ms;
    int64_t outage_ms;
    int attempts; /* in all; after the last one the event is buried; RETRY_FOREVER: it never is */
    bool jitter;
    bool bounded; /* the attempts were said, and are not a preset's */
    int usual;    /* attempts, as they were read: see retry_hold */
};

#define RETRY_FOREVER INT_MAX

#define RETRY_TEXT 96

/* retry_parse reads "patient", "fast", "slow", or
 * "base=1s,cap=5m,attempts=5,jitter=full|none,outage=24h" (what is left out is as in fast; a preset
 * may stand first: "slow,attempts=9"; attempts=forever: no bound). ERR_CONFIG. */
int retry_parse(const char *s, struct retry_policy *ret, struct error *err);
/* retry_hold: whether events are to be tried until they succeed, unless a bound on the attempts was
 * said. */
void retry_hold(struct retry_policy *p, bool hold);
/* retry_show writes the preset's name if it is one, else the long form, which retry_parse reads
 * back. */
void retry_show(const struct retry_policy *p, char out[RETRY_TEXT]);
/* retry_delay: milliseconds to wait after `attempts` (>= 1) failed ones. */
int64_t retry_delay(const struct retry_policy *p, int attempts, struct rng *r);
/* retry_delay_in_doubt: the same after a failure that was not counted, of an event that has failed
 * for that long. */
int64_t retry_delay_in_doubt(const struct retry_policy *p, int64_t failing_ms, struct rng *r);
/* retry_horizon: milliseconds from the first attempt to the last, at most, if the sink works; 0
 * where there is no last. */
int64_t retry_horizon(const struct retry_policy *p);

#endif
