/* redis_server.h: a Redis of one's own, unprivileged, in a folder of its own, gone with whoever
 * started it. */
#ifndef TESTS_CONTRACT_REDIS_SERVER_H
#define TESTS_CONTRACT_REDIS_SERVER_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <sys/types.h>

/* What a killed server had is there again when it is started: it keeps an append-only file. */
struct redis_server {
    char dir[64], socket[96];
    int port; /* TLS; 0: unix socket only */
    pid_t pid;
    redisContext *db; /* as an administrator */
};

/* redis_server_start makes the folder if there is none. With tls, also certificates in it (ca.crt,
 * server.crt, server.key), and a port of the loopback. */
void redis_server_start(struct redis_server *s, bool tls);
void redis_server_kill(struct redis_server *s);
void redis_server_remove(struct redis_server *s);

/* redis_do runs a command and gives its reply, which must not be an error; free it. redis_set is
 * for those whose reply does not matter. */
redisReply *redis_do(struct redis_server *s, const char *fmt, ...);
void redis_set(struct redis_server *s, const char *fmt, ...);

#endif
