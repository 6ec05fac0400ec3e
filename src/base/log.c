#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void log_at(const struct log *l, enum log_level level, const char *consumer, const char *fmt, ...)
{
    if (!l || !l->write || (int)level < atomic_load_explicit(&l->least, memory_order_relaxed)) return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    l->write(l->ctx, level, consumer, text);
}
