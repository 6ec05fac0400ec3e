/* reply.h: what a Redis's answers mean. */
#ifndef REDIS_REPLY_H
#define REDIS_REPLY_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stdint.h>

/* What an error reply is about. docs/redis.md has the same table for people. */
enum redis_fault {
    REDIS_FAULT_UNKNOWN, /* who knows: how others fare must tell */
    /* this stream, and whatever goes there: WRONGTYPE, an ACL on keys, no id is left */
    REDIS_FAULT_STREAM,
    REDIS_FAULT_AWAY,  /* the server, for now: LOADING, OOM, READONLY, ... */
    REDIS_FAULT_LOGIN, /* who we are: NOAUTH, WRONGPASS, an ACL on commands */
    /* this command is too large, and always will be; the connection is about to end */
    REDIS_FAULT_SIZE,
    /* this server, for anything we ask: a cluster, one that does not know the command */
    REDIS_FAULT_SETUP,
    REDIS_FAULT_SCRIPT, /* NOSCRIPT: send the text of the script */
};

/* redis_fault_of reads the text of an error reply; redis_advice_of says what to do about it, NULL
 * if nothing comes to mind. */
enum redis_fault redis_fault_of(const char *text);
const char *redis_advice_of(const char *text);
/* redis_reconnects: another connection may fare better, because it may lead to another server, or
 * log in anew. */
bool redis_reconnects(const char *text);

#define REDIS_TEXT 256 /* see redis_conn_text */

/* redis_id reads a stream's id, "1748100000000-0"; false also for one that no clock could give,
 * beyond 63 bits. redis_is_id knows all ids that Redis gives. */
bool redis_id(const char *s, int64_t *hi, int64_t *lo);
bool redis_is_id(const char *s);

#endif
