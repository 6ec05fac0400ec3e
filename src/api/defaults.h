/* defaults.h: the options of a relay that the library and the command line share, with their
 * defaults and bounds. */
#ifndef API_DEFAULTS_H
#define API_DEFAULTS_H

#include "base/option.h"

/* DEFAULTS_ROWS are rows of an option table. AT(field) is the offset of a field in the table's
 * target, which has drain_ms, sweep_ms, retention_ms, inbox_ms, connections and memory. */
/* clang-format off */
#define DEFAULTS_ROWS(AT) \
    {"drain-deadline", "DURATION", "30s", \
     "how long a stopping relay waits for deliveries that are in flight", \
     option_span, AT(drain_ms)}, \
    {"sweep", "DURATION", "30s", \
     "how often to look for work without a wake-up", \
     option_span, AT(sweep_ms), .min = 1}, \
    {"retention", "DURATION", "168h", \
     "how long to keep an event after its last consumer received it; 0s keeps events forever", \
     option_span, AT(retention_ms)}, \
    {"inbox-retention", "DURATION", "720h", \
     "how long to remember which events a handler has processed", \
     option_span, AT(inbox_ms), .min = 1}, \
    {"connections", "N", "4", \
     "how many connections to a PostgreSQL server the consumers share", \
     option_int, AT(connections), .min = 2, .max = 64}, \
    {"memory", "SIZE", "64MiB", \
     "how much memory the consumers share for the events they hold", \
     option_size, AT(memory), .min = 1024 * 1024}
/* clang-format on */

#endif
