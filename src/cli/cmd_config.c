/* cmd_config.c: outbox config, which checks, shows and documents the settings of a relay. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

struct check_args {
    bool connect;
};

static const struct option_def show_options[] = {OPTION_JSON, OPTION_END};
static const struct option_def check_options[] = {
    {"connect", NULL, "no", "also connect to the store and to every sink", option_bool,
     OWN(check_args, connect)},
    OPTION_JSON,
    OPTION_END,
};

/* ---- check ---- */

/* Checks the store: its URL, and with --connect the database. Without it, generating the DDL parses
 * the whole URL. */
static void check_store(struct cli *cli, bool connect)
{
    const char *url = cli->settings.store;
    struct error err = {0};
    bool usable = commands_need_store(cli, &err) == 0;
    if (usable && connect) {
        usable = commands_open(cli, (struct store_options){0}, &err) == 0;
    } else if (usable) {
        struct buf b;
        buf_init(&b, (size_t)16 << 20);
        struct ddl_request req = {.url = url, .up = &b, .down = &b, .ret_schema = &b};
        usable = store_kind(url)->ddl(&req, &err) == 0;
        buf_release(&b);
    }
    if (usable)
        return;

    const struct given *g = config_find(&cli->config, NULL, "store");
    config_complain(&cli->config, &(struct problem){g ? g->where : NULL, err.text, false});
}

/* The result of `config check`. */
struct checked {
    const char *file; /* NULL: none */
    int64_t consumers;
    bool ok, connected;
    const struct problem *problem, *warning;
    size_t n_problems, n_warnings;
};

static const struct listing_field fields_problem[] = {
    {"where", LISTING_TEXT, .at = offsetof(struct problem, where),
     "where it was found: a line of the file, a variable or an option; or null"},
    {"text", LISTING_TEXT, .at = offsetof(struct problem, text), "what is wrong"},
    {NULL},
};

#define AT(member) .at = offsetof(struct checked, member)
#define PROBLEMS(n) \
    .sub = fields_problem, .also = offsetof(struct checked, n), .size = sizeof(struct problem)
static const struct listing_field fields_checked[] = {
    {"ok", LISTING_BOOL, AT(ok), "whether a relay could run with these settings"},
    {"file", LISTING_TEXT, AT(file), "the config file, or null"},
    {"connected", LISTING_BOOL, AT(connected),
     "whether the check connected to the store and the sinks"},
    {"consumers", LISTING_INT, AT(consumers), "number of consumers to run"},
    {"problems", LISTING_LIST, AT(problem), "problems that prevent a relay from running",
     PROBLEMS(n_problems)},
    {"warnings", LISTING_LIST, AT(warning), "warnings for the operator", PROBLEMS(n_warnings)},
    {NULL},
};
#undef AT

/* Returns the warnings, or the problems that are not, in the arena of cli; NULL: out of memory. */
static const struct problem *select_problems(struct cli *cli, bool warning, size_t *ret_n)
{
    const struct config *c = &cli->config;
    struct problem *list = arena_zalloc(&cli->arena, c->n_problems + 1, sizeof *list);
    for (size_t i = 0; list && i < c->n_problems; i++) {
        if (c->problem[i].warning == warning)
            list[(*ret_n)++] = c->problem[i];
    }
    return list;
}

/* Only settings without errors print a line on stdout. */
static void checked_text(struct buf *b, const void *row)
{
    const struct checked *k = row;
    if (k->ok)
        output_addf(b, "%s: ok, %s%s\n", k->file ? k->file : "no config file",
                    human_count(k->consumers, "consumer"), k->connected ? ", all reachable" : "");
}

/* Reads the settings as a relay would, but does not stop at the first problem. */
static int check_settings(struct cli *cli, struct error *err)
{
    size_t consumers;
    const struct check_args *a = cli_own(cli);
    check_store(cli, a->connect);
    config_check(&cli->config, a->connect, config_complain, &cli->config);
    config_consumers(&cli->config, &consumers);
    if (cli->config.nomem)
        return err_nomem(err);

    struct checked row = {
        .file = cli->config.path, .consumers = (int64_t)consumers, .connected = a->connect};
    row.problem = select_problems(cli, false, &row.n_problems);
    row.warning = select_problems(cli, true, &row.n_warnings);
    if (!row.problem || !row.warning)
        return err_nomem(err);
    row.ok = row.n_problems == 0;
    for (size_t i = 0; i < cli->config.n_problems && !cli->args.json; i++) {
        const struct problem *p = &cli->config.problem[i];
        output_note("outbox: %s%s%s%s\n", p->warning ? "warning: " : "", p->where ? p->where : "",
                    p->where ? ": " : "", p->text);
    }
    if (output_result(cli, fields_checked, &row, checked_text, err) != 0)
        return -1;
    if (row.ok)
        return 0;
    err->code = CLI_WRONG;
    return -1;
}

