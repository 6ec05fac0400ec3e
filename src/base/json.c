#include "base/json.h"

#include <string.h>

/* Strings are most of a payload, so their plain bytes are passed over eight at a time. */
#define ONES UINT64_C(0x0101010101010101)
#define HIGH (ONES * 0x80)

static inline uint64_t load8(const char *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    w = __builtin_bswap64(w);
#endif
    return w;
}

/* marks sets the high bit of each byte that is below 0x20, a quote or a backslash. Bytes of 0x80
 * and more come out arbitrary, and so may bytes behind a marked one: only the lowest mark is to be
 * trusted. */
static inline uint64_t marks(uint64_t w)
{
    return (w - ONES * 0x20) | ((w ^ ONES * '"') - ONES) | ((w ^ ONES * '\\') - ONES);
}

static inline bool is_plain(unsigned char c)
{
    return c >= 0x20 && c != '"' && c != '\\';
}

/* skip_plain returns the first byte that is a quote, a backslash or a control character. */
static inline const char *skip_plain(const char *p, const char *end)
{
    for (; end - p >= 8; p += 8) {
        uint64_t w = load8(p), m = marks(w) & ~w & HIGH;
        if (m)
            return p + __builtin_ctzll(m) / 8;
    }
    while (p < end && is_plain((unsigned char)*p))
        p++;
    return p;
}

/* skip_ascii is skip_plain that stops at bytes of 0x80 and more too. */
static inline const char *skip_ascii(const char *p, const char *end)
{
    for (; end - p >= 8; p += 8) {
        uint64_t w = load8(p), m = (marks(w) | w) & HIGH;
        if (m)
            return p + __builtin_ctzll(m) / 8;
    }
    while (p < end && is_plain((unsigned char)*p) && (unsigned char)*p < 0x80)
        p++;
    return p;
}

/* utf8_len returns the length of the well-formed character of two bytes or more at p, 0 if there is
 * none. */
static inline size_t utf8_len(const char *p, const char *end)
{
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] < 0xC2 || u[0] > 0xF4)
        return 0;
    size_t n = 2;
    if (u[0] >= 0xE0)
        n = 3;
    if (u[0] >= 0xF0)
        n = 4;
    if ((size_t)(end - p) < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xC0) != 0x80)
            return 0;
    if (u[0] == 0xE0 && u[1] < 0xA0)
        return 0; /* overlong */
    if (u[0] == 0xED && u[1] > 0x9F)
        return 0; /* surrogates */
    if (u[0] == 0xF0 && u[1] < 0x90)
        return 0; /* overlong */
    if (u[0] == 0xF4 && u[1] > 0x8F)
        return 0; /* past U+10FFFF */
    return n;
}

/* skip_low returns the first byte of 0x80 and more. Every payload is looked through by it before it
 * is delivered. */
static inline const char *skip_low(const char *p, const char *end)
{
    for (; end - p >= 8; p += 8) {
        uint64_t m = load8(p) & HIGH;
        if (m)
            return p + __builtin_ctzll(m) / 8;
    }
    while (p < end && (unsigned char)*p < 0x80)
        p++;
    return p;
}

bool utf8_valid(struct str s, size_t *at)
{
    if (!s.n)
        return true; /* an absent one has no end to reckon with */
    const char *end = s.p + s.n;
    const char *p = skip_low(s.p, end);
    while (p < end) {
        size_t n = utf8_len(p, end);
        if (n == 0) {
            if (at)
                *at = (size_t)(p - s.p);
            return false;
        }
        p = skip_low(p + n, end);
    }
    return true;
}

struct scan {
    const char *p, *end;
    const char *why; /* once it failed; p is then the place */
};

static int fail(struct scan *s, const char *p, const char *why)
{
    s->p = p;
    s->why = why;
    return -1;
}

