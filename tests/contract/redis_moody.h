/* redis_moody.h: something that speaks as Redis does and answers every XADD with the error it is
 * told to: moods that a real server cannot be put into at will. */
#ifndef TESTS_CONTRACT_REDIS_MOODY_H
#define TESTS_CONTRACT_REDIS_MOODY_H

struct redis_moody;

/* redis_moody_new listens on a unix socket at `path`. */
struct redis_moody *redis_moody_new(const char *path);
void redis_moody_free(struct redis_moody *m);

/* redis_moody_say: the answer to each XADD from now on, an error without its '-'; NULL: an id.
 * Borrowed. */
void redis_moody_say(struct redis_moody *m, const char *text);

#endif
