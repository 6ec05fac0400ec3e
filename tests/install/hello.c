#include <outbox.h>
#include <stdio.h>

static outbox_verdict hear(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    (void)tx, (void)ctx;
    printf("%s %s\n", outbox_event_type(ev), outbox_event_payload(ev, NULL));
    return OUTBOX_DONE;
}

int main(void)
{
    outbox *ob;
    outbox_consumer *c;
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "order.paid";
    m.payload = "{\"total\": 99}";
    if (outbox_open("sqlite::memory:", NULL, &ob, NULL) != 0)
        return 1;
    if (outbox_consumer_new(ob, "mail", &c, NULL) != 0 ||
        outbox_on(c, "order.*", hear, NULL, NULL) != 0)
        return 2;
    if (outbox_emit(ob, &m, NULL, NULL) != 0 || outbox_step(ob, NULL, NULL) != 0)
        return 3;
    outbox_close(ob);
    return 0;
}
