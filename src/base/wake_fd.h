/* wake_fd.h: a descriptor by which one thread wakes another that polls it. */
#ifndef BASE_WAKE_FD_H
#define BASE_WAKE_FD_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>

#include "base/fd.h"

/* wake_fd_new returns a descriptor that the caller closes; -1 with errno if there is none left. */
static inline int wake_fd_new(void)
{
    return fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
}

/* wake_fd_signal makes it readable. Any thread; async-signal-safe. */
static inline void wake_fd_signal(int fd)
{
    uint64_t one = 1;
    int saved = errno;
    /* A write fails only if the counter is full, and then the descriptor is readable anyway. */
    ssize_t written = write(fd, &one, sizeof one);
    (void)written;
    errno = saved;
}

/* wake_fd_clear resets it and returns whether it was signalled. */
static inline bool wake_fd_clear(int fd)
{
    uint64_t count;
    return read(fd, &count, sizeof count) == (ssize_t)sizeof count;
}

#endif
