/* exec_start.h: starts a shell with a clean slate: default signals, and none of our descriptors. */
#ifndef SINK_EXEC_START_H
#define SINK_EXEC_START_H

#include <stdbool.h>
#include <sys/types.h>

/* How to start a shell with a command. It gets `in` and `err` as its standard input and error, or
 * ours where they are -1; our standard output; and no other descriptor. */
struct exec_start {
    const char *command;
    char **env;
    int in, err;
    bool group; /* it leads a process group of its own */
};

/* exec_start starts it, and returns 0 or an errno. */
int exec_start(const struct exec_start *s, pid_t *ret);

#endif
