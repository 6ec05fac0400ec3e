/* cmd_consume.c: outbox consume, which reads a Redis stream and runs a command for each event. With
 * a store, it remembers handled events, so that a redelivered event is not handled twice. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/num.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/logger.h"
#include "extra/streams/stream_reader.h"
#include "sink/exec_env.h"
#include "sink/sink.h"

struct consume_args {
    const char *group, *exec, *exec_env, *name, *start, *snapshot;
    int64_t claim_ms;
    bool drain;
};

#define POLL_MAX_MS 60000

/* State for the signal handler. */
static struct {
    int wake;
    volatile sig_atomic_t signal;
} stopping = {.wake = -1};

/* Rejects a list with which the command could not be started. */
static int set_exec_env(void *field, const char *value, const struct option_def *o,
                        struct error *err)
{
    if (exec_env_check(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

/* Stores a stream id. In Redis, the beginning is 0 and the end is $. */
static int set_start(void *field, const char *value, const struct option_def *o, struct error *err)
{
    if (strcmp(value, "beginning") == 0)
        return option_text(field, "0", o, err);
    if (strcmp(value, "end") == 0)
        return option_text(field, "$", o, err);

    bool is_id = *value && value[strspn(value, "0123456789-")] == '\0';
    if (!is_id)
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not beginning, end or an id such as 1748100000000-0", value);
    return option_text(field, value, o, err);
}

static const struct option_def options[] = {
    {"group", "NAME", NULL,
     "consumer group, created if missing; handled events are remembered under its name",
     option_text, OWN(consume_args, group), .letter = 'g'},
    {"exec", "COMMAND", NULL,
     "shell command to run for each event, which is on stdin; exit status 0 means handled",
     option_text, OWN(consume_args, exec)},
    {"exec-env", "NAME,...", NULL,
     "environment variables to pass to the command, besides PATH, HOME, LANG and the like",
     set_exec_env, OWN(consume_args, exec_env)},
    {"name", "NAME", NULL,
     "name of this group member, stable across restarts; default: the host name", option_text,
     OWN(consume_args, name)},
    {"start", "beginning|end|ID", "beginning", "where a new group starts", set_start,
     OWN(consume_args, start)},
    {"snapshot", "COMMAND", NULL,
     "command to run before creating the group, to copy existing data; OUTBOX_STREAM and "
     "OUTBOX_HWM tell it where the stream continues",
     option_text, OWN(consume_args, snapshot)},
    {"claim-after", "DURATION", "1m",
     "take over entries that another member has left unfinished for this long", option_span,
     OWN(consume_args, claim_ms)},
    {"drain", NULL, "no", "exit once no entries are left to read", option_bool,
     OWN(consume_args, drain)},
    OPTION_END,
};

static void write_log(void *ctx, enum log_level level, const char *group, const char *text)
{
    const struct cli *cli = ctx;
    logger_line((enum log_format)cli->settings.log_format, (int)level, group, text, 0);
}

/* Asks the reader to stop; a second signal ends the process at once. */
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

/* Makes SIGTERM and SIGINT wake the reader through an eventfd, so that it ends between two
 * events. */
static int catch_signals(struct error *err)
{
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART},
                     ignore = {.sa_handler = SIG_IGN};
    stopping.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stopping.wake < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not create an eventfd");
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    /* A write beyond the file size limit must fail, not kill the process. */
    sigaction(SIGXFSZ, &ignore, NULL);
    /* If the parent ignored SIGCHLD, exit statuses would be lost. */
    signal(SIGCHLD, SIG_DFL);
    return 0;
}

/* One event at a time goes through the exec sink. (1) `status` and `text` are valid once `ended` is
 * true. */
struct reader {
    const struct consume_args *args;
    const char *url;
    struct store *st; /* NULL: handled events are not remembered */
    struct sink *sk;
    struct buf sink_url; /* the sink borrows it until it is closed */
    bool ended;
    enum sink_status status;
    char text[400];
};

/* Called by the sink once the command has ended. */
static void note_answer(void *ctx, struct delivery *d, const struct sink_result *res)
{
    struct reader *r = ctx;
    (void)d;
    r->ended = true;
    r->status = res->status;
    snprintf(r->text, sizeof r->text, "%s", res->text ? res->text : "");
}

/* Runs the command for an event and waits until it has ended. */
static int run_command(struct reader *r, const struct event *ev, struct error *err)
{
    const struct sink_ops *ops = r->sk->ops;
    struct delivery d = {.ev = ev, .attempt = 1}, *list[] = {&d};
    struct pollfd fds[8];

    r->ended = false;
    while (!r->ended && ops->submit(r->sk, list, 1) == 0)
        ops->drive(r->sk);
    while (!r->ended) {
        size_t n = ops->fds(r->sk, fds, sizeof fds / sizeof *fds);
        int64_t left_ms = POLL_MAX_MS, due = ops->deadline(r->sk);
        if (due != CLOCK_NEVER)
            left_ms = (due - clock_mono(&clock_system) + MS_NS - 1) / MS_NS;
        poll(fds, (nfds_t)n, (int)max_i64(0, min_i64(left_ms, POLL_MAX_MS)));
        ops->drive(r->sk);
    }

    if (r->status != SINK_DELIVERED)
        return err_set(err, ERR_UNAVAILABLE, "%s", r->text);
    return 0;
}

/* Records the event as handled; with `look` it only checks, and rolls back. *ret_first: the event
 * was new; without a store every event is. */
static int record_handled(struct reader *r, const struct event *ev, bool look, bool *ret_first,
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

/* Runs the command unless the event has been handled before. No transaction is open while the
 * command runs, because the command may write to the same database. */
static int handle_event(void *ctx, const struct event *ev, struct error *err)
{
    struct reader *r = ctx;
    bool first;
    if (record_handled(r, ev, true, &first, err) != 0)
        return -1;
    if (!first)
        return 0;
    if (run_command(r, ev, err) != 0)
        return -1;
    return record_handled(r, ev, false, &first, err);
}

/* Runs the snapshot, with the stream and its starting position in the environment, and waits for
 * it. If it fails, no group is created, and the next start retries. */
static int take_snapshot(void *ctx, const char *stream, const char *hwm, struct error *err)
{
    const struct consume_args *a = ((const struct reader *)ctx)->args;
    struct exec_env *env;
    pid_t pid;
    int status;
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

    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return err_errno(err, ERR_UNAVAILABLE, errno, "could not wait for the snapshot");
    }
    if (status == 0)
        return 0;
    return err_set(err, ERR_UNAVAILABLE, "the snapshot of stream %.100s failed: exit status %d",
                   stream, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* Reads the stream until told to stop, or with --drain until no entries are left, and logs a
 * summary. */
static int read_stream(struct cli *cli, struct reader *r, struct error *err)
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
        .handle = handle_event,
        .ctx = r,
    };
    if (a->snapshot)
        cfg.snapshot = take_snapshot;

    if (!r->st)
        log_at(&log, LOG_WARN_, a->group,
               "no store given: an event that is delivered twice is handled twice");
    log_at(&log, LOG_INFO_, a->group, "started");

    struct stream_reader_stats stats;
    int rc = stream_reader_run(&cfg, &stats, err);
    log_at(&log, LOG_INFO_, a->group,
           "stopped: %lld handled, %lld failed attempts, %lld taken over, %lld skipped",
           (long long)stats.handled, (long long)stats.failed, (long long)stats.claimed,
           (long long)stats.skipped);
    return rc;
}

/* Opens the sink that a relay would use for exec:COMMAND and, if given, the store. Either way, the
 * caller calls close_all. */
static int open_all(struct cli *cli, struct reader *r, struct error *err)
{
    const struct sink_ops *ops;
    buf_init(&r->sink_url, (size_t)1 << 20);
    buf_addf(&r->sink_url, "exec:%s", r->args->exec);
    const char *url = buf_cstr(&r->sink_url);
    if (!url)
        return err_nomem(err);
    if (sink_find(url, &ops, err) != 0)
        return -1;

    struct sink_config cfg = {.url = url,
                              .consumer = r->args->group,
                              .timeout_ms = 30000,
                              .concurrency = 1,
                              .exec_env = r->args->exec_env,
                              .clock = &clock_system,
                              .done = note_answer,
                              .done_ctx = r};
    if (ops->open(&cfg, &r->sk, err) != 0)
        return -1;
    if (!cli->settings.store)
        return 0;
    int result = commands_open(cli, (struct store_options){0}, err);
    r->st = cli->st;
    return result;
}

static void close_all(struct reader *r)
{
    if (r->sk)
        r->sk->ops->close(r->sk);
    buf_release(&r->sink_url);
}

static int consume_run(struct cli *cli, struct error *err)
{
    struct reader r = {.args = cli_own(cli), .url = cli->args.pos[0]};
    if (!r.args->group)
        return commands_usage(err, "consume requires --group NAME, the consumer group");
    if (!r.args->exec)
        return commands_usage(err, "consume requires --exec COMMAND, to run for each event");
    if (strlen(r.args->group) > STORE_NAME_MAX)
        return commands_usage(err, "--group: the name is longer than %d bytes", STORE_NAME_MAX);
    if (catch_signals(err) != 0)
        return -1;

    int rc = open_all(cli, &r, err);
    if (rc == 0)
        rc = read_stream(cli, &r, err);
    close_all(&r);
    return rc;
}

const struct command cmd_consume[] = {
    {"consume", NULL, "URL", "read a Redis stream and run a command once for each event",
     .options = options, .min = 1, .max = 1, .run = consume_run},
    {NULL},
};
