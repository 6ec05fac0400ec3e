/* config_read.c: reads the settings in the config file, with its sections [outbox] and
 * [consumer NAME], and in the environment. OUTBOX_<OPTION> sets an option,
 * OUTBOX_CONSUMERS=search,mail names consumers, and OUTBOX_CONSUMER_SEARCH_SINK sets an option of
 * one of them. The consumer's name is in upper case there, with _ in place of dashes and dots. A
 * variable that could belong to either of two consumers is refused. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/ini.h"

/* ---- the config file ---- */

#define FILE_MAX ((size_t)1024 * 1024)

/* One pass over a config file. */
struct reading {
    struct config *config;
    const char *path;
    struct ini_reading ini;
};

#define WHERE 512
#define SECTION_CONSUMER "consumer "

static const char *where_now(const struct reading *r, char out[WHERE])
{
    snprintf(out, WHERE, "%s:%zu", r->path, r->ini.line);
    return out;
}

/* Returns the name in [consumer NAME], or NULL for any other section. */
static const char *consumer_of(const char *section)
{
    size_t n = strlen(SECTION_CONSUMER);
    if (strncmp(section, SECTION_CONSUMER, n) != 0)
        return NULL;
    return section + n;
}

static int unknown_name(const char *name, bool in_consumer, struct error *err)
{
    const char *names[OPTIONS_NAMES] = {NULL};
    commands_option_names(consumer_options, names);
    if (!in_consumer)
        commands_option_names(config_options, names);

    /* A name that resembles a consumer's option was probably meant to be that option. */
    bool misplaced = in_consumer && option_find(config_options, name);
    bool typo = text_nearest(name, names) != NULL;
    if (misplaced && !typo) {
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not a consumer option; move it to the [outbox] section", name);
    }

    char hint[TEXT_HINT];
    text_hint(name, names,
              (struct text_hint){.otherwise = "outbox config sample lists the options"}, hint);
    return err_set(err, ERR_CONFIG, "unknown option \"%s\"%s", name, hint);
}

/* Handles a section (name == NULL) or an option of the file. */
static int take_entry(void *ctx, const char *section, const char *name, const char *value,
                      struct error *err)
{
    struct reading *r = ctx;
    char where[WHERE];
    const char *consumer = consumer_of(section);
    if (!name && consumer)
        return config_add_name(r->config, ORIGIN_FILE, consumer, where_now(r, where), err);
    if (!name && strcmp(section, "outbox") != 0)
        return err_set(err, ERR_CONFIG,
                       "unknown section [%s]; the sections are [outbox] and [consumer NAME]",
                       section);
    if (!name)
        return 0;
    if (!*section)
        return err_set(err, ERR_CONFIG, "\"%s\" is outside any section; put [outbox] before it",
                       name);

    const struct option_def *def = option_find(consumer_options, name);
    if (!def && !consumer)
        def = option_find(config_options, name);
    if (!def)
        return unknown_name(name, consumer != NULL, err);

    struct given g = {def, ORIGIN_FILE, consumer, value, where_now(r, where)};
    if (config_add(r->config, &g, err) != 0)
        return err_prefix(err, "%s", name);
    return 0;
}

static void keep_problem(void *ctx, const struct error *err)
{
    struct reading *r = ctx;
    char where[WHERE];
    if (err->code == ERR_NOMEM)
        r->config->nomem = true;
    config_complain(r->config, &(struct problem){where_now(r, where), err->text, false});
}

static int parse_file(struct config *c, const char *path, const struct buf *text, struct error *err)
{
    if (text->n > FILE_MAX)
        return err_set(err, ERR_CONFIG, "%s: larger than 1 MiB", path);
    c->path = arena_bytes(&c->arena, path, strlen(path));
    if (!c->path)
        return err_nomem(err);
    if (text->n == 0)
        return 0;

    struct reading r = {.config = c, .path = path, .ini = {.visit = take_entry}};
    r.ini.ctx = &r;
    if (c->gather)
        r.ini.problem = keep_problem;

    if (ini_read(&r.ini, text->p, text->n, err) != 0)
        return err_prefix(err, "%s:%zu", path, r.ini.line);
    return 0;
}

int config_file(struct config *c, const char *path, struct error *err)
{
    struct buf text;
    int r;
    buf_init(&text, FILE_MAX + 1);
    int e = fd_slurp(path, FILE_MAX + 1, &text);
    if (e == 0)
        r = parse_file(c, path, &text, err);
    else
        r = err_errno(err, ERR_CONFIG, e, "%s: could not read the config file", path);
    buf_release(&text);
    return r;
}

