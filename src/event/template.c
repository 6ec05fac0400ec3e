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

/* A part of the name. (1) PART_LITERAL has its text, PART_HEADER the name of the header in `text`.
 * (2) PART_FIELD has its field and its index; an index < 0 means the whole field. */
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

/* Parses the text between braces into a part: NAME, NAME[N] or header.NAME. */
static int parse_field(struct str text, struct part *ret, struct error *err)
{
    const size_t prefix = strlen(HEADER);
    if (text.n >= prefix && memcmp(text.p, HEADER, prefix) == 0) {
        *ret = (struct part){.kind = PART_HEADER, .text = {text.p + prefix, text.n - prefix}};
        if (ret->text.n == 0)
            return err_set(err, ERR_CONFIG,
                           "{header.} lacks the name of a header: write {header.NAME}");
        return 0;
    }

    char name[64];
    if (text.n >= sizeof name)
        return err_set(err, ERR_CONFIG, "unknown field; known fields are " TEMPLATE_FIELDS);
    memcpy(name, text.p, text.n);
    name[text.n] = '\0';

    int64_t index = -1;
    char *bracket = strchr(name, '['), *end = bracket ? strchr(bracket, ']') : NULL;
    if (bracket) {
        if (!end || end[1] != '\0')
            return err_set(err, ERR_CONFIG, "{%s}: write the number in [ ]", name);
        *bracket = '\0';
        *end = '\0';
        if (text_int(bracket + 1, 0, INDEX_MAX, &index, err) != 0)
            return err_prefix(err, "{%s[]}", name);
    }

    const char *names[FIELDS + 1] = {NULL};
    for (size_t i = 0; i < FIELDS; i++) {
        names[i] = fields[i].name;
        if (strcmp(names[i], name) != 0)
            continue;
        *ret = (struct part){.kind = PART_FIELD, .field = (int)i, .index = (int)index};
        return 0;
    }
    char hint[TEXT_HINT];
    text_hint(name, names, (struct text_hint){"{", "}", "known fields are " TEMPLATE_FIELDS}, hint);
    return err_set(err, ERR_CONFIG, "unknown field {%s}%s", name, hint);
}

/* Splits t->text at its braces. A doubled brace is a literal brace. */
static int compile(struct template *t, struct error *err)
{
    for (const char *p = t->text; *p;) {
        size_t n = strcspn(p, "{}");
        struct part part = {.kind = PART_LITERAL, .text = {p, n}};
        if (n == 0 && p[0] == p[1]) {
            part.text.n = 1;
            n = 2;
        } else if (n == 0) {
            if (*p == '}')
                return err_set(err, ERR_CONFIG, "a } without its {; write }} for a literal brace");
            const char *end = strchr(p, '}');
            if (!end)
                return err_set(err, ERR_CONFIG, "a { without its }; write {{ for a literal brace");
            if (parse_field((struct str){p + 1, (size_t)(end - p - 1)}, &part, err) != 0)
                return -1;
            n = (size_t)(end + 1 - p);
        }
        if (t->n == PARTS_MAX)
            return err_set(err, ERR_CONFIG, "the name has more than %d parts", PARTS_MAX);
        t->part[t->n++] = part;
        p += n;
    }
    if (t->n == 0)
        return err_set(err, ERR_CONFIG, "the name is empty");
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

/* Returns the value of a field, or of one of its parts, split at dots. */
static int get_field(const struct part *p, const struct event *ev, struct str *ret,
                     struct error *err)
{
    const char *name = fields[p->field].name;
    struct str s;
    memcpy(&s, (const char *)ev + fields[p->field].offset, sizeof s);
    *ret = s;
    if (p->index < 0 && s.p)
        return 0;
    if (p->index < 0)
        return err_set(err, ERR_INVALID,
                       "the event has no %s, which the destination's name requires", name);

    for (int left = p->index; s.p; left--) {
        const char *dot = s.n ? memchr(s.p, '.', s.n) : NULL;
        size_t n = dot ? (size_t)(dot - s.p) : s.n;
        if (left == 0) {
            *ret = (struct str){s.p, n};
            return 0;
        }
        if (!dot)
            break;
        s = (struct str){dot + 1, s.n - n - 1};
    }
    return err_set(err, ERR_INVALID,
                   "the event's %s has no part number %d, which the destination's name requires",
                   name, p->index);
}

/* Returns the value of a header of the event, including its quotes. */
static int get_header(const struct part *p, const struct event *ev, struct str *ret,
                      struct error *err)
{
    struct json all, v;
    bool found = event_headers_of(ev, &all) && json_get(all, p->text, &v) && v.type == JSON_STRING;
    if (!found)
        return err_set(err, ERR_INVALID,
                       "the event has no header %.*s, which the destination's name requires",
                       (int)p->text.n, p->text.p);
    *ret = v.raw;
    return 0;
}

/* A name under construction. */
struct writing {
    const struct event *ev;
    template_escape *escape; /* NULL: values are written unchanged */
    struct buf *b;
    size_t length; /* length of the name so far, even if b failed */
};

/* Appends the value of a part for this event. */
static int add_value(struct writing *w, const struct part *p, struct error *err)
{
    struct buf *b = w->b;
    struct str s = p->text;
    if (p->kind == PART_FIELD && get_field(p, w->ev, &s, err) != 0)
        return -1;
    if (p->kind == PART_HEADER && get_header(p, w->ev, &s, err) != 0)
        return -1;

    size_t before = b->n;
    bool escapes = w->escape && p->kind != PART_LITERAL;
    struct buf raw;
    buf_init(&raw, b->max);
    struct buf *to = escapes ? &raw : b;
    if (p->kind == PART_HEADER)
        json_unescape(s, to);
    else
        buf_addstr(to, s);
    if (raw.failed)
        b->failed = true;
    if (raw.n > 0 && !b->failed) {
        bool levels = p->kind == PART_FIELD && p->index < 0 &&
                      strcmp(fields[p->field].name, "type") == 0;
        w->escape(b, (struct str){raw.p, raw.n}, levels);
    }
    buf_release(&raw);
    w->length += b->failed ? s.n : b->n - before;
    return 0;
}

/* On failure, may leave part of the name in b. */
int template_write(const struct template *t, const struct event *ev, template_escape *escape,
                   struct buf *b, struct error *err)
{
    struct writing w = {.ev = ev, .escape = escape, .b = b};
    size_t before = b->n;
    for (size_t i = 0; i < t->n; i++)
        if (add_value(&w, &t->part[i], err) != 0)
            return -1;

    if (w.length > b->max)
        return err_set(err, ERR_INVALID, "the destination's name has %zu bytes; the limit is %zu",
                       w.length, b->max);
    if (b->failed)
        return err_nomem(err);
    if (b->n == before)
        return err_set(err, ERR_INVALID, "the destination's name is empty");
    if (!text_plain((struct str){b->p + before, b->n - before}))
        return err_set(err, ERR_INVALID,
                       "the destination's name has a control character or is not UTF-8");
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
