#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/char.h"
#include "base/json.h"

#define DURATION_MAX_MS (INT64_C(36525) * 86400000) /* 100 years */
#define NAME_MAX_LEN 64                             /* longer names are nobody's typing mistake */

struct unit {
    const char *name;
    int64_t factor;
};

/* Largest first: text_duration_show goes down the list. */
static const struct unit durations[] = {
    {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}, {NULL, 0},
};

/* The names text_size_show uses come first. */
static const struct unit sizes[] = {
    {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"G", 1 << 30},
    {"M", 1 << 20},   {"K", 1 << 10},   {"GB", 1 << 30},  {"MB", 1 << 20},
    {"KB", 1 << 10},  {"kB", 1 << 10},  {NULL, 0},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* read_digits reads a number at *p and steps over it. False if there is none; too large a one
 * becomes INT64_MAX. */
static bool read_digits(const char **p, int64_t *ret)
{
    if (!is_digit(**p))
        return false;
    int64_t v = 0;
    for (; is_digit(**p); ++*p)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, **p - '0', &v))
            v = INT64_MAX;
    *ret = v;
    return true;
}

static const struct unit *find_unit(const struct unit *units, const char *s, size_t n)
{
    for (; units->name; units++)
        if (strlen(units->name) == n && memcmp(units->name, s, n) == 0)
            return units;
    return NULL;
}

static int not_duration(const char *s, struct error *err)
{
    return err_set(
        err, ERR_CONFIG,
        "\"%s\" is not a duration: write a number and ms, s, m, h or d, such as 30s or 1h30m", s);
}

int text_duration(const char *s, int64_t *ret_ms, struct error *err)
{
    int64_t sum = 0;
    if (strcmp(s, "0") == 0) {
        *ret_ms = 0;
        return 0;
    }
    for (const char *p = s; p == s || *p;) {
        int64_t v;
        if (!read_digits(&p, &v))
            return not_duration(s, err);
        size_t n = 0;
        while (p[n] && !is_digit(p[n]))
            n++;
        if (n == 0)
            return err_set(err, ERR_CONFIG,
                           "\"%s\" has no unit: write ms, s, m, h or d behind the number", s);
        const struct unit *u = find_unit(durations, p, n);
        if (!u)
            return not_duration(s, err);
        if (__builtin_mul_overflow(v, u->factor, &v) || v > DURATION_MAX_MS - sum)
            return err_set(err, ERR_CONFIG, "\"%s\" is more than 100 years", s);
        sum += v;
        p += n;
    }
    *ret_ms = sum;
    return 0;
}

void text_duration_show(int64_t ms, char out[32])
{
    size_t n = 0;
    if (ms == 0) {
        memcpy(out, "0s", sizeof "0s");
        return;
    }
    if (ms < 0)
        out[n++] = '-';
    uint64_t rest = ms < 0 ? 0 - (uint64_t)ms : (uint64_t)ms;
    for (const struct unit *u = durations; u->name; u++) {
        uint64_t count = rest / (uint64_t)u->factor;
        rest %= (uint64_t)u->factor;
        if (count)
            n += (size_t)snprintf(out + n, 32 - n, "%" PRIu64 "%s", count, u->name);
    }
}

int text_size(const char *s, int64_t *ret, struct error *err)
{
    const char *p = s;
    int64_t v, factor = 1;
    if (!read_digits(&p, &v))
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not a size: write bytes, or a number and KiB, MiB or GiB", s);
    if (*p) {
        const struct unit *u = find_unit(sizes, p, strlen(p));
        if (!u)
            return err_set(err, ERR_CONFIG,
                           "\"%s\" has an unknown unit: write KiB, MiB or GiB, or bytes alone", s);
        factor = u->factor;
    }
    if (v == INT64_MAX || __builtin_mul_overflow(v, factor, &v))
        return err_set(err, ERR_CONFIG, "\"%s\" is too large", s);
    *ret = v;
    return 0;
}

void text_size_show(int64_t bytes, char out[32])
{
    for (const struct unit *u = sizes; u < sizes + 3; u++) {
        if (bytes == 0 || bytes % u->factor)
            continue;
        snprintf(out, 32, "%" PRId64 "%s", bytes / u->factor, u->name);
        return;
    }
    snprintf(out, 32, "%" PRId64, bytes);
}

int text_int(const char *s, int64_t min, int64_t max, int64_t *ret, struct error *err)
{
    const char *p = s + (*s == '-');
    int64_t v = 0;
    bool over = false;
    if (!is_digit(*p))
        return err_set(err, ERR_CONFIG, "\"%s\" is not a whole number", s);
    for (; is_digit(*p); p++) {
        int digit = *s == '-' ? -(*p - '0') : *p - '0';
        over = over || __builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, digit, &v);
    }
    if (*p)
        return err_set(err, ERR_CONFIG, "\"%s\" is not a whole number", s);
    if (over || v < min || v > max)
        return err_set(err, ERR_CONFIG, "%s is out of range: it goes from %" PRId64 " to %" PRId64,
                       s, min, max);
    *ret = v;
    return 0;
}

