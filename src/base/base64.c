#include "base/base64.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_add(struct buf *b, const void *p, size_t n)
{
    const unsigned char *in = p;
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        unsigned v = (unsigned)in[i] << 16 | (left > 1 ? (unsigned)in[i + 1] << 8 : 0) |
                     (left > 2 ? in[i + 2] : 0);
        char out[4] = {digits[v >> 18], digits[v >> 12 & 63], left > 1 ? digits[v >> 6 & 63] : '=',
                       left > 2 ? digits[v & 63] : '='};
        buf_add(b, out, 4);
    }
}

bool base64_decode(struct buf *b, struct str text)
{
    size_t start = b->n, n = text.n;
    unsigned v = 0;
    int bits = 0;
    if (n % 4 == 0 && n && text.p[n - 1] == '=')
        n -= text.p[n - 2] == '=' ? 2 : 1;
    if (n % 4 == 1)
        return false;
    for (size_t i = 0; i < n; i++) {
        const char *d = text.p[i] ? strchr(digits, text.p[i]) : NULL;
        if (!d)
            goto bad;
        v = v << 6 | (unsigned)(d - digits);
        bits += 6;
        if (bits < 8)
            continue;
        bits -= 8;
        buf_addc(b, (char)(v >> bits & 0xff));
    }
    if ((v & ((1u << bits) - 1)) == 0)
        return true; /* the bits left over must be 0 */
bad:
    buf_truncate(b, start);
    return false;
}
