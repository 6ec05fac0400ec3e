/* bare_drain DB OUT CONSUMER [--no-position]: the ceiling for a relay that drains to a file. It
 * reads outbox_event in batches of 1,000, writes the lines that a relay would write, syncs them,
 * and records the position in a transaction; with none of our code, no leases, no retries, and for
 * a single reader. Without the position it could not resume: that variant shows the cost of the
 * commit. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define BATCH 1000

struct out {
    char *p;
    size_t n, cap;
    int64_t day; /* whose date is in `date` */
    char date[11];
};

static char *room(struct out *o, size_t n)
{
    if (n > o->cap - o->n) {
        o->cap = 2 * (o->n + n);
        o->p = realloc(o->p, o->cap);
        if (!o->p)
            bench_die("out of memory");
    }
    return o->p + o->n;
}

static void add(struct out *o, const char *p, size_t n)
{
    memcpy(room(o, n), p, n);
    o->n += n;
}

#define ADD(o, literal) add(o, literal, sizeof(literal) - 1)

static void add_number(struct out *o, int64_t v)
{
    char digits[20];
    size_t at = sizeof digits;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do
        digits[--at] = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        ADD(o, "-");
    add(o, digits + at, sizeof digits - at);
}

static void add_string(struct out *o, sqlite3_stmt *q, int col)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *p = sqlite3_column_text(q, col);
    if (!p) {
        ADD(o, "null");
        return;
    }
    size_t n = (size_t)sqlite3_column_bytes(q, col);
    char *start = room(o, 6 * n + 2), *to = start;
    *to++ = '"';
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '"' || p[i] == '\\')
            *to++ = '\\';
        if (p[i] >= 0x20) {
            *to++ = (char)p[i];
        } else {
            memcpy(to, "\\u00", 4);
            to[4] = hex[p[i] >> 4];
            to[5] = hex[p[i] & 15];
            to += 6;
        }
    }
    *to++ = '"';
    o->n += (size_t)(to - start);
}

/* Copies JSON text onto one line: strings cannot contain line ends, and elsewhere they are white
 * space. */
static void add_json(struct out *o, sqlite3_stmt *q, int col, const char *absent)
{
    const char *p = (const char *)sqlite3_column_text(q, col);
    if (!p) {
        add(o, absent, strlen(absent));
        return;
    }
    size_t at = o->n;
    add(o, p, (size_t)sqlite3_column_bytes(q, col));
    char *e;
    while ((e = memchr(o->p + at, '\n', o->n - at)))
        *e = ' ';
    while ((e = memchr(o->p + at, '\r', o->n - at)))
        *e = ' ';
}

static void put(char *to, int v, int digits)
{
    for (; digits > 0; v /= 10)
        to[--digits] = (char)('0' + v % 10);
}

static void add_time(struct out *o, int64_t ms)
{
    int64_t day = ms / 86400000;
    int rest = (int)(ms % 86400000);
    char clock[] = "T00:00:00.000Z";
    if (day != o->day) {
        time_t t = (time_t)(day * 86400);
        struct tm tm;
        strftime(o->date, sizeof o->date, "%Y-%m-%d", gmtime_r(&t, &tm));
        o->day = day;
    }
    put(clock + 1, rest / 3600000, 2);
    put(clock + 4, rest / 60000 % 60, 2);
    put(clock + 7, rest / 1000 % 60, 2);
    put(clock + 10, rest % 1000, 3);
    add(o, o->date, 10);
    add(o, clock, sizeof clock - 1);
}

