#include "sink/exec_start.h"

#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <unistd.h>

static int add_descriptors(posix_spawn_file_actions_t *fa, const struct exec_start *s)
{
    int rc = 0;
    if (s->in >= 0)
        rc = posix_spawn_file_actions_adddup2(fa, s->in, STDIN_FILENO);
    if (rc == 0 && s->err >= 0)
        rc = posix_spawn_file_actions_adddup2(fa, s->err, STDERR_FILENO);
    if (rc == 0)
        rc = posix_spawn_file_actions_addclosefrom_np(fa, 3);
    return rc;
}

int exec_start(const struct exec_start *s, pid_t *ret)
{
    char sh[] = "sh", c[] = "-c";
    char *argv[] = {sh, c, (char *)(uintptr_t)s->command, NULL};
    short flags = POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);

    if (s->group)
        flags |= POSIX_SPAWN_SETPGROUP;
    posix_spawnattr_init(&at);
    posix_spawnattr_setflags(&at, flags);
    posix_spawnattr_setpgroup(&at, 0);
    posix_spawnattr_setsigdefault(&at, &all);
    posix_spawnattr_setsigmask(&at, &none);

    posix_spawn_file_actions_init(&fa);
    int rc = add_descriptors(&fa, s);
    if (rc == 0)
        rc = posix_spawn(ret, "/bin/sh", &fa, &at, argv, s->env);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&at);
    return rc;
}
