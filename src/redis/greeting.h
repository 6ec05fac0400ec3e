/* greeting.h: what a connection begins with: AUTH, SELECT, CLIENT SETNAME and ROLE. */
#ifndef REDIS_GREETING_H
#define REDIS_GREETING_H

#include "redis/conn.h"

/* redis_greeting_make writes the commands into c->greet, and keeps the password in c->secret.
 * Errors: ERR_UNAVAILABLE if the password cannot be read, ERR_NOMEM. */
int redis_greeting_make(struct redis_conn *c, struct error *err);

/* redis_greeting_answered takes the reply to the next of them. It fails if the server refuses a
 * command that we need: CLASS_FATAL for a database that it does not have, else CLASS_DOWN. */
int redis_greeting_answered(struct redis_conn *c, const redisReply *r, struct error *err);

#endif
