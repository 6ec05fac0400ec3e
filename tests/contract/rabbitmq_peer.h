/* rabbitmq_peer.h: a RabbitMQ sink in front of a real broker, for the tests of promises that only
 * RabbitMQ makes. */
#ifndef TESTS_CONTRACT_RABBITMQ_PEER_H
#define TESTS_CONTRACT_RABBITMQ_PEER_H

#include "rabbitmq_server.h"
#include "sink.h"

/* One broker for all tests. Each starts with the exchange `orders` and the empty queue `q`, bound
 * to it for every routing key. */
extern struct rabbitmq_server broker;
extern bool secured; /* the test runs over TLS */

struct peer {
    char url[512];
    struct sink_rig rig;
    struct sink_arrivals got; /* messages removed from the queue so far */
};

extern const struct sink_case rabbitmq_case;

/* The state of a test is a peer whose sink is not open yet. */
int rabbitmq_peer_setup(void **state);
int rabbitmq_peer_teardown(void **state);
#define OWN(fn) cmocka_unit_test_setup_teardown(fn, rabbitmq_peer_setup, rabbitmq_peer_teardown)

/* open_to opens the sink for an exchange, with this query in its URL; open_with for `orders`. */
void open_to(struct peer *p, const char *exchange, const char *query);
void open_with(struct peer *p, const char *query);
/* run_one sends one more event, and stops driving once that one is answered. */
struct sink_item *run_one(struct peer *p, const char *payload);
/* messages removes everything from a queue, and returns how many there were. */
size_t messages(const char *queue);
/* erlang evaluates an expression on the broker. */
#define erlang(...) rabbitmq_server_tell(&broker, "eval " __VA_ARGS__)

extern const struct suite_part rabbitmq_answers_tests, rabbitmq_connection_tests,
    rabbitmq_sent_tests, rabbitmq_tls_tests;

#endif
