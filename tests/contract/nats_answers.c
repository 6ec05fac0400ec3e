/* The outcome of events for each answer of JetStream. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nats_peer.h"

/* refused_until_stream checks that an event is refused, for a while without asking again, until a
 * stream accepts it. */
static void refused_until_stream(struct peer *p, const char *words, const char *config)
{
    struct sink_item *it = run_one(p, "{\"n\":1}");
    assert_int_equal(it->status, SINK_REFUSED);
    sink_assert_says(it, words);
    sink_rig_freeze(&p->rig);
    it = run_one(p, "{\"n\":2}");
    assert_int_equal(it->status, SINK_REFUSED);
    sink_assert_says(it, words);
    p->rig.frozen_ns = 0;
    nats_server_stream(&server, "S", config);
    p->rig.ahead_ns += 100 * MS_NS;
    sink_rig_passes_again(&p->rig);
    assert_int_equal(nats_server_count(&server, "S"), 2);
}

static void stored_event_has_its_stream_position_as_receipt(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    assert_string_equal(run_one(p, "2")->receipt, "S/2");
    const struct hwm *marks;
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &marks), 1);
    assert_true(str_is(marks[0].stream, "S"));
    assert_int_equal(marks[0].hi, 2);
}

static void events_are_refused_until_the_stream_is_created(void **state)
{
    struct peer *p = *state;
    js_DeleteStream(server.js, "S", NULL, NULL);
    open_with(p, "s", "stream=S");
    refused_until_stream(p, "has no stream S", "{\"subjects\":[\"s\"]}");
}

/* At first the sink assumes a missing leader. Then it looks the stream up. */
static void events_are_refused_until_a_deleted_stream_is_recreated(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S");
    assert_int_equal(run_one(p, "0")->status, SINK_DELIVERED);
    js_DeleteStream(server.js, "S", NULL, NULL);
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "no leader, or was deleted");
    sink_rig_again(&p->rig);
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_REFUSED);
    sink_assert_says(it, "has no stream S");
    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"]}");
    p->rig.ahead_ns += 100 * MS_NS;
    sink_rig_passes_again(&p->rig);
    assert_int_equal(nats_server_count(&server, "S"), 1);
}

static void stream_without_our_subject_is_refused(void **state)
{
    struct peer *p = *state;
    nats_server_stream(&server, "S", "{\"subjects\":[\"x.*\"]}");
    open_with(p, "s", "stream=S");
    refused_until_stream(p, "the stream accepts x.*; the events go to s", "{\"subjects\":[\"s\"]}");
}

static void stream_that_never_acknowledges_is_refused(void **state)
{
    struct peer *p = *state;
    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"],\"no_ack\":true}");
    open_with(p, "s", "stream=S");
    refused_until_stream(p, "no_ack", "{\"subjects\":[\"s\"]}");
}

static void stream_is_created_only_if_configured(void **state)
{
    struct peer *p = *state;
    jsStreamInfo *info = NULL;
    js_DeleteStream(server.js, "S", NULL, NULL);
    open_with(p, "s.{type}", "stream=S&create=on");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    assert_int_equal(js_GetStreamInfo(&info, server.js, "S", NULL, NULL), NATS_OK);
    assert_int_equal(info->Config->SubjectsLen, 1);
    assert_string_equal(info->Config->Subjects[0], "s.>");
    assert_int_equal(info->Config->Storage, js_FileStorage);
    assert_int_equal(info->Config->Discard, js_DiscardNew);
    jsStreamInfo_Destroy(info);
}

static void full_stream_is_down_until_space_is_freed(void **state)
{
    struct peer *p = *state;
    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"],\"max_msgs\":2,\"discard\":\"new\"}");
    open_with(p, "s", "stream=S");
    run_one(p, "1");
    assert_int_equal(run_one(p, "2")->status, SINK_DELIVERED);
    struct sink_item *it = run_one(p, "3");
    assert_int_equal(it->status, SINK_DOWN);
    assert_int_equal(it->native, 10077);
    sink_assert_says(it, "maximum messages exceeded");
    js_PurgeStream(server.js, "S", NULL, NULL);
    sink_rig_passes_again(&p->rig);
}

/* A stream that is full for one subject accepts the others. */
static void full_subject_refuses_only_its_own_events(void **state)
{
    struct peer *p = *state;
    nats_server_stream(&server, "S",
                       "{\"subjects\":[\"s.*\"],\"max_msgs_per_subject\":1,\"discard\":\"new\","
                       "\"discard_new_per_subject\":true}");
    open_with(p, "s.{aggregate_type}", "stream=S");
    static const char *const types[] = {"a", "a", "b"};
    for (size_t i = 0; i < 3; i++)
        sink_rig_add(&p->rig, "1", 0)->ev.aggregate_type = str_of(types[i]);
    sink_rig_run(&p->rig);
    assert_int_equal(p->rig.items[1]->status, SINK_REFUSED);
    assert_int_equal(p->rig.items[1]->native, 10077);
    assert_int_equal(p->rig.items[0]->status, SINK_DELIVERED);
    assert_int_equal(p->rig.items[2]->status, SINK_DELIVERED);
}

