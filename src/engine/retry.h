/* retry.h: how often an event is tried, and how long to wait in between. */
#ifndef ENGINE_RETRY_H
#define ENGINE_RETRY_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/rng.h"

/* The n-th failed attempt is followed by a wait of base * 2^(n-1), at most cap; with jitter, a
 * random time up to that. A failure that may be the sink's fault uses up no attempt (see
 * failure.h), but an event that has failed for outage_ms is buried even if the fault is still
 * unknown. With outage_ms == 0 every failure counts. */
struct retry_policy {
    int64_t base_ms, cap_ms;
    int64_t outage_ms;
    int attempts; /* after the last one the event is buried; RETRY_FOREVER: never */
    bool jitter;
    bool bounded; /* attempts was given explicitly, not by a preset */
    int usual;    /* attempts as it was parsed: see retry_hold */
};

#define RETRY_FOREVER INT_MAX

#define RETRY_TEXT 96

/* retry_parse reads "patient", "fast", "slow", or
 * "base=1s,cap=5m,attempts=5,jitter=full|none,outage=24h". Missing parts default to those of fast,
 * or of a preset in front: "slow,attempts=9". attempts=forever sets no bound. Fails with
 * ERR_CONFIG. */
int retry_parse(const char *s, struct retry_policy *ret, struct error *err);
/* retry_hold removes the bound on attempts, unless one was given explicitly; with `hold` false it
 * restores the bound. */
void retry_hold(struct retry_policy *p, bool hold);
/* retry_show writes the name of the preset if it is one, else the long form. retry_parse reads
 * both. */
void retry_show(const struct retry_policy *p, char out[RETRY_TEXT]);
/* retry_delay returns how many ms to wait after `attempts` (>= 1) attempts have failed. */
int64_t retry_delay(const struct retry_policy *p, int attempts, struct rng *r);
/* retry_delay_in_doubt returns how many ms to wait after a failure that did not count, of an event
 * that has been failing for failing_ms. */
int64_t retry_delay_in_doubt(const struct retry_policy *p, int64_t failing_ms, struct rng *r);
/* retry_horizon returns the longest time between the first and the last attempt while the sink
 * works, in ms; 0: attempts are unbounded. */
int64_t retry_horizon(const struct retry_policy *p);

#endif
