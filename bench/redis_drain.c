/* redis_drain MODE SOURCE SERVER[,SERVER...] STREAM: ceilings for a relay that drains to a Redis
 * stream, with none of our code. Batches of 1,000; each event is an XADD with the envelope that the
 * relay writes; a batch's position is recorded once Redis has replied to all of it.
 *   postgres     seq > position from outbox.event; the next batch is read, and the position of the
 *                last one committed, while Redis processes this one. It would lose events that
 *                commit late, has no leases, no retries, no ordering of keys after a failure, and a
 *                single reader
 *   sqlite       the same from a SQLite file, in one thread
 *   skip-locked  as queue tables do: claims rows of bench_queue by their status, adds them, and
 *                marks them done
 * A server is the path of a socket, or a port. With several they are the masters of a cluster with
 * equal shares of the slots, and the stream's name is STREAM and the aggregate's type. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "pg.h"

#define BATCH 1000
#define LINKS_MAX 16
#define EPOCH_2000_US INT64_C(946684800000000)
#define COLUMNS "seq, id, type, aggregate_type, aggregate_id, version, payload, created_at"

struct field {
    const char *p;
    size_t n;
};

struct row {
    struct field id, type, kind, key, payload;
    char version[24];
    int64_t at_ms;
};

/* A connection to a server. */
struct link {
    char *p;
    size_t n, cap;
    int fd, ahead; /* ahead: lines read of the next batch's answers */
    int count[2];  /* entries of this batch and of the previous one */
};

struct out {
    struct link link[LINKS_MAX];
    int n_links, batch; /* batch: which of the counts is being added to */
    const char *stream;
    char envelope[8192];
};

static void add(struct link *l, const char *p, size_t n)
{
    if (n > l->cap - l->n) {
        l->cap = 2 * (l->n + n);
        l->p = realloc(l->p, l->cap);
        if (!l->p)
            bench_die("out of memory");
    }
    memcpy(l->p + l->n, p, n);
    l->n += n;
}

/* The slot of a name is its CRC-16 (XMODEM). */
static struct link *link_of(struct out *o, const char *name, size_t n)
{
    unsigned crc = 0;
    if (o->n_links == 1)
        return &o->link[0];
    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned)(unsigned char)name[i] << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1) & 0xffff;
    }
    unsigned n_links = (unsigned)o->n_links, slot = crc % 16384, i = n_links * slot / 16384;
    if ((i + 1) * 16384 / n_links <= slot)
        i++; /* shares are rounded down */
    return &o->link[i];
}

static char *put(char *to, struct field f)
{
    memcpy(to, f.p, f.n);
    return to + f.n;
}

#define PUT(to, literal) put(to, (struct field){literal, sizeof(literal) - 1})

/* Formats the date only when the day changes. */
static char *put_time(char *to, int64_t ms)
{
    static int64_t day = -1;
    static char date[12];
    int64_t s = ms / 1000, today = s / 86400, t = s % 86400;
    if (today != day) {
        time_t when = (time_t)s;
        struct tm tm;
        gmtime_r(&when, &tm);
        strftime(date, sizeof date, "%Y-%m-%dT", &tm);
        day = today;
    }
    to = put(to, (struct field){date, 11});
    int parts[] = {(int)(t / 3600), (int)(t / 60 % 60), (int)(t % 60)};
    for (int i = 0; i < 3; i++) {
        *to++ = (char)('0' + parts[i] / 10);
        *to++ = (char)('0' + parts[i] % 10);
        *to++ = i < 2 ? ':' : '.';
    }
    int frac = (int)(ms % 1000);
    *to++ = (char)('0' + frac / 100);
    *to++ = (char)('0' + frac / 10 % 10);
    *to++ = (char)('0' + frac % 10);
    *to++ = 'Z';
    return to;
}

static void add_row(struct out *o, const struct row *r)
{
    char head[320], name[128], *e = o->envelope;
    int length = snprintf(name, sizeof name, "%s%.*s", o->stream,
                          o->n_links > 1 ? (int)r->kind.n : 0, r->kind.p);
    e = put(PUT(e, "{\"event_id\":\""), r->id);
    e = put(PUT(e, "\",\"topic\":\""), r->type);
    e = put(PUT(e, "\",\"aggregate_kind\":\""), r->kind);
    e = put(PUT(e, "\",\"aggregate_id\":\""), r->key);
    e = put(PUT(e, "\",\"entity_version\":"), (struct field){r->version, strlen(r->version)});
    e = put(PUT(e, ",\"payload\":"), r->payload);
    e = put(PUT(e, ",\"stream_id\":\""), (struct field){name, (size_t)length});
    e = put_time(PUT(e, "\",\"committed_at\":\""), r->at_ms);
    e = PUT(e, "\"}");
    size_t n = (size_t)(e - o->envelope);
    int k = snprintf(head, sizeof head,
                     "*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$5\r\nevent\r\n$%zu\r\n", length,
                     name, n);
    struct link *l = link_of(o, name, (size_t)length);
    add(l, head, (size_t)k);
    add(l, o->envelope, n);
    add(l, "\r\n", 2);
    l->count[o->batch]++;
}

