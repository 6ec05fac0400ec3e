/* redis_chains.c: events of one key that are sent together. None overtakes a failed one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis/url.h"
#include "redis_peer.h"

/* add_chain queues n events of one key. */
static void add_chain(struct peer *p, size_t n)
{
    sink_rig_add_many(&p->rig, n, 64);
    for (size_t i = 0; i < p->rig.n; i++)
        p->rig.items[i]->d.chained = true;
}

/* delivered counts the events at the front that are delivered. */
static size_t delivered(const struct sink_rig *rig)
{
    size_t n = 0;
    while (n < rig->answered && rig->items[n]->status == SINK_DELIVERED)
        n++;
    return n;
}

/* finish drives the sink until every accepted event is answered. */
static void finish(struct sink_rig *rig)
{
    while (rig->answered < rig->accepted) {
        rig->sk->ops->drive(rig->sk);
        if (rig->answered < rig->accepted)
            sink_rig_wait(rig);
    }
}

/* run_chain acts like the engine: it offers refused events again, once everything before them has
 * ended. It stops at an event that was not delivered, and returns how many were. */
static size_t run_chain(struct peer *p)
{
    struct sink_rig *rig = &p->rig;
    size_t good = delivered(rig);
    while (good == rig->answered && good < rig->n) {
        rig->items[rig->accepted]->d.chained = false;
        sink_rig_submit(rig);
        finish(rig);
        good = delivered(rig);
    }
    for (size_t i = good + 1; i < rig->answered; i++)
        assert_true(rig->items[i]->status == SINK_CANCELLED || rig->items[i]->status == SINK_DOWN);
    for (size_t i = 0; i < rig->answered; i++)
        assert_int_equal(rig->items[i]->answers, 1);
    return good;
}

/* again requeues the undelivered events as a chain. */
static void again(struct peer *p)
{
    sink_rig_again(&p->rig);
    for (size_t i = p->rig.accepted; i < p->rig.n; i++)
        p->rig.items[i]->d.chained = true;
}

/* first_arrivals_are_in_order checks that the stream has every event of the rig, and that none
 * arrived before its predecessor. Repeats may be anywhere. */
static void first_arrivals_are_in_order(struct peer *p)
{
    redisReply *r = redis_do(&server, "XRANGE s - +");
    size_t next = 0;
    for (size_t i = 0; i < r->elements && next < p->rig.n; i++) {
        const char *text = r->element[i]->element[1]->element[1]->str;
        if (strstr(text, p->rig.items[next]->id))
            next++;
        for (size_t k = next + 1; k < p->rig.n && k < next + 3; k++)
            assert_null(strstr(text, p->rig.items[k]->id));
    }
    assert_int_equal(next, p->rig.n);
    freeReplyObject(r);
}

/* calls counts the calls of a command since the counts were reset; XADDs of scripts included. */
static long calls(const char *command)
{
    char words[64];
    redisReply *r = redis_do(&server, "INFO commandstats");
    snprintf(words, sizeof words, "cmdstat_%s:calls=", command);
    const char *at = strstr(r->str, words);
    long n = at ? strtol(at + strlen(words), NULL, 10) : 0;
    freeReplyObject(r);
    return n;
}

static void chain_is_appended_in_order_by_few_scripts(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "CONFIG RESETSTAT");
    add_chain(p, 1000);
    assert_int_equal(run_chain(p), 1000);
    assert_in_range(calls("eval"), 4, 8);
    redisReply *r = redis_do(&server, "XRANGE s - +");
    assert_int_equal(r->elements, 1000);
    for (size_t i = 0; i < 1000; i++)
        assert_string_equal(r->element[i]->element[0]->str, p->rig.items[i]->receipt);
    freeReplyObject(r);
    first_arrivals_are_in_order(p);
}

static void short_chains_and_single_events_do_not_need_a_script(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "CONFIG RESETSTAT");
    add_chain(p, 3);
    assert_int_equal(run_chain(p), 3);
    sink_rig_add_many(&p->rig, 100, 64);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    assert_int_equal(calls("eval"), 0);
    first_arrivals_are_in_order(p);
}

