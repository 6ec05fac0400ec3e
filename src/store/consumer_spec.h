/* consumer_spec.h: a consumer as it is registered, and the settings it has or had. */
#ifndef STORE_CONSUMER_SPEC_H
#define STORE_CONSUMER_SPEC_H

#include <stdint.h>

enum order { ORDER_NONE, ORDER_KEY, ORDER_GLOBAL };

#define STORE_NAME_MAX 63 /* bytes of a consumer's name: [A-Za-z0-9_.-]+ */
#define STORE_LANES_MAX 64

/* Where a new consumer starts. */
enum start { START_BEGINNING, START_END, START_SEQ };

/* Who registers a consumer, and so what they may do. Settings are events, where, order and lanes;
 * the retry policy is kept for people to read and may change freely. */
enum put {
    /* a worker that starts: creates the consumer, or gives it settings it has never had */
    PUT_START,
    /* a worker that was running: the same, but a removed consumer is not created again
     * (ERR_NOTFOUND) */
    PUT_AGAIN,
    /* an operator: may also bring back settings that were replaced. The consumer must exist */
    PUT_PURPOSE,
};

/* A consumer as the database keeps it. Strings are borrowed on the way in and live in the
 * arena on the way out. */
struct consumer_spec {
    const char *name;
    const char *events; /* patterns; "" for all */
    const char *where;  /* predicate; "" for none */
    const char *retry;  /* policy as text, for people to read */
    enum order order;
    int lanes;
    enum start start; /* used only when the consumer is created */
    int64_t start_seq;
    enum put how;
    const char *by; /* who registers it, for people to read; NULL: unknown */
};

/* Settings that a consumer has or had. */
struct consumer_settings {
    int generation; /* the highest one is in force */
    const char *events, *where;
    enum order order;
    int lanes;
    int64_t since;  /* wall ms */
    const char *by; /* NULL: unknown */
};
#define STORE_GENERATIONS 100 /* how many settings of a consumer are remembered */

#endif
