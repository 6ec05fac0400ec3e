#include "event/normal.h"

#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\n\v\f\r"

/* ---- patterns ---- */

static int in_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* squeeze makes one star of several in a row. */
static void squeeze(char *pattern)
{
    char *to = pattern;
    for (const char *p = pattern; *p; p++)
        if (*p != '*' || p[1] != '*')
            *to++ = *p;
    *to = '\0';
}

/* split cuts the text at its commas; returns how many patterns there are. */
static size_t split(char *text, char **list)
{
    size_t n = 0;
    char *save = NULL;
    for (char *p = strtok_r(text, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        p += strspn(p, BLANKS);
        size_t len = strlen(p);
        while (len > 0 && strchr(BLANKS, p[len - 1]))
            len--;
        p[len] = '\0';
        squeeze(p);
        if (*p)
            list[n++] = p;
    }
    return n;
}

static bool takes_all(char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], "*") == 0)
            return true;
    return false;
}

void normal_events(const char *events, struct buf *out)
{
    size_t most = 1;
    for (const char *p = events; *p; p++)
        most += *p == ',';
    char *text = strdup(events);
    char **list = calloc(most, sizeof *list);
    if (!text || !list) {
        out->failed = true;
    } else {
        size_t n = split(text, list);
        if (takes_all(list, n))
            n = 0;
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
    free(list);
    free(text);
}

/* ---- predicates ---- */

/* string_end: behind a string that begins at p; in apostrophes nothing is an escape. */
static const char *string_end(const char *p)
{
    char quote = *p++;
    while (*p && *p != quote)
        p += quote == '"' && *p == '\\' && p[1] ? 2 : 1;
    return *p ? p + 1 : p;
}

static bool is_quote(char c)
{
    return c == '"' || c == '\'';
}

/* word_end: behind a name, a path, or a literal; of a path, parts may be in quotes. */
static const char *word_end(const char *p)
{
    bool begins = true;
    while (*p && !strchr(BLANKS "()=!", *p)) {
        if (is_quote(*p) && !begins)
            return p;
        bool quoted = is_quote(*p);
        p = quoted ? string_end(p) : p + 1;
        if (quoted && *p != '.')
            return p;
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
