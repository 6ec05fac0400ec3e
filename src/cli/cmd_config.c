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

static void gather(void *ctx, const struct problem *p)
{
    struct cli *cli = ctx;
    struct error err;
    if (config_complain(&cli->config, p, &err) != 0)
        cli->args.check.overflow = true;
}

/* check_store: the URL, and with --connect the database. */
static void check_store(struct cli *cli)
{
    const struct given *g = config_get(&cli->config, NULL, option_find(config_options, "store"));
    struct error err = {0};
    struct buf b;
    int r = commands_need_store(cli, &err);
    if (r == 0 && cli->args.check.connect) {
        struct store *st;
        r = commands_store(cli, &st, &err);
        if (r == 0)
            store_close(st);
    } else if (r == 0) {
        buf_init(&b, (size_t)16 << 20);
        struct ddl_request req = {
            .url = cli->settings.store, .up = &b, .down = &b, .ret_schema = &b};
        r = store_kind(cli->settings.store)->ddl(&req, &err);
        buf_release(&b);
    }
    struct problem p = {g ? g->where : NULL, err.text, false};
    if (r != 0)
        gather(cli, &p);
}

static size_t print_problems(const struct config *c)
{
    size_t wrong = 0;
    struct buf b;
    for (size_t i = 0; i < c->n_problems; i++) {
        const struct problem *p = &c->problem[i];
        buf_init(&b, 8192);
        buf_addf(&b, "%s%s%s%s", p->warning ? "warning: " : "", p->where ? p->where : "",
                 p->where ? ": " : "", p->text);
        output_error(buf_cstr(&b));
        buf_release(&b);
        if (!p->warning)
            wrong++;
    }
    return wrong;
}

static void list_json(struct buf *b, const char *name, const struct config *c, bool warnings)
{
    bool any = false;
    output_member(b, name);
    buf_addc(b, '[');
    for (size_t i = 0; i < c->n_problems; i++) {
        if (c->problem[i].warning != warnings)
            continue;
        buf_adds(b, any ? ",\n{" : "\n{");
        output_string(b, "where", c->problem[i].where);
        output_string(b, "text", c->problem[i].text);
        buf_addc(b, '}');
        any = true;
    }
    buf_addc(b, ']');
}

