#include "cli/ini.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/utf8.h"

/* A setting read so far; both strings point into the copy of the text. */
struct seen {
    const char *section, *name;
};

/* Parser state. */
struct parser {
    struct ini_reading *r;
    const char *section; /* NULL: bad section header, its settings are skipped */
    struct seen *seen;
    size_t n_seen;
};

/* Trims [p, end), terminates it with a NUL and returns its new start. */
static char *trim(char *p, char *end)
{
    while (p < end && char_is_space(*p))
        p++;
    while (end > p && char_is_space(end[-1]))
        end--;
    *end = '\0';
    return p;
}

/* Collapses each run of white space to one blank. */
static void fold_space(char *s)
{
    char *to = s;
    for (; *s; s++) {
        if (!char_is_space(*s))
            *to++ = *s;
        else if (!char_is_space(s[1]))
            *to++ = ' '; /* end of a run */
    }
    *to = '\0';
}

static int open_section(struct parser *p, char *line, size_t n, struct error *err)
{
    if (line[n - 1] != ']')
        return err_set(err, ERR_CONFIG, "write a section as [name], alone on its line");
    char *name = trim(line + 1, line + n - 1);
    fold_space(name);
    if (!*name)
        return err_set(err, ERR_CONFIG, "the section has no name");
    if (strpbrk(name, "[]"))
        return err_set(err, ERR_CONFIG, "the section's name contains a bracket");
    p->section = name;
    return p->r->visit(p->r->ctx, name, NULL, NULL, err);
}

static int read_setting(struct parser *p, char *line, size_t n, struct error *err)
{
    char *equals = memchr(line, '=', n);
    if (!equals)
        return err_set(err, ERR_CONFIG, "expected name = value");
    char *value = trim(equals + 1, line + n);
    char *name = trim(line, equals);
    if (!*name)
        return err_set(err, ERR_CONFIG, "no name before '='");

    /* A name may be set once per section, even if the section was reopened. */
    for (size_t i = 0; i < p->n_seen; i++) {
        bool same_name = strcmp(p->seen[i].name, name) == 0;
        if (same_name && strcmp(p->seen[i].section, p->section) == 0)
            return err_set(err, ERR_CONFIG, "%s is set twice in this section", name);
    }
    struct seen *more = array_grow(p->seen, p->n_seen, sizeof *more);
    if (!more)
        return err_nomem(err);
    p->seen = more;
    p->seen[p->n_seen++] = (struct seen){p->section, name};

    /* Strip double quotes around a value that contains no others. */
    size_t length = strlen(value);
    bool quoted = length >= 2 && value[0] == '"' && strchr(value + 1, '"') == value + length - 1;
    if (quoted) {
        value[length - 1] = '\0';
        value++;
    }
    return p->r->visit(p->r->ctx, p->section, name, value, err);
}

/* Parses one line; the byte at `end` may be overwritten. */
static int read_line(struct parser *p, char *line, char *end, struct error *err)
{
    if (memchr(line, '\0', (size_t)(end - line)))
        return err_set(err, ERR_CONFIG, "the line contains a NUL byte");

    line = trim(line, end);
    size_t n = strlen(line);
    bool nothing = n == 0 || *line == '#' || *line == ';';
    if (nothing)
        return 0;

    if (*line == '[') {
        if (open_section(p, line, n, err) == 0)
            return 0;
        p->section = NULL;
        return -1;
    }
    if (!p->section)
        return 0;
    return read_setting(p, line, n, err);
}

/* Parses up to stop, a line feed, and overwrites it. */
static int read_lines(struct parser *p, char *at, char *stop, struct error *err)
{
    for (p->r->line = 1; at < stop; p->r->line++) {
        struct error why = {0};
        char *end = memchr(at, '\n', (size_t)(stop - at) + 1);
        bool failed = read_line(p, at, end, &why) != 0;
        bool collected = p->r->problem && why.code != ERR_NOMEM;
        if (failed && collected) {
            p->r->problem(p->r->ctx, &why);
        } else if (failed) {
            if (err)
                *err = why;
            return -1;
        }
        at = end + 1;
    }
    return 0;
}

int ini_read(struct ini_reading *r, const char *text, size_t n, struct error *err)
{
    struct parser p = {.r = r, .section = ""};
    bool mark = n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0; /* a byte order mark */
    if (mark) {
        text += 3;
        n -= 3;
    }

    char *copy = malloc(n + 1);
    if (!copy)
        return err_nomem(err);
    if (n)
        memcpy(copy, text, n);
    copy[n] = '\n';

    int result = read_lines(&p, copy, copy + n, err);
    free(p.seen);
    free(copy);
    return result;
}
