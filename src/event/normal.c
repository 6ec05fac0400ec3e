#include "event/normal.h"

#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\n\v\f\r"

/* ---- patterns ---- */

static int in_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Collapses runs of stars to one. */
static void squeeze(char *pattern)
{
    char *to = pattern;
    for (const char *p = pattern; *p; p++)
        if (*p != '*' || p[1] != '*')
            *to++ = *p;
    *to = '\0';
}

/* Trims p in place. */
static char *trim(char *p)
{
    p += strspn(p, BLANKS);
    size_t n = strlen(p);
    while (n > 0 && strchr(BLANKS, p[n - 1]))
        n--;
    p[n] = '\0';
    return p;
}

/* Splits the text at its commas into patterns and returns how many there are. */
static size_t split(char *text, char **list)
{
    size_t n = 0;
    char *save = NULL;
    for (char *p = strtok_r(text, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        char *pattern = trim(p);
        squeeze(pattern);
        if (*pattern)
            list[n++] = pattern;
    }
    return n;
}

static bool means_all(char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], "*") == 0)
            return true;
    return false;
}

/* Appends the patterns in order, without duplicates. */
static void add_sorted(struct buf *out, char **list, size_t n)
{
    qsort(list, n, sizeof *list, in_order);
    for (size_t i = 0; i < n; i++) {
        bool again = i > 0 && strcmp(list[i], list[i - 1]) == 0;
        if (again)
            continue;
        if (i > 0)
            buf_adds(out, ", ");
        buf_adds(out, list[i]);
    }
}

void normal_events(const char *events, struct buf *out)
{
    char *text = strdup(events);
    size_t most = 1; /* upper bound of patterns, by the commas between them */
    for (const char *p = events; *p; p++)
        most += *p == ',';
    char **list = calloc(most, sizeof *list);
    if (text && list) {
        size_t n = split(text, list);
        if (!means_all(list, n))
            add_sorted(out, list, n);
    } else {
        out->failed = true;
    }
    free(list);
    free(text);
}

/* ---- predicates ---- */

/* Returns the end of the string that begins at p. A backslash is an escape only between double
 * quotes. */
static const char *string_end(const char *p)
{
    char quote = *p;
    for (p++; *p && *p != quote; p++) {
        bool escape = quote == '"' && *p == '\\' && p[1];
        if (escape)
            p++;
    }
    if (*p)
        p++;
    return p;
}

static bool ends_word(char c)
{
    return c == '\0' || strchr(BLANKS "()=!", c);
}

/* Returns the end of a name, a path or a literal. A string is a word of its own, or a segment of a
 * path. */
static const char *word_end(const char *p)
{
    bool begins = true; /* p is at the start of a segment */
    while (!ends_word(*p)) {
        bool quote = *p == '"' || *p == '\'';
        if (quote) {
            if (!begins)
                return p;
            p = string_end(p);
            if (*p != '.')
                return p;
        } else {
            p++;
        }
        begins = p[-1] == '.';
    }
    return p;
}

static const char *token_end(const char *p)
{
    if (*p == '!' && p[1] == '=')
        return p + 2;
    if (strchr("()=!", *p))
        return p + 1;
    return word_end(p);
}

void normal_where(const char *where, struct buf *out)
{
    char before = '(';
    for (const char *p = where + strspn(where, BLANKS); *p; p += strspn(p, BLANKS)) {
        const char *end = token_end(p);
        bool inside = before == '(' || *p == ')';
        if (!inside)
            buf_addc(out, ' ');
        buf_add(out, p, (size_t)(end - p));
        before = *p;
        p = end;
    }
}
