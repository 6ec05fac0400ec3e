/* cmd_consumers.c: outbox consumers, which lists consumers, pauses, resumes and removes them, and
 * changes their settings. Each change of settings creates a new generation; the newest is in
 * effect. */
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

struct consumers_args {
    const char *events, *where, *order, *lanes; /* NULL: unchanged */
    int64_t generation;                         /* 0 if not given */
    bool force;
};

static const struct option_def list_options[] = {OPTION_JSON, OPTION_END};
static const struct option_def set_options[] = {
    {"events", "PATTERN,...", NULL, "event types to deliver from now on; \"\" for all", option_text,
     OWN(consumers_args, events)},
    {"where", "EXPR", NULL, "payload predicate from now on; \"\" for none", option_text,
     OWN(consumers_args, where)},
    {"order", "none|key|global", NULL,
     "which events stay in order; can change only while nothing is pending, in flight or parked",
     option_text, OWN(consumers_args, order)},
    {"lanes", "N", NULL,
     "number of lanes, 1 to 64; can change only while nothing is pending, in flight or parked",
     option_text, OWN(consumers_args, lanes)},
    OPTION_JSON,
    OPTION_END,
};
static const struct option_def revert_options[] = {
    {"to", "GENERATION", NULL,
     "generation to restore; by default, the settings before the last change", option_long,
     OWN(consumers_args, generation), .min = 1, .max = INT32_MAX},
    OPTION_JSON,
    OPTION_END,
};
static const struct option_def remove_options[] = {
    {"force", NULL, "no",
     "remove the consumer despite dead letters, events waiting for a retry, or a running relay",
     option_bool, OWN(consumers_args, force)},
    OPTION_DRY_RUN,
    OPTION_YES,
    OPTION_JSON,
    OPTION_END,
};

/* ---- list and show ---- */

/* Reads the consumers, or only the consumer `name`, as rows in the arena of cli. */
static int read_rows(struct cli *cli, const char *name, struct listed_consumer **ret, size_t *ret_n,
                     struct error *err)
{
    struct consumer_info *c;
    struct store_info info;
    size_t n;
    if (cli->st->ops->info(cli->st, &info, err) != 0)
        return -1;
    if (cli->st->ops->consumer_list(cli->st, name, &cli->arena, &c, &n, err) != 0)
        return -1;
    struct listed_consumer *rows = arena_zalloc(&cli->arena, n + 1, sizeof *rows);
    if (!rows)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++)
        rows[i] = fields_consumer_row(&c[i], info.now_ms);
    *ret = rows;
    *ret_n = n;
    return 0;
}

static int consumers_list(struct cli *cli, struct error *err)
{
    struct listed_consumer *rows;
    size_t n;
    if (read_rows(cli, NULL, &rows, &n, err) != 0)
        return -1;
    if (n == 0 && !cli->args.json) /* on stderr, so that scripts see an empty table */
        fputs("no consumers yet: a relay registers those it runs\n", stderr);
    return output_rows(cli, fields_consumer,
                       "name state events~ where~ order lanes retry~~ position in_flight dead",
                       rows, n, sizeof *rows, err);
}

static int consumers_show(struct cli *cli, struct error *err)
{
    const char *name = cli->args.pos[0];
    struct listed_consumer *row;
    size_t n;
    if (read_rows(cli, name, &row, &n, err) != 0)
        return -1;
    if (n == 0)
        return err_set(err, ERR_NOTFOUND,
                       "there is no consumer \"%s\"; `outbox consumers list` lists all consumers",
                       name);
    return output_pairs(cli, fields_consumer, PAIRS_CONSUMER, row, err);
}

/* ---- pause, resume and remove ---- */

/* The new state of a consumer. The rest is about a removed one. */
struct changed {
    const char *name, *now;
    bool dry_run;
    int64_t dead, parked, position;
};

#define AT(member) .at = offsetof(struct changed, member)
#define NAME \
    { \
        "consumer", LISTING_TEXT, AT(name), "name of the consumer" \
    }
#define NOW \
    { \
        "now", LISTING_TEXT, AT(now), "new state" \
    }
