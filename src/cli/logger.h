/* logger.h: the lines of a relay on the standard error output, as text or JSON, with repeats held
 * back. */
#ifndef CLI_LOGGER_H
#define CLI_LOGGER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "outbox.h"
#include "store/store.h"

#define LOGGER_SHAPES 64
#define LOGGER_BURST 10 /* lines of one shape that are shown before the rest is only counted */

enum log_format { LOG_TEXT, LOG_JSON };

/* Lines that differ only in words with digits in them (ids, times, counts). (1) since == 0: the
 * place is free. (2) held lines of it have not been shown; text is the last of them. */
struct logger_shape {
    uint64_t hash;
    int64_t since; /* monotonic ns: when the first of this span came */
    int64_t shown, held;
    int level;
    char consumer[STORE_NAME_MAX + 1];
    char text[512];
};

/* (1) Everything below lock is protected by it. */
struct logger {
    enum log_format format;
    int64_t hold_ns; /* length of a span; 0: nothing is held back */
    int wake_fd;     /* eventfd, written when logger_tell has become necessary; -1: none */
    pthread_mutex_t lock;
    struct logger_shape shape[LOGGER_SHAPES];
};

void logger_init(struct logger *l, enum log_format format, int64_t hold_ms, int wake_fd);
void logger_release(struct logger *l);
/* logger_flush tells what is held back, without waiting for the end of its span. */
void logger_flush(struct logger *l);
/* logger_write puts a line out with one write, or holds it back. Any thread; an
 * outbox_options.log. */
void logger_write(void *logger, int level, const char *consumer, const char *text);
/* logger_write_about is an outbox_options.log_about: in JSON the event has fields of its own. */
void logger_write_about(void *logger, int level, const char *consumer, const char *text,
                        const outbox_log_about *about);
/* logger_tell says what was held back in the spans that are over at `now`; returns when to call it
 * again, CLOCK_NEVER if there is no need. */
int64_t logger_tell(struct logger *l, int64_t now);
/* logger_line prints one line, whatever was before. */
void logger_line(enum log_format format, int level, const char *consumer, const char *text,
                 int64_t repeated);

#endif
