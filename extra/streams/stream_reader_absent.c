/* stream_reader_absent.c: stream_reader_run for a build without Redis. */
#include "extra/streams/stream_reader.h"

int stream_reader_run(const struct stream_reader_config *cfg, struct stream_reader_stats *stats,
                      struct error *err)
{
    (void)cfg;
    if (stats)
        *stats = (struct stream_reader_stats){0};
    return err_set(err, ERR_CONFIG,
                   "reading Redis streams is not part of this build, which lacks Debian's "
                   "packages libhiredis-dev and libssl-dev");
}