static const struct listing_field fields_changed[] = {NAME, NOW, {NULL}};
static const struct listing_field fields_removed[] = {
    NAME,
    NOW,
    {"dry_run", LISTING_BOOL, AT(dry_run), "true: nothing was done"},
    {"dead", LISTING_INT, AT(dead), "number of its dead letters"},
    {"parked", LISTING_INT, AT(parked), "number of its parked events"},
    {"position", LISTING_INT, AT(position), "position of the consumer"},
    {NULL},
};
#undef AT

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

/* `consumers pause` and `consumers resume`. */
static int set_paused(struct cli *cli, struct error *err)
{
    bool paused = strcmp(cli->cmd->sub, "pause") == 0;
    if (cli->st->ops->consumer_pause(cli->st, cli->args.pos[0], paused, err) != 0)
        return -1;
    return say_changed(cli, paused ? "paused" : "resumed", err);
}

#define LOSS 200
/* Writes what is deleted along with a consumer. */
static const char *loss_of(const struct changed *c, char out[LOSS])
{
    snprintf(out, LOSS, "its position (%lld), %s and %s", (long long)c->position,
             human_count(c->dead, "dead letter"), human_count(c->parked, "parked event"));
    return out;
}

static void removed_text(struct buf *b, const void *row)
{
    const struct changed *c = row;
    char loss[LOSS];
    output_addf(b, "consumer \"%s\": %s, with %s\n", c->name,
                c->dry_run ? "would be removed" : "removed", loss_of(c, loss));
}

/* Removes a consumer. One that still has work to do needs --force, even for a dry run. */
static int consumers_remove(struct cli *cli, struct error *err)
{
    const char *name = cli->args.pos[0];
    bool force = ((const struct consumers_args *)cli_own(cli))->force;
    bool dry_run = cli->args.dry_run;
    struct store *st = cli->st;
    struct consumer_info *c;
    size_t n;
    if (st->ops->consumer_list(st, name, &cli->arena, &c, &n, err) != 0)
        return -1;
    if (!force && store_removable(name, c->dead, c->parked, c->claims, err) != 0)
        return -1;

    struct changed row = {
        .name = c->spec.name,
        .now = dry_run ? "there" : "removed",
        .dry_run = dry_run,
        .dead = c->dead,
        .parked = c->parked,
        .position = c->position,
    };
    if (!dry_run) {
        char loss[LOSS];
        if (output_confirm(cli, err, "remove consumer \"%s\" for good, with %s", row.name,
                           loss_of(&row, loss)) != 0)
            return -1;
        if (st->ops->consumer_remove(st, name, force, err) != 0)
            return -1;
    }
    return output_result(cli, fields_removed, &row, removed_text, err);
}

/* ---- history ---- */

/* The settings a consumer has had, newest first, and its spec. (1) n > 0. */
struct history {
    struct consumer_settings *list;
    size_t n;
    struct consumer_spec spec;
};

/* Reads the history of the consumer in the arguments. A consumer whose settings never changed has
 * none in the store: its present settings are the only generation. */
static int read_history(struct cli *cli, struct history *ret, struct error *err)
{
    const char *name = cli->args.pos[0];
    struct store *st = cli->st;
    struct consumer_info *c;
    size_t n;
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
    if (read_history(cli, &h, err) != 0)
        return -1;
    struct listed_generation *rows = arena_zalloc(&cli->arena, h.n, sizeof *rows);
    if (!rows)
        return err_nomem(err);
    for (size_t i = 0; i < h.n; i++)
        rows[i] = (struct listed_generation){h.list[i], i == 0};
    return output_rows(cli, fields_generation,
                       "generation counts events~ where~ order lanes since by~", rows, h.n,
                       sizeof *rows, err);
}

/* ---- set and revert ---- */

/* Puts the settings of spec into effect, even if they were replaced before, and prints them. The
 * history records the operator: "ada on host". */
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
             "settings are now: events \"%.300s\", where \"%.300s\", order %s, lanes %d; relays "
             "with other settings will stand by",
             fields_patterns(spec->events), spec->where, store_order_names[spec->order],
             spec->lanes);
    return say_changed(cli, now, err);
}

