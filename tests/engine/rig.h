/* rig.h: pipelines on a store in memory, with a clock that the test moves and a scripted sink. */
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/pipeline.h"

#define RIG_INFLIGHT 64
#define RIG_PIPELINES 3
#define RIG_SEEN 20000

struct rig;

/* A sink that keeps deliveries until the test ends them or, if it has an `answer`, until it is
 * driven. */
struct model {
    struct sink base;
    struct rig *g;
    struct delivery *d[RIG_INFLIGHT];
    size_t n, capacity;
    bool hold; /* the test ends deliveries itself */
    enum sink_status (*answer)(struct model *m, const struct delivery *d);
    int64_t answer_ctx;
    bool unasked;    /* the sink answers without contacting its peer */
    int64_t busy_ms; /* it answers from within submit, after this time, as handlers do */
    bool attended;   /* it waits for the peer's answer on `asked_fd` */
    int asked_fd;
    const char *finds; /* the answer, passed on at the next drive */
    const char *told;
};

struct worker {
    struct consumer c;
    struct store *st;
    struct pipeline *p;
    struct model *sk;
    char owner[16];
};

/* The deliveries that reached the other side, in order. */
struct arrival {
    int64_t seq;
    int attempt;
    uint64_t key;
    int who;
};

struct rig {
    struct store *st;
    int64_t mono, wall;
    struct clock clock;
    struct rng rng;
    struct suspects suspects;
    bool (*gone)(const char *owner); /* see pipeline_config */
    unsigned caps;
    size_t capacity;
    bool stand_by; /* for workers started from now on: see pipeline_config */
    int64_t settle_wait_ms;
    struct worker w[RIG_PIPELINES];
    struct arrival *seen;
    size_t n_seen;
    struct arena looked; /* the strings of the last rig_look */
    struct log log;
    char last_log[1024];
};

/* Answers of a model sink: event number answer_ctx fails, always or in its first two attempts; all
 * others are delivered. */
enum sink_status rig_retry_one(struct model *m, const struct delivery *d);
enum sink_status rig_retry_twice(struct model *m, const struct delivery *d);

int rig_setup(void **state);
int rig_teardown(void **state);
#define ON_A_RIG(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)

/* rig_worker starts pipeline i with options as "name=value" strings, ended by NULL. Its consumer is
 * "c", unless the first option is "consumer=NAME". rig_start starts it again after a crash. */
struct worker *rig_worker(struct rig *g, int i, ...) __attribute__((sentinel));
void rig_start(struct rig *g, int i);
/* rig_crash ends worker i as kill -9 would: nothing is settled, and deliveries in flight are
 * forgotten. */
void rig_crash(struct rig *g, int i);
void rig_pass(struct rig *g, int64_t ms);
void rig_emit(struct rig *g, const char *key);
void rig_emit_at(struct rig *g, const char *key, int64_t not_before);
/* rig_step steps worker i until it has no work at the current time. */
void rig_step(struct rig *g, int i);
/* rig_end ends the k-th delivery that worker i's sink has. */
void rig_end(struct rig *g, int i, size_t k, enum sink_status status);
/* rig_run steps worker i and moves the clock until the worker has caught up, for at most `ms`. It
 * returns whether it has. */
bool rig_run(struct rig *g, int i, int64_t ms);
/* rig_look returns the state of consumer c. Its strings live until the next call. */
struct consumer_info rig_look(struct rig *g);

/* rig_assert_seen checks which events have arrived, by their numbers; SAW(1, 2) does so for a test
 * whose rig is g. */
void rig_assert_seen(const struct rig *g, size_t n, const int64_t *want);
#define SAW(...) \
    rig_assert_seen(g, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
                    (const int64_t[]){__VA_ARGS__})

#endif
