/* http_request.c: builds requests: header lines, signature and body. */
#include <string.h>

#include "base/json.h"
#include "event/cloudevents.h"
#include "sink/http_impl.h"

#define ID_MAX 255 /* bytes; a UUID has 36 */

/* Writes the header lines of a request, each ending with a NUL. */
static void add_lines(struct http *h, struct request *r, const struct cloudevents_headers *more,
                      struct str body)
{
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
    buf_addf(b, "Expect:%c", 0); /* send large bodies without asking first */
    if (!structured)
        cloudevents_binary(b, ev, h->source, more);
    cloudevents_trace(b, more);
    buf_add(b, h->extra.p, h->extra.n);
}

/* Builds curl's list; false if there are too many lines. */
static bool link_lines(struct request *r)
{
    const struct buf *b = &r->head;
    size_t n = 0, at = 0;
    while (at < b->n) {
        if (n == HTTP_LINES_MAX)
            return false;
        char *line = b->p + at;
        r->lines[n] = (struct curl_slist){line, NULL};
        if (n > 0)
            r->lines[n - 1].next = &r->lines[n];
        n++;
        at += strlen(line) + 1;
    }
    return true;
}

/* Limits header values to the sizes allowed in events. Values in JSON must be UTF-8 instead. */
static int check_text(const struct http *h, const char *name, struct str s, size_t max,
                      struct error *err)
{
    if (h->o->mode == HTTP_BINARY) {
        if (s.n > max)
            return err_set(err, ERR_INVALID,
                           "its %s has %zu bytes; a header line may have %zu of it", name, s.n,
                           max);
        return 0;
    }
    if (s.n && !utf8_valid(s, NULL))
        return err_set(err, ERR_INVALID, "its %s is not UTF-8", name);
    return 0;
}

/* Refuses, with ERR_INVALID, events that no request can express. */
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
        return err_set(err, ERR_INVALID, "its id cannot be put into a header line");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (check_text(h, texts[i].name, texts[i].text, texts[i].max, err) != 0)
            return -1;
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

    /* The body is the event as JSON, or its payload alone. */
    const struct event *ev = r->f.d->ev;
    struct str body = ev->payload.p ? ev->payload : STR("null");
    buf_clear(&r->body);
    if (h->o->mode == HTTP_STRUCTURED) {
        cloudevents_structured(&r->body, ev, h->source, &more);
        body = (struct str){r->body.p, r->body.n};
    }
    add_lines(h, r, &more, body);
    if (r->head.full)
        return err_set(err, ERR_INVALID, "its headers take more than %zu bytes", HTTP_HEAD_MAX);
    if (r->body.full)
        return err_set(err, ERR_INVALID, "it takes more than %zu bytes", HTTP_BODY_MAX);
    if (r->head.failed || r->body.failed)
        return err_nomem(err);
    if (!link_lines(r))
        return err_set(err, ERR_INVALID, "the event has too many headers for a request");

    curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, r->lines);
    curl_easy_setopt(r->easy, CURLOPT_POSTFIELDS, body.p);
    curl_easy_setopt(r->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body.n);
    return 0;
}
