/* ini.h: reads [section] and name = value lines. */
#ifndef BASE_INI_H
#define BASE_INI_H

#include <stddef.h>

#include "base/err.h"

/* Called for every setting, in order; `section` is what stands between the brackets with white
 * space trimmed and runs of it folded ("consumer search"); "" before the first section. Called with
 * name == NULL when a section opens. A non-zero return stops; put the reason into err, ini_parse
 * adds file and line. */
typedef int ini_visit(void *ctx, const char *section, const char *name, const char *value,
                      struct error *err);

/* ini_parse reads the text (n bytes, lines of any length, LF or CRLF). A line that starts with '#'
 * or ';' is a comment; there are none behind a value, since values hold expressions and URLs. White
 * space around names and values is trimmed; a value that starts and ends with the only two double
 * quotes in it is taken without them. The same name twice in one section is an error. `where` is
 * the name used in messages: "outbox.conf:12: ...". Errors: ERR_CONFIG, or what visit said,
 * prefixed with where:line. */
int ini_parse(const char *text, size_t n, const char *where, ini_visit *visit, void *ctx,
              struct error *err);

/* ini_read is ini_parse with more to say. *line is the number of the line that is read. Unless
 * `problem` is NULL it goes on after a line that is wrong: `problem` is told of each, and what
 * stands in a section whose heading is wrong is passed over; only want of memory ends it then. Its
 * errors say nothing of file and line. */
typedef void ini_problem(void *ctx, const struct error *err);
struct ini_reading {
    ini_visit *visit;
    ini_problem *problem;
    void *ctx;
    size_t line;
};
int ini_read(struct ini_reading *r, const char *text, size_t n, struct error *err);

/* ini_load reads the file and parses it. ERR_CONFIG if it cannot be read, is over 1 MiB, or has NUL
 * bytes. */
int ini_load(const char *path, ini_visit *visit, void *ctx, struct error *err);

#endif
