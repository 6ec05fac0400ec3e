/* api_sinks.c: the symbol that liboutbox-sinks exports. */
#include "extra/streams/stream_reader.h"
#include "sink/kinds.h"

extern const struct sink_module outbox_sink_module __attribute__((visibility("default")));

const struct sink_module outbox_sink_module = {
    .version = OUTBOX_VERSION,
    .sinks = sink_kinds,
    .read_streams = stream_reader_run,
};
