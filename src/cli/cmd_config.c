/* cmd_config.c: outbox config, which checks, shows and documents the settings of a relay. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

static const struct option_def show_options[] = {OPTION_JSON, OPTION_END};
static const struct option_def check_options[] = {
    {"connect", NULL, "no", "also connect to the store and to every sink", option_bool,
     ARG(check.connect)},
    OPTION_JSON,
    OPTION_END,
};

/* ---- check ---- */

/* gather keeps a problem for the end, so that all of them are listed. */
static void gather(void *ctx, const struct problem *p)
{
    struct cli *cli = ctx;
    struct error err;
    if (config_complain(&cli->config, p, &err) != 0)
        cli->args.check.overflow = true;
}

/* try_store opens the store and closes it again. */
static int try_store(struct cli *cli, struct error *err)
{
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    store_close(st);
    return 0;
}

/* parse_store checks the store's URL without connecting: generating its DDL parses all of it. */
static int parse_store(const char *url, struct error *err)
{
    struct buf b;
    buf_init(&b, (size_t)16 << 20);
    struct ddl_request req = {.url = url, .up = &b, .down = &b, .ret_schema = &b};
    int r = store_kind(url)->ddl(&req, err);
    buf_release(&b);
    return r;
}

/* check_store finds out whether the store could be used: its URL, and with --connect the
 * database behind it. */
static void check_store(struct cli *cli)
{
    struct error err = {0};
    int r = commands_need_store(cli, &err);
    if (r == 0 && cli->args.check.connect)
        r = try_store(cli, &err);
    else if (r == 0)
        r = parse_store(cli->settings.store, &err);
    if (r == 0)
        return;

    const struct given *g = config_get(&cli->config, NULL, option_find(config_options, "store"));
    struct problem p = {.text = err.text};
    if (g)
        p.where = g->where;
    gather(cli, &p);
}

/* count_errors counts the problems that would keep a relay from starting; warnings would not. */
static size_t count_errors(const struct config *c)
{
    size_t errors = 0;
    for (size_t i = 0; i < c->n_problems; i++) {
        if (!c->problem[i].warning)
            errors++;
    }
    return errors;
}

/* print_problem writes a problem to stderr, with the place it comes from. */
static void print_problem(const struct problem *p)
{
    struct buf b;
    buf_init(&b, 8192);
    if (p->warning)
        buf_adds(&b, "warning: ");
    if (p->where)
        buf_addf(&b, "%s: ", p->where);
    buf_adds(&b, p->text);
    output_error(buf_cstr(&b));
    buf_release(&b);
}

/* list_json adds an array of the warnings, or of the other problems. */
static void list_json(struct buf *b, const char *name, const struct config *c, bool warnings)
{
    const char *start = "\n{";
    output_member(b, name);
    buf_addc(b, '[');
    for (size_t i = 0; i < c->n_problems; i++) {
        if (c->problem[i].warning != warnings)
            continue;
        buf_adds(b, start);
        output_string(b, "where", c->problem[i].where);
        output_string(b, "text", c->problem[i].text);
        buf_addc(b, '}');
        start = ",\n{";
    }
    buf_addc(b, ']');
}

