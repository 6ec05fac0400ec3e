/* Connections: lost, stopped, refused. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "nats_peer.h"

#define BLOCKED_NS (400 * MS_NS) /* on a busy machine; libnats alone would take seconds */

static int64_t now(void)
{
    return clock_mono(&clock_system);
}

static void killed_server_is_down_and_nothing_is_stored_twice(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S");
    assert_int_equal(run_one(p, "0")->status, SINK_DELIVERED);
    sink_rig_add_many(&p->rig, 500, 100);
    sink_rig_submit(&p->rig);
    nats_server_kill(&server);
    drive_until_answered(p, p->rig.accepted);
    nats_server_start(&server, ACCOUNTS);
    sink_rig_passes_again(&p->rig);
    assert_int_equal(nats_server_count(&server, "S"), 501);
}

/* longest_call submits and drives for a while, and returns how long the longest call took. */
static int64_t longest_call(struct peer *p, int64_t for_ns)
{
    struct sink *sk = p->rig.sk;
    int64_t longest = 0, until = now() + for_ns;
    while (now() < until) {
        int64_t before = now();
        sink_rig_submit(&p->rig);
        int64_t between = now();
        sk->ops->drive(sk);
        int64_t after = now();
        if (between - before > longest)
            longest = between - before;
        if (after - between > longest)
            longest = after - between;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return longest;
}

static void stopped_server_is_down_in_time_and_never_blocks_a_call(void **state)
{
    struct peer *p = *state;
    open_timed(p, "s", "stream=S&window=4096", 5000);
    assert_int_equal(run_one(p, "0")->status, SINK_DELIVERED);
    kill(server.pid, SIGSTOP);
    sink_rig_add_many(&p->rig, 4000, 20000); /* more than all buffers together hold */
    int64_t longest = longest_call(p, 500 * MS_NS);
    p->rig.ahead_ns += 6000 * MS_NS;
    int64_t before = now();
    p->rig.sk->ops->drive(p->rig.sk);
    if (now() - before > longest)
        longest = now() - before;
    assert_int_equal(p->rig.answered, p->rig.accepted);
    assert_int_equal(p->rig.items[1]->status, SINK_DOWN);
    sink_assert_says(p->rig.items[1], "has not answered for 5000 ms");

    int64_t connecting = longest_call(p, 200 * MS_NS);
    kill(server.pid, SIGCONT);
    if (longest > BLOCKED_NS || connecting > BLOCKED_NS)
        fail_msg("a call took %lld us", (long long)(longest + connecting) / 1000);
    sink_rig_run(&p->rig);
    sink_rig_passes_again(&p->rig);
    assert_int_equal(nats_server_count(&server, "S"), 4001);
}

static void unreachable_server_never_blocks_a_call(void **state)
{
    struct peer *p = *state;
    snprintf(p->url, sizeof p->url,
             "nats://192.0.2.1:4222/s?stream=S"); /* no server answers there */
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 60000});
    sink_rig_add(&p->rig, "1", 0);
    int64_t longest = longest_call(p, 200 * MS_NS);
    int64_t before = now();
    p->rig.sk->ops->cancel(p->rig.sk);
    assert_int_equal(p->rig.items[0]->answers, 1);
    assert_true(longest < BLOCKED_NS && now() - before < BLOCKED_NS);
}

static void other_hosts_are_tried_in_turn(void **state)
{
    struct peer *p = *state;
    snprintf(p->url, sizeof p->url, "nats://127.0.0.1:1,127.0.0.1:%d/s?stream=S", server.port);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    sink_rig_release(&p->rig);

    sink_rig_init(&p->rig);
    snprintf(p->url, sizeof p->url, "nats://127.0.0.1:1,127.0.0.1:2/s?stream=S");
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "nats at 127.0.0.1:");
}

static void write_secret(char path[128], const char *name, const char *text)
{
    snprintf(path, 128, "%s/%s", server.dir, name);
    sink_tmp_write(path, text);
}

static void password_comes_from_a_file_that_may_change(void **state)
{
    struct peer *p = *state;
    char path[128], query[256];
    write_secret(path, "password", "wr0ng-s3cret\n");
    snprintf(query, sizeof query, "stream=S&user=guest&password-file=%s", path);
    open_with(p, "s", query);
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "Authorization Violation");
    assert_null(strstr(it->text, "s3cret"));
    write_secret(path, "password", "guest\n");
    sink_rig_passes_again(&p->rig);
}

static void revoked_user_is_down_until_restored(void **state)
{
    struct peer *p = *state;
    setenv("OUTBOX_NATS_PASSWORD", "guest", 1);
    open_with(p, "s", "stream=S&user=guest");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    nats_server_reload(&server, "accounts { A { jetstream: enabled, users: [ "
                                "{ user: admin, password: admin } ] } }\nno_auth_user: admin\n");
    assert_int_equal(run_one(p, "2")->status, SINK_DOWN);
    nats_server_reload(&server, ACCOUNTS);
    sink_rig_passes_again(&p->rig);
    assert_int_equal(nats_server_count(&server, "S"), 2);
}

/* The pair that the documentation of NATS has as an example. */
#define NKEY "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
#define SEED "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"

