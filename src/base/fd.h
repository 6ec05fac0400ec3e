/* fd.h: descriptors: moved off 0, 1 and 2, written without signals, read as a whole, or used to
 * wake a thread that polls. */
#ifndef BASE_FD_H
#define BASE_FD_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/buf.h"

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
 * only in errno; neither SIGXFSZ nor SIGPIPE ends the process, regardless of the host's
 * handlers. */
ssize_t fd_write(int fd, const void *p, size_t n);

/* fd_read_file reads up to `size` bytes of a file, such as settings or a secret, into memory that
 * the caller can wipe. Returns how many; `size` means that there may be more; -1 with errno.
 * fd_read_all does the same for a descriptor, which stays open. */
ssize_t fd_read_file(const char *path, char *to, size_t size);
ssize_t fd_read_all(int fd, char *to, size_t size);

/* fd_slurp appends the first `max` bytes of a file ("-": stdin) to b. It returns 0 or an errno. */
int fd_slurp(const char *path, size_t max, struct buf *b);

/* fd_allow raises the process's descriptor limit to at least n, as far as the hard limit
 * permits. */
void fd_allow(size_t n);

/* ---- waking a thread that polls ---- */

/* wake_fd_new returns a descriptor that the caller closes; -1 with errno if the descriptor limit is
 * reached. */
static inline int wake_fd_new(void)
{
    return fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
}

/* wake_fd_signal makes the descriptor readable. Any thread; async-signal-safe. */
static inline void wake_fd_signal(int fd)
{
    uint64_t one = 1;
    int saved = errno;
    /* A write fails only if the counter is full, and then the descriptor is readable anyway. */
    ssize_t written = write(fd, &one, sizeof one);
    (void)written;
    errno = saved;
}

/* wake_fd_clear resets the descriptor and returns whether it was signalled. */
static inline bool wake_fd_clear(int fd)
{
    uint64_t count;
    return read(fd, &count, sizeof count) == (ssize_t)sizeof count;
}

#endif
