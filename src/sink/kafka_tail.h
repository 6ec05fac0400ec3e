/* kafka_tail.h: reads the end of a topic to find out which events it already contains.
 *
 * With dedupe=on every message has a header, outbox-id: CONSUMER/ID. An event that may already
 * have been written, by a relay that vanished before reporting it, is looked up in everything
 * written since the event was created. If found, it is not written again.
 *
 * Reading blocks on brokers, so it has its own thread, and a library consumer that is in no
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

/* kafka_tail_new takes ownership of conf, a configuration with everything a connection needs. `fd`,
 * an eventfd of the caller, is signalled whenever a result is ready. Strings are copied. */
int kafka_tail_new(rd_kafka_conf_t *conf, const char *topic, const char *consumer, int fd,
                   struct kafka_tail **ret, struct error *err);
/* kafka_tail_free ends the thread and waits briefly for it; NULL is fine. */
void kafka_tail_free(struct kafka_tail *t);

/* kafka_tail_ask requests that everything now in the topic and written since since_ms, a wall time,
 * be read. Returns a number for kafka_tail_ready, which returns whether it has been. */
uint64_t kafka_tail_ask(struct kafka_tail *t, int64_t since_ms);
bool kafka_tail_ready(struct kafka_tail *t, uint64_t number);
/* kafka_tail_find looks up an event in what has been read. */
bool kafka_tail_find(struct kafka_tail *t, struct str id, struct kafka_place *ret);
/* kafka_tail_partial returns whether there was too much to read all of it. */
bool kafka_tail_partial(struct kafka_tail *t);

#endif
