/* http_impl.h: what the files of the webhook sink share: http.c (requests on their way),
 * http_setup.c (getting ready, and whom we may connect to), http_answer.c (what an answer means).
 * Nobody else includes it. */
#ifndef SINK_HTTP_IMPL_H
#define SINK_HTTP_IMPL_H

#include <curl/curl.h>
#include <netinet/in.h>
#include <sys/types.h>
#include <time.h>

#include "base/buf.h"
#include "sink/http_options.h"
#include "sink/signature.h"
#include "sink/sink.h"

#define HTTP_ANSWER_MAX 65536 /* bytes read of an answer */
/* bytes of its headers, those of 1xx and those behind the body included */
#define HTTP_HEADERS_MAX (256 * 1024)
#define HTTP_EXCERPT 160 /* bytes of it that may be repeated */
#define HTTP_HEARD 2048  /* bytes of it that are looked at, for what must not be */
/* header lines of a request: the event's, those of webhook-header-file, and ours */
#define HTTP_LINES_MAX 160
#define HTTP_TEXT 640

struct http;

/* A file that is looked at again, once a second, so that what it holds can be changed while we
 * run. */
struct http_watch {
    struct timespec changed;
    ino_t inode;
    off_t size;
};

/* One request, and the handle it goes by, which is used again and again.
 * (1) d == NULL: free, and linked by `next` only. (2) start_at != 0: it waits for its turn; curl
 *   does not know it yet.
 * (3) lines point into head. */
struct request {
    struct http *h;
    struct request *prev, *next;
    struct delivery *d;
    CURL *easy;
    int64_t due; /* when its time is up */
    int64_t start_at;
    struct buf head, body;
    struct curl_slist lines[HTTP_LINES_MAX];
    long said;              /* the status in the answer's last status line; 0: none */
    size_t got;             /* bytes of the answer */
    size_t got_headers;     /* and of its headers */
    char heard[HTTP_HEARD]; /* its beginning */
    const char *refused;    /* what the address was that we would not connect to */
    char address[INET6_ADDRSTRLEN];
    int no_socket; /* errno, when there was none to be had */
    char why[CURL_ERROR_SIZE];
};

/* (1) n_slots requests, `busy` of them not free. (2) first..last are those that curl has, in the
 *   order of `due`; `waiting` is
 * at most one more. (3) timer is when curl wants to be called, 0 for at once. (4) until hold_until
 * nothing is sent, because the endpoint asked for that. */
struct http {
    struct sink base;
    const struct http_options *o;
    char where[320]; /* https://host:port: what of the URL may be repeated */
    CURLM *multi;
    int epfd;
    struct request *slots, *free, *first, *last, *waiting;
    size_t n_slots, busy;
    int64_t timer;
    int64_t hold_until;
    int hold_status;
    int64_t rate_next;  /* when a request would be due if all came evenly */
    int64_t rate_again; /* when to offer again what came too early */
    struct signature_keys *keys;
    struct http_watch secrets, headers;
    int64_t look_at;  /* when to look at them again */
    struct buf extra; /* header lines from a file, each ended with a NUL */
    struct str source;
    char *proxy; /* NULL: none */
    bool tls;
    bool loopback; /* the URL names this machine, so that is where we may go */
    bool global;   /* curl is initialised */
};

/* http_setup checks URL and options and gets everything but the requests ready. What it made,
 * http_teardown releases, also after a failure. http_setup_easy makes a request's handle; false:
 * out of memory. */
int http_setup(struct http *h, struct error *err);
void http_teardown(struct http *h);
bool http_setup_easy(struct request *r);

/* http_refresh reads secrets and headers again, if their files have changed. While it fails nothing
 * can be sent. */
int http_refresh(struct http *h, struct error *err);

/* http_refused says what an address is that h may not connect to; NULL: it may. */
const char *http_refused(const struct http *h, const struct sockaddr *sa);

/* http_judge says what the end of a request means. text is where its reason is put. */
struct sink_result http_judge(const struct request *r, CURLcode rc, char text[HTTP_TEXT]);
/* http_late is the same for one whose time was up. */
struct sink_result http_late(const struct request *r, char text[HTTP_TEXT]);

#endif
