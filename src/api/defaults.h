/* defaults.h: what a relay does unless told otherwise. The library and the command line have
 * options for each; this is their one home. */
#ifndef API_DEFAULTS_H
#define API_DEFAULTS_H

#define DEFAULT_DRAIN_DEADLINE "30s"
#define DEFAULT_SWEEP "30s"
#define DEFAULT_RETENTION "168h"
#define DEFAULT_INBOX_RETENTION "720h"

#endif
