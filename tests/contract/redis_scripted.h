/* redis_scripted.h: a server that speaks as Redis does and answers every XADD with the error it is
 * told to. No real server can be made to give all of them. */
#ifndef TESTS_CONTRACT_REDIS_SCRIPTED_H
#define TESTS_CONTRACT_REDIS_SCRIPTED_H

struct redis_scripted;

/* redis_scripted_new listens on a unix socket at `path`. */
struct redis_scripted *redis_scripted_new(const char *path);
void redis_scripted_free(struct redis_scripted *m);

/* redis_scripted_say sets the answer to each XADD from now on: an error without its '-', or an id
 * if text is NULL. The text is borrowed. */
void redis_scripted_say(struct redis_scripted *m, const char *text);

#endif