static void event_over_the_streams_size_limit_is_rejected_unsent(void **state)
{
    struct peer *p = *state;
    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"],\"max_msg_size\":1000}");
    open_with(p, "s", "stream=S");
    sink_rig_add(&p->rig, "1", 0);
    sink_item_enlarge(sink_rig_add(&p->rig, "2", 0), 1000);
    sink_rig_add(&p->rig, "3", 0);
    sink_rig_run(&p->rig);
    assert_int_equal(p->rig.items[1]->status, SINK_REJECT);
    sink_assert_says(p->rig.items[1], "the stream's max_msg_size is 1000");
    assert_int_equal(nats_server_count(&server, "S"), 2);
}

static void update(const char *json)
{
    natsMsg *reply = NULL;
    assert_int_equal(
        natsConnection_RequestString(&reply, server.nc, "$JS.API.STREAM.UPDATE.S", json, 10000),
        NATS_OK);
    assert_null(strstr(natsMsg_GetData(reply), "\"error\""));
    natsMsg_Destroy(reply);
}

static void event_too_large_for_the_server_is_rejected(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    update("{\"name\":\"S\",\"subjects\":[\"s\",\"s.>\"],\"max_msg_size\":1000}");
    sink_item_enlarge(sink_rig_add(&p->rig, "2", 0), 1000);
    sink_rig_add(&p->rig, "3", 0);
    sink_rig_run(&p->rig);
    assert_int_equal(p->rig.items[1]->status, SINK_REJECT);
    assert_int_equal(p->rig.items[1]->native, 10054);
    assert_int_equal(p->rig.items[2]->status, SINK_DELIVERED);
}

static void subject_of_another_stream_is_refused(void **state)
{
    struct peer *p = *state;
    nats_server_stream(&server, "T", "{\"subjects\":[\"order\"]}");
    open_with(p, "{aggregate_type}", "stream=S");
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_REFUSED);
    assert_int_equal(it->native, 10060);
    assert_int_equal(nats_server_count(&server, "T"), 0);
    js_DeleteStream(server.js, "T", NULL, NULL);
}

static void only_the_subject_without_a_stream_is_refused(void **state)
{
    struct peer *p = *state;
    open_with(p, "{aggregate_type}", "stream=S");
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_REFUSED);
    sink_assert_says(it, "stream S does not include the subject order");
    it = sink_rig_add(&p->rig, "2", 0);
    it->ev.aggregate_type = STR("s");
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_DELIVERED);
}

static void subject_without_publish_permission_is_refused(void **state)
{
    struct peer *p = *state;
    setenv("OUTBOX_NATS_PASSWORD", "guest", 1);
    open_with(p, "s.secret", "stream=S&user=guest");
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_REFUSED);
    sink_assert_says(it, "the user may not publish to s.secret");
    sink_rig_release(&p->rig);

    sink_rig_init(&p->rig);
    open_with(p, "s.{aggregate_type}", "stream=S&user=guest");
    it = sink_rig_add(&p->rig, "1", 0);
    it->ev.aggregate_type = STR("secret");
    sink_rig_add(&p->rig, "2", 0);
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_REFUSED);
    assert_int_equal(p->rig.items[1]->status, SINK_DELIVERED);
}

/* send_again sends the same five events once more, with another sink, after a pause. */
static void send_again(struct peer *p, const char *query, useconds_t pause)
{
    sink_rig_release(&p->rig);
    sink_rig_init(&p->rig);
    usleep(pause);
    open_with(p, "s", query);
    sink_rig_add_many(&p->rig, 5, 20);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
}

static void resent_event_is_stored_once(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S");
    sink_rig_add_many(&p->rig, 5, 20);
    sink_rig_run(&p->rig);
    send_again(p, "stream=S&lookback=0", 0);
    assert_int_equal(nats_server_count(&server, "S"), 5);
    assert_string_equal(p->rig.items[4]->receipt, "S/5");
}

/* The second half shows that the first is due to looking back. */
static void lookup_finds_events_older_than_the_duplicate_window(void **state)
{
    struct peer *p = *state;
    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"],\"duplicate_window\":100000000}");
    open_with(p, "s", "stream=S");
    sink_rig_add_many(&p->rig, 5, 20);
    sink_rig_run(&p->rig);
    send_again(p, "stream=S", 300000);
    assert_int_equal(nats_server_count(&server, "S"), 5);
    assert_string_equal(p->rig.items[4]->receipt, "S/5");
    send_again(p, "stream=S&lookback=0", 300000);
    assert_int_equal(nats_server_count(&server, "S"), 10);
}

