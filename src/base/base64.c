#include "base/base64.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Writes the four digits of up to three bytes. */
static void encode(const unsigned char *in, size_t n, char out[4])
{
    unsigned char group[3] = {0};
    memcpy(group, in, n);
    out[0] = digits[group[0] >> 2];
    out[1] = digits[(group[0] & 3) << 4 | group[1] >> 4];
    out[2] = digits[(group[1] & 15) << 2 | group[2] >> 6];
    out[3] = digits[group[2] & 63];
    memset(out + 1 + n, '=', 3 - n);
}

void base64_add(struct buf *b, const void *p, size_t n)
{
    const unsigned char *in = p;
    while (n > 0) {
        char out[4];
        size_t taken = n < 3 ? n : 3;
        encode(in, taken, out);
        buf_add(b, out, sizeof out);
        in += taken;
        n -= taken;
    }
}

/* Strips the = padding. */
static struct str without_padding(struct str text)
{
    bool whole = text.n > 0 && text.n % 4 == 0;
    for (int i = 0; whole && i < 2 && text.p[text.n - 1] == '='; i++)
        text.n--;
    return text;
}

/* Returns the value of a base64 digit, -1 for any other character. */
static int value_of(char c)
{
    const char *at = memchr(digits, c, sizeof digits - 1);
    if (!at)
        return -1;
    return (int)(at - digits);
}

/* Appends the decoded bytes; false on a character that is not a digit, or if leftover bits are not
 * zero. */
static bool decode(struct buf *b, struct str text)
{
    unsigned v = 0;
    int bits = 0;
    for (size_t i = 0; i < text.n; i++) {
        int digit = value_of(text.p[i]);
        if (digit < 0)
            return false;
        v = v << 6 | (unsigned)digit;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            buf_addc(b, (char)(v >> bits & 0xff));
        }
    }
    unsigned left_over = v & ((1u << bits) - 1);
    return left_over == 0;
}

bool base64_decode(struct buf *b, struct str text)
{
    size_t start = b->n;
    text = without_padding(text);
    if (text.n % 4 == 1)
        return false; /* six bits are not a whole byte */
    if (decode(b, text))
        return true;
    buf_truncate(b, start);
    return false;
}
