/* template.h: a name made of parts of an event, such as that of the stream it goes to:
 * "tenant.{type[1]}". */
#ifndef EVENT_TEMPLATE_H
#define EVENT_TEMPLATE_H

#include "base/buf.h"
#include "event/event.h"

#define TEMPLATE_FIELDS "{type}, {type[N]}, {aggregate_type}, {aggregate_id}, {tenant}"

struct template;

/* template_new compiles: {type}, {type[1]} (the part of the type between its first and second dot),
 * {aggregate_type}, {aggregate_id}, {tenant}; {{ and }} stand for braces. ERR_CONFIG. The caller
 * frees *ret. */
int template_new(const char *text, struct template **ret, struct error *err);
void template_free(struct template *t);

/* template_fixed: it has no fields, so every event gets the same name. */
bool template_fixed(const struct template *t);

/* template_write appends the name for an event. ERR_INVALID when the event lacks a part of it, or
 * the name would be empty, have control characters or be no UTF-8: people and their tools shall be
 * able to say it. */
int template_write(const struct template *t, const struct event *ev, struct buf *b,
                   struct error *err);

#endif
