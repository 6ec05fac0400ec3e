/* reply.h: what the replies of a Redis server mean. */
#ifndef REDIS_REPLY_H
#define REDIS_REPLY_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an error reply is about. */
enum redis_fault {
    REDIS_FAULT_UNKNOWN, /* not known: how other events fare will tell */
    /* this stream and all that goes there, while the server works: WRONGTYPE, an ACL on keys, no id
     * is left */
    REDIS_FAULT_STREAM,
    REDIS_FAULT_AWAY,  /* the server, for now: LOADING, OOM, READONLY, ... */
    REDIS_FAULT_LOGIN, /* who we are: NOAUTH, WRONGPASS, an ACL on commands */
    /* this command is too large and always will be; the server is about to hang up */
    REDIS_FAULT_SIZE,
    /* this server, whatever we ask: a cluster, one that does not know the command */
    REDIS_FAULT_SETUP,
    REDIS_FAULT_SCRIPT, /* NOSCRIPT: send the text of the script */
};

/* A row of the table of errors. */
struct redis_error {
    const char *words; /* what the error begins with; the first row that fits counts */
    enum redis_fault fault;
    /* a new connection may fare better, because it may lead to another server or logs in again */
    bool reconnect;
    const char *advice; /* what an operator can do; NULL if there is nothing to say */
};

extern const struct redis_error redis_errors[];
extern const size_t redis_errors_n;

/* redis_error_of returns the row of an error. For one that is not in the table, what it begins with
 * decides: ERR may be about anything, another code is about the server. */
const struct redis_error *redis_error_of(const char *text);
/* redis_fault_of says what the text of an error reply is about. */
enum redis_fault redis_fault_of(const char *text);
/* redis_refuses_command says whether the server has not run a command because it does not know it,
 * or does not let us use it. */
bool redis_refuses_command(const char *text);

#define REDIS_TEXT 256 /* see redis_conn_text */

/* redis_is_id says whether s is a stream id, as in "1748100000000-0". */
bool redis_is_id(const char *s);
/* redis_id reads the two halves of a stream id. It returns false if s is not one, and also if a
 * half is beyond 63 bits, which no clock could give. */
bool redis_id(const char *s, int64_t *hi, int64_t *lo);

#endif
