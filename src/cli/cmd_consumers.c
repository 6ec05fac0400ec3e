#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"

static const struct option_def list_options[] = {OPTION_JSON, OPTION_END};
static const struct option_def set_options[] = {
    {"events", "PATTERN,...", NULL, "event types to deliver from now on; \"\" for all", option_text,
     ARG(consumers.events)},
    {"where", "EXPR", NULL, "payload predicate from now on; \"\" for none", option_text,
     ARG(consumers.where)},
    {"order", "none|key|global", NULL,
     "which events stay in order, once nothing is in flight or parked", option_text,
     ARG(consumers.order)},
    {"lanes", "N", NULL, "number of lanes, 1 to 64, once nothing is in flight or parked",
     option_text, ARG(consumers.lanes)},
    OPTION_JSON,
    OPTION_END,
};
static const struct option_def revert_options[] = {
    {"to", "GENERATION", NULL, "which settings; those before the last change if not given",
     option_long, ARG(consumers.generation), .min = 1, .max = INT32_MAX},
    OPTION_JSON,
    OPTION_END,
};
static const struct option_def remove_options[] = {
    {"force", NULL, "no", "even with dead letters, events waiting for a retry, or a running relay",
     option_bool, ARG(consumers.force)},
    OPTION_DRY_RUN,
    OPTION_YES,
    OPTION_JSON,
    OPTION_END,
};

/* ---- list ---- */

static int add_row(struct libscols_table *tb, const struct consumer_info *c, struct error *err)
{
    char lanes[OUTPUT_INT], position[OUTPUT_INT], dead[OUTPUT_INT], inflight[OUTPUT_INT];
    const struct consumer_spec *s = &c->spec;
    const char *cells[] = {
        s->name,
        output_consumer_state(c),
        s->events && *s->events ? s->events : "*",
        s->where,
        store_order_names[s->order],
        output_int(s->lanes, lanes),
        s->retry,
        output_int(c->position, position),
        output_about(c->inflight, c->inflight_exact, inflight),
        output_int(c->dead, dead),
    };
    return output_row(tb, cells, err);
}

static int print_table(const struct cli *cli, const struct consumer_info *c, size_t n,
                       struct error *err)
{
    static const struct output_column columns[] = {
        {"NAME", false, false}, {"STATE", false, false},   {"EVENTS", false, true},
        {"WHERE", false, true}, {"ORDER", false, false},   {"LANES", true, false},
        {"RETRY", false, true}, {"POSITION", true, false}, {"IN-FLIGHT", true, false},
        {"DEAD", true, false},  {NULL, false, false},
    };
    struct libscols_table *tb;
    if (output_table(columns, true, output_color(&cli->settings), &tb, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (add_row(tb, &c[i], err) != 0) {
            output_discard(tb);
            return -1;
        }
        if (c[i].paused)
            output_paint(tb, 1, "yellow");
        if (c[i].down && !c[i].paused)
            output_paint(tb, 1, "red");
        if (c[i].dead)
            output_paint(tb, 9, "red");
    }
    if (n == 0)
        fputs("no consumers yet: outbox relay registers them\n", stderr);
    return output_print(tb, err);
}

static int print_json(const struct consumer_info *c, size_t n, bool as_list, int64_t now,
                      struct error *err)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    if (as_list)
        buf_addc(&b, '[');
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        if (i)
            buf_addc(&b, ',');
        if (as_list)
            buf_addc(&b, '\n');
        buf_addc(&b, '{');
        output_consumer(&b, &c[i], now);
        buf_addc(&b, '}');
        r = output_flush(&b, err);
    }
    buf_adds(&b, as_list ? "\n]\n" : "\n");
    if (r == 0)
        r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* ---- show ---- */

