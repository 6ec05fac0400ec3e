/* text.h: parses what people write (durations, sizes, counts, mistyped names), and makes untrusted
 * text safe to show. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

/* text_duration parses 250ms, 30s, 5m, 168h, 7d, or a sum such as 1h30m, into milliseconds, at most
 * 100 years. A number without a unit, other than 0, is an error that lists the units. */
int text_duration(const char *s, int64_t *ret_ms, struct error *err);

/* text_duration_show writes the shortest exact form ("30s", "1h30m", "250ms", "0s"). */
void text_duration_show(int64_t ms, char out[32]);

/* text_size parses 512, 64KiB, 1MiB, 1GiB into bytes; K, KB and kB mean KiB, and likewise for M and
 * G. */
int text_size(const char *s, int64_t *ret, struct error *err);

/* text_size_show writes the shortest exact form ("1MiB", "1500"). */
void text_size_show(int64_t bytes, char out[32]);

/* text_int parses a decimal integer within [min, max]. */
int text_int(const char *s, int64_t min, int64_t max, int64_t *ret, struct error *err);

/* text_bool reads yes/no, true/false, on/off, 1/0. */
int text_bool(const char *s, bool *ret, struct error *err);

/* text_is_slip returns whether s has one letter more, less or other than a name, or two neighbours
 * swapped. */
bool text_is_slip(const char *s, const char *name);
/* text_nearest returns the entry of names (NULL-terminated) closest to s by edit distance; NULL if
 * none is close enough. */
const char *text_nearest(const char *s, const char *const *names);
#define TEXT_HINT 400

/* Wording of a hint; each may be NULL for nothing. */
struct text_hint {
    const char *before, *after; /* around the name */
    const char *otherwise;      /* if no name is close */
};

/* text_hint writes the end of an error about s, which is not among names: "; did you mean NAME?"
 * with the nearest, or else "; " and how.otherwise. Returns out. */
const char *text_hint(const char *s, const char *const *names, struct text_hint how,
                      char out[TEXT_HINT]);

/* text_clean reduces n bytes of untrusted text at `from` to one line that is safe in a log, a
 * terminal and a database. `from` may be `out` itself. The line is valid UTF-8, has no leading or
 * trailing blanks, and is cut at a character boundary to fit `size`, which includes the NUL. White
 * space and C0 control characters become blanks; invalid UTF-8 and characters that are not shown as
 * themselves (see text_show) become '?'. Returns its length. */
size_t text_clean(char *out, size_t size, const char *from, size_t n);

/* text_show appends s for a terminal or a log. A character that is not shown as itself (a control
 * character, one of zero width, one that changes text direction) becomes \uXXXX, or two of them
 * above U+FFFF; so JSON without control characters outside its strings keeps its meaning. Invalid
 * UTF-8 becomes \xNN. ASCII characters in keep are left alone. */
void text_show(struct buf *b, struct str s, const char *keep);
/* text_shown returns whether text_show would leave s unchanged. */
bool text_shown(struct str s, const char *keep);

/* text_is_variable returns whether s can name an environment variable: letters, digits and
 * underscores, the first not a digit. */
bool text_is_variable(struct str s);

/* text_plain returns whether s is valid UTF-8 without control characters: C0, DEL, C1. */
bool text_plain(struct str s);

#define TEXT_KEPT_MAX 4096

/* text_kept cleans an error's text by text_clean, as stores keep it. Returns out, or NULL for
 * NULL. */
const char *text_kept(const char *said, char out[TEXT_KEPT_MAX]);

#endif
