#include "event/cloudevents.h"

#include "base/char.h"
#include "base/clock.h"

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
        bool plain = char_is_visible(s.p[i]) && c != '"' && c != '%';
        if (plain)
            buf_addc(b, s.p[i]);
        else
            buf_add(b, enc, 3);
    }
}

static void add(struct writer *w, struct str name, struct str value)
{
    if (!value.p)
        return;
    buf_adds(w->b, w->binary ? "ce-" : ",\"");
    buf_addstr(w->b, name);
    buf_adds(w->b, w->binary ? ": " : "\":");
    if (w->binary)
        add_percent(w->b, value);
    else
        json_quote(w->b, value);
    if (w->binary)
        buf_addc(w->b, '\0');
}

/* subject is the key that order goes by: order/42. */
static void add_subject(struct writer *w, const struct event *ev)
{
    struct buf text;
    if (!ev->aggregate_id.p)
        return;
    buf_init(&text, ev->aggregate_type.n + 1 + ev->aggregate_id.n);
    buf_addstr(&text, ev->aggregate_type);
    buf_addc(&text, '/');
    buf_addstr(&text, ev->aggregate_id);
    if (text.failed)
        w->b->failed = true;
    else
        add(w, STR("subject"), (struct str){text.p, text.n});
    buf_release(&text);
}

static void add_version(struct writer *w, const struct event *ev)
{
    char text[24];
    struct buf b = {.p = text, .cap = sizeof text, .max = sizeof text};
    if (!ev->has_version)
        return;
    buf_addi64(&b, ev->version);
    add(w, STR("aggregateversion"), (struct str){text, b.n});
}

static bool is_hex(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((p[i] >= '0' && p[i] <= '9') || (p[i] >= 'a' && p[i] <= 'f')))
            return false;
    return true;
}

/* 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 */
static bool traceparent_ok(struct str v)
{
    return v.n == 55 && v.p[2] == '-' && v.p[35] == '-' && v.p[52] == '-' && is_hex(v.p, 2) &&
           is_hex(v.p + 3, 32) && is_hex(v.p + 36, 16) && is_hex(v.p + 53, 2);
}

static bool tracestate_ok(struct str v)
{
    for (size_t i = 0; i < v.n; i++)
        if ((unsigned char)v.p[i] < 0x20 || (unsigned char)v.p[i] > 0x7e)
            return false;
    return v.n > 0 && v.n <= TRACESTATE_MAX;
}

/* ---- which headers go along ---- */

/* is_name: CloudEvents allows small letters and digits only. What is called otherwise stays with
 * us. */
static bool is_name(struct str name)
{
    for (size_t i = 0; i < name.n; i++) {
        bool letter = name.p[i] >= 'a' && name.p[i] <= 'z';
        bool digit = name.p[i] >= '0' && name.p[i] <= '9';
        if (!letter && !digit)
            return false;
    }
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (str_is(name, ours[i]))
            return false;
    return name.n > 0;
}

/* put_header: of repeated names the last counts. */
static int put_header(struct cloudevents_headers *all, struct str name, struct json value,
                      struct error *err)
{
    size_t i = 0;
    while (i < all->n && !str_is(name, all->list[i].name))
        i++;
    if (i == EVENT_HEADERS_COUNT)
        return err_set(err, ERR_INVALID, "it has more headers than the %d that a request may have",
                       EVENT_HEADERS_COUNT);
    if (i == all->n) {
        memcpy(all->list[i].name, name.p, name.n);
        all->list[i].name[name.n] = '\0';
        all->n++;
    }
    all->list[i].value = value;
    return 0;
}

int cloudevents_headers(const struct event *ev, struct cloudevents_headers *ret, struct error *err)
{
    struct json all, value;
    struct str raw;
    ret->n = 0;
    if (!ev->headers.p || json_parse(ev->headers, &all, NULL, NULL) != 0)
        return 0;
    for (size_t it = 0; json_each(all, &it, &raw, &value);) {
        char text[CLOUDEVENTS_NAME_MAX];
        struct buf name = {.p = text, .cap = sizeof text, .max = sizeof text};
        if (raw.n < 2)
            continue; /* an array has no names */
        json_unescape(raw, &name);
        if (name.failed || !is_name((struct str){text, name.n}))
            continue;
        if (put_header(ret, (struct str){text, name.n}, value, err) != 0)
            return -1;
    }
    return 0;
}

/* is_fit: what W3C has a form for has that form, or stays with us. */
static bool is_fit(const char *name, struct str value)
{
    if (strcmp(name, "traceparent") == 0)
        return traceparent_ok(value);
    if (strcmp(name, "tracestate") == 0)
        return tracestate_ok(value);
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
            w->b->failed = true;
        else if (is_fit(name, text))
            add(w, str_of(name), text);
    }
    buf_release(&value);
}

static void add_all(struct writer *w, const struct event *ev, struct str source,
                    const struct cloudevents_headers *more)
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
    add_extensions(w, more);
}

void cloudevents_binary(struct buf *b, const struct event *ev, struct str source,
                        const struct cloudevents_headers *more)
{
    struct writer w = {b, true};
    add(&w, STR("specversion"), STR("1.0"));
    add_all(&w, ev, source, more);
}

void cloudevents_structured(struct buf *b, const struct event *ev, struct str source,
                            const struct cloudevents_headers *more)
{
    struct writer w = {b, false};
    (void)buf_reserve(b, ev->payload.n + 1024);
    buf_adds(b, "{\"specversion\":\"1.0\"");
    add_all(&w, ev, source, more);
    add(&w, STR("datacontenttype"), STR("application/json"));
    buf_adds(b, ",\"data\":");
    buf_addstr(b, ev->payload.p ? ev->payload : STR("null"));
    buf_addc(b, '}');
}

static void add_trace(struct buf *b, const char *name, struct json v)
{
    char text[TRACESTATE_MAX];
    struct buf value = {.p = text, .cap = sizeof text, .max = sizeof text};
    if (v.type != JSON_STRING)
        return;
    json_unescape(v.raw, &value);
    if (value.failed || !is_fit(name, (struct str){text, value.n}))
        return;
    buf_adds(b, name);
    buf_adds(b, ": ");
    buf_add(b, text, value.n);
    buf_addc(b, '\0');
}

void cloudevents_trace(struct buf *b, const struct cloudevents_headers *more)
{
    for (size_t i = 0; i < more->n; i++) {
        const char *name = more->list[i].name;
        bool trace = strcmp(name, "traceparent") == 0 || strcmp(name, "tracestate") == 0;
        if (trace)
            add_trace(b, name, more->list[i].value);
    }
}
