/* redis_scripted.h: a server that speaks Redis's protocol and answers every XADD with a given
 * error. No real server can be made to return all of them. */
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
