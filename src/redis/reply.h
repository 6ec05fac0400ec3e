/* reply.h: interprets the replies of a Redis server. */
#ifndef REDIS_REPLY_H
#define REDIS_REPLY_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

#define REDIS_TEXT 256 /* see redis_conn_text */

/* redis_is_id returns whether s is a stream id, as in "1748100000000-0". */
bool redis_is_id(const char *s);
/* redis_id parses the two halves of a stream id. Returns false if s is not a stream id, or if a
 * half exceeds 63 bits, which no clock can produce. */
bool redis_id(const char *s, int64_t *hi, int64_t *lo);

#endif
