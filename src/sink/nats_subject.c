#include "sink/nats_subject.h"

#include <stdio.h>

/* Consumes a part of a template: a field, a doubled brace, or plain text. The template is known to
 * be well-formed. */
static struct str next_part(const char **p)
{
    const char *from = *p;
    size_t n = strcspn(from, "{}");
    if (n == 0 && from[0] == from[1])
        n = 2;
    else if (n == 0)
        n = strcspn(from, "}") + 1;
    *p = from + n;
    return (struct str){from, n};
}

static bool is_field(struct str part)
{
    return part.n > 2 && part.p[0] == '{' && part.p[1] != '{';
}

/* Writes the template with `field` in place of each field. */
static void sample(const char *text, char field, struct buf *b)
{
    while (*text) {
        struct str part = next_part(&text);
        if (is_field(part))
            buf_addc(b, field);
        else if (part.p[0] == '{' || part.p[0] == '}')
            buf_addc(b, part.p[0]);
        else
            buf_addstr(b, part);
    }
}

int nats_subject_check(const char *text, struct error *err)
{
    char room[NATS_SUBJECT_MAX + 1];
    struct buf b;
    buf_init(&b, NATS_SUBJECT_MAX);
    sample(text, 'x', &b);
    snprintf(room, sizeof room, "%.*s", (int)b.n, b.p ? b.p : "");
    bool too_long = b.failed;
    buf_release(&b);

    if (too_long)
        return err_set(err, ERR_CONFIG, "the subject is too long");
    if (room[0] == '\0')
        return err_set(err, ERR_CONFIG,
                       "which subject? write nats://HOST/SUBJECT?stream=NAME, where SUBJECT may "
                       "have " TEMPLATE_FIELDS);
    if (strpbrk(room, " \t*>"))
        return err_set(err, ERR_CONFIG,
                       "the subject \"%s\" has a blank, * or >; events go to one subject each",
                       room);
    bool empty_token = room[0] == '.' || room[strlen(room) - 1] == '.' || strstr(room, "..");
    if (empty_token)
        return err_set(err, ERR_CONFIG, "the subject \"%s\" has an empty part between its dots",
                       room);
    if (room[0] == '$')
        return err_set(err, ERR_CONFIG, "subjects with a $ in front are the server's own");
    return 0;
}

static bool is_levels(struct str part)
{
    return str_is(part, "{type}");
}

/* Token by token: one containing a field becomes *, and one containing a whole type, which has any
 * number of levels, ends the pattern. */
void nats_subject_pattern(const char *text, struct buf *b)
{
    size_t token = b->n; /* start of the current token */
    bool any = false;    /* it contains a field */
    while (*text) {
        struct str part = next_part(&text);
        if (is_levels(part)) {
            buf_truncate(b, token);
            buf_addc(b, '>');
            return;
        }
        if (is_field(part)) {
            any = true;
            continue;
        }
        for (size_t i = 0; i < part.n; i++) {
            bool doubled = i == 1 && (part.p[0] == '{' || part.p[0] == '}');
            if (doubled)
                continue;
            if (part.p[i] != '.') {
                buf_addc(b, part.p[i]);
                continue;
            }
            if (any) {
                buf_truncate(b, token);
                buf_addc(b, '*');
            }
            buf_addc(b, '.');
            token = b->n;
            any = false;
        }
    }
    if (any) {
        buf_truncate(b, token);
        buf_addc(b, '*');
    }
}

/* Whether the dot at s[i] separates two non-empty tokens. */
static bool parts_levels(struct str s, size_t i)
{
    bool at_end = i == 0 || i + 1 == s.n;
    return !at_end && s.p[i - 1] != '.' && s.p[i + 1] != '.';
}

void nats_subject_escape(struct buf *b, struct str value, bool levels)
{
    for (size_t i = 0; i < value.n; i++) {
        unsigned char c = (unsigned char)value.p[i];
        bool level = c == '.' && levels && parts_levels(value, i);
        bool unfit = c <= ' ' || c == 0x7f || strchr("*>%.", c);
        if (level || !unfit)
            buf_addc(b, (char)c);
        else
            buf_addf(b, "%%%02X", c);
    }
}

bool nats_subject_whole(struct str subject)
{
    char last = '.';
    for (size_t i = 0; i < subject.n; i++) {
        bool empty = subject.p[i] == '.' && last == '.';
        if (empty)
            return false;
        last = subject.p[i];
    }
    return last != '.';
}
