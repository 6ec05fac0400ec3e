/* cmd_consumers_settings.c: the settings a consumer has had (events, where, order, lanes), and how
 * an operator changes them. Each change makes a new generation; the newest one is in effect. */
#include "cli/cmd_consumers.h"

#include <pwd.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- history ---- */

static int add_generation(struct libscols_table *tb, const struct consumer_settings *s,
                          const char *state, struct error *err)
{
    char generation[OUTPUT_INT], lanes[OUTPUT_INT], since[CLOCK_RFC3339_SIZE];
    const char *cells[] = {
        output_int(s->generation, generation), state,
        cmd_consumers_patterns(s->events),     s->where,
        store_order_names[s->order],           output_int(s->lanes, lanes),
        output_time(s->since, since),          s->by,
    };
    return output_row(tb, cells, err);
}

/* history_table prints the generations, newest first: the first one is current. */
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

    const char *state = "current";
    for (size_t i = 0; i < n; i++) {
        if (add_generation(tb, &s[i], state, err) != 0) {
            output_discard(tb);
            return -1;
        }
        state = "replaced";
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
    buf_adds(&b, "\n]\n");

    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* The settings a consumer has had, newest first, and its spec. They live in the arena they were
 * read with. (1) n > 0. */
struct history {
    struct consumer_settings *list;
    size_t n;
    struct consumer_spec spec;
};

/* history_read reads them. A consumer whose settings never changed has no history in the store: its
 * present settings are the only generation. */
static int history_read(struct store *st, const char *name, struct arena *a, struct history *ret,
                        struct error *err)
{
    struct consumer_info *c;
    size_t n;
    if (st->ops->consumer_list(st, name, a, &c, &n, err) != 0)
        return -1;
    ret->spec = c->spec;
    if (st->ops->consumer_history(st, name, a, &ret->list, &ret->n, err) != 0)
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

int cmd_consumers_history(struct cli *cli, struct error *err)
{
    struct history h;
    struct store *st;
    struct arena a;
    if (commands_store(cli, &st, err) != 0)
        return -1;

    arena_init(&a, 0);
    int r = history_read(st, cli->args.pos[0], &a, &h, err);
    store_close(st);
    if (r == 0 && cli->args.json)
        r = history_json(h.list, h.n, err);
    else if (r == 0)
        r = history_table(cli, h.list, h.n, err);
    arena_release(&a);
    return r;
}

/* ---- set and revert ---- */

/* operator_name writes who is at work, for the history: "ada on host". */
static void operator_name(char *out, size_t size)
{
    const struct passwd *who = getpwuid(geteuid());
    const char *name = who ? who->pw_name : "an operator";
    char host[65] = "";
    gethostname(host, sizeof(host) - 1);
    snprintf(out, size, "%.60s on %s", name, host);
}

/* put_settings puts the settings of spec into effect, even if they were replaced before, and prints
 * them. */
static int put_settings(struct cli *cli, struct store *st, struct consumer_spec *spec,
                        struct error *err)
{
    char by[STORE_NAME_MAX + 80], now[1024];
    operator_name(by, sizeof(by));
    spec->how = PUT_PURPOSE;
    spec->by = by;
    if (st->ops->consumer_put(st, spec, NULL, err) != 0)
        return -1;

    snprintf(now, sizeof(now),
             "now events \"%.300s\", where \"%.300s\", order %s, lanes %d; relays with other "
             "settings stand by",
             cmd_consumers_patterns(spec->events), spec->where, store_order_names[spec->order],
             spec->lanes);
    return cmd_consumers_report(cli, now, err);
}

/* prefer returns what was given on the command line, else the setting as it is. */
static const char *prefer(const char *given, const char *present)
{
    return given ? given : present;
}

/* check_settings passes the settings through the option table of consumers into *c, so that nothing
 * is accepted here that a relay would refuse. */
static int check_settings(const struct cli *cli, struct consumer *c,
                          const struct consumer_spec *spec, struct error *err)
{
    const struct consumers_args *s = &cli->args.consumers;
    char lanes[OUTPUT_INT];
    const char *const values[][2] = {
        {"events", prefer(s->events, spec->events)},
        {"where", prefer(s->where, spec->where)},
        {"order", prefer(s->order, store_order_names[spec->order])},
        {"lanes", prefer(s->lanes, output_int(spec->lanes, lanes))},
    };
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        if (option_set(consumer_options, c, values[i][0], values[i][1], err) == 0)
            continue;
        if (err->code == ERR_CONFIG)
            err->code = CLI_USAGE;
        return -1;
    }

    if (c->order == ORDER_GLOBAL && c->lanes != 1)
        return options_usage(err, "order global needs lanes 1");
    return 0;
}

/* set_in changes the settings that were given and keeps the others. */
static int set_in(struct cli *cli, struct store *st, struct arena *a, struct error *err)
{
    const char *name = cli->args.pos[0];
    struct consumer_info *info;
    struct consumer c;
    size_t n;
    if (st->ops->consumer_list(st, name, a, &info, &n, err) != 0)
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
        r = put_settings(cli, st, &spec, err);
    }
    consumer_release(&c);
    return r;
}

int cmd_consumers_set(struct cli *cli, struct error *err)
{
    const struct consumers_args *s = &cli->args.consumers;
    bool any = s->events || s->where || s->order || s->lanes;
    if (!any)
        return options_usage(err, "consumers set needs --events, --where, --order or --lanes");
    return cmd_consumers_in_store(cli, set_in, err);
}

/* earlier returns the settings of a generation, or for 0 those before the current ones; NULL: there
 * are none. */
static const struct consumer_settings *earlier(const struct history *h, int64_t generation)
{
    if (generation == 0)
        return h->n > 1 ? &h->list[1] : NULL;
    for (size_t i = 0; i < h->n; i++) {
        if (h->list[i].generation == generation)
            return &h->list[i];
    }
    return NULL;
}

/* revert_in makes an earlier generation the newest one again. */
static int revert_in(struct cli *cli, struct store *st, struct arena *a, struct error *err)
{
    const char *name = cli->args.pos[0];
    struct history h;
    if (history_read(st, name, a, &h, err) != 0)
        return -1;

    const struct consumer_settings *to = earlier(&h, cli->args.consumers.generation);
    if (!to)
        return err_set(err, ERR_NOTFOUND,
                       "consumer \"%s\" has no such settings to go back to; "
                       "`outbox consumers history %s` lists them",
                       name, name);

    struct consumer_spec spec = h.spec;
    spec.events = to->events;
    spec.where = to->where;
    spec.order = to->order;
    spec.lanes = to->lanes;
    return put_settings(cli, st, &spec, err);
}

int cmd_consumers_revert(struct cli *cli, struct error *err)
{
    return cmd_consumers_in_store(cli, revert_in, err);
}
