/* info.c: the outbox as a whole, for operators. */
#include "mdb_sql.h"
#include "store/mariadb/mariadb.h"

int mdb_info(struct store *base, struct store_info *ret, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    if (mdb_sequence(st, err) != 0)
        return -1;
    struct store_info i = {.now_ms = mdb_now(st), .passed_at = -1};
    int64_t version = 0, last = 0;
    const struct mdb_number wanted[] = {
        {&version, SQL(schema_version)},      {&i.head, SQL(head)},
        {&i.tail, SQL(first_event)},          {&last, SQL(last_event)},
        {&i.oldest_at, SQL(tail_created_at)}, {&i.consumers, SQL(count_consumers)},
        {&i.dead, SQL(count_all_dead)},
    };
    if (mdb_values(st, err, wanted, sizeof wanted / sizeof *wanted) != 0)
        return -1;
    if (mdb_value(st, err, &i.passed_at, SQL(passed_at, .tail = i.tail)) != 0)
        return -1;
    i.schema_version = (int)version;

    /* Many events are not counted: the ends of their numbers give an upper bound. */
    if (i.tail)
        i.events = last - i.tail + 1;
    i.events_exact = i.events <= STORE_EXACT_ROWS;
    if (i.events_exact && mdb_value(st, err, &i.events, SQL(count_events)) != 0)
        return -1;
    *ret = i;
    return 0;
}

int mdb_marks(struct store *base, const char *stream, mark_visit *visit, void *ctx,
              struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    int r = 0, stop = 0;
    struct mdb_rows *q = mdb_rows(st, err, SQL(list_marks, .stream = stream));
    while (!stop && (r = mdb_step(&q)) == 1) {
        struct hwm m = {mdb_text(q, 0), mdb_int(q, 2), mdb_int(q, 3)};
        stop = visit(ctx, mdb_text(q, 1).p, &m, mdb_int(q, 4));
    }
    if (!stop)
        return r;
    mdb_done(q);
    return 0;
}
