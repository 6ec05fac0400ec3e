/* greeting.h: channel 0: login, limits, the virtual host, blocked publishers, and closing the
 * connection. */
#ifndef RABBIT_GREETING_H
#define RABBIT_GREETING_H

#include "rabbit/conn.h"

/* rabbit_greeting_begin queues the protocol header. */
void rabbit_greeting_begin(struct rabbit_conn *c);

/* rabbit_greeting_take handles a method on channel 0, and sets *ret_ready once the login is
 * complete. Until then, replies go into c->greet. It fails when the broker refuses or closes:
 * CLASS_DOWN, with the broker's code. */
int rabbit_greeting_take(struct rabbit_conn *c, const amqp_method_t *m, bool *ret_ready,
                         struct error *err);

#endif
