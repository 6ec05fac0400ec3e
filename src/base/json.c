/* json.c: finds and compares values in a text that json_parse accepted, and writes JSON. The text
 * is known to be valid: nothing here reports an error. */
#include <string.h>

#include "base/char.h"
#include "base/decimal.h"
#include "base/json_impl.h"
#include "base/utf8.h"

/* ---- members and elements ---- */

/* Returns the end of the string at p. */
static const char *string_end(const char *p, const char *end)
{
    p = json_skip_plain(p + 1, end);
    while (p < end && *p != '"') {
        bool pair = end - p >= 2; /* a backslash and the escaped character */
        p = json_skip_plain(p + 1 + pair, end);
    }
    return p < end ? p + 1 : end;
}

static bool is_scalar_char(char c)
{
    bool mark = c == '-' || c == '+' || c == '.' || c == 'E';
    return char_is_lower(c) || char_is_digit(c) || mark;
}

/* Returns the end of the value at p. Counting brackets is enough: they are known to match. */
static const char *value_end(const char *p, const char *end)
{
    if (p < end && is_scalar_char(*p)) {
        while (p < end && is_scalar_char(*p))
            p++;
        return p;
    }

    size_t depth = 0;
    while (p < end) {
        switch (*p) {
        case '"': p = string_end(p, end); break;
        case '{':
        case '[':
            depth++;
            p++;
            break;
        case '}':
        case ']':
            depth -= depth > 0;
            p++;
            break;
        default: p++;
        }
        if (depth == 0)
            break;
    }
    return p;
}

bool json_each(struct json c, size_t *it, struct str *ret_name, struct json *ret)
{
    if (c.type != JSON_OBJECT && c.type != JSON_ARRAY)
        return false;

    const char *end = c.raw.p + c.raw.n - 1; /* the closing bracket */
    const char *p = c.raw.p + 1;
    if (*it > 0)
        p = c.raw.p + *it;
    p = json_skip_space(p, end);
    if (p < end && *p == ',')
        p = json_skip_space(p + 1, end);

    struct str name = {NULL, 0};
    if (p < end && c.type == JSON_OBJECT) {
        const char *stop = string_end(p, end);
        name = (struct str){p, (size_t)(stop - p)};
        p = json_skip_space(stop, end);
        if (p < end)
            p = json_skip_space(p + 1, end); /* past the colon */
    }
    if (p >= end)
        return false;

    const char *stop = value_end(p, end);
    *it = (size_t)(stop - c.raw.p);
    if (ret_name)
        *ret_name = name;
    if (ret)
        *ret = json_value_of(p, stop);
    return true;
}

/* ---- strings ---- */

static uint32_t hex4(const char *p)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v = v << 4 | (uint32_t)char_hex(p[i]);
    return v;
}

static bool is_low_surrogate(uint32_t c)
{
    return c >= 0xDC00 && c <= 0xDFFF;
}

/* Reads the second half of a surrogate pair at p; 0 if there is none. */
static uint32_t low_half(const char *p, const char *end)
{
    bool escape = end - p >= 6 && p[0] == '\\' && p[1] == 'u';
    if (!escape)
        return 0;
    uint32_t low = hex4(p + 2);
    return is_low_surrogate(low) ? low : 0;
}

/* Decodes \uXXXX as escape_decode does, consuming both halves of a surrogate pair. A lone surrogate
 * becomes U+FFFD. */
static size_t unicode_decode(const char **p, const char *end, char out[4])
{
    uint32_t c = hex4(*p + 2);
    *p += 6;
    bool high = c >= 0xD800 && c < 0xDC00;
    if (high) {
        uint32_t low = low_half(*p, end);
        if (low == 0)
            return utf8_put(0xFFFD, out);
        *p += 6;
        return utf8_put(0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00), out);
    }
    if (is_low_surrogate(c))
        c = 0xFFFD;
    return utf8_put(c, out);
}

/* Decodes the escape at *p, steps over it and returns the number of bytes written. */
static size_t escape_decode(const char **p, const char *end, char out[4])
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    char kind = (*p)[1];
    if (kind == 'u')
        return unicode_decode(p, end, out);

    const char *at = strchr(from, kind);
    out[0] = at ? to[at - from] : kind;
    *p += 2;
    return 1;
}

void json_unescape(struct str raw, struct buf *b)
{
    const char *p = raw.p + 1, *end = raw.p + raw.n - 1;
    while (p < end) {
        const char *stop = memchr(p, '\\', (size_t)(end - p));
        if (!stop)
            stop = end;
        buf_add(b, p, (size_t)(stop - p));
        p = stop;
        if (p < end) {
            char c[4];
            size_t n = escape_decode(&p, end, c);
            buf_add(b, c, n);
        }
    }
}

