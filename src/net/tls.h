/* tls.h: TLS over a non-blocking socket. */
#ifndef NET_TLS_H
#define NET_TLS_H

#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

struct tls;

/* Trusted certificates and our identity: PEM files, NULL if none. */
struct tls_files {
    const char *ca;         /* NULL: the system's */
    const char *cert, *key; /* both, or neither */
};

/* tls_new prepares TLS over fd, which stays the caller's and must outlive *ret. Certificates are
 * read from their files each time, as they may have been renewed. The peer's certificate must be
 * valid for host. The caller frees *ret with tls_free. Errors: ERR_UNAVAILABLE, ERR_NOMEM. */
int tls_new(const struct tls_files *files, const char *host, int fd, struct tls **ret,
            struct error *err);
void tls_free(struct tls *t);

/* tls_handshake, tls_read and tls_write return 1 or the number of bytes; 0 to be called again once
 * the socket is ready for tls_events; -1 with err if the connection is no longer usable, which
 * includes the end of the stream. */
int tls_handshake(struct tls *t, struct error *err);
ssize_t tls_read(struct tls *t, void *p, size_t n, struct error *err);
ssize_t tls_write(struct tls *t, const void *p, size_t n, struct error *err);

/* tls_events returns the event that the last call that returned 0 waits for: POLLIN or POLLOUT. */
short tls_events(const struct tls *t);

#endif
