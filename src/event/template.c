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

/* A literal, or a field of an event. (1) field < 0 means the literal `text`. (2) index < 0 means
 * the whole field. */
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

static int find_field(const char *name)
{
    for (size_t i = 0; i < FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* cut_index cuts [N] off the name; *ret is N, or -1 if the name has none. */
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

/* add_field takes what is between braces: a name, or a name and [N]. */
static int add_field(struct template *t, struct str text, struct error *err)
{
    char name[64];
    if (text.n >= sizeof name)
        return err_set(err, ERR_CONFIG, "unknown field; there are " TEMPLATE_FIELDS);
    memcpy(name, text.p, text.n);
    name[text.n] = '\0';

    int64_t index;
    if (cut_index(name, &index, err) != 0)
        return -1;
    int field = find_field(name);
    if (field < 0)
        return unknown_field(name, err);
    return add_part(t, (struct part){.field = field, .index = (int)index}, err);
}

static int add_literal(struct template *t, const char *p, size_t n, struct error *err)
{
    return add_part(t, (struct part){.field = -1, .text = {p, n}}, err);
}

/* add_brace takes what begins with the brace at *p, and steps over it: a doubled brace, which is a
 * literal of one, or a field. */
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

/* compile cuts t->text at its braces. */
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
        if (t->part[i].field >= 0)
            return false;
    return true;
}

/* piece returns part number `index` of s, cut at dots; absent if there are fewer. */
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

/* part_of returns what a part of the name is for this event; absent if the event lacks it. */
static struct str part_of(const struct part *p, const struct event *ev)
{
    if (p->field < 0)
        return p->text;
    struct str field;
    memcpy(&field, (const char *)ev + fields[p->field].offset, sizeof field);
    if (p->index < 0)
        return field;
    return piece(field, p->index);
}

static int lacks_part(const struct part *p, struct error *err)
{
    const char *name = fields[p->field].name;
    if (p->index < 0)
        return err_set(err, ERR_INVALID, "it has no %s, which the name of the stream is made of",
                       name);
    return err_set(err, ERR_INVALID,
                   "its %s has no part number %d, which the name of the stream is made of", name,
                   p->index);
}

/* template_write may leave a part of the name in b if it fails. */
int template_write(const struct template *t, const struct event *ev, struct buf *b,
                   struct error *err)
{
    size_t before = b->n, length = 0;
    for (size_t i = 0; i < t->n; i++) {
        struct str s = part_of(&t->part[i], ev);
        if (!s.p)
            return lacks_part(&t->part[i], err);
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
                       "the name of its stream would have a control character, or not be UTF-8");
    return 0;
}
