/* text.h: small readers of what people write: durations, sizes, counts, and the nearest name to a
 * mistyped one. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* text_duration reads 250ms, 30s, 5m, 168h, 7d, or a sum such as 1h30m; a bare number is an error
 * except 0, and the message names the units. Result in milliseconds, at most 100 years. */
int text_duration(const char *s, int64_t *ret_ms, struct error *err);
/* text_duration_show writes the shortest exact form ("30s", "1h30m", "250ms", "0s"). */
void text_duration_show(int64_t ms, char out[32]);
/* text_size reads 512, 64KiB, 1MiB, 1GiB (also K, M, G, kB, KB meaning the same powers of 1024), in
 * bytes. */
int text_size(const char *s, int64_t *ret, struct error *err);
/* text_size_show writes the shortest exact form ("1MiB", "1500"). */
void text_size_show(int64_t bytes, char out[32]);
/* text_int reads a whole decimal number within [min, max]. */
int text_int(const char *s, int64_t min, int64_t max, int64_t *ret, struct error *err);
/* text_bool reads yes/no, true/false, on/off, 1/0. */
int text_bool(const char *s, bool *ret, struct error *err);
/* text_nearest returns the entry of names (NULL-terminated) closest to s by edit distance if it is
 * close enough to be what was meant, else NULL. */
const char *text_nearest(const char *s, const char *const *names);
/* text_hint is what to say behind a complaint about a name that is not among names: "; did you mean
 * NAME?" with the nearest, between `before` and `after`, or "; " and `otherwise` where none is
 * near. Each of these may be NULL for nothing. Returns out. */
struct text_hint {
    const char *before, *after, *otherwise;
};
#define TEXT_HINT 400
const char *text_hint(const char *s, const char *const *names, struct text_hint how,
                      char out[TEXT_HINT]);
/* text_clean makes one line, fit for a log, a terminal and a database, of whatever somebody else
 * has said: n bytes at `from`, which may be `out` itself. It is valid UTF-8, without blanks at its
 * ends, and cut to fit `size`, which includes the NUL, behind a whole character. White space and C0
 * control characters become blanks; what is not UTF-8 becomes '?', and so do C1 control characters
 * and those that turn the direction of text. Returns its length. */
size_t text_clean(char *out, size_t size, const char *from, size_t n);
/* text_char gives how many bytes the first character of n at p has, at least 1; *ret_fit: it can be
 * shown to a terminal as it is. Bytes that are no UTF-8, control characters, C1 among them, and
 * those that turn the direction of text cannot. n > 0. */
size_t text_char(const char *p, size_t n, bool *ret_fit);
/* text_plain says whether s is valid UTF-8 without control characters: C0, DEL, C1. */
bool text_plain(struct str s);
/* text_kept is what a store keeps of an error: text_clean of it in out; NULL for NULL. */
#define TEXT_KEPT_MAX 4096
const char *text_kept(const char *said, char out[TEXT_KEPT_MAX]);

#endif
