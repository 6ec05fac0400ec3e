/* sink_module.h: the broker sinks as a separate library, liboutbox-sinks, which liboutbox loads
 * when a program first uses one of them. So a program that only emits, or runs handlers, never
 * loads a broker's client library. The outbox binary has everything built in. */
#ifndef SINK_SINK_MODULE_H
#define SINK_SINK_MODULE_H

#include "sink/sink.h"

#define SINK_MODULE_SYMBOL "outbox_sink_module"

struct stream_reader_config;
struct stream_reader_stats;

/* What the module exports. Its layout and that of everything it points to are private: a module of
 * any other version is refused. */
struct sink_module {
    const char *version; /* first in every layout */
    const struct sink_ops *const *sinks;
    int (*read_streams)(const struct stream_reader_config *cfg, struct stream_reader_stats *stats,
                        struct error *err);
};

/* sink_module_load returns the module, loading it at the first call; it stays loaded. NULL, with
 * ERR_CONFIG and what to install, if it is missing or of another version. Thread-safe. */
const struct sink_module *sink_module_load(struct error *err);

#endif
