/* pattern.h: patterns of event types. */
#ifndef EVENT_PATTERN_H
#define EVENT_PATTERN_H

#include <stdbool.h>

#include "base/str.h"

/* pattern_match returns whether the type matches the pattern: '*' stands for any run of characters,
 * dots included, and every other character for itself. */
bool pattern_match(struct str pattern, struct str type);

#endif
