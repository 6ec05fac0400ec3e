/* my_drain URL MODE: ceilings for a relay that drains MariaDB and discards the events, with none of
 * our code. Batches of 1,000; every byte of every field is read.
 *   cursor       nr > position from outbox_event, and the position recorded in a commit per batch,
 *                one after the other
 *   ahead        the same, but the next batch is read while one is processed, and positions are
 *                committed on a separate connection meanwhile
 *   skip-locked  as queue tables do: claims rows of bench_queue by their status, and marks them
 *                done
 * The cursors lose events that commit late, and have no leases, no retries and a single reader. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "my.h"

#define BATCH 1000
#define COLUMNS \
    "id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, created_at, " \
    "not_before, idempotency_key"

struct drain {
    MYSQL *reader, *writer;
    bool ahead;
    bool writing;  /* a position update is in flight */
    uint64_t seen; /* checksum of all fields, so that no read is optimised away */
    char *text;    /* a statement */
};

/* Touches all fields of a result, and returns the number of its last row. */
static int64_t look(struct drain *d, MYSQL_RES *r)
{
    int64_t last = 0;
    unsigned columns = mysql_num_fields(r);
    for (MYSQL_ROW row; (row = mysql_fetch_row(r)) != NULL;) {
        const unsigned long *size = mysql_fetch_lengths(r);
        last = strtoll(row[0], NULL, 10);
        for (unsigned column = 0; column < columns; column++) {
            unsigned sum = 0;
            for (unsigned long i = 0; row[column] && i < size[column]; i++)
                sum += (unsigned char)row[column][i];
            d->seen += sum;
        }
    }
    return last;
}

/* Returns the number of a result's last row. */
static int64_t last_of(MYSQL_RES *r)
{
    mysql_data_seek(r, mysql_num_rows(r) - 1);
    int64_t last = strtoll(mysql_fetch_row(r)[0], NULL, 10);
    mysql_data_seek(r, 0);
    return last;
}

static void send_read(struct drain *d, int64_t position)
{
    char text[512];
    snprintf(text, sizeof text,
             "SELECT nr, " COLUMNS " FROM outbox_event WHERE nr > %" PRId64 " ORDER BY nr LIMIT %d",
             position, BATCH);
    my_send(d->reader, text);
}

static void finish_write(struct drain *d)
{
    if (d->writing && my_take(d->writer))
        bench_die("an UPDATE has no rows");
    d->writing = false;
}

static void send_write(struct drain *d, int64_t position)
{
    char text[128];
    finish_write(d);
    snprintf(text, sizeof text, "UPDATE bench_position SET position = %" PRId64, position);
    my_send(d->writer, text);
    d->writing = true;
}

static size_t drain_cursor(struct drain *d, struct bench_timing *t)
{
    size_t events = 0;
    my_sql(d->writer, "UPDATE bench_position SET position = 0");
    send_read(d, 0);
    for (size_t n = BATCH; n == BATCH; events += n) {
        int64_t from = bench_now();
        MYSQL_RES *r = my_take(d->reader);
        n = mysql_num_rows(r);
        bool more = n == BATCH;
        int64_t last = n ? last_of(r) : 0;
        if (more && d->ahead)
            send_read(d, last);
        look(d, r);
        mysql_free_result(r);
        if (n)
            send_write(d, last);
        if (!d->ahead)
            finish_write(d);
        if (more && !d->ahead)
            send_read(d, last);
        bench_lap(t, from);
    }
    finish_write(d);
    return events;
}

/* Writes `head`, the numbers of a result's rows, and `tail`. */
static void list(struct drain *d, MYSQL_RES *r, const char *head, const char *tail)
{
    char *to = d->text + sprintf(d->text, "%s", head);
    mysql_data_seek(r, 0);
    for (MYSQL_ROW row; (row = mysql_fetch_row(r)) != NULL;)
        to += sprintf(to, "%s,", row[0]);
    sprintf(to - 1, "%s", tail);
}

static size_t drain_queue(struct drain *d, struct bench_timing *t)
{
    size_t events = 0;
    for (size_t n = BATCH; n == BATCH; events += n) {
        int64_t from = bench_now();
        my_sql(d->reader, "START TRANSACTION");
        MYSQL_RES *r = my_rows(d->reader,
                               "SELECT nr, " COLUMNS " FROM bench_queue WHERE status = 'pending' "
                               "ORDER BY nr LIMIT 1000 FOR UPDATE SKIP LOCKED");
        n = mysql_num_rows(r);
        if (n) {
            list(d, r,
                 "UPDATE bench_queue SET status = 'processing', locked_until = NOW() + INTERVAL 30 "
                 "SECOND WHERE nr IN (",
                 ")");
            my_sql(d->reader, d->text);
        }
        my_sql(d->reader, "COMMIT");
        mysql_data_seek(r, 0);
        look(d, r);
        if (n) {
            list(d, r, "UPDATE bench_queue SET status = 'done', locked_until = NULL WHERE nr IN (",
                 ")");
            my_sql(d->reader, d->text);
        }
        mysql_free_result(r);
        bench_lap(t, from);
    }
    return events;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        bench_die("usage: %s URL cursor|ahead|skip-locked", argv[0]);
    bool claims = strcmp(argv[2], "skip-locked") == 0;
    struct drain d = {.reader = my_open(argv[1]), .ahead = strcmp(argv[2], "ahead") == 0};
    d.writer = my_open(argv[1]);
    d.text = malloc(BATCH * 24 + 256);
    if (!d.text)
        bench_die("out of memory");
    my_sql(d.reader, "SET SESSION in_predicate_conversion_threshold = 0");
    struct bench_timing t;
    bench_start(&t, 1 << 20);
    size_t events = claims ? drain_queue(&d, &t) : drain_cursor(&d, &t);
    if (events > 0 && d.seen == 0)
        bench_die("read no events");
    bench_report(&t, events);
    free(d.text);
    mysql_close(d.reader);
    mysql_close(d.writer);
    return 0;
}
