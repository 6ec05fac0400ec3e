/* rabbitmq_drain DATABASE PORT EXCHANGE KEY WINDOW: the ceiling for a relay that drains a SQLite
 * outbox to RabbitMQ, with none of our code: librabbitmq used as documented,
 * amqp_basic_publish of mandatory, persistent messages with publisher confirms. Batches of 1,000;
 * every message has the properties and headers that the relay writes; the next batch is read and
 * published, and the position of the last one recorded, while the broker processes this one. It has
 * no leases, no retries, no ordering after a failure, and a single reader. */
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include "bench.h"

#define BATCH 1000
#define HEADERS 9
#define RING 8192 /* more than are ever unconfirmed */
#define COLUMNS "seq, id, type, aggregate_type, aggregate_id, version, payload, created_at"

struct out {
    amqp_connection_state_t conn;
    const char *exchange, *key;
    uint64_t sent, confirmed; /* how many */
    uint64_t low;             /* all tags below this one are confirmed */
    bool mark[RING];          /* by tag: it is */
    uint64_t window;
};

static void must(amqp_rpc_reply_t r, const char *what)
{
    if (r.reply_type != AMQP_RESPONSE_NORMAL)
        bench_die("rabbitmq: %s failed", what);
}

static void out_open(struct out *o, char **argv)
{
    *o = (struct out){
        .exchange = argv[3], .key = argv[4], .low = 1, .window = (uint64_t)atoi(argv[5])};
    o->conn = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(o->conn);
    if (!socket || amqp_socket_open(socket, "127.0.0.1", atoi(argv[2])) != 0)
        bench_die("rabbitmq: no connection");
    must(amqp_login(o->conn, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest"), "login");
    amqp_channel_open(o->conn, 1);
    must(amqp_get_rpc_reply(o->conn), "channel.open");
    amqp_confirm_select(o->conn, 1);
    must(amqp_get_rpc_reply(o->conn), "confirm.select");
}

static void confirm(struct out *o, uint64_t tag)
{
    bool *mark = &o->mark[tag % RING];
    o->confirmed += !*mark;
    *mark = true;
}

/* Handles a confirm for one message or for all up to it; they arrive in any order. */
static void take_ack(struct out *o, const amqp_basic_ack_t *ack)
{
    uint64_t from = ack->multiple ? o->low : ack->delivery_tag;
    for (uint64_t tag = from; tag <= ack->delivery_tag; tag++)
        confirm(o, tag);
    for (; o->low <= o->sent && o->mark[o->low % RING]; o->low++)
        o->mark[o->low % RING] = false;
}

/* Handles the frames that have arrived, waiting for one if `wait` is set. */
static void take_frames(struct out *o, bool wait)
{
    struct timeval none = {0, 0};
    for (;;) {
        amqp_frame_t f;
        int rc = amqp_simple_wait_frame_noblock(o->conn, &f, wait ? NULL : &none);
        if (rc == AMQP_STATUS_TIMEOUT)
            return;
        if (rc != AMQP_STATUS_OK)
            bench_die("rabbitmq: %s", amqp_error_string2(rc));
        if (f.frame_type != AMQP_FRAME_METHOD || f.payload.method.id != AMQP_BASIC_ACK_METHOD)
            bench_die("rabbitmq: not confirmed");
        take_ack(o, f.payload.method.decoded);
        wait = false;
    }
}

/* Waits until at most `left` messages are unconfirmed. */
static void wait_confirmed(struct out *o, uint64_t left)
{
    while (o->sent > o->confirmed && o->sent - o->confirmed > left) {
        amqp_maybe_release_buffers(o->conn);
        take_frames(o, true);
    }
}

static amqp_bytes_t text(sqlite3_stmt *q, int i)
{
    const char *p = (const char *)sqlite3_column_text(q, i);
    return (amqp_bytes_t){.len = (size_t)sqlite3_column_bytes(q, i), .bytes = (void *)(p ? p : "")};
}

static amqp_table_entry_t header(const char *name, amqp_bytes_t value)
{
    return (amqp_table_entry_t){
        .key = amqp_cstring_bytes(name),
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = value},
    };
}

static void write_time(char out[40], int64_t ms)
{
    char date[24];
    struct tm tm;
    time_t s = (time_t)(ms / 1000);
    gmtime_r(&s, &tm);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out, 40, "%s.%03dZ", date, (int)(ms % 1000));
}

static void publish(struct out *o, sqlite3_stmt *q)
{
    char key[200], seq[24], stamp[40];
    int64_t created = sqlite3_column_int64(q, 7);
    amqp_bytes_t kind = text(q, 3), id = text(q, 4);
    snprintf(key, sizeof key, "%.*s/%.*s", (int)kind.len, (char *)kind.bytes, (int)id.len,
             (char *)id.bytes);
    snprintf(seq, sizeof seq, "%" PRId64, (int64_t)sqlite3_column_int64(q, 0));
    write_time(stamp, created);
    amqp_table_entry_t headers[HEADERS] = {
        header("id", text(q, 1)),
        header("type", text(q, 2)),
        header("aggregate_type", kind),
        header("aggregate_id", id),
        header("key", amqp_cstring_bytes(key)),
        header("seq", amqp_cstring_bytes(seq)),
        header("time", amqp_cstring_bytes(stamp)),
    };
    amqp_basic_properties_t p = {
        ._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_HEADERS_FLAG |
                  AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG |
                  AMQP_BASIC_TIMESTAMP_FLAG | AMQP_BASIC_TYPE_FLAG | AMQP_BASIC_APP_ID_FLAG,
        .content_type = amqp_cstring_bytes("application/json"),
        .headers = {.num_entries = 7, .entries = headers},
        .delivery_mode = AMQP_DELIVERY_PERSISTENT,
        .message_id = text(q, 1),
        .timestamp = (uint64_t)(created / 1000),
        .type = text(q, 2),
        .app_id = amqp_cstring_bytes("outbox"),
    };
    wait_confirmed(o, o->window - 1);
    int rc = amqp_basic_publish(o->conn, 1, amqp_cstring_bytes(o->exchange),
                                amqp_cstring_bytes(o->key), 1, 0, &p, text(q, 6));
    if (rc != AMQP_STATUS_OK)
        bench_die("rabbitmq: %s", amqp_error_string2(rc));
    o->sent++;
}

static size_t publish_batch(struct out *o, sqlite3_stmt *q, int64_t *seq)
{
    size_t n = 0;
    sqlite3_bind_int64(q, 1, *seq);
    for (; sqlite3_step(q) == SQLITE_ROW; n++) {
        *seq = sqlite3_column_int64(q, 0);
        publish(o, q);
        if (n % 64 == 0)
            take_frames(o, false);
    }
    sqlite3_reset(q);
    return n;
}

int main(int argc, char **argv)
{
    static struct out o;
    struct bench_timing t;
    if (argc != 6)
        bench_die("usage: %s DATABASE PORT EXCHANGE KEY WINDOW", argv[0]);
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
            wait_confirmed(&o, n);
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
