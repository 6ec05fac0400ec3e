/* event_row.c: events out of binary result rows. Of the time that a drain spends on our side, most
 * is spent here. */
#include "store/postgres/postgres.h"

#define TEXTS 7                        /* columns of an event that are text of any length */
#define EPOCH_MS INT64_C(946684800000) /* 2000-01-01, where PostgreSQL's time begins */

/* be64 reads a number as it comes over the network. */
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

/* time_ms returns a timestamp in milliseconds since 1970; 0 for NULL. The infinities become the
 * ends of the range. */
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

/* uuid_text writes 36 characters and a NUL. */
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

/* keep copies one column to *at and steps past it and its NUL. */
static struct str keep(const PGresult *r, int row, int col, char **at)
{
    if (PQgetisnull(r, row, col))
        return (struct str){NULL, 0};
    struct str s = {*at, (size_t)PQgetlength(r, row, col)};
    memcpy(*at, PQgetvalue(r, row, col), s.n + 1); /* libpq puts a NUL behind every value */
    *at += s.n + 1;
    return s;
}

/* pg_event_row takes all the room at once, for the id and the texts. */
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
