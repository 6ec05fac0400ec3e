/* cluster.h: the distribution of keys in a Redis Cluster: the slot of a key, the servers of the
 * slots, and redirections. */
#ifndef REDIS_CLUSTER_H
#define REDIS_CLUSTER_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "redis/url.h"

#define REDIS_SLOTS 16384

/* redis_cluster_slot returns the slot of a key: by its hash tag, the text between the first { and
 * the next }, unless the tag is empty; otherwise by the whole key. */
unsigned redis_cluster_slot(struct str key);
/* redis_cluster_tag returns the part of a key that determines its slot. */
struct str redis_cluster_tag(struct str key);

/* A redirection: to the slot's new owner (MOVED), or only for the next command, while the slot is
 * being migrated (ASK). */
struct redis_redirect {
    bool ask;
    unsigned slot;
    struct redis_address to;
};

/* redis_cluster_redirect parses an error reply; returns false if it is not a redirection. A server
 * that does not know its own name omits the host, which is then asked_host. */
bool redis_cluster_redirect(const char *text, const char *asked_host, struct redis_redirect *ret);

/* A redis_slots_fn receives a range of slots and its master. A non-zero result stops the
 * iteration. */
typedef int redis_slots_fn(void *ctx, unsigned first, unsigned last,
                           const struct redis_address *master, struct error *err);

/* redis_cluster_slots parses the reply to CLUSTER SLOTS, range by range. Fails with ERR_UNAVAILABLE
 * if the reply is invalid. */
int redis_cluster_slots(const redisReply *reply, const char *asked_host, redis_slots_fn *take,
                        void *ctx, struct error *err);

#endif
