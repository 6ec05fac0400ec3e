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

static int check_listen(const char *value, struct error *err)
{
    struct admin_address a;
    return admin_address_parse(value, &a, err);
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
     option_checked, AT(store), .check = store_url_check},
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
     "serve /metrics, /livez and /readyz here, such as 127.0.0.1:8025", option_checked, AT(listen),
     .check = check_listen},
    {"listen-token-file", "FILE", NULL,
     "file with the bearer token to require; without one, other machines can only read /livez and "
     "/readyz",
     option_name, AT(listen_token_file)},
    {"listen-token-env", "NAME", NULL, "environment variable with that token", option_checked,
     AT(listen_token_env), .check = access_token_variable},
    {"listen-hosts", "LIST", NULL, "further host names to accept in the Host header; * accepts any",
     option_checked, AT(listen_hosts), .check = access_hosts_check},
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
    free(c->named);
    free(c->given);
    free(c->problem);
    arena_release(&c->arena);
    config_init(c);
}

/* Replaces a text, which may be NULL, with a copy in the config. Returns false if out of memory. */
static bool keep_text(struct config *c, const char **text)
{
    if (!*text)
        return true;
    *text = arena_bytes(&c->arena, *text, strlen(*text));
    return *text != NULL;
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

    struct given new = *g;
    struct given *grown = array_grow(c->given, c->n_given, sizeof *grown);
    if (grown)
        c->given = grown;
    bool kept = grown && keep_text(c, &new.consumer) && keep_text(c, &new.value) &&
                keep_text(c, &new.where);
    if (!kept)
        return err_nomem(err);
    grown[c->n_given++] = new;
    return 0;
}

void config_complain(void *config, const struct problem *p)
{
    struct config *c = config;
    struct problem new = *p;
    struct problem *grown = array_grow(c->problem, c->n_problems, sizeof *grown);
    if (grown)
        c->problem = grown;
    bool kept = grown && keep_text(c, &new.where) && keep_text(c, &new.text);
    if (kept)
        grown[c->n_problems++] = new;
    else
        c->nomem = true;
}

int config_wrong(struct config *c, const char *where, struct error *err)
{
    if (!c->gather || err->code == ERR_NOMEM)
        return err_prefix(err, "%s", where);

    config_complain(c, &(struct problem){where, err->text, false});
    return 0;
}

int config_add_name(struct config *c, enum origin origin, const char *name, const char *where,
                    struct error *err)
{
    if (store_name_check(name, err) != 0)
        return -1;
    for (size_t i = 0; i < c->n_named; i++) {
        if (c->named[i].origin == origin && strcmp(c->named[i].name, name) == 0)
            return err_set(err, ERR_CONFIG, "consumer \"%s\" is already defined", name);
    }

    struct named new = {name, where, origin};
    struct named *grown = array_grow(c->named, c->n_named, sizeof *grown);
    if (grown)
        c->named = grown;
    bool kept = grown && keep_text(c, &new.name) && keep_text(c, &new.where);
    if (!kept)
        return err_nomem(err);
    grown[c->n_named++] = new;
    return 0;
}

int config_flag(struct config *c, const char *consumer, const struct option_def *def,
                const char *value, struct error *err)
{
    char where[80];
    snprintf(where, sizeof(where), "--%s", def->name);
    return config_add(c, &(struct given){def, ORIGIN_FLAG, consumer, value, where}, err);
}

/* While gathering problems, treat an unreadable file as a problem. */
int config_load(struct config *c, const char *path, bool consumers, struct error *err)
{
    if (config_environment(c, err) != 0)
        return -1;
    if (path && config_file(c, path, err) != 0) {
        if (!c->gather || err->code == ERR_NOMEM)
            return -1;
        config_complain(c, &(struct problem){NULL, err->text, false});
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

    for (size_t i = 0; i < from->n_named; i++) {
        const struct named *f = &from->named[i];
        bool flag = f->origin == ORIGIN_FLAG;
        if (flag && config_add_name(ret, ORIGIN_FLAG, f->name, f->where, err) != 0)
            return -1;
    }
    return config_load(ret, from->path, true, err);
}

/* ---- values in effect ---- */

const struct given *config_get(const struct config *c, const char *consumer,
                               const struct option_def *def)
{
    const struct given *best = NULL;
    int highest = 0;
    for (size_t i = 0; i < c->n_given; i++) {
        const struct given *g = &c->given[i];
        bool names_it = g->consumer && consumer && strcmp(g->consumer, consumer) == 0;
        int rank = 2 * (int)g->origin + names_it; /* the origin counts more */
        if (g->def != def || (g->consumer && !names_it) || rank < highest)
            continue;
        best = g;
        highest = rank;
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

const struct named *config_consumers(const struct config *c, size_t *ret_n)
{
    /* Names are not merged: the highest origin with any names decides. */
    const struct named *first = NULL;
    *ret_n = 0;
    for (size_t i = 0; i < c->n_named; i++) {
        const struct named *named = &c->named[i];
        if (!first || named->origin > first->origin) {
            first = named;
            *ret_n = 0;
        }
        if (named->origin == first->origin)
            ++*ret_n;
    }
    return first;
}

const char *config_where_named(const struct config *c, const char *consumer)
{
    const struct named *best = NULL;
    for (size_t i = 0; i < c->n_named; i++) {
        const struct named *named = &c->named[i];
        if (strcmp(named->name, consumer) == 0 && (!best || named->origin > best->origin))
            best = named;
    }
    return best ? best->where : NULL;
}
