/* broker.h: the common part of sinks that deliver to a broker: the URL with its address and login,
 * opening and closing, high-water marks, and cautions. window.h tracks the deliveries in flight.
 * Each kind of sink adds the connection, the message, and the meaning of replies. */
#ifndef SINK_BROKER_H
#define SINK_BROKER_H

#include "base/option.h"
#include "event/message.h"
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

/* The base of a broker sink; it comes first in the sink's own struct. */
struct broker {
    struct sink base;
    struct window_marks marks;
    /* the current caution and earlier ones: each new text has a new address */
    char caution[3][BROKER_CAUTION];
    unsigned cautions;
};

static inline int64_t broker_now(const struct broker *b)
{
    return clock_mono(b->base.cfg.clock);
}

/* broker_open allocates a sink of `size` bytes and calls set_up to initialize the rest; if set_up
 * fails, it closes the sink. */
int broker_open(const struct sink_config *cfg, size_t size,
                int (*set_up)(struct sink *sk, struct error *err), struct sink **ret,
                struct error *err);
/* broker_close is the last step of a sink's close method: it frees the base. */
void broker_close(struct sink *sk);

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
#define BROKER_OPS(kind) \
    .open = kind##_open, .close = kind##_close, .submit = kind##_submit, .drive = kind##_drive, \
    .fds = kind##_fds, .deadline = kind##_deadline, .cancel = kind##_cancel, \
    .marks = broker_marks, .marks_recorded = broker_marks_recorded, .probe = kind##_probe, \
    .caution = broker_caution, .broker = kind##_broker

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
