/* ini.h: reads [section] and name = value lines. */
#ifndef CLI_INI_H
#define CLI_INI_H

#include <stddef.h>

#include "base/err.h"

/* An ini_visit is called for every setting in order, and with name == NULL when a section opens.
 * `section` is the text between the brackets, trimmed and with runs of white space collapsed
 * ("consumer search"); "" before the first section. A non-zero return is an error in err, without
 * the line. */
typedef int ini_visit(void *ctx, const char *section, const char *name, const char *value,
                      struct error *err);

/* Parser input and its callbacks. */
struct ini_reading {
    ini_visit *visit;
    /* Called for every invalid line; settings under an invalid section header are skipped then.
     * NULL: the first invalid line ends the parsing. */
    void (*problem)(void *ctx, const struct error *err);
    void *ctx;
    size_t line; /* the current line, updated while parsing */
};

/* ini_read parses n bytes of text (lines of any length, LF or CRLF). A line starting with '#' or
 * ';' is a comment; a comment cannot follow a value, since values hold expressions and URLs. White
 * space around names and values is trimmed, and so are double quotes around a value that contains
 * no others. Setting a name twice in one section is an error. Errors: ERR_CONFIG, ERR_NOMEM or the
 * error of visit; they do not name the line. */
int ini_read(struct ini_reading *r, const char *text, size_t n, struct error *err);

#endif
