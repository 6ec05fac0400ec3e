/* store_impl.h: what the files of the store suite share: store.c (the rig, and these),
 * store_emit.c, store_claim.c, store_effects.c, store_admin.c (the tests). */
#ifndef TESTS_CONTRACT_STORE_IMPL_H
#define TESTS_CONTRACT_STORE_IMPL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

#define LEASE 30000

/* The comments are in store.c. */
void pass(int64_t ms);
void must(int r, const struct error *err);
void emit_with(struct store *st, const char *type, const char *key, const char *payload,
               int64_t not_before);
void emit(struct store *st, const char *key);
void put_as(struct store *st, const char *name, enum order order, int lanes);
void put(struct store *st, const char *name);
struct claim_request request(const char *consumer, const char *owner);
size_t claim_by(struct store_rig *g, struct claim_request req);
size_t claim(struct store_rig *g, const char *consumer);
bool settle_by(struct store_rig *g, const char *consumer, const char *owner,
               const struct outcome *out, size_t n);
bool settle(struct store_rig *g, const char *consumer, const struct outcome *out, size_t n);
struct outcome failed(const struct store_rig *g, size_t i, int attempts, int64_t delay);
struct outcome behind(const struct store_rig *g, size_t i);
struct consumer_info look(struct store_rig *g, const char *name);
struct claim_request request_as(const char *consumer, const char *owner, enum order order,
                                int lanes);
int keyed(struct store *st, const char *key, const char *payload, char id[UUID_TEXT + 1], bool *dup,
          struct error *err);

/* The tests of a file, to be put together in store_suite_run. */
struct store_tests {
    const struct CMUnitTest *tests;
    size_t n;
};
extern const struct store_tests store_emit_tests, store_claim_tests, store_effects_tests,
    store_admin_tests;
#define STORE_TESTS(array) \
    { \
        array, sizeof(array) / sizeof *(array) \
    }

#endif
