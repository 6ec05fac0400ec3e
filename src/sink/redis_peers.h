/* redis_peers.h: asks Redis and waits for the answer, wherever the servers are: for whoever has
 * nothing else to do. The sink itself never waits; it has redis_route.c. */
#ifndef SINK_REDIS_PEERS_H
#define SINK_REDIS_PEERS_H

#include "sink/redis_impl.h"

struct redis_peer {
    struct redis_url url;
    struct redis_conn conn;
    bool owns; /* it is the server, or a master of the cluster */
};

/* (1) peer[0..n) were heard of. (2) If located, those that own something are known, and
 * owner[slot] - 1 is the index of the one with that slot; 0: unknown. */
struct redis_peers {
    const struct redis_settings *set; /* borrowed */
    struct redis_peer **peer;
    size_t n;
    uint16_t owner[REDIS_SLOTS];
    bool located;
    int wake; /* a descriptor that is readable when it is time to stop; -1: none */
};

/* redis_peers_init connects to nobody yet. */
void redis_peers_init(struct redis_peers *p, const struct redis_settings *set, int wake);
void redis_peers_release(struct redis_peers *p);

/* redis_peers_locate finds out where the servers are, unless that is known. */
int redis_peers_locate(struct redis_peers *p, struct error *err);

/* redis_peers_ask sends a command to the server that a key belongs to, and follows where it is sent
 * on to. An error reply is an error, ERR_UNAVAILABLE; ERR_BUSY: told to stop. The caller frees
 * *ret. */
int redis_peers_ask(struct redis_peers *p, const char *key, int argc, const char **argv,
                    redisReply **ret, struct error *err);
/* redis_peers_ask_at does the same at one server. */
int redis_peers_ask_at(struct redis_peers *p, size_t i, int argc, const char **argv,
                       redisReply **ret, struct error *err);

#endif
