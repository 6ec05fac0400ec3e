/* Sinks without a peer, with every allocation failing in turn: no event is rejected, refused or
 * counted as tried for a lack of memory, and each is answered exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../lib/rounds.h"
#include "../unit/full_event.h"
#include "fail.h"
#include "sink/sink.h"
#ifdef OUTBOX_NATS
#include "sink/nats_impl.h"
#endif

#define EVENTS 3

struct answers {
    size_t n[EVENTS];
    enum sink_status status[EVENTS];
    char text[300];
    struct delivery d[EVENTS];
};

static void take_answer(void *ctx, struct delivery *d, const struct sink_result *r)
{
    struct answers *a = ctx;
    size_t i = (size_t)(d - a->d);
    a->n[i]++;
    a->status[i] = r->status;
    snprintf(a->text, sizeof a->text, "%s", r->text ? r->text : "");
}

/* A sink that keeps order takes no event behind one that it has returned: that event would overtake
 * it. */
static void nothing_behind_is_in_flight(const struct answers *a, size_t took, long at)
{
    bool returned = false;
    for (size_t i = 0; i < took; i++) {
        if (returned && a->n[i] == 0)
            fail_msg("allocation %ld: event %zu was accepted behind a returned one", at, i);
        returned = returned || (a->n[i] > 0 && a->status[i] != SINK_DELIVERED);
    }
}

/* deliver offers events to a sink, and ends those it took. Returns whether an allocation failed. */
static bool deliver(const char *url, long at)
{
    struct answers a = {0};
    struct delivery *d[EVENTS];
    struct event ev[EVENTS];
    struct sink *sk;
    struct error err;
    const struct sink_ops *ops;
    struct sink_config cfg = {.url = url,
                              .consumer = "c",
                              .timeout_ms = 60000,
                              .concurrency = 4,
                              .lanes = 1,
                              .clock = &clock_system,
                              .done = take_answer,
                              .done_ctx = &a};
    assert_int_equal(sink_find(url, &ops, &err), 0);
    if (ops->open(&cfg, &sk, &err) != 0)
        fail_msg("%s: %s", url, err.text);
    for (size_t i = 0; i < EVENTS; i++) {
        ev[i] = full;
        ev[i].seq = (int64_t)i + 1;
        a.d[i] = (struct delivery){.ev = &ev[i], .attempt = 1, .again = true};
        d[i] = &a.d[i];
    }

    fail_arm(FAIL_OURS, at, FAIL_ONCE);
    size_t took = ops->submit(sk, d, EVENTS);
    if (sink_caps(sk) & SINK_FAILSTOP)
        nothing_behind_is_in_flight(&a, took, at);
    ops->drive(sk);
    bool hit = fail_disarm();
    ops->cancel(sk);
    for (size_t i = 0; i < took; i++) {
        bool fair = a.status[i] == SINK_DELIVERED || a.status[i] == SINK_DOWN ||
                    a.status[i] == SINK_CANCELLED;
        if (a.n[i] != 1 || !fair)
            fail_msg("%s, allocation %ld: event %zu has %zu answers, the last %d: %s", url, at, i,
                     a.n[i], a.status[i], a.text);
    }
    ops->close(sk);
    return hit;
}

static void torture(const char *url)
{
    deliver(url, 0); /* allocated by libraries once, and kept */
    long before = fail_blocks(), at = 0;
    do
        at++;
    while (deliver(url, at));
    assert_true(at > 1);
    for (int i = 0; i < 500 && fail_blocks() > before; i++)
        usleep(10000); /* threads that are connecting end a moment later */
    if (fail_blocks() > before)
        fail_msg("%s: %ld blocks left", url, fail_blocks() - before);
}

static void lack_of_memory_never_causes_a_rejection(void **state)
{
    (void)state;
    /* Nothing listens at port 1. */
    static const char *const urls[] = {
#ifdef OUTBOX_RABBITMQ
        "amqp://127.0.0.1:1/%2F/orders?routing-key={tenant}.{type}",
        "amqp://127.0.0.1:1/%2F/?routing-key={tenant}.{type}",
#endif
#ifdef OUTBOX_REDIS
        "redis://127.0.0.1:1?stream=s.{tenant}",
        "redis://127.0.0.1:1?stream=s.{tenant}&dedupe=on&format=cloudevents",
        "redis-cluster://127.0.0.1:1/?stream=s.{tenant}",
#endif
#ifdef OUTBOX_KAFKA
        "kafka://127.0.0.1:1/t.{tenant}",
        "kafka://127.0.0.1:1/t?dedupe=on",
#endif
#ifdef OUTBOX_NATS
        "nats://127.0.0.1:1/s.{tenant}?stream=S",
        "nats://127.0.0.1:1/s?stream=S&exclusive=on",
#endif
#ifdef OUTBOX_HTTP
        "http://127.0.0.1:1/x",
#endif
        "exec:true",
    };
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++)
        torture(urls[i]);
}

