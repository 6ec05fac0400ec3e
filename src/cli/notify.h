/* notify.h: reports service state to a service manager, in datagrams to the socket named by
 * NOTIFY_SOCKET, as systemd defines them. */
#ifndef CLI_NOTIFY_H
#define CLI_NOTIFY_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* (1) If fd < 0, no service manager listens and notify_send does nothing. */
struct notify {
    int fd;
    struct sockaddr_un to;
    socklen_t to_size;
    int64_t watchdog_ns; /* interval at which WATCHDOG=1 is expected; 0: never */
};

/* notify_init reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from the environment and unsets
 * them, since they are not meant for child processes. Call it before starting any thread. */
void notify_init(struct notify *n);
void notify_release(struct notify *n);

/* notify_send sends lines of NAME=VALUE. It never blocks and ignores failures. Any thread. */
void notify_send(const struct notify *n, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
