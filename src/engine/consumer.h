/* consumer.h: the settings of a consumer, and the table of options that sets them. */
#ifndef ENGINE_CONSUMER_H
#define ENGINE_CONSUMER_H

#include <stdint.h>

#include "base/option.h"
#include "engine/retry.h"
#include "sink/http_options.h"
#include "store/store.h"

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

/* consumer_options is the table of all options of a consumer. Their target is a struct consumer.
 * The table ends with name == NULL. The preset comes first, so options that are applied in the
 * order of the table override it. */
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
