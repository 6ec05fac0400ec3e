/* consumer.h: what a consumer is configured with, and the table of those options. */
#ifndef ENGINE_CONSUMER_H
#define ENGINE_CONSUMER_H

#include <stdint.h>

#include "base/option.h"
#include "engine/retry.h"
#include "sink/http_options.h"
#include "store/store.h"

/* (1) Strings are owned. (2) A fresh one from consumer_init has every default. */
struct consumer {
    char *name;
    char *sink;     /* URL; NULL for in-process handlers */
    char *events;   /* patterns, "" for all */
    char *where;    /* predicate, "" for none */
    char *exec_env; /* variables that commands get beside the usual ones; NULL: none */
    enum order order;
    int lanes;
    enum start start;
    int64_t start_seq;
    struct retry_policy retry;
    int64_t lease_ms;
    int64_t timeout_ms;
    /* look at least this often, whether or not a bell rang; 0: as often as the relay sweeps */
    int64_t poll_ms;
    int concurrency;
    int batch;     /* upper bound of the self-tuning batch size */
    int file_mode; /* permissions of a file that is made; 0: not given */
    bool receipts;
    /* what consumer_set was told: bit i is consumer_options[i], and a preset leaves it alone */
    uint64_t given;
    struct http_options http;
};

/* consumer_options: preset, sink, events, where, order, lanes, from, retry, lease, timeout, poll,
 * concurrency, batch, receipts, webhook-*. Their target is a struct consumer. Ends with name ==
 * NULL. The preset stands first: whoever sets what was given in the order of the table has the rest
 * win over it. */
extern const struct option_def consumer_options[];
/* consumer_preset is the value that a preset has for an option; NULL: it says nothing about it, or
 * there is no such preset. */
const char *consumer_preset(const char *preset, const char *option);

int consumer_init(struct consumer *c, const char *name, struct error *err);
void consumer_release(struct consumer *c);
/* consumer_set is option_set with the table above; what is set this way wins over a preset that
 * comes later, too. */
int consumer_set(struct consumer *c, const char *name, const char *value, struct error *err);
/* consumer_copy makes one like it, with another name and other events. */
int consumer_copy(const struct consumer *from, const char *name, const char *events,
                  struct consumer *ret, struct error *err);
/* consumer_spec_of borrows from c, and from retry_text, which it fills. */
struct consumer_spec consumer_spec_of(const struct consumer *c, char retry_text[RETRY_TEXT]);

struct sink_config;
/* consumer_sink_config is what the consumer's sink is opened with, but for clock and done; borrows
 * from c. */
struct sink_config consumer_sink_config(const struct consumer *c);

#endif
