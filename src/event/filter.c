#include "event/filter.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"

#define FILTER_MAX_DEPTH 64          /* of parentheses and "not" */
#define FILTER_MAX_BYTES (64 * 1024) /* of patterns or of the predicate */

/* One step of a path: a member's name, or an array's index. */
struct segment {
    struct segment *next;
    struct str name;
    bool bare; /* quoted digits never index */
};

enum node_type { NODE_OR, NODE_AND, NODE_NOT, NODE_EQUALS, NODE_EXISTS };

/* (1) OR and AND have any number of children, NOT has one, the others none. So a tree is only as
 *   deep as the
 * parentheses are, however long a chain of "or". */
struct node {
    enum node_type type;
    struct node *first, *next;
    struct segment *path;
    struct json literal;
};

struct pattern {
    struct pattern *next;
    struct str text;
};

/* Everything the pointers lead to lives in the arena. */
struct filter {
    struct arena a;
    struct pattern *patterns; /* NULL: every type */
    struct node *where;       /* NULL: every payload */
};

struct parser {
    struct arena *a;
    const char *text, *p;
    int depth;
    struct error *err;
};

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_word(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

bool pattern_match(struct str pattern, struct str type)
{
    size_t p = 0, t = 0, star = SIZE_MAX, resume = 0;
    while (t < type.n) {
        if (p < pattern.n && pattern.p[p] == '*') {
            star = p++;
            resume = t;
        } else if (p < pattern.n && pattern.p[p] == type.p[t]) {
            p++;
            t++;
        } else if (star != SIZE_MAX) {
            p = star + 1; /* let the last star take one more character */
            t = ++resume;
        } else {
            return false;
        }
    }
    while (p < pattern.n && pattern.p[p] == '*')
        p++;
    return p == pattern.n;
}

static int expected(struct parser *ps, const char *what)
{
    size_t at = (size_t)(ps->p - ps->text);
    if (!*ps->p)
        return err_set(ps->err, ERR_CONFIG, "expected %s at byte %zu, found the end", what, at);
    int n = 1;
    while (n < 4 && ((unsigned char)ps->p[n] & 0xC0) == 0x80)
        n++;
    return err_set(ps->err, ERR_CONFIG, "expected %s at byte %zu, found '%.*s'", what, at, n,
                   ps->p);
}

static void skip_space(struct parser *ps)
{
    while (is_space(*ps->p))
        ps->p++;
}

static size_t word_len(const char *p)
{
    size_t n = 0;
    while (is_word(p[n]))
        n++;
    return n;
}

/* at_word says whether the keyword comes next; take_word steps over it as well. */
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

static struct node *new_node(struct parser *ps, enum node_type type)
{
    struct node *n = arena_zalloc(ps->a, 1, sizeof *n);
    if (n) {
        n->type = type;
    } else {
        err_nomem(ps->err);
    }
    return n;
}

/* quoted_end returns the end of the string in double quotes at p: behind its closing quote, or
 * where the text ends. */
static const char *quoted_end(const char *p)
{
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1])
            p++;
    return *p ? p + 1 : p;
}

/* parse_quoted reads a string in double quotes, JSON's own. */
static int parse_quoted(struct parser *ps, struct json *ret)
{
    const char *why, *end = quoted_end(ps->p);
    size_t at;
    if (json_parse((struct str){ps->p, (size_t)(end - ps->p)}, ret, &why, &at) != 0) {
        at += (size_t)(ps->p - ps->text);
        return err_set(ps->err, ERR_CONFIG, "bad string: %s at byte %zu", why, at);
    }
    ps->p = end;
    return 0;
}

/* unescape copies into the arena what `raw`, a JSON string, stands for. */
static int unescape(struct parser *ps, struct str raw, struct str *ret)
{
    struct buf b;
    buf_init(&b, raw.n);
    json_unescape(raw, &b);
    char *p = b.failed ? NULL : arena_bytes(ps->a, b.p, b.n);
    *ret = (struct str){p, b.n};
    buf_release(&b);
    return p ? 0 : err_nomem(ps->err);
}

