/* locate.h: which server to use: the owner of a key's slot in a Redis Cluster, or the master known
 * to Redis Sentinels. No function blocks. */
#ifndef REDIS_LOCATE_H
#define REDIS_LOCATE_H

#include "redis/conn.h"

/* Redis Cluster */

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

/* Sentinels */

/* The state of the search for the master. */
enum sentinel_state {
    SENTINEL_SILENT, /* no query is outstanding, and no subscription is active */
    SENTINEL_ASKING, /* a Sentinel is being queried */
    SENTINEL_TOLD,   /* host and port are those of the master; we are subscribed to changes */
    SENTINEL_NOBODY, /* all were asked, and none knows the master: see `why` */
};

/* (1) conn is connected to url[at]. (2) `told` is valid in state SENTINEL_TOLD; in other states it
 * is the last known address. */
struct redis_sentinel {
    const struct redis_url *url; /* the Sentinels; borrowed */
    size_t n, at, asked;         /* asked: number queried in this round */
    const char *master;          /* name of the master; borrowed */
    enum sentinel_state state;
    struct redis_conn conn;
    int64_t since; /* when url[at] was asked */
    struct redis_address told;
    bool answered; /* the first reply, with the master's address, has arrived */
    struct error why;
};

/* redis_sentinel_init borrows its arguments for the lifetime of *s. */
void redis_sentinel_init(struct redis_sentinel *s, const struct redis_url *url, size_t n,
                         const char *master, const char *name);
void redis_sentinel_release(struct redis_sentinel *s);

/* redis_sentinel_ask starts a round of queries, unless a query is outstanding or a subscription is
 * active. */
void redis_sentinel_ask(struct redis_sentinel *s, int64_t now);
/* redis_sentinel_drive advances the search without blocking. */
void redis_sentinel_drive(struct redis_sentinel *s, int64_t now);
/* redis_sentinel_doubt discards the known address because its server is not a master: the next
 * round starts with another Sentinel. */
void redis_sentinel_doubt(struct redis_sentinel *s);

/* redis_sentinel_deadline returns when drive must be called; CLOCK_NEVER: only when conn is
 * ready. */
int64_t redis_sentinel_deadline(const struct redis_sentinel *s);

#endif
