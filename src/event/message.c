#include "event/message.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/num.h"
#include "event/event_json.h"

const char *const message_formats[] = {
    [MESSAGE_PLAIN] = "plain",
    [MESSAGE_CLOUDEVENTS] = "cloudevents",
    [MESSAGE_STRUCTURED] = "cloudevents-structured",
    [MESSAGE_DEBEZIUM] = "debezium",
    [MESSAGE_JSON] = "json",
    [MESSAGE_CONTRACT] = "contract",
    NULL,
};

/* The headers of MESSAGE_PLAIN. An event's own headers cannot replace them. */
static const char *const ours[] = {
    "id", "type", "aggregate_type", "aggregate_id", "key", "seq", "version", "time", "tenant",
};

/* A message under construction. (1) `text` has room for everything that headers add to it, so it
 * does not move under them. */
struct maker {
    const struct message_style *style;
    const struct event *ev;
    struct str destination, consumer;
    int attempt;
    struct buf *text;
    struct message *ret;
    bool too_many;
};

/* Returns the part of the text after its first `at` bytes. */
static struct str since(const struct maker *m, size_t at)
{
    return (struct str){m->text->p + at, m->text->n - at};
}

/* Adds a header, or replaces the value of the header with the same name. */
static void put(struct maker *m, struct str name, struct str value)
{
    struct message *msg = m->ret;
    size_t i = 0;
    while (i < msg->n && !str_eq(msg->headers[i].name, name))
        i++;
    if (i == MESSAGE_HEADERS) {
        m->too_many = true;
        return;
    }
    msg->headers[i] = (struct message_header){name, value};
    if (i == msg->n)
        msg->n++;
}

/* Adds a header, unless its value is absent. */
static void put_text(struct maker *m, struct str name, struct str value)
{
    if (value.p)
        put(m, name, value);
}

static void put_number(struct maker *m, struct str name, int64_t value)
{
    size_t at = m->text->n;
    buf_addi64(m->text, value);
    put(m, name, since(m, at));
}

/* Adds one of the event's own headers, unless its name is reserved. A value that is not a string,
 * which is possible only if checks were disabled, is sent as its JSON text. */
static void put_own(struct maker *m, struct str raw, struct json v)
{
    size_t at = m->text->n;
    json_unescape(raw, m->text);
    struct str name = since(m, at);
    if (m->text->failed)
        return;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (str_is(name, ours[i]))
            return;

    if (v.type != JSON_STRING) {
        put(m, name, v.raw);
        return;
    }
    at = m->text->n;
    json_unescape(v.raw, m->text);
    put(m, name, since(m, at));
}

static int put_plain(struct maker *m, struct error *err)
{
    const struct event *ev = m->ev;
    (void)err;
    put_text(m, STR("id"), ev->id);
    put_text(m, STR("type"), ev->type);
    put_text(m, STR("aggregate_type"), ev->aggregate_type);
    put_text(m, STR("aggregate_id"), ev->aggregate_id);
    if (ev->aggregate_id.p) {
        size_t key = m->text->n;
        buf_addstr(m->text, ev->aggregate_type);
        buf_addc(m->text, '/');
        buf_addstr(m->text, ev->aggregate_id);
        put(m, STR("key"), since(m, key));
    }
    put_number(m, STR("seq"), ev->seq);
    if (ev->has_version)
        put_number(m, STR("version"), ev->version);

    char created[CLOCK_RFC3339_SIZE];
    size_t at = m->text->n;
    buf_add(m->text, created, clock_rfc3339(ev->created_at, created));
    put(m, STR("time"), since(m, at));
    put_text(m, STR("tenant"), ev->tenant);

    struct json all, value;
    struct str raw;
    bool has_headers = event_headers_of(ev, &all);
    for (size_t it = 0; has_headers && json_each(all, &it, &raw, &value);)
        put_own(m, raw, value);
    return 0;
}

static int put_id(struct maker *m, struct error *err)
{
    (void)err;
    put_text(m, STR("id"), m->ev->id);
    return 0;
}

/* Adds an attribute of a CloudEvent. Trace headers are also sent under the W3C names, which tracing
 * tools look for. */
