#include "base/num.h"

#include "base/utf8.h"

#define EXPONENT_ENOUGH INT64_C(1000000000000000) /* no payload has enough digits to offset it */
#define INT64_DIGITS 19

/* A parsed number: 0.DIGITS * 10^exp. (1) DIGITS, with any dot skipped, have no leading or trailing
 * zero. (2) Zero has no digits, no sign and exp 0. So equal numbers have equal parts. */
struct decimal {
    bool negative;
    const char *p, *end;
    int64_t exp;
};

/* Parses the exponent, after the e. */
static int64_t exponent_of(const char *p, const char *end)
{
    bool negative = *p == '-';
    if (!char_is_digit(*p))
        p++;

    int64_t v = 0;
    for (; p < end && v < EXPONENT_ENOUGH; p++)
        v = v * 10 + (*p - '0');
    if (negative)
        return -v;
    return v;
}

static bool is_zero_or_dot(char c)
{
    return c == '0' || c == '.';
}

static struct decimal decimal_of(struct str number)
{
    const char *end = number.p + number.n;
    bool negative = number.p[0] == '-';
    const char *first = number.p + negative;
    const char *e = first;
    while (e < end && *e != 'e' && *e != 'E')
        e++;
    int64_t exp = 0;
    if (e < end)
        exp = exponent_of(e + 1, end);
    const char *dot = memchr(first, '.', (size_t)(e - first));
    if (!dot)
        dot = e;

    const char *last = e;
    while (first < last && is_zero_or_dot(*first))
        first++;
    while (last > first && is_zero_or_dot(last[-1]))
        last--;
    if (first == last)
        return (struct decimal){.p = first, .end = first};

    bool below_one = first > dot; /* the dot itself then precedes the first digit */
    exp += dot - first + below_one;
    return (struct decimal){negative, first, last, exp};
}

/* Returns the next digit and advances; -1 after the last. */
static int next_digit(struct decimal *d)
{
    if (d->p < d->end && *d->p == '.')
        d->p++;
    if (d->p == d->end)
        return -1;
    return *d->p++ - '0';
}

bool num_equal(struct str a, struct str b)
{
    struct decimal x = decimal_of(a), y = decimal_of(b);
    if (x.negative != y.negative || x.exp != y.exp)
        return false;

    int digit;
    do {
        digit = next_digit(&x);
        if (digit != next_digit(&y))
            return false;
    } while (digit >= 0);
    return true;
}

bool num_int(struct str number, int64_t *ret)
{
    struct decimal d = decimal_of(number);
    bool fraction = d.exp < 0;
    bool too_long = d.exp > INT64_DIGITS;
    if (fraction || too_long)
        return false;

    int64_t n = 0;
    for (int64_t i = 0; i < d.exp; i++) {
        int digit = next_digit(&d);
        if (digit < 0)
            digit = 0; /* trailing zeros are not stored */
        if (d.negative)
            digit = -digit; /* INT64_MIN has no positive counterpart to count up to */
        if (!num_push(&n, digit))
            return false;
    }
    if (next_digit(&d) >= 0)
        return false; /* it has a fraction */
    *ret = n;
    return true;
}
