/* json.c: checks that a text is one JSON value, finds and compares values in a checked text, and
 * writes JSON. Functions that run for every byte, or every eight bytes, of a payload are inline. */
#include "base/json.h"

#include <string.h>

#include "base/num.h"
#include "base/utf8.h"

/* ---- tokens ---- */

/* Sets the high bit of each byte of w that is below 0x20, a quote or a backslash. The marks of
 * bytes of 0x80 and above are arbitrary, and so are those after a marked byte: only the lowest mark
 * can be trusted. */
static inline uint64_t special_marks(uint64_t w)
{
    uint64_t control = w - WORD_ONES * 0x20;
    uint64_t quote = (w ^ WORD_ONES * '"') - WORD_ONES;
    uint64_t backslash = (w ^ WORD_ONES * '\\') - WORD_ONES;
    return control | quote | backslash;
}

static inline bool is_plain(unsigned char c)
{
    return c >= 0x20 && c != '"' && c != '\\';
}

/* Returns the first byte that is a quote, a backslash or a control character; or, with `ascii`, of
 * 0x80 or above. */
static inline const char *skip_to_special(const char *p, const char *end, bool ascii)
{
    for (; end - p >= WORD_SIZE; p += WORD_SIZE) {
        uint64_t w = word_load(p);
        uint64_t found = ascii ? special_marks(w) | w : special_marks(w) & ~w;
        if (found & WORD_HIGH)
            return p + word_first(found & WORD_HIGH);
    }
    while (p < end && is_plain((unsigned char)*p) && !(ascii && (unsigned char)*p >= 0x80))
        p++;
    return p;
}

static inline const char *skip_plain(const char *p, const char *end)
{
    return skip_to_special(p, end, false);
}

static inline bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static inline const char *skip_space(const char *p, const char *end)
{
    while (p < end && is_space(*p))
        p++;
    return p;
}

static inline enum json_type type_of(char first)
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

static inline struct json value_of(const char *p, const char *end)
{
    return (struct json){type_of(*p), {p, (size_t)(end - p)}};
}

/* ---- parsing ---- */

static inline const char *skip_digits(const char *p, const char *end)
{
    while (p < end && char_is_digit(*p))
        p++;
    return p;
}

/* Parser state. (1) why is set once validation fails; p is then the offending byte.
 * (2) closing[0..depth) are the brackets that close the open ones; a value costs no stack. */
struct scan {
    const char *p, *end;
    const char *why;
    unsigned depth;
    char closing[JSON_MAX_DEPTH];
};

/* Returns the byte at p; at the end NUL, which is valid nowhere outside a string. */
static inline char peek(const struct scan *s)
{
    return s->p < s->end ? *s->p : '\0';
}

static int fail(struct scan *s, const char *p, const char *why)
{
    s->p = p;
    s->why = why;
    return -1;
}

/* One constant reason per character: json_parse owns no memory to format one in. */
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
    if (char_is_control(*p))
        return fail(s, p, "unexpected control character");

    unsigned char c = (unsigned char)*p;
    if (c < 0x7F)
        return fail(s, p, unexpected_char[c - 0x20]);
    if (utf8_length(p, s->end) > 0)
        return fail(s, p, "unexpected character");
    return fail(s, p, "invalid UTF-8");
}

/* Returns the length of the escape at p, which is a backslash; 0 if it is malformed. */
static size_t escape_len(const char *p, const char *end)
{
    if (end - p < 2)
        return 0;
    bool is_short = p[1] && strchr("\"\\/bfnrt", p[1]);
    if (is_short)
        return 2;
    if (p[1] != 'u' || end - p < 6)
        return 0;
    for (int i = 2; i < 6; i++)
        if (char_hex(p[i]) < 0)
            return 0;
    return 6;
}

/* Starts at the opening quote and leaves p after the closing one. */
static int scan_string(struct scan *s)
{
    const char *p = skip_to_special(s->p + 1, s->end, true);
    while (p < s->end && *p != '"') {
        size_t n;
        if (*p == '\\') {
            n = escape_len(p, s->end);
            if (n == 0)
                return fail(s, p, "invalid escape");
        } else {
            if ((unsigned char)*p < 0x20)
                return fail(s, p, "control character in a string");
            n = utf8_length(p, s->end);
            if (n == 0)
                return fail(s, p, "invalid UTF-8");
        }
        p = skip_to_special(p + n, s->end, true);
    }

    if (p == s->end)
        return fail(s, p, "unfinished string");
    s->p = p + 1;
    return 0;
}

/* Steps over one or more digits. */
static int scan_digits(struct scan *s)
{
    const char *stop = skip_digits(s->p, s->end);
    if (stop == s->p)
        return unexpected(s, stop);
    s->p = stop;
    return 0;
}

