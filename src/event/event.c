#include "event/event.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/num.h"
#include "base/str.h"
#include "base/utf8.h"

#define NO_ESCAPE 0x10000ul /* outside the range of four hex digits */

/* Returns whether valid UTF-8 begins with white space, including Unicode's. */
static bool is_space(const char *p, const char *end)
{
    static const unsigned wide[] = {0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
    size_t n = utf8_length(p, end);
    if (n == 0)
        return *p == ' ';
    unsigned c = utf8_code(p, n);
    if (c >= 0x2000 && c <= 0x200A)
        return true;
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        if (c == wide[i])
            return true;
    return false;
}

/* Constraints on a string. */
struct rule {
    const char *what; /* its name in messages */
    size_t max;
    bool no_space;
    bool no_slash;
};

/* Rejects characters that would break a reader: a terminal, a log, or the notation type/id. */
static int check_characters(const struct rule *rule, struct str s, struct error *err)
{
    size_t at;
    if (!utf8_valid(s, &at))
        return err_set(err, ERR_INVALID, "%s is not valid UTF-8 at byte %zu", rule->what, at);

    for (size_t i = 0; i < s.n; i++) {
        bool control = char_is_control(s.p[i]) || char_is_c1(s.p + i);
        if (control)
            return err_set(err, ERR_INVALID, "%s has a control character at byte %zu", rule->what,
                           i);
        if (rule->no_space && is_space(s.p + i, s.p + s.n))
            return err_set(err, ERR_INVALID, "%s has white space at byte %zu", rule->what, i);
        if (rule->no_slash && s.p[i] == '/')
            return err_set(err, ERR_INVALID,
                           "%s has a '/' at byte %zu: keys are written as type/id", rule->what, i);
    }
    return 0;
}

/* Checks a string that is present. */
static int check_text(const struct rule *rule, struct str s, struct error *err)
{
    if (s.n == 0)
        return err_set(err, ERR_INVALID, "%s is empty", rule->what);
    if (s.n > rule->max)
        return err_set(err, ERR_INVALID, "%s is %zu bytes; the limit is %zu", rule->what, s.n,
                       rule->max);
    return check_characters(rule, s, err);
}

/* Requires both parts of the key, or neither. A slash in the type would make type/id ambiguous; a
 * slash in the id would not. */
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

/* Parses JSON of at most `max` bytes. */
static int check_json(const char *what, struct str text, size_t max, struct json *ret,
                      struct error *err)
{
    const char *why;
    size_t at;
    if (text.n > max)
        return err_set(err, ERR_INVALID, "%s is %zu bytes; the limit is %zu", what, text.n, max);
    if (json_parse(text, ret, &why, &at) != 0)
        return err_set(err, ERR_INVALID, "%s is not JSON: %s at byte %zu", what, why, at);
    return 0;
}

/* Returns the code unit of the escape \\uXXXX at i; NO_ESCAPE if there is none. */
static unsigned long escape_at(struct str raw, size_t i)
{
    bool escape = i + 6 <= raw.n && raw.p[i] == '\\' && raw.p[i + 1] == 'u';
    if (!escape)
        return NO_ESCAPE;
    char digits[5] = "";
    memcpy(digits, raw.p + i + 2, 4);
    return strtoul(digits, NULL, 16);
}

/* Rejects a NUL and half a surrogate pair, which JSON can express but text cannot hold. */
static int check_header_text(struct str raw, size_t at, struct error *err)
{
    for (size_t i = 0; i < raw.n; i++) {
        if (raw.p[i] != '\\')
            continue;
        unsigned long c = escape_at(raw, i);
        if (c == 0)
            return err_set(err, ERR_INVALID, "headers has a NUL at byte %zu", at + i);

        /* The upper six bits distinguish the two halves. */
        bool high = c >> 10 == 0xD800 >> 10, low = c >> 10 == 0xDC00 >> 10;
        bool pair = high && escape_at(raw, i + 6) >> 10 == 0xDC00 >> 10;
        if (!pair && (high || low))
            return err_set(err, ERR_INVALID, "headers has half a surrogate pair at byte %zu",
                           at + i);
        i += pair ? 11 : 1; /* skip the escape */
    }
    return 0;
}

/* Checks the unescaped name, which is what receivers see. */
static int check_header_name(struct str raw, struct error *err)
{
    static const struct rule rule = {.what = "header name", .max = EVENT_HEADERS_MAX};
    if (!memchr(raw.p, '\\', raw.n))
        return check_text(&rule, (struct str){raw.p + 1, raw.n - 2}, err);

    struct buf b;
    int r;
    buf_init(&b, EVENT_HEADERS_MAX);
    json_unescape(raw, &b);
    if (b.failed)
        r = err_nomem(err);
    else
        r = check_text(&rule, (struct str){b.p, b.n}, err);
    buf_release(&b);
    return r;
}

/* Counts entries, not names: a repeated name counts each time, because each entry uses memory. */
static int check_headers(struct str headers, struct error *err)
{
    struct json object, value;
    struct str name;
    if (!headers.p)
        return 0;
    if (check_json("headers", headers, EVENT_HEADERS_MAX, &object, err) != 0)
        return -1;
    if (object.type != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "headers is not a JSON object");

    size_t count = 0;
    for (size_t it = 0; json_each(object, &it, &name, &value); count++) {
        if (count == EVENT_HEADERS_COUNT)
            return err_set(err, ERR_INVALID, "headers has too many entries; the limit is %d",
                           EVENT_HEADERS_COUNT);
        size_t name_at = (size_t)(name.p - headers.p);
        size_t value_at = (size_t)(value.raw.p - headers.p);
        if (check_header_name(name, err) != 0)
            return -1;
        if (check_header_text(name, name_at, err) != 0)
            return -1;
        if (value.type != JSON_STRING)
            return err_set(err, ERR_INVALID, "headers has a value that is not a string at byte %zu",
                           value_at);
        if (check_header_text(value.raw, value_at, err) != 0)
            return -1;
    }
    return 0;
}

/* Checks the type, the keys and the tenant of an event. */
static int check_names(const struct new_event *ev, struct error *err)
{
    static const struct rule type = {.what = "type", .max = EVENT_TYPE_MAX, .no_space = true};
    static const struct rule key = {.what = "idempotency key", .max = EVENT_KEY_MAX};
    static const struct rule tenant = {.what = "tenant", .max = EVENT_KEY_MAX};
    if (!ev->type.p)
        return err_set(err, ERR_INVALID, "type is missing");
    if (check_text(&type, ev->type, err) != 0)
        return -1;
    if (check_aggregate(ev, err) != 0)
        return -1;
    if (ev->idempotency_key.p && check_text(&key, ev->idempotency_key, err) != 0)
        return -1;
    if (ev->tenant.p)
        return check_text(&tenant, ev->tenant, err);
    return 0;
}

int event_check(const struct new_event *ev, const struct event_limits *limits, struct error *err)
{
    if (check_names(ev, err) != 0)
        return -1;
    if (ev->not_before < 0)
        return err_set(err, ERR_INVALID, "not_before is before 1970: %" PRId64, ev->not_before);
    if (clock_since(ev->not_before, limits->now) > EVENT_AHEAD_MAX_MS)
        return err_set(err, ERR_INVALID, "not_before is more than ten years ahead: %" PRId64,
                       ev->not_before);
    if (check_headers(ev->headers, err) != 0)
        return -1;
    if (!ev->payload.p)
        return 0;
    int64_t most = max_i64(0, min_i64(limits->payload_max, EVENT_PAYLOAD_CEILING));
    return check_json("payload", ev->payload, (size_t)most, NULL, err);
}

/* Rejects text that is not UTF-8 or contains a NUL. */
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
    const struct {
        struct rule rule; /* no limit on the length */
        struct str text;
    } texts[] = {
        {{.what = "type"}, ev->type},
        {{.what = "aggregate type"}, ev->aggregate_type},
        {{.what = "aggregate id"}, ev->aggregate_id},
        {{.what = "tenant"}, ev->tenant},
    };
    if (!rng_uuid_valid(ev->id))
        return err_set(err, ERR_INVALID, "malformed: id is not a UUID");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (check_characters(&texts[i].rule, texts[i].text, err) != 0)
            return err_prefix(err, "malformed");
    if (check_bytes("payload", ev->payload, err) != 0)
        return err_prefix(err, "malformed");

    struct json headers;
    if (ev->headers.p && !event_headers_of(ev, &headers))
        return err_set(err, ERR_INVALID, "malformed: headers is not a JSON object");
    return 0;
}

bool event_headers_of(const struct event *ev, struct json *ret)
{
    return ev->headers.p && json_parse(ev->headers, ret, NULL, NULL) == 0 &&
           ret->type == JSON_OBJECT;
}

int event_check_inbox(struct str handler, struct str key, struct error *err)
{
    const struct {
        const char *what;
        struct str text;
    } texts[] = {{"handler", handler}, {"key", key}};
    for (size_t i = 0; i < 2; i++) {
        struct str text = texts[i].text;
        if (text.n == 0 || text.n > EVENT_KEY_MAX)
            return err_set(err, ERR_INVALID, "%s is %zu bytes; it must be 1 to %d", texts[i].what,
                           text.n, EVENT_KEY_MAX);
        if (check_bytes(texts[i].what, text, err) != 0)
            return -1;
    }
    return 0;
}

/* The hash is stored with events, so a change requires a migration that recomputes every stored
 * key. */
uint64_t event_key(struct str aggregate_type, struct str aggregate_id)
{
    if (!aggregate_id.p)
        return 0;
    uint64_t h = hash_end(hash_add(hash_add(HASH_INIT, aggregate_type), aggregate_id));
    return h ? h : 1;
}
