/* redis_moody.h: a server that speaks as Redis does and answers every XADD with the error it is
 * told to. No real server can be made to give all of them. */
#ifndef TESTS_CONTRACT_REDIS_MOODY_H
#define TESTS_CONTRACT_REDIS_MOODY_H

struct redis_moody;

/* redis_moody_new listens on a unix socket at `path`. */
struct redis_moody *redis_moody_new(const char *path);
void redis_moody_free(struct redis_moody *m);

/* redis_moody_say sets the answer to each XADD from now on: an error without its '-', or an id if
 * text is NULL. The text is borrowed. */
void redis_moody_say(struct redis_moody *m, const char *text);

#endif
