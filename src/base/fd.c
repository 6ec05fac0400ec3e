#include "base/fd.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

/* What the kernel sends to a thread for a write that fails anyway. */
static const int raised[] = {SIGPIPE, SIGXFSZ};
#define RAISED (sizeof raised / sizeof raised[0])

struct quiet {
    sigset_t mask, pending; /* as they were before */
};

static void quiet_begin(struct quiet *q)
{
    sigset_t set;
    bool blocked = false;
    sigemptyset(&set);
    for (size_t i = 0; i < RAISED; i++)
        sigaddset(&set, raised[i]);
    pthread_sigmask(SIG_BLOCK, &set, &q->mask);
    sigemptyset(&q->pending);
    for (size_t i = 0; i < RAISED; i++)
        blocked = blocked || sigismember(&q->mask, raised[i]);
    if (blocked)
        sigpending(&q->pending); /* what was not blocked cannot have been pending */
}

/* quiet_end takes back what a write that failed has raised, and nothing that was there before
 * it. */
static void quiet_end(const struct quiet *q, bool failed)
{
    int saved = errno;
    for (size_t i = 0; failed && i < RAISED; i++) {
        sigset_t one;
        if (sigismember(&q->pending, raised[i]))
            continue;
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
