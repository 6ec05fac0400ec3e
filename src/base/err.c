#define ERR_C
#include "base/err.h"

#include <stdio.h>
#include <string.h>

#include "base/char.h"

/* sequence_length is how many bytes the UTF-8 character at p has; 0: there is none (a stranger's
 * bytes, or one that was cut). */
static size_t sequence_length(const unsigned char *p)
{
    size_t n = 0;
    if (*p < 0x80)
        n = 1;
    else if (*p >= 0xc2 && *p < 0xe0)
        n = 2;
    else if (*p >= 0xe0 && *p < 0xf0)
        n = 3;
    else if (*p >= 0xf0 && *p < 0xf5)
        n = 4;

    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

/* clean makes a text of anything: one line, valid UTF-8, so that it can be logged and quoted as
 * JSON. */
static void clean(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p;) {
        size_t n = sequence_length(p);
        if (n == 0)
            *p = '?';
        else if (char_is_control((char)*p))
            *p = ' ';
        p += n ? n : 1;
    }
}

static int set(struct error *err, enum err_code code, enum fate fate, int native, const char *fmt,
               va_list ap)
{
    if (!err)
        return -1;
    err->code = (int)code;
    err->fate = (int)fate;
    err->native = native;
    err->reserved = 0;
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    clean(err->text);
    return -1;
}

int err_set(struct error *err, enum err_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(err, code, FATE_NONE, 0, fmt, ap);
    va_end(ap);
    return -1;
}

int err_fate(struct error *err, enum err_code code, enum fate fate, int native, const char *fmt,
             ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(err, code, fate, native, fmt, ap);
    va_end(ap);
    return -1;
}

int err_errno(struct error *err, enum err_code code, int errno_value, const char *fmt, ...)
{
    va_list ap;
    if (!err)
        return -1;
    va_start(ap, fmt);
    set(err, code, FATE_NONE, errno_value, fmt, ap);
    va_end(ap);
    size_t n = strlen(err->text);
    snprintf(err->text + n, sizeof err->text - n, ": %s", strerror(errno_value));
    clean(err->text);
    return -1;
}

int err_prefix(struct error *err, const char *fmt, ...)
{
    if (!err)
        return -1;
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    set(err, (enum err_code)err->code, (enum fate)err->fate, err->native, fmt, ap);
    va_end(ap);
    size_t n = strlen(err->text);
    snprintf(err->text + n, sizeof err->text - n, ": %s", old);
    clean(err->text);
    return -1;
}

int err_nomem(struct error *err)
{
    return err_set(err, ERR_NOMEM, "out of memory");
}