/* The stream has five ids left, so the sixth event fails. Sent alone, it gets the reason. */
static void chain_stops_at_the_event_that_fails(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "XADD s 18446744073709551615-18446744073709551610 event {}");
    add_chain(p, 100);
    assert_int_equal(run_chain(p), 5);
    assert_int_equal(p->rig.answered, 100);
    assert_int_equal(p->rig.items[5]->status, SINK_CANCELLED);
    assert_int_equal(entries("s"), 6);

    again(p);
    assert_int_equal(run_chain(p), 5);
    assert_int_equal(p->rig.answered, 6);
    assert_int_equal(p->rig.items[5]->status, SINK_REFUSED);
    sink_assert_says(p->rig.items[5], "XSETID");
    assert_int_equal(entries("s"), 6);
    redis_set(&server, "DEL s");
    again(p);
    assert_int_equal(run_chain(p), 100);
    assert_int_equal(entries("s"), 95);
}

static void refused_chain_is_retried_by_commands_then_by_scripts(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "CONFIG SET maxmemory 1");
    add_chain(p, 200);
    assert_int_equal(run_chain(p), 0);
    again(p);
    assert_int_equal(run_chain(p), 0);
    assert_int_equal(p->rig.items[0]->status, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "OOM");

    redis_set(&server, "CONFIG SET maxmemory 0");
    redis_set(&server, "CONFIG RESETSTAT");
    again(p);
    assert_int_equal(run_chain(p), 200);
    assert_int_equal(calls("eval"), 1);
    first_arrivals_are_in_order(p);
}

static void key_of_the_wrong_type_stops_only_its_chain(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream={aggregate_type}");
    redis_set(&server, "SET bad x");
    add_chain(p, 20);
    for (size_t i = 0; i < 20; i++)
        p->rig.items[i]->ev.aggregate_type = i < 10 ? STR("s") : STR("bad");
    p->rig.items[0]->d.chained = false;
    p->rig.items[10]->d.chained = false; /* it has another key */
    assert_int_equal(sink_rig_submit(&p->rig), 20);
    finish(&p->rig);
    for (size_t i = 0; i < 20; i++)
        assert_int_equal(p->rig.items[i]->status, i < 10 ? SINK_DELIVERED : SINK_CANCELLED);
    assert_int_equal(entries("s"), 10);
    again(p);
    assert_int_equal(run_chain(p), 10);
    assert_int_equal(p->rig.items[10]->status, SINK_REFUSED);
}

static void chain_is_split_where_its_stream_changes(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream={aggregate_type}");
    add_chain(p, 30);
    for (size_t i = 10; i < 20; i++)
        p->rig.items[i]->ev.aggregate_type = STR("other");
    p->rig.items[0]->d.chained = false;
    assert_int_equal(sink_rig_submit(&p->rig), 10);
    assert_int_equal(sink_rig_submit(&p->rig), 0); /* not before the first ten have ended */
    finish(&p->rig);
    assert_int_equal(run_chain(p), 30);
    assert_int_equal(entries("other"), 10);
}

/* An event that its format cannot express is rejected alone, also out of the middle of a script. */
static void only_an_event_that_a_format_cannot_express_is_rejected(void **state)
{
    struct peer *p = *state;
    static char headers[4096];
    size_t n = 0;
    for (int i = 0; i < 200; i++)
        n += (size_t)snprintf(headers + n, sizeof headers - n, "%s\"h%d\":\"\"", i ? "," : "{", i);
    snprintf(headers + n, sizeof headers - n, "}");
    open_with(p, "stream=s&format=plain");
    add_chain(p, 10);
    p->rig.items[6]->ev.headers = str_of(headers);
    assert_int_equal(run_chain(p), 6);
    assert_int_equal(p->rig.items[6]->status, SINK_REJECT);
    sink_assert_says(p->rig.items[6], "too many headers");
    assert_int_equal(entries("s"), 6);
}

