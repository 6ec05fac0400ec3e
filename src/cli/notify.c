#include "cli/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/text.h"

/* Returns the interval at which WATCHDOG=1 is expected of us; 0 if it is not: WATCHDOG_PID may name
 * another process. */
static int64_t watchdog_ns(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *watched = getenv("WATCHDOG_PID");
    int64_t n = 0, pid = getpid();
    if (watched && text_int(watched, 1, INT32_MAX, &pid, NULL) != 0)
        return 0;
    if (!usec || pid != getpid())
        return 0;
    if (text_int(usec, 1, INT64_MAX / 1000, &n, NULL) != 0)
        return 0;
    return n * 1000;
}

/* Opens a socket for sending to path: a file, or a name in the abstract namespace, which is written
 * with @ and starts with a NUL. On failure fd stays -1. */
static void open_socket(struct notify *n, const char *path)
{
    size_t length = strlen(path);
    bool file = path[0] == '/', abstract = path[0] == '@';
    bool fits = length >= 2 && length < sizeof n->to.sun_path;
    if (!fits || (!file && !abstract))
        return;

    n->to.sun_family = AF_UNIX;
    memcpy(n->to.sun_path, path, length);
    if (abstract)
        n->to.sun_path[0] = '\0';
    size_t end = length + file; /* only a file's name includes the NUL */
    n->to_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + end);
    n->fd = fd_above_stdio(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void notify_init(struct notify *n)
{
    const char *path = getenv("NOTIFY_SOCKET");
    *n = (struct notify){.fd = -1};
    if (path)
        open_socket(n, path);
    if (n->fd >= 0)
        n->watchdog_ns = watchdog_ns();
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

void notify_release(struct notify *n)
{
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}

void notify_send(const struct notify *n, const char *fmt, ...)
{
    if (n->fd < 0)
        return;

    char text[1024] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ssize_t sent = sendto(n->fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&n->to,
                          n->to_size);
    (void)sent; /* the service manager may be gone */
}
