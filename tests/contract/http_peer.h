/* http_peer.h: a real HTTP server for the webhook sink's tests. It records requests and answers
 * as configured. */
#ifndef TESTS_CONTRACT_HTTP_PEER_H
#define TESTS_CONTRACT_HTTP_PEER_H

#include "sink.h"

/* The answer from now on. */
struct http_reply {
    unsigned status;  /* 0: 204 */
    const char *name; /* a header; NULL: none */
    const char *value;
    const char *body; /* NULL: `size` times 'x' */
    size_t size;
    bool hang; /* send no answer */
};

struct http_peer;

struct http_peer *http_peer_new(void);
void http_peer_free(struct http_peer *p);
/* http_peer_stop ends the server and all its connections. http_peer_start starts it on the same
 * port. */
void http_peer_stop(struct http_peer *p);
void http_peer_start(struct http_peer *p);
void http_peer_reply(struct http_peer *p, struct http_reply reply);
/* http_peer_url returns http://HOST:PORT/hook?token=t0ken, valid until the next call. */
const char *http_peer_url(struct http_peer *p, const char *host);

/* The number of requests and connections so far. */
size_t http_peer_requests(struct http_peer *p);
size_t http_peer_connections(struct http_peer *p);
/* http_peer_head returns the head of request i, "POST /hook\nname: value\n...", with names in lower
 * case; the caller frees it. */
char *http_peer_head(struct http_peer *p, size_t i);
char *http_peer_body(struct http_peer *p, size_t i, size_t *ret_n);
/* http_peer_arrived adds the requests that were answered with 2xx, by their webhook-id. */
void http_peer_arrived(struct http_peer *p, struct sink_arrivals *got);

#endif
