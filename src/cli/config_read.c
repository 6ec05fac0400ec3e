/* config_read.c: reads the settings in the config file, with its sections [outbox] and
 * [consumer NAME], and in the environment. OUTBOX_<OPTION> sets an option,
 * OUTBOX_CONSUMERS=search,mail names consumers, and OUTBOX_CONSUMER_SEARCH_SINK sets an option of
 * one of them. Its name is in upper case there, with _ in place of dashes and dots. A variable that
 * could belong to either of two consumers is refused. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct error nomem; /* set if memory for a problem ran out */
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

/* Checks the name of a section. [consumer NAME] adds a consumer. */
static int open_section(struct reading *r, const char *section, struct error *err)
{
    char where[WHERE];
    const char *consumer = consumer_of(section);
    if (consumer)
        return config_add_name(r->config, ORIGIN_FILE, consumer, where_now(r, where), err);
    if (strcmp(section, "outbox") == 0)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "unknown section [%s]; the sections are [outbox] and [consumer NAME]", section);
}

static int unknown_name(const char *name, bool in_consumer, struct error *err)
{
    const char *names[OPTIONS_NAMES] = {NULL};
    options_names(consumer_options, names);
    if (!in_consumer)
        options_names(config_options, names);

    /* A name that resembles a consumer's option was probably meant to be that option. */
    bool misplaced = in_consumer && option_find(config_options, name);
    bool typo = text_nearest(name, names) != NULL;
    if (misplaced && !typo) {
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not an option of a consumer; move it to the [outbox] section",
                       name);
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
    if (!name)
        return open_section(r, section, err);
    if (!*section)
        return err_set(err, ERR_CONFIG, "\"%s\" is outside of any section; put [outbox] before it",
                       name);

    const char *consumer = consumer_of(section);
    const struct option_def *def = option_find(consumer_options, name);
    if (!def && !consumer)
        def = option_find(config_options, name);
    if (!def)
        return unknown_name(name, consumer != NULL, err);

    char where[WHERE];
    struct given g = {def, ORIGIN_FILE, consumer, value, where_now(r, where)};
    if (config_add(r->config, &g, err) != 0)
        return err_prefix(err, "%s", name);
    return 0;
}

static void keep_problem(void *ctx, const struct error *err)
{
    struct reading *r = ctx;
    struct error why = *err;
    char where[WHERE];
    if (config_wrong(r->config, where_now(r, where), &why) != 0)
        r->nomem = why;
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
    if (r.nomem.code) {
        *err = r.nomem;
        return -1;
    }
    return 0;
}

int config_file(struct config *c, const char *path, struct error *err)
{
    struct buf text;
    int r;
    buf_init(&text, FILE_MAX + 1);
    int e = lines_slurp(path, FILE_MAX + 1, &text);
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

void config_upper(char *name)
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
    config_upper(out);
    return out;
}

