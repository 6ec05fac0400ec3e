#include "base/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

ssize_t small_file_read_fd(int fd, char *to, size_t size)
{
    size_t n = 0;
    while (n < size) {
        ssize_t k = read(fd, to + n, size - n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -1;
        if (k == 0)
            break;
        n += (size_t)k;
    }
    return (ssize_t)n;
}

ssize_t small_file_read(const char *path, char *to, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = small_file_read_fd(fd, to, size);
    int saved = errno;
    close(fd);
    errno = saved;
    return n;
}
