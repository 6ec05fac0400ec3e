/* filter.h: the selection of a consumer's events: type patterns and a predicate on the payload. */
#ifndef EVENT_FILTER_H
#define EVENT_FILTER_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "event/event.h"

struct filter;

/* filter_new compiles a filter, which the caller frees. `events` is a list of patterns, separated
 * by commas, with white space around them ignored; NULL or "" means all. `where` is a predicate;
 * NULL or "" means all, else
 *     expr    := term { "or" term }
 *     term    := factor { "and" factor }
 *     factor  := "not" factor | "(" expr ")" | path "=" literal | path "!=" literal |
 *                path "exists" | "exists" path
 *     path    := segment { "." segment }
 *     segment := a bare name ([A-Za-z0-9_-]+, where digits index an array) or "quoted"
 *     literal := "string" (JSON escapes) | 'string' | number | true | false | null
 * "=" on a missing path is false; "!=" is exactly the negation of "=". Fails with ERR_CONFIG, which
 * names the offset and what was expected there. */
int filter_new(const char *events, const char *where, struct filter **ret, struct error *err);
void filter_free(struct filter *f);

/* filter_matches returns whether the type matches one pattern: '*' stands for any run of
 * characters, dots included, and every other character for itself. */
bool filter_matches(struct str pattern, struct str type);

/* filter_type returns whether the type matches the patterns; with f == NULL every type does. */
bool filter_type(const struct filter *f, struct str type);

/* filter_has_types returns whether filter_type refuses any type. */
bool filter_has_types(const struct filter *f);

/* filter_payload returns whether the payload satisfies the predicate. A payload that is not JSON
 * satisfies no predicate. Without a predicate, every payload does. */
bool filter_payload(const struct filter *f, struct str payload);

/* filter_has_where returns whether the filter has a predicate. */
bool filter_has_where(const struct filter *f);

/* The normal form of a filter, which does not depend on order and blanks. */

/* filter_normal_events appends the patterns sorted, without duplicates, separated by ", "; nothing
 * if one of them matches every type. sql/postgres/internal/values.sql does the same. */
void filter_normal_events(const char *events, struct buf *out);

/* filter_normal_where appends a predicate that filter_new has accepted, with one blank between
 * words and none inside parentheses. */
void filter_normal_where(const char *where, struct buf *out);

#endif
