/* base64.h: RFC 4648, with padding. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include "base/buf.h"

/* base64_add appends the encoded form of n bytes. */
void base64_add(struct buf *b, const void *p, size_t n);

/* base64_decode appends the decoded bytes; padding is optional. Returns false, leaving b unchanged,
 * for any text that no encoder produces. */
bool base64_decode(struct buf *b, struct str text);

#endif
