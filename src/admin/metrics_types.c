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
    bool is_older = at && (!t->oldest_at || at < t->oldest_at);
    if (is_older)
        t->oldest_at = at;
}

/* metrics_types lists the delivered types first, so that a series that exists does not lose its
 * name to a type that begins to wait. */
void metrics_types(const struct metrics_consumer *c, struct by_types *t)
{
    *t = (struct by_types){.type[METER_TYPES].name = "other"};
    for (size_t i = 0; i < c->view.stats.meter.n_types; i++)
        type_of(t, c->view.stats.meter.type[i].name);
    if (!c->has_gauge)
        return;
    for (size_t i = 0; i < c->gauge.n_types; i++) {
        const struct gauge_type *from = &c->gauge.type[i];
        struct by_type *to = type_of(t, from->type);
        to->depth += from->n;
        older(to, from->oldest_at);
    }
}
