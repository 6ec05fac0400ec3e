/* registrations.c: the consumers registered through a handle, which are registered again if another
 * file replaces ours. */
#include <stdlib.h>

#include "store/db/held_keys.h"
#include "store/sqlite/sqlite.h"
#include "store/sqlite/window.h"

static void registration_free(struct sqlite_registration *m)
{
    if (!m)
        return;
    free((char *)m->spec.name);
    free((char *)m->spec.events);
    free((char *)m->spec.where);
    free((char *)m->spec.retry);
    free(m);
}

static struct sqlite_registration *registration_new(const struct consumer_spec *c)
{
    struct sqlite_registration *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->spec = *c;
    m->spec.by = NULL;
    m->spec.name = strdup(c->name);
    m->spec.events = strdup(c->events);
    m->spec.where = strdup(c->where);
    m->spec.retry = strdup(c->retry);
    bool whole = m->spec.name && m->spec.events && m->spec.where && m->spec.retry;
    if (whole)
        return m;
    registration_free(m);
    return NULL;
}

struct sqlite_registration *sqlite_registration(struct store *st, const char *name)
{
    struct sqlite_registration *m = sqlite_of(st)->registrations;
    while (m && strcmp(m->spec.name, name) != 0)
        m = m->next;
    return m;
}

void sqlite_registrations_moved(struct sqlite_store *st)
{
    for (struct sqlite_registration *m = st->registrations; m; m = m->next)
        m->epoch_seen = 0;
    sqlite_window_forget(st); /* it was read from the former file, as were the keys */
    held_keys_release(&st->base.store);
}

void sqlite_consumer_forget(struct store *base, const char *name)
{
    struct sqlite_store *st = sqlite_of(base);
    struct sqlite_registration **at = &st->registrations;
    while (*at && strcmp((*at)->spec.name, name) != 0)
        at = &(*at)->next;
    struct sqlite_registration *m = *at;
    if (!m)
        return;
    *at = m->next;
    atomic_fetch_sub(&st->family->registrations, 1);
    registration_free(m);
}

void sqlite_registrations_forget(struct sqlite_store *st)
{
    while (st->registrations)
        sqlite_consumer_forget(&st->base.store, st->registrations->spec.name);
}

/* Remembers the registration, because the next file at this path may not have the consumer. If
 * memory runs out, the consumer is not remembered, and not registered again. */
int sqlite_consumer_put(struct store *base, const struct consumer_spec *c, bool *ret_created,
                        struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (db_consumer_put(base, c, ret_created, err) != 0)
        return -1;
    if (st->file.moving)
        return 0; /* remembered already */
    struct sqlite_registration *m = registration_new(c);
    sqlite_consumer_forget(base, c->name);
    if (!m)
        return 0;
    m->next = st->registrations;
    st->registrations = m;
    atomic_fetch_add(&st->family->registrations, 1);
    return 0;
}
