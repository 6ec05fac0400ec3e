/* config.h: what the files of the settings share: config.c (flags, files, what counts),
 * config_env.c (consumers from the environment), config_check.c (whether a relay could run with
 * them). */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include "cli/cli.h"

/* config_add checks a value and keeps a copy of all of it. ERR_CONFIG speaks of the value. */
int config_add(struct config *c, const struct given *g, struct error *err);
/* config_add_name notes a consumer's name; ERR_CONFIG if it cannot be one, or is there already. */
int config_add_name(struct config *c, enum origin origin, const char *name, const char *where,
                    struct error *err);
/* config_environment_consumers takes OUTBOX_CONSUMERS and OUTBOX_CONSUMER_<NAME>_<OPTION>. All
 * names of flags and file must be known by then. */
int config_environment_consumers(struct config *c, struct error *err);
/* config_where says where a consumer is named. */
const char *config_where(const struct config *c, const char *consumer);

#endif
