/* config_file.c: reads the config file, with its sections [outbox] and [consumer NAME]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ini.h"
#include "base/text.h"
#include "cli/config.h"

#define FILE_MAX ((size_t)1024 * 1024)

/* One pass over a config file. */
struct reading {
    struct config *config;
    const char *path;
    struct ini_reading ini;
    struct error nomem; /* set if there was no memory to keep a problem */
};

#define WHERE 512
#define SECTION_CONSUMER "consumer "

static const char *where_now(const struct reading *r, char out[WHERE])
{
    snprintf(out, WHERE, "%s:%zu", r->path, r->ini.line);
    return out;
}

/* consumer_of returns the name in [consumer NAME], or NULL for any other section. */
static const char *consumer_of(const char *section)
{
    size_t n = strlen(SECTION_CONSUMER);
    if (strncmp(section, SECTION_CONSUMER, n) != 0)
        return NULL;
    return section + n;
}

/* open_section checks the name of a section. [consumer NAME] adds a consumer. */
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

#define NAMES_MAX 64

static size_t add_names(const struct option_def *table, const char **names, size_t n)
{
    for (const struct option_def *o = table; o->name && n < NAMES_MAX - 1; o++)
        names[n++] = o->name;
    return n;
}

/* unknown_name fails with the nearest name of the options that the section may hold. */
static int unknown_name(const char *name, bool in_consumer, struct error *err)
{
    const char *names[NAMES_MAX];
    size_t n = add_names(consumer_options, names, 0);
    if (!in_consumer)
        n = add_names(config_options, names, n);
    names[n] = NULL;

    /* If the name is close to an option of a consumer, that one was probably meant. */
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

/* visit takes a section (name == NULL) or an option of the file. */
static int visit(void *ctx, const char *section, const char *name, const char *value,
                 struct error *err)
{
    struct reading *r = ctx;
    if (!name)
        return open_section(r, section, err);
    if (!*section)
        return err_set(err, ERR_CONFIG, "\"%s\" is in no section; put [outbox] before it", name);

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

static void gather_problem(void *ctx, const struct error *err)
{
    struct reading *r = ctx;
    struct error why = *err;
    char where[WHERE];
    if (config_wrong(r->config, where_now(r, where), &why) != 0)
        r->nomem = why;
}

/* parse reads the text of the config file, of which a problem may concern any line. */
static int parse(struct config *c, const char *path, const struct buf *text, struct error *err)
{
    if (text->n > FILE_MAX)
        return err_set(err, ERR_CONFIG, "%s: larger than 1 MiB", path);
    c->path = strdup(path);
    if (!c->path)
        return err_nomem(err);
    if (text->n == 0)
        return 0;

    struct reading r = {.config = c, .path = path, .ini = {.visit = visit}};
    r.ini.ctx = &r;
    if (c->gather)
        r.ini.problem = gather_problem;

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
        r = parse(c, path, &text, err);
    else
        r = err_errno(err, ERR_CONFIG, e, "%s: could not read the config file", path);
    buf_release(&text);
    return r;
}
