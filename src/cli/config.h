/* config.h: declarations shared by the files of the settings: config.c (flags, environment and
 * file; which value is in effect), config_env.c (consumers from the environment), config_check.c
 * (whether a relay could run with them), config_secrets.c (what others must not see). */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include "cli/cli.h"

/* config_add checks a value and adds a copy of *g. ERR_CONFIG speaks of the value only; the caller
 * says where it stands. */
int config_add(struct config *c, const struct given *g, struct error *err);
/* config_add_name adds the name of a consumer; ERR_CONFIG if it is invalid or there already. */
int config_add_name(struct config *c, enum origin origin, const char *name, const char *where,
                    struct error *err);
/* config_wrong deals with the error of a value at `where`. With c->gather it adds the problem and
 * returns 0, so that reading goes on; otherwise it prefixes the error and returns -1. */
int config_wrong(struct config *c, const char *where, struct error *err);
/* config_environment_consumers reads OUTBOX_CONSUMERS and OUTBOX_CONSUMER_<NAME>_<OPTION>. The
 * names from flags and file must have been added before. */
int config_environment_consumers(struct config *c, struct error *err);
/* config_upper turns a name into its part of a variable's name, in place: upper case, with _ for -
 * and '.'. */
void config_upper(char *name);
/* config_where returns where a consumer is named, or NULL if it is not. */
const char *config_where(const struct config *c, const char *consumer);

#endif
