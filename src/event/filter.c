/* filter.c: compiles the patterns and the predicate of a filter, and evaluates them on events. The
 * grammar is in filter.h; each parse_* function parses one of its rules. */
#include "event/filter.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "base/utf8.h"

#define FILTER_MAX_DEPTH 64          /* nesting of parentheses and "not" */
#define FILTER_MAX_BYTES (64 * 1024) /* limit on the patterns, or on the predicate */

/* One step of a path: a member's name, or an array's index. */
struct segment {
    struct segment *next;
    struct str name;
    bool bare; /* quoted digits are always a member's name */
};

/* Node types of the predicate's tree. */
enum node_type { NODE_OR, NODE_AND, NODE_NOT, NODE_EQUALS, NODE_EXISTS };

/* (1) OR and AND have any number of children, NOT one, and all others none. A tree is thus only as
 * deep as its parentheses, however long a chain of "or" is. */
struct node {
    enum node_type type;
    struct node *first, *next;
    struct segment *path;
    struct json literal;
};

/* A pattern of event types. */
struct pattern {
    struct pattern *next;
    struct str text;
};

/* All data it points to lives in the arena. */
struct filter {
    struct arena a;
    struct pattern *patterns; /* NULL: matches every type */
    struct node *where;       /* NULL: matches every payload */
};

/* ---- compiling ---- */

/* Parser state. (1) p points into the text; the text before p has been consumed. (2)
 * `depth` counts the open parentheses and "not"s, because each uses stack. */
struct parser {
    struct arena *a;
    const char *text, *p;
    int depth;
    struct error *err;
};

/* Returns whether c may be part of a bare name or a keyword. */
static bool is_word(char c)
{
    return char_is_name(c) || c == '-';
}

/* Reports which text was expected, and the character at the current position. */
static int expected(struct parser *ps, const char *what)
{
    size_t at = (size_t)(ps->p - ps->text);
    if (!*ps->p)
        return err_set(ps->err, ERR_CONFIG, "expected %s at byte %zu, found the end", what, at);

    int n = 1; /* length of the character */
    while (n < 4 && ((unsigned char)ps->p[n] & 0xC0) == 0x80)
        n++;
    return err_set(ps->err, ERR_CONFIG, "expected %s at byte %zu, found '%.*s'", what, at, n,
                   ps->p);
}

static void skip_space(struct parser *ps)
{
    while (char_is_space(*ps->p))
        ps->p++;
}

static size_t word_len(const char *p)
{
    size_t n = 0;
    while (is_word(p[n]))
        n++;
    return n;
}

/* at_word returns whether the keyword is next; take_word also consumes it. */
static bool at_word(struct parser *ps, const char *word)
{
    skip_space(ps);
    return str_is((struct str){ps->p, word_len(ps->p)}, word);
}

static bool take_word(struct parser *ps, const char *word)
{
    if (!at_word(ps, word))
        return false;
    ps->p += strlen(word);
    return true;
}

/* Returns NULL with an error if out of memory. */
static struct node *new_node(struct parser *ps, enum node_type type)
{
    struct node *n = arena_zalloc(ps->a, 1, sizeof *n);
    if (!n) {
        err_nomem(ps->err);
        return NULL;
    }
    n->type = type;
    return n;
}

/* Parses a JSON string, in double quotes. */
static int parse_quoted(struct parser *ps, struct json *ret)
{
    const char *end = ps->p + 1;
    for (; *end && *end != '"'; end++)
        if (*end == '\\' && end[1])
            end++;
    if (*end == '"')
        end++;
    struct str text = {ps->p, (size_t)(end - ps->p)};
    const char *why;
    size_t at;
    if (json_parse(text, ret, &why, &at) != 0) {
        at += (size_t)(ps->p - ps->text);
        return err_set(ps->err, ERR_CONFIG, "invalid string: %s at byte %zu", why, at);
    }
    ps->p = end;
    return 0;
}