static int add_pairs(struct libscols_table *tb, const struct consumer_info *c, struct error *err)
{
    char created[CLOCK_RFC3339_SIZE], due[CLOCK_RFC3339_SIZE], failed[CLOCK_RFC3339_SIZE],
        down[CLOCK_RFC3339_SIZE];
    char n[8][OUTPUT_INT], floor[64];
    snprintf(floor, sizeof(floor), "%lld, held by its %s", (long long)c->floor,
             c->floor_pin ? c->floor_pin : "position");
    const char *const pairs[][2] = {
        {"name", c->spec.name},
        {"state", output_consumer_state(c)},
        {"events", c->spec.events && *c->spec.events ? c->spec.events : "*"},
        {"where", c->spec.where},
        {"order", store_order_names[c->spec.order]},
        {"lanes", output_int(c->spec.lanes, n[0])},
        {"retry", c->spec.retry},
        {"created", output_time(c->created_at, created)},
        {"position", output_int(c->position, n[1])},
        {"behind", output_about(c->behind, c->behind_exact, n[2])},
        {"in flight", output_about(c->inflight, c->inflight_exact, n[7])},
        {"delivered", output_int(c->delivered, n[3])},
        {"claims alive", output_int(c->claims, n[4])},
        {"held by", c->owner},
        {"parked", output_int(c->parked, n[5])},
        {"next retry", output_time(c->next_due, due)},
        {"dead letters", output_int(c->dead, n[6])},
        {"sink down since", output_time(c->down ? c->report_at : 0, down)},
        {"last error", c->last_error},
        {"failed at", output_time(c->last_error_at, failed)},
        {"done up to", floor},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        if (output_pair(tb, pairs[i][0], pairs[i][1], err) != 0)
            return -1;
    }
    return 0;
}

static int print_pairs(const struct consumer_info *c, struct error *err)
{
    struct libscols_table *tb;
    if (output_pairs(&tb, err) != 0)
        return -1;
    if (add_pairs(tb, c, err) != 0) {
        output_discard(tb);
        return -1;
    }
    return output_print(tb, err);
}

/* ---- commands ---- */

/* print: ages go by `now`, the store's clock. */
static int print(const struct cli *cli, const char *name, const struct consumer_info *c, size_t n,
                 int64_t now, struct error *err)
{
    if (name && n == 0) {
        return err_set(err, ERR_NOTFOUND,
                       "there is no consumer \"%s\"; outbox consumers list names those there are",
                       name);
    }
    if (cli->args.json)
        return print_json(c, n, !name, now, err);
    return name ? print_pairs(c, err) : print_table(cli, c, n, err);
}

static int list(struct cli *cli, struct error *err)
{
    const char *name = cli->args.n_pos ? cli->args.pos[0] : NULL;
    struct consumer_info *c = NULL;
    struct store_info info = {0};
    struct store *st;
    struct arena a;
    size_t n = 0;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    arena_init(&a, 0);
    int r = st->ops->info(st, &info, err);
    if (r == 0)
        r = st->ops->consumer_list(st, name, &a, &c, &n, err);
    store_close(st);
    if (r == 0)
        r = print(cli, name, c, n, info.now_ms, err);
    arena_release(&a);
    return r;
}

