/* broker_url.h: address and login of a broker:
 * SCHEME://[USER@]HOST[:PORT][,HOST[:PORT]...]/PATH?option=value&... */
#ifndef SINK_BROKER_URL_H
#define SINK_BROKER_URL_H

#include "base/option.h"

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

/* broker_url_parse parses a URL. Parameters other than broker_url_options go into `target` through
 * `table`, which may be NULL. A row whose name ends with a star matches every name with that
 * prefix; its setter gets the rest: "linger.ms=5" for rdkafka.linger.ms=5 and "rdkafka.*". A host
 * without a port has default_port, and no host at all means 127.0.0.1. A password in the URL is
 * refused: it would show up in ps, in the configuration and in its copies. It belongs in a file or
 * in the environment variable password_env. The caller checks whether ca, cert and key suit the
 * scheme; cert and key always come together. Fails with ERR_CONFIG or ERR_NOMEM, and never repeats
 * the URL. The caller releases *ret, also after an error. */
int broker_url_parse(const char *text, const char *default_port, const char *password_env,
                     const struct option_def *table, void *target, struct broker_url *ret,
                     struct error *err);
void broker_url_release(struct broker_url *u);

/* broker_url_password returns a copy of the password, which the caller wipes and frees. A password
 * file is read again each time. NULL with err->code 0 if there is none, NULL with an error if it
 * could not be read. */
char *broker_url_password(const struct broker_url *u, struct error *err);

/* broker_url_options lists the connection parameters common to all brokers: user, password-file,
 * ca, cert, key. */
extern const struct option_def broker_url_options[];

#endif
