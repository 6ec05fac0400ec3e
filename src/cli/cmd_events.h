/* cmd_events.h: what the two files of `outbox events` share. */
#ifndef CLI_CMD_EVENTS_H
#define CLI_CMD_EVENTS_H

#include "cli/cli.h"

/* cmd_events_retry is what struct command runs for `events retry ID...`. */
int cmd_events_retry(struct cli *cli, struct error *err);

/* cmd_events_unknown fills in ERR_NOTFOUND for an id that names no event, and returns -1. */
int cmd_events_unknown(const char *id, struct error *err);

#endif
