/* nats_peer.h: a NATS sink in front of a real server, for the tests of promises that only NATS
 * makes. */
#ifndef TESTS_CONTRACT_NATS_PEER_H
#define TESTS_CONTRACT_NATS_PEER_H

#include "nats_server.h"
#include "sink.h"

/* One server for all tests. Each finds an empty stream "S" there that accepts s and s.>. */
extern struct nats_server server;

/* The suite's variants: the parameters in each URL. */
enum suite_way { WAY_PLAIN, WAY_EXCLUSIVE, WAY_TLS };
extern enum suite_way way;

#define ACCOUNTS \
    "accounts { A { jetstream: enabled, users: [ { user: admin, password: admin }, " \
    "{ user: guest, password: guest, permissions: { publish: { deny: [\"s.secret\"] } } }, " \
    "{ user: narrow, password: narrow, permissions: { publish: " \
    "[\"s\", \"$JS.API.STREAM.INFO.*\"] " \
    "} } ] } }\nno_auth_user: admin\n"

struct peer {
    char url[512];
    struct sink_rig rig;
};

extern const struct sink_case nats_case;

/* The state of a test is a peer whose sink is not open yet. */
int nats_peer_setup(void **state);
int nats_peer_teardown(void **state);
#define OWN(fn) cmocka_unit_test_setup_teardown(fn, nats_peer_setup, nats_peer_teardown)

/* open_with opens the sink for a subject, with this query in its URL: "stream=S". */
void open_with(struct peer *p, const char *subject, const char *query);
void open_timed(struct peer *p, const char *subject, const char *query, int64_t timeout_ms);
/* run_one sends one more event, and stops driving once that one is answered. */
struct sink_item *run_one(struct peer *p, const char *payload);
/* drive_until_answered drives until `count` events are answered. */
void drive_until_answered(struct peer *p, size_t count);
/* header_is compares a header of a message in stream S; NULL: it is absent. */
void header_is(uint64_t seq, const char *name, const char *want);

extern const struct suite_part nats_answers_tests, nats_connection_tests, nats_exclusive_tests,
    nats_messages_tests, nats_tls_tests;

#endif
