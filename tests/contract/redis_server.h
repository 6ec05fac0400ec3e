/* redis_server.h: a private Redis server. It is unprivileged, has its own folder, and ends with the
 * process that started it. */
#ifndef TESTS_CONTRACT_REDIS_SERVER_H
#define TESTS_CONTRACT_REDIS_SERVER_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <sys/types.h>

/* A server keeps an append-only file, so that its data survives a kill. */
struct redis_server {
    char dir[64], socket[96];
    int port;     /* TLS; 0: unix socket only */
    bool cluster; /* whether it is the only server of a cluster; set before the start */
    int bus;      /* its port of the cluster bus */
    pid_t pid;
    redisContext *db; /* as an administrator */
};

/* redis_server_start creates the folder if it does not exist. With tls, it also creates
 * certificates there (ca.crt, server.crt, server.key), and listens on a loopback port. */
void redis_server_start(struct redis_server *s, bool tls);
void redis_server_kill(struct redis_server *s);
void redis_server_remove(struct redis_server *s);

/* redis_do runs a command and returns its reply, which must not be an error; the caller frees it.
 * redis_set is for commands whose reply does not matter. */
redisReply *redis_do(struct redis_server *s, const char *fmt, ...);
void redis_set(struct redis_server *s, const char *fmt, ...);

#endif
