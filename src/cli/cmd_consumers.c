/* cmd_consumers.c: outbox consumers, which lists consumers, pauses, resumes and removes them. Its
 * subcommands about settings are in cmd_consumers_settings.c. */
#include "cli/cmd_consumers.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"

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
    {"to", "GENERATION", NULL, "generation to restore; the one before the last change if not given",
     option_long, ARG(consumers.generation), .min = 1, .max = INT32_MAX},
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

const char *cmd_consumers_patterns(const char *events)
{
    bool all = !events || !*events;
    return all ? "*" : events;
}

/* ---- list ---- */

/* add_row adds a consumer to the table of `consumers list`. */
static int add_row(struct libscols_table *tb, const struct consumer_info *c, struct error *err)
{
    char lanes[OUTPUT_INT], position[OUTPUT_INT], dead[OUTPUT_INT], inflight[OUTPUT_INT];
    const struct consumer_spec *s = &c->spec;
    const char *cells[] = {
        s->name,
        output_consumer_state(c),
        cmd_consumers_patterns(s->events),
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

/* paint colours the state and the dead letters of the row that was added last. */
static void paint(struct libscols_table *tb, const struct consumer_info *c)
{
    enum { STATE = 1, DEAD = 9 };
    if (c->paused)
        output_paint(tb, STATE, "yellow");
    else if (c->down)
        output_paint(tb, STATE, "red");
    if (c->dead)
        output_paint(tb, DEAD, "red");
}

/* print_table prints one line per consumer. A hint goes to stderr, so that scripts see an empty
 * table. */
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
        paint(tb, &c[i]);
    }
    if (n == 0)
        fputs("no consumers yet: a relay registers those it runs\n", stderr);
    return output_print(tb, err);
}

/* print_json prints an array, or without as_list the object of the one consumer. Consumers are
 * flushed one by one, so that memory stays small however many there are. */
static int print_json(const struct consumer_info *c, size_t n, bool as_list, int64_t now,
                      struct error *err)
{
    const char *start = as_list ? "\n{" : "{";
    struct buf b;
    buf_init(&b, 1 << 20);
    if (as_list)
        buf_addc(&b, '[');
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        buf_adds(&b, start);
        output_consumer(&b, &c[i], now);
        buf_addc(&b, '}');
        r = output_flush(&b, err);
        start = ",\n{";
    }
    buf_adds(&b, as_list ? "\n]\n" : "\n");
    if (r == 0)
        r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* ---- show ---- */

/* floor_text says up to where everything is completed. Beyond that a parked event or a claim may
 * hold events back; otherwise the consumer has simply not got any further. */
static const char *floor_text(const struct consumer_info *c, char out[64])
{
    static const char *const pins[][2] = {{"parked", "; parked events hold back the rest"},
                                          {"claim", "; a claim holds back the rest"}};
    const char *pin = "";
    for (size_t i = 0; c->floor_pin && i < sizeof(pins) / sizeof(*pins); i++) {
        if (strcmp(pins[i][0], c->floor_pin) == 0)
            pin = pins[i][1];
    }
    snprintf(out, 64, "%lld%s", (long long)c->floor, pin);
    return out;
}

/* first_text describes the parked event that the consumer has owed for longest; NULL: there is
 * none. */
static const char *first_text(const struct consumer_info *c, int64_t now, char out[256])
{
    const struct parked_info *p = &c->first_parked;
    char age[OUTPUT_AGE], due[CLOCK_RFC3339_SIZE], attempts[OUTPUT_COUNT];
    if (!p->seq)
        return NULL;
    snprintf(out, 256, "event %lld, overdue for %s; %s used, the next at %s", (long long)p->seq,
             output_age(clock_since(now, p->since), age),
             output_count(p->attempts, "attempt", attempts), output_time(p->due_at, due));
    return out;
}

/* lag_text returns the age of the oldest event that is not delivered; NULL: there is none. */
static const char *lag_text(const struct consumer_info *c, int64_t now, char out[OUTPUT_AGE])
{
    if (!c->oldest_at)
        return NULL;
    return output_age(clock_since(now, c->oldest_at), out);
}

/* add_pairs adds everything about a consumer. Empty values are left out. */
static int add_pairs(struct libscols_table *tb, const struct consumer_info *c, int64_t now,
                     struct error *err)
{
    char created[CLOCK_RFC3339_SIZE], due[CLOCK_RFC3339_SIZE], failed[CLOCK_RFC3339_SIZE],
        down[CLOCK_RFC3339_SIZE];
    char n[8][OUTPUT_INT], floor[64], lag[OUTPUT_AGE], first[256];
    const char *const pairs[][2] = {
        {"name", c->spec.name},
        {"state", output_consumer_state(c)},
        {"events", cmd_consumers_patterns(c->spec.events)},
        {"where", c->spec.where},
        {"order", store_order_names[c->spec.order]},
        {"lanes", output_int(c->spec.lanes, n[0])},
        {"retry", c->spec.retry},
        {"created", output_time(c->created_at, created)},
        {"position", output_int(c->position, n[1])},
        {"behind", output_about(c->behind, c->behind_exact, n[2])},
        {"lag", lag_text(c, now, lag)},
        {"in flight", output_about(c->inflight, c->inflight_exact, n[7])},
        {"delivered", output_int(c->delivered, n[3])},
        {"live claims", output_int(c->claims, n[4])},
        {"claimed by", c->owner},
        {"parked", output_about(c->parked, c->parked_exact, n[5])},
        {"first parked", first_text(c, now, first)},
        {"next retry", output_time(c->next_due, due)},
        {"dead letters", output_int(c->dead, n[6])},
        {"sink down since", output_time(c->down ? c->report_at : 0, down)},
        {"last error", c->last_error},
        {"last error at", output_time(c->last_error_at, failed)},
        {"completed up to", floor_text(c, floor)},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        if (output_pair(tb, pairs[i][0], pairs[i][1], err) != 0)
            return -1;
    }
    return 0;
}

