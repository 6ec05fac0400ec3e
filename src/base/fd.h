/* fd.h: descriptors that keep clear of 0, 1 and 2, and writing to them without a signal. */
#ifndef BASE_FD_H
#define BASE_FD_H

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

/* fd_above_stdio moves a descriptor (with FD_CLOEXEC) out of the way of 0, 1 and 2, in case the
 * host has closed one of those: what is meant for standard output must not end up in it. Passes on
 * -1. */
static inline int fd_above_stdio(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int up = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    close(fd);
    return up;
}

/* fd_write is write(2), but that a limit on the size of files (EFBIG) and a reader that is gone
 * (EPIPE) are told by errno alone: neither SIGXFSZ nor SIGPIPE ends the process, whatever the host
 * has made of them. */
ssize_t fd_write(int fd, const void *p, size_t n);

#endif
