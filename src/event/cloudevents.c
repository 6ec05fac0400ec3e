#include "event/message.h"

#include "base/clock.h"
#include "base/utf8.h"

#define TRACESTATE_MAX 512 /* the minimum length that W3C requires to be passed on */
#define VALUE_MAX EVENT_HEADERS_MAX

/* How attributes are written: as headers, as JSON members, or through the caller's function. */
struct writer {
    cloudevents_fn *put;
    void *ctx;
    bool failed; /* out of memory */
};

/* Names that an event's header may not have, because these attributes are ours. */
static const char *const ours[] = {
    "specversion",     "id",         "source", "type",       "subject", "time",
    "datacontenttype", "dataschema", "data",   "database64", "tenant",  "aggregateversion",
};

/* Appends s. Bytes that a header cannot hold become %XX. */
static void add_percent(struct buf *b, struct str s)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        bool plain = char_is_visible(s.p[i]) && c != '"' && c != '%';
        if (plain)
            buf_addc(b, s.p[i]);
        else
            buf_add(b, (char[]){'%', hex[c >> 4], hex[c & 15]}, 3);
    }
}

static void add_header(void *ctx, struct str name, struct str value)
{
    struct buf *b = ctx;
    buf_adds(b, "ce-");
    buf_addstr(b, name);
    buf_adds(b, ": ");
    add_percent(b, value);
    buf_addc(b, '\0');
}

static void add_member(void *ctx, struct str name, struct str value)
{
    struct buf *b = ctx;
    buf_adds(b, ",\"");
    buf_addstr(b, name);
    buf_adds(b, "\":");
    json_quote(b, value);
}

/* Writes an attribute, unless it is absent. */
static void add_attribute(struct writer *w, struct str name, struct str value)
{
    if (value.p)
        w->put(w->ctx, name, value);
}

/* Writes the ordering key: order/42. */
static void add_subject(struct writer *w, const struct event *ev)
{
    if (!ev->aggregate_id.p)
        return;

    struct buf text;
    buf_init(&text, ev->aggregate_type.n + 1 + ev->aggregate_id.n);
    buf_addstr(&text, ev->aggregate_type);
    buf_addc(&text, '/');
    buf_addstr(&text, ev->aggregate_id);

    if (text.failed)
        w->failed = true;
    else
        add_attribute(w, STR("subject"), (struct str){text.p, text.n});
    buf_release(&text);
}

/* ---- the event's headers ---- */

/* Returns whether a header can become an attribute under its name: CloudEvents allows only
 * lower-case letters and digits, and some attributes are ours. */
static bool is_extension(struct str name)
{
    if (name.n == 0)
        return false;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (str_is(name, ours[i]))
            return false;
    for (size_t i = 0; i < name.n; i++) {
        bool allowed = char_is_lower(name.p[i]) || char_is_digit(name.p[i]);
        if (!allowed)
            return false;
    }
    return true;
}

int cloudevents_headers(const struct event *ev, struct cloudevents_headers *ret, struct error *err)
{
    struct json all, value;
    struct str raw;
    ret->n = 0;
    if (!event_headers_of(ev, &all))
        return 0;

    for (size_t it = 0; json_each(all, &it, &raw, &value);) {
        char text[CLOUDEVENTS_NAME_MAX];
        struct buf b = {.p = text, .cap = sizeof text, .max = sizeof text};
        json_unescape(raw, &b);
        struct str name = {text, b.n};
        if (b.failed || !is_extension(name))
            continue;

        size_t i = 0;
        while (i < ret->n && !str_is(name, ret->list[i].name))
            i++;
        if (i == EVENT_HEADERS_COUNT)
            return err_set(err, ERR_INVALID,
                           "the event has too many headers; a request may have %d",
                           EVENT_HEADERS_COUNT);
        if (i == ret->n) {
            memcpy(ret->list[i].name, name.p, name.n);
            ret->list[i].name[name.n] = '\0';
            ret->n++;
        }
        ret->list[i].value = value; /* of duplicates, the last one applies */
    }
    return 0;
}

