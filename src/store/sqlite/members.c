/* members.c: the consumers that were registered through a handle, which are registered again if
 * another file takes the place of ours. */
#include <stdlib.h>

#include "store/sqlite/held_keys.h"
#include "store/sqlite/sqlite.h"
#include "store/sqlite/window.h"

static void member_free(struct sqlite_member *m)
{
    if (!m)
        return;
    free((char *)m->spec.name);
    free((char *)m->spec.events);
    free((char *)m->spec.where);
    free((char *)m->spec.retry);
    free(m);
}

static struct sqlite_member *member_new(const struct consumer_spec *c)
{
    struct sqlite_member *m = calloc(1, sizeof *m);
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
    member_free(m);
    return NULL;
}

struct sqlite_member *sqlite_member(const struct sqlite_store *st, const char *name)
{
    struct sqlite_member *m = st->members;
    while (m && strcmp(m->spec.name, name) != 0)
        m = m->next;
    return m;
}

void sqlite_members_moved(struct sqlite_store *st)
{
    for (struct sqlite_member *m = st->members; m; m = m->next)
        m->epoch_seen = 0;
    sqlite_window_forget(st); /* it was read from the other file, as the keys were */
    held_keys_release(st);
}

void sqlite_members_forget(struct sqlite_store *st)
{
    while (st->members) {
        struct sqlite_member *m = st->members;
        st->members = m->next;
        member_free(m);
    }
}

static void member_drop(struct sqlite_store *st, const char *name)
{
    struct sqlite_member **at = &st->members;
    while (*at && strcmp((*at)->spec.name, name) != 0)
        at = &(*at)->next;
    struct sqlite_member *m = *at;
    if (!m)
        return;
    *at = m->next;
    member_free(m);
}

void sqlite_consumer_forget(struct store *base, const char *name)
{
    member_drop(sqlite_of(base), name);
}

/* member_keep remembers what was registered, because the next file at this path may not know the
 * consumer. Without memory nothing is remembered, and the consumer is not registered again. */
static void member_keep(struct sqlite_store *st, const struct consumer_spec *c)
{
    if (st->home.moving)
        return; /* it is one that we remember */
    struct sqlite_member *m = member_new(c);
    member_drop(st, c->name);
    if (!m)
        return;
    m->next = st->members;
    st->members = m;
}

int sqlite_consumer_put(struct store *base, const struct consumer_spec *c, bool *ret_created,
                        struct error *err)
{
    if (db_consumer_put(base, c, ret_created, err) != 0)
        return -1;
    member_keep(sqlite_of(base), c);
    return 0;
}
