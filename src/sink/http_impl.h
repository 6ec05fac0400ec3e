/* http_impl.h: private to the webhook sink: http.c (requests in flight), http_setup.c (setup,
 * access control, secrets and headers), http_request.c (a request and its result). */
#ifndef SINK_HTTP_IMPL_H
#define SINK_HTTP_IMPL_H

#include <curl/curl.h>
#include <netinet/in.h>
#include <sys/types.h>
#include <time.h>

#include "base/buf.h"
#include "sink/http_options.h"
#include "sink/signature.h"
#include "sink/window.h"

#define HTTP_ANSWER_MAX 65536 /* bytes read of a response */
/* bytes read of a response's headers, including those of 1xx responses, and trailers */
#define HTTP_HEADERS_MAX (256 * 1024)
#define HTTP_EXCERPT 160 /* bytes of a response that may be shown */
#define HTTP_HEARD 2048  /* bytes of a response that are searched for secrets */
/* header lines of a request: the event's, ours, and webhook-header-file's */
#define HTTP_LINES_MAX 160
#define HTTP_TEXT 640
/* 64 KiB of an event's headers with every byte percent-encoded, plus the other lines */
#define HTTP_HEAD_MAX ((size_t)256 * 1024)
#define HTTP_BODY_MAX ((size_t)2 << 30)

struct http;

/* The last known state of a file that is checked once a second, so that its content can change at
 * runtime. inode == 0: not checked yet. */
struct http_watch {
    struct timespec changed;
    ino_t inode;
    off_t size;
};

/* A request and its curl handle, which is reused. (1) start_at != 0: the rate limit delays it, and
 * curl does not have it yet. (2) `lines` points into `head`. */
struct request {
    struct in_flight f;
    struct http *h;
    CURL *easy;
    int64_t start_at;
    struct buf head, body;
    struct curl_slist lines[HTTP_LINES_MAX];
    long said;              /* the status in the response's last status line; 0 if none */
    size_t got;             /* bytes of the response so far */
    size_t got_headers;     /* bytes of its headers so far */
    char heard[HTTP_HEARD]; /* start of the response */
    const char *refused;    /* kind of an address that we refused */
    char address[INET6_ADDRSTRLEN];
    int no_socket; /* errno, if no socket could be created */
    char why[CURL_ERROR_SIZE];
    bool resent; /* resent over a new connection */
};

/* (1) A request delayed by the rate limit is the only one in the window. (2) `timer` is when curl
 * must be called; 0: at once. (3) Until hold_until, at the endpoint's request, nothing is sent. */
struct http {
    struct sink base;
    const struct http_options *o;
    char where[320]; /* https://host:port, the part of the URL that may be shown */
    CURLM *multi;
    int epfd;
    struct window window;
    int64_t timer;
    int64_t hold_until;
    int hold_status;
    int64_t rate_next; /* when the next request is due at an even rate */
    /* when an event refused by the rate limit may be offered again; CLOCK_NEVER if none was */
    int64_t rate_again;
    struct signature_keys *keys;
    struct http_watch secrets, headers;
    int64_t look_at;  /* when to check the files again */
    struct buf extra; /* extra header lines, each ending with a NUL */
    struct str source;
    char *proxy; /* NULL: none */
    bool tls;
    bool loopback; /* the URL names this machine, so private addresses are allowed */
    bool global;   /* curl is initialised */
    bool shares;   /* requests may share a connection over HTTP/2 */
    bool no_reuse; /* each request needs a new connection */
};

/* http_setup checks URL and options, and initializes everything but the requests. http_teardown
 * releases that, even after a failure. Errors: ERR_CONFIG, ERR_UNAVAILABLE, ERR_NOMEM. */
int http_setup(struct http *h, struct error *err);
void http_teardown(struct http *h);
/* http_setup_easy creates the curl handle of a request; false if out of memory. */
bool http_setup_easy(struct request *r);

/* http_setup_refresh rereads secrets and headers if their files have changed, and checks at most
 * once a second. While it fails, the sink cannot send. */
int http_setup_refresh(struct http *h, struct error *err);

/* http_request_make builds the request for r->f.d in r->easy. Fails with ERR_INVALID if no request
 * can express this event, or with ERR_NOMEM. */
int http_request_make(struct request *r, struct error *err);

/* http_request_result returns the result of a completed request. The result borrows its reason,
 * which is written to text. */
struct sink_result http_request_result(const struct request *r, CURLcode rc, char text[HTTP_TEXT]);
/* http_request_late returns the result of a request that has timed out. */
struct sink_result http_request_late(const struct request *r, char text[HTTP_TEXT]);

#endif
