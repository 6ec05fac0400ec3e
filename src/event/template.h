/* template.h: names built from parts of an event, such as the name of its stream or topic:
 * "tenant.{type[1]}". */
#ifndef EVENT_TEMPLATE_H
#define EVENT_TEMPLATE_H

#include "base/buf.h"
#include "event/event.h"

#define TEMPLATE_FIELDS \
    "{type}, {type[N]}, {aggregate_type}, {aggregate_id}, {tenant}, {header.NAME}"

struct template;

/* template_new compiles a text with the fields {type}, {type[1]} (the part of the type between its
 * first and second dot), {aggregate_type}, {aggregate_id}, {tenant} and {header.NAME} (the event's
 * header of that name); {{ and }} stand for literal braces. Errors: ERR_CONFIG. */
int template_new(const char *text, struct template **ret, struct error *err);
void template_free(struct template *t);

/* template_fixed returns whether the template has no fields, so that all events have the same
 * name. */
bool template_fixed(const struct template *t);

/* A template_escape appends the value of a field in the form that a broker allows in names.
 * `levels`: the value is a whole type, whose dots separate levels, as the dots of a name do. */
typedef void template_escape(struct buf *b, struct str value, bool levels);

/* template_write appends the name for an event, with every value, but not the template's literal
 * text, passed through `escape`; NULL: unchanged. Fails with ERR_INVALID if the event lacks a
 * required part, or if the name would be too long, empty, not UTF-8, or contain control characters:
 * users must be able to type it into their tools. */
int template_write(const struct template *t, const struct event *ev, template_escape *escape,
                   struct buf *b, struct error *err);

/* template_pattern appends the name with a * in place of each field, for brokers that list names by
 * pattern. Literal characters in `special` are escaped with a backslash. Errors: ERR_NOMEM. */
int template_pattern(const struct template *t, const char *special, struct buf *b,
                     struct error *err);

#endif
