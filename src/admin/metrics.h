/* metrics.h: the metrics of a relay in the text format of Prometheus. docs/metrics.md lists them; a
 * test compares the two. */
#ifndef ADMIN_METRICS_H
#define ADMIN_METRICS_H

#include "admin/admin.h"
#include "base/buf.h"

/* A consumer at the time of a scrape. */
struct metrics_consumer {
    struct worker_view view;
    bool has_gauge; /* the store has answered: gauge is valid */
    struct consumer_gauge gauge;
};

/* The HTTP statuses of refused requests; each has a counter. */
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
    struct arena arena; /* of the consumers and all names */
};

/* metrics_scrape asks the relay and, unless st is NULL, the store. The caller releases *m after
 * success. */
int metrics_scrape(struct metrics *m, struct admin_config *cfg, struct store *st,
                   struct error *err);
void metrics_release(struct metrics *m);
/* metrics_add appends the whole page, with the metrics of this process. */
void metrics_add(struct buf *b, const struct metrics *m);

#endif