#define LIST "OUTBOX_CONSUMERS"
#define PREFIX "OUTBOX_CONSUMER_"
#define PREFIX_LEN (sizeof(PREFIX) - 1)
#define VARIABLE (STORE_NAME_MAX + 96)
#define ENTRY (2 * VARIABLE) /* room for a misspelt variable of ours */

extern char **environ;

/* ---- variables ---- */

/* Spells a name as a variable does, in place: in upper case, with _ for - and dots. */
static void make_upper(char *name)
{
    for (; *name; name++) {
        if (*name == '-' || *name == '.')
            *name = '_';
        else
            *name = (char)toupper((unsigned char)*name);
    }
}

const char *config_getenv(const char *variable)
{
    const char *value = getenv(variable);
    if (!value || !*value)
        return NULL;
    return value;
}

const char *config_variable(const char *name, char out[CONFIG_VARIABLE])
{
    snprintf(out, CONFIG_VARIABLE, "OUTBOX_%s", name);
    make_upper(out);
    return out;
}

/* Copies the name out of NAME=VALUE and returns the value. It returns NULL if the name does not
 * begin with the prefix, or if the value is empty, which counts as unset. */
static const char *split_entry(const char *entry, const char *prefix, char name[ENTRY])
{
    size_t n = strcspn(entry, "=");
    bool has_prefix = strncmp(entry, prefix, strlen(prefix)) == 0;
    bool has_value = entry[n] && entry[n + 1];
    if (!has_prefix || !has_value || n >= ENTRY)
        return NULL;
    snprintf(name, ENTRY, "%.*s", (int)n, entry);
    return entry + n + 1;
}

/* ---- misspelt variables ---- */

#define SLIP_MIN 5 /* shorter names are too easily one letter away from another */

/* What a variable sets. */
struct likeness {
    const struct option_def *setting; /* of [outbox] or of consumers; NULL: none */
    const struct option_def *own;     /* of a command, or global; NULL: none */
    const struct option_def *slip;    /* one with nearly this name; NULL: none */
};

/* Compares a variable with those of a table. *ret is the option that it names. */
static void compare_variable(const char *variable, const struct option_def *table, bool all,
                             const struct option_def **ret, struct likeness *like)
{
    char made[CONFIG_VARIABLE];
    for (const struct option_def *o = table; o && o->name; o++) {
        if (!all && !o->env)
            continue;
        config_variable(o->name, made);
        if (strcmp(made, variable) == 0)
            *ret = o;
        if (strlen(o->name) >= SLIP_MIN && text_is_slip(variable, made))
            like->slip = o;
    }
}

static int take_variable(struct config *c, const char *variable, const char *value,
                         struct error *err)
{
    struct likeness like = {0};
    compare_variable(variable, config_options, true, &like.setting, &like);
    compare_variable(variable, consumer_options, true, &like.setting, &like);
    compare_variable(variable, commands_global, false, &like.own, &like);
    for (const struct command *cmd = commands_next(NULL); cmd; cmd = commands_next(cmd))
        compare_variable(variable, cmd->options, false, &like.own, &like);
    if (like.setting)
        return config_add(c, &(struct given){like.setting, ORIGIN_ENV, NULL, value, variable}, err);
    if (like.own || !like.slip)
        return 0;
    char meant[CONFIG_VARIABLE];
    return err_set(err, ERR_CONFIG, "there is no such setting; did you mean %s?",
                   config_variable(like.slip->name, meant));
}

/* Any variable that neither is nor resembles one of ours may belong to the application, or to an
 * exec: command, as which this process may run. */
int config_environment(struct config *c, struct error *err)
{
    char variable[ENTRY];
    for (char **e = environ; e && *e; e++) {
        const char *value = split_entry(*e, "OUTBOX_", variable);
        if (!value || strncmp(variable, PREFIX, PREFIX_LEN) == 0)
            continue;
        if (value != getenv(variable)) /* of several with one name, the first counts */
            continue;
        if (take_variable(c, variable, value, err) == 0)
            continue;
        if (config_wrong(c, variable, err) != 0)
            return -1;
    }
    return 0;
}

/* ---- names of consumers ---- */

