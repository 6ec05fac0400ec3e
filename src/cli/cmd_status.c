/* cmd_status.c: outbox status, which shows the store and its consumers, once or repeatedly. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"

#define COLUMNS 11    /* of the table with rates */
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

/* The store as it was seen last. (1) `before`, before_ns and before_head are from the time before
 * that; at first n_before and before_ns are 0. */
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

/* look reads the state of the store and of every consumer. */
static int look(struct look *l, struct error *err)
{
    arena_reset(&l->arena);
    if (l->st->ops->info(l->st, &l->info, err) != 0)
        return -1;
    if (l->st->ops->consumer_list(l->st, NULL, &l->arena, &l->c, &l->n, err) != 0)
        return -1;
    l->now_ns = clock_mono(&clock_system);
    return 0;
}

/* remember keeps the counters for the next look to compare with. */
static void remember(struct look *l)
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

static const struct mark *mark_of(const struct look *l, const char *name)
{
    for (size_t i = 0; i < l->n_before; i++) {
        if (strcmp(l->before[i].name, name) == 0)
            return &l->before[i];
    }
    return NULL;
}

/* per_second returns a rate, or -1 if there is nothing to compare with. */
static int64_t per_second(const struct look *l, int64_t now, int64_t before)
{
    int64_t span = l->now_ns - l->before_ns;
    if (!l->before_ns || span <= 0)
        return -1;
    return (int64_t)((double)(now - before) * 1e9 / (double)span + 0.5);
}

static int64_t delivery_rate(const struct look *l, const struct consumer_info *c)
{
    const struct mark *m = mark_of(l, c->spec.name);
    if (!m)
        return -1;
    return per_second(l, c->delivered, m->delivered);
}

static int64_t position_rate(const struct look *l, const struct consumer_info *c)
{
    const struct mark *m = mark_of(l, c->spec.name);
    if (!m)
        return -1;
    return per_second(l, c->position, m->position);
}

/* ---- as a table ---- */

static const char *rate_text(int64_t rate, char out[OUTPUT_INT])
{
    if (rate < 0)
        return "-";
    return output_int(rate, out);
}

/* lag_of says how old the oldest event is that is not delivered. */
static const char *lag_of(const struct look *l, const struct consumer_info *c, char out[OUTPUT_AGE])
{
    if (!c->oldest_at)
        return "-";
    return output_age(clock_since(l->info.now_ms, c->oldest_at), out);
}

/* paint colours the state and the dead letters of the row that was added last. */
static void paint(struct libscols_table *tb, const struct consumer_info *c)
{
    enum { STATE = 1, DEAD = 7 };
    static const char *const colors[][2] = {{"paused", "yellow"},
                                            {"down", "red"},
                                            {"in-flight", "cyan"},
                                            {"retrying", "magenta"},
                                            {"idle", "green"}};
    const char *state = output_consumer_state(c);
    for (size_t i = 0; i < sizeof(colors) / sizeof(*colors); i++) {
        if (strcmp(colors[i][0], state) == 0)
            output_paint(tb, STATE, colors[i][1]);
    }
    if (c->dead)
        output_paint(tb, DEAD, "red");
}

/* add_row adds a consumer. With --watch two rates come before the last error. */
static int add_row(const struct look *l, struct libscols_table *tb, const struct consumer_info *c,
                   struct error *err)
{
    char behind[OUTPUT_INT], delivered[OUTPUT_INT], inflight[OUTPUT_INT], parked[OUTPUT_INT],
        dead[OUTPUT_INT];
    char lag[OUTPUT_AGE], rate[2][OUTPUT_INT];
    struct buf text;
    buf_init(&text, 8192);
    const char *error = output_last_error(c, l->info.now_ms, &text);
    const char *cells[COLUMNS] = {
        c->spec.name,
        output_consumer_state(c),
        output_about(c->behind, c->behind_exact, behind),
        lag_of(l, c, lag),
        output_about(c->inflight, c->inflight_exact, inflight),
        output_int(c->delivered, delivered),
        output_about(c->parked, c->parked_exact, parked),
        output_int(c->dead, dead),
        error,
    };
    if (l->cli->args.status.watch) {
        cells[COLUMNS - 3] = rate_text(delivery_rate(l, c), rate[0]);
        cells[COLUMNS - 2] = rate_text(position_rate(l, c), rate[1]);
        cells[COLUMNS - 1] = error;
    }

    int r;
    if (text.failed)
        r = err_nomem(err);
    else
        r = output_row(tb, cells, err);
    buf_release(&text);
    if (r == 0)
        paint(tb, c);
    return r;
}

/* consumers_table prints a row for each consumer. Only --watch has two looks to make rates of. */
static int consumers_table(const struct look *l, struct error *err)
{
#define COMMON \
    {"NAME", false, false}, {"STATE", false, false}, {"BEHIND", true, false}, \
        {"LAG", true, false}, {"IN-FLIGHT", true, false}, {"DELIVERED", true, false}, \
        {"PARKED", true, false}, \
    { \
        "DEAD", true, false \
    }
    static const struct output_column once[] = {
        COMMON, {"LAST ERROR", false, true}, {NULL, false, false}};
    static const struct output_column watch[] = {COMMON,
                                                 {"DELIVERED/S", true, false},
                                                 {"READ/S", true, false},
                                                 {"LAST ERROR", false, true},
                                                 {NULL, false, false}};
#undef COMMON
    struct libscols_table *tb;
    bool color = output_color(&l->cli->settings);
    if (output_table(l->cli->args.status.watch ? watch : once, true, color, &tb, err) != 0)
        return -1;
    for (size_t i = 0; i < l->n; i++) {
        if (add_row(l, tb, &l->c[i], err) != 0) {
            output_discard(tb);
            return -1;
        }
    }
    return output_print(tb, err);
}

