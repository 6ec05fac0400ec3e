/* cmd_consumers.c: outbox consumers, which lists consumers, pauses, resumes and removes them, and
 * changes their settings. Each change of settings makes a new generation; the newest is in
 * effect. */
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

static const struct option_def list_options[] = {OPTION_JSON, OPTION_END};
static const struct option_def set_options[] = {
    {"events", "PATTERN,...", NULL, "event types to deliver from now on; \"\" for all", option_text,
     ARG(consumers.events)},
    {"where", "EXPR", NULL, "payload predicate from now on; \"\" for none", option_text,
     ARG(consumers.where)},
    {"order", "none|key|global", NULL,
     "which events stay in order; can change only while nothing is pending, in flight or parked",
     option_text, ARG(consumers.order)},
    {"lanes", "N", NULL,
     "number of lanes, 1 to 64; can change only while nothing is pending, in flight or parked",
     option_text, ARG(consumers.lanes)},
    OPTION_JSON,
    OPTION_END,
};
static const struct option_def revert_options[] = {
    {"to", "GENERATION", NULL,
     "generation to restore; by default, the settings before the last change", option_long,
     ARG(consumers.generation), .min = 1, .max = INT32_MAX},
    OPTION_JSON,
    OPTION_END,
};
static const struct option_def remove_options[] = {
    {"force", NULL, "no",
     "remove it despite dead letters, events waiting for a retry, or a running relay", option_bool,
     ARG(consumers.force)},
    OPTION_DRY_RUN,
    OPTION_YES,
    OPTION_JSON,
    OPTION_END,
};

/* ---- list and show ---- */

/* Opens the store and reads its state and its consumers, or only the consumer `name`. */
static int read_consumers(struct cli *cli, const char *name, struct store_info *ret_info,
                          struct consumer_info **ret, size_t *ret_n, struct error *err)
{
    struct store *st = commands_store(cli, err);
    if (!st)
        return -1;
    if (st->ops->info(st, ret_info, err) != 0)
        return -1;
    return st->ops->consumer_list(st, name, &cli->arena, ret, ret_n, err);
}

/* Ages are counted from the time of the store's clock. */
static struct listed_consumer row_of(const struct consumer_info *c, int64_t now_ms)
{
    return (struct listed_consumer){
        .c = *c, .now_ms = now_ms, .delivered_per_s = -1, .read_per_s = -1};
}

static int consumers_list(struct cli *cli, struct error *err)
{
    struct consumer_info *c;
    struct store_info info;
    struct listing l;
    size_t n;
    if (read_consumers(cli, NULL, &info, &c, &n, err) != 0)
        return -1;
    if (output_listing(cli, &l, fields_consumer,
                       "name state events~ where~ order lanes retry~~ position in_flight dead",
                       err) != 0)
        return -1;

    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        struct listed_consumer row = row_of(&c[i], info.now_ms);
        r = listing_add(&l, &row, err);
    }
    if (n == 0 && !cli->args.json) /* on stderr, so that scripts see an empty table */
        fputs("no consumers yet: a relay registers those it runs\n", stderr);
    return listing_end(&l, r, err);
}

static int consumers_show(struct cli *cli, struct error *err)
{
    const char *name = cli->args.pos[0];
    struct consumer_info *c;
    struct store_info info;
    size_t n;
    if (read_consumers(cli, name, &info, &c, &n, err) != 0)
        return -1;
    if (n == 0)
        return err_set(err, ERR_NOTFOUND,
                       "there is no consumer \"%s\"; `outbox consumers list` lists them", name);

    struct listed_consumer row = row_of(c, info.now_ms);
    if (cli->args.json)
        return output_result(cli, fields_consumer, &row, NULL, err);
    return listing_pairs(stdout, fields_consumer, PAIRS_CONSUMER, &row, err);
}

/* ---- pause, resume and remove ---- */

/* The new state of a consumer. */
struct changed {
    const char *name, *now;
    const struct consumer_info *c; /* for remove; NULL otherwise */
    bool dry_run;
};

#define CHANGED \
    {"consumer", LISTING_TEXT, .at = offsetof(struct changed, name), "name of the consumer"}, \
    { \
        "now", LISTING_TEXT, .at = offsetof(struct changed, now), "its new state" \
    }

static const struct listing_field fields_changed[] = {CHANGED, {NULL}};

static void changed_text(struct buf *b, const void *row)
{
    const struct changed *c = row;
    output_addf(b, "consumer \"%s\": %s\n", c->name, c->now);
}

static int say_changed(const struct cli *cli, const char *now, struct error *err)
{
    struct changed c = {.name = cli->args.pos[0], .now = now};
    return output_result(cli, fields_changed, &c, changed_text, err);
}

static int set_paused(struct cli *cli, bool paused, struct error *err)
{
    struct store *st = commands_store(cli, err);
    if (!st)
        return -1;
    if (st->ops->consumer_pause(st, cli->args.pos[0], paused, err) != 0)
        return -1;
    return say_changed(cli, paused ? "paused" : "resumed", err);
}

