/* normal.h: one text for filters that mean the same, so that a list in another order, or with other
 * blanks, is no other filter. */
#ifndef EVENT_NORMAL_H
#define EVENT_NORMAL_H

#include "base/buf.h"

/* normal_events appends the patterns sorted, each once, with ", " between; nothing if one of them
 * takes every type. PostgreSQL has the same in internal/normal_events.sql. */
void normal_events(const char *events, struct buf *out);
/* normal_where appends a predicate that filter_new has taken, with one blank between words and none
 * inside of parentheses. */
void normal_where(const char *where, struct buf *out);

#endif
