/* exec_env.h: the environment of a command: selected variables of this process, and facts about the
 * event; default signal handling, and none of our descriptors. No other variable is passed on,
 * because a relay's environment holds passwords. */
#ifndef SINK_EXEC_ENV_H
#define SINK_EXEC_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/str.h"
#include "event/event.h"

/* The maximum number of facts about an event or a stream. Variables of this process with the same
 * names are never passed on, because they would not describe the event. */
#define EXEC_ENV_FACTS_MAX 16

/* (1) Whatever the values contain, the list has exactly one entry per variable and ends with a
 * NULL.
 * (2) A value containing a NUL is refused: it would end its variable and start another one. */
struct exec_env;

/* exec_env_check checks a list of names, such as "AWS_REGION, SHOP_URL"; NULL and "" are valid.
 * Errors: ERR_CONFIG. */
int exec_env_check(const char *names, struct error *err);
/* exec_env_new copies the variables to pass on. It copies them only once, because the host may
 * later change its environment from another thread. They are PATH, HOME, USER, LOGNAME, SHELL,
 * LANG, LANGUAGE, LC_*, TZ, TMPDIR and those listed in `names`, which may be NULL. The caller frees
 * *ret. Errors: ERR_CONFIG, ERR_NOMEM. */
int exec_env_new(const char *names, struct exec_env **ret, struct error *err);
void exec_env_free(struct exec_env *e);

/* exec_env_clear removes all facts. */
void exec_env_clear(struct exec_env *e);
/* exec_env_text adds a fact, unless its value is absent. Fails with ERR_NOMEM, or with ERR_INVALID
 * and CLASS_REJECT if an environment cannot hold the value: a truncated value would mislead the
 * command. */
int exec_env_text(struct exec_env *e, const char *name, struct str value, struct error *err);
int exec_env_number(struct exec_env *e, const char *name, int64_t value, struct error *err);

/* exec_env_event replaces all facts with those of an event. */
int exec_env_event(struct exec_env *e, const struct event *ev, int attempt, const char *consumer,
                   struct error *err);

/* exec_env_list returns the environment in execve's format, valid until the next call; NULL if a
 * fact was lost because memory ran out. */
char **exec_env_list(struct exec_env *e);
/* exec_env_bytes returns the size of all facts. */
size_t exec_env_bytes(const struct exec_env *e);
/* exec_env_string_max returns the system's limit for one string of an environment or one argument,
 * including its NUL. */
size_t exec_env_string_max(void);

/* How to start a shell with a command. Its standard input and error are `in` and `err`; -1 means
 * ours. It inherits our standard output, but no other descriptor. */
struct exec_start {
    const char *command;
    char **env;
    int in, err;
    bool group; /* becomes the leader of its own process group */
};

/* exec_start starts the shell. Returns 0 or an errno. */
int exec_start(const struct exec_start *s, pid_t *ret);

#endif