/* Returns whether a value has the form that W3C defines for headers with this name. A tracestate is
 * checked only for its length, and for bytes that a header line cannot hold. */
static bool is_fit(const char *name, struct str v)
{
    static const char traceparent[] = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
    if (strcmp(name, "traceparent") == 0) {
        if (v.n != sizeof traceparent - 1)
            return false;
        for (size_t i = 0; i < v.n; i++) {
            bool is_hex = char_is_digit(v.p[i]) || char_is_between(v.p[i], 'a', 'f');
            bool fits = traceparent[i] == 'x' ? is_hex : v.p[i] == traceparent[i];
            if (!fits)
                return false;
        }
    }
    if (strcmp(name, "tracestate") == 0) {
        if (v.n == 0 || v.n > TRACESTATE_MAX)
            return false;
        for (size_t i = 0; i < v.n; i++)
            if (v.p[i] != ' ' && !char_is_visible(v.p[i]))
                return false;
    }
    return true;
}

/* ---- attributes ---- */

static void add_extensions(struct writer *w, const struct cloudevents_headers *more)
{
    struct buf value;
    buf_init(&value, VALUE_MAX);
    for (size_t i = 0; i < more->n; i++) {
        const char *name = more->list[i].name;
        struct json v = more->list[i].value;
        if (v.type != JSON_STRING)
            continue;
        buf_clear(&value);
        json_unescape(v.raw, &value);
        struct str text = {value.p ? value.p : "", value.n};
        if (value.failed)
            w->failed = true;
        else if (is_fit(name, text))
            add_attribute(w, str_of(name), text);
    }
    buf_release(&value);
}

int cloudevents_each(const struct event *ev, struct str source,
                     const struct cloudevents_headers *more, cloudevents_fn *fn, void *ctx,
                     struct error *err)
{
    struct writer w = {fn, ctx, false};
    char created[CLOCK_RFC3339_SIZE];
    size_t n = clock_rfc3339(ev->created_at, created);

    add_attribute(&w, STR("specversion"), STR("1.0"));
    add_attribute(&w, STR("id"), ev->id);
    add_attribute(&w, STR("source"), source);
    add_attribute(&w, STR("type"), ev->type);
    add_subject(&w, ev);
    add_attribute(&w, STR("time"), (struct str){created, n});
    if (ev->tenant.n > 0)
        add_attribute(&w, STR("tenant"), ev->tenant);
    if (ev->has_version) {
        char text[24];
        struct buf b = {.p = text, .cap = sizeof text, .max = sizeof text};
        buf_addi64(&b, ev->version);
        add_attribute(&w, STR("aggregateversion"), (struct str){text, b.n});
    }
    add_extensions(&w, more);
    if (w.failed)
        return err_nomem(err);
    return 0;
}

void cloudevents_binary(struct buf *b, const struct event *ev, struct str source,
                        const struct cloudevents_headers *more)
{
    if (cloudevents_each(ev, source, more, add_header, b, NULL) != 0)
        b->failed = true;
}

void cloudevents_structured(struct buf *b, const struct event *ev, struct str source,
                            const struct cloudevents_headers *more)
{
    size_t start = b->n;
    (void)buf_reserve(b, ev->payload.n + 1024);
    if (cloudevents_each(ev, source, more, add_member, b, NULL) != 0)
        b->failed = true;
    buf_adds(b, ",\"datacontenttype\":\"application/json\",\"data\":");
    buf_addstr(b, ev->payload.p ? ev->payload : STR("null"));
    buf_addc(b, '}');
    if (!b->failed)
        b->p[start] = '{'; /* in place of the first comma */
}

static void add_trace(void *ctx, struct str name, struct str value)
{
    struct buf *b = ctx;
    bool trace = str_is(name, "traceparent") || str_is(name, "tracestate");
    if (!trace)
        return;
    buf_addstr(b, name);
    buf_adds(b, ": ");
    buf_addstr(b, value);
    buf_addc(b, '\0');
}

void cloudevents_trace(struct buf *b, const struct cloudevents_headers *more)
{
    struct writer w = {add_trace, b, false};
    add_extensions(&w, more);
    if (w.failed)
        b->failed = true;
}
