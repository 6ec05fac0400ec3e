/* nats_tls.h: a time limit for libnats' TLS handshake, which has none of its own.
 *
 * libnats shakes hands on a blocking socket, and tells nobody which one that is until it is done. A
 * server that says hello and then nothing would keep the thread for ever. OpenSSL tells, though: it
 * calls us when the handshake begins, in the thread that connects. */
#ifndef SINK_NATS_TLS_H
#define SINK_NATS_TLS_H

#include <stdint.h>

struct nats_link;

/* nats_tls_begin limits every read and write of a handshake that this thread begins until
 * nats_tls_end. A read that takes longer fails, and the handshake with it. Meanwhile l->shaking is
 * a descriptor of our own of that socket, by which another thread can end it; l may be NULL. */
void nats_tls_begin(struct nats_link *l, int64_t limit_ms);
void nats_tls_end(void);
/* nats_tls_done takes the limit from a socket whose handshake is over. */
void nats_tls_done(int fd);

#endif
