/* redis_peer.h: a Redis sink in front of a real server, for the tests of promises that only Redis
 * makes. */
#ifndef TESTS_CONTRACT_REDIS_PEER_H
#define TESTS_CONTRACT_REDIS_PEER_H

#include "redis_server.h"
#include "sink.h"

/* One server for all tests. Each starts with an empty server in its initial configuration. */
extern struct redis_server server;
extern bool secured;   /* the suite runs over TLS */
extern bool clustered; /* on a cluster of one server, over TLS */

struct peer {
    char url[512];
    struct sink_rig rig;
};

extern const struct sink_case redis_case;

/* The state of a test is a peer whose sink is not open yet. */
int redis_peer_setup(void **state);
int redis_peer_teardown(void **state);
#define OWN(fn) cmocka_unit_test_setup_teardown(fn, redis_peer_setup, redis_peer_teardown)

/* open_with opens the sink with this query in its URL: "stream=s". */
void open_with(struct peer *p, const char *query);
/* run_one sends one more event, and stops driving once that one is answered. */
struct sink_item *run_one(struct peer *p, const char *payload);
/* down_until expects that an event is returned as down, for a reason with these words, and passes
 * once the command `cure` was sent. */
void down_until(struct peer *p, const char *words, const char *cure);

/* entries returns the number of entries in a stream. */
size_t entries(const char *stream);
/* connection_number returns the id that Redis has assigned to the sink's connection; 0 without a
 * connection. */
long connection_number(void);

extern const struct suite_part redis_streams_tests, redis_errors_tests, redis_connection_tests,
    redis_lease_tests, redis_chains_tests, redis_dedupe_tests;

#endif
