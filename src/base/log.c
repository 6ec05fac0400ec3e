#include "base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#define TEXT 1024

static bool wanted(const struct log *l, enum log_level level)
{
    return l && l->write && (int)level >= atomic_load_explicit(&l->least, memory_order_relaxed);
}

void log_at(const struct log *l, enum log_level level, const char *consumer, const char *fmt, ...)
{
    char text[TEXT];
    va_list ap;
    if (!wanted(l, level)) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    l->write(l->ctx, level, consumer, text);
}

void log_about(const struct log *l, enum log_level level, const char *consumer, const struct log_about *about,
               const char *fmt, ...)
{
    char text[TEXT];
    va_list ap;
    if (!wanted(l, level)) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (l->write_about) l->write_about(l->ctx, level, consumer, text, about);
    else l->write(l->ctx, level, consumer, text);
}
