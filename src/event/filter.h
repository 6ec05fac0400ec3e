/* filter.h: which events a consumer wants: type patterns and a predicate on the payload. */
#ifndef EVENT_FILTER_H
#define EVENT_FILTER_H

#include <stdbool.h>

#include "base/err.h"
#include "event/event.h"

struct filter;

/* pattern_match: '*' stands for any run of characters (dots too), everything else for itself. */
bool pattern_match(struct str pattern, struct str type);

/* filter_new compiles. `events`: patterns separated by commas, white space around them ignored;
 * NULL or "" means all. `where`: NULL or "" means all, else
 *     expr  := term { "or" term }     term := factor { "and" factor }
 *     factor:= "not" factor | "(" expr ")" | path "=" literal | path "!=" literal | path "exists" |
 *     "exists" path
 *     path  := segment { "." segment }   a segment is a bare name ([A-Za-z0-9_-]+, digits index an
 *     array) or "quoted"
 *     literal := "string" (JSON escapes) | 'string' | number | true | false | null
 * "=" on a missing path is false; "!=" is exactly the negation of "=". Errors: ERR_CONFIG with the
 * offset and what was expected there. The caller owns *ret. */
int filter_new(const char *events, const char *where, struct filter **ret, struct error *err);
void filter_free(struct filter *f);

/* filter_type says whether the type passes the patterns; f == NULL passes everything. */
bool filter_type(const struct filter *f, struct str type);
/* filter_has_types says whether filter_type needs to look at all. */
bool filter_has_types(const struct filter *f);
/* filter_payload says whether the payload passes the predicate; one that is not JSON passes only if
 * there is none. */
bool filter_payload(const struct filter *f, struct str payload);
/* filter_has_where says whether filter_payload needs to look at all. */
bool filter_has_where(const struct filter *f);

#endif
