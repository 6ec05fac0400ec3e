/* http_impl.h: what the files of the webhook sink share: http.c (requests on their way),
 * http_setup.c (getting ready, and whom we may connect to), http_files.c (secrets and headers),
 * http_request.c (making a request of an event), http_answer.c (what an answer means). Nobody else
 * includes it. */
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

#define HTTP_ANSWER_MAX 65536 /* bytes read of an answer */
/* bytes read of its headers, including those of 1xx answers and those after the body */
#define HTTP_HEADERS_MAX (256 * 1024)
#define HTTP_EXCERPT 160 /* bytes of it that may be repeated */
#define HTTP_HEARD 2048  /* bytes of it that are searched for what must not be repeated */
/* header lines of a request: the event's, those of webhook-header-file, and ours */
#define HTTP_LINES_MAX 160
#define HTTP_TEXT 640
/* 64 KiB of an event's headers with every byte percent-encoded, and the rest */
#define HTTP_HEAD_MAX ((size_t)256 * 1024)
#define HTTP_BODY_MAX ((size_t)2 << 30)

struct http;

/* What was last seen of a file that is looked at once a second, so that its content can change
 * while we run. inode == 0: it has not been seen. */
struct http_watch {
    struct timespec changed;
    ino_t inode;
    off_t size;
};

/* A request, and its curl handle, which is used again and again. (1) start_at != 0: it waits for
 * its turn; curl does not know it yet. (2) lines point into head. */
struct request {
    struct flight f;
    struct http *h;
    CURL *easy;
    int64_t start_at;
    struct buf head, body;
    struct curl_slist lines[HTTP_LINES_MAX];
    long said;              /* the status in the answer's last status line; 0: none */
    size_t got;             /* bytes of the answer */
    size_t got_headers;     /* and of its headers */
    char heard[HTTP_HEARD]; /* its beginning */
    const char *refused;    /* what is special about an address that we did not connect to */
    char address[INET6_ADDRSTRLEN];
    int no_socket; /* errno, if none could be made */
    char why[CURL_ERROR_SIZE];
    bool resent; /* it goes out for the second time, over a connection of its own */
};

/* (1) A request that waits for its turn is the only one in the window. (2) timer is when curl
 * wants to be called; 0: at once. (3) Nothing is sent before hold_until, because the endpoint
 * asked for that. */
struct http {
    struct sink base;
    const struct http_options *o;
    char where[320]; /* https://host:port, the part of the URL that may be repeated */
    CURLM *multi;
    int epfd;
    struct window window;
    int64_t timer;
    int64_t hold_until;
    int hold_status;
    int64_t rate_next;  /* when the next request is due if all are spaced evenly */
    int64_t rate_again; /* when to offer again what came too early; CLOCK_NEVER: nothing did */
    struct signature_keys *keys;
    struct http_watch secrets, headers;
    int64_t look_at;  /* when to look at them again */
    struct buf extra; /* header lines from a file, each with a NUL at its end */
    struct str source;
    char *proxy; /* NULL: none */
    bool tls;
    bool loopback; /* the URL names this machine, so we may connect to it */
    bool global;   /* curl is initialised */
    bool shares;   /* requests may share a connection over HTTP/2 */
    bool no_reuse; /* each request needs a connection of its own */
};

/* http_setup checks URL and options, and makes everything but the requests. http_teardown releases
 * that, also after a failure. Errors: ERR_CONFIG, ERR_UNAVAILABLE, ERR_NOMEM. */
int http_setup(struct http *h, struct error *err);
void http_teardown(struct http *h);
/* http_setup_easy makes a request's handle; false without memory. */
bool http_setup_easy(struct request *r);

void http_files_init(struct http *h);
/* http_files_refresh reads secrets and headers again if their files have changed, looking at most
 * once a second. While it fails nothing can be sent. */
int http_files_refresh(struct http *h, struct error *err);
/* http_files_release wipes and frees what they held. */
void http_files_release(struct http *h);

/* http_request_make makes the request of r->f.d, and gives it to r->easy. ERR_INVALID: no
 * request can ever express this event. ERR_NOMEM. */
int http_request_make(struct request *r, struct error *err);

/* http_judge says what the end of a request means. The reason is written to text, which the result
 * borrows. */
struct sink_result http_judge(const struct request *r, CURLcode rc, char text[HTTP_TEXT]);
/* http_late is the same for a request whose time is up. */
struct sink_result http_late(const struct request *r, char text[HTTP_TEXT]);

#endif
