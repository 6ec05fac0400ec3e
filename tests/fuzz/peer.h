/* peer.h: the other side of every connection that a target opens. connect() leads to a socket pair
 * whose other end is here, so a target needs no server, and the peer sends what the fuzzer wrote.
 * There is one connection at a time. */
#ifndef TESTS_FUZZ_PEER_H
#define TESTS_FUZZ_PEER_H

#include <stddef.h>

/* peer_expect accepts that many connections from now on and refuses the rest. It closes an earlier
 * connection. Each connection is sent `say` at once and then, if `only` is set, end of file. */
struct peer_script {
    int connections;
    const void *say;
    size_t n;
    int only;
};
void peer_expect(const struct peer_script *s);

/* peer_say writes to the connection, if there is one. */
void peer_say(const void *p, size_t n);
/* peer_heard reads the bytes received since the last call, as many as fit, and returns how many. */
size_t peer_heard(char *out, size_t size);
/* peer_end ends the peer's output; its input can still be read. */
void peer_end(void);
void peer_hang_up(void);

#endif