static void nkey_login_works(void **state)
{
    struct peer *p = *state;
    char path[128], query[400];
    nats_server_kill(&server);
    nats_server_start(&server, "authorization { users: [ { user: admin, password: admin }, "
                               "{ nkey: " NKEY " } ] }");
    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"]}");
    write_secret(path, "seed", SEED "\n");
    snprintf(query, sizeof query, "stream=S&nkey=%s&nkey-file=%s", NKEY, path);
    open_with(p, "s", query);
    struct sink_item *it = run_one(p, "1");
    if (it->status != SINK_DELIVERED)
        fail_msg("%s", it->text);
    sink_rig_release(&p->rig);
    sink_rig_init(&p->rig);
    nats_server_kill(&server);
    nats_server_start(&server, ACCOUNTS);
}

static void token_login_works(void **state)
{
    struct peer *p = *state;
    char path[128], query[400];
    nats_server_kill(&server);
    nats_server_start_open(&server, "authorization { token: s3cret-token }", "s3cret-token");
    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"]}");
    write_secret(path, "token", "s3cret-token\n# of the relay\n");
    snprintf(query, sizeof query, "stream=S&token-file=%s", path);
    open_with(p, "s", query);
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    sink_rig_release(&p->rig);

    sink_rig_init(&p->rig);
    setenv("OUTBOX_NATS_TOKEN", "s3cret-token", 1);
    open_with(p, "s", "stream=S");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    nats_server_kill(&server);
    nats_server_start(&server, ACCOUNTS);
}

static void closed_idle_connection_is_not_a_failure(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    nats_server_kill(&server);
    nats_server_start(&server, ACCOUNTS);
    assert_int_equal(run_one(p, "2")->status, SINK_DELIVERED);
}

/* A server that greets, requires TLS, and then falls silent: libnats has no time limit for that. */
struct mute {
    int listener, client[16], port;
    size_t n;
};

static void mute_open(struct mute *m)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof sa;
    *m = (struct mute){.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    assert_int_equal(bind(m->listener, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(listen(m->listener, 16), 0);
    assert_int_equal(getsockname(m->listener, (struct sockaddr *)&sa, &size), 0);
    m->port = ntohs(sa.sin_port);
}

/* mute_greet greets each client that has connected. */
static void mute_greet(struct mute *m)
{
    static const char info[] =
        "INFO {\"server_id\":\"x\",\"version\":\"2.9.10\",\"proto\":1,"
        "\"headers\":true,\"max_payload\":1048576,\"tls_required\":true}\r\n";
    int fd = accept(m->listener, NULL, NULL);
    if (fd < 0)
        return;
    assert_true(m->n < COUNT(m->client));
    m->client[m->n++] = fd;
    assert_int_equal(write(fd, info, sizeof info - 1), sizeof info - 1);
}

/* mute_wait_end waits until the client that connected last has disconnected. */
static void mute_wait_end(struct mute *m)
{
    char told[4096];
    while (read(m->client[m->n - 1], told, sizeof told) > 0)
        continue;
}

static void mute_close(struct mute *m)
{
    for (size_t i = 0; i < m->n; i++)
        close(m->client[i]);
    close(m->listener);
}

/* More attempts than a sink may have threads that are stuck. */
#define ATTEMPTS 12

static void server_stalling_in_the_handshake_is_down_in_time(void **state)
{
    struct peer *p = *state;
    struct mute m;
    mute_open(&m);
    snprintf(p->url, sizeof p->url, "nats+tls://127.0.0.1:%d/s?stream=S", m.port);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 30000});
    int64_t longest = 0;
    for (size_t i = 1; i <= ATTEMPTS; i++) {
        struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
        while (m.n < i) {
            int64_t took = longest_call(p, 2 * MS_NS);
            longest = took > longest ? took : longest;
            mute_greet(&m);
        }
        longest_call(p, 20 * MS_NS);
        p->rig.ahead_ns += 30100 * MS_NS;
        p->rig.sk->ops->drive(p->rig.sk);
        assert_int_equal(it->status, SINK_DOWN);
        sink_assert_says(it, "has not answered for 30000 ms");
        mute_wait_end(&m); /* an abandoned attempt keeps nothing */
    }
    assert_true(longest < BLOCKED_NS);
    mute_close(&m);
}

static const struct CMUnitTest tests[] = {
    OWN(killed_server_is_down_and_nothing_is_stored_twice),
    OWN(stopped_server_is_down_in_time_and_never_blocks_a_call),
    OWN(unreachable_server_never_blocks_a_call),
    OWN(other_hosts_are_tried_in_turn),
    OWN(password_comes_from_a_file_that_may_change),
    OWN(revoked_user_is_down_until_restored),
    OWN(nkey_login_works),
    OWN(token_login_works),
    OWN(closed_idle_connection_is_not_a_failure),
};
const struct suite_part nats_connection_tests = SUITE_PART(tests);

static const struct CMUnitTest tls_tests[] = {
    OWN(stopped_server_is_down_in_time_and_never_blocks_a_call),
    OWN(server_stalling_in_the_handshake_is_down_in_time),
};
const struct suite_part nats_tls_tests = SUITE_PART(tls_tests);