/* Reasons are constants, because json_parse owns no memory to write one in. */
#define U(c) "unexpected '" c "'"
static const char *const unexpected_char[0x7F - 0x20] = {
    U(" "), U("!"), U("\""), U("#"), U("$"), U("%"),  U("&"), U("'"), U("("), U(")"), U("*"),
    U("+"), U(","), U("-"),  U("."), U("/"), U("0"),  U("1"), U("2"), U("3"), U("4"), U("5"),
    U("6"), U("7"), U("8"),  U("9"), U(":"), U(";"),  U("<"), U("="), U(">"), U("?"), U("@"),
    U("A"), U("B"), U("C"),  U("D"), U("E"), U("F"),  U("G"), U("H"), U("I"), U("J"), U("K"),
    U("L"), U("M"), U("N"),  U("O"), U("P"), U("Q"),  U("R"), U("S"), U("T"), U("U"), U("V"),
    U("W"), U("X"), U("Y"),  U("Z"), U("["), U("\\"), U("]"), U("^"), U("_"), U("`"), U("a"),
    U("b"), U("c"), U("d"),  U("e"), U("f"), U("g"),  U("h"), U("i"), U("j"), U("k"), U("l"),
    U("m"), U("n"), U("o"),  U("p"), U("q"), U("r"),  U("s"), U("t"), U("u"), U("v"), U("w"),
    U("x"), U("y"), U("z"),  U("{"), U("|"), U("}"),  U("~"),
};
#undef U

static int unexpected(struct scan *s, const char *p)
{
    if (p == s->end)
        return fail(s, p, "unexpected end");
    unsigned char c = (unsigned char)*p;
    if (c < 0x20 || c == 0x7F)
        return fail(s, p, "unexpected control character");
    if (c > 0x7F)
        return fail(s, p, utf8_len(p, s->end) ? "unexpected character" : "invalid UTF-8");
    return fail(s, p, unexpected_char[c - 0x20]);
}

static inline const char *skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

static inline bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline const char *skip_digits(const char *p, const char *end)
{
    while (p < end && is_digit(*p))
        p++;
    return p;
}

static int hex_value(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* escape_len returns the length of the escape at p (which is a backslash), 0 if it is not
 * well-formed. */
static size_t escape_len(const char *p, const char *end)
{
    if (end - p < 2)
        return 0;
    if (p[1] != 'u')
        return p[1] && strchr("\"\\/bfnrt", p[1]) ? 2 : 0;
    if (end - p < 6)
        return 0;
    for (int i = 2; i < 6; i++)
        if (hex_value(p[i]) < 0)
            return 0;
    return 6;
}

/* scan_string stands at the opening quote and leaves p behind the closing one. */
static int scan_string(struct scan *s)
{
    for (const char *p = s->p + 1;;) {
        p = skip_ascii(p, s->end);
        if (p == s->end)
            return fail(s, p, "unfinished string");
        unsigned char c = (unsigned char)*p;
        if (c == '"') {
            s->p = p + 1;
            return 0;
        }
        if (c < 0x20)
            return fail(s, p, "control character in a string");
        size_t n = c == '\\' ? escape_len(p, s->end) : utf8_len(p, s->end);
        if (n == 0)
            return fail(s, p, c == '\\' ? "invalid escape" : "invalid UTF-8");
        p += n;
    }
}

static int scan_number(struct scan *s)
{
    const char *p = s->p + (*s->p == '-');
    const char *stop = skip_digits(p, s->end);
    if (stop == p)
        return unexpected(s, p);
    if (*p == '0' && stop > p + 1)
        return fail(s, p, "leading zero");
    p = stop;
    if (p < s->end && *p == '.') {
        stop = skip_digits(p + 1, s->end);
        if (stop == p + 1)
            return unexpected(s, stop);
        p = stop;
    }
    if (p < s->end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < s->end && (*p == '+' || *p == '-'))
            p++;
        stop = skip_digits(p, s->end);
        if (stop == p)
            return unexpected(s, stop);
        p = stop;
    }
    s->p = p;
    return 0;
}

static int scan_word(struct scan *s, const char *word)
{
    const char *p = s->p;
    for (; *word; word++, p++)
        if (p == s->end || *p != *word)
            return unexpected(s, p);
    s->p = p;
    return 0;
}

