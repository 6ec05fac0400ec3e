/* log.h: how the engine reports its decisions. The library itself never prints; the host supplies
 * the function that does. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdatomic.h>
#include <stddef.h>

enum log_level { LOG_DEBUG_ = 0, LOG_INFO_ = 1, LOG_WARN_ = 2, LOG_ERROR_ = 3 };

/* The event a line is about, for structured logs; the text names it as well. key is "" if the event
 * has none. */
struct log_about {
    const char *event_id, *type, *key;
    int attempt;
};

/* Where lines go. (1) Without write, lines are dropped. */
struct log {
    /* write receives one line without its line feed, in the thread that logs. consumer may be
     * NULL. */
    void (*write)(void *ctx, enum log_level level, const char *consumer, const char *text);
    void *ctx;
    atomic_int least; /* enum log_level; lower levels are not formatted; any thread may set it */
    /* write_about receives lines about one event; if NULL, they go to write as well. */
    void (*write_about)(void *ctx, enum log_level level, const char *consumer, const char *text,
                        const struct log_about *about);
};

/* log_about formats a line and writes it; about is NULL unless it is about one event. It does
 * nothing if l or l->write is NULL. log_at is for all other lines. */
void log_about(const struct log *l, enum log_level level, const char *consumer,
               const struct log_about *about, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#define log_at(l, level, consumer, ...) log_about(l, level, consumer, NULL, __VA_ARGS__)

#endif
