/* producer.h: a producer for either store, with or without the library. Any failure ends the
 * program. */
#ifndef BENCH_PRODUCER_H
#define BENCH_PRODUCER_H

#include "bench.h"

struct producer;

/* An event to be emitted. */
struct produced {
    const char *type, *key, *payload;
};

/* producer_new connects to o->db, a URL; the caller frees it. o->mode selects the way to emit:
 *   emit    outbox.emit() in PostgreSQL, outbox_emit() into SQLite
 *   insert  INSERT INTO outbox.event; PostgreSQL only
 *   notify  into a plain table of the same columns and indexes; in PostgreSQL with a NOTIFY bare
 *   the same without NOTIFY; PostgreSQL only */
struct producer *producer_new(const struct bench_options *o);
void producer_free(struct producer *p);

/* producer_emit emits and commits one event. */
void producer_emit(struct producer *p, const struct produced *ev);

#endif