static int report(const struct cli *cli, const char *what, struct error *err)
{
    struct buf b;
    buf_init(&b, 1024);
    if (cli->args.json) {
        buf_addc(&b, '{');
        output_string(&b, "consumer", cli->args.pos[0]);
        output_string(&b, "now", what);
        buf_adds(&b, "}\n");
    } else {
        buf_addf(&b, "consumer \"%s\": %s\n", cli->args.pos[0], what);
    }
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

static int change(struct cli *cli, const char *what, struct error *err)
{
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    int r = st->ops->consumer_pause(st, cli->args.pos[0], strcmp(what, "paused") == 0, err);
    store_close(st);
    return r == 0 ? report(cli, what, err) : -1;
}

/* ---- remove ---- */

/* add_loss says what goes with a consumer. */
static void add_loss(struct buf *b, const struct consumer_info *c)
{
    buf_addf(b, "its place (%lld), %lld dead letter%s and %lld parked event%s",
             (long long)c->position, (long long)c->dead, c->dead == 1 ? "" : "s",
             (long long)c->parked, c->parked == 1 ? "" : "s");
}

static int report_removal(const struct cli *cli, const struct consumer_info *c, struct error *err)
{
    struct buf b;
    bool dry = cli->args.dry_run;
    buf_init(&b, 4096);
    if (cli->args.json) {
        buf_addc(&b, '{');
        output_string(&b, "consumer", c->spec.name);
        output_string(&b, "now", dry ? "there" : "removed");
        output_bool(&b, "dry_run", dry);
        output_number(&b, "dead", c->dead);
        output_number(&b, "parked", c->parked);
        output_number(&b, "position", c->position);
        buf_adds(&b, "}\n");
    } else {
        buf_addf(&b, "consumer \"%s\": %s, with ", c->spec.name,
                 dry ? "would be removed" : "removed");
        add_loss(&b, c);
        buf_addc(&b, '\n');
    }
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

static int remove_in(struct cli *cli, struct store *st, struct arena *a, struct error *err)
{
    const char *name = cli->args.pos[0];
    struct consumer_info *c;
    struct buf loss;
    size_t n;
    if (st->ops->consumer_list(st, name, a, &c, &n, err) != 0)
        return -1;
    if (!cli->args.consumers.force &&
        store_removable(name, c->dead, c->parked, c->claims, err) != 0)
        return -1;
    if (cli->args.dry_run)
        return report_removal(cli, c, err);
    buf_init(&loss, 1024);
    add_loss(&loss, c);
    int r = confirm(cli, err, "remove consumer \"%s\" for good, with %s", name, buf_cstr(&loss));
    buf_release(&loss);
    if (r == 0)
        r = st->ops->consumer_remove(st, name, cli->args.consumers.force, err);
    return r == 0 ? report_removal(cli, c, err) : -1;
}

static int pause_(struct cli *cli, struct error *err)
{
    return change(cli, "paused", err);
}

static int resume(struct cli *cli, struct error *err)
{
    return change(cli, "resumed", err);
}

static int remove_(struct cli *cli, struct error *err)
{
    struct store *st;
    struct arena a;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    arena_init(&a, 0);
    int r = remove_in(cli, st, &a, err);
    arena_release(&a);
    store_close(st);
    return r;
}

/* ---- settings: history, set, revert ---- */

static int add_generation(struct libscols_table *tb, const struct consumer_settings *s, bool counts,
                          struct error *err)
{
    char generation[OUTPUT_INT], lanes[OUTPUT_INT], since[CLOCK_RFC3339_SIZE];
    const char *cells[] = {output_int(s->generation, generation), counts ? "counts" : "replaced",
                           *s->events ? s->events : "*",          s->where,
                           store_order_names[s->order],           output_int(s->lanes, lanes),
                           output_time(s->since, since),          s->by};
    return output_row(tb, cells, err);
}

static int history_table(const struct cli *cli, const struct consumer_settings *s, size_t n,
                         struct error *err)
{
    static const struct output_column columns[] = {
        {"GENERATION", true, false}, {"STATE", false, false}, {"EVENTS", false, true},
        {"WHERE", false, true},      {"ORDER", false, false}, {"LANES", true, false},
        {"SINCE", false, false},     {"BY", false, true},     {NULL, false, false},
    };
    struct libscols_table *tb;
    if (output_table(columns, true, output_color(&cli->settings), &tb, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (add_generation(tb, &s[i], i == 0, err) == 0)
            continue;
        output_discard(tb);
        return -1;
    }
    return output_print(tb, err);
}

static int history_json(const struct consumer_settings *s, size_t n, struct error *err)
{
    struct buf b;
    buf_init(&b, OUTPUT_MAX);
    buf_addc(&b, '[');
    for (size_t i = 0; i < n; i++) {
        buf_adds(&b, i ? ",\n{" : "\n{");
        output_number(&b, "generation", s[i].generation);
        output_bool(&b, "counts", i == 0);
        output_string(&b, "events", s[i].events);
        output_string(&b, "where", s[i].where);
        output_string(&b, "order", store_order_names[s[i].order]);
        output_number(&b, "lanes", s[i].lanes);
        output_stamp(&b, "since", s[i].since);
        output_string(&b, "by", s[i].by);
        buf_addc(&b, '}');
    }
    buf_adds(&b, n ? "\n]\n" : "]\n");
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* settings_of gives the settings a consumer has had; of one that has always had the same, those. */
static int settings_of(struct store *st, const char *name, struct arena *a,
                       struct consumer_settings **ret, size_t *ret_n,
                       struct consumer_spec *ret_spec, struct error *err)
{
    struct consumer_info *c;
    size_t n;
    if (st->ops->consumer_list(st, name, a, &c, &n, err) != 0)
        return -1;
    *ret_spec = c->spec;
    if (st->ops->consumer_history(st, name, a, ret, ret_n, err) != 0)
        return -1;
    if (*ret_n > 0)
        return 0;
    **ret = (struct consumer_settings){.generation = 1,
                                       .events = c->spec.events,
                                       .where = c->spec.where,
                                       .order = c->spec.order,
                                       .lanes = c->spec.lanes,
                                       .since = c->created_at};
    *ret_n = 1;
    return 0;
}

static int history(struct cli *cli, struct error *err)
{
    struct consumer_settings *s;
    struct consumer_spec spec;
    struct store *st;
    struct arena a;
    size_t n;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    arena_init(&a, 0);
    int r = settings_of(st, cli->args.pos[0], &a, &s, &n, &spec, err);
    store_close(st);
    if (r == 0)
        r = cli->args.json ? history_json(s, n, err) : history_table(cli, s, n, err);
    arena_release(&a);
    return r;
}

/* give makes these the settings that count, whether or not they were replaced before, and says
 * which they are. */
static int give(struct cli *cli, struct store *st, struct consumer_spec *spec, struct error *err)
{
    char by[STORE_NAME_MAX + 80], host[65] = "", what[1024];
    const struct passwd *who = getpwuid(geteuid());
    gethostname(host, sizeof(host) - 1);
    snprintf(by, sizeof(by), "%.60s on %s", who ? who->pw_name : "an operator", host);
    spec->how = PUT_PURPOSE;
    spec->by = by;
    if (st->ops->consumer_put(st, spec, NULL, err) != 0)
        return -1;
    snprintf(
        what, sizeof(what),
        "now events \"%.300s\", where \"%.300s\", order %s, lanes %d; relays with others stand by",
        *spec->events ? spec->events : "*", spec->where, store_order_names[spec->order],
        spec->lanes);
    return report(cli, what, err);
}

/* check_settings puts what was given through the options of consumers, so that nothing gets in here
 * that a relay refuses. */
static int check_settings(const struct cli *cli, struct consumer *c,
                          const struct consumer_spec *spec, struct error *err)
{
    const struct consumers_args *s = &cli->args.consumers;
    char lanes[OUTPUT_INT];
    const char *const given[][2] = {
        {"events", s->events ? s->events : spec->events},
        {"where", s->where ? s->where : spec->where},
        {"order", s->order ? s->order : store_order_names[spec->order]},
        {"lanes", s->lanes ? s->lanes : output_int(spec->lanes, lanes)},
    };
    for (size_t i = 0; i < sizeof(given) / sizeof(*given); i++) {
        if (option_set(consumer_options, c, given[i][0], given[i][1], err) == 0)
            continue;
        if (err->code == ERR_CONFIG)
            err->code = CLI_USAGE;
        return -1;
    }
    if (c->order == ORDER_GLOBAL && c->lanes != 1)
        return options_usage(err, "order global has one lane");
    return 0;
}

static int set_in(struct cli *cli, struct store *st, struct arena *a, struct error *err)
{
    struct consumer_info *info;
    struct consumer c;
    size_t n;
    const char *name = cli->args.pos[0];
    if (st->ops->consumer_list(st, name, a, &info, &n, err) != 0)
        return -1;
    if (consumer_init(&c, name, err) != 0)
        return -1;
    int r = check_settings(cli, &c, &info->spec, err);
    struct consumer_spec spec = info->spec;
    spec.events = c.events;
    spec.where = c.where;
    spec.order = c.order;
    spec.lanes = c.lanes;
    if (r == 0)
        r = give(cli, st, &spec, err);
    consumer_release(&c);
    return r;
}

static int set_(struct cli *cli, struct error *err)
{
    const struct consumers_args *s = &cli->args.consumers;
    struct store *st;
    struct arena a;
    if (!s->events && !s->where && !s->order && !s->lanes)
        return options_usage(err, "consumers set needs --events, --where, --order or --lanes");
    if (commands_store(cli, &st, err) != 0)
        return -1;
    arena_init(&a, 0);
    int r = set_in(cli, st, &a, err);
    arena_release(&a);
    store_close(st);
    return r;
}

static int revert_in(struct cli *cli, struct store *st, struct arena *a, struct error *err)
{
    const char *name = cli->args.pos[0];
    int64_t to = cli->args.consumers.generation;
    struct consumer_settings *list;
    struct consumer_spec spec;
    size_t n, i = to ? 0 : 1;
    if (settings_of(st, name, a, &list, &n, &spec, err) != 0)
        return -1;
    while (to && i < n && list[i].generation != to)
        i++;
    if (i >= n)
        return err_set(err, ERR_NOTFOUND,
                       "consumer \"%s\" has no such settings to go back to; outbox consumers "
                       "history %s shows those there are",
                       name, name);
    spec.events = list[i].events;
    spec.where = list[i].where;
    spec.order = list[i].order;
    spec.lanes = list[i].lanes;
    return give(cli, st, &spec, err);
}

static int revert(struct cli *cli, struct error *err)
{
    struct store *st;
    struct arena a;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    arena_init(&a, 0);
    int r = revert_in(cli, st, &a, err);
    arena_release(&a);
    store_close(st);
    return r;
}

const struct command cmd_consumers[] = {
    {.name = "consumers",
     .sub = "list",
     .help = "list the consumers",
     .options = list_options,
     .run = list},
    {.name = "consumers",
     .sub = "show",
     .args = "NAME",
     .help = "show everything about a consumer",
     .options = list_options,
     .min = 1,
     .max = 1,
     .run = list},
    {.name = "consumers",
     .sub = "pause",
     .args = "NAME",
     .help = "stop delivering to a consumer",
     .options = list_options,
     .min = 1,
     .max = 1,
     .run = pause_},
    {.name = "consumers",
     .sub = "resume",
     .args = "NAME",
     .help = "resume delivering to a consumer",
     .options = list_options,
     .min = 1,
     .max = 1,
     .run = resume},
    {.name = "consumers",
     .sub = "history",
     .args = "NAME",
     .help = "list the settings a consumer has had: events, where, order, lanes",
     .options = list_options,
     .min = 1,
     .max = 1,
     .run = history},
    {.name = "consumers",
     .sub = "set",
     .args = "NAME",
     .help = "change a consumer's settings, even to ones that were replaced before",
     .options = set_options,
     .min = 1,
     .max = 1,
     .run = set_},
    {.name = "consumers",
     .sub = "revert",
     .args = "NAME",
     .help = "restore earlier settings of a consumer",
     .options = revert_options,
     .min = 1,
     .max = 1,
     .run = revert},
    {.name = "consumers",
     .sub = "remove",
     .args = "NAME",
     .help = "remove a consumer and its state",
     .options = remove_options,
     .min = 1,
     .max = 1,
     .run = remove_},
    {.name = NULL},
};
