/* Emits one event and delivers it to the webhook in argv[1]. */
#include <outbox.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    outbox *ob;
    outbox_consumer *c;
    outbox_error err = {0};
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "order.paid";
    m.payload = "{\"total\": 99}";
    if (argc < 2 || outbox_open("sqlite::memory:", NULL, &ob, &err) != 0)
        return 1;
    int failed = outbox_consumer_new(ob, "mail", &c, &err) != 0 ||
                 outbox_consumer_set(c, "webhook-allow", "127.0.0.0/8", &err) != 0 ||
                 outbox_consumer_set(c, "sink", argv[1], &err) != 0 ||
                 outbox_emit(ob, &m, NULL, &err) != 0 || outbox_step(ob, NULL, &err) != 0;
    if (failed)
        puts(err.text);
    outbox_close(ob);
    return failed;
}
