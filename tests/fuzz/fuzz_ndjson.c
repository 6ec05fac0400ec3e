/* NDJSON: a line that can be read and emitted yields a line that is JSON and contains the
 * payload. */
#include "base/json.h"
#include "event/event_json.h"
#include "fuzz.h"

static void written(const struct new_event *in)
{
    struct event ev = {.seq = 1,
                       .id = STR("01890a5d-ac96-774b-bcce-b302099a8057"),
                       .type = in->type,
                       .aggregate_type = in->aggregate_type,
                       .aggregate_id = in->aggregate_id,
                       .payload = in->payload.p ? in->payload : STR("null"),
                       .headers = in->headers,
                       .version = in->version,
                       .has_version = in->has_version};
    struct buf b, was;
    struct json line, payload;
    buf_init(&b, 1 << 24);
    buf_init(&was, 1 << 22);
    event_line_write(&b, &ev, STR("c"), 1);
    MUST(!b.failed && b.n > 0 && memchr(b.p, '\n', b.n) == b.p + b.n - 1);
    MUST(json_parse((struct str){b.p, b.n}, &line, NULL, NULL) == 0);
    MUST(json_get(line, STR("payload"), &payload));
    json_flat(&was, ev.payload);
    MUST(!was.failed && payload.raw.n <= was.n);
    buf_release(&b);
    buf_release(&was);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct new_event ev = {0};
    struct error err = {0};
    struct arena a;
    arena_init(&a, 1 << 24);
    if (event_line_read((struct str){data ? (const char *)data : "", n}, 1700000000000, &a, &ev,
                        &err) != 0)
        MUST(err.code == ERR_INVALID && err.text[0] && !strchr(err.text, '\n'));
    else if (event_check(&ev, &(struct event_limits){EVENT_PAYLOAD_MAX, 1700000000000}, &err) == 0)
        written(&ev);
    arena_release(&a);
    return 0;
}
