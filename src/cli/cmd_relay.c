#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"

/* What a signal handler can reach; there is one relay in a process. */
static struct {
    outbox *volatile ob;
    volatile sig_atomic_t signal; /* the one that came; 0: none */
} relay;

static int set_drain(void *target, const char *value, struct error *err)
{
    return text_bool(value, &((struct args *)target)->drain, err);
}

static const struct cli_option options[] = {
    {{"drain", NULL, "no", "end once every consumer is through with what is there", set_drain}, 0, true},
    OPTION_END,
};

/* write_log puts a whole line out with one write, so that lines of several threads don't mix. */
static void write_log(void *ctx, int level, const char *consumer, const char *text)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    char stamp[CLOCK_RFC3339_SIZE];
    struct buf b;
    (void)ctx;
    buf_init(&b, 8192);
    clock_rfc3339(clock_wall(&clock_system), stamp);
    buf_addf(&b, "%s %s ", stamp, names[level < 0 ? 0 : level > 3 ? 3 : level]);
    if (consumer) buf_addf(&b, "consumer=%s ", consumer);
    output_clean(&b, text);
    buf_addc(&b, '\n');
    ssize_t written = write(STDERR_FILENO, b.p, b.n);
    (void)written; /* nobody is left to tell */
    buf_release(&b);
}

/* on_signal asks the relay to drain; who asks twice does not want to wait. */
static void on_signal(int number)
{
    if (relay.signal) _exit(128 + number);
    relay.signal = number;
    outbox_stop(relay.ob);
}

static void catch_signals(void)
{
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    signal(SIGCHLD, SIG_DFL); /* whoever started us may have ignored it: exit statuses would be lost */
}

/* api_error takes over what the library said; the layouts are the same. */
static int api_error(struct error *err, const outbox_error *e)
{
    _Static_assert(sizeof(struct error) == sizeof(outbox_error), "one layout");
    memcpy(err, e, sizeof(*err));
    return -1;
}

static int add_consumer(const struct cli *cli, outbox *ob, const char *name, struct error *err)
{
    outbox_consumer *c;
    outbox_error e;
    if (outbox_consumer_new(ob, name, &c, &e) != 0) return api_error(err, &e);
    for (const struct option_def *o = consumer_options; o->name; o++) {
        const struct given *g = config_get(&cli->config, name, o);
        if (!g || outbox_consumer_set(c, o->name, g->value, &e) == 0) continue;
        api_error(err, &e);
        if (err->code == ERR_CONFIG && g->origin == ORIGIN_FLAG) err->code = CLI_USAGE;
        return err_prefix(err, "consumer \"%s\"", name);
    }
    return 0;
}

static int set_relay_options(const struct cli *cli, outbox *ob, struct error *err)
{
    static const char *const names[] = {"drain-deadline", "sweep", "retention", "inbox-retention"};
    outbox_error e;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const struct option_def *o = option_find(config_options, names[i]);
        const struct given *g = config_get(&cli->config, NULL, o);
        if (outbox_set(ob, o->name, g ? g->value : o->def, &e) == 0) continue;
        api_error(err, &e);
        if (err->code == ERR_CONFIG && g && g->origin == ORIGIN_FLAG) err->code = CLI_USAGE;
        return -1;
    }
    return 0;
}

static int configure(const struct cli *cli, outbox *ob, struct error *err)
{
    size_t n;
    char *const *names = config_consumers(&cli->config, &n);
    for (size_t i = 0; i < n; i++) {
        if (add_consumer(cli, ob, names[i], err) != 0) return -1;
    }
    return set_relay_options(cli, ob, err);
}

static void say(const struct cli *cli, const char *what, bool with_store)
{
    struct buf b;
    size_t n;
    char *const *names = config_consumers(&cli->config, &n);
    if (cli->settings.log_level > LOG_INFO_) return;
    buf_init(&b, 4096);
    buf_addf(&b, "%s", what);
    if (with_store) {
        buf_adds(&b, " store=");
        config_mask(&b, cli->settings.store);
        for (size_t i = 0; i < n; i++) buf_addf(&b, "%s%s", i ? "," : " consumers=", names[i]);
    }
    if (buf_cstr(&b)) write_log(NULL, LOG_INFO_, NULL, b.p);
    buf_release(&b);
}

static int deliver(const struct cli *cli, outbox *ob, struct error *err)
{
    outbox_error e;
    relay.ob = ob;
    catch_signals();
    say(cli, "starting", true);
    if (outbox_run(ob, cli->args.drain ? OUTBOX_UNTIL_THROUGH : 0, &e) != 0) {
        api_error(err, &e);
        say(cli, "stopped after an error", false);
        return -1;
    }
    say(cli,
        relay.signal == SIGTERM  ? "stopped by SIGTERM"
        : relay.signal == SIGINT ? "stopped by SIGINT"
                                 : "stopped: every consumer is through",
        false);
    return 0;
}

static int check(const struct cli *cli, struct error *err)
{
    size_t n;
    char *const *names = config_consumers(&cli->config, &n);
    if (commands_need_store(cli, err) != 0) return -1;
    if (n == 0) {
        return err_set(err, ERR_CONFIG,
                       "no consumers to run; say --consumer NAME --sink URL, or name with -c a config file that has a "
                       "[consumer NAME] section");
    }
    for (size_t i = 0; i < n; i++) {
        if (config_check_consumer(&cli->config, names[i], err) != 0) return -1;
    }
    return 0;
}

static int run(struct cli *cli, struct error *err)
{
    outbox *ob;
    outbox_error e;
    outbox_options opt = OUTBOX_OPTIONS_INIT;
    opt.busy_ms = cli->settings.busy_ms;
    opt.payload_max = cli->settings.payload_max;
    opt.log = write_log;
    opt.log_level = cli->settings.log_level;
    if (check(cli, err) != 0) return -1;
    if (outbox_open(cli->settings.store, &opt, &ob, &e) != 0) return api_error(err, &e);
    int r = configure(cli, ob, err);
    if (r == 0) r = deliver(cli, ob, err);
    /* A signal may still come: it must not find a handle that is gone, and we are on the way out already. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    outbox_close(ob);
    return r;
}

const struct command cmd_relay[] = {
    {.name = "relay",
     .help = "deliver events to consumers until told to stop",
     .options = options,
     .consumers = true,
     .run = run},
    {.name = NULL},
};
