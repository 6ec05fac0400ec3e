/* ask.h: a client of the servers that run inside a fuzz target. */
#ifndef TESTS_FUZZ_ASK_H
#define TESTS_FUZZ_ASK_H

#include <sys/socket.h>
#include <unistd.h>

/* ask_over sends a request over a connected socket, and closes it after the answer. It returns how
 * much of the answer arrived, at most max bytes; answer[] has room for a NUL behind it. */
static inline size_t ask_over(int fd, const void *p, size_t n, char *answer, size_t max)
{
    size_t got = 0;
    ssize_t k = 1;
    if (n && send(fd, p, n, MSG_NOSIGNAL) < 0)
        k = 0; /* the server may have had enough */
    shutdown(fd, SHUT_WR);
    while (k > 0 && got < max) {
        k = recv(fd, answer + got, max - got, 0);
        if (k > 0)
            got += (size_t)k;
    }
    close(fd);
    answer[got] = '\0';
    return got;
}

#endif
