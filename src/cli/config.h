/* config.h: what the files of the settings share. config.c collects the values and decides which
 * are in effect, config_options.c lists the options of [outbox], config_file.c and config_env.c
 * read the config file and the environment, config_check.c checks whether a relay can run with the
 * settings, config_sink.c opens sinks to try them, config_secrets.c hides what others must not
 * see. */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include "cli/cli.h"
#include "engine/consumer.h"
#include "sink/sink.h"

/* config_add checks a value and adds a copy of *g. The text of ERR_CONFIG is about the value; the
 * caller adds where it was found. */
int config_add(struct config *c, const struct given *g, struct error *err);
/* config_add_name adds the name of a consumer. It fails with ERR_CONFIG if the name is invalid or
 * is already there. */
int config_add_name(struct config *c, enum origin origin, const char *name, const char *where,
                    struct error *err);
/* config_wrong handles the error in *err, which was found at `where`. If problems are gathered, it
 * adds this one and returns 0, so that reading continues. Otherwise it puts `where` before the text
 * and returns -1. */
int config_wrong(struct config *c, const char *where, struct error *err);
/* config_environment adds the values of the variables OUTBOX_<OPTION>, for the options of a
 * table. */
int config_environment(struct config *c, const struct option_def *table, struct error *err);
/* config_environment_consumers reads OUTBOX_CONSUMERS and OUTBOX_CONSUMER_<NAME>_<OPTION>. The
 * names of consumers from flags and file must have been added before. */
int config_environment_consumers(struct config *c, struct error *err);
/* config_upper spells a name as a variable does, in place: in upper case, with _ for '-' and
 * '.'. */
void config_upper(char *name);
/* config_where_named returns where a consumer gets its name ("--consumer", "outbox.conf:12"), or
 * NULL if it is not known. */
const char *config_where_named(const struct config *c, const char *consumer);

/* config_try_sink opens the sink of a consumer and, with `connect`, waits for an answer from its
 * peer. If it was opened, *ret is what it knows of its broker then; ret may be NULL. */
int config_try_sink(const struct consumer *c, bool connect, struct sink_broker *ret,
                    struct error *err);
/* config_consumer builds a consumer as the relay would. The caller releases it. ERR_CONFIG. */
int config_consumer(const struct config *c, const char *name, struct consumer *ret,
                    struct error *err);

#endif
