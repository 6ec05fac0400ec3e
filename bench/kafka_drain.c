/* kafka_drain FILE HOSTS TOPIC: the ceiling for a relay that drains a SQLite outbox to Kafka, with
 * none of our code: librdkafka with the relay's settings (idempotent, gapless, acks=all), the same
 * messages, batches of 1,000, two of them in flight, and a batch's position recorded once the
 * brokers have confirmed all of it. It has no leases, no retries, no sharing of work, and a single
 * reader. */
#include <inttypes.h>
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

#define BATCH 1000
#define COLUMNS "seq, id, type, aggregate_type, aggregate_id, version, payload, created_at"

/* The number of confirmed messages of each batch; a message has the number of its batch. */
struct progress {
    size_t confirmed[2];
};

static void on_report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque)
{
    struct progress *p = opaque;
    (void)rk;
    if (m->err)
        bench_die("kafka: not delivered: %s", rd_kafka_err2str(m->err));
    p->confirmed[(size_t)(uintptr_t)m->_private & 1]++;
}

static rd_kafka_t *connect_to(const char *hosts, struct progress *p)
{
    const char *const settings[][2] = {
        {"bootstrap.servers", hosts},
        {"enable.idempotence", "true"},
        {"enable.gapless.guarantee", "true"},
        {"message.timeout.ms", "0"},
        {"linger.ms", "2"},
        {"log_level", "2"},
        {"partitioner", "murmur2_random"},
    };
    char said[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], said, sizeof said) != 0)
            bench_die("%s", said);
    rd_kafka_conf_set_dr_msg_cb(conf, on_report);
    rd_kafka_conf_set_opaque(conf, p);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, said, sizeof said);
    if (!rk)
        bench_die("%s", said);
    return rk;
}

static void add(rd_kafka_headers_t *h, const char *name, const char *value, int n)
{
    rd_kafka_header_add(h, name, -1, value, n);
}

static void add_column(rd_kafka_headers_t *h, const char *name, sqlite3_stmt *q, int i)
{
    add(h, name, (const char *)sqlite3_column_text(q, i), sqlite3_column_bytes(q, i));
}

static rd_kafka_headers_t *headers_of(sqlite3_stmt *q)
{
    char text[512];
    rd_kafka_headers_t *h = rd_kafka_headers_new(10);
    add_column(h, "id", q, 1);
    add_column(h, "type", q, 2);
    add_column(h, "aggregate_type", q, 3);
    add_column(h, "aggregate_id", q, 4);
    add(h, "key", text,
        snprintf(text, sizeof text, "%s/%s", sqlite3_column_text(q, 3), sqlite3_column_text(q, 4)));
    add_column(h, "seq", q, 0);
    if (sqlite3_column_type(q, 5) != SQLITE_NULL)
        add_column(h, "version", q, 5);
    int64_t ms = sqlite3_column_int64(q, 7);
    time_t s = (time_t)(ms / 1000);
    struct tm tm;
    gmtime_r(&s, &tm);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(text + n, sizeof text - n, ".%03dZ", (int)(ms % 1000));
    add(h, "time", text, (int)n);
    add(h, "content-type", "application/json", 16);
    return h;
}

static void produce(rd_kafka_t *rk, rd_kafka_topic_t *topic, sqlite3_stmt *q, size_t batch)
{
    rd_kafka_vu_t v[] = {
        {.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = topic},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = (void *)(uintptr_t)batch},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers_of(q)},
        {.vtype = RD_KAFKA_VTYPE_VALUE,
         .u.mem = {(void *)(uintptr_t)sqlite3_column_text(q, 6),
                   (size_t)sqlite3_column_bytes(q, 6)}},
        {.vtype = RD_KAFKA_VTYPE_KEY,
         .u.mem = {(void *)(uintptr_t)sqlite3_column_text(q, 4),
                   (size_t)sqlite3_column_bytes(q, 4)}},
    };
    rd_kafka_error_t *error = rd_kafka_produceva(rk, v, sizeof v / sizeof v[0]);
    if (error)
        bench_die("%s", rd_kafka_error_string(error));
}

/* Reads the next events and passes them to the library, which sends them in the background. */
static size_t read_batch(sqlite3_stmt *q, rd_kafka_t *rk, rd_kafka_topic_t *topic, size_t batch,
                         int64_t *seq)
{
    size_t n = 0;
    sqlite3_bind_int64(q, 1, *seq);
    for (; sqlite3_step(q) == SQLITE_ROW; n++) {
        *seq = sqlite3_column_int64(q, 0);
        produce(rk, topic, q, batch);
    }
    sqlite3_reset(q);
    return n;
}

static size_t drain(sqlite3 *db, rd_kafka_t *rk, rd_kafka_topic_t *topic, struct progress *p,
                    struct bench_timing *t)
{
    size_t events = 0, batch = 0, sent = 0, n = BATCH;
    int64_t seq = 0, sent_seq = 0;
    sqlite3_stmt *q = bench_prepare(db, "SELECT " COLUMNS
                                        " FROM outbox_event WHERE seq > ? ORDER BY seq LIMIT 1000");
    sqlite3_stmt *position = bench_prepare(db, "UPDATE bench_position SET position = ?");
    bench_start(t, 1 << 20);
    for (; n == BATCH || sent; batch++) {
        int64_t from = bench_now();
        p->confirmed[batch & 1] = 0;
        n = n == BATCH ? read_batch(q, rk, topic, batch, &seq) : 0;
        if (sent) { /* the batch before this one */
            while (p->confirmed[(batch - 1) & 1] < sent)
                rd_kafka_poll(rk, 10);
            sqlite3_bind_int64(position, 1, sent_seq);
            bench_step(db, position);
        }
        sent = n;
        sent_seq = seq;
        events += n;
        bench_lap(t, from);
    }
    return events;
}

int main(int argc, char **argv)
{
    struct progress p = {0};
    struct bench_timing t;
    if (argc != 4)
        bench_die("usage: %s FILE HOSTS TOPIC", argv[0]);
    sqlite3 *db = bench_open(argv[1]);
    bench_sql(db, "CREATE TABLE IF NOT EXISTS bench_position (position INTEGER)");
    bench_sql(db, "DELETE FROM bench_position");
    bench_sql(db, "INSERT INTO bench_position VALUES (0)");
    rd_kafka_t *rk = connect_to(argv[2], &p);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[3], NULL);
    const rd_kafka_metadata_t *md; /* connect first, like a relay that has run for a while */
    if (rd_kafka_metadata(rk, 0, topic, &md, 10000) != 0)
        bench_die("cannot reach Kafka at %s", argv[2]);
    rd_kafka_metadata_destroy(md);
    size_t events = drain(db, rk, topic, &p, &t);
    bench_report(&t, events);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(rk);
    return 0;
}
