/* broker.h: the common part of sinks that deliver to a broker: the URL with its address and login,
 * opening and closing, high-water marks, and cautions. window.h tracks the deliveries in flight.
 * Each kind of sink adds the connection, the message, and the meaning of replies. */
#ifndef SINK_BROKER_H
#define SINK_BROKER_H

#include "base/option.h"
#include "event/message.h"
#include "event/template.h"
#include "sink/sink.h"
#include "sink/window.h"

/* The URL of a broker:
 * SCHEME://[USER@]HOST[:PORT][,HOST[:PORT]...]/PATH?option=value&... */

#define BROKER_HOSTS_MAX 64

struct broker_host {
    char *host, *port;
};

/* (1) Strings are owned; NULL if not given. (2) n_hosts > 0. */
struct broker_url {
    char *scheme, *user;
    struct broker_host *hosts;
    size_t n_hosts;
    char *path; /* decoded, without the leading slash; "" if absent */
    char *password_file;
    char *password;        /* from the environment; password_file overrides it */
    char *ca, *cert, *key; /* TLS: PEM files */
    char label[300];       /* "kafka at host:9092 and 2 others", for messages */
};

/* broker_url_parse parses a URL. The defaults of `table`, which may be NULL, and all parameters
 * other than broker_url_options go into `target`. A row whose name ends with a star matches every
 * name with that prefix; its setter receives the rest: "linger.ms=5" for rdkafka.linger.ms=5 and
 * "rdkafka.*". A host without a port gets default_port, and a URL without a host means 127.0.0.1. A
 * password in the URL is refused, because it would show up in ps, in the configuration and in
 * copies of it: it belongs in a file or in the environment variable password_env. The caller checks
 * whether ca, cert and key suit the scheme; cert requires key, and key requires cert. Errors:
 * ERR_CONFIG, ERR_NOMEM. No error repeats the URL. The caller releases *ret, even after an
 * error. */
int broker_url_parse(const char *text, const char *default_port, const char *password_env,
                     const struct option_def *table, void *target, struct broker_url *ret,
                     struct error *err);
void broker_url_release(struct broker_url *u);
/* broker_url_check_files calls broker_check_files for the URL's files. */
int broker_url_check_files(const struct broker_url *u, struct error *err);

/* broker_url_password returns a copy of the password, which the caller wipes and frees. It rereads
 * a password file on each call. NULL with err->code 0 means that no password is set; NULL with an
 * error, that it could not be read. */
char *broker_url_password(const struct broker_url *u, struct error *err);

/* broker_url_options lists the connection parameters common to all brokers: user, password-file,
 * ca, cert, key. */
extern const struct option_def broker_url_options[];

/* The sink */

#define BROKER_CAUTION 900

/* What the kinds of broker sink differ in. */
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

/* The URL parameters common to all brokers, in addition to broker_url_options. */
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

#endif
