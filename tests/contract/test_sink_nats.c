/* The sink contract on a JetStream stream, and promises that only NATS makes. */
#include <stdio.h>
#include <string.h>

#include "nats_peer.h"
#include "sink/nats_impl.h"

static void refuses(const char *url, const char *words)
{
    sink_assert_refused((struct sink_config){.url = url, .consumer = "c"}, words, "s3cret");
}

static void bad_settings_are_refused_with_advice(void **state)
{
    (void)state;
    refuses("nats://localhost/s", "names no stream");
    refuses("nats://localhost?stream=S", "names no subject");
    refuses("nats://u:s3cret@localhost/s?stream=S", "password-file=FILE");
    refuses("nats://localhost/s?stream=S&password=s3cret", "password-file=FILE");
    refuses("nats://localhost/s?steam=S", "stream");
    refuses("nats://localhost/s?stream=a.b", "stream must be a name");
    refuses("nats://localhost/a..b?stream=S", "empty token");
    refuses("nats://localhost/a.*?stream=S", "contains a blank, * or >");
    refuses("nats://localhost/$JS.x?stream=S", "reserved for the server");
    refuses("nats://localhost/s.{typ}?stream=S", "did you mean {type}?");
    refuses("nats://localhost/s?stream=S&ca=/etc/hosts", "nats+tls://");
    refuses("nats://localhost/s?stream=S&exclusive=on&lookback=5", "at least window");
    refuses("nats://localhost/s?stream=S&exclusive=perhaps", "exclusive");
    refuses("nats://localhost/s?stream=S&nkey=U", "go together");
    refuses("nats://u@localhost/s?stream=S&token-file=/etc/hosts", "use only one of");
    refuses("nats://localhost/s?stream=S&creds-file=/nonexistent", "could not read");
    refuses("nats://localhost/s?stream=S&window=5000", "window");
}

static void exclusive_stream_needs_a_single_lane(void **state)
{
    (void)state;
    struct sink_config cfg = {.url = "nats://localhost/s?stream=S&exclusive=on", .consumer = "c"};
    cfg.lanes = 2;
    sink_assert_refused(cfg, "one lane", NULL);
}

static void pattern_of(const char *text, const char *want)
{
    struct buf b;
    buf_init(&b, 1000);
    nats_subject_pattern(text, &b);
    assert_string_equal(buf_cstr(&b), want);
    buf_release(&b);
}

static void pattern_covers_all_subjects_of_a_template(void **state)
{
    (void)state;
    pattern_of("orders", "orders");
    pattern_of("orders.{type}", "orders.>");
    pattern_of("o-{type}.x", ">");
    pattern_of("{tenant}.o.{aggregate_id}", "*.o.*");
    pattern_of("a.x{type[1]}y.b", "a.*.b");
    pattern_of("a.{{b}}.{header.h}", "a.{b}.*");
}

static void covers(const char *pattern, const char *other, bool want)
{
    if (nats_stream_covers(str_of(pattern), str_of(other)) != want)
        fail_msg("%s and %s", pattern, other);
}

static void subject_patterns_match_as_on_the_server(void **state)
{
    (void)state;
    covers("a.b", "a.b", true);
    covers("a.*", "a.b", true);
    covers("a.*", "a.b.c", false);
    covers("a.>", "a.b.c", true);
    covers("a.>", "a", false);
    covers(">", "a", true);
    covers("a.*", "a.>", false);
    covers("a.b", "a.*", false);
    covers("*.b", "a.b", true);
}

static void invalid_certificate_is_refused(void **state)
{
    struct peer *p = *state;
    snprintf(p->url, sizeof p->url, "nats+tls://127.0.0.1:%d/s?stream=S", server.port);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "unable to get local issuer certificate");
    sink_rig_release(&p->rig);

    /* Another way to write 127.0.0.1, which the certificate does not have. */
    sink_rig_init(&p->rig);
    snprintf(p->url, sizeof p->url, "nats+tls://127.1:%d/s?stream=S&ca=%s/ca.crt", server.port,
             server.dir);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "ostname mismatch");
    sink_rig_release(&p->rig);

    sink_rig_init(&p->rig);
    snprintf(p->url, sizeof p->url, "nats://127.0.0.1:%d/s?stream=S", server.port);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "use nats+tls://");
    assert_int_equal(nats_server_count(&server, "S"), 0);
}

/* With the argument `exclusive` the same suite runs with exclusive=on, with `tls` over TLS. */
int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_settings_are_refused_with_advice),
        cmocka_unit_test(exclusive_stream_needs_a_single_lane),
        cmocka_unit_test(pattern_covers_all_subjects_of_a_template),
        cmocka_unit_test(subject_patterns_match_as_on_the_server),
    };
    static const struct CMUnitTest tls[] = {
        OWN(invalid_certificate_is_refused),
    };
    const struct suite_part own[] = {nats_answers_tests, nats_connection_tests, nats_messages_tests,
                                     SUITE_PART(tests)};
    const char *arg = argc > 1 ? argv[1] : "";
    int failures;
    if (strcmp(arg, "tls") == 0) {
        way = WAY_TLS;
        failures = sink_suite_run(&nats_case,
                                  (struct suite_part[]){SUITE_PART(tls), nats_tls_tests}, 2);
    } else if (strcmp(arg, "exclusive") == 0) {
        way = WAY_EXCLUSIVE;
        failures = sink_suite_run(&nats_case, &nats_exclusive_tests, 1);
    } else {
        failures = sink_suite_run(&nats_case, own, COUNT(own));
    }
    nats_server_remove(&server);
    return failures;
}
