#include "base/option.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define NAMES_MAX 127 /* at most this many names are compared with a typo */

/* ---- setters ---- */

int option_bool(void *field, const char *value, const struct option_def *o, struct error *err)
{
    (void)o;
    return text_bool(value, field, err);
}

int option_long(void *field, const char *value, const struct option_def *o, struct error *err)
{
    int64_t max = o->max ? o->max : INT64_MAX;
    return text_int(value, o->min, max, field, err);
}

int option_int(void *field, const char *value, const struct option_def *o, struct error *err)
{
    int64_t n;
    if (option_long(&n, value, o, err) != 0)
        return -1;
    *(int *)field = (int)n;
    return 0;
}

/* Parses a value with a unit, and refuses one outside the row's bounds, which are shown as a user
 * would write them. */
static int set_measure(int64_t *field, const char *value, const struct option_def *o,
                       int (*parse)(const char *, int64_t *, struct error *),
                       void (*show)(int64_t, char[32]), struct error *err)
{
    int64_t n;
    char least[32], most[32];
    if (parse(value, &n, err) != 0)
        return -1;
    bool bounded = o->max != 0;
    if (n >= o->min && (!bounded || n <= o->max)) {
        *field = n;
        return 0;
    }
    show(o->min, least);
    show(o->max, most);
    if (!bounded)
        return err_set(err, ERR_CONFIG, "\"%s\" is less than %s", value, least);
    return err_set(err, ERR_CONFIG, "\"%s\" is not between %s and %s", value, least, most);
}

int option_span(void *field, const char *value, const struct option_def *o, struct error *err)
{
    return set_measure(field, value, o, text_duration, text_duration_show, err);
}

int option_size(void *field, const char *value, const struct option_def *o, struct error *err)
{
    return set_measure(field, value, o, text_size, text_size_show, err);
}

int option_choice(void *field, const char *value, const struct option_def *o, struct error *err)
{
    return option_index(value, o->names, field, err);
}

int option_either(void *field, const char *value, const struct option_def *o, struct error *err)
{
    int i;
    if (option_index(value, o->names, &i, err) != 0)
        return -1;
    *(bool *)field = i == 1;
    return 0;
}

int option_word(void *field, const char *value, const struct option_def *o, struct error *err)
{
    int i;
    if (option_index(value, o->names, &i, err) != 0)
        return -1;
    *(const char **)field = o->names[i];
    return 0;
}

int option_text(void *field, const char *value, const struct option_def *o, struct error *err)
{
    (void)o;
    (void)err;
    *(const char **)field = value;
    return 0;
}

int option_checked(void *field, const char *value, const struct option_def *o, struct error *err)
{
    if (o->check(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

static int refuse_empty(const char *value, struct error *err)
{
    if (*value)
        return 0;
    return err_set(err, ERR_CONFIG, "the name is empty");
}

int option_name(void *field, const char *value, const struct option_def *o, struct error *err)
{
    if (refuse_empty(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

int option_copy(void *field, const char *value, const struct option_def *o, struct error *err)
{
    char **text = field;
    char *copy = strdup(value);
    (void)o;
    if (!copy)
        return err_nomem(err);
    free(*text);
    *text = copy;
    return 0;
}

int option_copy_maybe(char **field, const char *text, struct error *err)
{
    if (!text)
        return 0;
    return option_copy(field, text, NULL, err);
}

int option_file(void *field, const char *value, const struct option_def *o, struct error *err)
{
    if (refuse_empty(value, err) != 0)
        return -1;
    return option_copy(field, value, o, err);
}

/* ---- names ---- */

/* Formats names as "none, key or global". */
static void list_names(const char *const *names, char *out, size_t size)
{
    size_t n = 0;
    for (int i = 0; names[i] && n < size; i++) {
        const char *glue = ", ";
        if (i == 0)
            glue = "";
        else if (!names[i + 1])
            glue = " or ";
        n += (size_t)snprintf(out + n, size - n, "%s%s", glue, names[i]);
    }
}

int option_index(const char *value, const char *const *names, int *ret, struct error *err)
{
    char list[200] = "";
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], value) != 0)
            continue;
        *ret = i;
        return 0;
    }

    char hint[TEXT_HINT];
    list_names(names, list, sizeof(list));
    text_hint(value, names, (struct text_hint){0}, hint);
    return err_set(err, ERR_CONFIG, "\"%s\" is not %s%s", value, list, hint);
}

/* ---- tables ---- */

const struct option_def *option_find(const struct option_def *table, const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table;
    return NULL;
}

static int unknown_option(const struct option_def *table, const char *name, struct error *err)
{
    const char *names[NAMES_MAX + 1];
    size_t n = 0;
    for (; table->name && n < NAMES_MAX; table++)
        names[n++] = table->name;
    names[n] = NULL;
    char hint[TEXT_HINT];
    text_hint(name, names, (struct text_hint){"\"", "\"", NULL}, hint);
    return err_set(err, ERR_CONFIG, "unknown option \"%s\"%s", name, hint);
}

int option_apply(const struct option_def *o, void *target, const char *value, struct error *err)
{
    return o->set((char *)target + o->at, value, o, err);
}

int option_set(const struct option_def *table, void *target, const char *name, const char *value,
               struct error *err)
{
    const struct option_def *o = option_find(table, name);
    if (!o)
        return unknown_option(table, name, err);

    bool is_switch = o->arg == NULL;
    if (is_switch) {
        bool on = true; /* as for a flag without a value on the command line */
        if (value && text_bool(value, &on, err) != 0)
            return err_prefix(err, "%s", name);
        value = on ? "yes" : "no";
    }
    if (!value)
        return err_set(err, ERR_CONFIG, "%s: needs a value: %s", name, o->arg);
    if (option_apply(o, target, value, err) != 0)
        return err_prefix(err, "%s", name);
    return 0;
}

int option_defaults(const struct option_def *table, void *target, struct error *err)
{
    for (const struct option_def *o = table; o->name; o++) {
        if (!o->def)
            continue;
        if (option_apply(o, target, o->def, err) != 0)
            return err_prefix(err, "default of %s", o->name);
    }
    return 0;
}
