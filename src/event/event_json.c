#include "event/event_json.h"

#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"

/* Size of the JSON apart from the event's strings: keys, punctuation, numbers, the time. */
#define OVERHEAD 320

#define ADD(b, literal) buf_add(b, literal, sizeof(literal) - 1)

/* ---- writing ---- */

static void add_string(struct buf *b, struct str s)
{
    if (s.p)
        json_quote(b, s);
    else
        ADD(b, "null");
}

static void add_version(struct buf *b, const struct event *ev)
{
    if (ev->has_version)
        buf_addi64(b, ev->version);
    else
        ADD(b, "null");
}

static void add_json(struct buf *b, struct str s, struct str absent)
{
    if (s.p)
        json_flat(b, s);
    else
        buf_addstr(b, absent);
}

void event_line_write(struct buf *b, const struct event *ev, struct str consumer, int attempt)
{
    char at[CLOCK_RFC3339_SIZE];
    buf_expect(b, event_bytes(ev) + consumer.n + OVERHEAD);
    ADD(b, "{\"id\":");
    add_string(b, ev->id);
    ADD(b, ",\"seq\":");
    buf_addi64(b, ev->seq);
    ADD(b, ",\"type\":");
    add_string(b, ev->type);
    ADD(b, ",\"aggregate_type\":");
    add_string(b, ev->aggregate_type);
    ADD(b, ",\"aggregate_id\":");
    add_string(b, ev->aggregate_id);
    ADD(b, ",\"version\":");
    add_version(b, ev);
    ADD(b, ",\"payload\":");
    add_json(b, ev->payload, STR("null"));
    ADD(b, ",\"headers\":");
    add_json(b, ev->headers, STR("{}"));
    ADD(b, ",\"created_at\":\"");
    buf_add(b, at, clock_rfc3339(ev->created_at, at));
    ADD(b, "\",\"consumer\":");
    add_string(b, consumer);
    ADD(b, ",\"attempt\":");
    buf_addi64(b, attempt);
    ADD(b, "}\n");
}

/* Returns whether the payload may have a member with this name. Parses the payload only if its text
 * contains the word, or an escape that may hide it. */
static bool has_telemetry(struct str payload)
{
    struct json object, found;
    bool in_text = memmem(payload.p, payload.n, "_telemetry", 10);
    bool escaped = memmem(payload.p, payload.n, "\\u", 2);
    if (!in_text && !escaped)
        return false;
    if (json_parse(payload, &object, NULL, NULL) != 0)
        return true;
    return json_get(object, STR("_telemetry"), &found);
}

/* Embeds the payload. If the payload is an object without a member of that name, the headers become
 * its last member, before the closing brace, which only white space can follow. */
static void add_payload(struct buf *b, const struct event *ev)
{
    struct str payload = ev->payload;
    if (!payload.p) {
        ADD(b, "null");
        return;
    }
    size_t first = 0;
    while (first < payload.n && char_is_space(payload.p[first]))
        first++;
    bool is_object = first < payload.n && payload.p[first] == '{';
    bool has_headers = ev->headers.p && !str_is(ev->headers, "{}");
    const char *brace = NULL;
    if (is_object && has_headers)
        brace = memrchr(payload.p + first, '}', payload.n - first);
    if (!brace || has_telemetry(payload)) {
        buf_addstr(b, payload);
        return;
    }

    const char *last = brace - 1; /* the last byte inside, or the opening brace */
    while (char_is_space(*last))
        last--;
    size_t before = (size_t)(brace - payload.p);
    buf_add(b, payload.p, before);
    if (*last != '{')
        ADD(b, ",");
    ADD(b, "\"_telemetry\":");
    buf_addstr(b, ev->headers);
    buf_add(b, brace, payload.n - before);
}

void event_envelope_write(struct buf *b, const struct event *ev, struct str stream)
{
    char at[CLOCK_RFC3339_SIZE];
    buf_expect(b, event_bytes(ev) + stream.n + OVERHEAD);
    ADD(b, "{\"event_id\":");
    add_string(b, ev->id);
    ADD(b, ",\"topic\":");
    add_string(b, ev->type);
    ADD(b, ",\"aggregate_kind\":");
    add_string(b, ev->aggregate_type);
    ADD(b, ",\"aggregate_id\":");
    add_string(b, ev->aggregate_id);
    ADD(b, ",\"entity_version\":");
    add_version(b, ev);
    ADD(b, ",\"payload\":");
    add_payload(b, ev);
    ADD(b, ",\"stream_id\":");
    add_string(b, stream);
    ADD(b, ",\"committed_at\":\"");
    buf_add(b, at, clock_rfc3339(ev->created_at, at));
    ADD(b, "\"}");
}

/* ---- reading ---- */

/* Parser state: a line, and the destination of its values. */
struct reader {
    int64_t now_ms;
    struct arena *a;
    struct new_event *ev;
    struct error *err;
};

/* A key of the line and the parser of its value. */
struct key {
    const char *name;
    int (*read)(struct reader *, const struct key *, struct json);
    size_t offset; /* offset of the struct str in struct new_event that read_string fills */
};

static const char *type_name(enum json_type t)
{
    static const char *const names[] = {
        [JSON_NULL] = "null",        [JSON_TRUE] = "true",       [JSON_FALSE] = "false",
        [JSON_NUMBER] = "a number",  [JSON_STRING] = "a string", [JSON_ARRAY] = "an array",
        [JSON_OBJECT] = "an object",
    };
    return names[t];
}

