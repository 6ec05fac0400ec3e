/* single.c: a simple turn of one consumer, whose events come with the answer. What is simple is
 * decided in sql/postgres/internal/single_turn.sql; turns.c hands the events out. */
#include "base/buf.h"
#include "store/postgres/postgres.h"

#define MARKS_BYTES (16 << 20)
#define PAYLOAD_COLUMN 6 /* of PG_EVENT_COLUMNS */

/* The columns of the answer, behind those of an event. */
enum { A_EPOCH = PG_EVENT_COLUMN_COUNT, A_N, A_SEEN, A_FLOOR, A_TARGET, A_WINDOW_END, A_NOW_MS };

static const char single_sql[] =
    "SELECT " PG_EVENT_COLUMNS ", e.epoch, e.n, e.seen, e.floor, e.target, e.window_end, e.now_ms "
    "FROM @schema@._single_turn(ROW(0, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
    "::@schema@._simple, @version@) e";

/* ask makes the call. `marks` is JSON, or NULL. */
static PGresult *ask(struct pg_store *st, const struct batched_turn *t, const char *marks,
                     struct error *err)
{
    const struct claim_request *req = t->req;
    const struct settlement *s = t->s;
    int64_t epoch = s ? s->b->epoch : 0;
    int64_t tried = s ? (int64_t)s->b->n : 0;
    return pg_rows(st, err, single_sql, "ssiisiibssss", req->consumer, req->owner, epoch, tried,
                   marks, (int64_t)req->max_events, req->lease_ms, (int)pg_pulls_in(st, req), "{}",
                   store_order_names[req->order], req->events ? req->events : "",
                   req->where ? req->where : "");
}

/* read_answer reads what every row has. */
static struct pg_simple_answer read_answer(const PGresult *r)
{
    const int row = 0;
    return (struct pg_simple_answer){.made = true,
                                     .quiet = true,
                                     .epoch = pg_binary_int8(r, row, A_EPOCH),
                                     .n = pg_binary_int8(r, row, A_N),
                                     .seen = pg_str(r, row, A_SEEN),
                                     .floor = pg_binary_int8(r, row, A_FLOOR),
                                     .target = pg_str(r, row, A_TARGET),
                                     .to = pg_binary_int8(r, row, A_WINDOW_END),
                                     .now_ms = pg_binary_int8(r, row, A_NOW_MS)};
}

/* all_came says whether the rows have whole events: the server leaves out a payload that is
 * large. */
static bool all_came(const PGresult *r, int n)
{
    for (int i = 0; i < n; i++) {
        if (PQgetisnull(r, i, PAYLOAD_COLUMN))
            return false;
    }
    return true;
}

PGresult *pg_single(struct pg_store *st, const struct batched_turn *t, struct pg_simple_answer *ret,
                    int *ret_came, struct error *err)
{
    struct buf marks;
    PGresult *r = NULL;
    bool marked = t->s && t->s->n_marks > 0;
    buf_init(&marks, MARKS_BYTES);
    pg_add_marks(&marks, t->s);
    if (!buf_cstr(&marks))
        err_nomem(err);
    else
        r = ask(st, t, marked ? marks.p : NULL, err);
    buf_release(&marks);
    if (!r)
        return NULL;

    int rows = PQntuples(r);
    *ret = (struct pg_simple_answer){0};
    *ret_came = 0;
    if (rows > 0)
        *ret = read_answer(r);
    if (all_came(r, rows))
        *ret_came = rows;
    return r;
}
