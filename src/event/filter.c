/* filter.c: makes a filter, and asks it whether an event passes. */
#include <stdlib.h>

#include "base/char.h"
#include "event/filter_impl.h"

int filter_new(const char *events, const char *where, struct filter **ret, struct error *err)
{
    struct filter *f = calloc(1, sizeof *f);
    if (!f)
        return err_nomem(err);
    arena_init(&f->a, 0);

    int r = filter_parse_events(f, events, err);
    if (r == 0)
        r = filter_parse_where(f, where, err);
    if (r != 0) {
        filter_free(f);
        return -1;
    }
    *ret = f;
    return 0;
}

void filter_free(struct filter *f)
{
    if (!f)
        return;
    arena_release(&f->a);
    free(f);
}

bool filter_has_types(const struct filter *f)
{
    if (!f || !f->patterns)
        return false;
    for (const struct pattern *p = f->patterns; p; p = p->next)
        if (str_is(p->text, "*"))
            return false;
    return true;
}

bool filter_type(const struct filter *f, struct str type)
{
    if (!f || !f->patterns)
        return true;
    for (const struct pattern *p = f->patterns; p; p = p->next)
        if (pattern_match(p->text, type))
            return true;
    return false;
}

bool filter_has_where(const struct filter *f)
{
    return f && f->where;
}

/* index_of reads a segment that indexes an array: bare, and nothing but digits. */
static bool index_of(const struct segment *s, uint64_t *ret)
{
    if (!s->bare || s->name.n > 9)
        return false;

    uint64_t index = 0;
    for (size_t i = 0; i < s->name.n; i++) {
        char c = s->name.p[i];
        if (!char_is_digit(c))
            return false;
        index = index * 10 + (uint64_t)(c - '0');
    }
    *ret = index;
    return true;
}

/* element walks to the index, because JSON text has no table of its elements. */
static bool element(struct json array, const struct segment *s, struct json *ret)
{
    uint64_t index;
    if (!index_of(s, &index))
        return false;
    size_t it = 0;
    for (uint64_t i = 0; i <= index; i++)
        if (!json_each(array, &it, NULL, ret))
            return false;
    return true;
}

/* step goes from an array to its element, or from an object to its member. */
static bool step(struct json v, const struct segment *s, struct json *ret)
{
    if (v.type == JSON_ARRAY)
        return element(v, s, ret);
    return json_get(v, s->name, ret);
}

/* look_up follows a path; false if a step of it is missing. */
static bool look_up(struct json v, const struct segment *path, struct json *ret)
{
    for (; path; path = path->next)
        if (!step(v, path, &v))
            return false;
    *ret = v;
    return true;
}

static bool holds(const struct node *n, struct json payload);

static bool any_holds(const struct node *n, struct json payload)
{
    for (; n; n = n->next)
        if (holds(n, payload))
            return true;
    return false;
}

static bool all_hold(const struct node *n, struct json payload)
{
    for (; n; n = n->next)
        if (!holds(n, payload))
            return false;
    return true;
}

static bool holds(const struct node *n, struct json payload)
{
    struct json v;
    switch (n->type) {
    case NODE_OR: return any_holds(n->first, payload);
    case NODE_AND: return all_hold(n->first, payload);
    case NODE_NOT: return !holds(n->first, payload);
    case NODE_EQUALS: return look_up(payload, n->path, &v) && json_equal(v, n->literal);
    case NODE_EXISTS: return look_up(payload, n->path, &v);
    }
    return false;
}

bool filter_payload(const struct filter *f, struct str payload)
{
    struct json v;
    if (!filter_has_where(f))
        return true;
    if (!payload.p)
        payload = STR("null");
    return json_parse(payload, &v, NULL, NULL) == 0 && holds(f->where, v);
}
