/* broker.h: the common part of sinks that deliver to a broker: the URL with its address and login,
 * opening and closing, high-water marks, and cautions. window.h has what is in flight. Each kind
 * adds the connection, the message, and the meaning of replies. */
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
    char *path; /* decoded, without the leading slash; "" if there is none */
    char *password_file;
    char *password;        /* from the environment; password_file takes precedence */
    char *ca, *cert, *key; /* TLS: PEM files */
    char label[300];       /* "kafka at host:9092 and 2 others", for messages */
};

/* broker_url_parse parses a URL. The defaults of `table`, which may be NULL, and all parameters
 * other than broker_url_options go into `target`. A row whose name ends with a star matches every
 * name with that prefix; its setter gets the rest: "linger.ms=5" for rdkafka.linger.ms=5 and
 * "rdkafka.*". A host without a port has default_port, and a URL without a host means 127.0.0.1. A
 * password in the URL is refused: it would show up in ps, in the configuration and in its copies.
 * It belongs in a file or in the environment variable password_env. The caller checks whether ca,
 * cert and key suit the scheme; cert and key always come together. Fails with ERR_CONFIG or
 * ERR_NOMEM, and never repeats the URL. The caller releases *ret, also after an error. */
int broker_url_parse(const char *text, const char *default_port, const char *password_env,
                     const struct option_def *table, void *target, struct broker_url *ret,
                     struct error *err);
void broker_url_release(struct broker_url *u);
/* broker_url_check_files is broker_check_files for the files of the URL. */
int broker_url_check_files(const struct broker_url *u, struct error *err);

/* broker_url_password returns a copy of the password, which the caller wipes and frees. A password
 * file is read again each time. NULL with err->code 0 if there is none, NULL with an error if it
 * could not be read. */
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
void broker_marks_recorded(struct sink *sk);
const char *broker_caution(struct sink *sk);
#define BROKER_OPS(kind) \
    .open = kind##_open, .close = kind##_close, .submit = kind##_submit, .drive = kind##_drive, \
    .fds = kind##_fds, .deadline = kind##_deadline, .cancel = kind##_cancel, \
    .marks = broker_marks, .marks_recorded = broker_marks_recorded, .probe = kind##_probe, \
    .caution = broker_caution, .broker = kind##_broker

/* The URL parameters common to all of them, besides broker_url_options. */
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

/* The destination of format=debezium if the URL names none, as Debezium's router has it. */
#define BROKER_DEBEZIUM_ROUTE "outbox.event.{aggregate_type}"

/* broker_settings_release frees the texts that a table's options have set. */
void broker_settings_release(const struct option_def *table, void *settings);

/* broker_check_files checks that the files read by each connection exist: one that is missing at
 * the start is a mistake, ERR_CONFIG. NULL entries are skipped. */
int broker_check_files(const char *const *files, size_t n, struct error *err);

#endif
