/* conn.h: one non-blocking connection to a Redis server. Commands are queued, and replies arrive in
 * the same order. hiredis encodes and parses the protocol; net/wire.h provides the socket and
 * TLS. */
#ifndef REDIS_CONN_H
#define REDIS_CONN_H

#include <hiredis/hiredis.h>
#include <poll.h>

#include "base/buf.h"
#include "base/clock.h"
#include "net/wire.h"
#include "redis/url.h"

#define REDIS_TEXT 256 /* see redis_conn_text */

/* The commands of the greeting, which is the login. */
enum redis_greeting { GREET_AUTH, GREET_SELECT, GREET_NAME, GREET_ROLE, GREETINGS };

/* (1) asked[greeted..n_asked) of the greeting are not answered yet. */
struct redis_conn {
    const struct redis_url *url;
    const char *name; /* for CLIENT SETNAME */
    bool master_only; /* refuse a server that is not a master; set by the caller */
    struct wire wire;
    redisReader *reader;
    redisReplyObjectFunctions objects; /* how reader creates replies */
    size_t in_max;                     /* limit on one reply */
    size_t coming;                     /* bytes of the incomplete reply */
    char *secret;                      /* the password that was sent; NULL: none */
    enum redis_greeting asked[GREETINGS];
    size_t n_asked, greeted;
};

/* redis_conn_init prepares a closed connection. At most out_max bytes may be queued; a reply of
 * more than in_max bytes fails the connection. url and name are borrowed. */
void redis_conn_init(struct redis_conn *c, const struct redis_url *url, const char *name,
                     size_t out_max, size_t in_max);
void redis_conn_release(struct redis_conn *c);

/* redis_conn_hold closes the connection; commands may be queued for a later redis_conn_open. */
void redis_conn_hold(struct redis_conn *c);
/* redis_conn_open starts connecting. Commands queued while the connection was held stay queued;
 * further commands may be queued at once. All of them are sent after the greeting. The call blocks
 * only while the host name is resolved. On failure the connection is closed: ERR_UNAVAILABLE,
 * ERR_NOMEM. */
int redis_conn_open(struct redis_conn *c, struct error *err);
/* redis_conn_close drops the connection and all queued commands. */
void redis_conn_close(struct redis_conn *c);

/* redis_conn_add queues a command whose arguments contain no NUL; returns -1 if out of memory or at
 * the limit. A caller may instead append whole commands to c->wire.out. */
int redis_conn_add(struct redis_conn *c, int argc, const char **argv);

/* redis_conn_text copies the text of an error reply, cleaned for printing. It hides a text that
 * contains our password: a server with a renamed AUTH repeats the arguments of the unknown
 * command. */
void redis_conn_text(const struct redis_conn *c, const redisReply *r, char out[REDIS_TEXT]);

/* A redis_reply_fn receives a reply and frees it with freeReplyObject. */
typedef void redis_reply_fn(void *ctx, redisReply *r);

/* redis_conn_drive writes and reads as much as it can without blocking, and passes every reply to
 * `reply`. Returns -1 if the connection is lost or the greeting was refused, with CLASS_DOWN, or
 * CLASS_FATAL if waiting cannot help; the caller closes the connection. */
int redis_conn_drive(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err);

/* redis_conn_flush writes as many queued bytes as it can, and reads nothing. The next drive reports
 * a failure. */
void redis_conn_flush(struct redis_conn *c);

/* redis_conn_call sends a command and waits up to timeout_ms for its reply, connecting first if
 * necessary. Only for callers that may block. The caller frees *ret with freeReplyObject; an error
 * reply counts as a reply. If wake >= 0 becomes readable, the wait ends with ERR_BUSY. After any
 * failure the connection is closed, because a late reply would be mistaken for the reply to the
 * next command. */
int redis_conn_call(struct redis_conn *c, int argc, const char **argv, int64_t timeout_ms, int wake,
                    redisReply **ret, struct error *err);

/* Replies: errors and stream ids */

/* The subject of an error reply. */
enum redis_fault {
    REDIS_FAULT_UNKNOWN, /* unknown: depends on the results of other events */
    /* this stream and all events for it, while the server works: WRONGTYPE, an ACL on keys, ids
     * exhausted */
    REDIS_FAULT_STREAM,
    REDIS_FAULT_AWAY,  /* the server, temporarily: LOADING, OOM, READONLY, ... */
    REDIS_FAULT_LOGIN, /* our login: NOAUTH, WRONGPASS, an ACL on commands */
    /* this command is too large and always will be; the server is about to close the connection */
    REDIS_FAULT_SIZE,
    /* this server, for any command: it belongs to a cluster, or does not know the command */
    REDIS_FAULT_SETUP,
    REDIS_FAULT_SCRIPT, /* NOSCRIPT: send the text of the script */
};

/* A row of the table of errors. */
struct redis_error {
    const char *words; /* prefix of the error; the first matching row applies */
    enum redis_fault fault;
    /* a new connection may help, because it may reach another server or log in again */
    bool reconnect;
    const char *advice; /* advice for operators; NULL if none */
};

extern const struct redis_error redis_errors[];
extern const size_t redis_errors_n;

/* redis_error_of returns the row of an error. An error missing from the table is classified by its
 * code: ERR may concern anything, any other code concerns the server. */
const struct redis_error *redis_error_of(const char *text);
/* redis_fault_of returns the subject of an error reply. */
enum redis_fault redis_fault_of(const char *text);
/* redis_refuses_command returns whether the server did not run a command because it is unknown or
 * forbidden. */
bool redis_refuses_command(const char *text);

/* redis_is_id returns whether s is a stream id, as in "1748100000000-0". */
bool redis_is_id(const char *s);
/* redis_id parses the two halves of a stream id. Returns false if s is not a stream id, or if a
 * half exceeds 63 bits, which no clock can produce. */
bool redis_id(const char *s, int64_t *hi, int64_t *lo);

#endif
