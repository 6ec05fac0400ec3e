/* ini.h: reads [section] and name = value lines. */
#ifndef BASE_INI_H
#define BASE_INI_H

#include <stddef.h>

#include "base/err.h"

/* An ini_visit is called for every setting in order, and with name == NULL when a section opens.
 * `section` is the text between the brackets, trimmed and with runs of white space collapsed
 * ("consumer search"); "" before the first section. A non-zero return stops parsing: put the reason
 * into err; ini_parse adds file and line. */
typedef int ini_visit(void *ctx, const char *section, const char *name, const char *value,
                      struct error *err);

/* ini_parse parses n bytes of text (lines of any length, LF or CRLF). A line starting with '#' or
 * ';' is a comment; a comment cannot follow a value, since values hold expressions and URLs. White
 * space around names and values is trimmed, and so are double quotes around a value that contains
 * no others. Setting a name twice in one section is an error. `where` names the text in messages:
 * "outbox.conf:12: ...". Errors: ERR_CONFIG or the error of visit, prefixed with where:line. */
int ini_parse(const char *text, size_t n, const char *where, ini_visit *visit, void *ctx,
              struct error *err);

/* An ini_problem is called for every invalid line. */
typedef void ini_problem(void *ctx, const struct error *err);

/* Parser input and its callback. line is updated while parsing. */
struct ini_reading {
    ini_visit *visit;
    ini_problem *problem; /* stop at the first problem */
    void *ctx;
    size_t line; /* current line number */
};

/* ini_read is ini_parse that can continue after an invalid line. If r->problem is set, it is called
 * for each such line, settings under an invalid section header are skipped, and only running out of
 * memory stops parsing early. Errors do not name file and line. */
int ini_read(struct ini_reading *r, const char *text, size_t n, struct error *err);

/* ini_load reads and parses a file. ERR_CONFIG if it cannot be read, is over 1 MiB, or has NUL
 * bytes. */
int ini_load(const char *path, ini_visit *visit, void *ctx, struct error *err);

#endif