static int scan_scalar(struct scan *s)
{
    switch (*s->p) {
    case '"': return scan_string(s);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    default: return *s->p == '-' || is_digit(*s->p) ? scan_number(s) : unexpected(s, s->p);
    }
}

/* Which of the open brackets are braces: a bit each, so that depth costs no stack. */
struct nest {
    unsigned depth;
    uint64_t braces[JSON_MAX_DEPTH / 64];
};

static inline void nest_push(struct nest *n, bool brace)
{
    uint64_t bit = UINT64_C(1) << n->depth % 64, *word = &n->braces[n->depth / 64];
    *word = brace ? *word | bit : *word & ~bit;
    n->depth++;
}

static inline bool nest_brace(const struct nest *n)
{
    return n->braces[(n->depth - 1) / 64] >> (n->depth - 1) % 64 & 1;
}

/* scan_name reads `"name" :` and leaves p at the value. */
static int scan_name(struct scan *s)
{
    s->p = skip_space(s->p, s->end);
    if (s->p == s->end || *s->p != '"')
        return unexpected(s, s->p);
    if (scan_string(s) != 0)
        return -1;
    s->p = skip_space(s->p, s->end);
    if (s->p == s->end || *s->p != ':')
        return unexpected(s, s->p);
    s->p++;
    return 0;
}

/* scan_open enters the bracket at p. Returns 1 with p at its first value, 0 with p behind it if it
 * is empty. */
static int scan_open(struct scan *s, struct nest *n)
{
    bool brace = *s->p == '{';
    if (n->depth == JSON_MAX_DEPTH)
        return fail(s, s->p, "nested too deeply");
    s->p = skip_space(s->p + 1, s->end);
    if (s->p < s->end && *s->p == (brace ? '}' : ']')) {
        s->p++;
        return 0;
    }
    nest_push(n, brace);
    return brace && scan_name(s) != 0 ? -1 : 1;
}

/* scan_close stands behind a value. Returns 1 with p at the next one, 0 when the outermost bracket
 * has closed. */
static int scan_close(struct scan *s, struct nest *n)
{
    while (n->depth > 0) {
        bool brace = nest_brace(n);
        s->p = skip_space(s->p, s->end);
        if (s->p == s->end)
            return unexpected(s, s->p);
        if (*s->p == ',') {
            s->p++;
            return brace && scan_name(s) != 0 ? -1 : 1;
        }
        if (*s->p != (brace ? '}' : ']'))
            return unexpected(s, s->p);
        s->p++;
        n->depth--;
    }
    return 0;
}

static int scan_value(struct scan *s)
{
    struct nest n = {.depth = 0};
    for (int more = 1; more;) {
        s->p = skip_space(s->p, s->end);
        if (s->p == s->end)
            return unexpected(s, s->p);
        if (*s->p == '{' || *s->p == '[') {
            more = scan_open(s, &n);
            if (more < 0)
                return -1;
            if (more)
                continue;
        } else if (scan_scalar(s) != 0) {
            return -1;
        }
        more = scan_close(s, &n);
        if (more < 0)
            return -1;
    }
    return 0;
}

static enum json_type type_of(char first)
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

static struct json value_of(const char *p, const char *end)
{
    return (struct json){type_of(*p), {p, (size_t)(end - p)}};
}

int json_parse(struct str text, struct json *ret, const char **why, size_t *at)
{
    if (!text.p)
        text = STR("");
    const char *end = text.p + text.n;
    const char *start = skip_space(text.p, end);
    struct scan s = {.p = start, .end = end};
    if (scan_value(&s) == 0) {
        const char *stop = s.p;
        s.p = skip_space(stop, end);
        if (s.p == end) {
            if (ret)
                *ret = value_of(start, stop);
            return 0;
        }
        unexpected(&s, s.p);
    }
    if (why)
        *why = s.why;
    if (at)
        *at = (size_t)(s.p - text.p);
    return -1;
}

/* From here on the text is known to be good, and only needs to be found one's way in. */

