/* notify.h: tells a service manager how a service is, as systemd wants it: datagrams to the socket
 * in NOTIFY_SOCKET. */
#ifndef BASE_NOTIFY_H
#define BASE_NOTIFY_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* (1) fd < 0: nobody listens, and everything here does nothing. */
struct notify {
    int fd;
    struct sockaddr_un to;
    socklen_t to_size;
    int64_t watchdog_ns; /* how often WATCHDOG=1 is expected; 0: not at all */
};

/* notify_init takes over NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from the environment, and
 * removes them from it: they are not meant for the children. Before any thread is started. */
void notify_init(struct notify *n);
void notify_release(struct notify *n);
/* notify_send sends what is to be said, lines of NAME=VALUE; it never waits. Any thread. */
void notify_send(const struct notify *n, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
