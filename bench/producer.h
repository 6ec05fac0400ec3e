/* producer.h: one who emits, into either store, through us or past us. Whatever fails ends the
 * program. */
#ifndef BENCH_PRODUCER_H
#define BENCH_PRODUCER_H

#include "bench.h"

struct producer;

/* An event to be emitted. */
struct produced {
    const char *type, *key, *payload;
};

/* producer_new connects to o->db, a URL; the caller frees it. o->mode is how it emits:
 *   emit    outbox.emit() in PostgreSQL, outbox_emit() into SQLite
 *   insert  INSERT INTO outbox.event; PostgreSQL only
 *   notify  into a table of the same columns and indexes, and nothing else: a NOTIFY in PostgreSQL
 *   bare    the same without NOTIFY; PostgreSQL only */
struct producer *producer_new(const struct bench_options *o);
void producer_free(struct producer *p);

/* producer_emit emits and commits one event. */
void producer_emit(struct producer *p, const struct produced *ev);

#endif
