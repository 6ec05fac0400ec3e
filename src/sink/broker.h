/* broker.h: the common part of sinks that deliver to a broker: opening and closing, the name of a
 * destination, messages, high-water marks, and cautions. window.h tracks the deliveries in flight.
 * Each kind of sink adds its settings, the connection, and the meaning of replies. */
#ifndef SINK_BROKER_H
#define SINK_BROKER_H

#include "base/option.h"
#include "base/url.h"
#include "event/message.h"
#include "event/template.h"
#include "sink/sink.h"
#include "sink/window.h"

#define BROKER_CAUTION 900

/* What distinguishes the kinds of broker sink. */
struct broker_kind {
    const char *name;             /* "kafka" */
    const char *destination;      /* what the template in its URL names: "topic" */
    size_t size;                  /* of the sink's own struct */
    size_t in_flight, item_size;  /* size of its window; 0: it has windows of its own */
    size_t name_max, message_max; /* limits on broker_name, and on the output of broker_message */
    template_escape *escape;      /* of the values in a name; may be NULL */
    int (*set_up)(struct sink *sk, struct error *err); /* initializes the rest of the struct */
};

/* The base of a broker sink; it comes first in the sink's own struct. */
struct broker {
    struct sink base;
    const struct broker_kind *kind;
    struct template *name; /* of the destination: topic, subject, routing key or stream */
    bool fixed;            /* every event goes to the same destination */
    struct message_style style;
    struct window window;
    struct window_marks marks;
    struct buf destination, text; /* see broker_name and broker_message */
    /* the current caution and earlier ones: each new text has a new address */
    char caution[3][BROKER_CAUTION];
    unsigned cautions;
};

static inline int64_t broker_now(const struct broker *b)
{
    return clock_mono(b->base.cfg.clock);
}

/* broker_open allocates a sink and calls set_up; if that fails, it closes the sink. */
int broker_open(const struct sink_config *cfg, const struct broker_kind *kind, struct sink **ret,
                struct error *err);
/* broker_close is the last step of a sink's close method: it frees the base. */
void broker_close(struct sink *sk);

/* broker_route sets the template of the destination and the style of messages. The strings of the
 * style are borrowed. Errors: ERR_CONFIG. */
int broker_route(struct broker *b, const char *name, struct message_style style, struct error *err);
/* broker_name returns the destination of an event, borrowed until the next call. On failure p is
 * NULL: ERR_INVALID if the event has no valid destination, or ERR_NOMEM. */
struct str broker_name(struct broker *b, const struct event *ev, struct error *err);
/* broker_message is message_make for a delivery; see there. */
int broker_message(struct broker *b, const struct delivery *d, struct str destination,
                   struct message *ret, struct error *err);

/* broker_unsent reports that an event could not be sent. Returns whether submit may accept the
 * events after it: they may overtake a rejected event, but not one that will be offered again. */
bool broker_unsent(struct broker *b, struct delivery *d, const struct error *err);

/* broker_set_caution replaces the caution shown to operators; "" removes it. */
void broker_set_caution(struct broker *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The sink_ops methods shared by all broker sinks. */
size_t broker_marks(struct sink *sk, const struct hwm **ret);
void broker_marks_recorded(struct sink *sk);
const char *broker_caution(struct sink *sk);
/* BROKER_OPEN defines the open method of a kind; BROKER_OPS lists its methods. */
#define BROKER_OPEN(kind) \
    static int kind##_open(const struct sink_config *cfg, struct sink **ret, struct error *err) \
    { \
        return broker_open(cfg, &kind##_kind, ret, err); \
    }
#define BROKER_OPS(kind, scheme_, synopsis_, help_) \
    .scheme = scheme_, .synopsis = synopsis_, .help = help_, .open = kind##_open, \
    .close = kind##_close, .submit = kind##_submit, .drive = kind##_drive, .fds = kind##_fds, \
    .deadline = kind##_deadline, .cancel = kind##_cancel, .marks = broker_marks, \
    .marks_recorded = broker_marks_recorded, .probe = kind##_probe, .caution = broker_caution, \
    .broker = kind##_broker

/* The URL parameters about the message that are common to all brokers. */
#define BROKER_OPTIONS(settings, usual) \
    {"format", \
     "NAME", \
     usual, \
     "how an event becomes a message; see docs/brokers.md", \
     option_choice, \
     .at = offsetof(struct settings, format), \
     .names = message_formats}, \
    { \
        "source", "URI", NULL, "source attribute of CloudEvents; default: /outbox", option_copy, \
            .at = offsetof(struct settings, source) \
    }

/* The destination of format=debezium if the URL names none: the default of Debezium's router. */
#define BROKER_DEBEZIUM_ROUTE "outbox.event.{aggregate_type}"

/* broker_settings_release frees the strings set by a table's options. */
void broker_settings_release(const struct option_def *table, void *settings);

/* broker_check_files checks that the files read for each connection exist. A file missing at
 * startup is a configuration mistake: ERR_CONFIG. NULL entries are skipped. */
int broker_check_files(const char *const *files, size_t n, struct error *err);
/* broker_check_url does the same for the files of a URL, and refuses TLS files unless the scheme is
 * `secure`, the one with TLS. */
int broker_check_url(const struct url *u, const char *secure, struct error *err);

#endif
