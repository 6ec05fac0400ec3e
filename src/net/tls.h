/* tls.h: TLS over a non-blocking socket. */
#ifndef NET_TLS_H
#define NET_TLS_H

#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

struct tls;

/* Whom to trust, and who we are: files in PEM, NULL where there is none. */
struct tls_files {
    const char *ca;         /* NULL: the system's */
    const char *cert, *key; /* both, or neither */
};

/* tls_new prepares TLS over fd, which stays the caller's and must outlive *ret. It reads the files
 * with certificates each time, as they may have been renewed. The peer's certificate must be valid
 * for host. The caller frees *ret with tls_free. Errors: ERR_UNAVAILABLE, ERR_NOMEM. */
int tls_new(const struct tls_files *files, const char *host, int fd, struct tls **ret,
            struct error *err);
void tls_free(struct tls *t);

/* tls_handshake, tls_read and tls_write return 1 or the bytes done; 0 if they have to be called
 * again once the socket is ready for tls_events; -1 with err if the connection can no longer be
 * used, also at the end of the stream. */
int tls_handshake(struct tls *t, struct error *err);
ssize_t tls_read(struct tls *t, void *p, size_t n, struct error *err);
ssize_t tls_write(struct tls *t, const void *p, size_t n, struct error *err);

/* tls_events is what the last call that returned 0 waits for: POLLIN or POLLOUT. */
short tls_events(const struct tls *t);

#endif
