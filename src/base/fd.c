#include "base/fd.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* The signals that the kernel raises in a thread when a write fails. */
static const int raised[] = {SIGPIPE, SIGXFSZ};
#define RAISED (sizeof raised / sizeof raised[0])

/* Signal state around a write. */
struct quiet {
    sigset_t mask, pending; /* before the write */
};

/* Blocks the signals and records which of them are already pending. A signal that was not blocked
 * cannot be pending, which saves a system call. */
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

/* Consumes the signal that a failed write raised, but none that was already pending. */
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

ssize_t fd_read_all(int fd, char *to, size_t size)
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

ssize_t fd_read_file(const char *path, char *to, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = fd_read_all(fd, to, size);
    int saved = errno;
    close(fd);
    errno = saved;
    return n;
}

void fd_allow(size_t n)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= n)
        return;
    limit.rlim_cur = n < limit.rlim_max ? n : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return; /* a failing open will report it */
}

#define SLURP ((size_t)64 * 1024)

int fd_slurp(const char *path, size_t max, struct buf *b)
{
    int fd = STDIN_FILENO;
    bool is_stdin = strcmp(path, "-") == 0;
    if (!is_stdin)
        fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;

    int e = 0;
    ssize_t got = 1;
    while (b->n < max && got > 0) {
        size_t want = max - b->n < SLURP ? max - b->n : SLURP;
        char *to = buf_reserve(b, want);
        errno = ENOMEM;
        got = to ? fd_read_all(fd, to, want) : -1;
        if (got < 0)
            e = errno;
        else
            b->n += (size_t)got;
    }
    if (!is_stdin)
        close(fd);
    return e;
}
