#include "event/message.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/uuid7.h"
#include "event/cloudevents.h"
#include "event/envelope.h"
#include "event/ndjson.h"

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

/* A string under construction: borrowed, or an offset into the text, which may move as it grows. */
struct piece {
    const char *p; /* NULL: it is in the text */
    size_t at, n;
};

/* A message under construction. (1) headers[0..n) are complete. */
struct maker {
    const struct message_style *style;
    const struct event *ev;
    struct str destination, consumer;
    int attempt;
    struct buf *text;
    struct {
        struct piece name, value;
    } headers[MESSAGE_HEADERS];
    size_t n;
    bool too_many;
};

static struct piece borrowed(struct str s)
{
    return (struct piece){.p = s.p, .n = s.n};
}

static struct str resolve(const struct maker *m, struct piece piece)
{
    if (piece.p)
        return (struct str){piece.p, piece.n};
    if (piece.n == 0)
        return STR("");
    return (struct str){m->text->p + piece.at, piece.n};
}

/* Returns the part of the text after its first `at` bytes. */
static struct piece since(const struct maker *m, size_t at)
{
    return (struct piece){.at = at, .n = m->text->n - at};
}

/* Adds a header, or replaces the value of the header with the same name. */
static void put(struct maker *m, struct piece name, struct piece value)
{
    struct str text = resolve(m, name);
    size_t i = 0;
    while (i < m->n && !str_eq(resolve(m, m->headers[i].name), text))
        i++;
    if (i == MESSAGE_HEADERS) {
        m->too_many = true;
        return;
    }
    m->headers[i].name = name;
    m->headers[i].value = value;
    if (i == m->n)
        m->n++;
}

/* Adds a header, unless its value is absent. */
static void put_text(struct maker *m, struct str name, struct str value)
{
    if (value.p)
        put(m, borrowed(name), borrowed(value));
}

static void put_number(struct maker *m, struct str name, int64_t value)
{
    size_t at = m->text->n;
    buf_addi64(m->text, value);
    put(m, borrowed(name), since(m, at));
}

/* Adds one of the event's own headers, unless its name is reserved. A value that is not a string,
 * which is possible only if checks were disabled, is sent as its JSON text. */
static void put_own(struct maker *m, struct str raw, struct json v)
{
    size_t at = m->text->n;
    json_unescape(raw, m->text);
    struct piece name = since(m, at);
    if (m->text->failed)
        return;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (str_is(resolve(m, name), ours[i]))
            return;

    if (v.type != JSON_STRING) {
        put(m, name, borrowed(v.raw));
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
        put(m, borrowed(STR("key")), since(m, key));
    }
    put_number(m, STR("seq"), ev->seq);
    if (ev->has_version)
        put_number(m, STR("version"), ev->version);

    char created[CLOCK_RFC3339_SIZE];
    size_t at = m->text->n;
    buf_add(m->text, created, clock_rfc3339(ev->created_at, created));
    put(m, borrowed(STR("time")), since(m, at));
    put_text(m, STR("tenant"), ev->tenant);

    struct json all, value;
    struct str raw;
    bool has_headers = ev->headers.p && json_parse(ev->headers, &all, NULL, NULL) == 0;
    if (!has_headers || all.type != JSON_OBJECT)
        return 0;
    for (size_t it = 0; json_each(all, &it, &raw, &value);)
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
    struct piece prefixed = since(m, at);
    at = m->text->n;
    buf_addstr(m->text, value);
    struct piece copy = since(m, at);
    put(m, prefixed, copy);

    if (str_is(name, "traceparent"))
        put(m, borrowed(STR("traceparent")), copy);
    if (str_is(name, "tracestate"))
        put(m, borrowed(STR("tracestate")), copy);
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
    ndjson_write(m->text, m->ev, m->consumer, m->attempt);
    bool whole = !m->text->failed && m->text->n > 0;
    if (whole)
        m->text->n--; /* a message has no line feed */
    return 0;
}

static int write_envelope(struct maker *m, struct error *err)
{
    (void)err;
    envelope_write(m->text, m->ev, m->destination);
    return 0;
}

/* The parts of a message in each format: its headers, and its value, which is the payload if
 * write_value is NULL. */
static const struct {
    struct str content_type;
    int (*put_headers)(struct maker *m, struct error *err);
    int (*write_value)(struct maker *m, struct error *err);
} formats[] = {
    [MESSAGE_PLAIN] = {STR("application/json"), put_plain, NULL},
    [MESSAGE_CLOUDEVENTS] = {STR("application/json"), put_attributes, NULL},
    [MESSAGE_STRUCTURED] = {STR("application/cloudevents+json"), NULL, write_structured},
    [MESSAGE_DEBEZIUM] = {{NULL, 0}, put_id, NULL},
    [MESSAGE_JSON] = {STR("application/json"), NULL, write_json},
    [MESSAGE_CONTRACT] = {STR("application/json"), NULL, write_envelope},
};

int message_make(const struct message_style *s, const struct event *ev, struct str destination,
                 struct str consumer, int attempt, struct buf *text, struct message *ret,
                 struct error *err)
{
    struct message_style style = *s;
    if (!style.source.p)
        style.source = STR("/outbox"); /* required by CloudEvents */
    struct maker m;                    /* too large to initialize as a whole */
    m.style = &style;
    m.ev = ev;
    m.destination = destination;
    m.consumer = consumer;
    m.attempt = attempt;
    m.text = text;
    m.n = 0;
    m.too_many = false;

