/* filter_parse.c: compiles the patterns and the predicate of a filter. The grammar is in filter.h;
 * each parse_* reads one rule of it. */
#include <string.h>

#include "base/arena.h"
#include "base/char.h"
#include "event/filter_impl.h"

#define FILTER_MAX_DEPTH 64          /* of parentheses and "not" */
#define FILTER_MAX_BYTES (64 * 1024) /* of patterns or of the predicate */

/* A text that is being compiled. (1) p is in text, and all before it has been read. (2) depth
 * counts the parentheses and the "not"s that are open, because each costs stack. */
struct parser {
    struct arena *a;
    const char *text, *p;
    int depth;
    struct error *err;
};

/* is_word says whether c may be in a bare name or a keyword. */
static bool is_word(char c)
{
    return char_is_name(c) || c == '-';
}

/* expected says what should be at the parser's place, and what is there instead. */
static int expected(struct parser *ps, const char *what)
{
    size_t at = (size_t)(ps->p - ps->text);
    if (!*ps->p)
        return err_set(ps->err, ERR_CONFIG, "expected %s at byte %zu, found the end", what, at);

    int n = 1; /* bytes of the character */
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

/* new_node returns NULL, with the error set, when out of memory. */
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

/* quoted_end returns the end of the string in double quotes at p: after its closing quote, or where
 * the text ends. */
static const char *quoted_end(const char *p)
{
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1])
            p++;
    if (*p == '"')
        p++;
    return p;
}

/* parse_quoted reads a JSON string, in double quotes. */
static int parse_quoted(struct parser *ps, struct json *ret)
{
    const char *end = quoted_end(ps->p);
    struct str text = {ps->p, (size_t)(end - ps->p)};
    const char *why;
    size_t at;
    if (json_parse(text, ret, &why, &at) != 0) {
        at += (size_t)(ps->p - ps->text);
        return err_set(ps->err, ERR_CONFIG, "bad string: %s at byte %zu", why, at);
    }
    ps->p = end;
    return 0;
}

/* keep copies what is in a buffer into the arena, and releases the buffer. */
static int keep(struct parser *ps, struct buf *b, struct str *ret)
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

/* parse_name reads a name in double quotes, and keeps what it stands for. */
static int parse_name(struct parser *ps, struct str *ret)
{
    struct json quoted;
    if (parse_quoted(ps, &quoted) != 0)
        return -1;
    struct buf b;
    buf_init(&b, quoted.raw.n);
    json_unescape(quoted.raw, &b);
    return keep(ps, &b, ret);
}

/* parse_segment reads one step of a path. A bare name may index an array; a quoted one never
 * does. */
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
        if (parse_name(ps, &s->name) != 0)
            return -1;
    } else {
        return expected(ps, "a name or a \"quoted name\"");
    }
    *ret = s;
    return 0;
}

/* parse_path refuses a keyword as the first name: `not = 1` is more likely a mistake than a member
 * called not. */
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

/* parse_apostrophes reads '...', where nothing is an escape, and keeps it as a JSON string. */
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
    return keep(ps, &b, &ret->raw);
}

/* parse_literal takes strings in either kind of quotes. Everything else must be JSON. */
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

/* negate wraps *n in a NOT. */
static int negate(struct parser *ps, struct node **n)
{
    struct node *outer = new_node(ps, NODE_NOT);
    if (!outer)
        return -1;
    outer->first = *n;
    *n = outer;
    return 0;
}

/* take_operator steps over = or !=; *ret_differs says which it was. */
static int take_operator(struct parser *ps, bool *ret_differs)
{
    bool differs = ps->p[0] == '!' && ps->p[1] == '=';
    if (differs)
        ps->p++;
    if (*ps->p != '=')
        return expected(ps, "=, != or exists");
    ps->p++;
    *ret_differs = differs;
    return 0;
}

/* parse_comparison reads `path = literal`, `path != literal`, `path exists` or `exists path`. */
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

    bool differs = false;
    if (take_operator(ps, &differs) != 0)
        return -1;
    if (parse_literal(ps, &n->literal) != 0)
        return -1;
    if (differs)
        return negate(ps, ret);
    return 0;
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

static int parse_factor(struct parser *ps, struct node **ret);

static int parse_negation(struct parser *ps, struct node **ret)
{
    if (parse_factor(ps, ret) != 0)
        return -1;
    return negate(ps, ret);
}

/* parse_factor is where the grammar recurs, so it limits the depth. */
static int parse_factor(struct parser *ps, struct node **ret)
{
    ps->depth++;
    if (ps->depth > FILTER_MAX_DEPTH)
        return err_set(ps->err, ERR_CONFIG, "nested too deeply at byte %zu",
                       (size_t)(ps->p - ps->text));

    int r;
    if (take_word(ps, "not"))
        r = parse_negation(ps, ret);
    else if (*ps->p == '(')
        r = parse_parentheses(ps, ret);
    else
        r = parse_comparison(ps, ret);
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
    if (*ps->p)
        return expected(ps, "and, or or the end");
    return 0;
}

/* parse_pattern reads up to the next comma. A pattern may have any character that a type may. */
static int parse_pattern(struct parser *ps, struct pattern **ret)
{
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
    *ret = p;

    ps->p += n;
    skip_space(ps);
    bool ends = !*ps->p || *ps->p == ',';
    if (!ends)
        return expected(ps, "a comma");
    return 0;
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

/* parser_init copies the text into the filter, which then points into it. */
static int parser_init(struct parser *ps, struct arena *a, const char *given, struct error *err)
{
    struct str text = str_of(given);
    size_t at;
    if (text.n > FILTER_MAX_BYTES)
        return err_set(err, ERR_CONFIG, "is %zu bytes long, the limit is %d", text.n,
                       FILTER_MAX_BYTES);
    if (!utf8_valid(text, &at))
        return err_set(err, ERR_CONFIG, "invalid UTF-8 at byte %zu", at);

    char *copy = arena_bytes(a, text.p, text.n);
    if (!copy)
        return err_nomem(err);
    *ps = (struct parser){.a = a, .text = copy, .p = copy, .err = err};
    return 0;
}

int filter_parse_events(struct filter *f, const char *events, struct error *err)
{
    struct parser ps = {0};
    int r = parser_init(&ps, &f->a, events, err);
    if (r == 0)
        r = parse_patterns(&ps, &f->patterns);
    if (r != 0)
        return err_prefix(err, "events");
    return 0;
}

int filter_parse_where(struct filter *f, const char *where, struct error *err)
{
    struct parser ps = {0};
    int r = parser_init(&ps, &f->a, where, err);
    if (r == 0)
        r = parse_where(&ps, &f->where);
    if (r != 0)
        return err_prefix(err, "where");
    return 0;
}
