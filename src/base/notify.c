#include "base/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/text.h"

static int64_t watchdog(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    int64_t n = 0, whose = getpid();
    struct error err;
    if (pid && text_int(pid, 1, INT32_MAX, &whose, &err) != 0)
        return 0;
    if (whose != getpid())
        return 0; /* systemd watches another process */
    if (!usec || text_int(usec, 1, INT64_MAX / 1000, &n, &err) != 0)
        return 0;
    return n * 1000;
}

/* address: a path, or a name in the abstract namespace, which is written with @ and starts with a
 * NUL. */
static void address(struct notify *n, const char *path)
{
    size_t length = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || length < 2 || length >= sizeof n->to.sun_path)
        return;
    n->to.sun_family = AF_UNIX;
    memcpy(n->to.sun_path, path, length);
    if (path[0] == '@')
        n->to.sun_path[0] = 0;
    n->to_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (path[0] == '/'));
    n->fd = fd_above_stdio(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void notify_init(struct notify *n)
{
    const char *path = getenv("NOTIFY_SOCKET");
    *n = (struct notify){.fd = -1};
    if (path)
        address(n, path);
    if (n->fd >= 0)
        n->watchdog_ns = watchdog();
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
    char text[1024];
    va_list ap;
    if (n->fd < 0)
        return;
    va_start(ap, fmt);
    int length = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t size = length < 0 ? 0 : (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
    if (sendto(n->fd, text, size, MSG_NOSIGNAL, (const struct sockaddr *)&n->to, n->to_size) < 0)
        return; /* the manager has gone away: there is nobody to tell */
}
