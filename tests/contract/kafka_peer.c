#include "kafka_peer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    pid_t pid;
    FILE *to, *from;
    char hosts[256];
} cluster;

/* ---- the cluster ---- */

static void exec_mock(const int to[2], const int from[2])
{
    char path[SINK_PATH_SIZE];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0)
        _exit(126);
    path[n] = '\0';
    snprintf(strrchr(path, '/') + 1, 32, "kafka_mock");
    dup2(to[0], 0);
    dup2(from[1], 1);
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    execl(path, "kafka_mock", "1", (char *)NULL);
    _exit(127);
}

static void answer(char *out, size_t size)
{
    if (!fgets(out, (int)size, cluster.from))
        fail_msg("the mock cluster has exited");
    out[strcspn(out, "\n")] = '\0';
}

static void start(void)
{
    int to[2], from[2];
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    fflush(NULL);
    cluster.pid = fork();
    assert_true(cluster.pid >= 0);
    if (cluster.pid == 0)
        exec_mock(to, from);
    close(to[0]);
    close(from[1]);
    cluster.to = fdopen(to[1], "w");
    cluster.from = fdopen(from[0], "r");
    answer(cluster.hosts, sizeof cluster.hosts);
}

void tell(const char *fmt, ...)
{
    char said[64];
    va_list ap;
    va_start(ap, fmt);
    vfprintf(cluster.to, fmt, ap);
    va_end(ap);
    fputc('\n', cluster.to);
    fflush(cluster.to);
    answer(said, sizeof said);
    if (strcmp(said, "0") != 0)
        fail_msg("the mock cluster refused %s: %s", fmt, said);
}

void cluster_end(void)
{
    if (!cluster.pid)
        return;
    fclose(cluster.to);
    fclose(cluster.from);
    waitpid(cluster.pid, NULL, 0);
    cluster.pid = 0;
}

/* ---- reading ---- */

static rd_kafka_t *new_consumer(void)
{
    static const char *const settings[][2] = {
        {"group.id", "reader"},
        {"enable.partition.eof", "true"},
        {"enable.auto.commit", "false"},
        {"auto.offset.reset", "earliest"},
        {"message.max.bytes", "100000000"},
        {"fetch.message.max.bytes", "100000000"},
        {"fetch.max.bytes", "110000000"},
        {"receive.message.max.bytes", "200000000"},
    };
    char said[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", cluster.hosts, said, sizeof said);
    for (size_t i = 0; i < COUNT(settings); i++)
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], said, sizeof said) != 0)
            fail_msg("%s", said);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, said, sizeof said);
    assert_non_null(rk);
    rd_kafka_poll_set_consumer(rk);
    return rk;
}

static int partitions_of(rd_kafka_t *rk, const char *topic)
{
    const rd_kafka_metadata_t *md;
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    assert_int_equal(rd_kafka_metadata(rk, 0, rkt, &md, 10000), 0);
    int n = md->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(md);
    rd_kafka_topic_destroy(rkt);
    return n;
}

static void read_partition(rd_kafka_t *rk, const char *topic, int partition, visit_fn *visit,
                           void *ctx)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, partition)->offset = RD_KAFKA_OFFSET_BEGINNING;
    assert_int_equal(rd_kafka_assign(rk, list), 0);
    rd_kafka_topic_partition_list_destroy(list);
    for (bool end = false; !end;) {
        rd_kafka_message_t *m = rd_kafka_consumer_poll(rk, 20000);
        if (!m)
            fail_msg("no message from the mock cluster");
        end = m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF;
        if (m->err && !end && m->err != RD_KAFKA_RESP_ERR__TRANSPORT &&
            m->err != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
            fail_msg("%s", rd_kafka_message_errstr(m));
        if (!m->err)
            visit(ctx, m);
        rd_kafka_message_destroy(m);
    }
}

void kafka_read(const char *topic, visit_fn *visit, void *ctx)
{
    rd_kafka_t *rk = new_consumer();
    int n = partitions_of(rk, topic);
    for (int i = 0; i < n; i++)
        read_partition(rk, topic, i, visit, ctx);
    rd_kafka_consumer_close(rk);
    rd_kafka_destroy(rk);
}

static void count(void *ctx, const rd_kafka_message_t *m)
{
    (void)m;
    ++*(size_t *)ctx;
}

size_t kafka_count(const char *topic)
{
    size_t n = 0;
    kafka_read(topic, count, &n);
    return n;
}

struct str kafka_header(const rd_kafka_message_t *m, const char *name)
{
    rd_kafka_headers_t *all;
    const void *value;
    size_t n;
    if (rd_kafka_message_headers(m, &all) != 0)
        return (struct str){0};
    if (rd_kafka_header_get_last(all, name, &value, &n) != 0)
        return (struct str){0};
    return (struct str){value, n};
}

/* ---- the peer ---- */

static void *peer_setup(void)
{
    static int number;
    struct peer *p = calloc(1, sizeof *p);
    if (!cluster.pid)
        start();
    snprintf(p->topic, sizeof p->topic, "t%d", ++number);
    tell("topic %s 1", p->topic);
    snprintf(p->url, sizeof p->url, "kafka://%s/%s?rdkafka.message.max.bytes=2000000",
             cluster.hosts, p->topic);
    sink_rig_init(&p->rig);
    return p;
}

static void peer_teardown(void *peer)
{
    struct peer *p = peer;
    sink_rig_release(&p->rig);
    tell("clear %d", API_PRODUCE);
    tell("rtt 1 0");
    free(p);
}

static const char *peer_url(void *peer)
{
    return ((struct peer *)peer)->url;
}

static void add_arrival(void *ctx, const rd_kafka_message_t *m)
{
    sink_arrivals_add(ctx, kafka_header(m, "id"), (struct str){m->payload, m->len});
}

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    kafka_read(((struct peer *)peer)->topic, add_arrival, got);
}

static void peer_break(void *peer)
{
    (void)peer;
    tell("down 1");
}

static void peer_heal(void *peer)
{
    (void)peer;
    tell("up 1");
}

static const char *peer_spoil(void *peer, struct sink_item *it, size_t way)
{
    (void)peer;
    if (way >= 2)
        return NULL;
    sink_item_enlarge(it, 3 << 20);
    return "MSG_SIZE_TOO_LARGE";
}

const struct sink_case kafka_case = {
    .name = "kafka",
    .many = 1000, /* the mock cluster keeps 5 MiB of a partition */
    .concurrency = 4,
    SINK_PEER,
    SINK_PEER_BREAKS,
    .spoil = peer_spoil,
};

int kafka_peer_setup(void **state)
{
    *state = peer_setup();
    return 0;
}

int kafka_peer_teardown(void **state)
{
    peer_teardown(*state);
    return 0;
}

void open_topic(struct peer *p, const char *path)
{
    snprintf(p->url, sizeof p->url, "kafka://%s/%s", cluster.hosts, path);
    sink_rig_open(&p->rig,
                  (struct sink_config){.url = p->url, .timeout_ms = 10000, .concurrency = 4});
}

void open_with(struct peer *p, const char *query)
{
    char path[256];
    snprintf(path, sizeof path, "%s?%s", p->topic, query);
    open_topic(p, path);
}

struct sink_item *run_one(struct peer *p, const char *payload)
{
    return sink_rig_send(&p->rig, payload);
}
