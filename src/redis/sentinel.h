/* sentinel.h: finds the master through Redis Sentinels, and subscribes to changes. No function
 * blocks. */
#ifndef REDIS_SENTINEL_H
#define REDIS_SENTINEL_H

#include "redis/conn.h"

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