static int scan_number(struct scan *s)
{
    if (peek(s) == '-')
        s->p++;
    const char *first = s->p;
    if (scan_digits(s) != 0)
        return -1;
    if (*first == '0' && s->p > first + 1)
        return fail(s, first, "leading zero");

    if (peek(s) == '.') {
        s->p++;
        if (scan_digits(s) != 0)
            return -1;
    }

    if (peek(s) == 'e' || peek(s) == 'E') {
        s->p++;
        if (peek(s) == '+' || peek(s) == '-')
            s->p++;
        if (scan_digits(s) != 0)
            return -1;
    }
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
    default: break;
    }
    bool number = *s->p == '-' || char_is_digit(*s->p);
    if (number)
        return scan_number(s);
    return unexpected(s, s->p);
}

/* Reads `"name" :` and leaves p at the value. */
static int scan_name(struct scan *s)
{
    s->p = skip_space(s->p, s->end);
    if (peek(s) != '"')
        return unexpected(s, s->p);
    if (scan_string(s) != 0)
        return -1;

    s->p = skip_space(s->p, s->end);
    if (peek(s) != ':')
        return unexpected(s, s->p);
    s->p++;
    return 0;
}

/* Moves p to a value; in an object, past its name. Returns 1, or -1. */
static int scan_member(struct scan *s)
{
    bool object = s->closing[s->depth - 1] == '}';
    if (object && scan_name(s) != 0)
        return -1;
    return 1;
}

/* Enters the bracket at p. Returns 1 with p at its first value, or 0 with p after it if empty. */
static int scan_open(struct scan *s)
{
    char closing = *s->p == '{' ? '}' : ']';
    if (s->depth == JSON_MAX_DEPTH)
        return fail(s, s->p, "nested too deeply");

    s->p = skip_space(s->p + 1, s->end);
    if (peek(s) == closing) {
        s->p++;
        return 0;
    }
    s->closing[s->depth++] = closing;
    return scan_member(s);
}

/* Called after a value. Returns 1 with p at the next one, or 0 when the outermost bracket is
 * closed. */
static int scan_close(struct scan *s)
{
    while (s->depth > 0) {
        s->p = skip_space(s->p, s->end);
        if (peek(s) == ',') {
            s->p++;
            return scan_member(s);
        }
        if (peek(s) != s->closing[s->depth - 1])
            return unexpected(s, s->p);
        s->p++;
        s->depth--;
    }
    return 0;
}

/* Iterates over values; `more` is whether another one is due. */
static int scan_value(struct scan *s)
{
    int more = 1;
    while (more > 0) {
        s->p = skip_space(s->p, s->end);
        if (s->p == s->end)
            return unexpected(s, s->p);

        bool opens = *s->p == '{' || *s->p == '[';
        if (opens)
            more = scan_open(s);
        else
            more = scan_scalar(s);
        if (more == 0)
            more = scan_close(s);
    }
    return more;
}

int json_parse(struct str text, struct json *ret, const char **why, size_t *at)
{
    if (!text.p)
        text = STR("");
    struct scan s; /* closing stays unset */
    s.p = text.p;
    s.end = text.p + text.n;
    s.depth = 0;
    const char *start = skip_space(s.p, s.end);
    int r = scan_value(&s);
    const char *stop = s.p;
    if (r == 0) {
        s.p = skip_space(stop, s.end);
        if (s.p < s.end)
            r = unexpected(&s, s.p); /* trailing text */
    }
    if (r != 0) {
        if (why)
            *why = s.why;
        if (at)
            *at = (size_t)(s.p - text.p);
        return -1;
    }

    if (ret)
        *ret = value_of(start, stop);
    return 0;
}

/* ---- members and elements ---- */

/* Returns the end of the string at p. */
static const char *string_end(const char *p, const char *end)
{
    p = skip_plain(p + 1, end);
    while (p < end && *p != '"') {
        bool pair = end - p >= 2; /* a backslash and the escaped character */
        p = skip_plain(p + 1 + pair, end);
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
    p = skip_space(p, end);
    if (p < end && *p == ',')
        p = skip_space(p + 1, end);

    struct str name = {NULL, 0};
    if (p < end && c.type == JSON_OBJECT) {
        const char *stop = string_end(p, end);
        name = (struct str){p, (size_t)(stop - p)};
        p = skip_space(stop, end);
        if (p < end)
            p = skip_space(p + 1, end); /* past the colon */
    }
    if (p >= end)
        return false;

    const char *stop = value_end(p, end);
    *it = (size_t)(stop - c.raw.p);
    if (ret_name)
        *ret_name = name;
    if (ret)
        *ret = value_of(p, stop);
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
    return v.type == JSON_NUMBER && num_int(v.raw, ret);
}

bool json_equal(struct json a, struct json b)
{
    if (a.type != b.type)
        return false;
    if (a.type == JSON_STRING)
        return string_equal(a.raw, b.raw);
    if (a.type == JSON_NUMBER)
        return num_equal(a.raw, b.raw);
    return str_eq(a.raw, b.raw);
}

/* ---- writing ---- */

/* Escapes a character that may not appear literally in a string. Seven such characters have a short
 * escape. */
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
        stop = skip_plain(p, end);
    }
    buf_add(b, p, (size_t)(end - p));
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
