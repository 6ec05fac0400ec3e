/* ini.h: reads [section] and name = value lines. */
#ifndef BASE_INI_H
#define BASE_INI_H

#include <stddef.h>

#include "base/err.h"

/* An ini_visit is called for every setting, in order, and with name == NULL when a section opens.
 * `section` is the text between the brackets, with white space trimmed and runs of it folded
 * ("consumer search"); "" before the first section. A non-zero return stops the reading: put the
 * reason into err, ini_parse adds file and line. */
typedef int ini_visit(void *ctx, const char *section, const char *name, const char *value,
                      struct error *err);

/* ini_parse reads the text (n bytes, lines of any length, LF or CRLF). A line that starts with '#'
 * or ';' is a comment; none can follow a value, since values hold expressions and URLs. White space
 * around names and values is trimmed, and so are double quotes around a value that has no others.
 * The same name twice in one section is an error. `where` names the text in messages:
 * "outbox.conf:12: ...". Errors: ERR_CONFIG, or what visit said, prefixed with where:line. */
int ini_parse(const char *text, size_t n, const char *where, ini_visit *visit, void *ctx,
              struct error *err);

/* An ini_problem is called for every line that is wrong. */
typedef void ini_problem(void *ctx, const struct error *err);

/* A text to read, and whom to tell. line is filled in as it is read. */
struct ini_reading {
    ini_visit *visit;
    ini_problem *problem; /* NULL: the first problem ends the reading */
    void *ctx;
    size_t line; /* the number of the line that is being read */
};

/* ini_read is ini_parse that can continue after a wrong line. If r->problem is set, it is called
 * for each one, settings below a wrong heading are skipped, and only running out of memory ends the
 * reading early. Errors do not name file and line. */
int ini_read(struct ini_reading *r, const char *text, size_t n, struct error *err);

/* ini_load reads and parses a file. ERR_CONFIG if it cannot be read, is over 1 MiB, or has NUL
 * bytes. */
int ini_load(const char *path, ini_visit *visit, void *ctx, struct error *err);

#endif
