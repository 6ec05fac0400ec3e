/* cmd_consumers.h: what the two files of `outbox consumers` share. */
#ifndef CLI_CMD_CONSUMERS_H
#define CLI_CMD_CONSUMERS_H

#include "base/arena.h"
#include "cli/cli.h"

/* cmd_consumers_history, cmd_consumers_set and cmd_consumers_revert are what struct command runs
 * for the subcommands of the same names. */
int cmd_consumers_history(struct cli *cli, struct error *err);
int cmd_consumers_set(struct cli *cli, struct error *err);
int cmd_consumers_revert(struct cli *cli, struct error *err);

/* cmd_consumers_in_store opens the store and an arena, does the work and releases both. Returns
 * what the work returns. */
typedef int cmd_consumers_work(struct cli *cli, struct store *st, struct arena *a,
                               struct error *err);
int cmd_consumers_in_store(struct cli *cli, cmd_consumers_work *work, struct error *err);

/* cmd_consumers_report prints what the consumer in the arguments is now. */
int cmd_consumers_report(const struct cli *cli, const char *now, struct error *err);

/* cmd_consumers_patterns returns the patterns as they are shown: "*" for all events. Borrowed. */
const char *cmd_consumers_patterns(const char *events);

#endif