static int consumers_pause(struct cli *cli, struct error *err)
{
    return set_paused(cli, true, err);
}

static int consumers_resume(struct cli *cli, struct error *err)
{
    return set_paused(cli, false, err);
}

static const void *removed_consumer(const void *row, size_t i)
{
    (void)i;
    return ((const struct changed *)row)->c;
}

static const struct listing_field fields_loss[] = {
    {"dead", LISTING_INT, .at = offsetof(struct consumer_info, dead), "its dead letters"},
    {"parked", LISTING_INT, .at = offsetof(struct consumer_info, parked), "its parked events"},
    {"position", LISTING_INT, .at = offsetof(struct consumer_info, position), "its position"},
    {NULL},
};

static const struct listing_field fields_removed[] = {
    CHANGED,
    {"dry_run", LISTING_BOOL, .at = offsetof(struct changed, dry_run), "true: nothing was done"},
    {"loss", LISTING_PART, .sub = fields_loss, .nth = removed_consumer},
    {NULL},
};

/* Appends the state that is deleted along with a consumer. */
static void add_loss(struct buf *b, const struct consumer_info *c)
{
    char dead[HUMAN_COUNT], parked[HUMAN_COUNT];
    buf_addf(b, "its position (%lld), %s and %s", (long long)c->position,
             human_count(c->dead, "dead letter", dead),
             human_count(c->parked, "parked event", parked));
}

static void removed_text(struct buf *b, const void *row)
{
    const struct changed *c = row;
    output_addf(b, "consumer \"%s\": %s, with ", c->name,
                c->dry_run ? "would be removed" : "removed");
    add_loss(b, c->c);
    buf_addc(b, '\n');
}

/* Removes a consumer. One that still has work to do needs --force, also for a dry run. */
static int consumers_remove(struct cli *cli, struct error *err)
{
    const char *name = cli->args.pos[0];
    bool force = cli->args.consumers.force, dry_run = cli->args.dry_run;
    struct consumer_info *c;
    size_t n;
    struct store *st = commands_store(cli, err);
    if (!st)
        return -1;
    if (st->ops->consumer_list(st, name, &cli->arena, &c, &n, err) != 0)
        return -1;
    if (!force && store_removable(name, c->dead, c->parked, c->claims, err) != 0)
        return -1;

    if (!dry_run) {
        struct buf loss;
        buf_init(&loss, 1024);
        add_loss(&loss, c);
        int r = output_confirm(cli, err, "remove consumer \"%s\" for good, with %s", c->spec.name,
                               buf_cstr(&loss));
        buf_release(&loss);
        if (r != 0)
            return -1;
    }
    if (!dry_run && st->ops->consumer_remove(st, name, force, err) != 0)
        return -1;
    struct changed row = {c->spec.name, dry_run ? "there" : "removed", c, dry_run};
    return output_result(cli, fields_removed, &row, removed_text, err);
}

/* ---- history ---- */

/* The settings a consumer has had, newest first, and its spec. (1) n > 0. */
struct history {
    struct consumer_settings *list;
    size_t n;
    struct consumer_spec spec;
};

/* Opens the store and reads the history of the consumer in the arguments. A consumer whose settings
 * never changed has none in the store: its present settings are the only generation. */
static int read_history(struct cli *cli, struct history *ret, struct error *err)
{
    const char *name = cli->args.pos[0];
    struct consumer_info *c;
    size_t n;
    struct store *st = commands_store(cli, err);
    if (!st)
        return -1;
    if (st->ops->consumer_list(st, name, &cli->arena, &c, &n, err) != 0)
        return -1;
    ret->spec = c->spec;
    if (st->ops->consumer_history(st, name, &cli->arena, &ret->list, &ret->n, err) != 0)
        return -1;
    if (ret->n > 0)
        return 0;

    *ret->list = (struct consumer_settings){
        .generation = 1,
        .events = c->spec.events,
        .where = c->spec.where,
        .order = c->spec.order,
        .lanes = c->spec.lanes,
        .since = c->created_at,
    };
    ret->n = 1;
    return 0;
}

static int consumers_history(struct cli *cli, struct error *err)
{
    struct history h;
    struct listing l;
    if (read_history(cli, &h, err) != 0)
        return -1;
    if (output_listing(cli, &l, fields_generation,
                       "generation counts events~ where~ order lanes since by~", err) != 0)
        return -1;
    int r = 0;
    for (size_t i = 0; i < h.n && r == 0; i++) {
        struct listed_generation row = {h.list[i], i == 0};
        r = listing_add(&l, &row, err);
    }
    return listing_end(&l, r, err);
}

/* ---- set and revert ---- */

/* Puts the settings of spec into effect, even if they were replaced before, and prints them. The
 * history has the operator's name: "ada on host". */
