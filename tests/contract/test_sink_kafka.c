/* The sink contract on Kafka, and promises that only Kafka makes, on librdkafka's mock cluster.
 * tests/scenario/test_kafka.py and tests/fault/test_kafka.py use a real broker. */
#include <stdio.h>
#include <string.h>

#include "kafka_peer.h"

static void refuses(const char *url, const char *words)
{
    sink_assert_refused((struct sink_config){.url = url}, words, "s3cret");
}

static void bad_settings_are_refused_with_advice(void **state)
{
    (void)state;
    refuses("kafka://localhost", "names no topic");
    refuses("kafka://localhost/", "names no topic");
    refuses("kafka:localhost/t", "://");
    refuses("kafka://u:s3cret@localhost/t", "password-file=FILE");
    refuses("kafka://localhost/t?password=s3cret", "password-file=FILE");
    refuses("kafka://u@localhost/t", "OUTBOX_KAFKA_PASSWORD");
    refuses("kafka://localhost:99999/t", "port");
    refuses("kafka://localhost/a%20b", "letters, digits");
    refuses("kafka://localhost/..", "called ..");
    refuses("kafka://localhost/t?formt=json", "did you mean \"format\"?");
    refuses("kafka://localhost/t?format=xml", "plain");
    refuses("kafka://localhost/{typ}", "did you mean {type}?");
    refuses("kafka://localhost/t?ca=/x", "kafka+ssl://");
    refuses("kafka+ssl://localhost/t?ca=/nonexistent", "could not read /nonexistent");
    refuses("kafka+ssl://localhost/t?cert=/x", "given together");
    refuses("kafka://localhost/t?sasl=gssapi", "scram-sha-256");
    refuses("kafka://localhost/t?partitions=0", "partitions");
    refuses("kafka://localhost/{type}?dedupe=on", "a single topic");
}

static void properties_that_break_guarantees_are_refused(void **state)
{
    (void)state;
    refuses("kafka://localhost/t?rdkafka.acks=1", "all replicas");
    refuses("kafka://localhost/t?rdkafka.request.required.acks=0", "all replicas");
    refuses("kafka://localhost/t?rdkafka.enable.idempotence=false", "repeated");
    refuses("kafka://localhost/t?rdkafka.enable.gapless.guarantee=false", "overtake");
    refuses("kafka://localhost/t?rdkafka.message.timeout.ms=1000", "timeout");
    refuses("kafka://localhost/t?rdkafka.delivery.timeout.ms=1000", "timeout");
    refuses("kafka://localhost/t?rdkafka.max.in.flight=100", "order");
    refuses("kafka://localhost/t?rdkafka.queuing.strategy=lifo", "order");
    refuses("kafka://localhost/t?rdkafka.retries=0", "retries");
    refuses("kafka://localhost/t?rdkafka.partitioner=random", "several partitions");
    refuses("kafka://localhost/t?rdkafka.delivery.report.only.error=true", "delivered");
    refuses("kafka://localhost/t?rdkafka.transactional.id=x", "elsewhere");
    refuses("kafka://localhost/t?rdkafka.sasl.password=s3cret", "password-file=FILE");
    refuses("kafka://localhost/t?rdkafka.ssl.key.password=s3cret", "secret");
    refuses("kafka://localhost/t?rdkafka.ssl.key.pem=s3cret", "secret");
    refuses("kafka://localhost/t?rdkafka.plugin.library.paths=/x.so",
            "plugins would run other code");
    refuses("kafka://localhost/t?rdkafka.test.mock.num.brokers=3", "deliver nothing");
    refuses("kafka://localhost/t?rdkafka.enable.ssl.certificate.verification=false", "verified");
    refuses("kafka://localhost/t?rdkafka.ssl.endpoint.identification.algorithm=none", "verified");
    refuses("kafka://localhost/t?rdkafka.linger=1", "No such configuration property");
    refuses("kafka://localhost/t?rdkafka.linger.ms=never", "Invalid value");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_settings_are_refused_with_advice),
        cmocka_unit_test(properties_that_break_guarantees_are_refused),
    };
    const struct suite_part own[] = {kafka_errors_tests, kafka_messages_tests, kafka_fates_tests,
                                     SUITE_PART(tests)};
    int failures = sink_suite_run(&kafka_case, own, COUNT(own));
    cluster_end();
    return failures;
}
