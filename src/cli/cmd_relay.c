/* cmd_relay.c: outbox relay, which starts and stops a relay: signals, waiting for an unreachable
 * store, the HTTP server. For the running relay see relay.c. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "admin/access.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/num.h"
#include "cli/relay.h"

struct relay_args {
    bool drain;
};

/* What signal handlers can reach. A process has one relay. */
static struct relay *volatile the_relay;

#define AWAY_FIRST 250 /* ms: the first pause before retrying an unreachable store */
#define AWAY_MAX 5000  /* ms: the longest */
#define AWAY_LOOK 50   /* ms: how soon a signal is noticed during the pause */
#define FDS_BASE 128   /* descriptors of a relay, and those of each of its consumers */
#define FDS_EACH 16

static const struct option_def options[] = {
    {"drain", NULL, "no", "exit once every consumer has received every event", option_bool,
     OWN(relay_args, drain), .env = true},
    OPTION_END,
};

/* ---- signals ---- */

/* Asks the relay to drain. A second signal ends the process at once. */
static void on_stop(int number)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&the_relay->signal, &none, number))
        _exit(128 + number);
    if (atomic_load(&the_relay->open))
        outbox_stop(the_relay->ob);
    relay_wake(the_relay);
}

static void on_reload(int number)
{
    (void)number;
    atomic_store(&the_relay->reload, true);
    relay_wake(the_relay);
}

