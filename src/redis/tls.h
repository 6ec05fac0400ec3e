/* tls.h: TLS over a socket that does not block. */
#ifndef REDIS_TLS_H
#define REDIS_TLS_H

#include <stddef.h>
#include <sys/types.h>

#include "redis/url.h"

struct tls;

/* tls_new reads the certificates (again: they may have been renewed) and gets ready to speak over
 * fd, which stays the caller's. The peer's certificate must be good for u->host. */
int tls_new(const struct redis_url *u, int fd, struct tls **ret, struct error *err);
void tls_free(struct tls *t);

/* tls_handshake, tls_read and tls_write: > 0 done (bytes), 0 try again when tls_events says, -1
 * with err. The end of the stream is an error, too. */
int tls_handshake(struct tls *t, struct error *err);
ssize_t tls_read(struct tls *t, void *p, size_t n, struct error *err);
ssize_t tls_write(struct tls *t, const void *p, size_t n, struct error *err);

/* tls_events: what the last call that gave 0 waits for, POLLIN or POLLOUT. */
short tls_events(const struct tls *t);

#endif