static int parse_segment(struct parser *ps, struct segment **ret)
{
    struct segment *s = arena_zalloc(ps->a, 1, sizeof *s);
    struct json quoted;
    size_t n = word_len(ps->p);
    if (!s)
        return err_nomem(ps->err);
    if (n) {
        s->name = (struct str){ps->p, n};
        s->bare = true;
        ps->p += n;
    } else if (*ps->p == '"') {
        if (parse_quoted(ps, &quoted) != 0)
            return -1;
        if (unescape(ps, quoted.raw, &s->name) != 0)
            return -1;
    } else {
        return expected(ps, "a name or a \"quoted name\"");
    }
    *ret = s;
    return 0;
}

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

/* parse_apostrophes reads '...', in which nothing is an escape, and keeps it as a JSON string. */
static int parse_apostrophes(struct parser *ps, struct json *ret)
{
    const char *end = strchr(ps->p + 1, '\'');
    if (!end) {
        ps->p += strlen(ps->p);
        return expected(ps, "a closing apostrophe");
    }
    struct buf b;
    buf_init(&b, FILTER_MAX_BYTES * 6 + 2);
    json_quote(&b, (struct str){ps->p + 1, (size_t)(end - ps->p - 1)});
    char *p = b.failed ? NULL : arena_bytes(ps->a, b.p, b.n);
    *ret = (struct json){JSON_STRING, {p, b.n}};
    buf_release(&b);
    ps->p = end + 1;
    return p ? 0 : err_nomem(ps->err);
}

static int parse_literal(struct parser *ps, struct json *ret)
{
    skip_space(ps);
    const char *end = ps->p;
    if (*ps->p == '\'')
        return parse_apostrophes(ps, ret);
    if (*ps->p == '"')
        return parse_quoted(ps, ret);
    while (is_word(*end) || *end == '.' || *end == '+')
        end++;
    if (json_parse((struct str){ps->p, (size_t)(end - ps->p)}, ret, NULL, NULL) != 0)
        return expected(ps, "a \"string\", a number, true, false or null");
    ps->p = end;
    return 0;
}

/* negate wraps n in a NOT. */
static int negate(struct parser *ps, struct node *n, struct node **ret)
{
    *ret = new_node(ps, NODE_NOT);
    if (!*ret)
        return -1;
    (*ret)->first = n;
    return 0;
}

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
    if (!differs && *ps->p != '=')
        return expected(ps, "=, != or exists");
    ps->p += differs ? 2 : 1;
    if (parse_literal(ps, &n->literal) != 0)
        return -1;
    return differs ? negate(ps, n, ret) : 0;
}

static int parse_or(struct parser *ps, struct node **ret);

static int parse_parentheses(struct parser *ps, struct node **ret)
{
    ps->p++;
    if (parse_or(ps, ret) != 0)
        return -1;
    skip_space(ps);
    if (*ps->p != ')')
        return expected(ps, "and, or or ')'");
    ps->p++;
    return 0;
}

static int parse_factor(struct parser *ps, struct node **ret)
{
    int r;
    if (++ps->depth > FILTER_MAX_DEPTH)
        return err_set(ps->err, ERR_CONFIG, "nested too deeply at byte %zu",
                       (size_t)(ps->p - ps->text));
    if (take_word(ps, "not")) {
        struct node *inner;
        r = parse_factor(ps, &inner) != 0 ? -1 : negate(ps, inner, ret);
    } else if (*ps->p == '(') {
        r = parse_parentheses(ps, ret);
    } else {
        r = parse_comparison(ps, ret);
    }
    ps->depth--;
    return r;
}

static int parse_and(struct parser *ps, struct node **ret)
{
    struct node *all = new_node(ps, NODE_AND);
    if (!all)
        return -1;
    struct node **last = &all->first;
    do {
        if (parse_factor(ps, last) != 0)
            return -1;
        last = &(*last)->next;
    } while (take_word(ps, "and"));
    *ret = all;
    return 0;
}

static int parse_or(struct parser *ps, struct node **ret)
{
    struct node *any = new_node(ps, NODE_OR);
    if (!any)
        return -1;
    struct node **last = &any->first;
    do {
        if (parse_and(ps, last) != 0)
            return -1;
        last = &(*last)->next;
    } while (take_word(ps, "or"));
    *ret = any;
    return 0;
}

static int parse_where(struct parser *ps, struct node **ret)
{
    skip_space(ps);
    if (!*ps->p)
        return 0;
    if (parse_or(ps, ret) != 0)
        return -1;
    skip_space(ps);
    return *ps->p ? expected(ps, "and, or or the end") : 0;
}

