/* base64.h: RFC 4648, with padding. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include "base/buf.h"

/* base64_add appends the encoded form of n bytes. */
void base64_add(struct buf *b, const void *p, size_t n);

/* base64_decode appends the bytes of an encoded text; padding may be missing. Returns false, with b
 * as it was, for anything that no encoder writes. */
bool base64_decode(struct buf *b, struct str text);

#endif