static int print_check_json(const struct cli *cli, size_t consumers, struct error *err)
{
    const struct config *c = &cli->config;
    struct buf b;
    buf_init(&b, OUTPUT_MAX);
    buf_addc(&b, '{');
    output_bool(&b, "ok", count_errors(c) == 0);
    output_string(&b, "file", c->path);
    output_bool(&b, "connected", cli->args.check.connect);
    output_number(&b, "consumers", (int64_t)consumers);
    list_json(&b, "problems", c, false);
    list_json(&b, "warnings", c, true);
    buf_adds(&b, "}\n");

    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* print_check_text writes the problems to stderr. Only a config without errors gets a line on
 * stdout. */
static int print_check_text(const struct cli *cli, size_t consumers, struct error *err)
{
    const struct config *c = &cli->config;
    for (size_t i = 0; i < c->n_problems; i++)
        print_problem(&c->problem[i]);
    if (count_errors(c) > 0)
        return 0;

    char n[OUTPUT_COUNT];
    struct buf b;
    buf_init(&b, 8192);
    output_addf(&b, "%s: ok, %s%s\n", c->path ? c->path : "no config file",
                output_count((int64_t)consumers, "consumer", n),
                cli->args.check.connect ? ", all reachable" : "");
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* check reads the settings as a relay would, but does not stop at the first problem. */
static int check(struct cli *cli, struct error *err)
{
    size_t consumers;
    check_store(cli);
    config_check(&cli->config, cli->args.check.connect, gather, cli);
    config_consumers(&cli->config, &consumers);
    if (cli->args.check.overflow)
        return err_nomem(err);

    int r;
    if (cli->args.json)
        r = print_check_json(cli, consumers, err);
    else
        r = print_check_text(cli, consumers, err);
    if (r != 0)
        return -1;

    if (count_errors(&cli->config) == 0)
        return 0;
    err->code = CLI_WRONG;
    return -1;
}

/* ---- show ---- */

/* A list of settings on its way out. (1) tb == NULL: it is JSON, gathered in b. */
struct shown {
    const struct cli *cli;
    struct libscols_table *tb;
    struct buf b;
    size_t n; /* shown so far */
};

/* The value in effect for an option, and where it comes from. */
struct effective {
    const char *value;  /* NULL: it has none */
    const char *origin; /* default, file, environment, flag, preset */
    const char *where;  /* of a preset: where the preset is chosen; NULL: it is a default */
};

/* effective_of resolves an option: what was given, else the consumer's preset, else the default. */
static struct effective effective_of(const struct config *c, const char *consumer,
                                     const struct option_def *o)
{
    static const char *const origins[] = {"default", "file", "environment", "flag"};
    const struct given *g = config_get(c, consumer, o);
    if (g)
        return (struct effective){g->value, origins[g->origin], g->where};

    const struct given *preset = config_get(c, consumer, option_find(consumer_options, "preset"));
    const char *value = NULL;
    if (preset)
        value = consumer_preset(preset->value, o->name);
    if (value)
        return (struct effective){value, "preset", preset->where};
    return (struct effective){o->def, "default", NULL};
}

static void show_json(struct shown *s, const char *section, const struct option_def *o,
                      const struct effective *e)
{
    buf_adds(&s->b, s->n++ ? ",\n{" : "\n{");
    output_string(&s->b, "section", section);
    output_string(&s->b, "name", o->name);
    output_string(&s->b, "value", e->value);
    output_string(&s->b, "origin", e->origin);
    output_string(&s->b, "where", e->where);
    buf_addc(&s->b, '}');
}

/* show_cells adds a row. FROM says where the value was given, or where the preset was chosen
 * that it belongs to. */
static int show_cells(struct shown *s, const char *section, const struct option_def *o,
                      const struct effective *e, struct error *err)
{
    char from[600] = "default";
    bool preset = strcmp(e->origin, "preset") == 0;
    if (preset)
        snprintf(from, sizeof(from), "preset at %s", e->where);
    else if (e->where)
        snprintf(from, sizeof(from), "%s", e->where);
    const char *cells[] = {section, o->name, e->value ? e->value : "-", from};
    return output_row(s->tb, cells, err);
}

/* show_one shows an option of a consumer (NULL: of [outbox]), without its secrets. */
static int show_one(struct shown *s, const char *consumer, const struct option_def *o,
                    struct error *err)
{
    struct effective e = effective_of(&s->cli->config, consumer, o);
    char section[STORE_NAME_MAX + 16] = "outbox";
    struct buf masked;
    buf_init(&masked, (size_t)1 << 20);
    if (consumer)
        snprintf(section, sizeof(section), "consumer %s", consumer);
    if (e.value) {
        config_mask(&masked, e.value);
        e.value = buf_cstr(&masked);
    }

    int r = 0;
    if (masked.failed)
        r = err_nomem(err);
    else if (s->tb)
        r = show_cells(s, section, o, &e, err);
    else
        show_json(s, section, o, &e);
    buf_release(&masked);
    return r;
}

static int show_table(struct shown *s, const char *consumer, const struct option_def *table,
                      struct error *err)
{
    for (const struct option_def *o = table; o->name; o++) {
        if (show_one(s, consumer, o, err) != 0)
            return -1;
    }
    return 0;
}

/* show_all shows the settings of [outbox], what consumers inherit from there, and each consumer. */
static int show_all(struct shown *s, struct error *err)
{
    size_t n;
    char *const *names = config_consumers(&s->cli->config, &n);
    if (show_table(s, NULL, config_options, err) != 0)
        return -1;
    if (show_table(s, NULL, consumer_options, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (show_table(s, names[i], consumer_options, err) != 0)
            return -1;
    }
    return 0;
}

static int show_as_table(struct shown *s, struct error *err)
{
    static const struct output_column columns[] = {
        {"SECTION", false, false}, {"NAME", false, false}, {"VALUE", false, false},
        {"FROM", false, false},    {NULL, false, false},
    };
    if (output_table(columns, true, output_color(&s->cli->settings), &s->tb, err) != 0)
        return -1;
    if (show_all(s, err) != 0) {
        output_discard(s->tb);
        return -1;
    }
    return output_print(s->tb, err);
}

static int show_as_json(struct shown *s, struct error *err)
{
    buf_init(&s->b, (size_t)16 << 20);
    buf_addc(&s->b, '[');
    int r = show_all(s, err);
    buf_adds(&s->b, "\n]\n");
    if (r == 0)
        r = output_flush(&s->b, err);
    buf_release(&s->b);
    return r;
}

static int show(struct cli *cli, struct error *err)
{
    struct shown s = {.cli = cli};
    if (cli->args.json)
        return show_as_json(&s, err);
    return show_as_table(&s, err);
}

/* ---- sample ---- */

/* Values for options that have no default, and for those whose default shows little. */
static const struct {
    const char *name, *value;
} examples[] = {
    {"store", "sqlite:shop.db"},
    {"listen", "127.0.0.1:8025"},
    {"listen-token-file", "/etc/outbox/listen.token"},
    {"listen-token-env", "LISTEN_TOKEN"},
    {"listen-hosts", "relay.internal, 10.0.0.7"},
    {"sink", "exec:./notify"},
    {"events", "order.*, invoice.paid"},
    {"where", "authorType = \"user\""},
    {"file-mode", "0640"},
    {"exec-env", "SHOP_URL, AWS_REGION"},
    {"webhook-secret-file", "/etc/outbox/partner.secrets"},
    {"webhook-secret-env", "PARTNER_SECRETS"},
    {"webhook-header-file", "/etc/outbox/partner.headers"},
    {"webhook-ca-file", "/etc/outbox/partner-ca.pem"},
    {"webhook-allow", "10.1.0.0/16, fd00:1::/32"},
    {"webhook-proxy", "http://proxy:3128"},
};

static const char *example_of(const struct option_def *o)
{
    for (size_t i = 0; i < sizeof(examples) / sizeof(*examples); i++) {
        if (strcmp(examples[i].name, o->name) == 0)
            return examples[i].value;
    }
    if (o->def)
        return o->def;
    return "";
}

/* sample_table adds every option commented out, below its help. */
static void sample_table(struct buf *b, const struct option_def *table)
{
    for (const struct option_def *o = table; o->name; o++) {
        buf_addf(b, "\n# %s", o->help);
        if (o->arg)
            buf_addf(b, " (%s)", o->arg);
        buf_addf(b, "\n#%s = %s\n", o->name, example_of(o));
    }
}

static int sample(struct cli *cli, struct error *err)
{
    struct buf b;
    (void)cli;
    buf_init(&b, OUTPUT_MAX);
    buf_adds(
        &b,
        "# Settings of outbox, read with outbox -c FILE. Lines that start with # are comments:\n"
        "# remove the # to set something. Every setting is also an option (--lease 2s) and an\n"
        "# environment variable (OUTBOX_LEASE=2s). Options override the environment, which\n"
        "# overrides this file.\n"
        "\n[outbox]\n");
    sample_table(&b, config_options);
    buf_adds(
        &b,
        "\n# One section for each consumer to run. Its settings may also be in [outbox], where\n"
        "# they apply to all consumers.\n"
        "#[consumer example]\n");
    sample_table(&b, consumer_options);
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

const struct command cmd_config[] = {
    {.name = "config",
     .sub = "check",
     .help = "list everything wrong with the settings of a relay",
     .options = check_options,
     .consumers = true,
     .gathers = true,
     .run = check},
    {.name = "config",
     .sub = "show",
     .help = "show the effective settings, and where each comes from",
     .options = show_options,
     .consumers = true,
     .run = show},
    {.name = "config",
     .sub = "sample",
     .help = "print a commented sample config file",
     .bare = true,
     .run = sample},
    {.name = NULL},
};