#ifdef OUTBOX_NATS
/* A message is created only once there is a connection, so it gets one that leads nowhere. */
static void lack_of_memory_never_makes_a_nats_message_unfit(void **state)
{
    (void)state;
    const struct sink_ops *ops;
    struct sink *sk;
    struct error err;
    struct nats_link nowhere = {.inbox = "_INBOX.x"};
    struct nats_stream stream = {.last_seq = 1};
    struct sink_config cfg = {.url = "nats://127.0.0.1:1/s.{tenant}?stream=S&format=cloudevents",
                              .consumer = "c",
                              .clock = &clock_system};
    const struct delivery d = {.ev = &full, .attempt = 1};
    bool hit = true;
    assert_int_equal(nats_Open(-1), NATS_OK);
    assert_int_equal(sink_find(cfg.url, &ops, &err), 0);
    for (long at = 1; hit; at++) {
        natsMsg *msg = NULL;
        assert_int_equal(ops->open(&cfg, &sk, &err), 0);
        struct nats_sink *n = (struct nats_sink *)sk;
        n->link = &nowhere;
        n->stream = &stream;
        fail_arm(FAIL_OURS, at, FAIL_ONCE);
        int rc = nats_message_make(n, &d, 1, &msg, &err);
        hit = fail_disarm();
        if (rc != 0 && err.code != ERR_NOMEM)
            fail_msg("allocation %ld: %d: %s", at, err.code, err.text);
        const char *id = NULL;
        if (rc == 0)
            assert_int_equal(natsMsgHeader_Get(msg, "Nats-Msg-Id", &id), NATS_OK);
        if (rc == 0)
            assert_true(strlen(id) > 30);
        natsMsg_Destroy(msg);
        n->link = NULL;
        ops->close(sk);
    }
}

/* The sink of a test, ready on a connection that goes nowhere. */
static struct nats_sink *open_ready(const struct sink_config *cfg, struct nats_link *nowhere,
                                    const struct nats_stream *stream)
{
    const struct sink_ops *ops;
    struct sink *sk;
    struct error err;
    assert_int_equal(sink_find(cfg->url, &ops, &err), 0);
    assert_int_equal(ops->open(cfg, &sk, &err), 0);
    struct nats_sink *n = (struct nats_sink *)sk;
    n->link = nowhere;
    n->stream = stream;
    n->ready = true;
    return n;
}

/* Memory runs out in the middle of a submit call, after which a new connection could be begun. */
static void chain_broken_by_lack_of_memory_never_accepts_later_events(void **state)
{
    (void)state;
    struct nats_stream stream = {.last_seq = 1};
    bool hit = true;
    assert_int_equal(nats_Open(-1), NATS_OK);
    for (long at = 1; hit; at++) {
        struct nats_link nowhere = {.inbox = "_INBOX.x", .refs = 2, .fd = -1, .handshake_fd = -1};
        struct answers a = {0};
        struct event ev[EVENTS];
        struct delivery *d[EVENTS];
        struct sink_config cfg = {.url = "nats://127.0.0.1:1/s?stream=S&exclusive=on",
                                  .consumer = "c",
                                  .lanes = 1,
                                  .clock = &clock_system,
                                  .done = take_answer,
                                  .done_ctx = &a};
        nowhere.update_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        nowhere.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        for (size_t i = 0; i < EVENTS; i++) {
            ev[i] = full;
            ev[i].seq = (int64_t)i + 1;
            a.d[i] = (struct delivery){.ev = &ev[i], .attempt = 1};
            d[i] = &a.d[i];
        }
        struct nats_sink *n = open_ready(&cfg, &nowhere, &stream);
        struct sink *sk = &n->b.base;

        fail_arm(FAIL_OURS, at, FAIL_ONCE);
        size_t took = sk->ops->submit(sk, d, EVENTS);
        hit = fail_disarm();
        nothing_behind_is_in_flight(&a, took, at);

        sk->ops->cancel(sk);
        sk->ops->close(sk);
        for (size_t i = 0; i < nowhere.outgoing.n; i++)
            natsMsg_Destroy(nowhere.outgoing.at[i].msg);
        free(nowhere.outgoing.at);
        close(nowhere.update_fd);
        close(nowhere.wake_fd);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lack_of_memory_never_causes_a_rejection),
#ifdef OUTBOX_NATS
        cmocka_unit_test(lack_of_memory_never_makes_a_nats_message_unfit),
        cmocka_unit_test(chain_broken_by_lack_of_memory_never_accepts_later_events),
#endif
    };
    fail_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