static void add_line(struct out *o, sqlite3_stmt *q, const char *consumer)
{
    ADD(o, "{\"id\":");
    add_string(o, q, 1);
    ADD(o, ",\"seq\":");
    add_number(o, sqlite3_column_int64(q, 0));
    ADD(o, ",\"type\":");
    add_string(o, q, 2);
    ADD(o, ",\"aggregate_type\":");
    add_string(o, q, 3);
    ADD(o, ",\"aggregate_id\":");
    add_string(o, q, 4);
    ADD(o, ",\"version\":");
    if (sqlite3_column_type(q, 5) == SQLITE_NULL)
        ADD(o, "null");
    else
        add_number(o, sqlite3_column_int64(q, 5));
    ADD(o, ",\"payload\":");
    add_json(o, q, 6, "null");
    ADD(o, ",\"headers\":");
    add_json(o, q, 7, "{}");
    ADD(o, ",\"created_at\":\"");
    add_time(o, sqlite3_column_int64(q, 9));
    ADD(o, "\",\"consumer\":\"");
    add(o, consumer, strlen(consumer));
    ADD(o, "\",\"attempt\":1}\n");
}

static void flush(struct out *o, int fd)
{
    for (size_t at = 0; at < o->n;) {
        ssize_t n = write(fd, o->p + at, o->n - at);
        if (n < 0)
            bench_die("write: %m");
        at += (size_t)n;
    }
    if (fsync(fd) != 0)
        bench_die("fsync: %m");
    o->n = 0;
}

/* Appends the lines of the events after *seq and advances it; returns their number. Also reads
 * tenant and not_before, as a relay does. */
static size_t read_batch(sqlite3 *db, sqlite3_stmt *q, int64_t *seq, const char *consumer,
                         struct out *o)
{
    size_t n = 0;
    int rc;
    sqlite3_bind_int64(q, 1, *seq);
    for (; (rc = sqlite3_step(q)) == SQLITE_ROW; n++) {
        *seq = sqlite3_column_int64(q, 0);
        if (sqlite3_column_int64(q, 10) != 0 || sqlite3_column_text(q, 8))
            bench_die("not an event of this benchmark");
        add_line(o, q, consumer);
    }
    if (rc != SQLITE_DONE)
        bench_die("%s", sqlite3_errmsg(db));
    sqlite3_reset(q);
    return n;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        bench_die("usage: %s DB OUT CONSUMER [--no-position]", argv[0]);
    bool position = argc == 4;
    const char *consumer = argv[3];
    sqlite3 *db = bench_open(argv[1]);
    bench_sql(
        db,
        "CREATE TABLE IF NOT EXISTS bench_position (consumer TEXT PRIMARY KEY, position INTEGER) "
        "WITHOUT ROWID");
    sqlite3_stmt *insert = bench_prepare(db, "REPLACE INTO bench_position VALUES (?, 0)");
    sqlite3_bind_text(insert, 1, consumer, -1, SQLITE_STATIC);
    bench_step(db, insert);
    sqlite3_finalize(insert);
    sqlite3_stmt *q = bench_prepare(
        db, "SELECT seq, id, type, aggregate_type, aggregate_id, version, payload, headers, "
            "tenant, created_at, not_before "
            "FROM outbox_event WHERE seq > ? ORDER BY seq LIMIT 1000");
    sqlite3_stmt *update = bench_prepare(
        db, "UPDATE bench_position SET position = ? WHERE consumer = ?");
    sqlite3_bind_text(update, 2, consumer, -1, SQLITE_STATIC);
    int fd = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        bench_die("%s: %m", argv[2]);

    struct out o = {.day = -1};
    struct bench_timing t;
    int64_t seq = 0;
    size_t events = 0;
    bench_start(&t, 1 << 20);
    for (size_t n = BATCH; n == BATCH; events += n) {
        int64_t from = bench_now();
        n = read_batch(db, q, &seq, consumer, &o);
        flush(&o, fd);
        sqlite3_bind_int64(update, 1, seq);
        if (position)
            bench_step(db, update);
        bench_lap(&t, from);
    }
    bench_report(&t, events);
    free(o.p);
    sqlite3_finalize(q);
    sqlite3_finalize(update);
    sqlite3_close(db);
    close(fd);
    return 0;
}
