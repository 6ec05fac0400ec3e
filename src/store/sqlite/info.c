/* info.c: the outbox as a whole, for operators. */
#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

int sqlite_info(struct store *base, struct store_info *ret, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct store_info i = {.now_ms = sqlite_now(st), .passed_at = -1};
    int64_t version = 0, last = 0;
    const struct sqlite_number wanted[] = {
        {&version, SQL(schema_version)},      {&i.head, SQL(head)},
        {&i.tail, SQL(first_event)},          {&last, SQL(last_event)},
        {&i.oldest_at, SQL(tail_created_at)}, {&i.consumers, SQL(count_consumers)},
        {&i.dead, SQL(count_all_dead)},
    };
    if (sqlite_values(st, err, wanted, sizeof wanted / sizeof *wanted) != 0)
        return -1;
    if (sqlite_value(st, err, &i.passed_at, SQL(passed_at, .tail = i.tail)) != 0)
        return -1;
    i.schema_version = (int)version;

    /* Many events are not counted: the ends of their numbers give an upper bound. */
    if (i.tail)
        i.events = last - i.tail + 1;
    i.events_exact = i.events <= STORE_EXACT_ROWS;
    if (i.events_exact && sqlite_value(st, err, &i.events, SQL(count_events)) != 0)
        return -1;
    *ret = i;
    return 0;
}

int sqlite_marks(struct store *base, const char *stream, mark_visit *visit, void *ctx,
                 struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    int r = 0, stop = 0;
    sqlite3_stmt *q = sqlite_rows(st, err, SQL(list_marks, .stream = stream));
    while (!stop && (r = sqlite_step(st, q, err)) == 1) {
        struct hwm m = {sqlite_text(q, 0), sqlite3_column_int64(q, 2), sqlite3_column_int64(q, 3)};
        stop = visit(ctx, sqlite_text(q, 1).p, &m, sqlite3_column_int64(q, 4));
    }
    if (!stop)
        return r;
    sqlite3_reset(q);
    return 0;
}
