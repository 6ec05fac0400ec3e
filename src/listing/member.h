/* member.h: members of a JSON object, written one after the other. Each appends `"name":value`,
 * with a comma before all but the first. An absent string or time is null, and so is a string that
 * is not UTF-8, which cannot have been stored through this library. */
#ifndef LISTING_MEMBER_H
#define LISTING_MEMBER_H

#include "base/buf.h"
#include "base/str.h"

void member_start(struct buf *b, const char *name); /* only `"name":`; the value follows */
void member_text(struct buf *b, const char *name, const char *value);
void member_str(struct buf *b, const char *name, struct str value);
void member_int(struct buf *b, const char *name, int64_t value);
void member_bool(struct buf *b, const char *name, bool value);
void member_time(struct buf *b, const char *name, int64_t wall_ms);

/* member_value appends a string alone, without a name. */
void member_value(struct buf *b, struct str value);
/* member_json appends JSON on one line, without a name; what is not valid JSON as a string. */
void member_json(struct buf *b, struct str json);
/* member_flat appends valid JSON on one line, without any control character. */
void member_flat(struct buf *b, struct str json);

#endif
