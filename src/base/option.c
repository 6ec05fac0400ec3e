#include "base/option.h"

#include <stdbool.h>
#include <string.h>

#include "base/text.h"

#define NAMES_MAX 127 /* of a table, as far as guessing goes */

const struct option_def *option_find(const struct option_def *table, const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0) return table;
    return NULL;
}

static int unknown(const struct option_def *table, const char *name, struct error *err)
{
    const char *names[NAMES_MAX + 1];
    size_t n = 0;
    for (; table->name && n < NAMES_MAX; table++) names[n++] = table->name;
    names[n] = NULL;
    const char *near = text_nearest(name, names);
    if (!near) return err_set(err, ERR_CONFIG, "unknown option \"%s\"", name);
    return err_set(err, ERR_CONFIG, "unknown option \"%s\"; did you mean \"%s\"?", name, near);
}

int option_set(const struct option_def *table, void *target, const char *name, const char *value, struct error *err)
{
    const struct option_def *o = option_find(table, name);
    if (!o) return unknown(table, name, err);
    if (!o->arg) {
        bool on = true; /* a switch with no value at all is a flag on the command line */
        if (value && text_bool(value, &on, err) != 0) return err_prefix(err, "%s", name);
        value = on ? "yes" : "no";
    }
    if (!value) return err_set(err, ERR_CONFIG, "%s: needs a value: %s", name, o->arg);
    if (o->set(target, value, err) != 0) return err_prefix(err, "%s", name);
    return 0;
}