static void two_consumers_of_a_stream_do_not_deduplicate_each_other(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S");
    run_one(p, "1");
    header_is(1, "Nats-Msg-Id", "00000000-0000-7000-8000-000000000001:search");
    sink_rig_release(&p->rig);
    sink_rig_init(&p->rig);
    open_with(p, "s", "stream=S&msg-id=event");
    run_one(p, "1");
    header_is(2, "Nats-Msg-Id", "00000000-0000-7000-8000-000000000001");
}

/* cautions_about returns the caution of a sink that has examined a stream with these settings. */
static void cautions_about(struct peer *p, const char *config, const char *query, const char *want)
{
    nats_server_stream(&server, "S", config);
    open_with(p, "s", query);
    run_one(p, "1");
    const char *said = p->rig.sk->ops->caution(p->rig.sk);
    if (!said || !strstr(said, want))
        fail_msg("\"%s\" is not in \"%s\"", want, said ? said : "");
    assert_ptr_equal(p->rig.sk->ops->caution(p->rig.sk), said);
    sink_rig_release(&p->rig);
    sink_rig_init(&p->rig);
}

static void stream_settings_that_lose_events_are_reported(void **state)
{
    struct peer *p = *state;
    static const char *const cases[][2] = {
        {"{\"subjects\":[\"s\"]}", "one replica"},
        {"{\"subjects\":[\"s\"],\"storage\":\"memory\"}", "storage=memory"},
        {"{\"subjects\":[\"s\"],\"max_msgs\":10}", "max_msgs drops events"},
        {"{\"subjects\":[\"s\"],\"max_age\":3600000000000,\"discard\":\"new\"}", "max_age drops"},
        {"{\"subjects\":[\"s\"],\"retention\":\"interest\"}", "retention=interest"},
        {"{\"subjects\":[\"s\"],\"retention\":\"workqueue\"}", "retention=workqueue"},
        {"{\"subjects\":[\"s\"],\"duplicate_window\":1000000000}", "duplicate_window is 1s"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        cautions_about(p, cases[i][0], "stream=S", cases[i][1]);

    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"],\"max_msgs\":10,\"discard\":\"new\"}");
    open_with(p, "s", "stream=S");
    run_one(p, "1");
    assert_null(strstr(p->rig.sk->ops->caution(p->rig.sk), "max_msgs"));
    assert_null(strstr(p->rig.sk->ops->caution(p->rig.sk), "duplicate_window"));
}

static void user_without_read_rights_delivers_with_a_warning(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S");
    run_one(p, "1");
    sink_rig_release(&p->rig);
    sink_rig_init(&p->rig);

    setenv("OUTBOX_NATS_PASSWORD", "narrow", 1);
    open_timed(p, "s", "stream=S&user=narrow", 2000);
    p->rig.frozen_ns = 1; /* the delivery time limit is not under test */
    sink_rig_add(&p->rig, "1", 0);
    assert_int_equal(run_one(p, "2")->status, SINK_DELIVERED);
    assert_non_null(strstr(p->rig.sk->ops->caution(p->rig.sk), "cannot be read"));
    assert_int_equal(nats_server_count(&server, "S"), 2);
}

static const struct CMUnitTest tests[] = {
    OWN(stored_event_has_its_stream_position_as_receipt),
    OWN(events_are_refused_until_the_stream_is_created),
    OWN(events_are_refused_until_a_deleted_stream_is_recreated),
    OWN(stream_without_our_subject_is_refused),
    OWN(stream_that_never_acknowledges_is_refused),
    OWN(stream_is_created_only_if_configured),
    OWN(full_stream_is_down_until_space_is_freed),
    OWN(full_subject_refuses_only_its_own_events),
    OWN(event_over_the_streams_size_limit_is_rejected_unsent),
    OWN(event_too_large_for_the_server_is_rejected),
    OWN(subject_of_another_stream_is_refused),
    OWN(only_the_subject_without_a_stream_is_refused),
    OWN(subject_without_publish_permission_is_refused),
    OWN(resent_event_is_stored_once),
    OWN(lookup_finds_events_older_than_the_duplicate_window),
    OWN(two_consumers_of_a_stream_do_not_deduplicate_each_other),
    OWN(stream_settings_that_lose_events_are_reported),
    OWN(user_without_read_rights_delivers_with_a_warning),
};
const struct suite_part nats_answers_tests = SUITE_PART(tests);
