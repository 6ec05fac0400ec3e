#include "base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#define TEXT 1024

static bool wanted(const struct log *l, enum log_level level)
{
    if (!l || !l->write)
        return false;
    return (int)level >= atomic_load_explicit(&l->least, memory_order_relaxed);
}

/* Formats and writes a line; about is NULL unless it concerns a single event. */
static void write_line(const struct log *l, enum log_level level, const char *consumer,
                       const struct log_about *about, const char *fmt, va_list ap)
{
    if (!wanted(l, level))
        return;
    char text[TEXT];
    vsnprintf(text, sizeof text, fmt, ap);

    bool with_fields = about && l->write_about;
    if (with_fields)
        l->write_about(l->ctx, level, consumer, text, about);
    else
        l->write(l->ctx, level, consumer, text);
}

void log_at(const struct log *l, enum log_level level, const char *consumer, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    write_line(l, level, consumer, NULL, fmt, ap);
    va_end(ap);
}

void log_about(const struct log *l, enum log_level level, const char *consumer,
               const struct log_about *about, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    write_line(l, level, consumer, about, fmt, ap);
    va_end(ap);
}