static int print_pairs(const struct consumer_info *c, int64_t now, struct error *err)
{
    struct libscols_table *tb;
    if (output_pairs(&tb, err) != 0)
        return -1;
    if (add_pairs(tb, c, now, err) != 0) {
        output_discard(tb);
        return -1;
    }
    return output_print(tb, err);
}

/* print prints all consumers, or with `name` that one in full. Ages are counted from `now`, the
 * time of the store's clock. */
static int print(const struct cli *cli, const char *name, const struct consumer_info *c, size_t n,
                 int64_t now, struct error *err)
{
    if (name && n == 0)
        return err_set(err, ERR_NOTFOUND,
                       "there is no consumer \"%s\"; `outbox consumers list` lists them", name);
    if (cli->args.json)
        return print_json(c, n, !name, now, err);
    if (name)
        return print_pairs(c, now, err);
    return print_table(cli, c, n, err);
}

/* list is both `consumers list` and `consumers show NAME`. */
static int list(struct cli *cli, struct error *err)
{
    const char *name = cli->args.pos[0]; /* NULL: all */
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

/* ---- pause and resume ---- */

int cmd_consumers_report(const struct cli *cli, const char *now, struct error *err)
{
    struct buf b;
    buf_init(&b, 1024);
    if (cli->args.json) {
        buf_addc(&b, '{');
        output_string(&b, "consumer", cli->args.pos[0]);
        output_string(&b, "now", now);
        buf_adds(&b, "}\n");
    } else {
        output_addf(&b, "consumer \"%s\": %s\n", cli->args.pos[0], now);
    }

    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

static int set_paused(struct cli *cli, bool paused, struct error *err)
{
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    int r = st->ops->consumer_pause(st, cli->args.pos[0], paused, err);
    store_close(st);
    if (r != 0)
        return -1;
    return cmd_consumers_report(cli, paused ? "paused" : "resumed", err);
}

static int pause_(struct cli *cli, struct error *err)
{
    return set_paused(cli, true, err);
}

static int resume(struct cli *cli, struct error *err)
{
    return set_paused(cli, false, err);
}

/* ---- remove ---- */

/* add_loss says what is deleted along with a consumer. */
static void add_loss(struct buf *b, const struct consumer_info *c)
{
    char dead[OUTPUT_COUNT], parked[OUTPUT_COUNT];
    buf_addf(b, "its position (%lld), %s and %s", (long long)c->position,
             output_count(c->dead, "dead letter", dead),
             output_count(c->parked, "parked event", parked));
}

/* report_removal says what was deleted with the consumer, or would be. */
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
        output_addf(&b, "consumer \"%s\": %s, with ", c->spec.name,
                    dry ? "would be removed" : "removed");
        add_loss(&b, c);
        buf_addc(&b, '\n');
    }

    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

static int confirm_removal(const struct cli *cli, const struct consumer_info *c, struct error *err)
{
    struct buf loss;
    buf_init(&loss, 1024);
    add_loss(&loss, c);
    int r = confirm(cli, err, "remove consumer \"%s\" for good, with %s", c->spec.name,
                    buf_cstr(&loss));
    buf_release(&loss);
    return r;
}

/* remove_in removes the consumer in the arguments. A consumer that still has work to do needs
 * --force, also for a dry run. */
static int remove_in(struct cli *cli, struct store *st, struct arena *a, struct error *err)
{
    const char *name = cli->args.pos[0];
    bool force = cli->args.consumers.force;
    struct consumer_info *c;
    size_t n;
    if (st->ops->consumer_list(st, name, a, &c, &n, err) != 0)
        return -1;
    if (!force && store_removable(name, c->dead, c->parked, c->claims, err) != 0)
        return -1;
    if (cli->args.dry_run)
        return report_removal(cli, c, err);

    if (confirm_removal(cli, c, err) != 0)
        return -1;
    if (st->ops->consumer_remove(st, name, force, err) != 0)
        return -1;
    return report_removal(cli, c, err);
}

static int remove_(struct cli *cli, struct error *err)
{
    return cmd_consumers_in_store(cli, remove_in, err);
}

int cmd_consumers_in_store(struct cli *cli, cmd_consumers_work *work, struct error *err)
{
    struct store *st;
    struct arena a;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    arena_init(&a, 0);
    int r = work(cli, st, &a, err);
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
     .run = cmd_consumers_history},
    {.name = "consumers",
     .sub = "set",
     .args = "NAME",
     .help = "change a consumer's settings, even to ones that were replaced before",
     .options = set_options,
     .min = 1,
     .max = 1,
     .run = cmd_consumers_set},
    {.name = "consumers",
     .sub = "revert",
     .args = "NAME",
     .help = "restore earlier settings of a consumer",
     .options = revert_options,
     .min = 1,
     .max = 1,
     .run = cmd_consumers_revert},
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