/* Cannot deadlock: Redis reads commands whether or not we read its replies. */
static void send_all(struct out *o)
{
    for (int i = 0; i < o->n_links; i++) {
        struct link *l = &o->link[i];
        for (size_t at = 0; at < l->n;) {
            ssize_t k = send(l->fd, l->p + at, l->n - at, MSG_NOSIGNAL);
            if (k <= 0)
                bench_die("redis: connection lost");
            at += (size_t)k;
        }
        l->n = 0;
    }
}

/* Waits for the ids of the previous batch, two lines each. Further lines belong to this one. */
static void take_from(struct link *l, int batch)
{
    char chunk[65536];
    int lines = 2 * l->count[batch] - l->ahead;
    while (lines > 0) {
        ssize_t k = recv(l->fd, chunk, sizeof chunk, 0);
        if (k <= 0 || memchr(chunk, 'E', (size_t)k))
            bench_die("redis: unexpected reply: %.*s", (int)(k > 0 ? k : 0), chunk);
        for (const char *p = chunk; (p = memchr(p, '\n', (size_t)(chunk + k - p))); p++)
            lines--;
    }
    l->ahead = -lines;
    l->count[batch] = 0;
}

static void take_answers(struct out *o)
{
    for (int i = 0; i < o->n_links; i++)
        take_from(&o->link[i], !o->batch);
}

static int connect_to(const char *where)
{
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr_in port = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)atoi(where)),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool by_path = *where == '/';
    int fd = socket(by_path ? AF_UNIX : AF_INET, SOCK_STREAM, 0), on = 1;
    snprintf(local.sun_path, sizeof local.sun_path, "%s", where);
    int rc = by_path ? connect(fd, (struct sockaddr *)&local, sizeof local)
                     : connect(fd, (struct sockaddr *)&port, sizeof port);
    if (rc != 0)
        bench_die("cannot reach Redis at %s", where);
    if (!by_path)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void out_open(struct out *o, char *servers, const char *stream)
{
    *o = (struct out){.stream = stream};
    for (char *where; (where = strsep(&servers, ",")); o->n_links++) {
        if (o->n_links == LINKS_MAX)
            bench_die("at most %d servers", LINKS_MAX);
        o->link[o->n_links].fd = connect_to(where);
    }
}

/* PostgreSQL */

static struct field field(const PGresult *r, int row, int column)
{
    return (struct field){PQgetvalue(r, row, column), (size_t)PQgetlength(r, row, column)};
}

static void add_result(struct out *o, const PGresult *r)
{
    static const char hex[] = "0123456789abcdef";
    for (int i = 0; i < PQntuples(r); i++) {
        char id[36];
        const unsigned char *u = (const unsigned char *)PQgetvalue(r, i, 1);
        for (int k = 0, at = 0; k < 16; k++) {
            if (k == 4 || k == 6 || k == 8 || k == 10)
                id[at++] = '-';
            id[at++] = hex[u[k] >> 4];
            id[at++] = hex[u[k] & 15];
        }
        struct row row = {
            {id, 36}, field(r, i, 2), field(r, i, 3), field(r, i, 4), field(r, i, 6), "null", 0};
        if (!PQgetisnull(r, i, 5))
            snprintf(row.version, sizeof row.version, "%" PRId64, pg_int8(r, i, 5));
        row.at_ms = (pg_int8(r, i, 7) + EPOCH_2000_US) / 1000;
        add_row(o, &row);
    }
}

static void start_read(PGconn *db, int64_t seq)
{
    char text[24];
    const char *params[] = {text};
    snprintf(text, sizeof text, "%" PRId64, seq);
    pg_send(db, "read", params, 1);
}

static size_t drain_postgres(const char *url, struct out *o, struct bench_timing *t)
{
    PGconn *reader = pg_open(url), *writer = pg_open(url);
    char text[24];
    const char *params[] = {text, "bench"};
    size_t events = 0;
    int64_t seq = 0, sent_seq = 0;
    int sent = 0;
    bool writing = false;
    pg_sql(reader, "SET plan_cache_mode = force_generic_plan");
    pg_sql(writer, "INSERT INTO bench_position VALUES ('bench', 0) ON CONFLICT (consumer) DO "
                   "UPDATE SET position = 0");
    pg_prepare(writer, "position", "UPDATE bench_position SET position = $1 WHERE consumer = $2");
    pg_prepare(reader, "read",
               "SELECT " COLUMNS " FROM outbox.event WHERE seq > $1 ORDER BY seq LIMIT 1000");
    bench_start(t, 1 << 20);
    start_read(reader, 0);
    for (int n = BATCH; n == BATCH || sent;) {
        int64_t from = bench_now();
        PGresult *r = n == BATCH ? pg_take(reader) : NULL;
        n = r ? PQntuples(r) : 0;
        if (n > 0)
            seq = pg_int8(r, n - 1, 0);
        if (n == BATCH)
            start_read(reader, seq);
        o->batch ^= 1;
        if (n > 0)
            add_result(o, r);
        PQclear(r);
        send_all(o);
        if (sent) { /* the batch before this one */
            take_answers(o);
            if (writing)
                PQclear(pg_take(writer));
            snprintf(text, sizeof text, "%" PRId64, sent_seq);
            pg_send(writer, "position", params, 2);
            writing = true;
        }
        sent = n;
        sent_seq = seq;
        events += (size_t)n;
        bench_lap(t, from);
    }
    if (writing)
        PQclear(pg_take(writer));
    return events;
}

