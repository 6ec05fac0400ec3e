/* nats_server.h: a private NATS server with JetStream. It is unprivileged, has its own folder,
 * listens on a loopback port, and ends with the process that started it. */
#ifndef TESTS_CONTRACT_NATS_SERVER_H
#define TESTS_CONTRACT_NATS_SERVER_H

#include <nats/nats.h>
#include <stdbool.h>
#include <sys/types.h>

/* A server restarted after a kill has its data. */
struct nats_server {
    char dir[64];
    int port;
    pid_t pid;
    char token[40];     /* that the administrator logs in with; "": with a password */
    natsConnection *nc; /* as an administrator */
    jsCtx *js;
};

/* nats_server_start creates the folder with certificates in it, if it does not exist. `more` is
 * appended to its configuration; the user admin with the password "admin" may do everything. */
void nats_server_start(struct nats_server *s, const char *more);
/* nats_server_start_open is for a server that has a token instead of users. */
void nats_server_start_open(struct nats_server *s, const char *more, const char *token);
void nats_server_kill(struct nats_server *s);
/* nats_server_reload changes the configuration as far as a running server supports that. */
void nats_server_reload(struct nats_server *s, const char *more);
void nats_server_remove(struct nats_server *s);

/* nats_server_stream creates a stream from JSON such as {"max_msgs":1}, replacing an existing
 * one. */
void nats_server_stream(struct nats_server *s, const char *name, const char *json);
/* nats_server_count is how many messages a stream has. */
size_t nats_server_count(struct nats_server *s, const char *stream);
/* nats_server_get returns a message of a stream, which the caller destroys. */
natsMsg *nats_server_get(struct nats_server *s, const char *stream, uint64_t seq);

#endif