/* The server may have appended any part of a script before it died. */
static void chain_keeps_its_order_when_the_server_dies(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    for (size_t i = 1; i <= 8; i++) {
        add_chain(p, 200);
        p->rig.items[p->rig.accepted]->d.chained = false;
        assert_int_equal(sink_rig_submit(&p->rig), 200);
        p->rig.sk->ops->drive(p->rig.sk);
        redis_server_kill(&server);
        finish(&p->rig);
        redis_server_start(&server, true);
        again(p);
        assert_int_equal(run_chain(p), i * 200);
    }
    first_arrivals_are_in_order(p);
}

static void flushed_scripts_are_reloaded(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    add_chain(p, 20);
    assert_int_equal(run_chain(p), 20);
    redis_set(&server, "SCRIPT FLUSH");
    add_chain(p, 20);
    assert_int_equal(run_chain(p), 40);
}

static void server_without_scripts_gets_single_events_and_a_warning(void **state)
{
    struct peer *p = *state;
    setenv(REDIS_PASSWORD_ENV, "pw", 1);
    redis_set(&server, "ACL SETUSER relay on >pw ~* +xadd +client");
    open_with(p, "user=relay&stream=s");
    assert_null(p->rig.sk->ops->caution(p->rig.sk));
    add_chain(p, 200);
    assert_int_equal(run_chain(p), 0);
    assert_int_equal(p->rig.items[0]->status, SINK_CANCELLED);
    const char *caution = p->rig.sk->ops->caution(p->rig.sk);
    assert_non_null(caution);
    assert_non_null(strstr(caution, "allow EVAL"));

    again(p);
    assert_int_equal(run_chain(p), 200);
    first_arrivals_are_in_order(p);

    /* The sink checks again after a minute. */
    redis_set(&server, "ACL SETUSER relay +eval");
    redis_set(&server, "CONFIG RESETSTAT");
    p->rig.ahead_ns += INT64_C(61000) * MS_NS;
    add_chain(p, 20);
    assert_int_equal(run_chain(p), 220);
    assert_int_equal(calls("eval"), 1);
    redis_set(&server, "ACL DELUSER relay");
}

static void limits_and_marks_apply_to_chains(void **state)
{
    struct peer *p = *state;
    const struct hwm *m;
    char id[64];
    open_with(p, "stream=s&maxlen=100");
    add_chain(p, 1000);
    assert_int_equal(run_chain(p), 1000);
    assert_in_range(entries("s"), 100, 300);
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 1);
    snprintf(id, sizeof id, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    assert_string_equal(id, p->rig.items[999]->receipt);
}

static void chain_waits_for_replicas(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&replicas=1&replicas-wait=10ms");
    add_chain(p, 20);
    assert_int_equal(run_chain(p), 0);
    assert_int_equal(entries("s"), 20);
    assert_int_equal(p->rig.items[0]->status, SINK_DOWN);
    assert_int_equal(p->rig.items[19]->status, SINK_DOWN);
}

static const struct CMUnitTest tests[] = {
    OWN(only_an_event_that_a_format_cannot_express_is_rejected),
    OWN(chain_is_appended_in_order_by_few_scripts),
    OWN(short_chains_and_single_events_do_not_need_a_script),
    OWN(chain_stops_at_the_event_that_fails),
    OWN(refused_chain_is_retried_by_commands_then_by_scripts),
    OWN(key_of_the_wrong_type_stops_only_its_chain),
    OWN(chain_is_split_where_its_stream_changes),
    OWN(chain_keeps_its_order_when_the_server_dies),
    OWN(flushed_scripts_are_reloaded),
    OWN(server_without_scripts_gets_single_events_and_a_warning),
    OWN(limits_and_marks_apply_to_chains),
    OWN(chain_waits_for_replicas),
};

const struct suite_part redis_chains_tests = SUITE_PART(tests);
