/* info.c: the outbox as a whole, for operators. */
#include "store/db/db.h"
#include "store_sql.h"

int db_info(struct store *st, struct store_info *ret, struct error *err)
{
    if (db_give_numbers(st, err) != 0)
        return -1;
    struct store_info i = {.now_ms = db_now(st), .passed_at = -1};
    int64_t version = 0, last = 0;
    const struct db_number wanted[] = {
        {&version, SQL(schema_version)},      {&i.head, SQL(head)},
        {&i.tail, SQL(first_event)},          {&last, SQL(last_event)},
        {&i.oldest_at, SQL(tail_created_at)}, {&i.consumers, SQL(count_consumers)},
        {&i.dead, SQL(count_all_dead)},
    };
    if (db_values(st, err, wanted, sizeof wanted / sizeof *wanted) != 0)
        return -1;
    if (db_value(st, err, &i.passed_at, SQL(passed_at, .tail = i.tail)) != 0)
        return -1;
    i.schema_version = (int)version;

    /* Many events are not counted: the ends of their numbers give an upper bound. */
    if (i.tail)
        i.events = last - i.tail + 1;
    i.events_exact = i.events <= STORE_EXACT_ROWS;
    if (i.events_exact && db_value(st, err, &i.events, SQL(count_events)) != 0)
        return -1;
    *ret = i;
    return 0;
}

int db_marks(struct store *st, const char *stream, mark_visit *visit, void *ctx, struct error *err)
{
    int r = 0, stop = 0;
    struct db_rows q = db_rows(st, err, SQL(list_marks, .stream = stream));
    while (!stop && (r = db_step(&q, err)) == 1) {
        struct hwm m = {db_text(&q, 0), db_int(&q, 2), db_int(&q, 3)};
        stop = visit(ctx, db_text(&q, 1).p, &m, db_int(&q, 4));
    }
    if (!stop)
        return r;
    db_done(&q);
    return 0;
}