/* Copies the content of a buffer into the arena and releases the buffer. */
static int keep_text(struct parser *ps, struct buf *b, struct str *ret)
{
    char *p = NULL;
    if (!b->failed)
        p = arena_bytes(ps->a, b->p, b->n);
    *ret = (struct str){p, b->n};
    buf_release(b);
    if (!p)
        return err_nomem(ps->err);
    return 0;
}

/* Parses one step of a path. Only a bare name may index an array. */
static int parse_segment(struct parser *ps, struct segment **ret)
{
    struct segment *s = arena_zalloc(ps->a, 1, sizeof *s);
    if (!s)
        return err_nomem(ps->err);

    size_t n = word_len(ps->p);
    if (n > 0) {
        s->name = (struct str){ps->p, n};
        s->bare = true;
        ps->p += n;
    } else if (*ps->p == '"') {
        struct json quoted;
        if (parse_quoted(ps, &quoted) != 0)
            return -1;
        struct buf b;
        buf_init(&b, quoted.raw.n);
        json_unescape(quoted.raw, &b);
        if (keep_text(ps, &b, &s->name) != 0)
            return -1;
    } else {
        return expected(ps, "a name or a \"quoted name\"");
    }
    *ret = s;
    return 0;
}

/* Rejects a keyword as the first name: `not = 1` is more likely a mistake than a member called
 * not. */
static int parse_path(struct parser *ps, struct segment **ret)
{
    static const char *const keywords[] = {"and", "or", "not", "exists"};
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (at_word(ps, keywords[i]))
            return expected(ps, "a path (quote a name that is a keyword)");

    for (;;) {
        if (parse_segment(ps, ret) != 0)
            return -1;
        if (*ps->p != '.')
            return 0;
        ps->p++;
        ret = &(*ret)->next;
    }
}

/* Parses '...', which has no escapes, and stores it as a JSON string. */
static int parse_apostrophes(struct parser *ps, struct json *ret)
{
    const char *end = strchr(ps->p + 1, '\'');
    if (!end) {
        ps->p += strlen(ps->p);
        return expected(ps, "a closing apostrophe");
    }

    struct buf b;
    buf_init(&b, FILTER_MAX_BYTES * 6 + 2); /* a control character takes six bytes */
    json_quote(&b, (struct str){ps->p + 1, (size_t)(end - ps->p - 1)});
    ps->p = end + 1;
    ret->type = JSON_STRING;
    return keep_text(ps, &b, &ret->raw);
}

/* Accepts strings in either kind of quotes. Any other literal must be JSON. */
static int parse_literal(struct parser *ps, struct json *ret)
{
    skip_space(ps);
    if (*ps->p == '\'')
        return parse_apostrophes(ps, ret);
    if (*ps->p == '"')
        return parse_quoted(ps, ret);

    const char *end = ps->p;
    while (is_word(*end) || *end == '.' || *end == '+')
        end++;
    struct str text = {ps->p, (size_t)(end - ps->p)};
    if (json_parse(text, ret, NULL, NULL) != 0)
        return expected(ps, "a \"string\", a number, true, false or null");
    ps->p = end;
    return 0;
}

/* Wraps *n in a NOT node. */
static int negate(struct parser *ps, struct node **n)
{
    struct node *outer = new_node(ps, NODE_NOT);
    if (!outer)
        return -1;
    outer->first = *n;
    *n = outer;
    return 0;
}

/* Parses `path = literal`, `path != literal`, `path exists` or `exists path`. */
static int parse_comparison(struct parser *ps, struct node **ret)
{
    struct node *n = new_node(ps, NODE_EQUALS);
    if (!n)
        return -1;
    *ret = n;

    if (take_word(ps, "exists")) {
        n->type = NODE_EXISTS;
        skip_space(ps);
        return parse_path(ps, &n->path);
    }
    if (parse_path(ps, &n->path) != 0)
        return -1;
    if (take_word(ps, "exists")) {
        n->type = NODE_EXISTS;
        return 0;
    }

    bool differs = ps->p[0] == '!' && ps->p[1] == '=';
    if (differs)
        ps->p++;
    if (*ps->p != '=')
        return expected(ps, "=, != or exists");
    ps->p++;
    if (parse_literal(ps, &n->literal) != 0)
        return -1;
    if (differs)
        return negate(ps, ret);
    return 0;
}

