/* result.c: waiting for results, and the values and events in them. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "store/postgres/postgres.h"

#define TEXTS 7                        /* columns of an event that are text of any length */
#define EPOCH_MS INT64_C(946684800000) /* 2000-01-01, where PostgreSQL's time begins */
#define TLS_LOOK_MS 50 /* how often to ask libpq on a connection with TLS; see wait_for */
#define LOOK_MS 60000  /* and without */
#define READER_MS 5000 /* for reading ahead, which is optional, and leases expire meanwhile */

/* ---- waiting ---- */

/* Returns the answer timeout in ms; 0: none. */
static int64_t answer_limit(const struct pg_store *st, const PGconn *db)
{
    if (st->patient || st->opt.any_version)
        return 0;
    if (db == st->reader && st->answer_ms > READER_MS)
        return READER_MS;
    return st->answer_ms;
}

/* Waits until a result is available. Returns false on timeout: a connection whose peer vanished
 * stays silent, and TCP does not notice.
 *
 * Uses the system clock, whatever the store's clock, because the socket is real. With TLS it checks
 * libpq now and then: data that TLS has already read no longer makes the socket readable. */
static bool wait_for(const struct pg_store *st, PGconn *db)
{
    int64_t limit = answer_limit(st, db);
    int64_t since = clock_mono(&clock_system);
    int64_t most = PQsslInUse(db) ? TLS_LOOK_MS : LOOK_MS;
    while (PQisBusy(db)) {
        int64_t wait = most;
        if (limit > 0) {
            int64_t left = limit - (clock_mono(&clock_system) - since) / MS_NS;
            if (left <= 0)
                return false;
            if (left < most)
                wait = left;
        }

        struct pollfd fd = {.fd = PQsocket(db), .events = POLLIN};
        int n = poll(&fd, 1, (int)wait);
        bool broken = n < 0 && errno != EINTR;
        if (broken || !PQconsumeInput(db))
            return true; /* PQgetResult reports the error */
        if (n > 0)
            since = clock_mono(&clock_system);
    }
    return true;
}

PGresult *pg_next_result(struct pg_store *st, PGconn *db)
{
    if (!wait_for(st, db)) {
        st->silent = true;
        shutdown(PQsocket(db), SHUT_RDWR); /* to libpq the server seems to be gone */
    }
    return PQgetResult(db);
}

/* Also ends the pipeline that send_with_path in statement.c began. The rows are followed by its end
 * mark, preceded by an error if the commit failed. */
PGresult *pg_result(struct pg_store *st, PGconn *db)
{
    PGresult *r = pg_next_result(st, db);
    if (r || PQpipelineStatus(db) == PQ_PIPELINE_OFF)
        return r;
    r = pg_next_result(st, db);
    if (r && PQresultStatus(r) != PGRES_PIPELINE_SYNC)
        return r;
    PQclear(r);
    PQexitPipelineMode(db);
    return NULL;
}

PGresult *pg_last_result(struct pg_store *st, PGconn *db)
{
    PGresult *last = NULL;
    for (PGresult *r; (r = pg_result(st, db));) {
        PQclear(last);
        last = r;
        if (PQstatus(db) == CONNECTION_BAD)
            break;
    }
    return last;
}

void pg_clear_results(PGconn *db)
{
    if (PQtransactionStatus(db) == PQTRANS_ACTIVE)
        PQclear(PQexec(db, ""));
}

bool pg_went_well(const PGresult *r)
{
    ExecStatusType s = PQresultStatus(r);
    return s == PGRES_TUPLES_OK || s == PGRES_COMMAND_OK || s == PGRES_SINGLE_TUPLE;
}

/* ---- values ---- */

int64_t pg_int(const PGresult *r, int row, int col)
{
    if (PQgetisnull(r, row, col))
        return 0;
    return strtoll(PQgetvalue(r, row, col), NULL, 10);
}

