/* conn.h: one connection to a Redis that never blocks: commands are queued, replies come in the
 * same order. hiredis writes and reads the protocol; the socket and TLS are ours. */
#ifndef REDIS_CONN_H
#define REDIS_CONN_H

#include <hiredis/hiredis.h>
#include <netdb.h>
#include <poll.h>

#include "base/buf.h"
#include "base/clock.h"
#include "redis/reply.h"
#include "redis/tls.h"
#include "redis/url.h"

enum redis_state {
    REDIS_CLOSED,
    REDIS_CONNECTING, /* the socket */
    REDIS_SECURING,   /* TLS */
    REDIS_GREETING,   /* AUTH, SELECT, CLIENT SETNAME are being answered */
    REDIS_READY,
};

/* What was asked in greeting, by place. */
enum redis_greeting { GREET_AUTH, GREET_SELECT, GREET_NAME, GREETINGS };

/* (1) state == CLOSED if and only if fd < 0. (2) out[sent..n) has not been written; it is kept back
 *   until READY. (3) greet has
 * what is still to be written of the greeting. */
struct redis_conn {
    const struct redis_url *url;
    const char *name; /* for CLIENT SETNAME */
    enum redis_state state;
    int fd;
    struct addrinfo *addrs, *next; /* to try */
    struct tls *tls;
    redisReader *reader;
    redisReplyObjectFunctions objects; /* how it makes what it has read */
    size_t in_max, coming;             /* bytes of a reply that is not whole yet */
    struct buf out, greet;
    size_t sent, greet_sent;
    char *secret; /* the password as it was sent; NULL: none */
    enum redis_greeting asked[GREETINGS];
    size_t n_asked, greeted;
};

/* redis_conn_init: out_max is the ceiling of what may be queued, in_max that of one reply: a
 * connection that brings a longer one is lost. url and name are borrowed. */
void redis_conn_init(struct redis_conn *c, const struct redis_url *url, const char *name,
                     size_t out_max, size_t in_max);
void redis_conn_release(struct redis_conn *c);

/* redis_conn_open starts to connect. What is queued meanwhile is sent once it has been greeted.
 * Looking up a name may take its time; nothing else waits. Errors: ERR_UNAVAILABLE, ERR_NOMEM. */
int redis_conn_open(struct redis_conn *c, struct error *err);
/* redis_conn_close drops the connection and what was queued. */
void redis_conn_close(struct redis_conn *c);

/* redis_conn_add queues a command. What is written straight into c->out instead must be whole
 * commands. */
int redis_conn_add(struct redis_conn *c, int argc, const char **argv, const size_t *lens);
static inline size_t redis_conn_queued(const struct redis_conn *c)
{
    return c->out.n - c->sent;
}

/* redis_conn_text copies the text of an error reply, fit to print: cleaned, and without our
 * password. A server that does not know AUTH, as one where it was renamed, repeats what came with
 * it. */
void redis_conn_text(const struct redis_conn *c, const redisReply *r, char out[REDIS_TEXT]);

/* Takes a reply; frees it with freeReplyObject. */
typedef void redis_reply_fn(void *ctx, redisReply *r);

/* redis_conn_drive writes and reads what it can, and hands every reply to `reply`. Returns -1 when
 * the connection is lost or was refused; then err has the fate FATE_DOWN, or FATE_FATAL where no
 * waiting helps, and the caller closes. */
int redis_conn_drive(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err);

/* redis_conn_idle_gone: with nothing asked, the other side has closed the connection, or said
 * something nobody asked for. */
bool redis_conn_idle_gone(const struct redis_conn *c);

struct pollfd redis_conn_poll(const struct redis_conn *c);

/* redis_conn_call asks and waits for the answer, connecting first if need be; for those who have
 * nothing else to do. *ret is freed with freeReplyObject. An error reply is an answer. wake, if >=
 * 0, ends the waiting when readable: ERR_BUSY, and the connection is closed, as its next answer
 * would be that of another question. */
int redis_conn_call(struct redis_conn *c, int argc, const char **argv, const size_t *lens,
                    int64_t timeout_ms, int wake, redisReply **ret, struct error *err);

#endif
