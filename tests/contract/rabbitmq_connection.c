/* Logging in, staying connected, and losing the connection. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rabbitmq_peer.h"
#include "sink/rabbitmq_impl.h"

static struct rabbit_conn *conn_of(const struct peer *p)
{
    return &((struct rabbitmq_sink *)p->rig.sk)->conn;
}

static void drive(struct peer *p)
{
    p->rig.sk->ops->drive(p->rig.sk);
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void wrong_password_is_down_and_never_shown(void **state)
{
    struct peer *p = *state;
    setenv(RABBITMQ_PASSWORD_ENV, "s3cret-s3cret", 1);
    open_with(p, "user=guest");
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_DOWN);
    assert_int_equal(it->native, AMQP_ACCESS_REFUSED);
    sink_assert_says(it, "refused the login");
    assert_null(strstr(it->text, "s3cret"));
}

/* The password file is read at each login, so a password can be changed under way. */
static void password_file_is_reread(void **state)
{
    struct peer *p = *state;
    char dir[SINK_PATH_SIZE], file[SINK_PATH_SIZE + 8], query[SINK_PATH_SIZE + 64];
    sink_tmp_new(dir);
    snprintf(file, sizeof file, "%s/pw", dir);
    sink_tmp_write(file, "wrong\n");
    snprintf(query, sizeof query, "user=guest&password-file=%s", file);
    open_with(p, query);
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_tmp_write(file, "guest\n");
    sink_rig_passes_again(&p->rig);
    sink_tmp_remove(dir);
}

static void missing_virtual_host_is_down(void **state)
{
    struct peer *p = *state;
    snprintf(p->url, sizeof p->url, "amqp://127.0.0.1:%d/nowhere/orders", broker.port);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_DOWN);
    assert_int_equal(it->native, AMQP_NOT_ALLOWED);
    sink_assert_says(it, "vhost nowhere not found");
}

/* The first node that answers is used; the others are tried in turn. */
static void other_nodes_are_tried_in_turn(void **state)
{
    struct peer *p = *state;
    snprintf(p->url, sizeof p->url, "amqp://127.0.0.1:1,127.0.0.1:%d/%%2F/orders", broker.port);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    sink_rig_release(&p->rig);

    sink_rig_init(&p->rig);
    sink_rig_open(&p->rig, (struct sink_config){.url = "amqp://127.0.0.1:1,127.0.0.1:2/%2F/orders",
                                                .timeout_ms = 10000});
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "could not reach rabbitmq at 127.0.0.1:2");
}

static const char close_all[] = "[rabbit_networking:close_connection(C, \"by a test\") || "
                                "C <- rabbit_networking:connections()].";

/* Every unconfirmed event is returned, and passes on the next connection. */
static void connection_closed_by_the_broker_is_reopened(void **state)
{
    struct peer *p = *state;
    open_with(p, "");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    rabbitmq_server_hang_up(&broker);
    rabbitmq_server_tell(&broker, "pause");
    sink_rig_add_many(&p->rig, 50, 10);
    sink_rig_submit(&p->rig);
    drive(p);
    rabbitmq_server_tell(&broker, "cont");
    rabbitmq_server_tell(&broker, "eval %s", close_all);
    sink_rig_run(&p->rig);
    for (size_t i = 0; i < p->rig.n; i++)
        assert_true(p->rig.items[i]->status == SINK_DELIVERED ||
                    p->rig.items[i]->status == SINK_DOWN);
    sink_rig_passes_again(&p->rig);
}

static void closed_idle_connection_does_not_fail_events(void **state)
{
    struct peer *p = *state;
    open_with(p, "");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    rabbitmq_server_hang_up(&broker);
    rabbitmq_server_tell(&broker, "eval %s", close_all);
    pause_ms(100);
    assert_int_equal(run_one(p, "2")->status, SINK_DELIVERED);
}

/* The broker ends a connection that is silent for two heartbeats: ours is not. */
static void heartbeats_keep_an_idle_connection_open(void **state)
{
    struct peer *p = *state;
    open_with(p, "heartbeat=1s");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    int64_t until = clock_mono(&clock_system) + 4000 * MS_NS;
    while (clock_mono(&clock_system) < until) {
        drive(p);
        assert_true(p->rig.sk->ops->deadline(p->rig.sk) < clock_mono(&clock_system) + 1000 * MS_NS);
        pause_ms(100);
    }
    assert_int_equal(conn_of(p)->wire.state, WIRE_READY);
    assert_int_equal(run_one(p, "2")->status, SINK_DELIVERED);
}

