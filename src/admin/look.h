/* look.h: the state of everything at one moment, for a page of metrics. */
#ifndef ADMIN_LOOK_H
#define ADMIN_LOOK_H

#include "admin/admin.h"
#include "admin/metrics.h"

/* A page's worth of state. (1) m.consumer is consumer, which is owned; names in m live in the
 * arena. */
struct look {
    struct metrics m;
    struct metrics_consumer *consumer;
    struct arena arena;
};

/* look_take asks the relay and, unless st is NULL, the store. The caller releases *l after
 * success. */
int look_take(struct look *l, const struct admin_config *cfg, struct store *st, struct error *err);
void look_release(struct look *l);

#endif
