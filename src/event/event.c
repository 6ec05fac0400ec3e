#include "event/event.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/char.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"

/* is_space says whether the character at p (valid UTF-8) is white space, Unicode's own included. */
static bool is_space(const unsigned char *p, size_t n)
{
    if (p[0] < 0x80)
        return p[0] == ' ';
    if (p[0] == 0xC2)
        return p[1] == 0xA0;
    if (n < 3 || p[0] >> 4 != 0xE)
        return false;
    unsigned c = (p[0] & 0xFu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    return c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/* What a piece of text may be. */
struct rule {
    const char *what; /* its name in messages */
    size_t max;
    bool no_space;
    bool no_slash;
};

static int check_characters(const struct rule *rule, struct str s, struct error *err)
{
    size_t at;
    if (!utf8_valid(s, &at))
        return err_set(err, ERR_INVALID, "%s is not valid UTF-8 at byte %zu", rule->what, at);
    const unsigned char *p = (const unsigned char *)s.p;
    for (size_t i = 0; i < s.n; i++) {
        bool control = char_is_control(s.p[i]) || char_is_c1(s.p + i);
        if (control)
            return err_set(err, ERR_INVALID, "%s has a control character at byte %zu", rule->what,
                           i);
        if (rule->no_space && is_space(p + i, s.n - i))
            return err_set(err, ERR_INVALID, "%s has white space at byte %zu", rule->what, i);
        if (rule->no_slash && p[i] == '/')
            return err_set(err, ERR_INVALID,
                           "%s has a '/' at byte %zu: keys are written as type/id", rule->what, i);
    }
    return 0;
}

/* check_text refuses an empty string too; whether it may be absent is the caller's question. */
static int check_text(const struct rule *rule, struct str s, struct error *err)
{
    if (s.n == 0)
        return err_set(err, ERR_INVALID, "%s is empty", rule->what);
    if (s.n > rule->max)
        return err_set(err, ERR_INVALID, "%s is %zu bytes, the limit is %zu", rule->what, s.n,
                       rule->max);
    return check_characters(rule, s, err);
}

static int check_aggregate(const struct new_event *ev, struct error *err)
{
    static const struct rule type = {
        .what = "aggregate type", .max = EVENT_KEY_MAX, .no_slash = true};
    static const struct rule id = {.what = "aggregate id", .max = EVENT_KEY_MAX};
    if (!ev->aggregate_type.p && !ev->aggregate_id.p)
        return 0;
    if (!ev->aggregate_id.p)
        return err_set(err, ERR_INVALID, "aggregate type is given without an aggregate id");
    if (!ev->aggregate_type.p)
        return err_set(err, ERR_INVALID, "aggregate id is given without an aggregate type");
    if (check_text(&type, ev->aggregate_type, err) != 0)
        return -1;
    return check_text(&id, ev->aggregate_id, err);
}

/* check_json parses a text that is within its limit. */
static int check_json(const char *what, struct str text, size_t max, struct json *ret,
                      struct error *err)
{
    const char *why;
    size_t at;
    if (text.n > max)
        return err_set(err, ERR_INVALID, "%s is %zu bytes, the limit is %zu", what, text.n, max);
    if (json_parse(text, ret, &why, &at) != 0)
        return err_set(err, ERR_INVALID, "%s is not JSON: %s at byte %zu", what, why, at);
    return 0;
}

/* is_escape: raw has \\uXXXX at i, with a value within the bounds. */
static bool is_escape(struct str raw, size_t i, unsigned low, unsigned high)
{
    char digits[5] = "";
    if (i + 6 > raw.n || raw.p[i] != '\\' || raw.p[i + 1] != 'u')
        return false;
    memcpy(digits, raw.p + i + 2, 4);
    unsigned long value = strtoul(digits, NULL, 16);
    return value >= low && value <= high;
}

/* check_header_text refuses what JSON can write and text cannot hold: NUL, and half a surrogate
 * pair. */
static int check_header_text(struct str raw, size_t at, struct error *err)
{
    for (size_t i = 0; i < raw.n; i++) {
        if (raw.p[i] != '\\')
            continue;
        if (is_escape(raw, i, 0, 0))
            return err_set(err, ERR_INVALID, "headers has a NUL at byte %zu", at + i);
        bool pair = is_escape(raw, i, 0xD800, 0xDBFF) && is_escape(raw, i + 6, 0xDC00, 0xDFFF);
        if (!pair && is_escape(raw, i, 0xD800, 0xDFFF))
            return err_set(err, ERR_INVALID, "headers has half a surrogate pair at byte %zu",
                           at + i);
        i += pair ? 11 : 1; /* past what is escaped */
    }
    return 0;
}

/* check_header_name looks at the name as receivers will see it: unescaped. */
static int check_header_name(struct str raw, struct error *err)
{
    static const struct rule rule = {.what = "header name", .max = EVENT_HEADERS_MAX};
    if (!memchr(raw.p, '\\', raw.n))
        return check_text(&rule, (struct str){raw.p + 1, raw.n - 2}, err);
    struct buf b;
    buf_init(&b, EVENT_HEADERS_MAX);
    json_unescape(raw, &b);
    int r = b.failed ? err_nomem(err) : check_text(&rule, (struct str){b.p, b.n}, err);
    buf_release(&b);
    return r;
}

static int check_headers(struct str headers, struct error *err)
{
    struct json object, value;
    struct str name;
    size_t count = 0;
    if (!headers.p)
        return 0;
    if (check_json("headers", headers, EVENT_HEADERS_MAX, &object, err) != 0)
        return -1;
    if (object.type != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "headers is not a JSON object");
    for (size_t it = 0; json_each(object, &it, &name, &value);) {
        if (count++ == EVENT_HEADERS_COUNT)
            return err_set(err, ERR_INVALID, "headers has more entries than %d, the limit",
                           EVENT_HEADERS_COUNT);
        size_t at = (size_t)(value.raw.p - headers.p);
        if (check_header_name(name, err) != 0)
            return -1;
        if (check_header_text(name, (size_t)(name.p - headers.p), err) != 0)
            return -1;
        if (value.type != JSON_STRING)
            return err_set(err, ERR_INVALID, "headers has a value that is not a string at byte %zu",
                           at);
        if (check_header_text(value.raw, at, err) != 0)
            return -1;
    }
    return 0;
}

static int check_not_before(int64_t not_before, int64_t now, struct error *err)
{
    if (not_before < 0)
        return err_set(err, ERR_INVALID, "not_before is before 1970: %" PRId64, not_before);
    if (clock_since(not_before, now) > EVENT_AHEAD_MAX_MS)
        return err_set(err, ERR_INVALID, "not_before is more than ten years ahead: %" PRId64,
                       not_before);
    return 0;
}

static const struct rule type_rule = {.what = "type", .max = EVENT_TYPE_MAX, .no_space = true};
static const struct rule tenant_rule = {.what = "tenant", .max = EVENT_KEY_MAX};

int event_check(const struct new_event *ev, const struct event_limits *limits, struct error *err)
{
    static const struct rule key = {.what = "idempotency key", .max = EVENT_KEY_MAX};
    int64_t most = limits->payload_max < EVENT_PAYLOAD_CEILING ? limits->payload_max
                                                               : EVENT_PAYLOAD_CEILING;
    size_t max = most < 0 ? 0 : (size_t)most;

    if (!ev->type.p)
        return err_set(err, ERR_INVALID, "type is missing");
    if (check_text(&type_rule, ev->type, err) != 0)
        return -1;
    if (check_aggregate(ev, err) != 0)
        return -1;
    if (ev->idempotency_key.p && check_text(&key, ev->idempotency_key, err) != 0)
        return -1;
    if (ev->tenant.p && check_text(&tenant_rule, ev->tenant, err) != 0)
        return -1;
    if (check_not_before(ev->not_before, limits->now, err) != 0)
        return -1;
    if (check_headers(ev->headers, err) != 0)
        return -1;
    return ev->payload.p ? check_json("payload", ev->payload, max, NULL, err) : 0;
}

/* check_bytes: any text that is UTF-8 and has no NUL. */
static int check_bytes(const char *what, struct str s, struct error *err)
{
    size_t at;
    if (!s.n)
        return 0;
    const char *nul = memchr(s.p, '\0', s.n);
    if (nul)
        return err_set(err, ERR_INVALID, "%s has a NUL at byte %zu", what, (size_t)(nul - s.p));
    if (!utf8_valid(s, &at))
        return err_set(err, ERR_INVALID, "%s is not valid UTF-8 at byte %zu", what, at);
    return 0;
}

int event_check_stored(const struct event *ev, struct error *err)
{
    static const struct rule type = {.what = "type"}, aggregate_type = {.what = "aggregate type"},
                             aggregate_id = {.what = "aggregate id"};
    struct json headers;
    if (!uuid7_valid(ev->id))
        return err_set(err, ERR_INVALID, "malformed: id is no UUID");
    if (check_characters(&type, ev->type, err) != 0 ||
        check_characters(&aggregate_type, ev->aggregate_type, err) != 0 ||
        check_characters(&aggregate_id, ev->aggregate_id, err) != 0 ||
        check_characters(&tenant_rule, ev->tenant, err) != 0 ||
        check_bytes("payload", ev->payload, err) != 0)
        return err_prefix(err, "malformed");
    if (!ev->headers.p)
        return 0;
    if (json_parse(ev->headers, &headers, NULL, NULL) != 0 || headers.type != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "malformed: headers is not a JSON object");
    return 0;
}

int event_check_inbox(struct str handler, struct str key, struct error *err)
{
    if (handler.n == 0 || handler.n > EVENT_KEY_MAX)
        return err_set(err, ERR_INVALID, "handler is %zu bytes, the limit is 1 to %d", handler.n,
                       EVENT_KEY_MAX);
    if (key.n == 0 || key.n > EVENT_KEY_MAX)
        return err_set(err, ERR_INVALID, "key is %zu bytes, the limit is 1 to %d", key.n,
                       EVENT_KEY_MAX);
    if (check_bytes("handler", handler, err) != 0)
        return -1;
    return check_bytes("key", key, err);
}

/* event_key is stored beside events: a different function here needs a migration that recomputes
 * every stored key. */
uint64_t event_key(struct str aggregate_type, struct str aggregate_id)
{
    if (!aggregate_id.p)
        return 0;
    uint64_t h = hash_end(hash_add(hash_add(HASH_INIT, aggregate_type), aggregate_id));
    return h ? h : 1;
}