static const char *string_end(const char *p, const char *end)
{
    for (p++; (p = skip_plain(p, end)) < end;) {
        if (*p == '"')
            return p + 1;
        p += end - p < 2 ? 1 : 2;
    }
    return end;
}

static bool is_scalar_char(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' || c == 'E';
}

static const char *value_end(const char *p, const char *end)
{
    size_t depth = 0;
    while (p < end) {
        if (*p == '"') {
            p = string_end(p, end);
        } else if (depth == 0 && is_scalar_char(*p)) {
            while (p < end && is_scalar_char(*p))
                p++;
        } else {
            if (*p == '{' || *p == '[')
                depth++;
            if (depth && (*p == '}' || *p == ']'))
                depth--;
            p++;
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
    const char *p = skip_space(c.raw.p + (*it ? *it : 1), end);
    if (p < end && *p == ',')
        p = skip_space(p + 1, end);
    if (p >= end)
        return false;
    struct str name = {NULL, 0};
    if (c.type == JSON_OBJECT) {
        const char *stop = string_end(p, end);
        name = (struct str){p, (size_t)(stop - p)};
        p = skip_space(stop, end);
        if (p < end)
            p = skip_space(p + 1, end);
        if (p >= end)
            return false;
    }
    const char *stop = value_end(p, end);
    *it = (size_t)(stop - c.raw.p);
    if (ret_name)
        *ret_name = name;
    if (ret)
        *ret = value_of(p, stop);
    return true;
}

static uint32_t hex4(const char *p)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v = v << 4 | (uint32_t)hex_value(p[i]);
    return v;
}

static size_t utf8_put(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((0xF00u >> n & 0xFF) | c);
    return n;
}

/* escape_decode writes what the escape at *p stands for and steps over it, over both halves of a
 * surrogate pair. */
static size_t escape_decode(const char **p, const char *end, char out[4])
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    char kind = (*p)[1];
    if (kind != 'u') {
        const char *at = strchr(from, kind);
        out[0] = at ? to[at - from] : kind;
        *p += 2;
        return 1;
    }
    uint32_t c = hex4(*p + 2);
    *p += 6;
    if (c < 0xD800 || c > 0xDFFF)
        return utf8_put(c, out);
    if (c < 0xDC00 && end - *p >= 6 && (*p)[0] == '\\' && (*p)[1] == 'u') {
        uint32_t low = hex4(*p + 2);
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *p += 6;
            return utf8_put(0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00), out);
        }
    }
    return utf8_put(0xFFFD, out);
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

/* A string's bytes one by one, escapes undone: how strings are compared without memory to unescape
 * them in. */
struct chars {
    const char *p, *end;
    char held[4];
    size_t at, n;
};

static struct chars chars_of(struct str raw)
{
    return (struct chars){.p = raw.p + 1, .end = raw.p + raw.n - 1};
}

static int chars_next(struct chars *c)
{
    if (c->at == c->n) {
        if (c->p == c->end)
            return -1;
        if (*c->p != '\\')
            return (unsigned char)*c->p++;
        c->n = escape_decode(&c->p, c->end, c->held);
        c->at = 0;
    }
    return (unsigned char)c->held[c->at++];
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
    for (;;) {
        int c = chars_next(&x);
        if (c != chars_next(&y))
            return false;
        if (c < 0)
            return true;
    }
}

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

/* A number taken apart: 0.DIGITS * 10^exp. (1) DIGITS, a dot among them skipped, have no zero at
 * either end; zero has none at all, no sign and exp 0. So equal numbers have equal parts, however
 * long they are. */
struct decimal {
    bool negative;
    const char *p, *end;
    int64_t exp;
};

/* exponent_of stops counting where no payload could make up for it in digits. */
static int64_t exponent_of(const char *p, const char *end)
{
    bool negative = *p == '-';
    int64_t v = 0;
    for (p += !is_digit(*p); p < end; p++)
        if (v < INT64_C(1000000000000000))
            v = v * 10 + (*p - '0');
    return negative ? -v : v;
}

