#include "event/template.h"

#include <stdlib.h>

#include "base/json.h"
#include "base/text.h"

#define PARTS_MAX 32
#define INDEX_MAX 254

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
    {"type", offsetof(struct event, type)},
    {"aggregate_type", offsetof(struct event, aggregate_type)},
    {"aggregate_id", offsetof(struct event, aggregate_id)},
    {"tenant", offsetof(struct event, tenant)},
};
#define FIELDS (sizeof fields / sizeof fields[0])
#define HEADER "header."

enum part_kind { PART_LITERAL, PART_FIELD, PART_HEADER };

/* A part of the name. (1) PART_LITERAL has its text, PART_HEADER the name of the header in text.
 * (2) PART_FIELD has its field and its index: < 0 means the whole field. */
struct part {
    enum part_kind kind;
    int field, index;
    struct str text;
};

struct template
{
    struct part part[PARTS_MAX];
    size_t n;
    char text[];
};

static int add_part(struct template *t, struct part p, struct error *err)
{
    if (t->n == PARTS_MAX)
        return err_set(err, ERR_CONFIG, "more than %d parts in a name", PARTS_MAX);
    t->part[t->n++] = p;
    return 0;
}

static int unknown_field(const char *name, struct error *err)
{
    const char *names[FIELDS + 1] = {NULL};
    for (size_t i = 0; i < FIELDS; i++)
        names[i] = fields[i].name;
    char hint[TEXT_HINT];
    text_hint(name, names, (struct text_hint){"{", "}", "there are " TEMPLATE_FIELDS}, hint);
    return err_set(err, ERR_CONFIG, "unknown field {%s}%s", name, hint);
}

/* Strips [N] from the name; *ret is N, or -1 if there is none. */
static int cut_index(char *name, int64_t *ret, struct error *err)
{
    *ret = -1;
    char *bracket = strchr(name, '[');
    if (!bracket)
        return 0;
    char *end = strchr(bracket, ']');
    if (!end || end[1] != '\0')
        return err_set(err, ERR_CONFIG, "{%s}: the number goes into [ ]", name);
    *bracket = '\0';
    *end = '\0';
    if (text_int(bracket + 1, 0, INDEX_MAX, ret, err) != 0)
        return err_prefix(err, "{%s[]}", name);
    return 0;
}

/* Returns NAME from header.NAME; absent for any other text. */
static struct str header_in(struct str text)
{
    size_t n = strlen(HEADER);
    bool is_header = text.n >= n && memcmp(text.p, HEADER, n) == 0;
    if (!is_header)
        return (struct str){0};
    return (struct str){text.p + n, text.n - n};
}

/* Parses the text between braces: a name, a name and [N], or header.NAME. */
static int add_field(struct template *t, struct str text, struct error *err)
{
    char name[64];
    struct str header = header_in(text);
    if (header.p && header.n == 0)
        return err_set(err, ERR_CONFIG, "{header.}: which header? write {header.NAME}");
    if (header.p)
        return add_part(t, (struct part){.kind = PART_HEADER, .text = header}, err);

    if (text.n >= sizeof name)
        return err_set(err, ERR_CONFIG, "unknown field; there are " TEMPLATE_FIELDS);
    memcpy(name, text.p, text.n);
    name[text.n] = '\0';

    int64_t index;
    if (cut_index(name, &index, err) != 0)
        return -1;
    size_t field = 0;
    while (field < FIELDS && strcmp(fields[field].name, name) != 0)
        field++;
    if (field == FIELDS)
        return unknown_field(name, err);
    return add_part(t, (struct part){.kind = PART_FIELD, .field = (int)field, .index = (int)index},
                    err);
}

static int add_literal(struct template *t, const char *p, size_t n, struct error *err)
{
    return add_part(t, (struct part){.kind = PART_LITERAL, .text = {p, n}}, err);
}

/* Parses from the brace at *p and advances: a doubled brace, which is a literal one, or a field. */
static int add_brace(struct template *t, const char **p, struct error *err)
{
    const char *brace = *p;
    if (brace[0] == brace[1]) {
        *p += 2;
        return add_literal(t, brace, 1, err);
    }
    if (*brace == '}')
        return err_set(err, ERR_CONFIG, "a } without its {; write }} for the character itself");

    const char *end = strchr(brace, '}');
    if (!end)
        return err_set(err, ERR_CONFIG, "a { without its }; write {{ for the character itself");
    *p = end + 1;
    return add_field(t, (struct str){brace + 1, (size_t)(end - brace - 1)}, err);
}

/* Splits t->text at its braces. */
static int compile(struct template *t, struct error *err)
{
    for (const char *p = t->text; *p;) {
        size_t n = strcspn(p, "{}");
        int r;
        if (n > 0) {
            r = add_literal(t, p, n, err);
            p += n;
        } else {
            r = add_brace(t, &p, err);
        }
        if (r != 0)
            return -1;
    }
    if (t->n == 0)
        return err_set(err, ERR_CONFIG, "an empty name");
    return 0;
}

int template_new(const char *text, struct template **ret, struct error *err)
{
    size_t n = strlen(text) + 1;
    struct template *t = calloc(1, sizeof *t + n);
    if (!t)
        return err_nomem(err);
    memcpy(t->text, text, n);
    if (compile(t, err) != 0) {
        template_free(t);
        return -1;
    }
    *ret = t;
    return 0;
}

