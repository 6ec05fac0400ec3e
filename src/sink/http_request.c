/* http_request.c: builds a request from its event (header lines, signature and body), and
 * interprets the response, or the lack of one. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/num.h"
#include "base/text.h"
#include "event/message.h"
#include "sink/http_impl.h"

#define ID_MAX 255   /* bytes; a UUID has 36 */
#define SECRET_MIN 4 /* anything shorter is not searched for: it would match by chance */
/* A longer part of the path may be a token; a shorter one too, if it has a digit. */
#define WORD_MAX 11
/* An endpoint's header cannot pause us for longer. */
#define RETRY_AFTER_MAX_S 3600

/* ---- building the request ---- */

/* Rejects, with ERR_INVALID, events that no request can express. Header values are limited to the
 * sizes allowed in events; values in JSON must be UTF-8 instead. */
static int check_event(const struct http *h, const struct event *ev, struct error *err)
{
    static const char plain[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.";
    const struct {
        const char *name;
        struct str text;
        size_t max;
    } texts[] = {
        {"type", ev->type, EVENT_TYPE_MAX},
        {"aggregate_type", ev->aggregate_type, EVENT_KEY_MAX},
        {"aggregate_id", ev->aggregate_id, EVENT_KEY_MAX},
        {"tenant", ev->tenant, EVENT_KEY_MAX},
    };
    /* An id consists of characters that need no encoding in a header line. */
    bool sound = ev->id.n > 0 && ev->id.n <= ID_MAX;
    for (size_t i = 0; sound && i < ev->id.n; i++)
        sound = memchr(plain, ev->id.p[i], sizeof plain - 1);
    if (!sound)
        return err_set(err, ERR_INVALID, "the event's id cannot be written in a header line");

    bool binary = h->o->mode == HTTP_BINARY;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct str text = texts[i].text;
        if (binary && text.n > texts[i].max)
            return err_set(err, ERR_INVALID,
                           "the event's %s has %zu bytes; the limit in a header line is %zu",
                           texts[i].name, text.n, texts[i].max);
        if (!binary && text.n > 0 && !utf8_valid(text, NULL))
            return err_set(err, ERR_INVALID, "the event's %s is not UTF-8", texts[i].name);
    }
    return 0;
}

/* Writes the header lines into r->head, each ending with a NUL, and links them into r->lines, the
 * list for curl. Fails with ERR_INVALID if the lines are too many or too long. */
static int make_lines(struct request *r, const struct cloudevents_headers *more, struct str body,
                      struct error *err)
{
    struct http *h = r->h;
    const struct event *ev = r->f.d->ev;
    struct buf *b = &r->head;
    struct signature_message m = {ev->id, clock_wall(h->base.cfg.clock) / 1000, body};
    bool structured = h->o->mode == HTTP_STRUCTURED;
    const char *type = structured ? "application/cloudevents+json" : "application/json";

    buf_clear(b);
    buf_addf(b, "content-type: %s%c", type, 0);
    buf_adds(b, "webhook-id: ");
    buf_addstr(b, ev->id); /* checked by check_event */
    buf_addc(b, '\0');
    buf_addf(b, "webhook-timestamp: %lld%c", (long long)m.timestamp, 0);
    if (h->keys) {
        buf_adds(b, "webhook-signature: ");
        signature_add(b, h->keys, &m);
        buf_addc(b, '\0');
    }
    buf_addf(b, "outbox-attempt: %d%c", r->f.d->attempt, 0);
    buf_addf(b, "Expect:%c", 0); /* send large bodies without waiting for 100 Continue */
    if (!structured)
        cloudevents_binary(b, ev, h->source, more);
    cloudevents_trace(b, more);
    buf_add(b, h->extra.p, h->extra.n);
    if (b->full)
        return err_set(err, ERR_INVALID, "the request's headers take more than %zu bytes",
                       HTTP_HEAD_MAX);
    if (b->failed)
        return err_nomem(err);

    size_t n = 0;
    for (char *line = b->p; line < b->p + b->n; line += strlen(line) + 1) {
        if (n == HTTP_LINES_MAX)
            return err_set(err, ERR_INVALID, "the event has too many headers for a request");
        r->lines[n] = (struct curl_slist){line, NULL};
        if (n > 0)
            r->lines[n - 1].next = &r->lines[n];
        n++;
    }
    return 0;
}

