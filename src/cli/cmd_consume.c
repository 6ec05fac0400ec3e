#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/logger.h"
#include "engine/stream_reader.h"
#include "sink/exec_env.h"
#include "sink/sink.h"

/* What a signal handler can reach. */
static struct {
    int wake;
    volatile sig_atomic_t signal;
} stopping = {.wake = -1};

static int set_exec_env(void *field, const char *value, const struct option_def *o,
                        struct error *err)
{
    if (exec_env_check(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

static int set_start(void *field, const char *value, const struct option_def *o, struct error *err)
{
    if (strcmp(value, "beginning") == 0)
        value = "0";
    else if (strcmp(value, "end") == 0)
        value = "$";
    else if (value[strspn(value, "0123456789-")] || !*value)
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not beginning, end or an id such as 1748100000000-0", value);
    return option_text(field, value, o, err);
}

static const struct option_def options[] = {
    {"group", "NAME", NULL,
     "consumer group, created if missing; handled events are remembered under its name",
     option_text, ARG(consume.group), .letter = 'g'},
    {"exec", "COMMAND", NULL,
     "shell command to run per event: the event on stdin, exit status 0 means handled", option_text,
     ARG(consume.exec)},
    {"exec-env", "NAME,...", NULL,
     "environment variables to pass to the command, besides PATH, HOME, LANG and the like",
     set_exec_env, ARG(consume.exec_env)},
    {"name", "NAME", NULL,
     "name of this group member, stable across restarts; the host name if not given", option_text,
     ARG(consume.name)},
    {"start", "beginning|end|ID", "beginning", "where a new group starts", set_start,
     ARG(consume.start)},
    {"snapshot", "COMMAND", NULL,
     "run this before creating the group, to copy existing data; OUTBOX_STREAM and OUTBOX_HWM say "
     "where the stream goes on",
     option_text, ARG(consume.snapshot)},
    {"claim-after", "DURATION", "1m",
     "take over entries that another member has not finished for this long", option_span,
     ARG(consume.claim_ms)},
    {"drain", NULL, "no", "exit once nothing is left to read", option_bool, ARG(consume.drain)},
    OPTION_END,
};

static void write_log(void *cli, enum log_level level, const char *group, const char *text)
{
    logger_line((enum log_format)((const struct cli *)cli)->settings.log_format, (int)level, group,
                text, 0);
}

static void on_signal(int number)
{
    uint64_t one = 1;
    int saved = errno;
    if (stopping.signal)
        _exit(128 + number);
    stopping.signal = number;
    if (write(stopping.wake, &one, sizeof one) < 0)
        _exit(128 + number);
    errno = saved;
}

static int catch_signals(struct error *err)
{
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART},
                     ignore = {.sa_handler = SIG_IGN};
    stopping.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stopping.wake < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not make an eventfd");
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL); /* a limit on the size of files is an error like any other */
    signal(SIGCHLD, SIG_DFL);
    return 0;
}

/* One event goes through the exec sink at a time. */
struct reader {
    const struct consume_args *args;
    const char *url;
    struct store *st; /* NULL: nothing is remembered */
    struct sink *sk;
    bool ended;
    enum sink_status status;
    char text[400];
};

static void done(void *ctx, struct delivery *d, const struct sink_result *res)
{
    struct reader *r = ctx;
    (void)d;
    r->ended = true;
    r->status = res->status;
    snprintf(r->text, sizeof r->text, "%s", res->text ? res->text : "");
}

static int run_command(struct reader *r, const struct event *ev, struct error *err)
{
    struct delivery d = {ev, 1}, *list[] = {&d};
    struct pollfd fds[8];
    r->ended = false;
    while (!r->ended && r->sk->ops->submit(r->sk, list, 1) == 0)
        r->sk->ops->drive(r->sk);
    while (!r->ended) {
        size_t n = r->sk->ops->fds(r->sk, fds, sizeof fds / sizeof *fds);
        int64_t at = r->sk->ops->deadline(r->sk), now = clock_mono(&clock_system);
        int64_t ms = at == CLOCK_NEVER ? 60000 : at > now ? (at - now) / MS_NS + 1 : 0;
        poll(fds, (nfds_t)n, ms > 60000 ? 60000 : (int)ms);
        r->sk->ops->drive(r->sk);
    }
    return r->status == SINK_DELIVERED ? 0 : err_set(err, ERR_UNAVAILABLE, "%s", r->text);
}

/* remember records the event as handled, or with `look` only sees whether it is. */
static int remember(struct reader *r, const struct event *ev, bool look, bool *ret_first,
                    struct error *err)
{
    *ret_first = true;
    if (!r->st)
        return 0;
    if (r->st->ops->begin(r->st, err) != 0)
        return -1;
    int rc = r->st->ops->handle_once(r->st, NULL, str_of(r->args->group), ev->id, ev->payload,
                                     ret_first, err);
    if (rc == 0 && !look)
        return r->st->ops->commit(r->st, err);
    r->st->ops->rollback(r->st);
    return rc;
}

/* handle: no transaction is open while the command runs, since it may want to write to the same
 * database. */
static int handle(void *ctx, const struct event *ev, struct error *err)
{
    struct reader *r = ctx;
    bool first;
    if (remember(r, ev, true, &first, err) != 0)
        return -1;
    if (!first)
        return 0;
    if (run_command(r, ev, err) != 0)
        return -1;
    return remember(r, ev, false, &first, err);
}

/* run_snapshot runs the command with two facts in its environment; *ret_status is as waitpid has
 * it. */
static int run_snapshot(const struct consume_args *a, const char *stream, const char *hwm,
                        int *ret_status, struct error *err)
{
    struct exec_env *env;
    pid_t pid;
    if (exec_env_new(a->exec_env, &env, err) != 0)
        return -1;
    int r = exec_env_text(env, "OUTBOX_STREAM", str_of(stream), err);
    if (r == 0)
        r = exec_env_text(env, "OUTBOX_HWM", str_of(hwm), err);
    if (r == 0) {
        struct exec_start s = {
            .command = a->snapshot, .env = exec_env_list(env), .in = -1, .err = -1};
        int e = exec_start(&s, &pid);
        if (e)
            r = err_errno(err, ERR_UNAVAILABLE, e, "could not start the snapshot");
    }
    exec_env_free(env);
    if (r != 0)
        return -1;
    while (waitpid(pid, ret_status, 0) < 0)
        if (errno != EINTR)
            return err_errno(err, ERR_UNAVAILABLE, errno, "could not wait for the snapshot");
    return 0;
}

static int take_snapshot(void *ctx, const char *stream, const char *hwm, struct error *err)
{
    const struct reader *r = ctx;
    int status;
    if (run_snapshot(r->args, stream, hwm, &status, err) != 0)
        return -1;
    if (status == 0)
        return 0;
    return err_set(err, ERR_UNAVAILABLE, "the snapshot of stream %.100s failed: exit status %d",
                   stream, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

static int check(const struct consume_args *args, struct error *err)
{
    if (!args->group)
        return options_usage(err, "which consumer group? say --group NAME");
    if (!args->exec)
        return options_usage(err, "what to do with an event? say --exec COMMAND");
    if (strlen(args->group) > STORE_NAME_MAX)
        return options_usage(err, "the name of the group is too long");
    return 0;
}

static int open_sink(struct reader *r, const char *url, struct error *err)
{
    const struct sink_ops *ops;
    struct sink_config cfg = {.url = url,
                              .consumer = r->args->group,
                              .timeout_ms = 30000,
                              .concurrency = 1,
                              .exec_env = r->args->exec_env,
                              .clock = &clock_system,
                              .done = done,
                              .done_ctx = r};
    return sink_find(url, &ops, err) == 0 ? ops->open(&cfg, &r->sk, err) : -1;
}

static int consume(struct cli *cli, struct reader *r, struct error *err)
{
    const struct consume_args *a = r->args;
    struct log log = {.write = write_log, .ctx = cli, .least = cli->settings.log_level};
    struct stream_reader_config cfg = {
        .url = r->url,
        .group = a->group,
        .name = a->name,
        .from = a->start,
        .claim_ms = a->claim_ms,
        .until_through = a->drain,
        .wake = stopping.wake,
        .log = &log,
        .handle = handle,
        .snapshot = a->snapshot ? take_snapshot : NULL,
        .ctx = r,
    };
    struct stream_reader_stats stats;
    if (!r->st)
        log_at(&log, LOG_WARN_, a->group,
               "no store is given: an event that comes again is handled again");
    log_at(&log, LOG_INFO_, a->group, "started");
    int rc = stream_reader_run(&cfg, &stats, err);
    log_at(&log, LOG_INFO_, a->group,
           "stopped: %lld handled, %lld failed attempts, %lld taken over, %lld skipped",
           (long long)stats.handled, (long long)stats.failed, (long long)stats.claimed,
           (long long)stats.skipped);
    return rc;
}

static int run(struct cli *cli, struct error *err)
{
    struct reader r = {.args = &cli->args.consume, .url = cli->args.pos[0]};
    struct buf url;
    if (check(r.args, err) != 0)
        return -1;
    buf_init(&url, (size_t)1 << 20);
    buf_addf(&url, "exec:%s", r.args->exec);
    int rc = buf_cstr(&url) ? 0 : err_nomem(err);
    if (rc == 0)
        rc = catch_signals(err);
    if (rc == 0)
        rc = open_sink(&r, url.p, err);
    if (rc == 0 && cli->settings.store)
        rc = commands_store(cli, &r.st, err);
    if (rc == 0)
        rc = consume(cli, &r, err);
    store_close(r.st);
    if (r.sk)
        r.sk->ops->close(r.sk);
    buf_release(&url);
    return rc;
}

const struct command cmd_consume[] = {
    {.name = "consume",
     .args = "URL",
     .help = "read a Redis stream and run a command for each event, once",
     .options = options,
     .min = 1,
     .max = 1,
     .run = run},
    {.name = NULL},
};