/* Passes the settings through the option table of consumers into *c, so that nothing is accepted
 * here that a relay would refuse. */
static int check_settings(const struct cli *cli, struct consumer *c,
                          const struct consumer_spec *spec, struct error *err)
{
    const struct consumers_args *s = cli_own(cli);
    char lanes[24];
    snprintf(lanes, sizeof lanes, "%d", spec->lanes);
    const char *const values[][2] = {
        {"events", s->events ? s->events : spec->events},
        {"where", s->where ? s->where : spec->where},
        {"order", s->order ? s->order : store_order_names[spec->order]},
        {"lanes", s->lanes ? s->lanes : lanes},
    };
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        if (option_set(consumer_options, c, values[i][0], values[i][1], err) == 0)
            continue;
        if (err->code == ERR_CONFIG)
            err->code = CLI_USAGE;
        return -1;
    }

    if (c->order == ORDER_GLOBAL && c->lanes != 1)
        return commands_usage(err, "order global needs lanes 1; set both");
    return 0;
}

static int set_check(struct cli *cli, struct error *err)
{
    const struct consumers_args *s = cli_own(cli);
    bool any = s->events || s->where || s->order || s->lanes;
    if (any)
        return 0;
    return commands_usage(err, "consumers set needs --events, --where, --order or --lanes");
}

/* Changes the settings that were given and keeps the others. */
static int consumers_set(struct cli *cli, struct error *err)
{
    const char *name = cli->args.pos[0];
    struct store *st = cli->st;
    struct consumer_info *info;
    struct consumer c;
    size_t n;
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

    const struct consumers_args *a = cli_own(cli);
    int64_t generation = a->generation; /* 0: the one before the current one */
    const struct consumer_settings *to = NULL;
    for (size_t i = 0; i < h.n; i++) {
        bool wanted = generation ? h.list[i].generation == generation : i == 1;
        if (wanted)
            to = &h.list[i];
    }
    if (!to)
        return err_set(err, ERR_NOTFOUND,
                       "consumer \"%s\" has no such earlier settings; `outbox consumers "
                       "history %s` lists all of its settings",
                       name, name);

    struct consumer_spec spec = h.spec;
    spec.events = to->events;
    spec.where = to->where;
    spec.order = to->order;
    spec.lanes = to->lanes;
    return put_settings(cli, &spec, err);
}

#define ONE_CONSUMER .min = 1, .max = 1, .opens = OPENS_STORE
const struct command cmd_consumers[] = {
    {"consumers", "list", NULL, "list the consumers", .options = list_options, .opens = OPENS_STORE,
     .json = JSON_ARRAY(fields_consumer), .run = consumers_list},
    {"consumers", "show", "NAME", "show a consumer in detail", .options = list_options,
     ONE_CONSUMER, .json = JSON_OBJECT(fields_consumer), .run = consumers_show},
    {"consumers", "pause", "NAME", "stop delivering to a consumer", .options = list_options,
     ONE_CONSUMER, .json = JSON_OBJECT(fields_changed), .run = set_paused},
    {"consumers", "resume", "NAME", "resume delivering to a consumer", .options = list_options,
     ONE_CONSUMER, .json = JSON_OBJECT(fields_changed), .run = set_paused},
    {"consumers", "history", "NAME",
     "list the settings that a consumer has had: events, where, order, lanes",
     .options = list_options, ONE_CONSUMER, .json = JSON_ARRAY(fields_generation),
     .run = consumers_history},
    {"consumers", "set", "NAME", "change a consumer's settings; earlier settings can be set again",
     .options = set_options, ONE_CONSUMER, .json = JSON_OBJECT(fields_changed), .check = set_check,
     .run = consumers_set},
    {"consumers", "revert", "NAME", "restore earlier settings of a consumer",
     .options = revert_options, ONE_CONSUMER, .json = JSON_OBJECT(fields_changed),
     .run = consumers_revert},
    {"consumers", "remove", "NAME", "remove a consumer and its state", .options = remove_options,
     ONE_CONSUMER, .json = JSON_OBJECT(fields_removed), .run = consumers_remove},
    {NULL},
};
