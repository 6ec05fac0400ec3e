/* relay.h: a relay at work: cmd_relay.c starts and stops it, relay.c watches over it and reads its
 * config again. */
#ifndef CLI_RELAY_H
#define CLI_RELAY_H

#include <stdatomic.h>

#include "admin/admin.h"
#include "base/notify.h"
#include "cli/cli.h"
#include "cli/logger.h"

/* A consumer at work, with the settings it was started with. (1) values[i] is that of
 * consumer_options[i]; NULL: the default. */
struct relay_consumer {
    char *name;
    char **values;
    outbox_consumer *c;
};

/* (1) consumers belong to the thread of outbox_run. (2) Signal handlers touch open, signal, reload
 *   and wake_fd, and
 * stop `ob`. */
struct relay {
    const struct cli *cli;
    outbox *ob;
    struct relay_consumer *consumer;
    size_t n_consumers;
    atomic_int log_level;
    bool abandoned; /* after a failed reload no consumer was left */
    struct logger logger;
    struct notify notify;
    struct admin_config admin_cfg;
    struct admin_wait wait;
    struct admin *admin;
    atomic_llong reloads[2]; /* ok, failed */

    atomic_bool open;    /* `ob` can be stopped */
    atomic_bool started; /* all consumers were at work */
    atomic_int signal;   /* the one that stops; 0: none */
    atomic_bool reload;
    int wake_fd; /* eventfd: makes the watching thread look */
    pthread_t watch;
    atomic_bool done;
};

/* relay_log puts a line out. */
void relay_log(struct relay *r, int level, const char *consumer, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* relay_consumer_add makes a consumer with the settings of the config and keeps note of it; it is
 * not at work yet. */
int relay_consumer_add(struct relay *r, const struct config *config, const char *name,
                       struct error *err);
void relay_release(struct relay *r); /* the notes on consumers */
/* relay_tokens reads the tokens that the HTTP server asks for; NULL if none are set. The caller
 * frees them. */
int relay_tokens(const struct cli *cli, struct tokens **ret, struct error *err);
/* relay_check refuses a config with which no relay could run. */
int relay_check(const struct config *config, struct error *err);

/* relay_started and relay_reload are hooks of outbox_run (see manage.h); their argument is the
 * relay. */
void relay_started(void *relay);
void relay_reload(void *relay);
/* relay_watch is a thread: passes on a wish to reload, feeds the service manager's watchdog as long
 * as the relay turns, tells what the log held back, ends HTTP connections that last too long. */
void *relay_watch(void *relay);
/* relay_waits notes for health that we wait for the store, and why; NULL: no longer. */
void relay_waits(struct relay *r, const char *why);
/* relay_wake is safe in a signal handler. */
void relay_wake(struct relay *r);

#endif
