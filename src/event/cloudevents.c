#include "event/cloudevents.h"

#include "base/clock.h"
#include "base/json.h"

#define NAME_MAX_ 20       /* of an extension attribute */
#define TRACESTATE_MAX 512 /* what W3C asks everyone to pass on */
#define VALUE_MAX EVENT_HEADERS_MAX

/* How an attribute is written: as a header or as a member. */
struct writer {
    struct buf *b;
    bool binary;
};

/* What an event's own header may not be called: these are said by us. */
static const char *const ours[] = {
    "specversion",     "id",         "source", "type",       "subject", "time",
    "datacontenttype", "dataschema", "data",   "database64", "tenant",  "aggregateversion",
};

static void add_percent(struct buf *b, struct str s)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        char enc[3] = {'%', hex[c >> 4], hex[c & 15]};
        if (c > 0x20 && c < 0x7f && c != '"' && c != '%') buf_addc(b, (char)c);
        else buf_add(b, enc, 3);
    }
}

static void add(struct writer *w, struct str name, struct str value)
{
    if (!value.p) return;
    buf_adds(w->b, w->binary ? "ce-" : ",\"");
    buf_addstr(w->b, name);
    buf_adds(w->b, w->binary ? ": " : "\":");
    if (w->binary) add_percent(w->b, value);
    else json_quote(w->b, value);
    if (w->binary) buf_addc(w->b, '\0');
}

/* subject is the key that order goes by: order/42. */
static void add_subject(struct writer *w, const struct event *ev)
{
    struct buf text;
    if (!ev->aggregate_id.p) return;
    buf_init(&text, ev->aggregate_type.n + 1 + ev->aggregate_id.n);
    buf_addstr(&text, ev->aggregate_type);
    buf_addc(&text, '/');
    buf_addstr(&text, ev->aggregate_id);
    if (text.failed) w->b->failed = true;
    else add(w, STR("subject"), (struct str){text.p, text.n});
    buf_release(&text);
}

static void add_version(struct writer *w, const struct event *ev)
{
    char text[24];
    struct buf b = {.p = text, .cap = sizeof text, .max = sizeof text};
    if (!ev->has_version) return;
    buf_addi64(&b, ev->version);
    add(w, STR("aggregateversion"), (struct str){text, b.n});
}

static bool is_hex(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((p[i] >= '0' && p[i] <= '9') || (p[i] >= 'a' && p[i] <= 'f'))) return false;
    return true;
}

/* 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 */
static bool traceparent_ok(struct str v)
{
    return v.n == 55 && v.p[2] == '-' && v.p[35] == '-' && v.p[52] == '-' && is_hex(v.p, 2) && is_hex(v.p + 3, 32) &&
           is_hex(v.p + 36, 16) && is_hex(v.p + 53, 2);
}

static bool tracestate_ok(struct str v)
{
    for (size_t i = 0; i < v.n; i++)
        if ((unsigned char)v.p[i] < 0x20 || (unsigned char)v.p[i] > 0x7e) return false;
    return v.n > 0 && v.n <= TRACESTATE_MAX;
}

/* is_extension: CloudEvents allows small letters and digits only. What is called otherwise stays with us. */
static bool is_extension(struct str name, struct str value)
{
    if (name.n == 0 || name.n > NAME_MAX_) return false;
    for (size_t i = 0; i < name.n; i++)
        if (!((name.p[i] >= 'a' && name.p[i] <= 'z') || (name.p[i] >= '0' && name.p[i] <= '9'))) return false;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (str_is(name, ours[i])) return false;
    if (str_is(name, "traceparent")) return traceparent_ok(value);
    if (str_is(name, "tracestate")) return tracestate_ok(value);
    return true;
}

static void add_extensions(struct writer *w, const struct event *ev)
{
    struct json all, v;
    struct str raw;
    struct buf value;
    size_t it = 0;
    if (!ev->headers.p || json_parse(ev->headers, &all, NULL, NULL) != 0) return;
    buf_init(&value, VALUE_MAX);
    while (json_each(all, &it, &raw, &v)) {
        if (v.type != JSON_STRING || raw.n < 2) continue;
        struct str name = {raw.p + 1, raw.n - 2};
        struct json last; /* of repeated names the last counts */
        if (!json_get(all, name, &last) || last.raw.p != v.raw.p) continue;
        buf_clear(&value);
        json_unescape(v.raw, &value);
        struct str text = {value.p ? value.p : "", value.n};
        if (value.failed) w->b->failed = true;
        else if (is_extension(name, text)) add(w, name, text);
    }
    buf_release(&value);
}

static void add_all(struct writer *w, const struct event *ev, struct str source)
{
    char created[CLOCK_RFC3339_SIZE];
    size_t n = clock_rfc3339(ev->created_at, created);
    add(w, STR("id"), ev->id);
    add(w, STR("source"), source);
    add(w, STR("type"), ev->type);
    add_subject(w, ev);
    add(w, STR("time"), (struct str){created, n});
    add(w, STR("tenant"), ev->tenant.n ? ev->tenant : (struct str){0});
    add_version(w, ev);
    add_extensions(w, ev);
}

void cloudevents_binary(struct buf *b, const struct event *ev, struct str source)
{
    struct writer w = {b, true};
    add(&w, STR("specversion"), STR("1.0"));
    add_all(&w, ev, source);
}

void cloudevents_structured(struct buf *b, const struct event *ev, struct str source)
{
    struct writer w = {b, false};
    (void)buf_reserve(b, ev->payload.n + 1024);
    buf_adds(b, "{\"specversion\":\"1.0\"");
    add_all(&w, ev, source);
    add(&w, STR("datacontenttype"), STR("application/json"));
    buf_adds(b, ",\"data\":");
    buf_addstr(b, ev->payload.p ? ev->payload : STR("null"));
    buf_addc(b, '}');
}

static void add_trace(struct buf *b, struct json all, const char *name, bool (*ok)(struct str))
{
    char text[TRACESTATE_MAX];
    struct buf value = {.p = text, .cap = sizeof text, .max = sizeof text};
    struct json v;
    if (!json_get(all, str_of(name), &v) || v.type != JSON_STRING) return;
    json_unescape(v.raw, &value);
    if (value.failed || !ok((struct str){text, value.n})) return;
    buf_addf(b, "%s: ", name);
    buf_add(b, text, value.n);
    buf_addc(b, '\0');
}

void cloudevents_trace(struct buf *b, const struct event *ev)
{
    struct json all;
    if (!ev->headers.p || json_parse(ev->headers, &all, NULL, NULL) != 0) return;
    add_trace(b, all, "traceparent", traceparent_ok);
    add_trace(b, all, "tracestate", tracestate_ok);
}