/* A broker that hangs, or a network that swallows everything, is found out. */
static void silent_broker_is_abandoned_after_two_heartbeats(void **state)
{
    struct peer *p = *state;
    open_with(p, "heartbeat=2s");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    rabbitmq_server_tell(&broker, "pause");
    struct sink_item *it = sink_rig_add(&p->rig, "2", 0);
    sink_rig_submit(&p->rig);
    drive(p);
    assert_int_equal(it->answers, 0);
    p->rig.ahead_ns += 4100 * MS_NS;
    drive(p);
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "silent for two heartbeats");
    rabbitmq_server_tell(&broker, "cont");
    sink_rig_passes_again(&p->rig);
}

static void broker_that_does_not_confirm_is_down_in_time(void **state)
{
    struct peer *p = *state;
    open_with(p, "heartbeat=0s");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    rabbitmq_server_tell(&broker, "pause");
    struct sink_item *it = sink_rig_add(&p->rig, "2", 0);
    sink_rig_submit(&p->rig);
    drive(p);
    p->rig.ahead_ns += 10100 * MS_NS;
    drive(p);
    rabbitmq_server_tell(&broker, "cont");
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "has not confirmed for 10000 ms");
    sink_rig_passes_again(&p->rig);
}

static void probe_checks_everything_and_delivers_nothing(void **state)
{
    struct peer *p = *state;
    struct error err;
    open_with(p, "");
    assert_int_equal(p->rig.sk->ops->probe(p->rig.sk, 10000, &err), 0);
    sink_rig_release(&p->rig);
    sink_rig_init(&p->rig);
    open_to(p, "absent", "");
    assert_int_equal(p->rig.sk->ops->probe(p->rig.sk, 10000, &err), -1);
    assert_non_null(strstr(err.text, "no exchange 'absent'"));
    assert_int_equal(messages("q"), 0);
}

static const struct CMUnitTest tests[] = {
    OWN(wrong_password_is_down_and_never_shown),
    OWN(password_file_is_reread),
    OWN(missing_virtual_host_is_down),
    OWN(other_nodes_are_tried_in_turn),
    OWN(connection_closed_by_the_broker_is_reopened),
    OWN(closed_idle_connection_does_not_fail_events),
    OWN(heartbeats_keep_an_idle_connection_open),
    OWN(silent_broker_is_abandoned_after_two_heartbeats),
    OWN(broker_that_does_not_confirm_is_down_in_time),
    OWN(probe_checks_everything_and_delivers_nothing),
};
const struct suite_part rabbitmq_connection_tests = SUITE_PART(tests);

/* Over TLS */

static void invalid_certificate_is_refused(void **state)
{
    struct peer *p = *state;
    snprintf(p->url, sizeof p->url, "amqps://127.0.0.1:%d/%%2F/orders", broker.tls_port);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "the server's certificate is not valid");
}

static void client_certificate_login_works(void **state)
{
    struct peer *p = *state;
    char query[600];
    snprintf(query, sizeof query, "cert=%s/courier.crt&key=%s/courier.key", broker.dir, broker.dir);
    open_with(p, query);
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "EXTERNAL");

    erlang("rabbit_auth_backend_internal:add_user(<<\"courier\">>, <<\"unused\">>, <<\"t\">>), "
           "rabbit_auth_backend_internal:set_permissions(<<\"courier\">>, <<\"/\">>, <<\"^$\">>, "
           "<<\"orders\">>, <<\"^$\">>, <<\"t\">>).");
    sink_rig_passes_again(&p->rig);
    erlang("rabbit_auth_backend_internal:delete_user(<<\"courier\">>, <<\"t\">>).");
}

static void events_and_confirms_pass_through_tls(void **state)
{
    struct peer *p = *state;
    open_with(p, "");
    sink_rig_add_many(&p->rig, 1000, 300);
    sink_item_enlarge(sink_rig_add(&p->rig, "1", 0), 3 << 20);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    assert_int_equal(messages("q"), 1001);
}

static int secured_setup(void **state)
{
    secured = true;
    return rabbitmq_peer_setup(state);
}

static int secured_teardown(void **state)
{
    secured = false;
    return rabbitmq_peer_teardown(state);
}

#define OWN_TLS(fn) cmocka_unit_test_setup_teardown(fn, secured_setup, secured_teardown)

static const struct CMUnitTest tls[] = {
    OWN_TLS(events_and_confirms_pass_through_tls),
    OWN_TLS(invalid_certificate_is_refused),
    OWN_TLS(client_certificate_login_works),
};
const struct suite_part rabbitmq_tls_tests = SUITE_PART(tls);