static void catch_signals(struct relay *r)
{
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    struct sigaction reload = {.sa_handler = on_reload, .sa_flags = SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, hangup;
    the_relay = r;
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    /* A file over the size limit is an ordinary error, and must not kill the process. */
    sigaction(SIGXFSZ, &ignore, NULL);
    /* If the parent left SIGCHLD ignored, exit statuses would be lost. */
    signal(SIGCHLD, SIG_DFL);

    /* Without a config file there is nothing to reload: then SIGHUP stops the relay cleanly, unless
     * the relay was started with SIGHUP ignored (nohup). */
    sigaction(SIGHUP, NULL, &hangup);
    if (r->cli->config.path)
        sigaction(SIGHUP, &reload, NULL);
    else if (hangup.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &stop, NULL);
}

/* ---- an unreachable store ---- */

/* Whether to wait for the store, which may become reachable without a change of the settings: its
 * server may start after the relay, or be a standby that will be promoted; a backup or a migration
 * may have locked the store; a disk may be full. A file that cannot be opened is more likely a
 * wrong path. With --drain a failure is reported at once, and consumers that have started wait on
 * their own. */
static bool waits_for_store(const struct relay *r, const struct error *err)
{
    bool starting = !r->drain && !atomic_load(&r->started);
    if (!starting || err->retry_class != CLASS_RETRY)
        return false;
    switch (err->code) {
    case ERR_UNAVAILABLE: return store_kind(r->cli->settings.store)->caps & STORE_REMOTE;
    case ERR_BUSY:
    case ERR_READONLY:
    case ERR_FULL: return true;
    default: return false;
    }
}

/* Sleeps for a while, longer each time. Returns false if a signal arrived. */
static bool wait_for_store(struct relay *r, int64_t *pause_ms, const struct error *err)
{
    if (*pause_ms == 0)
        *pause_ms = AWAY_FIRST;
    else
        *pause_ms = min_i64(2 * *pause_ms, AWAY_MAX);
    relay_log(r, LOG_WARN_, NULL, "waiting for the store: %s", err->text);
    relay_waits(r, err->text);
    notify_send(&r->notify, "EXTEND_TIMEOUT_USEC=%d\nSTATUS=waiting for the store",
                4 * AWAY_MAX * 1000);
    for (int64_t left = *pause_ms; left > 0 && !atomic_load(&r->signal); left -= AWAY_LOOK)
        usleep(AWAY_LOOK * 1000);
    return !atomic_load(&r->signal);
}

/* Repeats a step while the store is unreachable. A signal that arrives meanwhile ends the waiting
 * successfully. */
static int persist(struct relay *r, int (*step)(struct relay *r, struct error *err),
                   struct error *err)
{
    int64_t pause = 0;
    while (step(r, err) != 0) {
        if (!waits_for_store(r, err))
            return -1;
        if (!wait_for_store(r, &pause, err))
            return 0;
    }
    return 0;
}

/* ---- starting ---- */

/* Passes on the settings of [outbox] that the library takes by name. A bad value in a flag is a
 * usage error. */
static int set_relay_options(const struct cli *cli, outbox *ob, struct error *err)
{
    static const char *const names[] = {"drain-deadline",  "sweep",       "retention",
                                        "inbox-retention", "connections", "memory"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const struct option_def *o = option_find(config_options, names[i]);
        const struct given *g = config_get(&cli->config, NULL, o);
        if (outbox_set(ob, o->name, g ? g->value : o->def, relay_error(err)) == 0)
            continue;
        bool from_flag = g && g->origin == ORIGIN_FLAG;
        if (from_flag && err->code == ERR_CONFIG)
            err->code = CLI_USAGE;
        return -1;
    }
    return 0;
}

static void say_starting(struct relay *r)
{
    struct buf b;
    buf_init(&b, 4096);
    config_mask(&b, r->cli->settings.store);
    const char *before = " consumers=";
    for (size_t i = 0; i < r->n_consumers; i++) {
        buf_addf(&b, "%s%s", before, r->consumer[i].name);
        before = ",";
    }
    if (buf_cstr(&b))
        relay_log(r, LOG_INFO_, NULL, "starting store=%s", b.p);
    buf_release(&b);
}

static void log_caution(void *relay, const struct problem *p)
{
    relay_log(relay, LOG_WARN_, NULL, "%s: %s", p->where, p->text);
}

static int start_server(struct relay *r, struct error *err)
{
    const struct settings *s = &r->cli->settings;
    struct admin_door door = {.tokens = NULL};
    char url[ADMIN_ADDRESS];
    if (!s->listen)
        return 0;
    if (admin_address_parse(s->listen, &door.address, err) != 0)
        return -1;
    if (relay_tokens(r->cli, &door.tokens, err) != 0)
        return -1;

    bool asks_token = door.tokens;
    if (admin_start(&r->admin_cfg, &door, &r->admin, url, err) != 0)
        return err_prefix(err, "--listen %s", s->listen);
    relay_log(r, LOG_INFO_, NULL, "listening on %s", url);
    if (!asks_token && !admin_loopback(&door.address))
        relay_log(r, LOG_WARN_, NULL, "--listen %s: " CONFIG_OPEN_LISTEN, s->listen);
    return 0;
}

static const char *stopped_by(int number)
{
    switch (number) {
    case SIGTERM: return "stopped by SIGTERM";
    case SIGINT: return "stopped by SIGINT";
    case SIGHUP: return "stopped by SIGHUP";
    default: return "stopped: every consumer is done";
    }
}

static int run_outbox(struct relay *r, struct error *err)
{
    return outbox_run(r->ob, r->drain ? OUTBOX_UNTIL_THROUGH : 0, relay_error(err));
}

/* Runs the configured consumers until the relay must stop, and logs the reason for stopping. */
static int run_relay(struct relay *r, struct error *err)
{
    /* Create the consumers of the settings, before any of them runs. */
    size_t n;
    const struct named *names = config_consumers(&r->cli->config, &n);
    fd_allow(FDS_BASE + n * FDS_EACH);
    for (size_t i = 0; i < n; i++) {
        if (relay_consumer_add(r, &r->cli->config, names[i].name, err) != 0)
            return -1;
    }
    if (set_relay_options(r->cli, r->ob, err) != 0)
        return -1;

    say_starting(r);
    config_cautions(&r->cli->config, log_caution, r);
    if (geteuid() == 0)
        relay_log(r, LOG_WARN_, NULL,
                  "running as root, which a relay does not need; a fault, for example in an exec: "
                  "command, would have the rights of root; run the relay as a separate user");

    int result = persist(r, run_outbox, err);
    int number = atomic_load(&r->signal);
    logger_flush(&r->logger);
    if (result == 0 && r->abandoned)
        result = err_set(
            err, ERR_CONFIG,
            "no consumer could be started after the config was reloaded; see the log for the "
            "reasons");

    const char *how = stopped_by(number);
    if (result != 0)
        how = "stopped after an error";
    relay_log(r, LOG_INFO_, NULL, "%s", how);
    return result;
}

/* Opens the store and makes the handle known to the HTTP server and, last, to signal handlers: from
 * then on it can be stopped. */
static int open_outbox(struct relay *r, struct error *err)
{
    const struct settings *s = &r->cli->settings;
    outbox_options opt = OUTBOX_OPTIONS_INIT;
    opt.busy_ms = s->busy_ms;
    opt.payload_max = s->payload_max;
    opt.log = logger_write;
    opt.log_about = logger_write_about;
    opt.log_ctx = &r->logger;
    opt.log_level = s->log_level;
    if (outbox_open(s->store, &opt, &r->ob, relay_error(err)) != 0)
        return -1;
    r->ob->sv.started = relay_started;
    r->ob->sv.reload = relay_reload;
    r->ob->sv.hook_ctx = r;
    atomic_store(&r->admin_cfg.ob, r->ob);
    atomic_store(&r->open, true);
    return 0;
}

/* Starts everything that works without the store: metrics, health, and the watching thread. */
static int start_watching(struct relay *r, struct error *err)
{
    const struct settings *s = &r->cli->settings;
    r->admin_cfg.store = store_kind(s->store)->scheme;
    r->admin_cfg.patience_ms = s->stuck_ms;
    r->admin_cfg.wake_fd = r->wake_fd;
    r->admin_cfg.hosts = s->listen_hosts;
    r->admin_cfg.socket_mode = (mode_t)s->listen_mode;
    if (start_server(r, err) != 0)
        return -1;
    int e = pthread_create(&r->watch, NULL, relay_watch, r);
    if (e == 0)
        return 0;
    err_errno(err, ERR_UNAVAILABLE, e, "could not start a thread (out of memory, or too many)");
    admin_stop(r->admin);
    return -1;
}

static int open_and_run(struct relay *r, struct error *err)
{
    catch_signals(r);
    if (start_watching(r, err) != 0)
        return -1;

    int result = persist(r, open_outbox, err);
    bool stopped = atomic_load(&r->signal) != 0;
    if (stopped) {
        relay_log(r, LOG_INFO_, NULL, "%s", stopped_by(atomic_load(&r->signal)));
        result = 0;
    } else if (result == 0) {
        result = run_relay(r, err);
    }

    atomic_store(&r->done, true);
    relay_wake(r);
    pthread_join(r->watch, NULL);

    /* A late signal must not reach a handle that is about to be closed: we are stopping already. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (admin_stop(r->admin))
        outbox_close(r->ob);
    return result;
}

/* Checks the settings before anything starts, and releases everything in reverse order. The relay
 * is static because a thread of the HTTP server that waits for the store may outlive this call: see
 * admin_stop. */
static int relay_run(struct cli *cli, struct error *err)
{
    static struct relay r;
    r.cli = cli;
    r.drain = ((const struct relay_args *)cli_own(cli))->drain;
    r.wake_fd = fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (r.wake_fd < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not create an eventfd");

    /* At level debug, no line is held back. */
    int64_t hold_ms = cli->settings.log_hold_ms;
    if (cli->settings.log_level == LOG_DEBUG_)
        hold_ms = 0;
    atomic_init(&r.log_level, cli->settings.log_level);
    pthread_mutex_init(&r.admin_cfg.lock, NULL);
    notify_init(&r.notify);
    logger_init(&r.logger, (enum log_format)cli->settings.log_format, hold_ms, r.wake_fd);

    int result = commands_need_store(cli, err);
    if (result == 0)
        result = relay_check(&cli->config, err);
    if (result == 0)
        result = open_and_run(&r, err);

    relay_release(&r);
    logger_flush(&r.logger);
    logger_release(&r.logger);
    notify_release(&r.notify);
    pthread_mutex_destroy(&r.admin_cfg.lock);
    close(r.wake_fd);
    return result;
}

const struct command cmd_relay[] = {
    {"relay", NULL, NULL, "deliver events to consumers until stopped", .options = options,
     .consumers = true, .run = relay_run},
    {NULL},
};
