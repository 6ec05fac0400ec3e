/* statement.c: statements as text, their values, and rows as events. Nothing is prepared on the
 * server: that would be lost with the connection, and nothing may stay behind on the caller's. How
 * they are sent is in ask.c. */
#include "store/mariadb/mariadb.h"

#include <string.h>

/* ---- writing ---- */

static void add_hex(struct buf *b, struct str s)
{
    static const char digits[] = "0123456789abcdef";
    buf_adds(b, "_utf8mb4 X'");
    char *to = buf_reserve(b, 2 * s.n);
    for (size_t i = 0; to && i < s.n; i++) {
        *to++ = digits[(unsigned char)s.p[i] >> 4];
        *to++ = digits[(unsigned char)s.p[i] & 15];
    }
    if (to)
        b->n += 2 * s.n;
    buf_addc(b, '\'');
}

/* add_quoted doubles quotes and backslashes: our sessions are never in NO_BACKSLASH_ESCAPES. */
static void add_quoted(struct buf *b, struct str s)
{
    buf_expect(b, s.n + 2);
    buf_addc(b, '\'');
    const char *p = s.p, *end = s.p + s.n;
    while (p < end) {
        const char *stop = p;
        while (stop < end && *stop != '\'' && *stop != '\\' && *stop != '\0')
            stop++;
        buf_add(b, p, (size_t)(stop - p));
        if (stop == end)
            break;
        buf_addc(b, '\\');
        buf_addc(b, *stop ? *stop : '0');
        p = stop + 1;
    }
    buf_addc(b, '\'');
}

static void add_text(struct buf *b, enum mdb_literals how, struct str s)
{
    if (!s.p)
        buf_adds(b, "NULL");
    else if (how == MDB_HEX)
        add_hex(b, s);
    else
        add_quoted(b, s);
}

static void add_value(struct buf *b, enum mdb_literals how, char type, const void *arg)
{
    const char *text;
    const int64_t *number;
    switch (type) {
    case 'i': buf_addi64(b, *(const int64_t *)arg); break;
    case 't': add_text(b, how, *(const struct str *)arg); break;
    case 's':
        text = *(const char *const *)arg;
        add_text(b, how, text ? str_of(text) : (struct str){0});
        break;
    case 'o':
        number = *(const int64_t *const *)arg;
        if (number)
            buf_addi64(b, *number);
        else
            buf_adds(b, "NULL");
        break;
    }
}

void mdb_write(const struct mdb_store *st, enum mdb_literals how, const struct sql *sql,
               const void *args, struct buf *b)
{
    const struct sql_parameter *p = sql->in[SQL_MARIADB].parameter;
    const char *at = sql->in[SQL_MARIADB].text;
    for (;;) {
        size_t n = strcspn(at, "?\1");
        buf_add(b, at, n);
        at += n;
        if (!*at)
            return;
        if (*at == '?' && how == MDB_OPEN) {
            buf_addc(b, '?');
        } else if (*at == '?') {
            add_value(b, how, p->type, (const char *)args + p->at);
            p++;
        } else {
            buf_adds(b, st->quoted);
        }
        at++;
    }
}

/* ---- rows ---- */

void mdb_done(struct mdb_rows *q)
{
    if (!q)
        return;
    if (q->res)
        mysql_free_result(q->res);
    free(q->places);
    free(q);
}

/* find_place goes to the place of the row; false if it has none. */
static bool find_place(struct mdb_rows *q)
{
    int64_t nr = mdb_int(q, 0);
    while (q->place < q->n_places && q->places[q->place].nr < nr)
        q->place++;
    return q->place < q->n_places && q->places[q->place].nr == nr;
}

/* fetch goes to the next row that counts. */
static void fetch(struct mdb_rows *q)
{
    do
        q->row = q->res ? mysql_fetch_row(q->res) : NULL;
    while (q->row && q->places && !find_place(q));
}

int mdb_step(struct mdb_rows **at)
{
    struct mdb_rows *q = *at;
    if (!q)
        return -1;
    fetch(q);
    if (!q->row) {
        mdb_done(q);
        *at = NULL;
        return 0;
    }
    q->size = mysql_fetch_lengths(q->res);
    return 1;
}

struct str mdb_copy(const struct mdb_rows *q, int col, struct arena *a, bool *ok)
{
    struct str s = mdb_text(q, col);
    if (!s.p)
        return s;
    s.p = arena_bytes(a, s.p, s.n);
    if (!s.p)
        *ok = false;
    return s;
}

bool mdb_event_row(const struct mdb_rows *q, struct arena *a, struct event *ev)
{
    *ev = (struct event){
        .seq = mdb_seq(q),
        .id = mdb_text(q, 1),
        .type = mdb_text(q, 2),
        .aggregate_type = mdb_text(q, 3),
        .aggregate_id = mdb_text(q, 4),
        .has_version = !mdb_null(q, 5),
        .version = mdb_int(q, 5),
        .payload = mdb_text(q, 6),
        .headers = mdb_text(q, 7),
        .tenant = mdb_text(q, 8),
        .created_at = mdb_int(q, 9),
        .not_before = mdb_int(q, 10),
        .idempotency_key = mdb_text(q, 11),
    };
    return db_event_keep(ev, a);
}
