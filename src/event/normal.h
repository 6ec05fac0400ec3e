/* normal.h: a normal form of filters, in which order and blanks make no difference. */
#ifndef EVENT_NORMAL_H
#define EVENT_NORMAL_H

#include "base/buf.h"

/* normal_events appends the patterns sorted, without duplicates, separated by ", "; nothing if one
 * of them matches every type. sql/postgres/internal/values.sql does the same. */
void normal_events(const char *events, struct buf *out);

/* normal_where appends a predicate that filter_new has accepted, with one blank between words and
 * none inside parentheses. */
void normal_where(const char *where, struct buf *out);

#endif