static void put_attribute(void *ctx, struct str name, struct str value)
{
    struct maker *m = ctx;
    size_t at = m->text->n;
    buf_adds(m->text, m->style->ce_prefix);
    buf_addstr(m->text, name);
    struct str prefixed = since(m, at);
    at = m->text->n;
    buf_addstr(m->text, value);
    struct str copy = since(m, at);
    put(m, prefixed, copy);

    if (str_is(name, "traceparent"))
        put(m, STR("traceparent"), copy);
    if (str_is(name, "tracestate"))
        put(m, STR("tracestate"), copy);
}

static int put_attributes(struct maker *m, struct error *err)
{
    struct cloudevents_headers more;
    if (cloudevents_headers(m->ev, &more, err) != 0)
        return -1;
    return cloudevents_each(m->ev, m->style->source, &more, put_attribute, m, err);
}

static int write_structured(struct maker *m, struct error *err)
{
    struct cloudevents_headers more;
    if (cloudevents_headers(m->ev, &more, err) != 0)
        return -1;
    cloudevents_structured(m->text, m->ev, m->style->source, &more);
    return 0;
}

static int write_json(struct maker *m, struct error *err)
{
    (void)err;
    event_line_write(m->text, m->ev, m->consumer, m->attempt);
    bool whole = !m->text->failed && m->text->n > 0;
    if (whole)
        m->text->n--; /* a message has no line feed */
    return 0;
}

static int write_envelope(struct maker *m, struct error *err)
{
    (void)err;
    event_envelope_write(m->text, m->ev, m->destination);
    return 0;
}

/* What a format writes: headers, beside the payload, or a text that is the value. */
static const struct {
    struct str content_type;
    int (*write)(struct maker *m, struct error *err);
    bool is_value;
} formats[] = {
    [MESSAGE_PLAIN] = {STR("application/json"), put_plain, false},
    [MESSAGE_CLOUDEVENTS] = {STR("application/json"), put_attributes, false},
    [MESSAGE_STRUCTURED] = {STR("application/cloudevents+json"), write_structured, true},
    [MESSAGE_DEBEZIUM] = {{NULL, 0}, put_id, false},
    [MESSAGE_JSON] = {STR("application/json"), write_json, true},
    [MESSAGE_CONTRACT] = {STR("application/json"), write_envelope, true},
};

/* Returns an upper bound on the bytes that headers add to the text: the event's fields and headers,
 * and a prefix and a name for each. */
static size_t headers_bound(const struct message_style *s, const struct event *ev)
{
    size_t each = CLOUDEVENTS_NAME_MAX;
    if (s->ce_prefix)
        each += strlen(s->ce_prefix);
    return event_bytes(ev) - ev->payload.n + ev->tenant.n + s->source.n + MESSAGE_HEADERS * each;
}

int message_make(const struct message_style *s, const struct event *ev, struct str destination,
                 struct str consumer, int attempt, struct buf *text, struct message *ret,
                 struct error *err)
{
    struct message_style style = *s;
    if (!style.source.p)
        style.source = STR("/outbox"); /* required by CloudEvents */
    struct maker m = {&style, ev, destination, consumer, attempt, text, ret, false};
    bool is_value = formats[s->format].is_value;

    buf_clear(text);
    if (!is_value)
        (void)buf_reserve(text, min_size(headers_bound(&style, ev), text->max));
    ret->n = 0;
    if (formats[s->format].write(&m, err) != 0)
        return -1;
    if (m.too_many)
        return err_set(err, ERR_INVALID, "the event has too many headers; a message may have %d",
                       MESSAGE_HEADERS);
    if (text->full)
        return err_set(err, ERR_INVALID, "the message takes more than %zu bytes", text->max);
    if (text->failed)
        return err_nomem(err);

    ret->key = ev->aggregate_id;
    ret->content_type = formats[s->format].content_type;
    ret->value = ev->payload.p ? ev->payload : STR("null");
    if (is_value)
        ret->value = (struct str){text->p, text->n};
    return 0;
}

struct str message_header_of(const struct message *m, struct str name)
{
    for (size_t i = 0; i < m->n; i++)
        if (str_eq(m->headers[i].name, name))
            return m->headers[i].value;
    return (struct str){0};
}
