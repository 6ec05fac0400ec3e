/* broker.h: the common part of sinks that deliver to a broker: opening and closing, high-water
 * marks, cautions, and shared options. window.h has what is in flight. Each kind adds the
 * connection, the message, and the meaning of replies. */
#ifndef SINK_BROKER_H
#define SINK_BROKER_H

#include "event/message.h"
#include "sink/sink.h"
#include "sink/streams.h"
#include "sink/window.h"

#define BROKER_CAUTION 900

/* The base of a broker sink; it comes first in the sink's own struct. */
struct broker {
    struct sink base;
    struct streams marks;
    /* the current line for operators and earlier ones: each new text has a new address */
    char caution[3][BROKER_CAUTION];
    unsigned cautions;
};

static inline int64_t broker_now(const struct broker *b)
{
    return clock_mono(b->base.cfg.clock);
}

/* broker_open makes a sink of `size` bytes and calls set_up to fill in the rest; if that fails, the
 * sink is closed. */
int broker_open(const struct sink_config *cfg, size_t size,
                int (*set_up)(struct sink *sk, struct error *err), struct sink **ret,
                struct error *err);
/* broker_close is the last step of a sink's close: it frees the base. */
void broker_close(struct sink *sk);

/* broker_unsent reports that an event could not be sent. Returns whether submit may take the events
 * behind it: they may pass an event that is rejected, but not one that will be offered again. */
bool broker_unsent(struct broker *b, struct delivery *d, const struct error *err);

/* broker_set_caution replaces the line for operators; "" removes it. */
void broker_set_caution(struct broker *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The sink_ops methods common to all broker sinks; their own functions begin with their name. */
size_t broker_marks(struct sink *sk, const struct hwm **ret);
void broker_marks_kept(struct sink *sk);
const char *broker_caution(struct sink *sk);
#define BROKER_OPS(kind) \
    .open = kind##_open, .close = kind##_close, .submit = kind##_submit, .drive = kind##_drive, \
    .fds = kind##_fds, .deadline = kind##_deadline, .cancel = kind##_cancel, \
    .marks = broker_marks, .marks_kept = broker_marks_kept, .probe = kind##_probe, \
    .caution = broker_caution, .broker = kind##_broker

/* The URL parameters common to all of them, besides those of broker_url.h. */
#define BROKER_OPTIONS(settings, usual) \
    {"format", \
     "NAME", \
     usual, \
     "how an event becomes a message; see docs/brokers.md", \
     option_choice, \
     .at = offsetof(struct settings, format), \
     .names = message_formats}, \
    { \
        "source", "URI", NULL, "source of CloudEvents; /outbox if not given", option_copy, \
            .at = offsetof(struct settings, source) \
    }

/* broker_check_files checks that the files read by each connection exist: one that is missing at
 * the start is a mistake, ERR_CONFIG. NULL entries are skipped. */
int broker_check_files(const char *kind, const char *const *files, size_t n, struct error *err);

#endif
