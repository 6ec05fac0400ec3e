/* json.h: a strict JSON parser that works in place. It neither allocates nor copies, because
 * payloads must be delivered unchanged (G13): values are slices of the text. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/str.h"
#include "base/utf8.h"

#define JSON_MAX_DEPTH 256

enum json_type {
    JSON_NULL,
    JSON_TRUE,
    JSON_FALSE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

/* A value: its type and its bytes in the text, including a string's quotes or an object's
 * braces. */
struct json {
    enum json_type type;
    struct str raw;
};

/* json_parse checks that text is exactly one JSON value (RFC 8259) with optional white space around
 * it, in valid UTF-8 (no surrogates, no overlong forms, no raw NUL), with well-formed escapes (a
 * lone \uD800 is allowed, as by the RFC), nested at most JSON_MAX_DEPTH. Returns 0 and *ret, or -1
 * with a short reason in English in *why ("unexpected 'x'", "unfinished string", "invalid UTF-8")
 * and the offset of the byte in *at. why, at and ret may be NULL. */
int json_parse(struct str text, struct json *ret, const char **why, size_t *at);

/* json_get finds member `name` of an object that json_parse accepted. Names are compared after
 * unescaping; of duplicates the last wins. False if o is not an object or has no such member. */
bool json_get(struct json o, struct str name, struct json *ret);

/* json_each iterates over the members of an object or the elements of an array that json_parse
 * accepted. Start with *it = 0. *ret_name is the raw name with its quotes, absent in arrays. */
bool json_each(struct json c, size_t *it, struct str *ret_name, struct json *ret);

/* json_unescape appends the characters of a JSON string (raw, with quotes) to b. A lone surrogate
 * becomes U+FFFD. */
void json_unescape(struct str raw, struct buf *b);

/* json_int converts a number that is an integer and fits; false otherwise. */
bool json_int(struct json v, int64_t *ret);

/* json_equal compares scalars: strings after unescaping, numbers by value, never across types.
 * Arrays and objects are compared byte by byte. */
bool json_equal(struct json a, struct json b);

/* json_quote appends s, which must be valid UTF-8, as a JSON string: in quotes, with control
 * characters, quotes and backslashes escaped. */
void json_quote(struct buf *b, struct str s);

/* json_flat appends a JSON text as one line: each CR and LF, which in valid JSON occurs only
 * between tokens, becomes a space. */
void json_flat(struct buf *b, struct str text);

#endif
