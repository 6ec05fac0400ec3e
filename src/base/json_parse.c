/* json_parse.c: checks that a text is one JSON value. */
#include <string.h>

#include "base/char.h"
#include "base/json_impl.h"
#include "base/utf8.h"

/* json_skip_plain that also stops at bytes of 0x80 and above. */
static inline const char *skip_ascii(const char *p, const char *end)
{
    for (; end - p >= WORD_SIZE; p += WORD_SIZE) {
        uint64_t w = word_load(p);
        uint64_t found = (json_marks(w) | w) & WORD_HIGH;
        if (found)
            return p + word_first(found);
    }
    while (p < end && json_is_plain((unsigned char)*p) && (unsigned char)*p < 0x80)
        p++;
    return p;
}

static inline const char *skip_digits(const char *p, const char *end)
{
    while (p < end && char_is_digit(*p))
        p++;
    return p;
}

/* Parser state. (1) why is NULL until validation fails; p is then the offending byte. */
struct scan {
    const char *p, *end;
    const char *why;
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
    const char *p = skip_ascii(s->p + 1, s->end);
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
        p = skip_ascii(p + n, s->end);
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

/* The open brackets, one bit each, so that depth costs no stack. A set bit is a brace. */
struct nest {
    unsigned depth;
    uint64_t braces[JSON_MAX_DEPTH / 64];
};

static inline void nest_push(struct nest *n, bool brace)
{
    uint64_t bit = UINT64_C(1) << n->depth % 64;
    uint64_t *word = &n->braces[n->depth / 64];
    *word &= ~bit;
    if (brace)
        *word |= bit;
    n->depth++;
}

/* Whether the innermost open bracket is a brace. */
static inline bool nest_brace(const struct nest *n)
{
    unsigned last = n->depth - 1;
    return n->braces[last / 64] >> last % 64 & 1;
}

static inline char closing(bool brace)
{
    return brace ? '}' : ']';
}

/* Reads `"name" :` and leaves p at the value. */
static int scan_name(struct scan *s)
{
    s->p = json_skip_space(s->p, s->end);
    if (peek(s) != '"')
        return unexpected(s, s->p);
    if (scan_string(s) != 0)
        return -1;

    s->p = json_skip_space(s->p, s->end);
    if (peek(s) != ':')
        return unexpected(s, s->p);
    s->p++;
    return 0;
}

/* Moves p to a value; in an object, past its name. Returns 1, or -1. */
static int scan_member(struct scan *s, bool brace)
{
    if (brace && scan_name(s) != 0)
        return -1;
    return 1;
}

/* Enters the bracket at p. Returns 1 with p at its first value, or 0 with p after it if empty. */
static int scan_open(struct scan *s, struct nest *n)
{
    bool brace = *s->p == '{';
    if (n->depth == JSON_MAX_DEPTH)
        return fail(s, s->p, "nested too deeply");

    s->p = json_skip_space(s->p + 1, s->end);
    if (peek(s) == closing(brace)) {
        s->p++;
        return 0;
    }
    nest_push(n, brace);
    return scan_member(s, brace);
}

/* Called after a value. Returns 1 with p at the next one, or 0 when the outermost bracket is
 * closed. */
static int scan_close(struct scan *s, struct nest *n)
{
    while (n->depth > 0) {
        bool brace = nest_brace(n);
        s->p = json_skip_space(s->p, s->end);
        if (peek(s) == ',') {
            s->p++;
            return scan_member(s, brace);
        }
        if (peek(s) != closing(brace))
            return unexpected(s, s->p);
        s->p++;
        n->depth--;
    }
    return 0;
}

/* Iterates over values; `more` is whether another one is due. */
static int scan_value(struct scan *s)
{
    struct nest n = {.depth = 0};
    int more = 1;
    while (more > 0) {
        s->p = json_skip_space(s->p, s->end);
        if (s->p == s->end)
            return unexpected(s, s->p);

        bool opens = *s->p == '{' || *s->p == '[';
        if (opens)
            more = scan_open(s, &n);
        else
            more = scan_scalar(s);
        if (more == 0)
            more = scan_close(s, &n);
    }
    return more;
}

int json_parse(struct str text, struct json *ret, const char **why, size_t *at)
{
    if (!text.p)
        text = STR("");
    struct scan s = {.p = text.p, .end = text.p + text.n};
    const char *start = json_skip_space(s.p, s.end);
    int r = scan_value(&s);
    const char *stop = s.p;
    if (r == 0) {
        s.p = json_skip_space(stop, s.end);
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
        *ret = json_value_of(start, stop);
    return 0;
}
