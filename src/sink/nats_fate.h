/* nats_fate.h: what the refusals of JetStream mean for an event. docs/brokers.md has the same
 * table. */
#ifndef SINK_NATS_FATE_H
#define SINK_NATS_FATE_H

#include "sink/sink.h"

#define NATS_WRONG_LAST_ID 10070
#define NATS_WRONG_LAST_SEQ 10071

struct nats_fate {
    int code;         /* err_code of the server; 0 ends the table */
    const char *says; /* its description has this in it; NULL: whatever that is */
    enum sink_status status;
    const char *meaning;
};

extern const struct nats_fate nats_fates[];

/* nats_fate_of returns the first row that fits a code and the server's words. What is not in the
 * table may concern one event only: SINK_RETRY, so that the engine judges by what happens to
 * others. */
const struct nats_fate *nats_fate_of(int code, const char *words);

#endif
