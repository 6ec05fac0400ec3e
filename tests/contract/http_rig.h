/* http_rig.h: a webhook sink in front of an http_peer, for the tests of promises that only webhooks
 * make. */
#ifndef TESTS_CONTRACT_HTTP_RIG_H
#define TESTS_CONTRACT_HTTP_RIG_H

#include "http_peer.h"
#include "sink/http_options.h"

#define SECOND (1000 * MS_NS)

struct fixture {
    struct http_peer *peer;
    struct sink_rig rig;
    struct http_options o;
    char dir[SINK_PATH_SIZE];
    char secrets[SINK_PATH_SIZE + 16]; /* a file in dir that does not exist yet */
};

extern const struct sink_case http_case;

/* The state of a test is a fixture whose sink is not open yet, so that the test can set options. */
int http_rig_setup(void **state);
int http_rig_teardown(void **state);
#define ON_A_PEER(fn) cmocka_unit_test_setup_teardown(fn, http_rig_setup, http_rig_teardown)

/* open_at opens the sink on the peer, by that name of this host; open_here by 127.0.0.1. */
void open_at(struct fixture *f, const char *host);
void open_here(struct fixture *f);
/* deliver sends one more event and returns it with its answer. */
struct sink_item *deliver(struct fixture *f, const char *payload);

/* refuses checks that the sink does not open with these options, reports why, and does not
 * reveal `secret`, unless that is NULL. */
void refuses(struct http_options *o, const char *url, const char *why, const char *secret);

/* They check that the head of request i contains this text, or does not. */
void assert_head_has(struct fixture *f, size_t i, const char *line);
void assert_head_lacks(struct fixture *f, size_t i, const char *text);

extern const struct suite_part http_answers_tests, http_secrets_tests, http_sent_tests;

#endif