/* parse_pattern reads up to the next comma; a pattern's own characters are whatever a type may
 * have. */
static int parse_pattern(struct parser *ps, struct pattern **ret)
{
    skip_space(ps);
    const char *end = ps->p;
    while (*end && *end != ',' && !is_space(*end))
        end++;
    if (end == ps->p)
        return expected(ps, "a pattern");
    struct pattern *p = arena_zalloc(ps->a, 1, sizeof *p);
    if (!p)
        return err_nomem(ps->err);
    p->text = (struct str){ps->p, (size_t)(end - ps->p)};
    ps->p = end;
    skip_space(ps);
    *ret = p;
    return *ps->p && *ps->p != ',' ? expected(ps, "a comma") : 0;
}

static int parse_patterns(struct parser *ps, struct pattern **ret)
{
    skip_space(ps);
    if (!*ps->p)
        return 0;
    for (;;) {
        if (parse_pattern(ps, ret) != 0)
            return -1;
        if (!*ps->p)
            return 0;
        ps->p++;
        ret = &(*ret)->next;
    }
}

/* parser_on copies the text into the filter, which then points into it. */
static int parser_on(struct parser *ps, struct arena *a, const char *text, struct error *err)
{
    size_t n = text ? strlen(text) : 0, at;
    if (n > FILTER_MAX_BYTES)
        return err_set(err, ERR_CONFIG, "is %zu bytes long, the limit is %d", n, FILTER_MAX_BYTES);
    if (!utf8_valid((struct str){text, n}, &at))
        return err_set(err, ERR_CONFIG, "invalid UTF-8 at byte %zu", at);
    char *copy = arena_bytes(a, text, n);
    if (!copy)
        return err_nomem(err);
    *ps = (struct parser){.a = a, .text = copy, .p = copy, .err = err};
    return 0;
}

int filter_new(const char *events, const char *where, struct filter **ret, struct error *err)
{
    struct parser ps;
    struct filter *f = calloc(1, sizeof *f);
    if (!f)
        return err_nomem(err);
    arena_init(&f->a, 0);
    if (parser_on(&ps, &f->a, events, err) != 0 || parse_patterns(&ps, &f->patterns) != 0) {
        err_prefix(err, "events");
        goto fail;
    }
    if (parser_on(&ps, &f->a, where, err) != 0 || parse_where(&ps, &f->where) != 0) {
        err_prefix(err, "where");
        goto fail;
    }
    *ret = f;
    return 0;
fail:
    filter_free(f);
    return -1;
}

void filter_free(struct filter *f)
{
    if (!f)
        return;
    arena_release(&f->a);
    free(f);
}

bool filter_has_types(const struct filter *f)
{
    if (!f || !f->patterns)
        return false;
    for (const struct pattern *p = f->patterns; p; p = p->next)
        if (str_is(p->text, "*"))
            return false;
    return true;
}

bool filter_type(const struct filter *f, struct str type)
{
    if (!f || !f->patterns)
        return true;
    for (const struct pattern *p = f->patterns; p; p = p->next)
        if (pattern_match(p->text, type))
            return true;
    return false;
}

bool filter_has_where(const struct filter *f)
{
    return f && f->where;
}

static bool element(struct json array, const struct segment *s, struct json *ret)
{
    uint64_t index = 0;
    if (!s->bare || s->name.n > 9)
        return false;
    for (size_t i = 0; i < s->name.n; i++) {
        if (s->name.p[i] < '0' || s->name.p[i] > '9')
            return false;
        index = index * 10 + (uint64_t)(s->name.p[i] - '0');
    }
    size_t it = 0;
    do {
        if (!json_each(array, &it, NULL, ret))
            return false;
    } while (index--);
    return true;
}

static bool look_up(struct json v, const struct segment *path, struct json *ret)
{
    for (; path; path = path->next) {
        bool found = v.type == JSON_ARRAY ? element(v, path, &v) : json_get(v, path->name, &v);
        if (!found)
            return false;
    }
    *ret = v;
    return true;
}

static bool holds(const struct node *n, struct json payload)
{
    struct json v;
    const struct node *c;
    switch (n->type) {
    case NODE_OR:
        for (c = n->first; c; c = c->next)
            if (holds(c, payload))
                return true;
        return false;
    case NODE_AND:
        for (c = n->first; c; c = c->next)
            if (!holds(c, payload))
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