/* print_text prints a line about the store, and a table of its consumers. */
static int print_text(const struct look *l, struct error *err)
{
    const struct store_info *i = &l->info;
    struct buf b, url;
    char age[OUTPUT_AGE], kept[OUTPUT_COUNT];
    int64_t rate = per_second(l, i->head, l->before_head);
    buf_init(&b, 8192);
    buf_init(&url, 4096);
    config_mask(&url, l->cli->settings.store);
    if (buf_cstr(&url))
        output_addf(&b, "store %s", url.p);
    b.failed = b.failed || url.failed;
    buf_release(&url);
    buf_addf(&b, ": %s%s kept, head %lld", i->events_exact ? "" : "about ",
             output_count(i->events, "event", kept), (long long)i->head);
    if (i->oldest_at)
        buf_addf(&b, ", oldest %s old", output_age(clock_since(i->now_ms, i->oldest_at), age));
    if (l->cli->args.status.watch && rate >= 0)
        buf_addf(&b, ", %lld emitted/s", (long long)rate);
    buf_adds(&b, "\n");
    buf_adds(&b, l->n ? "\n" : "no consumers yet: a relay registers those it runs\n");

    int r = output_flush(&b, err);
    buf_release(&b);
    if (r != 0)
        return -1;
    return consumers_table(l, err);
}

/* ---- as JSON ---- */

/* add_store adds the members of the store; its URL without the password. */
static void add_store(struct buf *b, const struct look *l)
{
    const struct store_info *i = &l->info;
    struct buf url;
    buf_init(&url, 4096);
    config_mask(&url, l->cli->settings.store);
    output_string(b, "url", buf_cstr(&url));
    if (url.failed)
        b->failed = true;
    buf_release(&url);
    output_number(b, "schema_version", i->schema_version);
    output_number(b, "events", i->events);
    output_bool(b, "events_exact", i->events_exact);
    output_number(b, "head", i->head);
    output_number(b, "tail", i->tail);
    output_stamp(b, "oldest_at", i->oldest_at);
    output_number(b, "consumers", i->consumers);
    output_number(b, "dead", i->dead);
    output_stamp(b, "now", i->now_ms);
}

static int print_json(const struct look *l, struct error *err)
{
    struct buf b;
    buf_init(&b, (size_t)16 << 20);
    buf_adds(&b, "{\"store\":{");
    add_store(&b, l);
    buf_adds(&b, "},\"consumers\":[");
    for (size_t i = 0; i < l->n; i++) {
        int64_t rate = delivery_rate(l, &l->c[i]);
        buf_adds(&b, i ? ",{" : "{");
        output_consumer(&b, &l->c[i], l->info.now_ms);
        if (rate >= 0)
            output_number(&b, "delivered_per_s", rate);
        buf_addc(&b, '}');
    }
    buf_adds(&b, "]}\n");
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* ---- once, or repeatedly ---- */

/* clear_screen starts a --watch on a terminal at the top again. */
static void clear_screen(const struct args *a)
{
    bool redraws = a->status.watch && !a->json;
    if (redraws && isatty(STDOUT_FILENO))
        fputs("\033[H\033[2J", stdout);
}

/* show looks and prints once. The counters are remembered only after they were printed, so that a
 * rate is always about the time between two tables. */
static int show(struct look *l, struct error *err)
{
    if (look(l, err) != 0)
        return -1;

    clear_screen(&l->cli->args);
    int r;
    if (l->cli->args.json)
        r = print_json(l, err);
    else
        r = print_text(l, err);
    if (r != 0)
        return -1;

    remember(l);
    return output_end(err);
}

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

/* watch repeats until SIGINT or SIGTERM, which end it with exit status 0. */
static int watch(struct look *l, struct error *err)
{
    struct sigaction stop = {.sa_handler = on_signal};
    int64_t ms = l->cli->args.status.interval_ms;
    struct timespec pause = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000 * MS_NS)};
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    while (!interrupted) {
        if (show(l, err) != 0)
            return -1;
        if (!interrupted)
            nanosleep(&pause, NULL);
    }
    return 0;
}

static int run(struct cli *cli, struct error *err)
{
    struct look l = {.cli = cli};
    if (commands_store(cli, &l.st, err) != 0)
        return -1;

    arena_init(&l.arena, 0);
    int r;
    if (cli->args.status.watch)
        r = watch(&l, err);
    else
        r = show(&l, err);
    arena_release(&l.arena);
    store_close(l.st);
    return r;
}

const struct command cmd_status[] = {
    {.name = "status",
     .help = "show the state of the store and its consumers",
     .options = options,
     .run = run},
    {.name = NULL},
};
