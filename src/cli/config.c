/* config.c: the settings. Values come from flags, environment and config file; this file collects
 * them and decides which are in effect. It lists the options of the [outbox] section. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin/access.h"
#include "admin/admin.h"
#include "api/supervisor.h"
#include "base/arena.h"
#include "cli/cli.h"

/* ---- the options of [outbox] ---- */

#define PAYLOAD_LIMIT (INT64_C(64) * 1024 * 1024) /* limit of the stores' tables */

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
    if (access_token_variable(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

static int set_listen_hosts(void *field, const char *value, const struct option_def *o,
                            struct error *err)
{
    if (access_hosts_check(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

/* Accepts modes that let the owner connect and have no execute bits. */
static int set_listen_mode(void *field, const char *value, const struct option_def *o,
                           struct error *err)
{
    char *end;
    long mode = strtol(value, &end, 8);
    bool octal = isdigit((unsigned char)*value) && !*end;
    bool fit = (mode & ~0666L) == 0 && (mode & 0600) == 0600;
    (void)o;

    if (!octal || !fit)
        return err_set(err, ERR_CONFIG, "\"%s\" is not a mode for a socket; use 0600, 0660 or 0666",
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
    {"store", "URL", NULL,
     "database that holds the outbox: postgres://USER@HOST/DB, mariadb://USER@HOST/DB or "
     "sqlite:PATH",
     set_store, AT(store)},
    {"busy-timeout", "DURATION", "5s", "how long to wait for a locked SQLite database", option_span,
     AT(busy_ms), .min = 1},
    {"max-payload", "SIZE", "1MiB", "maximum size of a payload, at most 64MiB", option_size,
     AT(payload_max), .min = 1, .max = PAYLOAD_LIMIT},
    {"log-level", "debug|info|warning|error", "info", "minimum log level", option_choice,
     AT(log_level), .names = level_names},
    {"log-format", "text|json", "text", "log format: text for humans, or one JSON object per line",
     option_choice, AT(log_format), .names = format_names},
    {"log-hold", "DURATION", "60s",
     "log at most ten similar lines in this time, then only count them; 0s logs all of them",
     option_span, AT(log_hold_ms)},
    {"color", "auto|always|never", "auto",
     "use colors; auto: on a terminal, unless NO_COLOR is set", option_choice, AT(color),
     .names = color_names},
    SUPERVISOR_OPTIONS(AT),
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

/* ---- values given ---- */

void config_init(struct config *c)
{
    *c = (struct config){0};
    arena_init(&c->arena, 0);
}

void config_release(struct config *c)
{
    for (int i = 0; i < ORIGINS; i++) {
        free(c->names[i].name);
        free(c->names[i].where);
    }
    free(c->given);
    free(c->problem);
    arena_release(&c->arena);
    config_init(c);
}

/* Copies s, which may be NULL, into the config. It returns false if there is no memory. */
static bool copy_text(struct config *c, const char *s, const char **ret)
{
    *ret = NULL;
    if (!s)
        return true;
    *ret = arena_bytes(&c->arena, s, strlen(s));
    return *ret != NULL;
}

/* Applies the value to a target that is thrown away. */
static int check_value(const struct option_def *def, const char *value, struct error *err)
{
    struct settings s = {0};
    struct consumer c;
    bool of_consumer = option_find(consumer_options, def->name) == def;
    if (!of_consumer)
        return option_apply(def, &s, value, err);

    if (consumer_init(&c, "check", err) != 0)
        return -1;
    int r = option_apply(def, &c, value, err);
    consumer_release(&c);
    return r;
}

/* Checks the value first, so that values in the list can always be applied without failing. */
int config_add(struct config *c, const struct given *g, struct error *err)
{
    if (check_value(g->def, g->value, err) != 0)
        return -1;

    struct given *grown = array_grow(c->given, c->n_given, sizeof *grown);
    if (!grown)
        return err_nomem(err);
    c->given = grown;

    struct given new = {.def = g->def, .origin = g->origin};
    bool copied = copy_text(c, g->consumer, &new.consumer) && copy_text(c, g->value, &new.value) &&
                  copy_text(c, g->where, &new.where);
    if (!copied)
        return err_nomem(err);
    grown[c->n_given++] = new;
    return 0;
}

int config_complain(struct config *c, const struct problem *p, struct error *err)
{
    struct problem *grown = array_grow(c->problem, c->n_problems, sizeof *grown);
    if (!grown)
        return err_nomem(err);
    c->problem = grown;

    struct problem new = {.warning = p->warning};
    if (!copy_text(c, p->where, &new.where) || !copy_text(c, p->text, &new.text))
        return err_nomem(err);
    grown[c->n_problems++] = new;
    return 0;
}

int config_wrong(struct config *c, const char *where, struct error *err)
{
    if (!c->gather || err->code == ERR_NOMEM)
        return err_prefix(err, "%s", where);

    struct problem p = {where, err->text, false};
    return config_complain(c, &p, err);
}

int config_add_name(struct config *c, enum origin origin, const char *name, const char *where,
                    struct error *err)
{
    struct consumer_names *names = &c->names[origin];
    if (store_name_check(name, err) != 0)
        return -1;
    for (size_t i = 0; i < names->n; i++) {
        if (strcmp(names->name[i], name) == 0)
            return err_set(err, ERR_CONFIG, "consumer \"%s\" is already defined", name);
    }

    const char **grown = array_grow(names->name, names->n, sizeof *grown);
    if (!grown)
        return err_nomem(err);
    names->name = grown;
    grown = array_grow(names->where, names->n, sizeof *grown);
    if (!grown)
        return err_nomem(err);
    names->where = grown;

    bool copied = copy_text(c, name, &names->name[names->n]) &&
                  copy_text(c, where, &names->where[names->n]);
    if (!copied)
        return err_nomem(err);
    names->n++;
    return 0;
}

/* Makes a bad value a usage error; in the environment or the file it is a bad setting. */
int config_flag(struct config *c, const char *consumer, const struct option_def *def,
                const char *value, struct error *err)
{
    char where[80];
    snprintf(where, sizeof(where), "--%s", def->name);

    struct given g = {def, ORIGIN_FLAG, consumer, value, where};
    if (config_add(c, &g, err) != 0)
        return options_invalid(def->name, err);
    return 0;
}

int config_flag_consumer(struct config *c, const char *name, struct error *err)
{
    if (config_add_name(c, ORIGIN_FLAG, name, "--consumer", err) != 0)
        return options_invalid("consumer", err);
    return 0;
}

/* While gathering problems, treat an unreadable file as a problem. */
int config_load(struct config *c, const char *path, bool consumers, struct error *err)
{
    if (config_environment(c, config_options, err) != 0)
        return -1;
    if (config_environment(c, consumer_options, err) != 0)
        return -1;
    if (config_environment_slips(c, err) != 0)
        return -1;
    if (path && config_file(c, path, err) != 0) {
        struct problem p = {.text = err->text};
        if (!c->gather || err->code == ERR_NOMEM || config_complain(c, &p, err) != 0)
            return -1;
    }
    if (!consumers)
        return 0;
    return config_environment_consumers(c, err);
}

int config_again(const struct config *from, struct config *ret, struct error *err)
{
    /* Flags were checked when they were parsed; the arguments themselves may be masked by now. */
    config_init(ret);
    for (size_t i = 0; i < from->n_given; i++) {
        const struct given *g = &from->given[i];
        if (g->origin == ORIGIN_FLAG && config_add(ret, g, err) != 0)
            return -1;
    }

    const struct consumer_names *names = &from->names[ORIGIN_FLAG];
    for (size_t i = 0; i < names->n; i++) {
        if (config_flag_consumer(ret, names->name[i], err) != 0)
            return -1;
    }
    return config_load(ret, from->path, true, err);
}

/* ---- values in effect ---- */

/* Orders values of the same option: the later origin first, then the value that names the
 * consumer. */
static int rank_of(const struct given *g)
{
    int rank = 2 * (int)g->origin;
    if (g->consumer)
        rank++;
    return rank;
}

const struct given *config_get(const struct config *c, const char *consumer,
                               const struct option_def *def)
{
    const struct given *best = NULL;
    for (size_t i = 0; i < c->n_given; i++) {
        const struct given *g = &c->given[i];
        bool for_all = !g->consumer;
        bool for_it = g->consumer && consumer && strcmp(g->consumer, consumer) == 0;
        if (g->def != def || (!for_all && !for_it))
            continue;
        if (!best || rank_of(g) >= rank_of(best))
            best = g;
    }
    return best;
}

const struct given *config_find(const struct config *c, const char *consumer, const char *option)
{
    const struct option_def *def = option_find(consumer_options, option);
    if (!def)
        def = option_find(config_options, option);
    return config_get(c, consumer, def);
}

const char *config_value(const struct config *c, const char *consumer, const struct option_def *def)
{
    const struct given *g = config_get(c, consumer, def);
    if (g)
        return g->value;
    return def->def;
}

int config_settings(const struct config *c, struct settings *ret, struct error *err)
{
    struct settings s = {0};
    for (const struct option_def *o = config_options; o->name; o++) {
        const char *value = config_value(c, NULL, o);
        if (value && option_apply(o, &s, value, err) != 0)
            return err_prefix(err, "%s", o->name);
    }
    *ret = s;
    return 0;
}

const char *const *config_consumers(const struct config *c, size_t *ret_n)
{
    /* Names are not merged: the first origin with any names decides. */
    enum origin from = ORIGIN_FLAG;
    while (from > ORIGIN_FILE && c->names[from].n == 0)
        from--;
    *ret_n = c->names[from].n;
    return c->names[from].name;
}
