/* kafka_tail.h: the end of a topic, read to find out which events are there already.
 *
 * With dedupe=on every message has a header, outbox-id: CONSUMER/ID. An event that may have been
 * written before, by a relay that vanished before it could say so, is looked for in everything that
 * was written since the event was made. What is there is not written again.
 *
 * Reading waits for brokers, so it has a thread, and a consumer of the library that belongs to no
 * group and commits nothing. */
#ifndef SINK_KAFKA_TAIL_H
#define SINK_KAFKA_TAIL_H

#include <librdkafka/rdkafka.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

#define KAFKA_TAIL_HEADER "outbox-id"

struct kafka_tail;

/* Where an event is. */
struct kafka_place {
    int32_t partition;
    int64_t offset;
};

/* kafka_tail_new takes over conf, a configuration with all that a connection needs. `fd`, an
 * eventfd of the caller, is rung whenever an answer is ready. Strings are copied. */
int kafka_tail_new(rd_kafka_conf_t *conf, const char *topic, const char *consumer, int fd,
                   struct kafka_tail **ret, struct error *err);
/* kafka_tail_free ends the thread. It waits a moment for it; NULL is fine. */
void kafka_tail_free(struct kafka_tail *t);

/* kafka_tail_ask wants everything to be read that is in the topic by now and was written since
 * since_ms, a wall time. Returns a number for kafka_tail_ready, which says whether it has been. */
uint64_t kafka_tail_ask(struct kafka_tail *t, int64_t since_ms);
bool kafka_tail_ready(struct kafka_tail *t, uint64_t number);
/* kafka_tail_find looks for an event in what has been read. */
bool kafka_tail_find(struct kafka_tail *t, struct str id, struct kafka_place *ret);
/* kafka_tail_partial says whether there was too much to read all of it. */
bool kafka_tail_partial(struct kafka_tail *t);

#endif