bool pg_true(const PGresult *r, int row, int col)
{
    return *PQgetvalue(r, row, col) == 't';
}

const char *pg_str(const PGresult *r, int row, int col)
{
    if (PQgetisnull(r, row, col))
        return NULL;
    return PQgetvalue(r, row, col);
}

const char *pg_copy(const PGresult *r, int row, int col, struct arena *a, bool *ok)
{
    if (PQgetisnull(r, row, col))
        return NULL;
    const char *s = arena_bytes(a, PQgetvalue(r, row, col), (size_t)PQgetlength(r, row, col));
    if (!s)
        *ok = false;
    return s;
}

bool pg_next_number(const char **list, int64_t *ret)
{
    char *end;
    if (**list != '{' && **list != ',')
        return false;
    *ret = strtoll(*list + 1, &end, 10);
    *list = end;
    return true;
}

/* ---- events ----
 *
 * A drain spends most of its client-side time here. */

/* Reads a number in network byte order. */
static int64_t be64(const char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return (int64_t)v;
}

int64_t pg_binary_int8(const PGresult *r, int row, int col)
{
    if (PQgetlength(r, row, col) != 8)
        return 0;
    return be64(PQgetvalue(r, row, col));
}

/* Returns a timestamp in milliseconds since 1970; 0 for NULL. The infinities become the ends of the
 * range. */
static int64_t time_ms(const PGresult *r, int row, int col)
{
    if (PQgetlength(r, row, col) != 8)
        return 0;
    int64_t us = be64(PQgetvalue(r, row, col));
    int64_t ms = us / 1000;
    if (us % 1000 < 0)
        ms--;
    if (ms > INT64_MAX - EPOCH_MS)
        return INT64_MAX;
    return ms + EPOCH_MS;
}

/* Writes 36 characters and a NUL. */
static void uuid_text(const char *bytes, char *to)
{
    static const char hex[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        unsigned char c = (unsigned char)bytes[i];
        bool group_begins = i == 4 || i == 6 || i == 8 || i == 10;
        if (group_begins)
            *to++ = '-';
        *to++ = hex[c >> 4];
        *to++ = hex[c & 15];
    }
    *to = '\0';
}

/* Copies one column to *at and steps past it and its NUL. */
static struct str keep(const PGresult *r, int row, int col, char **at)
{
    if (PQgetisnull(r, row, col))
        return (struct str){NULL, 0};
    struct str s = {*at, (size_t)PQgetlength(r, row, col)};
    memcpy(*at, PQgetvalue(r, row, col), s.n + 1); /* libpq NUL-terminates every value */
    *at += s.n + 1;
    return s;
}

/* One allocation for the id and all texts. */
bool pg_event_row(const PGresult *r, int row, struct arena *a, struct event *ev)
{
    static const int columns[TEXTS] = {2, 3, 4, 6, 7, 8, 11};
    struct str *to[TEXTS] = {&ev->type,    &ev->aggregate_type, &ev->aggregate_id,   &ev->payload,
                             &ev->headers, &ev->tenant,         &ev->idempotency_key};
    size_t size = UUID_TEXT + 1;
    for (int i = 0; i < TEXTS; i++)
        size += (size_t)PQgetlength(r, row, columns[i]) + 1;
    char *at = arena_raw(a, size);
    if (!at)
        return false;

    *ev = (struct event){
        .seq = pg_binary_int8(r, row, 0),
        .has_version = !PQgetisnull(r, row, 5),
        .version = pg_binary_int8(r, row, 5),
        .created_at = time_ms(r, row, 9),
        .not_before = time_ms(r, row, 10),
    };
    ev->id = (struct str){at, UUID_TEXT};
    uuid_text(PQgetvalue(r, row, 1), at);
    at += UUID_TEXT + 1;
    for (int i = 0; i < TEXTS; i++)
        *to[i] = keep(r, row, columns[i], &at);
    ev->key = event_key(ev->aggregate_type, ev->aggregate_id);
    return true;
}
