#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define LASTING 3

const char *const io_fault_names[IO_FAULTS] = {"EIO", "ENOSPC", "EINTR", "a short write"};

static bool armed, hit;
static long calls, first, last;
static enum io_fault fault;

int __real_openat64(int dir, const char *path, int flags, ...);
ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __real_pread64(int fd, void *p, size_t n, off_t at);
int __real_fsync(int fd);
int __real_ftruncate64(int fd, off_t n);
int __real_fstat64(int fd, struct stat *st);
int __real_flock(int fd, int how);
int __wrap_openat64(int dir, const char *path, int flags, ...);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_pread64(int fd, void *p, size_t n, off_t at);
ssize_t __wrap___pread64_chk(int fd, void *p, size_t n, off_t at, size_t size);
int __wrap_fsync(int fd);
int __wrap_ftruncate64(int fd, off_t n);
int __wrap_fstat64(int fd, struct stat *st);
int __wrap_flock(int fd, int how);

void io_arm(long at, enum io_fault how, bool lasting)
{
    calls = 0;
    hit = false;
    first = at;
    last = lasting ? at + LASTING - 1 : at;
    fault = how;
    armed = true;
}

bool io_disarm(void)
{
    armed = false;
    return hit;
}

static bool fails(void)
{
    if (!armed || ++calls < first || calls > last)
        return false;
    hit = true;
    errno = fault == IO_ENOSPC ? ENOSPC : fault == IO_EINTR ? EINTR : EIO;
    return true;
}

int __wrap_openat64(int dir, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return fails() ? -1 : __real_openat64(dir, path, flags, mode);
}

ssize_t __wrap_write(int fd, const void *p, size_t n)
{
    if (!fails())
        return __real_write(fd, p, n);
    return fault == IO_SHORT && n > 1 ? __real_write(fd, p, n / 2) : -1;
}

ssize_t __wrap_pread64(int fd, void *p, size_t n, off_t at)
{
    return fails() ? -1 : __real_pread64(fd, p, n, at);
}

/* pread under another name, if the compiler knows the size of the buffer. */
ssize_t __wrap___pread64_chk(int fd, void *p, size_t n, off_t at, size_t size)
{
    if (n > size)
        errno = EFAULT;
    return n > size ? -1 : __wrap_pread64(fd, p, n, at);
}

int __wrap_fsync(int fd)
{
    return fails() ? -1 : __real_fsync(fd);
}

int __wrap_ftruncate64(int fd, off_t n)
{
    return fails() ? -1 : __real_ftruncate64(fd, n);
}

int __wrap_fstat64(int fd, struct stat *st)
{
    return fails() ? -1 : __real_fstat64(fd, st);
}

int __wrap_flock(int fd, int how)
{
    return fails() ? -1 : __real_flock(fd, how);
}
