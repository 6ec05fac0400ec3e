/* option.h: one table drives flags, environment, config file, help, man page and sample config.
 *
 * A row names its field by offset and its type by setter, so most options need no code of their
 * own:
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

/* An option_setter parses value into `field`, which is o->at bytes into the target. A switch
 * receives "yes" or "no". The error is ERR_CONFIG about the value alone: the caller names the
 * option. */
typedef int option_setter(void *field, const char *value, const struct option_def *o,
                          struct error *err);

/* One option. */
struct option_def {
    /* "drain-deadline": --drain-deadline, OUTBOX_DRAIN_DEADLINE, drain-deadline = */
    const char *name;
    /* placeholder of the value in help: "DURATION"; NULL for a switch, which is yes or no in a
     * file */
    const char *arg;
    const char *def;  /* default, as a user would write it; NULL: none */
    const char *help; /* one sentence, no full stop */
    option_setter *set;
    size_t at; /* offset of the field in the target */
    /* bounds of option_int, option_long, option_span and option_size; max == 0: unbounded */
    int64_t min, max;
    const char *const *names; /* for option_choice, option_either and option_word; ends with NULL */
    int (*check)(const char *value, struct error *err); /* for option_checked */
    char letter;                                        /* for commands: -c; 0: none */
    bool env; /* for commands: may also be set as OUTBOX_<NAME> */
};

/* The setters and the type of their field. A borrowed text lives as long as the value; an owned one
 * replaces and frees the previous text. */
option_setter option_bool;    /* bool */
option_setter option_int;     /* int */
option_setter option_long;    /* int64_t */
option_setter option_span;    /* int64_t, milliseconds of a duration */
option_setter option_size;    /* int64_t, bytes */
option_setter option_choice;  /* an enum or int: the index among names */
option_setter option_either;  /* bool: true for the second of two names */
option_setter option_word;    /* const char *: one of names */
option_setter option_text;    /* const char *, borrowed */
option_setter option_name;    /* const char *, borrowed, not empty */
option_setter option_checked; /* const char *, borrowed, accepted by check */
option_setter option_copy;    /* char *, owned */
option_setter option_file;    /* char *, owned, not empty */

/* option_copy_maybe is option_copy for a text that may be NULL, which leaves *field unchanged. */
int option_copy_maybe(char **field, const char *text, struct error *err);

/* option_find returns the row with that name in a table ending with name == NULL; NULL if there is
 * none. */
const struct option_def *option_find(const struct option_def *table, const char *name);

/* option_apply sets the row's field in target. */
int option_apply(const struct option_def *o, void *target, const char *value, struct error *err);

/* option_set sets the option of that name. The error names the option; for an unknown one it
 * suggests the nearest. */
int option_set(const struct option_def *table, void *target, const char *name, const char *value,
               struct error *err);

/* option_defaults applies every default of a table through its setter, so that help and sample
 * cannot disagree with the code. */
int option_defaults(const struct option_def *table, void *target, struct error *err);

/* option_index finds value among names. The error lists them and suggests the nearest. */
int option_index(const char *value, const char *const *names, int *ret, struct error *err);

#endif
