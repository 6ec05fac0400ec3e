/* cmd_status.c: outbox status, which shows the store and its consumers, once or repeatedly, and
 * outbox hwm, which shows the high-water marks of streams. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

struct status_args {
    bool watch;
    int64_t interval_ms;
};

#define NAMES_MAX 256 /* consumers whose rates are shown */

static volatile sig_atomic_t interrupted;

static const struct option_def options[] = {
    OPTION_JSON,
    {"watch", NULL, "no", "repeat until interrupted, and show rates", option_bool,
     OWN(status_args, watch), .env = true},
    {"interval", "DURATION", "1s", "with --watch: time between updates", option_span,
     OWN(status_args, interval_ms), .min = 10, .env = true},
    OPTION_END,
};

/* A consumer's counters at one moment. Two of them yield a rate. */
struct counters {
    char name[STORE_NAME_MAX + 1];
    int64_t delivered, position;
};

/* The store at the latest update. (1) `before`, before_ns and before_head are from the update
 * before; at first n_before and before_ns are 0. */
struct look {
    struct cli *cli;
    const struct status_args *args;
    struct listed_status status;
    struct counters before[NAMES_MAX];
    size_t n_before;
    int64_t before_ns, now_ns, before_head;
};

/* Returns a rate, or -1 without an earlier update. */
static int64_t per_second(const struct look *l, int64_t now, int64_t before)
{
    int64_t span = l->now_ns - l->before_ns;
    if (!l->before_ns || span <= 0)
        return -1;
    return (int64_t)((double)(now - before) * 1e9 / (double)span + 0.5);
}

static struct listed_consumer row_of(const struct look *l, const struct consumer_info *c)
{
    struct listed_consumer row = fields_consumer_row(c, l->status.info.now_ms);
    for (size_t i = 0; i < l->n_before; i++) {
        const struct counters *m = &l->before[i];
        if (strcmp(m->name, c->spec.name) != 0)
            continue;
        row.delivered_per_s = per_second(l, c->delivered, m->delivered);
        row.read_per_s = per_second(l, c->position, m->position);
        row.has_rates = row.delivered_per_s >= 0;
    }
    return row;
}

/* ---- printing ---- */

/* Prints a line about the store, and a row for each consumer. Only --watch has two updates to
 * compute rates from. */
static int print_text(const struct look *l, struct error *err)
{
    const struct store_info *i = &l->status.info;
    int64_t rate = per_second(l, i->head, l->before_head);
    struct buf b;
    buf_init(&b, 8192);
    output_addf(&b, "store %s", l->status.url);
    buf_addf(&b, ": %s%s kept, head %lld", i->events_exact ? "" : "about ",
             human_count(i->events, "event"), (long long)i->head);
    if (i->oldest_at)
        buf_addf(&b, ", oldest %s old", human_age(clock_since(i->now_ms, i->oldest_at)));
    if (l->args->watch && rate >= 0)
        buf_addf(&b, ", %lld emitted/s", (long long)rate);
    buf_adds(&b, "\n");
    buf_adds(&b, l->status.n ? "\n" : "no consumers yet: a relay registers those it runs\n");
    int r = output_flush(&b, err);
    buf_release(&b);
    if (r != 0)
        return -1;

#define COLUMNS "name state behind lag_ms- in_flight delivered parked dead "
    const char *columns = COLUMNS "trouble~";
    if (l->args->watch)
        columns = COLUMNS "delivered_per_s- read_per_s- trouble~";
#undef COLUMNS
    return output_rows(l->cli, fields_consumer, columns, l->status.consumer, l->status.n,
                       sizeof *l->status.consumer, err);
}

/* ---- once, or repeatedly ---- */

/* Reads the store and its consumers. */
static int read_status(struct look *l, struct error *err)
{
    struct cli *cli = l->cli;
    struct consumer_info *c;
    size_t n;
    arena_reset(&cli->arena);
    if (cli->st->ops->info(cli->st, &l->status.info, err) != 0)
        return -1;
    if (cli->st->ops->consumer_list(cli->st, NULL, &cli->arena, &c, &n, err) != 0)
        return -1;
    l->now_ns = clock_mono(&clock_system);

    struct listed_consumer *rows = arena_alloc(&cli->arena, (n + 1) * sizeof *rows);
    if (!rows)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++)
        rows[i] = row_of(l, &c[i]);
    l->status.consumer = rows;
    l->status.n = n;
    return output_masked(cli, cli->settings.store, &l->status.url, err);
}

/* Reads and prints the state once. The counters are stored only after they were printed, so that a
 * rate always covers the time between two tables. */
