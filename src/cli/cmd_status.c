/* cmd_status.c: outbox status, which shows the store and its consumers, once or repeatedly. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"

#define NAMES_MAX 256 /* consumers whose rates are shown */

static volatile sig_atomic_t interrupted;

static const struct option_def options[] = {
    OPTION_JSON,
    {"watch", NULL, "no", "repeat until interrupted, and show rates", option_bool,
     ARG(status.watch), .env = true},
    {"interval", "DURATION", "1s", "with --watch: time between updates", option_span,
     ARG(status.interval_ms), .min = 10, .env = true},
    OPTION_END,
};

/* A consumer's counters at one moment. Two of them make a rate. */
struct mark {
    char name[STORE_NAME_MAX + 1];
    int64_t delivered, position;
};

/* The store at the latest update. (1) `before`, before_ns and before_head are from the update
 * before; at first n_before and before_ns are 0. */
struct look {
    const struct cli *cli;
    struct store *st;
    struct arena arena;
    struct store_info info;
    struct consumer_info *c;
    size_t n;
    struct mark before[NAMES_MAX];
    size_t n_before;
    int64_t before_ns, now_ns, before_head;
};

/* Reads the state of the store and of every consumer. */
static int read_state(struct look *l, struct error *err)
{
    arena_reset(&l->arena);
    if (l->st->ops->info(l->st, &l->info, err) != 0)
        return -1;
    if (l->st->ops->consumer_list(l->st, NULL, &l->arena, &l->c, &l->n, err) != 0)
        return -1;
    l->now_ns = clock_mono(&clock_system);
    return 0;
}

/* Keeps the counters for the next look to compare with. */
static void keep_counters(struct look *l)
{
    l->before_ns = l->now_ns;
    l->before_head = l->info.head;
    l->n_before = l->n < NAMES_MAX ? l->n : NAMES_MAX;
    for (size_t i = 0; i < l->n_before; i++) {
        struct mark *m = &l->before[i];
        const struct consumer_info *c = &l->c[i];
        snprintf(m->name, sizeof(m->name), "%s", c->spec.name);
        m->delivered = c->delivered;
        m->position = c->position;
    }
}

/* Returns a rate, or -1 if there is nothing to compare with. */
static int64_t per_second(const struct look *l, int64_t now, int64_t before)
{
    int64_t span = l->now_ns - l->before_ns;
    if (!l->before_ns || span <= 0)
        return -1;
    return (int64_t)((double)(now - before) * 1e9 / (double)span + 0.5);
}

/* ---- printing ---- */

static struct listed_consumer row_of(const struct look *l, const struct consumer_info *c)
{
    struct listed_consumer row = {
        .c = *c, .now_ms = l->info.now_ms, .delivered_per_s = -1, .read_per_s = -1};
    for (size_t i = 0; i < l->n_before; i++) {
        const struct mark *m = &l->before[i];
        if (strcmp(m->name, c->spec.name) != 0)
            continue;
        row.delivered_per_s = per_second(l, c->delivered, m->delivered);
        row.read_per_s = per_second(l, c->position, m->position);
    }
    return row;
}

/* Prints a line about the store. */
static int print_store(const struct look *l, struct error *err)
{
    const struct store_info *i = &l->info;
    char age[HUMAN_AGE], kept[HUMAN_COUNT];
    int64_t rate = per_second(l, i->head, l->before_head);
    struct buf b, url;
    buf_init(&b, 8192);
    output_addf(&b, "store %s", output_store(l->cli, &url));
    buf_release(&url);
    buf_addf(&b, ": %s%s kept, head %lld", i->events_exact ? "" : "about ",
             human_count(i->events, "event", kept), (long long)i->head);
    if (i->oldest_at)
        buf_addf(&b, ", oldest %s old", human_age(clock_since(i->now_ms, i->oldest_at), age));
    if (l->cli->args.status.watch && rate >= 0)
        buf_addf(&b, ", %lld emitted/s", (long long)rate);
    buf_adds(&b, "\n");
    buf_adds(&b, l->n ? "\n" : "no consumers yet: a relay registers those it runs\n");

    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* Prints the store, and a row for each consumer. Only --watch has two updates to compute rates
 * from. */
static int print_text(const struct look *l, struct error *err)
{
#define COLUMNS "name state behind lag_ms- in_flight delivered parked dead "
    const char *columns = COLUMNS "trouble~";
    if (l->cli->args.status.watch)
        columns = COLUMNS "delivered_per_s- read_per_s- trouble~";
#undef COLUMNS
    struct listing out;
    if (print_store(l, err) != 0)
        return -1;
    if (output_listing(l->cli, &out, fields_consumer, columns, err) != 0)
        return -1;
    int r = 0;
    for (size_t i = 0; i < l->n && r == 0; i++) {
        struct listed_consumer row = row_of(l, &l->c[i]);
        r = listing_add(&out, &row, err);
    }
    return listing_end(&out, r, err);
}

static int print_json(struct look *l, struct error *err)
{
    struct listed_consumer *rows = arena_alloc(&l->arena, (l->n + 1) * sizeof *rows);
    struct buf url;
    if (!rows)
        return err_nomem(err);
    for (size_t i = 0; i < l->n; i++)
        rows[i] = row_of(l, &l->c[i]);

    struct listed_status status = {
        .url = output_store(l->cli, &url), .info = l->info, .consumer = rows, .n = l->n};
    int r = output_result(l->cli, fields_status, &status, NULL, err);
    buf_release(&url);
    return r;
}

/* ---- once, or repeatedly ---- */

/* Looks and prints once. The counters are kept only after they were printed, so that a rate always
 * covers the time between two tables. */
static int show_once(struct look *l, struct error *err)
{
    if (read_state(l, err) != 0)
        return -1;

    /* A --watch on a terminal starts at the top again. */
    const struct args *a = &l->cli->args;
    bool redraws = a->status.watch && !a->json;
    if (redraws && isatty(STDOUT_FILENO))
        fputs("\033[H\033[2J", stdout);

    int r;
    if (l->cli->args.json)
        r = print_json(l, err);
    else
        r = print_text(l, err);
    if (r != 0)
        return -1;

    keep_counters(l);
    return output_end(err);
}

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

/* Repeats until SIGINT or SIGTERM, which end it with exit status 0. */
static int show_repeatedly(struct look *l, struct error *err)
{
    struct sigaction stop = {.sa_handler = on_signal};
    int64_t ms = l->cli->args.status.interval_ms;
    struct timespec pause = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000 * MS_NS)};
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    while (!interrupted) {
        if (show_once(l, err) != 0)
            return -1;
        if (!interrupted)
            nanosleep(&pause, NULL);
    }
    return 0;
}

static int status_run(struct cli *cli, struct error *err)
{
    struct look l = {.cli = cli};
    if (commands_store(cli, &l.st, err) != 0)
        return -1;

    arena_init(&l.arena, 0);
    int r;
    if (cli->args.status.watch)
        r = show_repeatedly(&l, err);
    else
        r = show_once(&l, err);
    arena_release(&l.arena);
    store_close(l.st);
    return r;
}

const struct command cmd_status[] = {
    {"status", NULL, NULL, "show the state of the store and its consumers", .options = options,
     .json = JSON_OBJECT(fields_status), .run = status_run},
    {NULL},
};