/* ---- show ---- */

/* A setting to show: the value in effect, and where it, or the preset it comes from, was given. */
struct shown_setting {
    const char *section, *name;
    const char *value;  /* NULL: none */
    const char *origin; /* default, file, environment, flag, preset */
    const char *where;  /* NULL: a default */
};

/* Resolves an option: the given value, else the consumer's preset, else the default. */
static void resolve_setting(const struct config *c, const char *consumer,
                            const struct option_def *o, struct shown_setting *ret)
{
    static const char *const origins[] = {"default", "file", "environment", "flag"};
    const struct given *g = config_get(c, consumer, o);
    const struct given *preset = config_find(c, consumer, "preset");
    ret->value = o->def;
    ret->origin = origins[g ? g->origin : ORIGIN_DEFAULT];
    if (g) {
        ret->value = g->value;
        ret->where = g->where;
    } else if (preset && consumer_preset(preset->value, o->name)) {
        ret->value = consumer_preset(preset->value, o->name);
        ret->origin = "preset";
        ret->where = preset->where;
    }
}

static void setting_from_text(struct buf *b, const void *row)
{
    const struct shown_setting *s = row;
    if (strcmp(s->origin, "preset") == 0)
        buf_adds(b, "preset at ");
    buf_adds(b, s->where ? s->where : "default");
}

#define AT(member) .at = offsetof(struct shown_setting, member)
static const struct listing_field fields_setting[] = {
    {"section", LISTING_TEXT, AT(section), "outbox, or consumer NAME"},
    {"name", LISTING_TEXT, AT(name), "name of the setting"},
    {"value", LISTING_TEXT, AT(value), "value without secrets, or null"},
    {"origin", LISTING_TEXT, AT(origin), "default, file, environment, flag or preset"},
    {"where", LISTING_TEXT, AT(where), "where it was set, or null", "FROM",
     .text = setting_from_text},
    {NULL},
};
#undef AT

/* Shows the settings of a consumer (NULL: of [outbox]), without secrets. */
static void show_table(struct cli *cli, struct listing *l, const char *consumer,
                       const struct option_def *table)
{
    char section[STORE_NAME_MAX + 16] = "outbox";
    if (consumer)
        snprintf(section, sizeof(section), "consumer %s", consumer);
    for (const struct option_def *o = table; o->name; o++) {
        struct shown_setting row = {.section = section, .name = o->name};
        resolve_setting(&cli->config, consumer, o, &row);
        if (row.value && output_masked(cli, row.value, &row.value, &l->failed) != 0)
            return;
        listing_add(l, &row);
    }
}

/* Shows the settings of [outbox], the options that consumers inherit from there, and each consumer.
 */
static int show_settings(struct cli *cli, struct error *err)
{
    struct listing l;
    size_t n;
    const struct named *names = config_consumers(&cli->config, &n);
    if (output_listing(cli, &l, fields_setting, "section name value- where", err) != 0)
        return -1;
    show_table(cli, &l, NULL, config_options);
    show_table(cli, &l, NULL, consumer_options);
    for (size_t i = 0; i < n; i++)
        show_table(cli, &l, names[i].name, consumer_options);
    return listing_end(&l, 0, err);
}

/* ---- sample ---- */

/* Sample values for options whose default is missing or uninformative. */
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

/* Adds every option commented out, below its help. */
static void sample_table(struct buf *b, const struct option_def *table)
{
    for (const struct option_def *o = table; o->name; o++) {
        buf_addf(b, "\n# %s", o->help);
        if (o->arg)
            buf_addf(b, " (%s)", o->arg);
        const char *value = o->def ? o->def : "";
        for (size_t i = 0; i < sizeof(examples) / sizeof(*examples); i++) {
            if (strcmp(examples[i].name, o->name) == 0)
                value = examples[i].value;
        }
        buf_addf(b, "\n#%s = %s\n", o->name, value);
    }
}

static int print_sample(struct cli *cli, struct error *err)
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
    {"config", "check", NULL, "check the settings of a relay, and list every problem",
     .options = check_options, .consumers = true, .gathers = true,
     .json = JSON_OBJECT(fields_checked), .run = check_settings},
    {"config", "show", NULL, "show the effective settings, and where each comes from",
     .options = show_options, .consumers = true, .json = JSON_ARRAY(fields_setting),
     .run = show_settings},
    {"config", "sample", NULL, "print a commented sample config file", .bare = true,
     .run = print_sample},
    {NULL},
};
