#include "event/template.h"

#include <stdlib.h>

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

/* field < 0: the literal `text`. index < 0: the whole field. */
struct part {
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

/* add_field takes what stands between braces: a name, or a name and [N]. */
static int add_field(struct template *t, struct str text, struct error *err)
{
    char name[64];
    int64_t index = -1;
    if (text.n >= sizeof name)
        return err_set(err, ERR_CONFIG, "unknown field; there are " TEMPLATE_FIELDS);
    memcpy(name, text.p, text.n);
    name[text.n] = '\0';
    char *bracket = strchr(name, '[');
    if (bracket) {
        char *end = strchr(bracket, ']');
        if (!end || end[1] != '\0')
            return err_set(err, ERR_CONFIG, "{%s}: the number goes into [ ]", name);
        *bracket = *end = '\0';
        if (text_int(bracket + 1, 0, INDEX_MAX, &index, err) != 0)
            return err_prefix(err, "{%s[]}", name);
    }
    for (size_t i = 0; i < FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0)
            return add_part(t, (struct part){.field = (int)i, .index = (int)index}, err);
    return unknown_field(name, err);
}

/* compile cuts t->text at its braces. A doubled brace becomes a literal of one. */
static int compile(struct template *t, struct error *err)
{
    for (const char *p = t->text; *p;) {
        size_t n = strcspn(p, "{}");
        if (n == 0 && p[0] == p[1]) {
            if (add_part(t, (struct part){.field = -1, .text = {p, 1}}, err) != 0)
                return -1;
            p += 2;
        } else if (n == 0 && *p == '{') {
            const char *end = strchr(p, '}');
            if (!end)
                return err_set(err, ERR_CONFIG,
                               "a { without its }; write {{ for the character itself");
            if (add_field(t, (struct str){p + 1, (size_t)(end - p - 1)}, err) != 0)
                return -1;
            p = end + 1;
        } else if (n == 0) {
            return err_set(err, ERR_CONFIG, "a } without its {; write }} for the character itself");
        } else {
            if (add_part(t, (struct part){.field = -1, .text = {p, n}}, err) != 0)
                return -1;
            p += n;
        }
    }
    return t->n ? 0 : err_set(err, ERR_CONFIG, "an empty name");
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
        if (t->part[i].field >= 0)
            return false;
    return true;
}

/* piece gives part number `index` of s, cut at dots; absent if there are not so many. */
static struct str piece(struct str s, int index)
{
    for (; s.p; index--) {
        const char *dot = s.n ? memchr(s.p, '.', s.n) : NULL;
        if (index == 0)
            return (struct str){s.p, dot ? (size_t)(dot - s.p) : s.n};
        s = dot ? (struct str){dot + 1, s.n - (size_t)(dot + 1 - s.p)} : (struct str){0};
    }
    return s;
}

int template_write(const struct template *t, const struct event *ev, struct buf *b,
                   struct error *err)
{
    size_t before = b->n, length = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct part *p = &t->part[i];
        struct str s = p->text;
        if (p->field >= 0)
            memcpy(&s, (const char *)ev + fields[p->field].offset, sizeof s);
        if (p->field >= 0 && p->index >= 0)
            s = piece(s, p->index);
        if (!s.p && p->index >= 0)
            return err_set(err, ERR_INVALID,
                           "its %s has no part number %d, which the name of the stream is made of",
                           fields[p->field].name, p->index);
        if (!s.p)
            return err_set(err, ERR_INVALID,
                           "it has no %s, which the name of the stream is made of",
                           fields[p->field].name);
        buf_addstr(b, s);
        length += s.n;
    }
    if (length > b->max)
        return err_set(err, ERR_INVALID,
                       "the name of its stream would have %zu bytes; the limit is %zu", length,
                       b->max);
    if (b->failed)
        return err_nomem(err);
    if (b->n == before)
        return err_set(err, ERR_INVALID, "the name of its stream would be empty");
    if (!text_plain((struct str){b->p + before, b->n - before}))
        return err_set(err, ERR_INVALID,
                       "the name of its stream would have a control character, or be no UTF-8");
    return 0;
}
