/* The sink contract on Redis streams, and promises that only Redis makes. */
#include <stdio.h>
#include <string.h>

#include "redis_peer.h"

static void refuses(const char *url, const char *words)
{
    sink_assert_refused((struct sink_config){.url = url}, words, "s3cret");
}

static void bad_settings_are_refused_with_advice(void **state)
{
    (void)state;
    refuses("redis://localhost", "names no stream");
    refuses("redis://u:s3cret@localhost?stream=s", "password-file=FILE");
    refuses("redis://:s3cret@localhost?stream=s", "password-file=FILE");
    refuses("redis://localhost?stream=s&password=s3cret", "password-file=FILE");
    refuses("redis://localhost?steam=s", "stream");
    refuses("redis://localhost:99999?stream=s", "port");
    refuses("redis://localhost/x?stream=s", "database number");
    refuses("redis:localhost?stream=s", "redis://");
    refuses("redis://localhost?stream={typ}", "did you mean {type}?");
    refuses("redis://localhost?stream=a{type", "without its }");
    refuses("redis://localhost?stream=s&ca=x", "rediss://");
    refuses("redis://localhost?stream=s&maxlen=1&maxage=1h", "not both");
    refuses("redis://localhost?stream=%0d%0a", "control character");
    refuses("unix:sock?stream=s", "unix:/PATH");
    refuses("redis-sentinel://a,b?stream=s", "names no master");
    refuses("redis-sentinel://a,,b/m?stream=s", "a host is missing");
    refuses("redis-sentinel://u:s3cret@a/m?stream=s", "password-file=FILE");
    refuses("redis-sentinel://a/m?stream=s&sentinel-user=x&ca=y", "rediss-sentinel://");
    refuses("redis-cluster://a/1?stream=s", "only database 0");
    refuses("redis-cluster://a/?stream=s&db=0", "db");
    refuses("redis-cluster://a", "names no stream");
    refuses("redis-sentinel://a/m?stream=s&sentinel-password-file=/nonexistent", "/nonexistent");
}

static void invalid_certificate_is_refused(void **state)
{
    struct peer *p = *state;
    snprintf(p->url, sizeof p->url, "rediss://127.0.0.1:%d?stream=s", server.port);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "the server's certificate is not valid");
    sink_rig_release(&p->rig);
    snprintf(p->url, sizeof p->url, "rediss://127.0.0.2:%d?stream=s&ca=%s/ca.crt", server.port,
             server.dir);
    redis_set(&server, "CONFIG SET bind %s", "127.0.0.1 127.0.0.2");
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "IP address mismatch");
    assert_int_equal(entries("s"), 0);
}

/* With the argument `tls` the same suite runs over TLS, with `cluster` on a cluster. */
int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_settings_are_refused_with_advice),
    };
    static const struct CMUnitTest tls[] = {
        OWN(invalid_certificate_is_refused),
    };
    const struct suite_part own[] = {redis_streams_tests,    redis_chains_tests, redis_errors_tests,
                                     redis_connection_tests, redis_lease_tests,  redis_dedupe_tests,
                                     SUITE_PART(tests)};
    const struct suite_part on_cluster[] = {redis_streams_tests, redis_dedupe_tests};
    secured = argc > 1 && strcmp(argv[1], "tls") == 0;
    clustered = argc > 1 && strcmp(argv[1], "cluster") == 0;
    int failures;
    if (clustered)
        failures = sink_suite_run(&redis_case, on_cluster, COUNT(on_cluster));
    else if (secured)
        failures = sink_suite_run(&redis_case, &(struct suite_part)SUITE_PART(tls), 1);
    else
        failures = sink_suite_run(&redis_case, own, COUNT(own));
    redis_server_remove(&server);
    return failures;
}
