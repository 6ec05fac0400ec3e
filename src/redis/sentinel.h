/* sentinel.h: finds the master through Redis Sentinels, and subscribes to changes. Nothing here
 * blocks. */
#ifndef REDIS_SENTINEL_H
#define REDIS_SENTINEL_H

#include "redis/conn.h"

/* What is known about the master. */
enum sentinel_state {
    SENTINEL_SILENT, /* none was asked, or our subscription has ended */
    SENTINEL_ASKING, /* one is being queried */
    SENTINEL_TOLD,   /* host and port are those of the master; we are subscribed to changes */
    SENTINEL_NOBODY, /* all were asked, and none knows the master: see `why` */
};

/* (1) conn is to url[at]. (2) `told` is valid in state SENTINEL_TOLD; in the others it is the last
 * known address. */
struct redis_sentinel {
    const struct redis_url *url; /* of the Sentinels, borrowed */
    size_t n, at, asked;         /* asked: number queried in this round */
    const char *master;          /* its name; borrowed */
    enum sentinel_state state;
    struct redis_conn conn;
    int64_t since; /* when url[at] was asked */
    struct redis_address told;
    bool answered; /* the first reply, with the master's address, has arrived */
    struct error why;
};

/* redis_sentinel_init borrows everything for the lifetime of *s. */
void redis_sentinel_init(struct redis_sentinel *s, const struct redis_url *url, size_t n,
                         const char *master, const char *name);
void redis_sentinel_release(struct redis_sentinel *s);

/* redis_sentinel_ask starts a round, unless a query is outstanding or we are subscribed to
 * changes. */
void redis_sentinel_ask(struct redis_sentinel *s, int64_t now);
/* redis_sentinel_drive makes progress without blocking. */
void redis_sentinel_drive(struct redis_sentinel *s, int64_t now);
/* redis_sentinel_doubt discards the known address, because the server there is not a master: the
 * next round starts with another Sentinel. */
void redis_sentinel_doubt(struct redis_sentinel *s);

/* redis_sentinel_deadline returns when drive must be called; CLOCK_NEVER: only if conn is ready. */
int64_t redis_sentinel_deadline(const struct redis_sentinel *s);

#endif