static struct decimal decimal_of(struct str raw)
{
    struct decimal d = {.negative = raw.p[0] == '-', .p = raw.p, .end = raw.p + raw.n};
    d.p += d.negative;
    const char *e = d.p;
    while (e < d.end && *e != 'e' && *e != 'E')
        e++;
    int64_t exp = e < d.end ? exponent_of(e + 1, d.end) : 0;
    const char *dot = memchr(d.p, '.', (size_t)(e - d.p));
    if (!dot)
        dot = e;
    d.end = e;
    while (d.p < d.end && (*d.p == '0' || *d.p == '.'))
        d.p++;
    while (d.end > d.p && (d.end[-1] == '0' || d.end[-1] == '.'))
        d.end--;
    if (d.p == d.end)
        return (struct decimal){.p = d.p, .end = d.p};
    d.exp = exp + (d.p < dot ? dot - d.p : dot + 1 - d.p);
    return d;
}

/* decimal_digit returns the next digit and steps over it; -1 behind the last. */
static int decimal_digit(struct decimal *d)
{
    if (d->p < d->end && *d->p == '.')
        d->p++;
    return d->p < d->end ? *d->p++ - '0' : -1;
}

static bool number_equal(struct str a, struct str b)
{
    struct decimal x = decimal_of(a), y = decimal_of(b);
    if (x.negative != y.negative || x.exp != y.exp)
        return false;
    for (;;) {
        int c = decimal_digit(&x);
        if (c != decimal_digit(&y))
            return false;
        if (c < 0)
            return true;
    }
}

bool json_int(struct json v, int64_t *ret)
{
    if (v.type != JSON_NUMBER)
        return false;
    struct decimal d = decimal_of(v.raw);
    if (d.exp < 0 || d.exp > 19)
        return false;
    int64_t n = 0;
    for (int64_t i = 0; i < d.exp; i++) {
        int c = decimal_digit(&d);
        if (c < 0)
            c = 0;
        if (__builtin_mul_overflow(n, 10, &n))
            return false;
        if (__builtin_add_overflow(n, d.negative ? -c : c, &n))
            return false;
    }
    if (decimal_digit(&d) >= 0)
        return false;
    *ret = n;
    return true;
}

bool json_equal(struct json a, struct json b)
{
    if (a.type != b.type)
        return false;
    if (a.type == JSON_STRING)
        return string_equal(a.raw, b.raw);
    if (a.type == JSON_NUMBER)
        return number_equal(a.raw, b.raw);
    return str_eq(a.raw, b.raw);
}

static void add_escape(struct buf *b, unsigned char c)
{
    static const char hex[] = "0123456789abcdef", from[] = "\b\f\n\r\t\"\\", to[] = "bfnrt\"\\";
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        buf_add(b, (char[]){'\\', to[at - from]}, 2);
    } else {
        buf_add(b, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
    }
}

/* quote_escaped is json_quote for a string whose first byte to escape is at `stop`. */
static void quote_escaped(struct buf *b, const char *p, const char *stop, const char *end)
{
    buf_addc(b, '"');
    for (;;) {
        buf_add(b, p, (size_t)(stop - p));
        if (stop == end)
            break;
        add_escape(b, (unsigned char)*stop);
        p = stop + 1;
        stop = skip_plain(p, end);
    }
    buf_addc(b, '"');
}

void json_quote(struct buf *b, struct str s)
{
    if (!s.p)
        s = STR("");
    const char *end = s.p + s.n, *stop = skip_plain(s.p, end);
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

static void replace_all(char *p, const char *end, char from, char to)
{
    while (p < end && (p = memchr(p, from, (size_t)(end - p))))
        *p++ = to;
}

void json_flat(struct buf *b, struct str text)
{
    char *to = text.n ? buf_reserve(b, text.n) : NULL;
    if (!to)
        return;
    memcpy(to, text.p, text.n);
    replace_all(to, to + text.n, '\n', ' ');
    replace_all(to, to + text.n, '\r', ' ');
    b->n += text.n;
}
