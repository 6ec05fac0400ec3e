#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "sink/http_impl.h"

#define PATH_PART 12 /* from this length on, a part of the path may be a token */
#define QUERY_PART 4 /* the same for a part of the query */
/* No endpoint may pause us for longer with one header. */
#define RETRY_AFTER_MAX_MS (INT64_C(3600) * 1000)

/* The meaning of statuses; the first matching row counts. SINK_REJECT marks a status that is about
 * the request itself, and is a retry unless webhook-client-errors is set. All other 4xx are about
 * the endpoint or our setup: whatever that option is, they never make an event a dead letter at
 * once. docs/webhooks.md has the same table. */
static const struct {
    long from, to;
    enum sink_status status;
    const char *more;
} meanings[] = {
    {200, 299, SINK_DELIVERED, ""},
    {300, 399, SINK_RETRY, "; redirects are not followed, so use the URL it leads to"},
    {400, 400, SINK_REJECT, ""},
    {401, 401, SINK_RETRY,
     "; it wants credentials: see webhook-header-file and webhook-secret-file"},
    {406, 406, SINK_REJECT, ""},
    {407, 407, SINK_RETRY, "; the proxy wants credentials"},
    {409, 409, SINK_REJECT, ""},
    {410, 410, SINK_PAUSE, "; the endpoint wants no more"},
    {411, 412, SINK_REJECT, ""},
    {413, 413, SINK_REJECT, "; the event is too large for it"},
    {414, 416, SINK_REJECT, ""},
    {422, 422, SINK_REJECT, ""},
    {429, 429, SINK_DOWN, ""},
    {431, 431, SINK_REJECT, "; its headers are too large for it"},
    {503, 503, SINK_DOWN, ""},
    {0, 999, SINK_RETRY, ""},
};

/* Whether any part of the request was sent, so that the other side may have seen it. */
static bool was_sent(const struct request *r)
{
    curl_off_t us = 0;
    curl_easy_getinfo(r->easy, CURLINFO_PRETRANSFER_TIME_T, &us);
    return us > 0;
}

/* Returns the Retry-After of the response in ms, at most RETRY_AFTER_MAX_MS; 0: none. */
static int64_t retry_after(const struct request *r)
{
    curl_off_t s = 0;
    curl_easy_getinfo(r->easy, CURLINFO_RETRY_AFTER, &s); /* in seconds or as a date */
    if (s <= 0)
        return 0;
    if (s >= RETRY_AFTER_MAX_MS / 1000)
        return RETRY_AFTER_MAX_MS;
    return (int64_t)s * 1000;
}

/* Whether a text contains the value of a header from webhook-header-file. */
static bool repeats_header(const struct http *h, const char *text)
{
    for (size_t at = 0; at < h->extra.n; at += strlen(h->extra.p + at) + 1) {
        const char *value = strstr(h->extra.p + at, ": ") + 2;
        const char *word = strrchr(value, ' '); /* "Bearer TOKEN": check the token */
        if (strstr(text, value) || (word && word[1] && strstr(text, word + 1)))
            return true;
    }
    return false;
}

/* Whether a text repeats the part of the URL after the host: the path, a long part of it, or a
 * value of the query. Many endpoints have their tokens there. */
static bool repeats_url(const struct http *h, const char *text)
{
    const char *host = strstr(h->base.cfg.url, "://") + 3;
    const char *path = host + strcspn(host, "/?#"), *query = path + strcspn(path, "?#");
    size_t n = (size_t)(query - path);
    if (n > 1 && memmem(text, strlen(text), path, n))
        return true;
    for (const char *p = path; *p;) {
        size_t skip = strspn(p, "/?#&="), part = strcspn(p + skip, "/?#&=");
        size_t enough = QUERY_PART;
        if (p < query)
            enough = PATH_PART;
        bool telling = part >= enough;
        if (telling && memmem(text, strlen(text), p + skip, part))
            return true;
        p += skip + part;
    }
    return false;
}

/* Makes one clean line of the beginning of a response; empty if it must not be shown. More is
 * searched than shown, because half of a secret might be at the end of what is shown. */
static void excerpt(const struct request *r, char out[HTTP_EXCERPT])
{
    char heard[HTTP_HEARD + 1];
    size_t n = r->got < HTTP_HEARD ? r->got : HTTP_HEARD;
    n = text_clean(heard, sizeof heard, r->heard, n);
    if (repeats_header(r->h, heard) || repeats_url(r->h, heard))
        n = 0;
    text_clean(out, HTTP_EXCERPT, heard, n);
}

