/* kafka_mock.c: librdkafka's mock cluster in a separate process, for answers that a test cannot
 * provoke from a real broker. It takes commands on its standard input, one per line, and answers
 * each with a line:
 *
 *     kafka_mock BROKERS             prints the addresses: 127.0.0.1:1234,127.0.0.1:1235
 *     topic NAME PARTITIONS          creates a topic
 *     topic-error NAME CODE          metadata requests report this code for it; 0: no error
 *     errors APIKEY CODE...          the next requests of this kind are answered so; -195: cut off
 *     clear APIKEY
 *     late BROKER APIKEY CODE MS     the next request of this kind is answered so, and so late
 *     rtt BROKER MS                  every request is answered so late
 *     down BROKER | up BROKER
 *     leader TOPIC PARTITION BROKER
 *
 * It ends with its input. The mock ignores acks, min.insync.replicas and the sizes of messages, and
 * looks at sequence numbers only in transactions: those are tested with a real Kafka. */
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define CODES_MAX 256

static int push_errors(rd_kafka_mock_cluster_t *mc, char *rest)
{
    rd_kafka_resp_err_t codes[CODES_MAX];
    size_t n = 0;
    char *save, *word = strtok_r(rest, " ", &save);
    if (!word)
        return -1;
    int16_t api = (int16_t)atoi(word);
    while (n < CODES_MAX && (word = strtok_r(NULL, " ", &save)))
        codes[n++] = (rd_kafka_resp_err_t)atoi(word);
    rd_kafka_mock_push_request_errors_array(mc, api, n, codes);
    return 0;
}

static int obey(rd_kafka_mock_cluster_t *mc, const char *verb, char *rest)
{
    char name[256];
    int a = 0, b = 0, c = 0, d = 0;
    if (strcmp(verb, "errors") == 0)
        return push_errors(mc, rest);
    if (strcmp(verb, "topic") == 0 && sscanf(rest, "%255s %d", name, &a) == 2)
        return (int)rd_kafka_mock_topic_create(mc, name, a, 1);
    if (strcmp(verb, "leader") == 0 && sscanf(rest, "%255s %d %d", name, &a, &b) == 3)
        return (int)rd_kafka_mock_partition_set_leader(mc, name, a, b);
    if (strcmp(verb, "topic-error") == 0 && sscanf(rest, "%255s %d", name, &a) == 2) {
        rd_kafka_mock_topic_set_error(mc, name, (rd_kafka_resp_err_t)a);
        return 0;
    }
    int n = sscanf(rest, "%d %d %d %d", &a, &b, &c, &d);
    if (strcmp(verb, "down") == 0 && n == 1)
        return (int)rd_kafka_mock_broker_set_down(mc, a);
    if (strcmp(verb, "up") == 0 && n == 1)
        return (int)rd_kafka_mock_broker_set_up(mc, a);
    if (strcmp(verb, "rtt") == 0 && n == 2)
        return (int)rd_kafka_mock_broker_set_rtt(mc, a, b);
    if (strcmp(verb, "late") == 0 && n == 4)
        return (int)rd_kafka_mock_broker_push_request_error_rtts(mc, a, (int16_t)b, 1, c, d);
    if (strcmp(verb, "clear") == 0 && n == 1) {
        rd_kafka_mock_clear_request_errors(mc, (int16_t)a);
        return 0;
    }
    return -1;
}

/* quiet returns a configuration whose instance logs only messages worse than warnings: on purpose,
 * it has no brokers to connect to. */
static rd_kafka_conf_t *quiet(void)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "log_level", "3", NULL, 0);
    return conf;
}

int main(int argc, char **argv)
{
    char line[4096], said[512];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, quiet(), said, sizeof said);
    int brokers = argc > 1 ? atoi(argv[1]) : 1;
    rd_kafka_mock_cluster_t *mc = rk ? rd_kafka_mock_cluster_new(rk, brokers) : NULL;
    if (!mc)
        return 1;
    printf("%s\n", rd_kafka_mock_cluster_bootstraps(mc));
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        char *rest = line + strcspn(line, " ");
        if (*rest)
            *rest++ = '\0';
        printf("%d\n", obey(mc, line, rest));
    }
    rd_kafka_mock_cluster_destroy(mc);
    rd_kafka_destroy(rk);
    return 0;
}