/* Adds one name of OUTBOX_CONSUMERS, without surrounding blanks. */
static int add_listed(struct config *c, struct str s, struct error *err)
{
    char name[STORE_NAME_MAX + 2];
    while (s.n > 0 && char_is_space(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n > 0 && char_is_space(s.p[s.n - 1]))
        s.n--;
    if (s.n == 0)
        return err_set(err, ERR_CONFIG, "a name is missing; write OUTBOX_CONSUMERS=search,mail");

    /* The buffer has room for one extra byte, so that an overlong name is still detected as
     * such. */
    snprintf(name, sizeof(name), "%.*s", (int)s.n, s.p);
    return config_add_name(c, ORIGIN_ENV, name, LIST, err);
}

/* ---- variables of consumers ---- */

static void variable_of(const char *consumer, const struct option_def *o, char out[VARIABLE])
{
    snprintf(out, VARIABLE, PREFIX "%s_%s", consumer, o->name);
    make_upper(out);
}

/* The option that a variable sets. (1) consumer == NULL: the name fits no consumer. (2) other is a
 * second consumer that it fits, or NULL. */
struct about {
    const char *consumer, *other;
    const struct option_def *def;
};

/* Finds what a variable sets. The variable alone does not show where the consumer's name ends, so
 * it is compared with the variables of the known consumers. */
static void look_up(const struct config *c, const char *variable, struct about *ret)
{
    char made[VARIABLE];
    *ret = (struct about){0};
    for (size_t i = 0; i < c->n_named; i++) {
        const char *consumer = c->named[i].name;
        for (const struct option_def *o = consumer_options; o->name; o++) {
            variable_of(consumer, o, made);
            if (strcmp(made, variable) != 0)
                continue;
            if (ret->consumer && strcmp(ret->consumer, consumer) != 0) {
                ret->other = consumer;
                continue;
            }
            ret->consumer = consumer;
            ret->def = o;
        }
    }
}

#define CANDIDATES 2048 /* variables to compare a misspelt one with */

/* Refuses a variable that fits no consumer. The hint compares it with the variables that the known
 * consumers could have, as far as there is room. */
static int unknown_variable(struct config *c, const char *variable, struct error *err)
{
    char hint[TEXT_HINT], form[200], made[VARIABLE];
    size_t n = 0;
    if (c->n_named == 0)
        return err_set(err, ERR_CONFIG,
                       "this matches no known consumer; name the consumer in OUTBOX_CONSUMERS");

    const char **list = arena_zalloc(&c->arena, CANDIDATES + 1, sizeof(*list));
    if (!list)
        return err_nomem(err);
    for (size_t i = 0; i < c->n_named; i++) {
        for (const struct option_def *o = consumer_options; o->name && n < CANDIDATES; o++) {
            variable_of(c->named[i].name, o, made);
            list[n] = arena_bytes(&c->arena, made + PREFIX_LEN, strlen(made + PREFIX_LEN));
            if (!list[n++])
                return err_nomem(err);
        }
    }
    snprintf(form, sizeof(form), "write OUTBOX_CONSUMER_<NAME>_<OPTION>, such as " PREFIX "%s",
             list[0]);
    text_hint(variable + PREFIX_LEN, list, (struct text_hint){PREFIX, NULL, form}, hint);
    return err_set(err, ERR_CONFIG, "this is not an option of any consumer%s", hint);
}

/* Recognizes the variables that Kubernetes sets for a service whose name starts with
 * outbox-consumer. */
static bool of_kubernetes(const char *variable)
{
    static const char *const marks[] = {"_SERVICE_HOST", "_SERVICE_PORT", "_PORT_", NULL};
    for (size_t i = 0; marks[i]; i++)
        if (strstr(variable, marks[i]))
            return true;

    size_t n = strlen(variable);
    return n > 5 && strcmp(variable + n - 5, "_PORT") == 0;
}

static int read_variable(struct config *c, const char *variable, const char *value,
                         struct error *err)
{
    struct about a;
    look_up(c, variable, &a);
    if (!a.consumer && of_kubernetes(variable))
        return 0;
    if (!a.consumer)
        return unknown_variable(c, variable, err);
    if (a.other)
        return err_set(
            err, ERR_CONFIG,
            "this could belong to consumer \"%s\" or \"%s\"; rename one of them, or use a "
            "config file",
            a.consumer, a.other);

    struct given g = {a.def, ORIGIN_ENV, a.consumer, value, variable};
    return config_add(c, &g, err);
}

/* Goes through the whole environment after the names of the consumers are known, because a misspelt
 * variable cannot be found by its name. */
int config_environment_consumers(struct config *c, struct error *err)
{
    char variable[ENTRY];
    for (const char *p = config_getenv(LIST); p;) {
        size_t n = strcspn(p, ",");
        bool added = add_listed(c, (struct str){p, n}, err) == 0;
        if (!added && config_wrong(c, LIST, err) != 0)
            return -1;
        p = p[n] ? p + n + 1 : NULL;
    }

    for (char **e = environ; e && *e; e++) {
        const char *value = split_entry(*e, PREFIX, variable);
        if (!value || read_variable(c, variable, value, err) == 0)
            continue;
        if (config_wrong(c, variable, err) != 0)
            return -1;
    }
    return 0;
}
