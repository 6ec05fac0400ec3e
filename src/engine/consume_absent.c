/* consume_absent.c: consume_run of a build without Redis. */
#include "engine/consume.h"

int consume_run(const struct consume_config *cfg, struct consume_stats *stats, struct error *err)
{
    (void)cfg;
    if (stats)
        *stats = (struct consume_stats){0};
    return err_set(err, ERR_CONFIG,
                   "reading Redis streams is not part of this build, which needs Debian's packages "
                   "libhiredis-dev and "
                   "libssl-dev");
}