static int wrong_type(struct reader *r, const struct key *k, const char *wanted, struct json v)
{
    return err_set(r->err, ERR_INVALID, "%s must be %s, not %s", k->name, wanted,
                   type_name(v.type));
}

/* Unescapes a string into the arena, followed by a NUL. */
static int unescape(struct reader *r, struct str raw, struct str *ret)
{
    char *p = arena_alloc(r->a, raw.n);
    if (!p)
        return err_nomem(r->err);

    /* Unescaped text is never longer than escaped text, so this buffer never outgrows its arena
     * block. */
    struct buf b = {.p = p, .cap = raw.n - 1, .max = raw.n - 1};
    json_unescape(raw, &b);
    p[b.n] = '\0';
    *ret = (struct str){p, b.n};
    return 0;
}

static int read_string(struct reader *r, const struct key *k, struct json v)
{
    if (v.type == JSON_NULL)
        return 0;
    if (v.type != JSON_STRING)
        return wrong_type(r, k, "a string", v);

    struct str *to = (struct str *)(void *)((char *)r->ev + k->offset);
    if (memchr(v.raw.p, '\\', v.raw.n))
        return unescape(r, v.raw, to);
    *to = (struct str){v.raw.p + 1, v.raw.n - 2};
    return 0;
}

static int read_delay(struct reader *r, const struct key *k, struct json v)
{
    if (v.type == JSON_NULL)
        return 0;
    if (v.type != JSON_STRING)
        return wrong_type(r, k, "a duration such as \"5m\"", v);
    struct str s = {0};
    if (unescape(r, v.raw, &s) != 0)
        return -1;
    if (strlen(s.p) != s.n)
        return err_set(r->err, ERR_INVALID, "delay has a NUL character");

    int64_t ms;
    if (text_duration(s.p, &ms, r->err) != 0) {
        if (r->err)
            r->err->code = ERR_INVALID; /* the text is data, not a setting */
        return err_prefix(r->err, "delay");
    }
    if (ms > 0)
        r->ev->not_before = r->now_ms + ms;
    return 0;
}

static int read_version(struct reader *r, const struct key *k, struct json v)
{
    if (v.type == JSON_NULL)
        return 0;
    if (v.type != JSON_NUMBER)
        return wrong_type(r, k, "a whole number", v);
    if (!json_int(v, &r->ev->version))
        return err_set(r->err, ERR_INVALID, "version must be a 64-bit whole number");
    r->ev->has_version = true;
    return 0;
}

static int read_headers(struct reader *r, const struct key *k, struct json v)
{
    if (v.type == JSON_NULL)
        return 0;
    if (v.type != JSON_OBJECT)
        return wrong_type(r, k, "an object", v);
    r->ev->headers = v.raw;
    return 0;
}

/* null is a value here; for every other key, null means absent. */
static int read_payload(struct reader *r, const struct key *k, struct json v)
{
    (void)k;
    r->ev->payload = v.raw;
    return 0;
}

static const struct key keys[] = {
    {"type", read_string, offsetof(struct new_event, type)},
    {"aggregate_type", read_string, offsetof(struct new_event, aggregate_type)},
    {"aggregate_id", read_string, offsetof(struct new_event, aggregate_id)},
    {"version", read_version, 0},
    {"payload", read_payload, 0},
    {"headers", read_headers, 0},
    {"idempotency_key", read_string, offsetof(struct new_event, idempotency_key)},
    {"tenant", read_string, offsetof(struct new_event, tenant)},
    {"delay", read_delay, 0},
};

#define N_KEYS (sizeof keys / sizeof *keys)

/* Returns the index in `keys` of a raw name; -1 with an error if the name is unknown. */
static int find_key(struct reader *r, struct str raw)
{
    const char *names[N_KEYS + 1] = {NULL};
    struct str name = {raw.p + 1, raw.n - 2};
    bool escaped = memchr(raw.p, '\\', raw.n) != NULL;
    if (escaped && unescape(r, raw, &name) != 0)
        return -1;
    for (size_t i = 0; i < N_KEYS; i++) {
        names[i] = keys[i].name;
        if (str_is(name, names[i]))
            return (int)i;
    }

    char hint[TEXT_HINT];
    if (unescape(r, raw, &name) != 0) /* the name contains a NUL */
        return -1;
    text_hint(name.p, names, (struct text_hint){"\"", "\"", NULL}, hint);
    return err_set(r->err, ERR_INVALID, "unknown key \"%s\"%s", name.p, hint);
}

int event_line_read(struct str line, int64_t now_ms, struct arena *a, struct new_event *ret,
                    struct error *err)
{
    struct json object, v;
    struct str name;
    const char *why;
    size_t at;
    if (json_parse(line, &object, &why, &at) != 0)
        return err_set(err, ERR_INVALID, "not JSON: %s at byte %zu", why, at);
    if (object.type != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "must be a JSON object, not %s", type_name(object.type));

    struct new_event ev = {.has_version = false};
    struct reader r = {.now_ms = now_ms, .a = a, .ev = &ev, .err = err};
    unsigned seen = 0;
    for (size_t it = 0; json_each(object, &it, &name, &v);) {
        int i = find_key(&r, name);
        if (i < 0)
            return -1;
        unsigned bit = 1u << i;
        if (seen & bit)
            return err_set(err, ERR_INVALID, "%s is given twice", keys[i].name);
        seen |= bit;
        if (keys[i].read(&r, &keys[i], v) != 0)
            return -1;
    }
    *ret = ev;
    return 0;
}
