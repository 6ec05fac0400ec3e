/* option.h: one table behind flags, environment, config file, help, man page and sample. */
#ifndef BASE_OPTION_H
#define BASE_OPTION_H

#include <stdio.h>

#include "base/err.h"

struct option_def {
    const char *name; /* "drain-deadline": --drain-deadline, OUTBOX_DRAIN_DEADLINE, drain-deadline = */
    const char *arg; /* what the value is called in help: "DURATION"; NULL for a switch, which in a file takes yes/no */
    const char *def; /* default, as one would write it; NULL when there is none */
    const char *help; /* one sentence, no full stop */
    /* set parses value (for a switch: "yes" or "no") into target. Errors are ERR_CONFIG and speak of the value only. */
    int (*set)(void *target, const char *value, struct error *err);
};

/* option_find returns the entry of the table (ends with name == NULL), or NULL. */
const struct option_def *option_find(const struct option_def *table, const char *name);
/* option_set finds and sets; the error names the option, and for an unknown one the nearest valid one. */
int option_set(const struct option_def *table, void *target, const char *name, const char *value, struct error *err);

#endif
