#include "extra/streams/envelope.h"

#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"

static const struct {
    const char *name;
    size_t offset;
    bool required;
} strings[] = {
    {"event_id", offsetof(struct event, id), true},
    {"topic", offsetof(struct event, type), true},
    {"aggregate_kind", offsetof(struct event, aggregate_type), false},
    {"aggregate_id", offsetof(struct event, aggregate_id), false},
};

/* Appends the unescaped string and a NUL. The buffer has room for all strings, so it is never
 * reallocated. */
static struct str take_string(struct str raw, struct buf *text)
{
    size_t at = text->n;
    json_unescape(raw, text);
    size_t n = text->n - at;
    buf_addc(text, '\0');
    return (struct str){text->p + at, n};
}

/* Appends bytes and a NUL; see take_string. */
static struct str take_bytes(struct str raw, struct buf *text)
{
    size_t at = text->n;
    buf_addstr(text, raw);
    buf_addc(text, '\0');
    return (struct str){text->p + at, raw.n};
}

/* Parses the output of clock_rfc3339; returns 0 for any other text. */
static int64_t time_of(struct json v)
{
    struct tm tm = {0};
    char text[CLOCK_RFC3339_SIZE + 1] = "";
    int ms = 0, end = 0;
    if (v.type != JSON_STRING || v.raw.n - 2 >= sizeof text)
        return 0;
    memcpy(text, v.raw.p + 1, v.raw.n - 2);
    /* NOLINTNEXTLINE(cert-err34-c): no number has more than four digits. */
    int n = sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
                   &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &ms, &end);
    bool whole = n == 7 && end > 0 && text[end] == '\0';
    if (!whole)
        return 0;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return (int64_t)timegm(&tm) * 1000 + ms;
}

/* Copies the payload, and uses its "_telemetry" as the headers. A "_telemetry" that is not an
 * object belongs to the producer and stays in the payload. */
static int take_payload(struct json o, struct buf *text, struct event *ret, struct error *err)
{
    struct json payload, telemetry;
    if (!json_get(o, STR("payload"), &payload))
        return err_set(err, ERR_INVALID, "the envelope has no payload");
    ret->payload = take_bytes(payload.raw, text);

    bool found = json_get(payload, STR("_telemetry"), &telemetry);
    if (found && telemetry.type == JSON_OBJECT)
        ret->headers = take_bytes(telemetry.raw, text);
    return 0;
}

/* Checks the event at the end, because any client may write to a stream. */
int envelope_read(struct str envelope, struct buf *text, struct event *ret, struct error *err)
{
    struct json o, v;
    const char *why;
    *ret = (struct event){0};
    buf_clear(text);
    if (json_parse(envelope, &o, &why, NULL) != 0)
        return err_set(err, ERR_INVALID, "the envelope is not JSON: %s", why);
    if (o.type != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "the envelope is not a JSON object");
    if (!buf_reserve(text, 2 * envelope.n + 16))
        return err_nomem(err);

    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        bool found = json_get(o, str_of(strings[i].name), &v) && v.type != JSON_NULL;
        if (!found && strings[i].required)
            return err_set(err, ERR_INVALID, "the envelope has no %s", strings[i].name);
        if (!found)
            continue;
        if (v.type != JSON_STRING)
            return err_set(err, ERR_INVALID, "%s is not a string in the envelope", strings[i].name);
        struct str s = take_string(v.raw, text);
        memcpy((char *)ret + strings[i].offset, &s, sizeof s);
    }
    if (json_get(o, STR("committed_at"), &v))
        ret->created_at = time_of(v);
    ret->has_version = json_get(o, STR("entity_version"), &v) && json_int(v, &ret->version);
    if (take_payload(o, text, ret, err) != 0)
        return -1;
    ret->key = event_key(ret->aggregate_type, ret->aggregate_id);

    if (text->failed)
        return err_nomem(err);
    return event_check_stored(ret, err);
}
