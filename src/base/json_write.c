/* json_write.c: writes JSON. */
#include <string.h>

#include "base/json_impl.h"

/* add_escape writes a character that a string cannot hold as it is. Seven of them have a short
 * escape. */
static void add_escape(struct buf *b, unsigned char c)
{
    static const char hex[] = "0123456789abcdef", from[] = "\b\f\n\r\t\"\\", to[] = "bfnrt\"\\";
    const char *at = memchr(from, c, sizeof from - 1);
    if (at) {
        buf_add(b, (char[]){'\\', to[at - from]}, 2);
    } else {
        buf_add(b, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
    }
}

/* quote_escaped is json_quote for a string whose first byte to escape is at `stop`. */
static void quote_escaped(struct buf *b, const char *p, const char *stop, const char *end)
{
    buf_addc(b, '"');
    while (stop < end) {
        buf_add(b, p, (size_t)(stop - p));
        add_escape(b, (unsigned char)*stop);
        p = stop + 1;
        stop = json_skip_plain(p, end);
    }
    buf_add(b, p, (size_t)(end - p));
    buf_addc(b, '"');
}

void json_quote(struct buf *b, struct str s)
{
    if (!s.p)
        s = STR("");
    const char *end = s.p + s.n, *stop = json_skip_plain(s.p, end);
    if (stop != end) {
        quote_escaped(b, s.p, stop, end);
        return;
    }
    char *to = buf_reserve(b, s.n + 2);
    if (!to)
        return;
    to[0] = '"';
    memcpy(to + 1, s.p, s.n);
    to[s.n + 1] = '"';
    b->n += s.n + 2;
}

static void replace_all(char *p, size_t n, char from, char to)
{
    char *end = p + n;
    while ((p = memchr(p, from, (size_t)(end - p))))
        *p++ = to;
}

void json_flat(struct buf *b, struct str text)
{
    if (!text.n)
        return;
    char *to = buf_reserve(b, text.n);
    if (!to)
        return;
    memcpy(to, text.p, text.n);
    replace_all(to, text.n, '\n', ' ');
    replace_all(to, text.n, '\r', ' ');
    b->n += text.n;
}
