#include "base/fd.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <time.h>

/* What the kernel sends to a thread besides failing its write. */
static const int raised[] = {SIGPIPE, SIGXFSZ};
#define RAISED (sizeof raised / sizeof raised[0])

/* A write without signals. */
struct quiet {
    sigset_t mask, pending; /* as they were before */
};

/* Blocks the signals, and notes which of them are pending already. One that was not blocked before
 * cannot have been pending, which saves a system call. */
static void quiet_begin(struct quiet *q)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < RAISED; i++)
        sigaddset(&set, raised[i]);
    pthread_sigmask(SIG_BLOCK, &set, &q->mask);

    bool blocked = false;
    for (size_t i = 0; i < RAISED; i++)
        blocked = blocked || sigismember(&q->mask, raised[i]);
    sigemptyset(&q->pending);
    if (blocked)
        sigpending(&q->pending);
}

/* Takes back what a failed write has raised, and nothing that was pending before it. */
static void quiet_end(const struct quiet *q, bool failed)
{
    int saved = errno;
    for (size_t i = 0; failed && i < RAISED; i++) {
        if (sigismember(&q->pending, raised[i]))
            continue;
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, raised[i]);
        sigtimedwait(&one, NULL, &(struct timespec){0});
    }
    pthread_sigmask(SIG_SETMASK, &q->mask, NULL);
    errno = saved;
}

ssize_t fd_write(int fd, const void *p, size_t n)
{
    struct quiet q;
    quiet_begin(&q);
    ssize_t k = write(fd, p, n);
    quiet_end(&q, k < 0);
    return k;
}

void fd_allow(size_t n)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= n)
        return;
    limit.rlim_cur = n < limit.rlim_max ? n : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return; /* opening one in vain will say so */
}