static int show_once(struct look *l, struct error *err)
{
    if (read_status(l, err) != 0)
        return -1;

    /* On a terminal, --watch redraws from the top. */
    bool json = l->cli->args.json, redraws = l->args->watch && !json;
    if (redraws && isatty(STDOUT_FILENO))
        fputs("\033[H\033[2J", stdout);
    int r;
    if (json)
        r = output_result(l->cli, fields_status, &l->status, NULL, err);
    else
        r = print_text(l, err);
    if (r != 0)
        return -1;

    /* Keep the counters for the next update's rates. */
    l->before_ns = l->now_ns;
    l->before_head = l->status.info.head;
    l->n_before = l->status.n < NAMES_MAX ? l->status.n : NAMES_MAX;
    for (size_t i = 0; i < l->n_before; i++) {
        struct counters *m = &l->before[i];
        const struct consumer_info *c = &l->status.consumer[i].c;
        snprintf(m->name, sizeof(m->name), "%s", c->spec.name);
        m->delivered = c->delivered;
        m->position = c->position;
    }
    return output_end(err);
}

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

/* With --watch it repeats until SIGINT or SIGTERM, which end it with exit status 0. */
static int status_run(struct cli *cli, struct error *err)
{
    struct look l = {.cli = cli, .args = cli_own(cli)};
    if (!l.args->watch)
        return show_once(&l, err);

    struct sigaction stop = {.sa_handler = on_signal};
    int64_t ms = l.args->interval_ms;
    struct timespec pause = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000 * MS_NS)};
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    while (!interrupted) {
        if (show_once(&l, err) != 0)
            return -1;
        if (!interrupted)
            nanosleep(&pause, NULL);
    }
    return 0;
}

const struct command cmd_status[] = {
    {"status", NULL, NULL, "show the state of the store and its consumers", .options = options,
     .opens = OPENS_STORE, .json = JSON_OBJECT(fields_status), .run = status_run},
    {NULL},
};

/* ---- high-water marks ---- */

struct hwm_args {
    const char *consumer;
};

static const struct option_def hwm_options[] = {
    {"consumer", "NAME", NULL,
     "only marks recorded by this consumer; without this option, marks may come from the roles of "
     "other consumers",
     option_checked, OWN(hwm_args, consumer), .check = store_name_check},
    OPTION_JSON,
    OPTION_END,
};

/* Marks being listed. The store visits the marks of a stream together, the furthest first. */
struct high_marks {
    const struct cli *cli;
    struct buf b;
    bool any;
    char last[1024]; /* the stream of the previous mark */
};

/* Adds a mark: for a single stream only the furthest, as a bare id for scripts; else a row for
 * each. */
static int visit_mark(void *ctx, const char *consumer, const struct hwm *m, int64_t at)
{
    struct high_marks *l = ctx;
    const struct args *a = &l->cli->args;
    const char *wanted = ((const struct hwm_args *)cli_own(l->cli))->consumer;
    if (wanted && strcmp(wanted, consumer) != 0)
        return 0;

    char id[48];
    bool one_stream = a->n_pos > 0;
    bool furthest = !l->any || !str_eq(str_of(l->last), m->stream);
    snprintf(id, sizeof id, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    snprintf(l->last, sizeof l->last, "%.*s", (int)m->stream.n, m->stream.p);
    l->any = true;

    if (a->json) {
        struct listed_mark row = {l->last, id, consumer, at};
        listing_object(&l->b, fields_mark, &row);
        buf_addc(&l->b, '\n');
    } else if (!one_stream) {
        output_addf(&l->b, "%-24s %-32s %s\n", id, l->last, consumer);
    } else if (furthest) {
        buf_addf(&l->b, "%s\n", id);
    }
    return 0;
}

static int hwm_run(struct cli *cli, struct error *err)
{
    struct high_marks l = {.cli = cli};
    const char *stream = cli->args.pos[0]; /* NULL: all */
    buf_init(&l.b, (size_t)64 << 20);
    int r = cli->st->ops->marks(cli->st, stream, visit_mark, &l, err);
    if (r == 0 && stream && !l.any)
        r = err_set(
            err, ERR_NOTFOUND,
            "nothing has been written to a stream \"%s\" yet; `outbox hwm` lists the streams",
            stream);
    if (r == 0)
        r = output_flush(&l.b, err);
    buf_release(&l.b);
    return r;
}

const struct command cmd_hwm[] = {
    {"hwm", NULL, "[STREAM]", "show the high-water mark of a stream: the last id written to it",
     .options = hwm_options, .max = 1, .opens = OPENS_STORE, .json = JSON_LINES(fields_mark),
     .run = hwm_run},
    {NULL},
};