static int parse_or(struct parser *ps, struct node **ret);

/* Limits the depth, because the grammar recurs here. */
static int parse_factor(struct parser *ps, struct node **ret)
{
    ps->depth++;
    if (ps->depth > FILTER_MAX_DEPTH)
        return err_set(ps->err, ERR_CONFIG, "nested too deeply at byte %zu",
                       (size_t)(ps->p - ps->text));

    int r;
    if (take_word(ps, "not")) {
        r = parse_factor(ps, ret);
        if (r == 0)
            r = negate(ps, ret);
    } else if (*ps->p == '(') {
        ps->p++;
        r = parse_or(ps, ret);
        skip_space(ps);
        if (r == 0 && *ps->p != ')')
            r = expected(ps, "and, or or ')'");
        if (r == 0)
            ps->p++;
    } else {
        r = parse_comparison(ps, ret);
    }
    ps->depth--;
    return r;
}

typedef int parse_fn(struct parser *ps, struct node **ret);

/* Parses one or more items, joined by a keyword. */
static int parse_joined(struct parser *ps, enum node_type type, const char *word, parse_fn *item,
                        struct node **ret)
{
    struct node *joined = new_node(ps, type);
    if (!joined)
        return -1;
    struct node **last = &joined->first;
    do {
        if (item(ps, last) != 0)
            return -1;
        last = &(*last)->next;
    } while (take_word(ps, word));
    *ret = joined;
    return 0;
}

static int parse_and(struct parser *ps, struct node **ret)
{
    return parse_joined(ps, NODE_AND, "and", parse_factor, ret);
}

static int parse_or(struct parser *ps, struct node **ret)
{
    return parse_joined(ps, NODE_OR, "or", parse_and, ret);
}

static int parse_where(struct parser *ps, struct filter *f)
{
    skip_space(ps);
    if (!*ps->p)
        return 0;
    if (parse_or(ps, &f->where) != 0)
        return -1;
    skip_space(ps);
    if (*ps->p)
        return expected(ps, "and, or or the end");
    return 0;
}

/* A pattern may contain any character that a type may. */
static int parse_events(struct parser *ps, struct filter *f)
{
    struct pattern **last = &f->patterns;
    skip_space(ps);
    if (!*ps->p)
        return 0;
    for (;;) {
        skip_space(ps);
        size_t n = 0;
        while (ps->p[n] && ps->p[n] != ',' && !char_is_space(ps->p[n]))
            n++;
        if (n == 0)
            return expected(ps, "a pattern");

        struct pattern *p = arena_zalloc(ps->a, 1, sizeof *p);
        if (!p)
            return err_nomem(ps->err);
        p->text = (struct str){ps->p, n};
        *last = p;
        last = &p->next;

        ps->p += n;
        skip_space(ps);
        if (!*ps->p)
            return 0;
        if (*ps->p != ',')
            return expected(ps, "a comma");
        ps->p++;
    }
}

/* Compiles a text with the parser of its rule, which stores the result in the filter. The result
 * points into a copy of the text. `what` is the setting's name, for errors. */
static int compile(struct filter *f, const char *what, const char *given,
                   int (*parse)(struct parser *, struct filter *), struct error *err)
{
    struct str text = str_of(given);
    size_t at;
    if (text.n > FILTER_MAX_BYTES)
        return err_set(err, ERR_CONFIG, "%s: is %zu bytes long; the limit is %d", what, text.n,
                       FILTER_MAX_BYTES);
    if (!utf8_valid(text, &at))
        return err_set(err, ERR_CONFIG, "%s: invalid UTF-8 at byte %zu", what, at);

    char *copy = arena_bytes(&f->a, text.p, text.n);
    if (!copy)
        return err_nomem(err);
    struct parser ps = {.a = &f->a, .text = copy, .p = copy, .err = err};
    if (parse(&ps, f) != 0)
        return err_prefix(err, "%s", what);
    return 0;
}

