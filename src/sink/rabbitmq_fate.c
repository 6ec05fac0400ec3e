/* rabbitmq_fate.c: what every answer of a broker means for events. docs/rabbitmq.md has the same
 * table for people, and a test compares them. */
#include <string.h>

#include "sink/rabbitmq_impl.h"

#define ABSENT "NOT_FOUND - no " /* "... exchange 'orders' in vhost '/'" */

/* The first row that fits counts. What is refused is of the event's routing key, or of the exchange
 * or the queue; the broker works. What is down is of the broker: it is away, or does not let us in,
 * or a queue has no leader or no room, which it does not tell apart. */
static const struct rabbitmq_fate fates[] = {
    {SAID_ACK, 0, NULL, SINK_DELIVERED, true,
     "every queue it was routed to has it: on disk, or in most nodes of a quorum queue"},
    {SAID_NACK, 0, NULL, SINK_DOWN, true, "a queue is full, or could not take it"},
    {SAID_RETURN, 0, NULL, SINK_REFUSED, true, "no queue is bound for its routing key"},
    {SAID_SETUP, AMQP_ACCESS_REFUSED, NULL, SINK_FATAL, false,
     "the user may not do what the sink is set up to do"},
    {SAID_SETUP, AMQP_NOT_FOUND, ABSENT, SINK_REFUSED, false,
     "the exchange or the queue does not exist"},
    {SAID_SETUP, AMQP_RESOURCE_LOCKED, NULL, SINK_REFUSED, false,
     "another connection has the queue for itself"},
    {SAID_SETUP, AMQP_PRECONDITION_FAILED, NULL, SINK_FATAL, false,
     "what exists differs from what is asked for"},
    {SAID_SETUP, 0, NULL, SINK_DOWN, false, "the channel could not be set up"},
    {SAID_PUBLISH, AMQP_ACCESS_REFUSED, "access to topic", SINK_REFUSED, true,
     "the user may not write to its topic"},
    {SAID_PUBLISH, AMQP_ACCESS_REFUSED, NULL, SINK_REFUSED, false,
     "the user may not write to the exchange"},
    {SAID_PUBLISH, AMQP_NOT_FOUND, ABSENT, SINK_REFUSED, false, "the exchange was deleted"},
    {SAID_PUBLISH, AMQP_PRECONDITION_FAILED, NULL, SINK_REJECT, true,
     "the broker can never take this message: it is too large, for one"},
    {SAID_PUBLISH, 0, NULL, SINK_DOWN, false, "the channel was closed"},
    {SAID_CONNECTION, AMQP_CONNECTION_FORCED, NULL, SINK_DOWN, false,
     "the broker is shutting down"},
    {SAID_CONNECTION, AMQP_ACCESS_REFUSED, NULL, SINK_DOWN, false, "the login was refused"},
    {SAID_CONNECTION, AMQP_NOT_ALLOWED, NULL, SINK_DOWN, false,
     "there is no such virtual host, or the user may not enter it"},
    {SAID_CONNECTION, 0, NULL, SINK_DOWN, false, "the broker closed the connection"},
};

const struct rabbitmq_fate *rabbitmq_fate_of(enum rabbitmq_said said, int code, const char *words)
{
    const struct rabbitmq_fate *f = fates;
    for (size_t i = 0; i < sizeof fates / sizeof fates[0]; i++) {
        f = &fates[i];
        bool matches = f->said == said && (f->code == code || f->code == 0);
        if (matches && (!f->says || strstr(words, f->says)))
            break;
    }
    return f;
}
