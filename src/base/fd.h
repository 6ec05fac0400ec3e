/* fd.h: descriptors that keep clear of 0, 1 and 2, and writing without signals. */
#ifndef BASE_FD_H
#define BASE_FD_H

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

/* fd_above_stdio moves a descriptor off 0, 1 and 2, with FD_CLOEXEC, in case the host has closed
 * one of those: what is meant for standard output must not end up in it. Passes -1 on. */
static inline int fd_above_stdio(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int up = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    close(fd);
    return up;
}

/* fd_write is write(2) without signals: a limit on file sizes (EFBIG) and a reader that is gone
 * (EPIPE) show in errno alone, and neither SIGXFSZ nor SIGPIPE ends the process, whatever the host
 * does with them. */
ssize_t fd_write(int fd, const void *p, size_t n);

/* fd_allow lets the process have at least n descriptors, as far as its hard limit allows. */
void fd_allow(size_t n);

#endif