int http_request_make(struct request *r, struct error *err)
{
    struct http *h = r->h;
    struct cloudevents_headers more;
    if (check_event(h, r->f.d->ev, err) != 0)
        return -1;
    if (cloudevents_headers(r->f.d->ev, &more, err) != 0)
        return -1;

    /* The body is the event as JSON, or only its payload. */
    const struct event *ev = r->f.d->ev;
    struct str body = ev->payload.p ? ev->payload : STR("null");
    buf_clear(&r->body);
    if (h->o->mode == HTTP_STRUCTURED) {
        cloudevents_structured(&r->body, ev, h->source, &more);
        body = (struct str){r->body.p, r->body.n};
    }
    if (r->body.full)
        return err_set(err, ERR_INVALID, "the request's body takes more than %zu bytes",
                       HTTP_BODY_MAX);
    if (r->body.failed)
        return err_nomem(err);
    if (make_lines(r, &more, body, err) != 0)
        return -1;

    curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, r->lines);
    curl_easy_setopt(r->easy, CURLOPT_POSTFIELDS, body.p);
    curl_easy_setopt(r->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body.n);
    return 0;
}

/* ---- the result ---- */

/* Results by status; the first matching row applies. SINK_REJECT marks a status that concerns the
 * request itself; such a status is a retry unless webhook-client-errors is set. All other 4xx
 * concern the endpoint or our setup, so regardless of that option they never turn an event into a
 * dead letter at once. docs/webhooks.md has the same table. */
static const struct {
    long from, to;
    enum sink_status status;
    const char *more;
} meanings[] = {
    {200, 299, SINK_DELIVERED, ""},
    {300, 399, SINK_RETRY, "; redirects are not followed: use the URL it redirects to"},
    {400, 400, SINK_REJECT, ""},
    {401, 401, SINK_RETRY,
     "; it requires credentials: see webhook-header-file and webhook-secret-file"},
    {406, 406, SINK_REJECT, ""},
    {407, 407, SINK_RETRY, "; the proxy requires credentials"},
    {409, 409, SINK_REJECT, ""},
    {410, 410, SINK_PAUSE, "; the endpoint no longer accepts events"},
    {411, 412, SINK_REJECT, ""},
    {413, 413, SINK_REJECT, "; the event is too large for the endpoint"},
    {414, 416, SINK_REJECT, ""},
    {422, 422, SINK_REJECT, ""},
    {429, 429, SINK_DOWN, ""},
    {431, 431, SINK_REJECT, "; the event's headers are too large for the endpoint"},
    {503, 503, SINK_DOWN, ""},
    {0, 999, SINK_RETRY, ""},
};

/* Returns whether any part of the request was sent, so that the endpoint may have seen it. */
static bool was_sent(const struct request *r)
{
    curl_off_t us = 0;
    curl_easy_getinfo(r->easy, CURLINFO_PRETRANSFER_TIME_T, &us);
    return us > 0;
}

static bool repeats(const char *text, const char *p, size_t n)
{
    return n >= SECRET_MIN && memmem(text, strlen(text), p, n);
}

/* Returns whether a response repeats the value of a header from webhook-header-file, or its last
 * word, such as the token of "Bearer TOKEN". */
static bool repeats_header(const struct http *h, const char *text)
{
    for (size_t at = 0; at < h->extra.n; at += strlen(h->extra.p + at) + 1) {
        const char *colon = strstr(h->extra.p + at, ": ");
        const char *value = colon ? colon + 2 : h->extra.p + at, *word = strrchr(value, ' ');
        if (repeats(text, value, strlen(value)) ||
            (word && repeats(text, word + 1, strlen(word + 1))))
            return true;
    }
    return false;
}

/* Returns whether a response repeats a part of the URL that often holds a token: the path, a part
 * of it that may be a token, or a part of the query. */
static bool repeats_url(const struct http *h, const char *text)
{
    const char *host = strstr(h->base.cfg.url, "://") + 3;
    const char *path = host + strcspn(host, "/?#"), *query = path + strcspn(path, "?#");
    size_t n = (size_t)(query - path);
    if (n > 1 && memmem(text, strlen(text), path, n))
        return true;
    for (const char *p = path; *p;) {
        p += strspn(p, "/?#&=");
        size_t part = strcspn(p, "/?#&=");
        bool is_word = p < query && part <= WORD_MAX && strcspn(p, "0123456789") >= part;
        if (!is_word && repeats(text, p, part))
            return true;
        p += part;
    }
    return false;
}

