#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "sink/http_impl.h"

#define RETRY_AFTER_MAX_MS (INT64_C(3600) * 1000) /* nobody may silence us for longer with one header */

/* What a status means; the first line that fits counts. */
static const struct {
    long from, to;
    enum sink_status status;
    const char *more;
} meanings[] = {
    {200, 299, SINK_DELIVERED, ""},
    {300, 399, SINK_RETRY, "; redirects are not followed, so name the place it leads to"},
    {408, 408, SINK_RETRY, ""},
    {410, 410, SINK_PAUSE, "; the endpoint wants no more"},
    {425, 425, SINK_RETRY, ""},
    {429, 429, SINK_DOWN, ""},
    {400, 499, SINK_REJECT, ""}, /* or retry, as set */
    {503, 503, SINK_DOWN, ""},
    {0, 999, SINK_RETRY, ""},
};

static bool was_sent(const struct request *r)
{
    curl_off_t us = 0;
    curl_easy_getinfo(r->easy, CURLINFO_PRETRANSFER_TIME_T, &us);
    return us > 0;
}

static int64_t retry_after(const struct request *r)
{
    curl_off_t s = 0;
    curl_easy_getinfo(r->easy, CURLINFO_RETRY_AFTER, &s); /* of seconds and of a date */
    if (s <= 0) return 0;
    return s >= RETRY_AFTER_MAX_MS / 1000 ? RETRY_AFTER_MAX_MS : (int64_t)s * 1000;
}

/* echoes says whether a text repeats one of the headers that we were given in confidence. */
static bool echoes(const struct http *h, const char *text)
{
    for (size_t at = 0; at < h->extra.n; at += strlen(h->extra.p + at) + 1) {
        const char *value = strstr(h->extra.p + at, ": ") + 2;
        const char *word = strrchr(value, ' '); /* "Bearer TOKEN": the token counts */
        if (strstr(text, value) || (word && word[1] && strstr(text, word + 1))) return true;
    }
    return false;
}

/* excerpt makes one clean line of how an answer begins; empty when that is nothing to show. */
static void excerpt(const struct request *r, char out[HTTP_EXCERPT])
{
    size_t n = r->got < HTTP_EXCERPT - 1 ? r->got : HTTP_EXCERPT - 1, at = 0;
    memcpy(out, r->excerpt, n);
    out[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)out[i] < ' ' || out[i] == 0x7f) out[i] = ' ';
    while (n && out[n - 1] == ' ') out[--n] = '\0';
    while (!utf8_valid((struct str){out, n}, &at)) out[at] = '?';
    if (r->h->extra.n && echoes(r->h, out)) out[0] = '\0';
}

static struct sink_result judge_status(const struct request *r, long code, char text[HTTP_TEXT])
{
    size_t i = 0;
    char said[HTTP_EXCERPT];
    while (code < meanings[i].from || code > meanings[i].to) i++;
    struct sink_result res = {.status = meanings[i].status, .native = (int)code};
    if (res.status == SINK_DELIVERED) return res;
    if (res.status == SINK_REJECT && !r->h->o->reject_4xx) res.status = SINK_RETRY;
    if (res.status == SINK_DOWN || res.status == SINK_RETRY) res.retry_after_ms = retry_after(r);
    excerpt(r, said);
    snprintf(text, HTTP_TEXT, "%s: HTTP %ld%s%s%s", r->h->where, code, meanings[i].more, said[0] ? ": " : "", said);
    res.text = text;
    return res;
}

/* judge_failure: what never left us says nothing against the event. What did may have killed the other side, so that it
 * counts as an attempt, or one event could hold up all others for ever. */
static struct sink_result judge_failure(const struct request *r, CURLcode rc, char text[HTTP_TEXT])
{
    struct sink_result res = {.status = was_sent(r) ? SINK_RETRY : SINK_DOWN, .native = (int)rc, .text = text};
    const char *why = r->why[0] ? r->why : curl_easy_strerror(rc);
    if (rc == CURLE_OUT_OF_MEMORY) res.status = SINK_DOWN;
    if (r->refused)
        snprintf(text, HTTP_TEXT, "%s: will not connect to %s, a %s address; webhook-allow can permit it", r->h->where,
                 r->address, r->refused);
    else if (r->no_socket)
        snprintf(text, HTTP_TEXT, "%s: no socket: %s; this process may have too many files open for its concurrency",
                 r->h->where, strerror(r->no_socket));
    else snprintf(text, HTTP_TEXT, "%s: %c%s", r->h->where, tolower((unsigned char)why[0]), why + 1);
    return res;
}

struct sink_result http_judge(const struct request *r, CURLcode rc, char text[HTTP_TEXT])
{
    long code = 0;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &code);
    /* An answer that goes on beyond what we read is an answer. */
    bool cut = rc == CURLE_WRITE_ERROR && r->got >= HTTP_ANSWER_MAX;
    if ((rc == CURLE_OK || cut) && code >= 200 && code == r->said) return judge_status(r, code, text);
    return judge_failure(r, rc == CURLE_OK || cut ? CURLE_WEIRD_SERVER_REPLY : rc, text);
}

struct sink_result http_late(const struct request *r, char text[HTTP_TEXT])
{
    char limit[32];
    struct sink_result res = {.status = was_sent(r) ? SINK_RETRY : SINK_DOWN, .text = text};
    res.native = CURLE_OPERATION_TIMEDOUT;
    text_duration_show(r->h->base.cfg.timeout_ms, limit);
    snprintf(text, HTTP_TEXT, "%s: %s within %s", r->h->where, was_sent(r) ? "no whole answer" : "no connection",
             limit);
    return res;
}
