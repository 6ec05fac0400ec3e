/* exec_env.h: what a command finds in its environment: a few variables of this process, by name,
 * and what is said about the event. Nothing else is passed on: the environment of a relay holds
 * passwords. */
#ifndef SINK_EXEC_ENV_H
#define SINK_EXEC_ENV_H

#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/str.h"
#include "event/event.h"

/* What is said about events and streams. None of these is ever passed on: it would be about
 * something else. */
#define EXEC_ENV_FACTS_MAX 16

/* Whatever the values are, the list has one entry for each variable that was put in, and a NULL
 * behind them. (1) A value with a NUL is refused: it would end its variable and begin another. (2)
 * list has room for n_kept + EXEC_ENV_FACTS_MAX + 1 entries, and n_facts <= EXEC_ENV_FACTS_MAX. */
struct exec_env;

/* exec_env_check looks at a list of names, "AWS_REGION, SHOP_URL": ERR_CONFIG. NULL and "" are
 * fine. */
int exec_env_check(const char *names, struct error *err);
/* exec_env_new copies the variables to pass on, once: the host may change its own from another
 * thread later. They are PATH, HOME, USER, LOGNAME, SHELL, LANG, LANGUAGE, LC_*, TZ, TMPDIR, and
 * what `names` lists beside (NULL: nothing). */
int exec_env_new(const char *names, struct exec_env **ret, struct error *err);
void exec_env_free(struct exec_env *e);

/* exec_env_clear forgets the facts. exec_env_text adds one, none if the value is absent, and
 * exec_env_number another. ERR_INVALID with FATE_REJECT: no environment can hold it, and a command
 * that saw a part would take it for something else. */
void exec_env_clear(struct exec_env *e);
int exec_env_text(struct exec_env *e, const char *name, struct str value, struct error *err);
int exec_env_number(struct exec_env *e, const char *name, int64_t value, struct error *err);

/* exec_env_event puts all facts of an event in place of those before it. */
int exec_env_event(struct exec_env *e, const struct event *ev, int attempt, const char *consumer,
                   struct error *err);

/* exec_env_list gives what execve wants; it lives until the next call. NULL: out of memory. */
char **exec_env_list(struct exec_env *e);
/* exec_env_bytes is what the facts take. */
size_t exec_env_bytes(const struct exec_env *e);
/* exec_env_string_max is what the system lets one string of an environment, or an argument, have,
 * its NUL with it. */
size_t exec_env_string_max(void);

/* How to start a shell with a command. Descriptors that are -1 stay as they are; of all others than
 * 0, 1 and 2 it gets none. */
struct exec_start {
    const char *command;
    char **env;
    int in, err;
    bool group; /* it leads a process group of its own */
};

/* exec_start returns 0 or an errno. */
int exec_start(const struct exec_start *s, pid_t *ret);

#endif
