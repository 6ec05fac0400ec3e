/* listen.h: declarations shared by the files of `webhook listen`. listen.c starts the daemon,
 * watches the connections and runs the loop; listen_request.c receives, verifies, prints and
 * answers requests. */
#ifndef WEBHOOK_LISTEN_H
#define WEBHOOK_LISTEN_H

#include <microhttpd.h>

#include "cli/cli.h"

/* The options of all subcommands of `webhook`. */
struct webhook_args {
    const char *secret_file, *secret_env, *id, *signature, *address;
    int64_t timestamp, count; /* 0 if not given */
    int64_t port, status, delay_ms, request_ms, body_max;
    struct number_arg retry_after;
    bool any_time, quiet, asymmetric;
};

#define LISTEN_HEAD_MAX ((size_t)32 * 1024)
#define LISTEN_CLIENTS 2048 /* connections */
/* Added to a client's time limit for the head of a request, which starts at the previous
 * request. */
#define LISTEN_BETWEEN_MS 30000

/* The client at the other end of a connection. (1) deadline == 0: the slot is free; CLOCK_NEVER: we
 * owe the client an answer. (2) half_closed: the client has closed its half. */
struct client {
    int fd;
    int64_t deadline;
    bool half_closed;
};

/* A request, from its head to its answer. (1) A suspended request is in the listener's queue.
 * (2) `refused` is the status of a refusal, whose body is dropped; 0: not refused. */
struct visit {
    struct visit *next;
    struct MHD_Connection *conn;
    struct client *client;
    struct buf body;
    int64_t due;
    unsigned status, refused;
    bool complete, answered;
};

/* The receiver. (1) All answers are delayed by the same time, so first..last are in the order in
 * which they are due. (2) `held` is the total size of all bodies. */
struct listener {
    const struct cli *cli;
    const struct webhook_args *w;
    struct signature_keys *keys;
    struct replay_memory *memory; /* with keys */
    struct MHD_Daemon *daemon;
    struct MHD_Response *answer;
    struct visit *first, *last;
    struct client client[LISTEN_CLIENTS];
    int64_t look_at; /* no client's deadline is earlier than this */
    int halves;      /* epoll of all clients: reports those that have closed their half */
    bool any_half;   /* a client may be half_closed */
    size_t body_max, bodies_max, held;
    struct buf line;
    int64_t answered;
    struct error err;
};

/* listen_run runs `webhook listen`: it answers requests until told to stop. */
int listen_run(struct cli *cli, struct error *err);

/* listen_give_time sets the deadline of a client to now plus ms. c may be NULL. */
void listen_give_time(struct listener *l, struct client *c, int64_t ms);

/* listen_take is called for the head of a request, for each piece of its body, once more at its
 * end, and again when a suspended request is resumed. It is an MHD_AccessHandlerCallback. */
enum MHD_Result listen_take(void *listener, struct MHD_Connection *conn, const char *url,
                            const char *method, const char *version, const char *data, size_t *size,
                            void **state);
/* listen_forget releases a request that has ended. It is an MHD_RequestCompletedCallback. */
void listen_forget(void *listener, struct MHD_Connection *conn, void **state,
                   enum MHD_RequestTerminationCode why);
/* listen_resume answers every request whose answer is due; with `all`, every waiting request. */
void listen_resume(struct listener *l, bool all);

extern const struct listing_field fields_webhook[]; /* the fields of a request with --json */

#endif
