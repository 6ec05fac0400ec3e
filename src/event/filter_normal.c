/* filter_normal.c: the normal form of filters. */
#include <stdlib.h>
#include <string.h>

#include "event/filter.h"

#define BLANKS " \t\n\v\f\r"

/* ---- patterns ---- */

/* Trims a pattern in place, and collapses runs of stars to one. */
static char *normal_pattern(char *p)
{
    p += strspn(p, BLANKS);
    size_t n = strlen(p);
    while (n > 0 && strchr(BLANKS, p[n - 1]))
        n--;
    p[n] = '\0';

    char *to = p;
    for (const char *from = p; *from; from++)
        if (*from != '*' || from[1] != '*')
            *to++ = *from;
    *to = '\0';
    return p;
}

static int in_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void filter_normal_events(const char *events, struct buf *out)
{
    size_t most = 1, n = 0; /* upper bound on the number of patterns, by the commas between them */
    for (const char *p = events; *p; p++)
        most += *p == ',';
    char *text = strdup(events), *save = NULL;
    char **list = calloc(most, sizeof *list);
    bool all = false;
    if (!text || !list) {
        out->failed = true;
        goto done;
    }

    for (char *p = strtok_r(text, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        char *pattern = normal_pattern(p);
        if (strcmp(pattern, "*") == 0)
            all = true;
        if (*pattern)
            list[n++] = pattern;
    }
    if (all)
        goto done;
    qsort(list, n, sizeof *list, in_order);
    for (size_t i = 0; i < n; i++) {
        bool again = i > 0 && strcmp(list[i], list[i - 1]) == 0;
        if (again)
            continue;
        if (i > 0)
            buf_adds(out, ", ");
        buf_adds(out, list[i]);
    }
done:
    free(list);
    free(text);
}

/* ---- predicates ---- */

/* Returns the end of the string that begins at p. Only between double quotes is a backslash an
 * escape. */
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

/* Returns the end of a name, a path or a literal. A string is a separate word or a segment of a
 * path. */
static const char *word_end(const char *p)
{
    bool begins = true; /* p is at the start of a segment */
    while (*p && !strchr(BLANKS "()=!", *p)) {
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

void filter_normal_where(const char *where, struct buf *out)
{
    char before = '(';
    for (const char *p = where + strspn(where, BLANKS); *p; p += strspn(p, BLANKS)) {
        const char *end;
        if (*p == '!' && p[1] == '=')
            end = p + 2;
        else if (strchr("()=!", *p))
            end = p + 1;
        else
            end = word_end(p);
        bool inside = before == '(' || *p == ')';
        if (!inside)
            buf_addc(out, ' ');
        buf_add(out, p, (size_t)(end - p));
        before = *p;
        p = end;
    }
}