static int print_json(const struct cli *cli, size_t consumers, size_t *ret_wrong, struct error *err)
{
    struct buf b;
    const struct config *c = &cli->config;
    for (size_t i = 0; i < c->n_problems; i++)
        *ret_wrong += c->problem[i].warning ? 0 : 1;
    buf_init(&b, OUTPUT_MAX);
    buf_addc(&b, '{');
    output_bool(&b, "ok", *ret_wrong == 0);
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

static int check(struct cli *cli, struct error *err)
{
    size_t n, wrong = 0;
    check_store(cli);
    config_check(&cli->config, cli->args.check.connect, gather, cli);
    config_consumers(&cli->config, &n);
    if (cli->args.check.overflow)
        return err_nomem(err);
    if (cli->args.json) {
        if (print_json(cli, n, &wrong, err) != 0)
            return -1;
    } else {
        wrong = print_problems(&cli->config);
    }
    if (wrong > 0) {
        err->code = CLI_WRONG;
        return -1;
    }
    if (!cli->args.json)
        printf("%s: ok, %zu consumer%s%s\n", cli->config.path ? cli->config.path : "no config file",
               n, n == 1 ? "" : "s", cli->args.check.connect ? ", all answer" : "");
    return 0;
}

/* ---- show ---- */

/* (1) tb == NULL: JSON into b. */
struct shown {
    const struct cli *cli;
    struct libscols_table *tb;
    struct buf b;
    size_t n;
};

/* What counts for an option, and where it comes from. */
struct counted {
    const char *value;  /* NULL: it has none */
    const char *origin; /* default, file, environment, flag, preset */
    const char *where;  /* of a preset: where that is named; NULL: it is a default */
};

static struct counted count(const struct config *c, const char *consumer,
                            const struct option_def *o)
{
    static const char *const origins[] = {"default", "file", "environment", "flag"};
    const struct given *g = config_get(c, consumer, o);
    if (g)
        return (struct counted){g->value, origins[g->origin], g->where};

    const struct given *preset = config_get(c, consumer, option_find(consumer_options, "preset"));
    const char *value = NULL;
    if (preset)
        value = consumer_preset(preset->value, o->name);
    if (value)
        return (struct counted){value, "preset", preset->where};
    return (struct counted){o->def, "default", NULL};
}

static int show_json(struct shown *s, const char *section, const struct option_def *o,
                     const struct counted *c)
{
    buf_adds(&s->b, s->n++ ? ",\n{" : "\n{");
    output_string(&s->b, "section", section);
    output_string(&s->b, "name", o->name);
    output_string(&s->b, "value", c->value);
    output_string(&s->b, "origin", c->origin);
    output_string(&s->b, "where", c->where);
    buf_addc(&s->b, '}');
    return 0;
}

static int show_cells(struct shown *s, const char *section, const struct option_def *o,
                      const struct counted *c, struct error *err)
{
    char from[600];
    bool preset = strcmp(c->origin, "preset") == 0;
    snprintf(from, sizeof(from), "%s%s", preset ? "preset at " : "",
             c->where ? c->where : "default");
    const char *cells[] = {section, o->name, c->value ? c->value : "-", from};
    return output_row(s->tb, cells, err);
}

static int show_one(struct shown *s, const char *consumer, const struct option_def *o,
                    struct error *err)
{
    struct counted c = count(&s->cli->config, consumer, o);
    char section[STORE_NAME_MAX + 16] = "outbox";
    struct buf masked;
    int r;
    buf_init(&masked, (size_t)1 << 20);
    if (consumer)
        snprintf(section, sizeof(section), "consumer %s", consumer);
    if (c.value)
        config_mask(&masked, c.value);
    if (c.value)
        c.value = buf_cstr(&masked);
    if (masked.failed)
        r = err_nomem(err);
    else if (s->tb)
        r = show_cells(s, section, o, &c, err);
    else
        r = show_json(s, section, o, &c);
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

/* show_all shows what counts: [outbox], what consumers get if they don't say otherwise, and each
 * consumer. */
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

static int show(struct cli *cli, struct error *err)
{
    static const struct output_column columns[] = {
        {"SECTION", false, false}, {"NAME", false, false}, {"VALUE", false, false},
        {"FROM", false, false},    {NULL, false, false},
    };
    struct shown s = {.cli = cli};
    buf_init(&s.b, (size_t)16 << 20);
    if (cli->args.json)
        buf_addc(&s.b, '[');
    int r = cli->args.json ? 0
                           : output_table(columns, true, output_color(&cli->settings), &s.tb, err);
    if (r == 0)
        r = show_all(&s, err);
    if (cli->args.json)
        buf_adds(&s.b, "\n]\n");
    if (r == 0) {
        r = s.tb ? output_print(s.tb, err) : output_flush(&s.b, err);
    } else {
        output_discard(s.tb);
    }
    buf_release(&s.b);
    return r;
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
    {"store", "sqlite:shop.db"},
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
    return o->def ? o->def : "";
}

static void sample_table(const struct option_def *table)
{
    for (const struct option_def *o = table; o->name; o++) {
        printf("\n# %s", o->help);
        if (o->arg)
            printf(" (%s)", o->arg);
        printf("\n#%s = %s\n", o->name, example_of(o));
    }
}

static int sample(struct cli *cli, struct error *err)
{
    (void)cli;
    (void)err;
    puts("# Settings of outbox, for outbox -c FILE. Lines that start with # are comments: take the "
         "# away to set\n"
         "# something. Every setting is also an option (--lease 2s) and an environment variable "
         "(OUTBOX_LEASE=2s);\n"
         "# options come before the environment, and that before this file.\n"
         "\n[outbox]");
    sample_table(config_options);
    puts("\n# A section for each consumer to run. Its settings may stand in [outbox], too, and are "
         "then for all.\n"
         "#[consumer example]");
    sample_table(consumer_options);
    return 0;
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