void template_free(struct template *t)
{
    free(t);
}

bool template_fixed(const struct template *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->part[i].kind != PART_LITERAL)
            return false;
    return true;
}

/* Returns part `index` of s, split at dots; absent if there are fewer. */
static struct str piece(struct str s, int index)
{
    while (s.p) {
        const char *dot = s.n ? memchr(s.p, '.', s.n) : NULL;
        size_t n = dot ? (size_t)(dot - s.p) : s.n;
        if (index == 0)
            return (struct str){s.p, n};
        index--;
        if (!dot)
            break;
        s = (struct str){dot + 1, s.n - n - 1};
    }
    return (struct str){0};
}

/* Returns the value of a field, or of a part of it; absent if the event lacks it. */
static struct str field_of(const struct part *p, const struct event *ev)
{
    struct str field;
    memcpy(&field, (const char *)ev + fields[p->field].offset, sizeof field);
    if (p->index < 0)
        return field;
    return piece(field, p->index);
}

/* Returns the value of a header of the event, with quotes; absent if it is missing or not a
 * string. */
static struct str header_of(const struct part *p, const struct event *ev)
{
    struct json all, v;
    bool has_headers = ev->headers.p && json_parse(ev->headers, &all, NULL, NULL) == 0;
    if (!has_headers)
        return (struct str){0};
    bool found = json_get(all, p->text, &v) && v.type == JSON_STRING;
    if (!found)
        return (struct str){0};
    return v.raw;
}

static int lacks_part(const struct part *p, struct error *err)
{
    if (p->kind == PART_HEADER)
        return err_set(err, ERR_INVALID,
                       "it has no header %.*s, which the name of its destination needs",
                       (int)p->text.n, p->text.p);
    const char *name = fields[p->field].name;
    if (p->index < 0)
        return err_set(err, ERR_INVALID, "it has no %s, which the name of its destination needs",
                       name);
    return err_set(err, ERR_INVALID,
                   "its %s has no part number %d, which the name of its destination needs", name,
                   p->index);
}

/* A name under construction. */
struct writing {
    const struct event *ev;
    template_escape *escape; /* values are written unchanged */
    struct buf *b;
    size_t length; /* length of the name so far, even if b failed */
};

/* Replaces what was appended to b after its first `at` bytes by its escaped form. */
static void escape_last(const struct writing *w, const struct part *p, size_t at)
{
    struct buf *b = w->b;
    struct buf copy;
    bool nothing = b->failed || b->n == at;
    if (nothing)
        return;
    buf_init(&copy, b->max);
    buf_add(&copy, b->p + at, b->n - at);
    if (copy.failed) {
        b->failed = true;
    } else {
        bool levels = p->kind == PART_FIELD && p->index < 0 &&
                      strcmp(fields[p->field].name, "type") == 0;
        buf_truncate(b, at);
        w->escape(b, (struct str){copy.p ? copy.p : "", copy.n}, levels);
    }
    buf_release(&copy);
}

/* Appends the value of a part for this event. */
static int add_value(struct writing *w, const struct part *p, struct error *err)
{
    struct buf *b = w->b;
    struct str s = p->text;
    if (p->kind == PART_FIELD)
        s = field_of(p, w->ev);
    if (p->kind == PART_HEADER)
        s = header_of(p, w->ev);
    if (!s.p)
        return lacks_part(p, err);

    size_t before = b->n;
    if (p->kind == PART_HEADER)
        json_unescape(s, b);
    else
        buf_addstr(b, s);
    if (w->escape && p->kind != PART_LITERAL)
        escape_last(w, p, before);
    w->length += b->failed ? s.n : b->n - before;
    return 0;
}

/* May leave part of the name in b on failure. */
int template_write_escaped(const struct template *t, const struct event *ev,
                           template_escape *escape, struct buf *b, struct error *err)
{
    struct writing w = {.ev = ev, .escape = escape, .b = b};
    size_t before = b->n;
    for (size_t i = 0; i < t->n; i++)
        if (add_value(&w, &t->part[i], err) != 0)
            return -1;

    if (w.length > b->max)
        return err_set(err, ERR_INVALID,
                       "the name of its destination would have %zu bytes; the limit is %zu",
                       w.length, b->max);
    if (b->failed)
        return err_nomem(err);
    if (b->n == before)
        return err_set(err, ERR_INVALID, "the name of its destination would be empty");
    if (!text_plain((struct str){b->p + before, b->n - before}))
        return err_set(
            err, ERR_INVALID,
            "the name of its destination would have a control character, or not be UTF-8");
    return 0;
}

int template_pattern(const struct template *t, const char *special, struct buf *b,
                     struct error *err)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct part *p = &t->part[i];
        if (p->kind != PART_LITERAL) {
            buf_addc(b, '*');
            continue;
        }
        for (size_t k = 0; k < p->text.n; k++) {
            if (strchr(special, p->text.p[k]))
                buf_addc(b, '\\');
            buf_addc(b, p->text.p[k]);
        }
    }
    if (b->failed)
        return err_nomem(err);
    return 0;
}

int template_write(const struct template *t, const struct event *ev, struct buf *b,
                   struct error *err)
{
    return template_write_escaped(t, ev, NULL, b, err);
}
