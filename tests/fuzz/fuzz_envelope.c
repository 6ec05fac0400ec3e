/* Envelopes. Foreign ones are parsed or refused. Our own envelope of an event is JSON and keeps the
 * payload byte for byte, and no attribute of a CloudEvent can end its header line. The input is an
 * envelope and, as a line of NDJSON, an event. */
#include "base/json.h"
#include "event/event_json.h"
#include "event/message.h"
#include "extra/streams/envelope.h"
#include "fuzz.h"

static struct str whole(const struct buf *b)
{
    return (struct str){b->p ? b->p : "", b->n};
}

static void stream_entry(const struct event *ev)
{
    struct buf b, text;
    struct event back = {0};
    struct error err = {0};
    buf_init(&b, 1 << 24);
    buf_init(&text, 1 << 24);
    event_envelope_write(&b, ev, STR("orders"));
    MUST(!b.failed && json_parse(whole(&b), NULL, NULL, NULL) == 0);
    MUST(envelope_read(whole(&b), &text, &back, &err) == 0);
    MUST(str_eq(back.type, ev->type) && str_eq(back.aggregate_id, ev->aggregate_id));
    buf_release(&b);
    buf_release(&text);
}

static void webhook(const struct event *ev)
{
    struct buf b;
    struct cloudevents_headers more;
    MUST(cloudevents_headers(ev, &more, NULL) == 0);
    buf_init(&b, 1 << 24);
    cloudevents_structured(&b, ev, STR("/shop"), &more);
    MUST(!b.failed && json_parse(whole(&b), NULL, NULL, NULL) == 0);
    MUST(memmem(b.p, b.n, ev->payload.p, ev->payload.n));
    buf_clear(&b);
    cloudevents_binary(&b, ev, STR("/shop"), &more);
    cloudevents_trace(&b, &more);
    MUST(!b.failed);
    for (size_t i = 0; i < b.n; i++)
        MUST(b.p[i] != '\r' && b.p[i] != '\n');
    buf_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct str input = {data ? (const char *)data : "", n};
    struct new_event in = {0};
    struct event ev = {0};
    struct error err = {0};
    struct arena a;
    struct buf text;
    buf_init(&text, 1 << 24);
    if (envelope_read(input, &text, &ev, &err) != 0)
        MUST(err.code == ERR_INVALID && err.text[0]);
    buf_release(&text);
    arena_init(&a, 1 << 24);
    if (event_line_read(input, 1700000000000, &a, &in, &err) == 0 &&
        event_check(&in, &(struct event_limits){EVENT_PAYLOAD_MAX, 1700000000000}, &err) == 0) {
        ev = (struct event){.seq = 1,
                            .id = STR("01890a5d-ac96-774b-bcce-b302099a8057"),
                            .type = in.type,
                            .aggregate_type = in.aggregate_type,
                            .aggregate_id = in.aggregate_id,
                            .payload = in.payload.p ? in.payload : STR("null"),
                            .headers = in.headers,
                            .tenant = in.tenant};
        stream_entry(&ev);
        webhook(&ev);
    }
    arena_release(&a);
    return 0;
}
