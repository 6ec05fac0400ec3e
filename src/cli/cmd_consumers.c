#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"

static int set_force(void *target, const char *value, struct error *err)
{
    return text_bool(value, &((struct args *)target)->force, err);
}

static const struct cli_option list_options[] = {OPTION_JSON, OPTION_END};
static const struct cli_option remove_options[] = {
    {{"force", NULL, "no", "even with dead letters, events that wait for a retry, or a relay at work", set_force},
     0,
     false},
    OPTION_JSON,
    OPTION_END,
};

/* ---- list ---- */

static int add_row(struct libscols_table *tb, const struct consumer_info *c, struct error *err)
{
    char lanes[OUTPUT_INT], position[OUTPUT_INT], dead[OUTPUT_INT];
    const struct consumer_spec *s = &c->spec;
    const char *cells[] = {
        s->name,
        output_consumer_state(c),
        s->events && *s->events ? s->events : "*",
        s->where,
        order_names[s->order],
        output_int(s->lanes, lanes),
        s->retry,
        output_int(c->position, position),
        output_int(c->dead, dead),
    };
    return output_row(tb, cells, err);
}

static int print_table(const struct cli *cli, const struct consumer_info *c, size_t n, struct error *err)
{
    static const struct output_column columns[] = {
        {"NAME", false, false},  {"STATE", false, false}, {"EVENTS", false, true}, {"WHERE", false, true},
        {"ORDER", false, false}, {"LANES", true, false},  {"RETRY", false, true},  {"POSITION", true, false},
        {"DEAD", true, false},   {NULL, false, false},
    };
    struct libscols_table *tb;
    if (output_table(columns, true, output_color(&cli->settings), &tb, err) != 0) return -1;
    for (size_t i = 0; i < n; i++) {
        if (add_row(tb, &c[i], err) != 0) {
            output_discard(tb);
            return -1;
        }
        if (c[i].paused) output_paint(tb, 1, "yellow");
        if (c[i].dead) output_paint(tb, 8, "red");
    }
    if (n == 0) fputs("no consumers yet: outbox relay registers them\n", stderr);
    return output_print(tb, err);
}

static int print_json(const struct consumer_info *c, size_t n, bool as_list, struct error *err)
{
    struct buf b;
    int64_t now = clock_wall(&clock_system);
    buf_init(&b, 1 << 20);
    if (as_list) buf_addc(&b, '[');
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        if (i) buf_addc(&b, ',');
        if (as_list) buf_addc(&b, '\n');
        buf_addc(&b, '{');
        output_consumer(&b, &c[i], now);
        buf_addc(&b, '}');
        r = output_flush(&b, err);
    }
    buf_adds(&b, as_list ? "\n]\n" : "\n");
    if (r == 0) r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* ---- show ---- */

static int add_pairs(struct libscols_table *tb, const struct consumer_info *c, struct error *err)
{
    char created[CLOCK_RFC3339_SIZE], due[CLOCK_RFC3339_SIZE], failed[CLOCK_RFC3339_SIZE];
    char n[8][OUTPUT_INT], floor[64];
    snprintf(floor, sizeof(floor), "%lld, held by its %s", (long long)c->floor,
             c->floor_pin ? c->floor_pin : "position");
    const char *const pairs[][2] = {
        {"name", c->spec.name},
        {"state", output_consumer_state(c)},
        {"events", c->spec.events && *c->spec.events ? c->spec.events : "*"},
        {"where", c->spec.where},
        {"order", order_names[c->spec.order]},
        {"lanes", output_int(c->spec.lanes, n[0])},
        {"retry", c->spec.retry},
        {"created", output_time(c->created_at, created)},
        {"position", output_int(c->position, n[1])},
        {"behind", output_int(c->behind, n[2])},
        {"delivered", output_int(c->delivered, n[3])},
        {"claims alive", output_int(c->inflight, n[4])},
        {"held by", c->owner},
        {"parked", output_int(c->parked, n[5])},
        {"next retry", output_time(c->next_due, due)},
        {"dead letters", output_int(c->dead, n[6])},
        {"last error", c->last_error},
        {"failed at", output_time(c->last_error_at, failed)},
        {"done up to", floor},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        if (output_pair(tb, pairs[i][0], pairs[i][1], err) != 0) return -1;
    }
    return 0;
}

static int print_pairs(const struct consumer_info *c, struct error *err)
{
    struct libscols_table *tb;
    if (output_pairs(&tb, err) != 0) return -1;
    if (add_pairs(tb, c, err) != 0) {
        output_discard(tb);
        return -1;
    }
    return output_print(tb, err);
}

/* ---- commands ---- */

static int print(const struct cli *cli, const char *name, const struct consumer_info *c, size_t n, struct error *err)
{
    if (name && n == 0) {
        return err_set(err, ERR_NOTFOUND, "there is no consumer \"%s\"; outbox consumers list names those there are",
                       name);
    }
    if (cli->args.json) return print_json(c, n, !name, err);
    return name ? print_pairs(c, err) : print_table(cli, c, n, err);
}

static int list(struct cli *cli, struct error *err)
{
    const char *name = cli->args.n_pos ? cli->args.pos[0] : NULL;
    struct consumer_info *c = NULL;
    struct store *st;
    struct arena a;
    size_t n = 0;
    if (commands_store(cli, false, &st, err) != 0) return -1;
    arena_init(&a, 0);
    int r = st->ops->consumer_list(st, name, &a, &c, &n, err);
    store_close(st);
    if (r == 0) r = print(cli, name, c, n, err);
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
    const char *name = cli->args.pos[0];
    struct store *st;
    int r;
    if (commands_store(cli, false, &st, err) != 0) return -1;
    if (strcmp(what, "removed") == 0) {
        r = st->ops->consumer_remove(st, name, cli->args.force, err);
    } else {
        r = st->ops->consumer_pause(st, name, strcmp(what, "paused") == 0, err);
    }
    store_close(st);
    return r == 0 ? report(cli, what, err) : -1;
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
    return change(cli, "removed", err);
}

const struct command cmd_consumers[] = {
    {.name = "consumers", .sub = "list", .help = "list the consumers", .options = list_options, .run = list},
    {.name = "consumers",
     .sub = "show",
     .args = "NAME",
     .help = "show all about a consumer",
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
     .help = "go on delivering to a consumer",
     .options = list_options,
     .min = 1,
     .max = 1,
     .run = resume},
    {.name = "consumers",
     .sub = "remove",
     .args = "NAME",
     .help = "forget a consumer and its state",
     .options = remove_options,
     .min = 1,
     .max = 1,
     .run = remove_},
    {.name = NULL},
};
