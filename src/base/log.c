#include "base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#define TEXT 1024

void log_about(const struct log *l, enum log_level level, const char *consumer,
               const struct log_about *about, const char *fmt, ...)
{
    if (!l || !l->write || (int)level < atomic_load_explicit(&l->least, memory_order_relaxed))
        return;
    char text[TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);

    bool with_fields = about && l->write_about;
    if (with_fields)
        l->write_about(l->ctx, level, consumer, text, about);
    else
        l->write(l->ctx, level, consumer, text);
}
