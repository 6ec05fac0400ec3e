/* peer.h: the other side of every connection a target makes: connect() leads to a socket pair,
 * whose other end is here. So a target needs no server, and what the peer says is what the fuzzer
 * wrote. One connection at a time. */
#ifndef TESTS_FUZZ_PEER_H
#define TESTS_FUZZ_PEER_H

#include <stddef.h>

/* peer_expect: from now on connections are taken, `connections` of them, and the rest is refused.
 * What is left of an earlier one is hung up. Each is told `say` at once, and then, if `only`, that
 * there is no more. */
struct peer_script {
    int connections;
    const void *say;
    size_t n;
    int only;
};
void peer_expect(const struct peer_script *s);

/* peer_say writes to the connection, if there is one. */
void peer_say(const void *p, size_t n);
/* peer_heard reads what has come since, as much as fits; gives how much. */
size_t peer_heard(char *out, size_t size);
/* peer_end: nothing more will be said; what is told to it can still be heard. */
void peer_end(void);
void peer_hang_up(void);

#endif
