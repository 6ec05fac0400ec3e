/* exec_impl.h: private to exec.c (running commands) and exec_answer.c (the meaning of their
 * exit). */
#ifndef SINK_EXEC_IMPL_H
#define SINK_EXEC_IMPL_H

#include <signal.h>

#include "base/buf.h"
#include "sink/exec_env.h"
#include "sink/sink.h"

#define EXEC_TAIL 512 /* bytes kept of a command's stderr */
#define EXEC_WHY 64
#define EXEC_TEXT (EXEC_WHY + EXEC_TAIL + 4)
#define EXEC_BLANKS " \t\r\n"

/* Signals sent to a command so far. */
enum told { TOLD_NOTHING, TOLD_TO_END, KILLED }; /* nothing, SIGTERM, SIGKILL */

/* A running command, the leader of its own process group. (1) d == NULL: the slot is free. (2)
 * exited: the shell has ended but is not reaped yet, so its process group id cannot be reused. (3)
 * `told` only grows. (4) errfd < 0: the other end is closed. */
struct run {
    struct delivery *d;
    pid_t pid;
    int pidfd, errfd;
    bool exited;
    enum told told;
    int64_t due; /* when to send the next signal */
    char tail[EXEC_TAIL];
    size_t tail_n;
};

/* (1) runs has `slots` entries, `running` of them in use. (2) epfd watches pidfd and errfd of every
 * run; the data of an event is slot * 2, plus 1 for errfd. */
struct exec {
    struct sink base;
    const char *command;
    struct run *runs;
    size_t slots, running;
    int epfd;
    bool cancelling;
    struct buf line;
    struct exec_env *env;
};

/* exec_judge returns what the end of a command means, given waitid's result si. The reason is
 * written to text, which the result borrows. */
struct sink_result exec_judge(const struct exec *x, const struct run *r, const siginfo_t *si,
                              char text[EXEC_TEXT]);

#endif