int config_environment(struct config *c, const struct option_def *table, struct error *err)
{
    char variable[CONFIG_VARIABLE];
    for (const struct option_def *o = table; o->name; o++) {
        const char *value = config_getenv(config_variable(o->name, variable));
        if (!value)
            continue;

        struct given g = {o, ORIGIN_ENV, NULL, value, variable};
        if (config_add(c, &g, err) == 0)
            continue;
        if (config_wrong(c, variable, err) != 0)
            return -1;
    }
    return 0;
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

/* Whether two different names differ only by one letter too many, too few or wrong, or by two
 * neighbouring letters that are swapped. */
static bool is_slip(const char *a, const char *b)
{
    /* Skip the common beginning. */
    while (*a && *a == *b) {
        a++;
        b++;
    }

    /* Then leave out the common end. */
    size_t na = strlen(a), nb = strlen(b);
    while (na > 0 && nb > 0 && a[na - 1] == b[nb - 1]) {
        na--;
        nb--;
    }

    bool equal = na == 0 && nb == 0;
    bool one_letter = na <= 1 && nb <= 1;
    if (!equal && one_letter)
        return true;
    bool two_letters = na == 2 && nb == 2;
    return two_letters && a[0] == b[1] && a[1] == b[0];
}

/* The option of a table whose variable has a name, or nearly has it. */
struct likeness {
    bool known;
    const struct option_def *slip; /* NULL: no option is close */
};

/* Compares a variable with the variables of a table; without `all`, only with those of options that
 * the environment may set. */
static void compare_variables(const char *variable, const struct option_def *table, bool all,
                              struct likeness *ret)
{
    char made[CONFIG_VARIABLE];
    for (const struct option_def *o = table; o && o->name; o++) {
        if (!all && !o->env)
            continue;
        config_variable(o->name, made);
        if (strcmp(made, variable) == 0)
            ret->known = true;
        if (strlen(o->name) >= SLIP_MIN && is_slip(made, variable))
            ret->slip = o;
    }
}

/* Refuses a variable that misspells one of ours. Any other variable may belong to the application,
 * or to an exec: command, as which this process may run. */
static int check_variable(const char *variable, struct error *err)
{
    struct likeness like = {.known = false};
    compare_variables(variable, config_options, true, &like);
    compare_variables(variable, consumer_options, true, &like);
    compare_variables(variable, options_global, false, &like);
    for (const struct command *c = commands_next(NULL); c; c = commands_next(c))
        compare_variables(variable, c->options, false, &like);
    if (like.known || !like.slip)
        return 0;
    char meant[CONFIG_VARIABLE];
    return err_set(err, ERR_CONFIG, "there is no such setting; did you mean %s?",
                   config_variable(like.slip->name, meant));
}

int config_environment_slips(struct config *c, struct error *err)
{
    char variable[ENTRY];
    for (char **e = environ; e && *e; e++) {
        bool of_consumer = strncmp(*e, PREFIX, PREFIX_LEN) == 0;
        if (of_consumer || !split_entry(*e, "OUTBOX_", variable))
            continue;
        if (check_variable(variable, err) != 0 && config_wrong(c, variable, err) != 0)
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

/* Returns the number of names of all origins together. */
static size_t count_names(const struct config *c)
{
    size_t n = 0;
    for (int from = 0; from < ORIGINS; from++)
        n += c->names[from].n;
    return n;
}

/* Returns the i-th of those names; some may be equal. */
static const char *name_at(const struct config *c, size_t i)
{
    for (int from = 0; from < ORIGINS; from++) {
        if (i < c->names[from].n)
            return c->names[from].name[i];
        i -= c->names[from].n;
    }
    return NULL;
}

const char *config_where_named(const struct config *c, const char *consumer)
{
    for (int from = ORIGINS; from-- > 0;) {
        const struct consumer_names *names = &c->names[from];
        for (size_t i = 0; i < names->n; i++)
            if (strcmp(names->name[i], consumer) == 0)
                return names->where[i];
    }
    return NULL;
}

/* ---- variables of consumers ---- */

static const char *variable_of(const char *consumer, const struct option_def *o, char out[VARIABLE])
{
    snprintf(out, VARIABLE, PREFIX "%s_%s", consumer, o->name);
    config_upper(out);
    return out;
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
    for (size_t i = 0; i < count_names(c); i++) {
        const char *consumer = name_at(c, i);
        for (const struct option_def *o = consumer_options; o->name; o++) {
            if (strcmp(variable_of(consumer, o, made), variable) != 0)
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

/* Lists, without their prefix, the variables that the known consumers could have, as far as there
 * is room. The list ends with NULL and lives in the arena; NULL: no memory. */
static const char **list_candidates(const struct config *c, struct arena *a)
{
    char made[VARIABLE];
    size_t n = 0;
    const char **list = arena_zalloc(a, CANDIDATES + 1, sizeof(*list));
    for (size_t i = 0; list && i < count_names(c); i++) {
        for (const struct option_def *o = consumer_options; o->name && n < CANDIDATES; o++) {
            const char *name = variable_of(name_at(c, i), o, made) + PREFIX_LEN;
            list[n] = arena_bytes(a, name, strlen(name));
            if (!list[n++])
                return NULL;
        }
    }
    return list;
}

static int unknown_variable(const struct config *c, const char *variable, struct error *err)
{
    char hint[TEXT_HINT], form[200];
    if (count_names(c) == 0)
        return err_set(err, ERR_CONFIG,
                       "this matches no known consumer; name the consumer in OUTBOX_CONSUMERS");

    struct arena arena;
    arena_init(&arena, 0);
    const char **list = list_candidates(c, &arena);
    if (!list) {
        err_nomem(err);
    } else {
        snprintf(form, sizeof(form), "write OUTBOX_CONSUMER_<NAME>_<OPTION>, such as " PREFIX "%s",
                 list[0]);
        text_hint(variable + PREFIX_LEN, list, (struct text_hint){PREFIX, NULL, form}, hint);
        err_set(err, ERR_CONFIG, "this is not an option of any consumer%s", hint);
    }
    arena_release(&arena);
    return -1;
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
