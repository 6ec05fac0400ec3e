/* wake_fd.h: a descriptor that one thread makes readable to wake another, which polls it. */
#ifndef BASE_WAKE_FD_H
#define BASE_WAKE_FD_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>

#include "base/fd.h"

/* wake_fd_new returns a descriptor that the caller closes; -1: there is none left, see errno. */
static inline int wake_fd_new(void)
{
    return fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
}

/* wake_fd_signal makes it readable. Any thread may call it, and so may a signal handler. */
static inline void wake_fd_signal(int fd)
{
    uint64_t one = 1;
    int saved = errno;
    /* A write fails only if the counter is full, and then the descriptor is readable anyway. */
    ssize_t written = write(fd, &one, sizeof one);
    (void)written;
    errno = saved;
}

/* wake_fd_clear makes it unreadable, and returns whether it was signalled. */
static inline bool wake_fd_clear(int fd)
{
    uint64_t count;
    return read(fd, &count, sizeof count) == (ssize_t)sizeof count;
}

#endif