int text_bool(const char *s, bool *ret, struct error *err)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(s, words[i]) != 0)
            continue;
        *ret = i % 2;
        return 0;
    }
    return err_set(err, ERR_CONFIG, "\"%s\" is neither yes nor no", s);
}

static size_t least(size_t a, size_t b, size_t c)
{
    if (b < a)
        a = b;
    return c < a ? c : a;
}

/* distance counts the letters to insert, drop, change or swap with their neighbour to get from a to
 * b. Both are at most NAME_MAX_LEN long. */
static size_t distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t rows[3][NAME_MAX_LEN + 1];
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= nb; j++)
        last[j] = j;
    for (size_t i = 1; i <= na; i++) {
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            row[j] = least(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        size_t *spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[nb];
}

const char *text_nearest(const char *s, const char *const *names)
{
    const char *best = NULL;
    size_t n = strlen(s), best_distance = SIZE_MAX;
    if (n > NAME_MAX_LEN)
        return NULL;
    for (; *names; names++) {
        size_t len = strlen(*names);
        if (len > NAME_MAX_LEN)
            continue;
        size_t d = distance(s, n, *names, len);
        size_t close = ((n > len ? n : len) + 1) / 3; /* a third of the letters may be wrong */
        if (d > close || d >= best_distance)
            continue;
        best = *names;
        best_distance = d;
    }
    return best;
}

static const char *or_nothing(const char *s)
{
    return s ? s : "";
}

const char *text_hint(const char *s, const char *const *names, struct text_hint how,
                      char out[TEXT_HINT])
{
    const char *near = text_nearest(s, names);
    out[0] = '\0';
    if (near)
        snprintf(out, TEXT_HINT, "; did you mean %s%s%s?", or_nothing(how.before), near,
                 or_nothing(how.after));
    else if (how.otherwise)
        snprintf(out, TEXT_HINT, "; %s", how.otherwise);
    return out;
}

/* char_length is how many bytes the character at p has, of n that are there; 0: it is none. */
static size_t char_length(const char *p, size_t n)
{
    unsigned char c = (unsigned char)*p;
    size_t length = 2;
    if (c < 0x80)
        return 1;
    if (c >= 0xe0)
        length = 3;
    if (c >= 0xf0)
        length = 4;
    if (length > n || !utf8_valid((struct str){p, length}, NULL))
        return 0;
    return length;
}

/* is_harmful: C1 control characters are escape sequences to a terminal, and text whose direction
 * was turned reads as what it is not. */
static bool is_harmful(const char *p, size_t length)
{
    const unsigned char *c = (const unsigned char *)p;
    if (length == 2)
        return char_is_c1(p);
    if (length != 3 || c[0] != 0xe2)
        return false;
    bool separator = c[1] == 0x80 && c[2] >= 0xa8 && c[2] <= 0xae; /* U+2028 to U+202E */
    bool isolate = c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9;   /* U+2066 to U+2069 */
    return separator || isolate;
}

size_t text_clean(char *out, size_t size, const char *from, size_t n)
{
    size_t to = 0;
    for (size_t at = 0; at < n;) {
        size_t length = char_length(from + at, n - at);
        bool blank = length == 1 && (from[at] == ' ' || char_is_control(from[at]));
        bool bad = length == 0 || is_harmful(from + at, length);
        size_t taken = length ? length : 1, put = bad || blank ? 1 : length;

        if (to + put >= size)
            break;
        if (blank)
            out[to] = ' ';
        else if (bad)
            out[to] = '?';
        else
            memmove(out + to, from + at, put);
        at += taken;
        if (!blank || to > 0)
            to += put; /* none at the beginning */
    }
    while (to > 0 && out[to - 1] == ' ')
        to--;
    if (size > 0)
        out[to] = '\0';
    return to;
}

size_t text_char(const char *p, size_t n, bool *ret_fit)
{
    size_t length = char_length(p, n);
    *ret_fit = length > 0 && !char_is_control(*p) && !is_harmful(p, length);
    return length ? length : 1;
}

bool text_plain(struct str s)
{
    if (!utf8_valid(s, NULL))
        return false;
    for (size_t i = 0; i < s.n; i++) {
        bool control = char_is_control(s.p[i]) || char_is_c1(s.p + i);
        if (control)
            return false;
    }
    return true;
}

const char *text_kept(const char *said, char out[TEXT_KEPT_MAX])
{
    if (!said)
        return NULL;
    text_clean(out, TEXT_KEPT_MAX, said, strnlen(said, TEXT_KEPT_MAX));
    return out;
}
