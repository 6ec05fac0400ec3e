/* The sink contract on RabbitMQ, and promises that only RabbitMQ makes. */
#include "rabbitmq_peer.h"

static void refuses(const char *url, const char *words)
{
    sink_assert_refused((struct sink_config){.url = url}, words, "s3cret");
}

static void bad_settings_are_refused_with_advice(void **state)
{
    (void)state;
    refuses("amqp://localhost/orders", "VHOST/EXCHANGE");
    refuses("amqp://localhost", "VHOST/EXCHANGE");
    refuses("amqp://localhost/%2F/", "names no queue");
    refuses("amqp://u:s3cret@localhost/%2F/orders", "password-file=FILE");
    refuses("amqp://localhost/%2F/orders?password=s3cret", "password-file=FILE");
    refuses("amqp://localhost/%2F/orders?rooting-key=x", "routing-key");
    refuses("amqp://localhost:99999/%2F/orders", "port");
    refuses("amqp://localhost/%2F/orders?routing-key={typ}", "did you mean {type}?");
    refuses("amqp://localhost/%2F/orders?ca=x", "amqps://");
    refuses("amqps://localhost/%2F/orders?auth=external", "cert=FILE");
    refuses("amqp://localhost/%2F/orders?unroutable=drop", "retry, reject");
    refuses("amqp://localhost/%2F/orders?heartbeat=10ms", "heartbeat");
    refuses("amqp://localhost/%2F/?routing-key=q&queue=q", "queue requires an exchange");
    refuses("amqps://localhost/%2F/orders?ca=/nonexistent", "could not read /nonexistent");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_settings_are_refused_with_advice),
    };
    const struct suite_part own[] = {rabbitmq_answers_tests, rabbitmq_connection_tests,
                                     rabbitmq_sent_tests, rabbitmq_tls_tests, SUITE_PART(tests)};
    int failures = sink_suite_run(&rabbitmq_case, own, COUNT(own));
    rabbitmq_server_end(&broker);
    return failures;
}
