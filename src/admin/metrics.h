/* metrics.h: what is measured, in Prometheus' text format. docs/metrics.md lists it all; a test
 * compares. */
#ifndef ADMIN_METRICS_H
#define ADMIN_METRICS_H

#include "admin/health.h"
#include "base/buf.h"

/* One consumer, as a scrape sees it. */
struct metrics_consumer {
    struct runner_view view;
    struct health health;
    bool has_gauge; /* the store answered about it */
    struct consumer_gauge gauge;
};

/* Why a request was not answered, by its status. */
#define METRICS_REFUSALS 5
extern const unsigned metrics_refusals[METRICS_REFUSALS];

#define METRICS_MARKS 100 /* streams whose high-water mark is shown */

/* One consumer's high-water mark of a stream. Strings live as long as the look. */
struct metrics_mark {
    const char *consumer, *stream;
    int64_t ms, sequence; /* the two halves of the entry's id, 1700000000000-3 */
};

/* Everything a scrape is made of. */
struct metrics {
    const char *store; /* its kind: "sqlite" */
    bool ready, store_up;
    int64_t now_ns;     /* monotonic */
    int64_t reloads[2]; /* of the configuration: ok, failed */
    int64_t refused[METRICS_REFUSALS];
    const struct metrics_consumer *consumer;
    size_t n_consumers;
    struct metrics_mark mark[METRICS_MARKS];
    size_t n_marks;
};

/* metrics_add appends the whole page. */
void metrics_add(struct buf *b, const struct metrics *m);

#endif
