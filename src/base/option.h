/* option.h: one table drives flags, environment, config file, help, man page and sample.
 *
 * A row names its field by offset and its kind by setter, so that most options need no code of
 * their own:
 *
 *     {"lease", "DURATION", "30s", "how long ...", option_span,
 *      .at = offsetof(struct consumer, lease_ms), .min = 100},
 */
#ifndef BASE_OPTION_H
#define BASE_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct option_def;

/* An option_setter reads value into `field`, which is o->at bytes into the target. A switch gets
 * "yes" or "no". On failure the field keeps what it had, and the error is ERR_CONFIG and about the
 * value alone: the caller names the option. */
typedef int option_setter(void *field, const char *value, const struct option_def *o,
                          struct error *err);

/* One option. */
struct option_def {
    /* "drain-deadline": --drain-deadline, OUTBOX_DRAIN_DEADLINE, drain-deadline = */
    const char *name;
    /* the name of the value in help: "DURATION"; NULL for a switch, which is yes or no in a file */
    const char *arg;
    const char *def;  /* default, as a user would write it; NULL: none */
    const char *help; /* one sentence, no full stop */
    option_setter *set;
    size_t at; /* offset of the field in the target */
    /* bounds of option_int, option_long, option_span and option_size; max == 0: none */
    int64_t min, max;
    const char *const *names; /* of option_choice, option_either and option_word; ends with NULL */
    char letter;              /* of a command: -c; 0: none */
    bool env;                 /* of a command: may also come as OUTBOX_<NAME> */
};

/* The setters, with the type of their field. A borrowed text lives as long as the value; an owned
 * one replaces and frees what was there. */
option_setter option_bool;   /* bool */
option_setter option_int;    /* int */
option_setter option_long;   /* int64_t */
option_setter option_span;   /* int64_t, milliseconds of a duration */
option_setter option_size;   /* int64_t, bytes */
option_setter option_choice; /* an enum or int: the index among names */
option_setter option_either; /* bool: whether it is the second of two names */
option_setter option_word;   /* const char *: one of names */
option_setter option_text;   /* const char *, borrowed */
option_setter option_name;   /* const char *, borrowed, not empty */
option_setter option_copy;   /* char *, owned */
option_setter option_file;   /* char *, owned, not empty */

/* option_copy_maybe is option_copy for a text that may be NULL, which leaves *field as it is. */
int option_copy_maybe(char **field, const char *text, struct error *err);

/* option_find returns the row of that name in a table, which ends with name == NULL; or NULL. */
const struct option_def *option_find(const struct option_def *table, const char *name);

/* option_apply sets the row's field in target. */
int option_apply(const struct option_def *o, void *target, const char *value, struct error *err);

/* option_set sets the option of that name. The error names the option; of an unknown one it names
 * the nearest that exists. */
int option_set(const struct option_def *table, void *target, const char *name, const char *value,
               struct error *err);

/* option_defaults applies every default of a table, so that help and sample cannot disagree. */
int option_defaults(const struct option_def *table, void *target, struct error *err);

/* option_index finds value among names. The error lists them, and suggests the nearest. */
int option_index(const char *value, const char *const *names, int *ret, struct error *err);

#endif