static size_t drain_queue(const char *url, struct out *o, struct bench_timing *t)
{
    PGconn *db = pg_open(url);
    size_t events = 0;
    char *list = malloc(BATCH * 24);
    const char *params[] = {list};
    if (!list)
        bench_die("out of memory");
    pg_prepare(db, "claim",
               "WITH next AS MATERIALIZED ("
               "SELECT q.seq FROM bench_queue q WHERE q.status = 'pending' ORDER BY q.seq "
               "LIMIT 1000 FOR UPDATE SKIP LOCKED) "
               "UPDATE bench_queue SET status = 'processing', "
               "locked_until = now() + interval '30 s' FROM next WHERE bench_queue.seq = next.seq "
               "RETURNING bench_queue.seq, id, type, aggregate_type, aggregate_id, version, "
               "payload, created_at");
    pg_prepare(db, "done",
               "UPDATE bench_queue SET status = 'done', locked_until = NULL WHERE seq = ANY "
               "($1::bigint[])");
    bench_start(t, 1 << 20);
    for (int n = BATCH; n == BATCH; events += (size_t)n) {
        int64_t from = bench_now();
        pg_send(db, "claim", NULL, 0);
        PGresult *r = pg_take(db);
        char *to = list;
        n = PQntuples(r);
        add_result(o, r);
        send_all(o);
        o->batch ^= 1;
        take_answers(o);
        for (int i = 0; i < n; i++)
            to += sprintf(to, "%c%" PRId64, i ? ',' : '{', pg_int8(r, i, 0));
        strcpy(to, "}");
        if (n > 0)
            pg_run(db, "done", params, 1);
        PQclear(r);
        bench_lap(t, from);
    }
    return events;
}

/* SQLite */

static struct field column(sqlite3_stmt *q, int i)
{
    const char *p = (const char *)sqlite3_column_text(q, i);
    return (struct field){p ? p : "", (size_t)sqlite3_column_bytes(q, i)};
}

static int read_batch(sqlite3_stmt *q, struct out *o, int64_t *seq)
{
    int n = 0;
    sqlite3_bind_int64(q, 1, *seq);
    for (; sqlite3_step(q) == SQLITE_ROW; n++) {
        struct row row = {
            column(q, 1), column(q, 2), column(q, 3), column(q, 4), column(q, 6), "null", 0};
        if (sqlite3_column_type(q, 5) != SQLITE_NULL)
            snprintf(row.version, sizeof row.version, "%lld",
                     (long long)sqlite3_column_int64(q, 5));
        row.at_ms = sqlite3_column_int64(q, 7);
        *seq = sqlite3_column_int64(q, 0);
        add_row(o, &row);
    }
    sqlite3_reset(q);
    return n;
}

static size_t drain_sqlite(const char *path, struct out *o, struct bench_timing *t)
{
    sqlite3 *db = bench_open(path);
    size_t events = 0;
    int64_t seq = 0, sent_seq = 0;
    int sent = 0;
    bench_sql(db, "CREATE TABLE IF NOT EXISTS bench_position (position INTEGER)");
    bench_sql(db, "DELETE FROM bench_position");
    bench_sql(db, "INSERT INTO bench_position VALUES (0)");
    sqlite3_stmt *q = bench_prepare(db, "SELECT " COLUMNS
                                        " FROM outbox_event WHERE seq > ? ORDER BY seq LIMIT 1000");
    sqlite3_stmt *position = bench_prepare(db, "UPDATE bench_position SET position = ?");
    bench_start(t, 1 << 20);
    for (int n = BATCH; n == BATCH || sent;) {
        int64_t from = bench_now();
        o->batch ^= 1;
        n = n == BATCH ? read_batch(q, o, &seq) : 0;
        /* Redis processed the previous batch while this one was read */
        if (sent)
            take_answers(o);
        send_all(o);
        if (sent) {
            sqlite3_bind_int64(position, 1, sent_seq);
            bench_step(db, position);
        }
        sent = n;
        sent_seq = seq;
        events += (size_t)n;
        bench_lap(t, from);
    }
    return events;
}

int main(int argc, char **argv)
{
    struct out o;
    struct bench_timing t;
    if (argc != 5)
        bench_die("usage: %s postgres|sqlite|skip-locked SOURCE SERVER[,...] STREAM", argv[0]);
    out_open(&o, argv[3], argv[4]);
    size_t events;
    if (strcmp(argv[1], "sqlite") == 0)
        events = drain_sqlite(argv[2], &o, &t);
    else if (strcmp(argv[1], "postgres") == 0)
        events = drain_postgres(argv[2], &o, &t);
    else
        events = drain_queue(argv[2], &o, &t);
    bench_report(&t, events);
    return 0;
}
