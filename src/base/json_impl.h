/* json_impl.h: shared by json_parse.c, which validates a text, and json.c, which navigates
 * validated text and writes JSON. Functions are inline because each runs for every byte, or every
 * eight bytes, of a payload. */
#ifndef BASE_JSON_IMPL_H
#define BASE_JSON_IMPL_H

#include "base/json.h"
#include "base/word.h"

/* json_marks sets the high bit of each byte of w that is below 0x20, a quote or a backslash.
 * Strings make up most of a payload, so their plain bytes are skipped eight at a time. The marks of
 * bytes of 0x80 and above are arbitrary, and so are those after a marked byte: only the lowest mark
 * can be trusted. */
static inline uint64_t json_marks(uint64_t w)
{
    uint64_t control = w - WORD_ONES * 0x20;
    uint64_t quote = (w ^ WORD_ONES * '"') - WORD_ONES;
    uint64_t backslash = (w ^ WORD_ONES * '\\') - WORD_ONES;
    return control | quote | backslash;
}

static inline bool json_is_plain(unsigned char c)
{
    return c >= 0x20 && c != '"' && c != '\\';
}

/* json_skip_plain returns the first byte that is a quote, a backslash or a control character. */
static inline const char *json_skip_plain(const char *p, const char *end)
{
    for (; end - p >= WORD_SIZE; p += WORD_SIZE) {
        uint64_t w = word_load(p);
        uint64_t found = json_marks(w) & ~w & WORD_HIGH;
        if (found)
            return p + word_first(found);
    }
    while (p < end && json_is_plain((unsigned char)*p))
        p++;
    return p;
}

static inline bool json_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static inline const char *json_skip_space(const char *p, const char *end)
{
    while (p < end && json_is_space(*p))
        p++;
    return p;
}

static inline enum json_type json_type_of(char first)
{
    switch (first) {
    case '{': return JSON_OBJECT;
    case '[': return JSON_ARRAY;
    case '"': return JSON_STRING;
    case 't': return JSON_TRUE;
    case 'f': return JSON_FALSE;
    case 'n': return JSON_NULL;
    default: return JSON_NUMBER;
    }
}

static inline struct json json_value_of(const char *p, const char *end)
{
    return (struct json){json_type_of(*p), {p, (size_t)(end - p)}};
}

#endif