/* Returns what a response with this status means. */
static struct sink_result judge_status(const struct request *r, long code, char text[HTTP_TEXT])
{
    size_t i = 0;
    char said[HTTP_EXCERPT];
    while (code < meanings[i].from || code > meanings[i].to)
        i++;
    struct sink_result res = {.status = meanings[i].status, .native = (int)code};
    if (res.status == SINK_DELIVERED)
        return res;
    if (res.status == SINK_REJECT && !r->h->o->reject_4xx)
        res.status = SINK_RETRY;
    if (res.status == SINK_DOWN || res.status == SINK_RETRY)
        res.retry_after_ms = retry_after(r);
    excerpt(r, said);
    snprintf(text, HTTP_TEXT, "%s: HTTP %ld%s%s%s", r->h->where, code, meanings[i].more,
             said[0] ? ": " : "", said);
    res.text = text;
    return res;
}

/* Writes why there is no response. curl's own text comes last: ours says what to do. */
static void explain_failure(const struct request *r, CURLcode rc, char text[HTTP_TEXT])
{
    const char *said = curl_easy_strerror(rc);
    if (r->why[0])
        said = r->why;
    char why[CURL_ERROR_SIZE];
    text_clean(why, sizeof why, said, strlen(said));

    /* curl also reports out of memory if a header line is too long for it. */
    bool long_header = rc == CURLE_OUT_OF_MEMORY && was_sent(r);
    if (r->refused)
        snprintf(text, HTTP_TEXT,
                 "%s: will not connect to %s, a %s address; webhook-allow can permit it",
                 r->h->where, r->address, r->refused);
    else if (r->no_socket)
        snprintf(text, HTTP_TEXT,
                 "%s: no socket: %s; this process may have too many files open for its concurrency",
                 r->h->where, strerror(r->no_socket));
    else if (r->got_headers > HTTP_HEADERS_MAX)
        snprintf(text, HTTP_TEXT, "%s: more than %d KiB of headers in a response", r->h->where,
                 HTTP_HEADERS_MAX / 1024);
    else if (long_header)
        snprintf(text, HTTP_TEXT, "%s: out of memory, or a header of its answer is too long",
                 r->h->where);
    else
        snprintf(text, HTTP_TEXT, "%s: %c%s", r->h->where, tolower((unsigned char)why[0]), why + 1);
}

/* Returns what the lack of a response means. If the request was never sent, the event is not to
 * blame. If it was, the event may have crashed the other side, so it counts as an attempt;
 * otherwise one event could block all others forever. */
static struct sink_result judge_failure(const struct request *r, CURLcode rc, char text[HTTP_TEXT])
{
    struct sink_result res = {.status = SINK_RETRY, .native = (int)rc, .text = text};
    if (!was_sent(r) || rc == CURLE_OUT_OF_MEMORY)
        res.status = SINK_DOWN;
#if LIBCURL_VERSION_NUM >= 0x080600
    if (rc == CURLE_TOO_LARGE)
        res.status = SINK_REJECT;
#endif
    explain_failure(r, rc, text);
    return res;
}

struct sink_result http_judge(const struct request *r, CURLcode rc, char text[HTTP_TEXT])
{
    long code = 0;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &code);
    /* A response that is longer than we read is still a response. */
    bool cut = rc == CURLE_WRITE_ERROR && r->got >= HTTP_ANSWER_MAX;
    bool complete = rc == CURLE_OK || cut;
    bool understood = code >= 200 && code == r->said;
    if (complete && understood)
        return judge_status(r, code, text);
    if (complete)
        rc = CURLE_WEIRD_SERVER_REPLY;
    return judge_failure(r, rc, text);
}

struct sink_result http_late(const struct request *r, char text[HTTP_TEXT])
{
    char limit[32];
    struct sink_result res = {.status = was_sent(r) ? SINK_RETRY : SINK_DOWN, .text = text};
    res.native = CURLE_OPERATION_TIMEDOUT;
    text_duration_show(r->h->base.cfg.timeout_ms, limit);
    snprintf(text, HTTP_TEXT, "%s: %s within %s", r->h->where,
             was_sent(r) ? "no complete response" : "no connection", limit);
    return res;
}