/* Iterates over the bytes of a string with escapes decoded, so that strings are compared without
 * memory to unescape them into. (1) held[at, n) is the rest of the last escape. */
struct chars {
    const char *p, *end;
    char held[4];
    size_t at, n;
};

static struct chars chars_of(struct str raw)
{
    return (struct chars){.p = raw.p + 1, .end = raw.p + raw.n - 1};
}

/* Returns the next byte, -1 after the last. */
static int chars_next(struct chars *c)
{
    if (c->at < c->n)
        return (unsigned char)c->held[c->at++];
    if (c->p == c->end)
        return -1;
    if (*c->p != '\\')
        return (unsigned char)*c->p++;

    c->n = escape_decode(&c->p, c->end, c->held);
    c->at = 1;
    return (unsigned char)c->held[0];
}

static bool is_escaped(struct str raw)
{
    return memchr(raw.p, '\\', raw.n) != NULL;
}

static bool string_equal(struct str a, struct str b)
{
    if (!is_escaped(a) && !is_escaped(b))
        return str_eq(a, b);

    struct chars x = chars_of(a), y = chars_of(b);
    int c;
    do {
        c = chars_next(&x);
        if (c != chars_next(&y))
            return false;
    } while (c >= 0);
    return true;
}

/* Compares a raw name with one that has neither quotes nor escapes. */
static bool name_equal(struct str raw, struct str name)
{
    if (!is_escaped(raw))
        return raw.n - 2 == name.n && memcmp(raw.p + 1, name.p, name.n) == 0;
    struct chars x = chars_of(raw);
    for (size_t i = 0; i < name.n; i++)
        if (chars_next(&x) != (unsigned char)name.p[i])
            return false;
    return chars_next(&x) < 0;
}

bool json_get(struct json o, struct str name, struct json *ret)
{
    if (o.type != JSON_OBJECT)
        return false;
    if (!name.p)
        name = STR("");
    bool found = false;
    struct str member;
    struct json v;
    for (size_t it = 0; json_each(o, &it, &member, &v);) {
        if (!name_equal(member, name))
            continue;
        found = true;
        if (ret)
            *ret = v;
    }
    return found;
}

bool json_int(struct json v, int64_t *ret)
{
    return v.type == JSON_NUMBER && decimal_int(v.raw, ret);
}

bool json_equal(struct json a, struct json b)
{
    if (a.type != b.type)
        return false;
    if (a.type == JSON_STRING)
        return string_equal(a.raw, b.raw);
    if (a.type == JSON_NUMBER)
        return decimal_equal(a.raw, b.raw);
    return str_eq(a.raw, b.raw);
}

/* ---- writing ---- */

/* Escapes a character that a string cannot hold literally. Seven of them have a short escape. */
static void add_escape(struct buf *b, unsigned char c)
{
    static const char hex[] = "0123456789abcdef", from[] = "\b\f\n\r\t\"\\", to[] = "bfnrt\"\\";
    const char *at = memchr(from, c, sizeof from - 1);
    if (at) {
        buf_add(b, (char[]){'\\', to[at - from]}, 2);
    } else {
        buf_add(b, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
    }
}

/* Slow path of json_quote; the first byte to escape is at `stop`. */
static void quote_escaped(struct buf *b, const char *p, const char *stop, const char *end)
{
    buf_addc(b, '"');
    while (stop < end) {
        buf_add(b, p, (size_t)(stop - p));
        add_escape(b, (unsigned char)*stop);
        p = stop + 1;
        stop = json_skip_plain(p, end);
    }
    buf_add(b, p, (size_t)(end - p));
    buf_addc(b, '"');
}

void json_quote(struct buf *b, struct str s)
{
    if (!s.p)
        s = STR("");
    const char *end = s.p + s.n, *stop = json_skip_plain(s.p, end);
    if (stop != end) {
        quote_escaped(b, s.p, stop, end);
        return;
    }
    char *to = buf_reserve(b, s.n + 2);
    if (!to)
        return;
    to[0] = '"';
    memcpy(to + 1, s.p, s.n);
    to[s.n + 1] = '"';
    b->n += s.n + 2;
}

static void replace_all(char *p, size_t n, char from, char to)
{
    char *end = p + n;
    while ((p = memchr(p, from, (size_t)(end - p))))
        *p++ = to;
}

void json_flat(struct buf *b, struct str text)
{
    if (!text.n)
        return;
    char *to = buf_reserve(b, text.n);
    if (!to)
        return;
    memcpy(to, text.p, text.n);
    replace_all(to, text.n, '\n', ' ');
    replace_all(to, text.n, '\r', ' ');
    b->n += text.n;
}
