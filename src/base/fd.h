/* fd.h: descriptors that keep clear of 0, 1 and 2, and writing without signals. */
#ifndef BASE_FD_H
#define BASE_FD_H

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

/* fd_above_stdio moves a descriptor off 0, 1 and 2, with FD_CLOEXEC, in case the host closed one of
 * those: output meant for stdout must not end up in it. -1 is passed through. */
static inline int fd_above_stdio(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int up = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    close(fd);
    return up;
}

/* fd_write is write(2) without signals: a file size limit (EFBIG) and a closed reader (EPIPE) show
 * in errno only; neither SIGXFSZ nor SIGPIPE ends the process, whatever the host has set up for
 * them. */
ssize_t fd_write(int fd, const void *p, size_t n);

/* fd_allow raises the process's descriptor limit to at least n, as far as the hard limit
 * permits. */
void fd_allow(size_t n);

#endif
