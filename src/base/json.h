/* json.h: a strict JSON reader that works on the bytes as they are. It allocates nothing and copies
 * nothing, because payloads must leave as they came (G13): values are slices of the text. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/str.h"

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

/* A value: its type and its bytes in the text, a string with its quotes, an object with its
 * braces. */
struct json {
    enum json_type type;
    struct str raw;
};

/* json_parse checks that text is exactly one JSON value (RFC 8259, white space around it allowed),
 * valid UTF-8 (no surrogates, no overlong forms, no raw NUL), escapes well-formed (\uD800 alone is
 * allowed by the RFC: so here), nested at most JSON_MAX_DEPTH. Returns 0 and *ret, or -1 with *why
 * = a short English reason ("unexpected 'x'", "unfinished string", "invalid UTF-8") and *at = the
 * byte offset. why, at and ret may be NULL. */
int json_parse(struct str text, struct json *ret, const char **why, size_t *at);

/* json_get finds member `name` of an object that json_parse accepted (names are compared after
 * unescaping; of repeated names the last counts). False if o is no object or has no such member. */
bool json_get(struct json o, struct str name, struct json *ret);

/* json_each walks an object's members or an array's elements: start with *it = 0; *ret_name is the
 * raw name with its quotes (absent for arrays). False at the end. Only on text that json_parse
 * accepted. */
bool json_each(struct json c, size_t *it, struct str *ret_name, struct json *ret);

/* json_unescape appends the characters of a JSON string (raw, with quotes) to b. A lone surrogate
 * becomes U+FFFD. */
void json_unescape(struct str raw, struct buf *b);

/* json_int reads a number that is an integer and fits; false otherwise. */
bool json_int(struct json v, int64_t *ret);

/* json_equal compares a scalar with another scalar: strings after unescaping, numbers by value, and
 * never across types. Arrays and objects compare byte by byte. */
bool json_equal(struct json a, struct json b);

/* json_quote appends s as a JSON string with quotes; control characters, quote and backslash
 * escaped, the rest as it is. s must be valid UTF-8. */
void json_quote(struct buf *b, struct str s);

/* json_flat appends a JSON text with each raw line break (CR or LF, which valid JSON has only
 * between tokens) turned into one space: the form that fits on one line. */
void json_flat(struct buf *b, struct str text);

/* utf8_valid checks UTF-8 as json_parse does; *at = the offset of the first bad byte. at may be
 * NULL. */
bool utf8_valid(struct str s, size_t *at);

#endif
