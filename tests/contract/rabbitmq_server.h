/* rabbitmq_server.h: a real RabbitMQ for tests, started by tests/lib/broker_rabbitmq.py, and a
 * blocking client to inspect it: librabbitmq's own, of which the sink uses only the codec. */
#ifndef TESTS_CONTRACT_RABBITMQ_SERVER_H
#define TESTS_CONTRACT_RABBITMQ_SERVER_H

#include <amqp.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

struct rabbitmq_server {
    pid_t pid; /* of the helper; 0: not started */
    FILE *to, *from;
    int port, tls_port;
    char dir[256];
    amqp_connection_state_t client; /* NULL: not connected */
};

/* rabbitmq_server_start starts a node, once. rabbitmq_server_end ends it. */
void rabbitmq_server_start(struct rabbitmq_server *s);
void rabbitmq_server_end(struct rabbitmq_server *s);

/* rabbitmq_server_tell sends the helper a line, and returns its answer, valid until the next
 * call. */
const char *rabbitmq_server_tell(struct rabbitmq_server *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* These use one connection, which is opened on first use. */
void rabbitmq_server_declare(struct rabbitmq_server *s, const char *exchange, bool durable);
/* rabbitmq_server_queue creates a queue; max > 0: it refuses more messages than that. */
void rabbitmq_server_queue(struct rabbitmq_server *s, const char *queue, int max);
void rabbitmq_server_bind(struct rabbitmq_server *s, const char *queue, const char *exchange,
                          const char *key);
void rabbitmq_server_delete(struct rabbitmq_server *s, const char *exchange, const char *queue);
void rabbitmq_server_purge(struct rabbitmq_server *s, const char *queue);
/* rabbitmq_server_get removes the next message from a queue; false if there is none. The caller
 * destroys *ret. key, if not NULL, gets its routing key, of at most 255 bytes. */
bool rabbitmq_server_get(struct rabbitmq_server *s, const char *queue, amqp_message_t *ret,
                         char key[256]);
/* rabbitmq_server_hang_up drops that connection. */
void rabbitmq_server_hang_up(struct rabbitmq_server *s);

#endif
