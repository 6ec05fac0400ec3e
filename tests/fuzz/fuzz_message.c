/* Messages of brokers. The input is an event, as a line of NDJSON: in every format it has one
 * message, with the payload byte for byte, and headers whose names differ. */
#include "base/json.h"
#include "event/event_json.h"
#include "event/message.h"
#include "fuzz.h"

static void headers_differ(const struct message *m)
{
    for (size_t i = 0; i < m->n; i++) {
        MUST(m->headers[i].name.p && m->headers[i].value.p);
        struct str value = message_header_of(m, m->headers[i].name);
        MUST(value.p == m->headers[i].value.p); /* the first of that name is this one */
    }
}

static void in_format(enum message_format format, const struct event *ev)
{
    struct message_style style = {format, {0}, "ce-"};
    struct error err = {0};
    struct message m;
    struct buf text;
    buf_init(&text, 1 << 24);
    MUST(message_make(&style, ev, STR("orders"), STR("c"), 1, &text, &m, &err) == 0);
    headers_differ(&m);
    MUST(json_parse(m.value, NULL, NULL, NULL) == 0);
    if (format != MESSAGE_CONTRACT && format != MESSAGE_JSON)
        MUST(memmem(m.value.p, m.value.n, ev->payload.p, ev->payload.n));
    if (format == MESSAGE_PLAIN || format == MESSAGE_DEBEZIUM)
        MUST(str_eq(message_header_of(&m, STR("id")), ev->id));
    buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct str input = {data ? (const char *)data : "", n};
    struct event_limits limits = {EVENT_PAYLOAD_MAX, 1700000000000};
    struct new_event in = {0};
    struct error err = {0};
    struct arena a;
    arena_init(&a, 1 << 24);
    bool good = event_line_read(input, limits.now, &a, &in, &err) == 0 &&
                event_check(&in, &limits, &err) == 0;
    if (good) {
        struct event ev = {.seq = 1,
                           .id = STR("01890a5d-ac96-774b-bcce-b302099a8057"),
                           .type = in.type,
                           .aggregate_type = in.aggregate_type,
                           .aggregate_id = in.aggregate_id,
                           .payload = in.payload.p ? in.payload : STR("null"),
                           .headers = in.headers,
                           .version = in.version,
                           .has_version = in.has_version,
                           .tenant = in.tenant};
        for (int i = 0; message_formats[i]; i++)
            in_format((enum message_format)i, &ev);
    }
    arena_release(&a);
    return 0;
}
