#define ERR_C
#include "base/err.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Reduces any text to one line of valid UTF-8, fit for a log and for quoting as JSON. */
static void clean_text(char *text)
{
    const char *end = text + strlen(text);
    for (char *p = text; p < end;) {
        size_t n = 1;
        if ((unsigned char)*p >= 0x80)
            n = utf8_length(p, end);
        if (n == 0) {
            *p = '?'; /* invalid UTF-8, or a character cut at the end of the text */
            n = 1;
        } else if (char_is_control(*p)) {
            *p = ' ';
        }
        p += n;
    }
}

/* Appends ": " and a text, as far as it fits. */
static void append_text(struct error *err, const char *text)
{
    size_t n = strlen(err->text);
    snprintf(err->text + n, sizeof err->text - n, ": %s", text);
    clean_text(err->text);
}

static int set(struct error *err, enum err_code code, enum retry_class fate, int native,
               const char *fmt, va_list ap)
{
    if (!err)
        return -1;
    err->code = (int)code;
    err->retry_class = (int)fate;
    err->native = native;
    err->reserved = 0;
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    clean_text(err->text);
    return -1;
}

int err_set(struct error *err, enum err_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(err, code, CLASS_NONE, 0, fmt, ap);
    va_end(ap);
    return -1;
}

int err_class(struct error *err, enum err_code code, enum retry_class fate, int native,
              const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(err, code, fate, native, fmt, ap);
    va_end(ap);
    return -1;
}

int err_errno(struct error *err, enum err_code code, int errno_value, const char *fmt, ...)
{
    if (!err)
        return -1;
    va_list ap;
    va_start(ap, fmt);
    set(err, code, CLASS_NONE, errno_value, fmt, ap);
    va_end(ap);

    append_text(err, strerror(errno_value));
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
    set(err, (enum err_code)err->code, (enum retry_class)err->retry_class, err->native, fmt, ap);
    va_end(ap);

    append_text(err, old);
    return -1;
}

int err_copy(struct error *err, const struct error *from)
{
    if (err)
        *err = *from;
    return -1;
}

int err_nomem(struct error *err)
{
    return err_set(err, ERR_NOMEM, "out of memory");
}