static int put_settings(const struct cli *cli, struct consumer_spec *spec, struct error *err)
{
    char by[STORE_NAME_MAX + 80], now[1024], host[65] = "";
    const struct passwd *who = getpwuid(geteuid());
    gethostname(host, sizeof(host) - 1);
    snprintf(by, sizeof(by), "%.60s on %s", who ? who->pw_name : "an operator", host);
    spec->how = PUT_PURPOSE;
    spec->by = by;
    if (cli->st->ops->consumer_put(cli->st, spec, NULL, err) != 0)
        return -1;

    snprintf(now, sizeof(now),
             "now events \"%.300s\", where \"%.300s\", order %s, lanes %d; relays with other "
             "settings stand by",
             fields_patterns(spec->events), spec->where, store_order_names[spec->order],
             spec->lanes);
    return say_changed(cli, now, err);
}

/* Passes the settings through the option table of consumers into *c, so that nothing is accepted
 * here that a relay would refuse. */
static int check_settings(const struct cli *cli, struct consumer *c,
                          const struct consumer_spec *spec, struct error *err)
{
    const struct consumers_args *s = &cli->args.consumers;
    char lanes[HUMAN_INT];
    const char *const values[][2] = {
        {"events", s->events ? s->events : spec->events},
        {"where", s->where ? s->where : spec->where},
        {"order", s->order ? s->order : store_order_names[spec->order]},
        {"lanes", s->lanes ? s->lanes : human_int(spec->lanes, lanes)},
    };
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        if (option_set(consumer_options, c, values[i][0], values[i][1], err) == 0)
            continue;
        if (err->code == ERR_CONFIG)
            err->code = CLI_USAGE;
        return -1;
    }

    if (c->order == ORDER_GLOBAL && c->lanes != 1)
        return options_usage(err, "order global needs lanes 1; set both");
    return 0;
}

/* Changes the settings that were given and keeps the others. */
static int consumers_set(struct cli *cli, struct error *err)
{
    const struct consumers_args *s = &cli->args.consumers;
    const char *name = cli->args.pos[0];
    struct consumer_info *info;
    struct consumer c;
    size_t n;
    bool any = s->events || s->where || s->order || s->lanes;
    if (!any)
        return options_usage(err, "consumers set needs --events, --where, --order or --lanes");

    struct store *st = commands_store(cli, err);
    if (!st)
        return -1;
    if (st->ops->consumer_list(st, name, &cli->arena, &info, &n, err) != 0)
        return -1;
    if (consumer_init(&c, name, err) != 0)
        return -1;

    int r = check_settings(cli, &c, &info->spec, err);
    if (r == 0) {
        struct consumer_spec spec = info->spec;
        spec.events = c.events;
        spec.where = c.where;
        spec.order = c.order;
        spec.lanes = c.lanes;
        r = put_settings(cli, &spec, err);
    }
    consumer_release(&c);
    return r;
}

static int consumers_revert(struct cli *cli, struct error *err)
{
    const char *name = cli->args.pos[0];
    struct history h;
    if (read_history(cli, &h, err) != 0)
        return -1;

    int64_t generation = cli->args.consumers.generation; /* 0: the one before the current one */
    const struct consumer_settings *to = NULL;
    for (size_t i = 0; i < h.n; i++) {
        bool wanted = generation ? h.list[i].generation == generation : i == 1;
        if (wanted)
            to = &h.list[i];
    }
    if (!to)
        return err_set(err, ERR_NOTFOUND,
                       "consumer \"%s\" does not have these earlier settings; `outbox consumers "
                       "history %s` lists those it has",
                       name, name);

    struct consumer_spec spec = h.spec;
    spec.events = to->events;
    spec.where = to->where;
    spec.order = to->order;
    spec.lanes = to->lanes;
    return put_settings(cli, &spec, err);
}

const struct command cmd_consumers[] = {
    {"consumers", "list", NULL, "list the consumers", .options = list_options,
     .json = JSON_ARRAY(fields_consumer), .run = consumers_list},
    {"consumers", "show", "NAME", "show a consumer in detail", .options = list_options, .min = 1,
     .max = 1, .json = JSON_OBJECT(fields_consumer), .run = consumers_show},
    {"consumers", "pause", "NAME", "stop delivering to a consumer", .options = list_options,
     .min = 1, .max = 1, .json = JSON_OBJECT(fields_changed), .run = consumers_pause},
    {"consumers", "resume", "NAME", "resume delivering to a consumer", .options = list_options,
     .min = 1, .max = 1, .json = JSON_OBJECT(fields_changed), .run = consumers_resume},
    {"consumers", "history", "NAME",
     "list the settings that a consumer has had: events, where, order, lanes",
     .options = list_options, .min = 1, .max = 1, .json = JSON_ARRAY(fields_generation),
     .run = consumers_history},
    {"consumers", "set", "NAME", "change a consumer's settings; earlier settings can be set again",
     .options = set_options, .min = 1, .max = 1, .json = JSON_OBJECT(fields_changed),
     .run = consumers_set},
    {"consumers", "revert", "NAME", "restore earlier settings of a consumer",
     .options = revert_options, .min = 1, .max = 1, .json = JSON_OBJECT(fields_changed),
     .run = consumers_revert},
    {"consumers", "remove", "NAME", "remove a consumer and its state", .options = remove_options,
     .min = 1, .max = 1, .json = JSON_OBJECT(fields_removed), .run = consumers_remove},
    {NULL},
};
