/* log.h: where the engine says what it decided. The library itself never prints: whoever embeds it
 * brings a function. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdatomic.h>

enum log_level { LOG_DEBUG_ = 0, LOG_INFO_ = 1, LOG_WARN_ = 2, LOG_ERROR_ = 3 };

/* What a line is about, for those who read fields; the text says it all as well. key is "" where
 * there is none. */
struct log_about {
    const char *event_id, *type, *key;
    int attempt;
};

struct log {
    /* Called from the thread that logs; `consumer` may be NULL. text is one line without its
     * end. */
    void (*write)(void *ctx, enum log_level level, const char *consumer, const char *text);
    void *ctx;
    atomic_int least; /* enum log_level; below this, nothing is formatted; may change at any time */
    /* The same for a line about one event; NULL: that goes to write, too. */
    void (*write_about)(void *ctx, enum log_level level, const char *consumer, const char *text,
                        const struct log_about *about);
};

/* log_at formats and hands over; nothing happens when l or l->write is NULL. */
void log_at(const struct log *l, enum log_level level, const char *consumer, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* log_about is log_at for what happened to one event. */
void log_about(const struct log *l, enum log_level level, const char *consumer,
               const struct log_about *about, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#endif