    buf_clear(text);
    if (formats[s->format].put_headers && formats[s->format].put_headers(&m, err) != 0)
        return -1;
    size_t at = text->n;
    if (formats[s->format].write_value && formats[s->format].write_value(&m, err) != 0)
        return -1;
    if (m.too_many)
        return err_set(err, ERR_INVALID, "it has more headers than the %d that a message may have",
                       MESSAGE_HEADERS);
    if (text->full)
        return err_set(err, ERR_INVALID, "it takes more than %zu bytes", text->max);
    if (text->failed)
        return err_nomem(err);

    /* The text no longer moves. */
    ret->key = ev->aggregate_id;
    ret->content_type = formats[s->format].content_type;
    ret->value = ev->payload.p ? ev->payload : STR("null");
    if (text->n > at)
        ret->value = (struct str){text->p + at, text->n - at};
    ret->n = m.n;
    for (size_t i = 0; i < m.n; i++)
        ret->headers[i] = (struct message_header){resolve(&m, m.headers[i].name),
                                                  resolve(&m, m.headers[i].value)};
    return 0;
}

struct str message_header_of(const struct message *m, struct str name)
{
    for (size_t i = 0; i < m->n; i++)
        if (str_eq(m->headers[i].name, name))
            return m->headers[i].value;
    return (struct str){0};
}

/* ---- reading ---- */

/* Prefixes of CloudEvents attributes in headers: those of Kafka, NATS, and AMQP, which has two. */
static const char *const prefixes[] = {"ce_", "ce-", "cloudEvents:", "cloudEvents_"};
#define PREFIXES (sizeof prefixes / sizeof prefixes[0])
#define NAME_MAX_BYTES 64

static struct str attribute(const struct message *m, const char *prefix, struct str name)
{
    char text[NAME_MAX_BYTES];
    struct buf b = {.p = text, .cap = sizeof text, .max = sizeof text};
    buf_adds(&b, prefix);
    buf_addstr(&b, name);
    return message_header_of(m, (struct str){text, b.n});
}

/* Reads the headers of the plain, debezium and binary CloudEvents formats. */
static bool read_headers(const struct message *m, struct message_facts *ret)
{
    for (size_t i = 0; i < PREFIXES; i++) {
        struct str id = attribute(m, prefixes[i], STR("id"));
        if (!id.p)
            continue;
        *ret = (struct message_facts){
            .format = MESSAGE_CLOUDEVENTS,
            .id = id,
            .type = attribute(m, prefixes[i], STR("type")),
            .key = attribute(m, prefixes[i], STR("subject")),
        };
        return true;
    }
    *ret = (struct message_facts){
        .format = MESSAGE_DEBEZIUM,
        .id = message_header_of(m, STR("id")),
        .type = message_header_of(m, STR("type")),
        .key = message_header_of(m, STR("key")),
    };
    if (ret->type.p)
        ret->format = MESSAGE_PLAIN;
    return ret->id.p != NULL;
}

/* The formats that are one JSON object: the first format whose member `mark` is present applies.
 * The key is one member, or two members joined by a slash. */
static const struct object_form {
    const char *mark;
    enum message_format format;
    const char *id, *type, *key, *key_end;
} object_forms[] = {
    {"specversion", MESSAGE_STRUCTURED, "id", "type", "subject", NULL},
    {"event_id", MESSAGE_CONTRACT, "event_id", "topic", "aggregate_kind", "aggregate_id"},
    {"id", MESSAGE_JSON, "id", "type", "aggregate_type", "aggregate_id"},
};

/* Unescapes a string member into the text, which has room for it. */
static struct str text_of(struct json o, const char *name, struct buf *text)
{
    struct json v;
    bool found = json_get(o, str_of(name), &v) && v.type == JSON_STRING;
    if (!found)
        return (struct str){0};
    size_t at = text->n;
    json_unescape(v.raw, text);
    return (struct str){text->p + at, text->n - at};
}

static bool read_object(struct json o, struct buf *text, struct message_facts *ret)
{
    const struct object_form *form = object_forms;
    const struct object_form *end = form + sizeof object_forms / sizeof object_forms[0];
    while (form < end && !text_of(o, form->mark, text).p)
        form++;
    if (form == end)
        return false;

    *ret = (struct message_facts){.format = form->format,
                                  .id = text_of(o, form->id, text),
                                  .type = text_of(o, form->type, text)};
    size_t at = text->n;
    ret->key = text_of(o, form->key, text);
    if (form->key_end && ret->key.p) {
        buf_addc(text, '/');
        struct str last = text_of(o, form->key_end, text);
        ret->key = (struct str){last.p ? text->p + at : NULL, text->n - at};
    }
    return ret->id.p != NULL;
}

int message_read(const struct message *m, struct buf *text, struct message_facts *ret,
                 struct error *err)
{
    buf_clear(text);
    /* The text does not outgrow this size, so it is never reallocated. */
    if (!buf_reserve(text, 2 * m->value.n + 16))
        return err_nomem(err);

    struct message_facts facts;
    bool read = read_headers(m, &facts);
    struct json o;
    bool look_inside = !read && json_parse(m->value, &o, NULL, NULL) == 0;
    if (look_inside && o.type == JSON_OBJECT)
        read = read_object(o, text, &facts);
    bool found = read && uuid7_valid(facts.id);
    if (!found)
        return err_set(err, ERR_INVALID, "it contains no event id in any of the formats");
    *ret = facts;
    return 0;
}
