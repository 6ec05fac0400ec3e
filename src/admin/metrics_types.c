#include "admin/metrics_types.h"

/* type_of returns the entry of a type, adding it if there is room, else the one for all others. */
static struct by_type *type_of(struct by_types *t, const char *name)
{
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->type[i].name, name) == 0)
            return &t->type[i];

    bool nameable = *name && strlen(name) < METER_NAME;
    if (t->n == METER_TYPES || !nameable)
        return &t->type[METER_TYPES];
    t->type[t->n].name = name;
    return &t->type[t->n++];
}

static void older(struct by_type *t, int64_t at)
{
    if (!t->oldest_at || at < t->oldest_at)
        t->oldest_at = at;
}

static int64_t sum_of_types(const struct consumer_gauge *g)
{
    int64_t sum = 0;
    for (size_t i = 0; i < g->n_types; i++)
        sum += g->type[i].n;
    return sum;
}

/* depth_of estimates how many events of a type wait. If the store counted only the first of many
 * events, the share of the type among those stands for its share among all. */
static int64_t depth_of(const struct consumer_gauge *g, int64_t n, int64_t sum)
{
    bool counted_all = g->probed < STORE_PROBE_EVENTS;
    if (counted_all)
        return n;
    return (int64_t)((double)n * (double)g->behind / (double)sum + 0.5);
}

/* add_waiting adds the events that wait, as far as the filter of the consumer lets them pass. */
static void add_waiting(struct by_types *t, const struct consumer_gauge *g)
{
    struct filter *filter = NULL;
    int64_t sum = sum_of_types(g);
    if (filter_new(g->events, NULL, &filter, NULL) != 0)
        filter = NULL;
    for (size_t i = 0; i < g->n_types; i++) {
        if (!filter_type(filter, str_of(g->type[i].type)))
            continue;
        struct by_type *to = type_of(t, g->type[i].type);
        to->depth += depth_of(g, g->type[i].n, sum);
        older(to, g->type[i].oldest_at);
    }
    filter_free(filter);
}

/* metrics_types lists the delivered types first, so that a series that exists does not lose its
 * name to a type that begins to wait. */
void metrics_types(const struct metrics_consumer *c, struct by_types *t)
{
    *t = (struct by_types){.type[METER_TYPES].name = "other"};
    for (size_t i = 0; i < c->view.stats.meter.n_types; i++)
        type_of(t, c->view.stats.meter.type[i].name);
    if (c->has_gauge)
        add_waiting(t, &c->gauge);
    if (c->view.held)
        older(type_of(t, c->view.held_type), c->view.held_oldest_at);
}
