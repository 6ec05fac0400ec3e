/* normal.h: a normal form of filters, so that a list in another order, or with other blanks, is the
 * same filter. */
#ifndef EVENT_NORMAL_H
#define EVENT_NORMAL_H

#include "base/buf.h"

/* normal_events appends the patterns, sorted, each once, with ", " between them; nothing if one of
 * them means every type. sql/postgres/internal/values.sql does the same. */
void normal_events(const char *events, struct buf *out);

/* normal_where appends a predicate that filter_new has accepted, with one blank between words and
 * none inside of parentheses. */
void normal_where(const char *where, struct buf *out);

#endif
