/* kafka_peer.h: a Kafka sink in front of librdkafka's mock cluster, which runs in a separate
 * process (kafka_mock.c) and talks TCP. */
#ifndef TESTS_CONTRACT_KAFKA_PEER_H
#define TESTS_CONTRACT_KAFKA_PEER_H

#include <librdkafka/rdkafka.h>

#include "sink.h"

/* Kinds of requests. */
#define API_PRODUCE 0
#define API_METADATA 3
#define API_INIT_PRODUCER_ID 22

struct peer {
    char topic[64]; /* of one partition; of this test alone */
    char url[512];
    struct sink_rig rig;
};

extern const struct sink_case kafka_case;

/* The state of a test is a peer whose sink is not open yet. */
int kafka_peer_setup(void **state);
int kafka_peer_teardown(void **state);
#define OWN(fn) cmocka_unit_test_setup_teardown(fn, kafka_peer_setup, kafka_peer_teardown)

/* tell sends the cluster a command, which must succeed. */
void tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* cluster_end ends the cluster. */
void cluster_end(void);

/* open_with opens the sink for the peer's topic with this query in its URL, open_topic for another
 * path. timeout_ms is 10 s unless set before. */
void open_with(struct peer *p, const char *query);
void open_topic(struct peer *p, const char *path);
/* run_one sends one more event, and stops driving once that one is answered. */
struct sink_item *run_one(struct peer *p, const char *payload);

/* A visit_fn sees each message of a topic, partition by partition, in their order. */
typedef void visit_fn(void *ctx, const rd_kafka_message_t *m);
void kafka_read(const char *topic, visit_fn *visit, void *ctx);
size_t kafka_count(const char *topic);
/* kafka_header returns the value of a header; absent if there is none. */
struct str kafka_header(const rd_kafka_message_t *m, const char *name);

extern const struct suite_part kafka_errors_tests, kafka_messages_tests, kafka_fates_tests;

#endif
