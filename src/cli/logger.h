/* logger.h: the log of a relay on stderr, as text or JSON. Lines that repeat are held back and
 * counted. */
#ifndef CLI_LOGGER_H
#define CLI_LOGGER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "outbox.h"
#include "store/store.h"

#define LOGGER_SHAPES 64
#define LOGGER_BURST 10 /* lines of one shape that are logged before the rest is only counted */

/* Set by the option log-format. */
enum log_format { LOG_TEXT, LOG_JSON };

/* Lines that differ only in words with digits (ids, times, counts) have the same shape. (1) since
 * == 0: the slot is free. (2) held counts the lines not logged; text is the last of them. */
struct logger_shape {
    uint64_t hash;
    int64_t since; /* monotonic ns: when the first line of this span was logged */
    int64_t shown, held;
    int level;
    char consumer[STORE_NAME_MAX + 1];
    char text[512];
};

/* The logger of a process. (1) lock protects everything below it. */
struct logger {
    enum log_format format;
    int64_t hold_ns; /* length of a span; 0: log every line */
    int wake_fd;     /* eventfd, written when logger_tell has to be called; -1: none */
    pthread_mutex_t lock;
    struct logger_shape shape[LOGGER_SHAPES];
};

/* logger_init prepares a logger. It borrows wake_fd. */
void logger_init(struct logger *l, enum log_format format, int64_t hold_ms, int wake_fd);
void logger_release(struct logger *l);
/* logger_flush logs held-back lines without waiting for the end of their spans. */
void logger_flush(struct logger *l);
/* logger_write logs a line with a single write, or holds it back. consumer may be NULL. It is an
 * outbox_options.log. Any thread. */
void logger_write(void *logger, int level, const char *consumer, const char *text);
/* logger_write_about is logger_write for a line about an event, which has additional fields in
 * JSON. It is an outbox_options.log_about. about may be NULL. */
void logger_write_about(void *logger, int level, const char *consumer, const char *text,
                        const outbox_log_about *about);
/* logger_tell logs the lines held back in spans that are over at `now`. It returns when to call it
 * again, or CLOCK_NEVER. */
int64_t logger_tell(struct logger *l, int64_t now);
/* logger_line logs one line at once. For use without a logger: no line is held back. */
void logger_line(enum log_format format, int level, const char *consumer, const char *text,
                 int64_t repeated);

#endif
