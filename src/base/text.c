#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/num.h"
#include "base/utf8.h"

#define DURATION_MAX_MS (INT64_C(36525) * 86400000) /* 100 years */
#define NAME_MAX_LEN 64                             /* longer than any name, even with a typo */

/* A unit, and its value in the smallest one. */
struct unit {
    const char *name;
    int64_t factor;
};

/* Largest first: text_duration_show goes down the list. */
static const struct unit durations[] = {
    {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}, {NULL, 0},
};

/* Names used by text_size_show come first. */
static const struct unit sizes[] = {
    {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"G", 1 << 30},
    {"M", 1 << 20},   {"K", 1 << 10},   {"GB", 1 << 30},  {"MB", 1 << 20},
    {"KB", 1 << 10},  {"kB", 1 << 10},  {NULL, 0},
};

/* Parses a number at *p and advances. False if there is none; one that is too large becomes
 * INT64_MAX. */
static bool read_digits(const char **p, int64_t *ret)
{
    if (!char_is_digit(**p))
        return false;

    char *end;
    *ret = strtoll(*p, &end, 10); /* INT64_MAX if it is too large */
    *p = end;
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

/* Parses a number and its unit at *p, advances, and adds them to *sum; s is the whole text. */
static int add_span(const char *s, const char **p, int64_t *sum, struct error *err)
{
    int64_t v;
    if (!read_digits(p, &v))
        return not_duration(s, err);
    size_t n = strcspn(*p, "0123456789");
    if (n == 0)
        return err_set(err, ERR_CONFIG,
                       "\"%s\" has no unit: write ms, s, m, h or d after the number", s);
    const struct unit *u = find_unit(durations, *p, n);
    if (!u)
        return not_duration(s, err);
    *p += n;

    if (__builtin_mul_overflow(v, u->factor, &v) || v > DURATION_MAX_MS - *sum)
        return err_set(err, ERR_CONFIG, "\"%s\" is more than 100 years", s);
    *sum += v;
    return 0;
}

int text_duration(const char *s, int64_t *ret_ms, struct error *err)
{
    int64_t sum = 0;
    if (strcmp(s, "0") != 0) {
        const char *p = s;
        do {
            if (add_span(s, &p, &sum, err) != 0)
                return -1;
        } while (*p);
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
    uint64_t rest = ms < 0 ? 0 - (uint64_t)ms : (uint64_t)ms; /* works for INT64_MIN */
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
                           "\"%s\" has an unknown unit: write KiB, MiB or GiB, or a number of "
                           "bytes without a unit",
                           s);
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
    const char *digits = s + (*s == '-');
    if (!*digits || digits[strspn(digits, "0123456789")] != '\0')
        return err_set(err, ERR_CONFIG, "\"%s\" is not a whole number", s);

    errno = 0;
    int64_t v = strtoll(s, NULL, 10);
    if (errno != 0 || v < min || v > max)
        return err_set(err, ERR_CONFIG,
                       "%s is out of range: it must be from %" PRId64 " to %" PRId64, s, min, max);
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

/* Edit distance from a to b, counting a swap of neighbours as one. Both have at most NAME_MAX_LEN
 * letters. */
static size_t distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t rows[3][NAME_MAX_LEN + 1];
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= nb; j++)
        last[j] = j;

    for (size_t i = 1; i <= na; i++) {
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t one_more = min_size(last[j], row[j - 1]) + 1;
            size_t changed = last[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = min_size(one_more, changed);
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped)
                row[j] = min_size(row[j], before[j - 2] + 1);
        }

        size_t *spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[nb];
}

bool text_is_slip(const char *s, const char *name)
{
    size_t n = strlen(s), len = strlen(name);
    return n <= NAME_MAX_LEN && len <= NAME_MAX_LEN && distance(s, n, name, len) == 1;
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
        size_t longer = n > len ? n : len;
        size_t allowed = (longer + 1) / 3; /* a third of the letters may be wrong */
        size_t d = distance(s, n, *names, len);
        if (d <= allowed && d < best_distance) {
            best = *names;
            best_distance = d;
        }
    }
    return best;
}

const char *text_hint(const char *s, const char *const *names, struct text_hint how,
                      char out[TEXT_HINT])
{
    const char *near = text_nearest(s, names);
    const char *before = how.before ? how.before : "", *after = how.after ? how.after : "";
    out[0] = '\0';
    if (near)
        snprintf(out, TEXT_HINT, "; did you mean %s%s%s?", before, near, after);
    else if (how.otherwise)
        snprintf(out, TEXT_HINT, "; %s", how.otherwise);
    return out;
}

/* Characters that are not shown as themselves, in ascending order: control and format characters
 * (Cc, Cf), line separators (Zl, Zp), other default-ignorable ones, a blank that is not a space,
 * private use, noncharacters, and unassigned planes. Terminals interpret them, hide them or draw
 * anything, so text containing them reads differently from what it is. */
