#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin/admin.h"
#include "admin/gate.h"
#include "admin/token.h"
#include "api/defaults.h"
#include "base/ini.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/config.h"

#define FILE_MAX ((size_t)1024 * 1024)
#define PAYLOAD_LIMIT (INT64_C(64) * 1024 * 1024) /* what the stores' tables allow */

/* ---- the options of [outbox] ---- */

static int set_store(void *field, const char *value, const struct option_def *o, struct error *err)
{
    if (store_url_check(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

static int set_listen(void *field, const char *value, const struct option_def *o, struct error *err)
{
    struct admin_address a;
    if (admin_address_parse(value, &a, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

static int set_listen_token_env(void *field, const char *value, const struct option_def *o,
                                struct error *err)
{
    if (token_variable(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

static int set_listen_hosts(void *field, const char *value, const struct option_def *o,
                            struct error *err)
{
    if (gate_hosts_check(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

/* set_listen_mode takes modes that let the owner connect; nobody needs to execute a socket. */
static int set_listen_mode(void *field, const char *value, const struct option_def *o,
                           struct error *err)
{
    char *end;
    long mode = strtol(value, &end, 8);
    bool good = isdigit((unsigned char)*value) && !*end && (mode & ~0666L) == 0 &&
                (mode & 0600) == 0600;
    (void)o;
    if (!good)
        return err_set(err, ERR_CONFIG, "\"%s\" is no mode of a socket; write 0600, 0660 or 0666",
                       value);
    *(int64_t *)field = mode;
    return 0;
}

/* by enum log_level */
static const char *const level_names[] = {"debug", "info", "warning", "error", NULL};
/* by enum log_format */
static const char *const format_names[] = {"text", "json", NULL};
/* by enum color */
static const char *const color_names[] = {"auto", "always", "never", NULL};

#define AT(field) .at = offsetof(struct settings, field)

const struct option_def config_options[] = {
    {"store", "URL", NULL, "database that holds the outbox: postgres://USER@HOST/DB or sqlite:PATH",
     set_store, AT(store)},
    {"busy-timeout", "DURATION", "5s", "how long to wait for a locked SQLite database", option_span,
     AT(busy_ms), .min = 1},
    {"max-payload", "SIZE", "1MiB", "maximum size of a payload, at most 64MiB", option_size,
     AT(payload_max), .min = 1, .max = PAYLOAD_LIMIT},
    {"log-level", "debug|info|warning|error", "info", "minimum log level", option_choice,
     AT(log_level), .names = level_names},
    {"log-format", "text|json", "text", "log format: text for people, or one JSON object per line",
     option_choice, AT(log_format), .names = format_names},
    {"log-hold", "DURATION", "60s",
     "log at most ten similar lines in this time, then only count them; 0s logs all of them",
     option_span, AT(log_hold_ms)},
    {"color", "auto|always|never", "auto",
     "use colors; auto: on a terminal, unless NO_COLOR is set", option_choice, AT(color),
     .names = color_names},
    {"drain-deadline", "DURATION", DEFAULT_DRAIN_DEADLINE,
     "how long a stopping relay waits for deliveries that are in flight", option_span,
     AT(drain_ms)},
    {"sweep", "DURATION", DEFAULT_SWEEP, "how often to look for work even if nothing signals any",
     option_span, AT(sweep_ms), .min = 1},
    {"retention", "DURATION", DEFAULT_RETENTION,
     "how long to keep an event after its last consumer received it; 0s keeps events forever",
     option_span, AT(retention_ms)},
    {"inbox-retention", "DURATION", DEFAULT_INBOX_RETENTION,
     "how long to remember which events a handler has processed", option_span, AT(inbox_ms),
     .min = 1},
    {"listen", "ADDRESS:PORT|unix:PATH", NULL,
     "serve /metrics, /livez and /readyz here, such as 127.0.0.1:8025", set_listen, AT(listen)},
    {"listen-token-file", "FILE", NULL,
     "file with the bearer token to require; without one, other machines can only read /livez and "
     "/readyz",
     option_name, AT(listen_token_file)},
    {"listen-token-env", "NAME", NULL, "environment variable with that token", set_listen_token_env,
     AT(listen_token_env)},
    {"listen-hosts", "LIST", NULL, "further host names to accept in the Host header; * accepts any",
     set_listen_hosts, AT(listen_hosts)},
    {"listen-mode", "MODE", "0660", "permissions of the socket unix:PATH", set_listen_mode,
     AT(listen_mode)},
    {"stuck-after", "DURATION", "60s",
     "report not ready if a consumer has work but makes no progress for this long", option_span,
     AT(stuck_ms), .min = 1},
    {"core-dumps", NULL, "no", "allow core dumps and debuggers even if the process holds a secret",
     option_bool, AT(core_dumps)},
    {NULL},
};

/* ---- what was given ---- */

void config_init(struct config *c)
{
    *c = (struct config){0};
}

static void release_names(struct consumer_names *names)
{
    for (size_t i = 0; i < names->n; i++) {
        free(names->name[i]);
        free(names->where[i]);
    }
    free(names->name);
    free(names->where);
}

void config_release(struct config *c)
{
    for (size_t i = 0; i < c->n_given; i++) {
        free(c->given[i].consumer);
        free(c->given[i].value);
        free(c->given[i].where);
    }
    free(c->given);
    for (int i = 0; i < ORIGINS; i++)
        release_names(&c->names[i]);
    for (size_t i = 0; i < c->n_problems; i++) {
        free(c->problem[i].where);
        free(c->problem[i].text);
    }
    free(c->problem);
    free(c->path);
    config_init(c);
}

static bool of_consumer(const struct option_def *def)
{
    return option_find(consumer_options, def->name) == def;
}

/* check_value tries the value on a target that is thrown away. */
static int check_value(const struct option_def *def, const char *value, struct error *err)
{
    struct settings s = {0};
    struct consumer c;
    if (!of_consumer(def))
        return option_apply(def, &s, value, err);
    if (consumer_init(&c, "check", err) != 0)
        return -1;
    int r = option_apply(def, &c, value, err);
    consumer_release(&c);
    return r;
}

static char *copy(const char *s)
{
    return s ? strdup(s) : NULL;
}

int config_add(struct config *c, const struct given *g, struct error *err)
{
    if (check_value(g->def, g->value, err) != 0)
        return -1;
    struct given *grown = realloc(c->given, (c->n_given + 1) * sizeof(*grown));
    if (!grown)
        return err_nomem(err);
    c->given = grown;
    struct given *new = &grown[c->n_given++];
    *new = (struct given){.def = g->def,
                          .origin = g->origin,
                          .consumer = copy(g->consumer),
                          .value = copy(g->value),
                          .where = copy(g->where)};
    if ((g->consumer && !new->consumer) || !new->value || !new->where)
        return err_nomem(err);
    return 0;
}

int config_complain(struct config *c, const struct problem *p, struct error *err)
{
    struct problem *grown = realloc(c->problem, (c->n_problems + 1) * sizeof(*grown));
    if (!grown)
        return err_nomem(err);
    c->problem = grown;
    struct problem new = {copy(p->where), copy(p->text), p->warning};
    if (!new.text || (p->where && !new.where)) {
        free(new.where);
        free(new.text);
        return err_nomem(err);
    }
    grown[c->n_problems++] = new;
    return 0;
}

/* complain is where reading ends with the first problem, or notes it and goes on. */
static int complain(struct config *c, const char *where, struct error *err)
{
    if (!c->gather || err->code == ERR_NOMEM)
        return err_prefix(err, "%s", where);
    struct problem p = {(char *)(uintptr_t)where, err->text, false};
    return config_complain(c, &p, err);
}

static int check_new(const struct consumer_names *names, const char *name, struct error *err)
{
    if (store_name_check(name, err) != 0)
        return -1;
    for (size_t i = 0; i < names->n; i++) {
        if (strcmp(names->name[i], name) == 0)
            return err_set(err, ERR_CONFIG, "there is a consumer \"%s\" already", name);
    }
    return 0;
}

int config_add_name(struct config *c, enum origin origin, const char *name, const char *where,
                    struct error *err)
{
    struct consumer_names *names = &c->names[origin];
    if (check_new(names, name, err) != 0)
        return -1;
    char **more = realloc(names->name, (names->n + 1) * sizeof(*more));
    if (more)
        names->name = more;
    char **wheres = realloc(names->where, (names->n + 1) * sizeof(*wheres));
    if (wheres)
        names->where = wheres;
    if (!more || !wheres)
        return err_nomem(err);
    char *kept[] = {strdup(name), strdup(where)};
    if (!kept[0] || !kept[1]) {
        free(kept[0]);
        free(kept[1]);
        return err_nomem(err);
    }
    names->name[names->n] = kept[0];
    names->where[names->n++] = kept[1];
    return 0;
}

int config_flag(struct config *c, const char *consumer, const struct option_def *def,
                const char *value, struct error *err)
{
    char where[80];
    snprintf(where, sizeof(where), "--%s", def->name);
    /* config_add copies: the casts only take const away from what is borrowed meanwhile. */
    struct given g = {def, ORIGIN_FLAG, (char *)(uintptr_t)consumer, (char *)(uintptr_t)value,
                      where};
    if (config_add(c, &g, err) == 0)
        return 0;
    err_prefix(err, "%s", where);
    if (err->code == ERR_CONFIG)
        err->code = CLI_USAGE;
    return -1;
}

int config_flag_consumer(struct config *c, const char *name, struct error *err)
{
    if (config_add_name(c, ORIGIN_FLAG, name, "--consumer", err) == 0)
        return 0;
    err_prefix(err, "--consumer");
    if (err->code == ERR_CONFIG)
        err->code = CLI_USAGE;
    return -1;
}

/* ---- environment ---- */

const char *config_variable(const char *name, char out[CONFIG_VARIABLE])
{
    int n = snprintf(out, CONFIG_VARIABLE, "OUTBOX_%s", name);
    for (int i = 0; i < n && i < CONFIG_VARIABLE - 1; i++) {
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
    }
    return out;
}

static int environment(struct config *c, const struct option_def *table, struct error *err)
{
    char variable[CONFIG_VARIABLE];
    for (const struct option_def *o = table; o->name; o++) {
        char *value = getenv(config_variable(o->name, variable));
        if (!value || !*value)
            continue;
        struct given g = {o, ORIGIN_ENV, NULL, value, variable};
        if (config_add(c, &g, err) != 0 && complain(c, variable, err) != 0)
            return -1;
    }
    return 0;
}

/* ---- file ---- */

struct reading {
    struct config *config;
    const char *path;
    struct ini_reading ini;
    struct error nomem; /* a problem could not be kept */
};

#define WHERE 512

static const char *where_now(const struct reading *r, char out[WHERE])
{
    snprintf(out, WHERE, "%s:%zu", r->path, r->ini.line);
    return out;
}

static int open_section(struct reading *r, const char *section, struct error *err)
{
    if (strcmp(section, "outbox") == 0)
        return 0;
    if (strncmp(section, "consumer ", 9) == 0) {
        char where[WHERE];
        return config_add_name(r->config, ORIGIN_FILE, section + 9, where_now(r, where), err);
    }
    return err_set(err, ERR_CONFIG, "unknown section [%s]; there are [outbox] and [consumer NAME]",
                   section);
}

/* unknown_name says what was meant, looking at the options that may stand in the section. */
static int unknown_name(const char *name, bool in_consumer, struct error *err)
{
    const char *names[64];
    size_t n = 0;
    for (const struct option_def *o = consumer_options; o->name && n < 63; o++)
        names[n++] = o->name;
    if (!in_consumer) {
        for (const struct option_def *o = config_options; o->name && n < 63; o++)
            names[n++] = o->name;
    }
    names[n] = NULL;
    bool misplaced = in_consumer && option_find(config_options, name);
    bool typo = text_nearest(name, names) != NULL;
    if (misplaced && !typo) {
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not about one consumer; move it to the [outbox] section", name);
    }
    char hint[TEXT_HINT];
    text_hint(name, names,
              (struct text_hint){.otherwise = "outbox config sample lists those there are"}, hint);
    return err_set(err, ERR_CONFIG, "unknown option \"%s\"%s", name, hint);
}

static int visit(void *ctx, const char *section, const char *name, const char *value,
                 struct error *err)
{
    struct reading *r = ctx;
    if (!name)
        return open_section(r, section, err);
    if (!*section)
        return err_set(err, ERR_CONFIG, "\"%s\" stands in no section; put [outbox] before it",
                       name);

    bool in_consumer = strncmp(section, "consumer ", 9) == 0;
    const struct option_def *def = option_find(consumer_options, name);
    if (!def && !in_consumer)
        def = option_find(config_options, name);
    if (!def)
        return unknown_name(name, in_consumer, err);

    char where[WHERE];
    where_now(r, where);
    struct given g = {def, ORIGIN_FILE, in_consumer ? (char *)(uintptr_t)(section + 9) : NULL,
                      (char *)(uintptr_t)value, where};
    return config_add(r->config, &g, err) == 0 ? 0 : err_prefix(err, "%s", name);
}

static void gather_problem(void *ctx, const struct error *err)
{
    struct reading *r = ctx;
    struct error why = *err;
    char where[WHERE];
    if (complain(r->config, where_now(r, where), &why) != 0)
        r->nomem = why;
}

static int parse(struct config *c, const char *path, const struct buf *text, struct error *err)
{
    if (text->n > FILE_MAX)
        return err_set(err, ERR_CONFIG, "%s: over 1 MiB", path);
    c->path = strdup(path);
    if (!c->path)
        return err_nomem(err);
    if (text->n == 0)
        return 0;
    struct reading r = {.config = c,
                        .path = path,
                        .ini = {.visit = visit, .problem = c->gather ? gather_problem : NULL}};
    r.ini.ctx = &r;
    if (ini_read(&r.ini, text->p, text->n, err) != 0)
        return err_prefix(err, "%s:%zu", path, r.ini.line);
    if (!r.nomem.code)
        return 0;
    *err = r.nomem;
    return -1;
}

int config_file(struct config *c, const char *path, struct error *err)
{
    struct buf text;
    buf_init(&text, FILE_MAX + 1);
    int e = lines_slurp(path, FILE_MAX + 1, &text);
    int r = e ? err_errno(err, ERR_CONFIG, e, "%s: could not read the config file", path)
              : parse(c, path, &text, err);
    buf_release(&text);
    return r;
}

/* load_file: a file that cannot be read is one of the problems, where they are gathered. */
static int load_file(struct config *c, const char *path, struct error *err)
{
    if (config_file(c, path, err) == 0)
        return 0;
    if (!c->gather || err->code == ERR_NOMEM)
        return -1;
    struct problem p = {NULL, err->text, false};
    return config_complain(c, &p, err);
}

int config_load(struct config *c, const char *path, bool consumers, struct error *err)
{
    if (environment(c, config_options, err) != 0 || environment(c, consumer_options, err) != 0)
        return -1;
    if (path && load_file(c, path, err) != 0)
        return -1;
    return consumers ? config_environment_consumers(c, err) : 0;
}

int config_again(const struct config *from, struct config *ret, struct error *err)
{
    config_init(ret);
    for (size_t i = 0; i < from->n_given; i++)
        if (from->given[i].origin == ORIGIN_FLAG && config_add(ret, &from->given[i], err) != 0)
            return -1;
    for (size_t i = 0; i < from->names[ORIGIN_FLAG].n; i++)
        if (config_flag_consumer(ret, from->names[ORIGIN_FLAG].name[i], err) != 0)
            return -1;
    return config_load(ret, from->path, true, err);
}

/* ---- what counts ---- */

const struct given *config_get(const struct config *c, const char *consumer,
                               const struct option_def *def)
{
    const struct given *best = NULL;
    int best_rank = -1;
    for (size_t i = 0; i < c->n_given; i++) {
        const struct given *g = &c->given[i];
        if (g->def != def || (g->consumer && (!consumer || strcmp(g->consumer, consumer) != 0)))
            continue;
        int rank = 2 * (int)g->origin + (g->consumer ? 1 : 0);
        if (rank < best_rank)
            continue;
        best = g;
        best_rank = rank;
    }
    return best;
}

int config_settings(const struct config *c, struct settings *ret, struct error *err)
{
    struct settings s = {0};
    for (const struct option_def *o = config_options; o->name; o++) {
        const struct given *g = config_get(c, NULL, o);
        const char *value = g ? g->value : o->def;
        if (value && option_apply(o, &s, value, err) != 0)
            return err_prefix(err, "%s", o->name);
    }
    *ret = s;
    return 0;
}

char *const *config_consumers(const struct config *c, size_t *ret_n)
{
    enum origin from = ORIGIN_FLAG;
    while (from > ORIGIN_FILE && c->names[from].n == 0)
        from--;
    *ret_n = c->names[from].n;
    return c->names[from].name;
}
