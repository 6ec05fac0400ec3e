/* log.h: how the engine reports its decisions. The library itself never prints; the host supplies
 * the function that does. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdatomic.h>

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
    atomic_int
        least; /* enum log_level; lower levels are not even formatted; any thread may set it */
    /* write_about receives lines about one event; if NULL, they go to write as well. */
    void (*write_about)(void *ctx, enum log_level level, const char *consumer, const char *text,
                        const struct log_about *about);
};

/* log_at formats a line and writes it. It does nothing if l or l->write is NULL. */
void log_at(const struct log *l, enum log_level level, const char *consumer, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* log_about is log_at for a line about one event. */
void log_about(const struct log *l, enum log_level level, const char *consumer,
               const struct log_about *about, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#endif
