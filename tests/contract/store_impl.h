/* store_impl.h: shared by the files of the store suite. store.c has the rig and the shorthand
 * declared here; each of the other store_*.c files has the tests of one subject. */
#ifndef TESTS_CONTRACT_STORE_IMPL_H
#define TESTS_CONTRACT_STORE_IMPL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

#define LEASE 30000 /* ms, of every claim unless a test says otherwise */

/* pass advances both clocks. */
void pass(int64_t ms);
/* sneak does something forbidden to handlers: it uses the connection without the store's knowledge.
 * unsettle changes its session as handlers do. */
bool sneak(struct store *st, const char *sql);
void unsettle(struct store *st);
/* must fails the test with the text of err unless r is 0. */
void must(int r, const struct error *err);

/* emit emits an event of aggregate t/key, or of none if key is NULL. emit_with sets a type, a
 * payload and a time before which it is not delivered (0: none). */
void emit(struct store *st, const char *key);
void emit_with(struct store *st, const char *type, const char *key, const char *payload,
               int64_t not_before);
/* keyed emits an event with an idempotency key, and returns the store's result. */
int keyed(struct store *st, const char *key, const char *payload, char id[UUID_TEXT + 1], bool *dup,
          struct error *err);

/* spec_of describes a consumer of every event, ordered by key, with one lane. put_spec
 * registers it, put and put_as do both. */
struct consumer_spec spec_of(const char *name);
void put_spec(struct store *st, const struct consumer_spec *c);
void put(struct store *st, const char *name);
void put_as(struct store *st, const char *name, enum order order, int lanes);
/* refilter changes the filter of consumer c. It returns the request of a worker with that filter;
 * the caller frees *ret_f, which the request borrows. */
struct claim_request refilter(struct store_rig *g, const char *events, const char *where,
                              struct filter **ret_f);
/* look returns the consumer's state. Its strings live in g->a. */
struct consumer_info look(struct store_rig *g, const char *name);

struct claim_request request(const char *consumer, const char *owner);
struct claim_request request_as(const char *consumer, const char *owner, enum order order,
                                int lanes);
/* claim_by claims into g->b and returns the number of events in it. claim does so as "me". The
 * events of the previous batch become invalid. */
size_t claim_by(struct store_rig *g, struct claim_request req);
size_t claim(struct store_rig *g, const char *consumer);

/* claim_without_memory claims into an arena too small for any event, and returns the store's
 * result. */
int claim_without_memory(struct store_rig *g, struct error *err);

/* extend_by extends a claim of consumer c. */
int extend_by(struct store_rig *g, const char *owner, const struct batch *b, bool *ret_lost,
              struct error *err);

/* settle_as settles, and returns whether the claim was still its owner's. settle_by settles g->b
 * with the outcomes of those events that were not simply delivered, settle does so as "me". */
bool settle_as(struct store_rig *g, const struct settlement *s);
bool settle_by(struct store_rig *g, const char *consumer, const char *owner,
               const struct outcome *out, size_t n);
bool settle(struct store_rig *g, const char *consumer, const struct outcome *out, size_t n);
/* Outcomes of event i of g->b: it failed and is due again after delay ms, or it waits behind an
 * event of its key, or it is buried. */
struct outcome failed(const struct store_rig *g, size_t i, int attempts, int64_t delay);
struct outcome behind(const struct store_rig *g, size_t i);
struct outcome dead(const struct store_rig *g, size_t i, int attempts);

/* The dead letters of consumer c: their number, and the last one. */
struct letters {
    size_t n;
    char id[UUID_TEXT + 1], error[64], payload[64];
    bool retrying;
};
struct letters letters(struct store_rig *g);
/* kill_one claims the one event that consumer c has left, and turns it into a dead letter. */
void kill_one(struct store_rig *g);
/* retry_dead retries dead letters, drop_dead deletes them; both return their number. */
int64_t retry_dead(struct store_rig *g, struct dead_query q);
int64_t drop_dead(struct store_rig *g, struct dead_query q);

/* The tests of each file. */
extern const struct suite_part store_claim_tests, store_consumer_tests, store_dead_tests,
    store_effects_tests, store_emit_tests, store_failure_tests, store_gauge_tests,
    store_lease_tests, store_retention_tests, store_settings_tests, store_settle_tests,
    store_state_tests;

#endif