int filter_new(const char *events, const char *where, struct filter **ret, struct error *err)
{
    struct filter *f = calloc(1, sizeof *f);
    if (!f)
        return err_nomem(err);
    arena_init(&f->a, 0);

    int r = compile(f, "events", events, parse_events, err);
    if (r == 0)
        r = compile(f, "where", where, parse_where, err);
    if (r != 0) {
        filter_free(f);
        return -1;
    }
    *ret = f;
    return 0;
}

void filter_free(struct filter *f)
{
    if (!f)
        return;
    arena_release(&f->a);
    free(f);
}

/* ---- evaluating ---- */

bool filter_has_types(const struct filter *f)
{
    if (!f || !f->patterns)
        return false;
    for (const struct pattern *p = f->patterns; p; p = p->next)
        if (str_is(p->text, "*"))
            return false;
    return true;
}

/* Backtracks only to the last star, which can consume whatever an earlier star could. The time is
 * therefore at most proportional to the product of both lengths. */
bool filter_matches(struct str pattern, struct str type)
{
    size_t p = 0, t = 0;
    size_t star = SIZE_MAX, resume = 0; /* the last star and the end of its match */
    while (t < type.n) {
        char c = p < pattern.n ? pattern.p[p] : '\0';
        if (c == '*') {
            star = p;
            resume = t;
            p++;
        } else if (p < pattern.n && c == type.p[t]) {
            p++;
            t++;
        } else if (star != SIZE_MAX) {
            resume++; /* let the last star consume one more character */
            p = star + 1;
            t = resume;
        } else {
            return false;
        }
    }
    while (p < pattern.n && pattern.p[p] == '*')
        p++;
    return p == pattern.n;
}

bool filter_type(const struct filter *f, struct str type)
{
    if (!f || !f->patterns)
        return true;
    for (const struct pattern *p = f->patterns; p; p = p->next)
        if (filter_matches(p->text, type))
            return true;
    return false;
}

bool filter_has_where(const struct filter *f)
{
    return f && f->where;
}

/* Finds the element of an array at the index given by a segment, which must be bare and consist of
 * digits. Iterates, because JSON text has no index of its elements. */
static bool find_element(struct json array, const struct segment *s, struct json *ret)
{
    if (!s->bare || s->name.n > 9)
        return false;
    uint64_t index = 0;
    for (size_t i = 0; i < s->name.n; i++) {
        char c = s->name.p[i];
        if (!char_is_digit(c))
            return false;
        index = index * 10 + (uint64_t)(c - '0');
    }

    size_t it = 0;
    for (uint64_t i = 0; i <= index; i++)
        if (!json_each(array, &it, NULL, ret))
            return false;
    return true;
}

/* Resolves a path to an element of an array or a member of an object; returns false if a step is
 * missing. */
static bool look_up(struct json v, const struct segment *path, struct json *ret)
{
    for (; path; path = path->next) {
        bool found;
        if (v.type == JSON_ARRAY)
            found = find_element(v, path, &v);
        else
            found = json_get(v, path->name, &v);
        if (!found)
            return false;
    }
    *ret = v;
    return true;
}

static bool holds(const struct node *n, struct json payload)
{
    struct json v;
    switch (n->type) {
    case NODE_OR:
        for (const struct node *each = n->first; each; each = each->next)
            if (holds(each, payload))
                return true;
        return false;
    case NODE_AND:
        for (const struct node *each = n->first; each; each = each->next)
            if (!holds(each, payload))
                return false;
        return true;
    case NODE_NOT: return !holds(n->first, payload);
    case NODE_EQUALS: return look_up(payload, n->path, &v) && json_equal(v, n->literal);
    case NODE_EXISTS: return look_up(payload, n->path, &v);
    }
    return false;
}

bool filter_payload(const struct filter *f, struct str payload)
{
    struct json v;
    if (!filter_has_where(f))
        return true;
    if (!payload.p)
        payload = STR("null");
    return json_parse(payload, &v, NULL, NULL) == 0 && holds(f->where, v);
}
