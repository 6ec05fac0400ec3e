/* consumer.h: the settings of a consumer, the table of options that sets them, and its retry
 * policy: how often an event is tried, and how long to wait in between. */
#ifndef ENGINE_CONSUMER_H
#define ENGINE_CONSUMER_H

#include <limits.h>
#include <stdint.h>

#include "base/option.h"
#include "base/rng.h"
#include "sink/http_options.h"
#include "store/store.h"

/* ---- retry policies ---- */

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
 * or of a preset in front: "slow,attempts=9". Fails with ERR_CONFIG. */
int retry_parse(const char *s, struct retry_policy *ret, struct error *err);
/* retry_hold removes the bound on attempts, unless one was given explicitly; with `hold` false it
 * restores the bound. */
void retry_hold(struct retry_policy *p, bool hold);
/* retry_show writes the name of the preset if it is one, else the long form. retry_parse reads
 * both. */
void retry_show(const struct retry_policy *p, char out[RETRY_TEXT]);
/* retry_delay returns how many ms to wait after `attempts` (>= 1) attempts have failed. */
int64_t retry_delay(const struct retry_policy *p, int attempts, struct rng *r);
/* retry_delay_in_doubt returns how many ms to wait after an uncounted failure of an event that has
 * been failing for failing_ms. */
int64_t retry_delay_in_doubt(const struct retry_policy *p, int64_t failing_ms, struct rng *r);
/* retry_horizon returns the longest time between the first and the last attempt while the sink
 * works, in ms; 0: attempts are unbounded. */
int64_t retry_horizon(const struct retry_policy *p);

/* ---- settings ---- */

/* (1) Strings are owned. (2) consumer_init sets every default. */
struct consumer {
    char *name;
    char *sink;     /* URL; NULL for in-process handlers */
    char *events;   /* patterns; "": all */
    char *where;    /* predicate; "": none */
    char *exec_env; /* variables that commands get besides the usual ones; NULL: none */
    enum order order;
    int lanes;
    enum start start;
    int64_t start_seq;
    struct retry_policy retry;
    int64_t lease_ms;
    int64_t timeout_ms;
    int64_t poll_ms; /* look at least this often, wake-up or not; 0: the relay's sweep */
    int concurrency;
    int batch;     /* upper bound of the self-tuning batch size */
    int file_mode; /* permissions of files that the sink creates; 0: not given */
    bool receipts;
    uint64_t given; /* bit i: consumer_options[i] was set explicitly; presets leave it alone */
    struct http_options http;
};

/* All options of a consumer, for a struct consumer; ends with name == NULL. The preset comes first,
 * so options applied in the order of the table override it. */
extern const struct option_def consumer_options[];
/* consumer_preset returns a preset's value for an option; NULL: it has none, or there is no such
 * preset. */
const char *consumer_preset(const char *preset, const char *option);

/* consumer_init makes a consumer with that name, which must be valid (ERR_CONFIG otherwise), and
 * all defaults. The caller releases it. */
int consumer_init(struct consumer *c, const char *name, struct error *err);
void consumer_release(struct consumer *c);
/* consumer_set is option_set with the table above. An option set this way also overrides a preset
 * that is set later. */
int consumer_set(struct consumer *c, const char *name, const char *value, struct error *err);
/* consumer_copy makes a consumer like `from`, with another name and other events. */
int consumer_copy(const struct consumer *from, const char *name, const char *events,
                  struct consumer *ret, struct error *err);
/* consumer_spec_of returns the settings that the store records. It borrows from c and from
 * retry_text, which it fills. */
struct consumer_spec consumer_spec_of(const struct consumer *c, char retry_text[RETRY_TEXT]);

struct sink_config;
/* consumer_sink_config returns the settings of the consumer's sink, except clock and done. It
 * borrows from c. */
struct sink_config consumer_sink_config(const struct consumer *c);

#endif
