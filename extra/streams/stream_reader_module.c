/* stream_reader_module.c: stream_reader_run in liboutbox, which forwards to liboutbox-sinks. */
#include "extra/streams/stream_reader.h"
#include "sink/kinds.h"

int stream_reader_run(const struct stream_reader_config *cfg, struct stream_reader_stats *stats,
                      struct error *err)
{
    if (stats)
        *stats = (struct stream_reader_stats){0};
    const struct sink_module *m = sink_module_load(err);
    if (!m)
        return -1;
    return m->read_streams(cfg, stats, err);
}
