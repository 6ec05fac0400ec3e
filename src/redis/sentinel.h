/* sentinel.h: asks Redis Sentinels which server is the master, and hears from them when that
 * changes. Nothing here waits. */
#ifndef REDIS_SENTINEL_H
#define REDIS_SENTINEL_H

#include "redis/conn.h"

#define REDIS_HOST_MAX 256

/* What is known about the master. */
enum sentinel_state {
    SENTINEL_SILENT, /* none was asked, or the one that told us is gone */
    SENTINEL_ASKING, /* one is being asked */
    SENTINEL_TOLD,   /* host and port are those of the master; changes are heard of */
    SENTINEL_NOBODY, /* all were asked, and none knows: see `why` */
};

/* (1) url[at] is the one that conn is about. (2) `told` is in force in state SENTINEL_TOLD; in the
 * others it is what was known last. */
struct redis_sentinel {
    const struct redis_url *url; /* of the sentinels, borrowed */
    size_t n, at, asked;         /* asked: how many in this round */
    const char *master;          /* its name; borrowed */
    enum sentinel_state state;
    struct redis_conn conn;
    int64_t since; /* monotonic: when the one at `at` was asked */
    struct {
        char host[REDIS_HOST_MAX], port[8];
    } told;
    int64_t changes; /* how often the master has changed, as far as we heard */
    bool answered;   /* the first reply, which names the master, has come */
    struct error why;
};

/* redis_sentinel_init borrows everything for as long as the sentinel lives. */
void redis_sentinel_init(struct redis_sentinel *s, const struct redis_url *url, size_t n,
                         const char *master, const char *name);
void redis_sentinel_release(struct redis_sentinel *s);

/* redis_sentinel_ask begins a round, unless one is being asked or we are told of changes. */
void redis_sentinel_ask(struct redis_sentinel *s, int64_t now);
/* redis_sentinel_drive makes progress without waiting. */
void redis_sentinel_drive(struct redis_sentinel *s, int64_t now);
/* redis_sentinel_doubt forgets what was told, because the server there is no master: the next ask
 * begins with another sentinel. */
void redis_sentinel_doubt(struct redis_sentinel *s);

/* redis_sentinel_deadline is when drive wants to be called; CLOCK_NEVER: only if conn is ready. */
int64_t redis_sentinel_deadline(const struct redis_sentinel *s);

#endif