/* Copies the beginning of a response as one clean line, or says why it is not shown. Searches more
 * than it shows, because an excerpt may end in the middle of a secret. */
static void excerpt(const struct request *r, char out[HTTP_EXCERPT])
{
    char heard[HTTP_HEARD + 1];
    size_t n = r->got < HTTP_HEARD ? r->got : HTTP_HEARD;
    n = text_clean(heard, sizeof heard, r->heard, n);
    if (repeats_header(r->h, heard) || repeats_url(r->h, heard))
        snprintf(out, HTTP_EXCERPT, "(not shown: the response repeats a secret)");
    else
        text_clean(out, HTTP_EXCERPT, heard, n);
}

/* Returns the result for a response's status. */
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
    if (res.status == SINK_DOWN || res.status == SINK_RETRY) {
        curl_off_t s = 0;
        curl_easy_getinfo(r->easy, CURLINFO_RETRY_AFTER, &s); /* in seconds or as a date */
        res.retry_after_ms = min_i64(max_i64(0, s), RETRY_AFTER_MAX_S) * 1000;
    }
    excerpt(r, said);
    snprintf(text, HTTP_TEXT, "%s: HTTP %ld%s%s%s", r->h->where, code, meanings[i].more,
             said[0] ? ": " : "", said);
    res.text = text;
    return res;
}

/* Writes why no response arrived. curl's text is the last resort: unlike ours, it gives no
 * advice. */
static void explain_failure(const struct request *r, CURLcode rc, char text[HTTP_TEXT])
{
    const char *said = curl_easy_strerror(rc);
    if (r->why[0])
        said = r->why;
    char why[CURL_ERROR_SIZE];
    text_clean(why, sizeof why, said, strlen(said));

    /* curl also reports out of memory if a header line is too long. */
    bool long_header = rc == CURLE_OUT_OF_MEMORY && was_sent(r);
    if (r->refused)
        snprintf(text, HTTP_TEXT,
                 "%s: will not connect to %s, a %s address; to allow it, set webhook-allow",
                 r->h->where, r->address, r->refused);
    else if (r->no_socket)
        snprintf(text, HTTP_TEXT,
                 "%s: could not create a socket: %s; the concurrency may exceed this process's "
                 "limit on open files",
                 r->h->where, strerror(r->no_socket));
    else if (r->got_headers > HTTP_HEADERS_MAX)
        snprintf(text, HTTP_TEXT, "%s: more than %d KiB of headers in a response", r->h->where,
                 HTTP_HEADERS_MAX / 1024);
    else if (long_header)
        snprintf(text, HTTP_TEXT, "%s: out of memory, or a header line of the response is too long",
                 r->h->where);
    else
        snprintf(text, HTTP_TEXT, "%s: %c%s", r->h->where, tolower((unsigned char)why[0]), why + 1);
}

/* Returns the result of a request without a response. If the request was never sent, the event is
 * not at fault. Otherwise the event may have crashed the endpoint, so the failure counts as an
 * attempt: if it did not, one event could block all others forever. */
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

struct sink_result http_request_result(const struct request *r, CURLcode rc, char text[HTTP_TEXT])
{
    long code = 0;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &code);
    /* A response longer than our limit is still a response. */
    bool cut = rc == CURLE_WRITE_ERROR && r->got >= HTTP_ANSWER_MAX;
    bool complete = rc == CURLE_OK || cut;
    bool understood = code >= 200 && code == r->said;
    if (complete && understood)
        return judge_status(r, code, text);
    if (complete)
        rc = CURLE_WEIRD_SERVER_REPLY;
    return judge_failure(r, rc, text);
}

struct sink_result http_request_late(const struct request *r, char text[HTTP_TEXT])
{
    char limit[32];
    struct sink_result res = {.status = was_sent(r) ? SINK_RETRY : SINK_DOWN, .text = text};
    res.native = CURLE_OPERATION_TIMEDOUT;
    text_duration_show(r->h->base.cfg.timeout_ms, limit);
    snprintf(text, HTTP_TEXT, "%s: %s within %s", r->h->where,
             was_sent(r) ? "no complete response" : "no connection", limit);
    return res;
}
