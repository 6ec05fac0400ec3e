/* config_env.c: consumers from the environment alone: OUTBOX_CONSUMERS=search,mail and, for each,
 * OUTBOX_CONSUMER_SEARCH_SINK. In a variable's name a consumer's stands in capitals, with _ for .
 * and -; where that could mean two of them it is refused. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/config.h"

#define LIST "OUTBOX_CONSUMERS"
#define PREFIX "OUTBOX_CONSUMER_"
#define VARIABLE (STORE_NAME_MAX + 96)
#define CANDIDATES 2048 /* names that are compared to find out what was meant */

extern char **environ;

/* ---- names ---- */

/* add_listed adds the name in [p, p + n). */
static int add_listed(struct config *c, const char *p, size_t n, struct error *err)
{
    char name[STORE_NAME_MAX + 2];
    while (n > 0 && isspace((unsigned char)*p)) {
        p++;
        n--;
    }
    while (n > 0 && isspace((unsigned char)p[n - 1]))
        n--;
    if (n == 0)
        return err_set(err, ERR_CONFIG, "a name is missing: write OUTBOX_CONSUMERS=search,mail");
    snprintf(name, sizeof(name), "%.*s", (int)n, p);
    return config_add_name(c, ORIGIN_ENV, name, LIST, err);
}

static int take_list(struct config *c, struct error *err)
{
    const char *list = getenv(LIST);
    if (!list || !*list)
        return 0;
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, ",");
        struct problem wrong = {(char *)(uintptr_t)LIST, err->text, false};
        if (add_listed(c, p, n, err) != 0) {
            if (!c->gather || err->code == ERR_NOMEM)
                return err_prefix(err, "%s", LIST);
            if (config_complain(c, &wrong, err) != 0)
                return -1;
        }
        p += n;
        if (!*p)
            return 0;
    }
}

/* name_at gives the i-th of all names, wherever they come from; NULL behind the last. A name may
 * come twice. */
static const char *name_at(const struct config *c, size_t i)
{
    for (int from = 0; from < ORIGINS; from++) {
        if (i < c->names[from].n)
            return c->names[from].name[i];
        i -= c->names[from].n;
    }
    return NULL;
}

const char *config_where(const struct config *c, const char *consumer)
{
    for (int from = ORIGINS; from-- > 0;) {
        for (size_t i = 0; i < c->names[from].n; i++)
            if (strcmp(c->names[from].name[i], consumer) == 0)
                return c->names[from].where[i];
    }
    return NULL;
}

/* ---- variables ---- */

static const char *variable_of(const char *consumer, const struct option_def *o, char out[VARIABLE])
{
    int n = snprintf(out, VARIABLE, PREFIX "%s_%s", consumer, o->name);
    for (int i = 0; i < n && i < VARIABLE - 1; i++) {
        bool mark = out[i] == '-' || out[i] == '.';
        out[i] = mark ? '_' : (char)toupper((unsigned char)out[i]);
    }
    return out;
}

/* What a variable is about. (1) other is another consumer that it might be about as well; NULL:
 * none. */
struct about {
    const char *consumer, *other;
    const struct option_def *def;
};

static void look_up(const struct config *c, const char *variable, struct about *ret)
{
    char made[VARIABLE];
    const char *name;
    *ret = (struct about){0};
    for (size_t i = 0; (name = name_at(c, i)); i++) {
        for (const struct option_def *o = consumer_options; o->name; o++) {
            if (strcmp(variable_of(name, o, made), variable) != 0)
                continue;
            if (ret->consumer && strcmp(ret->consumer, name) != 0) {
                ret->other = name;
                continue;
            }
            ret->consumer = name;
            ret->def = o;
        }
    }
}

/* unknown says what was meant, if that can be seen. */
static int unknown(const struct config *c, const char *variable, struct error *err)
{
    const char **candidates = calloc(CANDIDATES + 1, sizeof(*candidates));
    char(*made)[VARIABLE] = calloc(CANDIDATES, sizeof(*made));
    const char *name;
    size_t n = 0;
    if (!candidates || !made) {
        free(candidates);
        free(made);
        return err_nomem(err);
    }
    for (size_t i = 0; (name = name_at(c, i)); i++) {
        for (const struct option_def *o = consumer_options; o->name && n < CANDIDATES; o++) {
            candidates[n] = variable_of(name, o, made[n]) + sizeof(PREFIX) - 1;
            n++;
        }
    }
    if (n > 0) {
        char hint[TEXT_HINT], form[200];
        snprintf(form, sizeof(form), "it is OUTBOX_CONSUMER_<NAME>_<OPTION>, such as " PREFIX "%s",
                 candidates[0]);
        text_hint(variable + sizeof(PREFIX) - 1, candidates, (struct text_hint){PREFIX, NULL, form},
                  hint);
        err_set(err, ERR_CONFIG, "this is no option of a consumer there is%s", hint);
    } else {
        err_set(err, ERR_CONFIG,
                "there is no consumer this could be about; name it in OUTBOX_CONSUMERS");
    }
    free(candidates);
    free(made);
    return -1;
}

/* of_kubernetes: variables that Kubernetes sets for a service called outbox-consumer-something. */
static bool of_kubernetes(const char *variable)
{
    static const char *const marks[] = {"_SERVICE_HOST", "_SERVICE_PORT", "_PORT_", NULL};
    size_t n = strlen(variable);
    for (size_t i = 0; marks[i]; i++)
        if (strstr(variable, marks[i]))
            return true;
    return n > 5 && strcmp(variable + n - 5, "_PORT") == 0;
}

static int take_variable(struct config *c, const char *variable, const char *value,
                         struct error *err)
{
    struct about a;
    look_up(c, variable, &a);
    if (!a.consumer && of_kubernetes(variable))
        return 0;
    if (!a.consumer)
        return unknown(c, variable, err);
    if (a.other)
        return err_set(err, ERR_CONFIG,
                       "this may be about consumer \"%s\" or \"%s\"; say it in a config file, or "
                       "give one another name",
                       a.consumer, a.other);
    /* config_add copies: the casts only take const away from what is borrowed meanwhile. */
    struct given g = {a.def, ORIGIN_ENV, (char *)(uintptr_t)a.consumer, (char *)(uintptr_t)value,
                      (char *)(uintptr_t)variable};
    return config_add(c, &g, err);
}

static int take_variables(struct config *c, struct error *err)
{
    for (char **e = environ; e && *e; e++) {
        char variable[2 * VARIABLE];
        const char *equals = strchr(*e, '=');
        size_t n = equals ? (size_t)(equals - *e) : 0;
        if (strncmp(*e, PREFIX, sizeof(PREFIX) - 1) != 0 || n == 0 || !equals[1] ||
            n >= sizeof(variable))
            continue;
        snprintf(variable, sizeof(variable), "%.*s", (int)n, *e);
        struct problem wrong = {variable, err->text, false};
        if (take_variable(c, variable, equals + 1, err) == 0)
            continue;
        if (!c->gather || err->code == ERR_NOMEM)
            return err_prefix(err, "%s", variable);
        if (config_complain(c, &wrong, err) != 0)
            return -1;
    }
    return 0;
}

int config_environment_consumers(struct config *c, struct error *err)
{
    return take_list(c, err) == 0 ? take_variables(c, err) : -1;
}
