/* metrics.h: the metrics of a relay in the text format of Prometheus. docs/metrics.md lists them; a
 * test compares the two. */
#ifndef ADMIN_METRICS_H
#define ADMIN_METRICS_H

#include "admin/admin.h"
#include "base/buf.h"

/* A consumer at the time of a scrape. */
struct metrics_consumer {
    struct worker_view view;
    struct health health;
    bool has_gauge; /* the store has answered: gauge is valid */
    struct consumer_gauge gauge;
};

/* The statuses of refused requests, which are counted. */
#define METRICS_REFUSALS 5
extern const unsigned metrics_refusals[METRICS_REFUSALS];

#define METRICS_MARKS 100 /* high-water marks shown at most */

/* The high-water mark of a consumer in a stream. Strings live as long as the scrape. */
struct metrics_mark {
    const char *consumer, *stream;
    int64_t ms, sequence; /* the two halves of the entry's id, 1700000000000-3 */
};

/* Everything on a page of metrics. */
struct metrics {
    const char *store; /* kind: "sqlite" */
    bool ready, store_up;
    int64_t now_ns;     /* monotonic */
    int64_t reloads[2]; /* of the config: ok, failed */
    int64_t refused[METRICS_REFUSALS];
    int64_t memory_limit, memory_peak; /* limit 0: not started yet */
    const struct metrics_consumer *consumer;
    size_t n_consumers;
    struct metrics_mark mark[METRICS_MARKS];
    size_t n_marks;
};

/* metrics_add appends the whole page. */
void metrics_add(struct buf *b, const struct metrics *m);

/* The values of a page, and their memory. (1) m.consumer is consumer, which is owned; names in m
 * live in the arena. */
struct scrape {
    struct metrics m;
    struct metrics_consumer *consumer;
    struct arena arena;
};

/* metrics_scrape asks the relay and, unless st is NULL, the store. The caller releases *l after
 * success. */
int metrics_scrape(struct scrape *l, const struct admin_config *cfg, struct store *st,
                   struct error *err);
void metrics_release(struct scrape *l);

/* Metrics of this process, under the names that the Prometheus clients use. */
#define PROCESS_SAMPLES 6

/* A metric and its value. */
struct process_sample {
    const char *name, *help;
    bool counter;
    double value;
};

/* metrics_process fills in the metrics that can be read, and returns their number. */
size_t metrics_process(struct process_sample out[PROCESS_SAMPLES]);

#endif