static const struct {
    uint32_t least, most;
} unshown[] = {
    {0x00, 0x1f},        {0x7f, 0x9f},       {0xad, 0xad},       {0x34f, 0x34f},
    {0x600, 0x605},      {0x61c, 0x61c},     {0x6dd, 0x6dd},     {0x70f, 0x70f},
    {0x890, 0x891},      {0x8e2, 0x8e2},     {0x115f, 0x1160},   {0x17b4, 0x17b5},
    {0x180b, 0x180f},    {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},
    {0x2800, 0x2800},    {0x3164, 0x3164},   {0xe000, 0xf8ff},   {0xfdd0, 0xfdef},
    {0xfe00, 0xfe0f},    {0xfeff, 0xfeff},   {0xffa0, 0xffa0},   {0xfff0, 0xfffb},
    {0xfffe, 0xffff},    {0x110bd, 0x110bd}, {0x110cd, 0x110cd}, {0x13430, 0x1343f},
    {0x1bca0, 0x1bca3},  {0x1d173, 0x1d17a}, {0x1fffe, 0x1ffff}, {0x2fffe, 0x2ffff},
    {0x3fffe, 0x10ffff},
};

static bool is_shown(uint32_t c)
{
    for (size_t i = 0; i < sizeof unshown / sizeof *unshown; i++)
        if (c <= unshown[i].most)
            return c < unshown[i].least;
    return true;
}

/* Decodes the first character of the n > 0 bytes at p and returns its length; 0 if it is not
 * UTF-8. */
static size_t read_char(const char *p, size_t n, uint32_t *ret)
{
    size_t length = 1;
    *ret = (unsigned char)*p;
    if (*ret >= 0x80) {
        length = utf8_length(p, p + n);
        if (length > 0)
            *ret = utf8_code(p, length);
    }
    return length;
}

/* Returns the replacement for the first character of the n > 0 bytes at p, and its length in bytes:
 * invalid UTF-8 is replaced byte by byte. */
static struct str clean_char(const char *p, size_t n, size_t *ret_length)
{
    uint32_t c;
    size_t length = read_char(p, n, &c);
    *ret_length = length > 0 ? length : 1;
    bool blank = length == 1 && (*p == ' ' || char_is_control(*p));
    if (blank)
        return STR(" ");
    if (length == 0 || !is_shown(c))
        return STR("?");
    return (struct str){p, length};
}

size_t text_clean(char *out, size_t size, const char *from, size_t n)
{
    size_t to = 0;
    for (size_t at = 0; at < n;) {
        size_t length;
        struct str c = clean_char(from + at, n - at, &length);
        if (to + c.n >= size)
            break;

        bool leading = to == 0 && c.p[0] == ' ';
        if (!leading) {
            memmove(out + to, c.p, c.n);
            to += c.n;
        }
        at += length;
    }

    while (to > 0 && out[to - 1] == ' ')
        to--;
    if (size > 0)
        out[to] = '\0';
    return to;
}

/* Whether the character of this length at p (0 if it is not UTF-8) is kept as is. */
static bool stays(const char *p, size_t length, uint32_t c, const char *keep)
{
    if (length == 0)
        return false;
    if (is_shown(c))
        return true;
    return length == 1 && *p && strchr(keep, *p);
}

bool text_shown(struct str s, const char *keep)
{
    size_t length;
    for (size_t at = 0; at < s.n; at += length) {
        uint32_t c;
        length = read_char(s.p + at, s.n - at, &c);
        if (!stays(s.p + at, length, c, keep))
            return false;
    }
    return true;
}

/* Writes a character as a JSON escape, or an invalid byte as \xNN. */
static void add_escape(struct buf *b, size_t length, uint32_t c)
{
    if (length == 0)
        buf_addf(b, "\\x%02x", (unsigned)c);
    else if (c < 0x10000)
        buf_addf(b, "\\u%04x", (unsigned)c);
    else
        buf_addf(b, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (c >> 10)),
                 (unsigned)(0xdc00 + (c & 0x3ff)));
}

void text_show(struct buf *b, struct str s, const char *keep)
{
    size_t from = 0, length;
    for (size_t at = 0; at < s.n; at += length) {
        uint32_t c;
        length = read_char(s.p + at, s.n - at, &c);
        if (stays(s.p + at, length, c, keep))
            continue;

        buf_add(b, s.p + from, at - from);
        add_escape(b, length, c);
        if (length == 0)
            length = 1;
        from = at + length;
    }
    if (s.n > from)
        buf_add(b, s.p + from, s.n - from);
}

bool text_plain(struct str s)
{
    if (!utf8_valid(s, NULL))
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (char_is_control(s.p[i]) || char_is_c1(s.p + i))
            return false;
    return true;
}

bool text_is_variable(struct str s)
{
    if (s.n == 0 || char_is_digit(s.p[0]))
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!char_is_name(s.p[i]))
            return false;
    return true;
}

const char *text_kept(const char *said, char out[TEXT_KEPT_MAX])
{
    if (!said)
        return NULL;
    text_clean(out, TEXT_KEPT_MAX, said, strnlen(said, TEXT_KEPT_MAX));
    return out;
}
