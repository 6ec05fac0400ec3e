/* nats_drain DATABASE PORT STREAM SUBJECT WINDOW: the ceiling for a relay that drains a SQLite
 * outbox to NATS JetStream, with none of our code: libnats used as documented,
 * js_PublishMsgAsync with an AckHandler. Batches of 1,000; every message has the headers that the
 * relay writes; the next batch is read, and the position of the last one recorded, while the server
 * processes this one. It has no leases, no retries, no ordering after a failure, and a single
 * reader. */
#include <inttypes.h>
#include <nats/nats.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

#define BATCH 1000
#define COLUMNS "seq, id, type, aggregate_type, aggregate_id, version, payload, created_at"

struct out {
    jsCtx *js;
    const char *stream, *subject;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    size_t acked;
};

static void on_ack(jsCtx *js, natsMsg *msg, jsPubAck *ack, jsPubAckErr *err, void *closure)
{
    struct out *o = closure;
    (void)js;
    if (!ack)
        bench_die("not stored: %s", err->ErrText ? err->ErrText : "?");
    natsMsg_Destroy(msg);
    pthread_mutex_lock(&o->lock);
    o->acked++;
    pthread_cond_signal(&o->cond);
    pthread_mutex_unlock(&o->lock);
}

static void wait_acked(struct out *o, size_t n)
{
    pthread_mutex_lock(&o->lock);
    while (o->acked < n)
        pthread_cond_wait(&o->cond, &o->lock);
    pthread_mutex_unlock(&o->lock);
}

static void must(natsStatus s)
{
    if (s != NATS_OK)
        bench_die("nats: %s", natsStatus_GetText(s));
}

static void out_open(struct out *o, char **argv)
{
    natsConnection *nc;
    jsOptions opts;
    char url[64];
    snprintf(url, sizeof url, "nats://127.0.0.1:%s", argv[2]);
    *o = (struct out){.stream = argv[3], .subject = argv[4]};
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->cond, NULL);
    must(natsConnection_ConnectTo(&nc, url));
    jsOptions_Init(&opts);
    opts.PublishAsync.MaxPending = atoi(argv[5]);
    opts.PublishAsync.StallWait = 60000;
    opts.PublishAsync.AckHandler = on_ack;
    opts.PublishAsync.AckHandlerClosure = o;
    must(natsConnection_JetStream(&o->js, nc, &opts));
}

static const char *text(sqlite3_stmt *q, int i)
{
    const char *p = (const char *)sqlite3_column_text(q, i);
    return p ? p : "";
}

static void set_time(natsMsg *msg, int64_t ms)
{
    char stamp[40], date[24];
    struct tm tm;
    time_t s = (time_t)(ms / 1000);
    gmtime_r(&s, &tm);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(stamp, sizeof stamp, "%s.%03dZ", date, (int)(ms % 1000));
    natsMsgHeader_Set(msg, "time", stamp);
}

static void publish(struct out *o, sqlite3_stmt *q)
{
    char value[200];
    natsMsg *msg;
    must(natsMsg_Create(&msg, o->subject, NULL, text(q, 6), sqlite3_column_bytes(q, 6)));
    natsMsgHeader_Set(msg, "id", text(q, 1));
    natsMsgHeader_Set(msg, "type", text(q, 2));
    natsMsgHeader_Set(msg, "aggregate_type", text(q, 3));
    natsMsgHeader_Set(msg, "aggregate_id", text(q, 4));
    snprintf(value, sizeof value, "%s/%s", text(q, 3), text(q, 4));
    natsMsgHeader_Set(msg, "key", value);
    snprintf(value, sizeof value, "%" PRId64, (int64_t)sqlite3_column_int64(q, 0));
    natsMsgHeader_Set(msg, "seq", value);
    if (sqlite3_column_type(q, 5) != SQLITE_NULL)
        natsMsgHeader_Set(msg, "version", text(q, 5));
    set_time(msg, sqlite3_column_int64(q, 7));
    natsMsgHeader_Set(msg, "content-type", "application/json");
    snprintf(value, sizeof value, "%s:bench", text(q, 1));
    jsPubOptions opts;
    jsPubOptions_Init(&opts);
    opts.MsgId = value;
    opts.ExpectStream = o->stream;
    must(js_PublishMsgAsync(o->js, &msg, &opts));
}

static size_t publish_batch(struct out *o, sqlite3_stmt *q, int64_t *seq)
{
    size_t n = 0;
    sqlite3_bind_int64(q, 1, *seq);
    for (; sqlite3_step(q) == SQLITE_ROW; n++) {
        *seq = sqlite3_column_int64(q, 0);
        publish(o, q);
    }
    sqlite3_reset(q);
    return n;
}

int main(int argc, char **argv)
{
    struct out o;
    struct bench_timing t;
    if (argc != 6)
        bench_die("usage: %s DATABASE PORT STREAM SUBJECT WINDOW", argv[0]);
    out_open(&o, argv);
    sqlite3 *db = bench_open(argv[1]);
    bench_sql(db, "CREATE TABLE IF NOT EXISTS bench_position (position INTEGER)");
    bench_sql(db, "DELETE FROM bench_position");
    bench_sql(db, "INSERT INTO bench_position VALUES (0)");
    sqlite3_stmt *q = bench_prepare(db, "SELECT " COLUMNS
                                        " FROM outbox_event WHERE seq > ? ORDER BY seq LIMIT 1000");
    sqlite3_stmt *position = bench_prepare(db, "UPDATE bench_position SET position = ?");

    size_t events = 0, last = 0;
    int64_t seq = 0, last_seq = 0;
    bench_start(&t, 1 << 20);
    for (size_t n = BATCH; n == BATCH || last;) {
        int64_t from = bench_now();
        if (n == BATCH)
            n = publish_batch(&o, q, &seq);
        else
            n = 0;
        if (last) { /* the batch before this one */
            wait_acked(&o, events);
            sqlite3_bind_int64(position, 1, last_seq);
            bench_step(db, position);
        }
        last = n;
        last_seq = seq;
        events += n;
        bench_lap(&t, from);
    }
    bench_report(&t, events);
    return 0;
}
