/* relay.h: a running relay. cmd_relay.c starts and stops it; relay.c watches it and reloads its
 * config. */
#ifndef CLI_RELAY_H
#define CLI_RELAY_H

#include <stdatomic.h>

#include "admin/admin.h"
#include "cli/cli.h"
#include "cli/logger.h"
#include "cli/notify.h"

/* A running consumer and the settings it was started with. (1) values[i] belongs to
 * consumer_options[i]; NULL stands for the default. */
struct relay_consumer {
    struct arena arena; /* of the name and the values */
    const char *name, **values;
    outbox_consumer *c;
};

/* (1) The consumers belong to the thread that calls outbox_run. (2) Signal handlers only touch
 * open, signal, reload and wake_fd, and stop `ob`. */
struct relay {
    const struct cli *cli;
    bool drain; /* stop once every event is delivered */
    outbox *ob;
    struct relay_consumer *consumer;
    size_t n_consumers;
    atomic_int log_level;
    bool abandoned; /* a reload left no consumer running */
    struct logger logger;
    struct notify notify;
    struct admin_config admin_cfg;
    struct admin *admin;

    atomic_bool open;    /* `ob` can be stopped */
    atomic_bool started; /* all consumers have been running */
    atomic_int signal;   /* that stops the relay; 0: none yet */
    atomic_bool reload;
    int wake_fd; /* eventfd: wakes the watching thread */
    pthread_t watch;
    atomic_bool done;
};

/* relay_error returns an error as the public API takes it: both have one layout. */
static inline outbox_error *relay_error(struct error *err)
{
    _Static_assert(sizeof(struct error) == sizeof(outbox_error), "one layout");
    return (outbox_error *)err;
}

/* relay_log logs a line, unless its level is too low. consumer may be NULL. Any thread. */
void relay_log(struct relay *r, int level, const char *consumer, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* relay_consumer_add creates a consumer with the settings of the config and remembers them. It does
 * not start it. */
int relay_consumer_add(struct relay *r, const struct config *config, const char *name,
                       struct error *err);
/* relay_release frees the copies that relay_consumer_add made; the consumers belong to the outbox.
 */
void relay_release(struct relay *r);
/* relay_tokens reads the tokens that the HTTP server requires; *ret is NULL if none are set. The
 * caller frees them. */
int relay_tokens(const struct cli *cli, struct tokens **ret, struct error *err);
/* relay_check fails with ERR_CONFIG if no relay could run with the config. The message has the
 * first problem and the number of problems. */
int relay_check(const struct config *config, struct error *err);

/* relay_started and relay_reload are hooks of the supervisor (supervisor.h); their argument is the
 * relay. */
void relay_started(void *relay);
void relay_reload(void *relay);
/* relay_watch is the main function of the watching thread. It passes on requests to reload, feeds
 * the service manager's watchdog while the relay is alive, logs how many lines were held back, and
 * ends HTTP connections that last too long. */
void *relay_watch(void *relay);
/* relay_waits sets the reason for waiting for the store, as shown by /readyz; NULL: no longer
 * waiting. */
void relay_waits(struct relay *r, const char *why);
/* relay_wake wakes the watching thread. It is safe in a signal handler. */
void relay_wake(struct relay *r);

#endif
