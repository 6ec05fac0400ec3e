/* former.c: a consumer's former filters. The state of an event follows from the filter in force
 * when it was handed out. */
#include "store/db/db.h"
#include "store_sql.h"

#define ANSWER_EVENTS 50 /* rows that are in memory at once, with their payloads */

int db_former_keep(struct store *st, const char *name, struct error *err)
{
    int64_t n = 0, moved = 0;
    if (db_value(st, err, &n, SQL(last_former, .consumer = name)) != 0)
        return -1;
    if (db_value(st, err, &moved, SQL(moved_since_former, .consumer = name, .n = n)) != 0)
        return -1;
    if (!moved)
        return 0;
    return db_run(st, err, SQL(put_former, .consumer = name, .n = n));
}

static bool wants(const struct filter *f, const struct db_rows *q)
{
    return filter_type(f, db_text(q, 2)) && filter_payload(f, db_text(q, 6));
}

/* Returns how an event ends that was claimed under the former filter: if the current filter wants
 * it, it is delivered after all; if only the former one did, it never is. NULL: neither wanted it,
 * or it is in another lane. */
static const char *end_of(const struct taken_over *t, const struct filter *former,
                          const struct db_rows *q)
{
    uint64_t key = event_key(db_text(q, 3), db_text(q, 4));
    bool its_own = t->lane == STORE_ALL_LANES || event_lane(key, db_int(q, 0), t->lanes) == t->lane;
    if (!its_own)
        return NULL;
    if (wants(t->filter, q))
        return "delivered";
    if (wants(former, q))
        return "skipped";
    return NULL;
}

/* Records the ends of one page of events, and moves *from past them. */
static int note_some(struct store *st, const struct taken_over *t, const struct filter *former,
                     int64_t *from, struct error *err)
{
    int64_t max = db_page(st, ANSWER_EVENTS);
    struct db_rows q = db_rows(
        st, err, SQL(taken_over_events, .from_seq = *from, .to_seq = t->to, .max = max));
    int64_t n = 0;
    int r;
    while ((r = db_step(&q, err)) == 1) {
        const char *state = end_of(t, former, &q);
        *from = db_int(&q, 0);
        n++;
        if (state &&
            db_run(st, err,
                   SQL(put_ended, .consumer = t->consumer, .seq = *from, .state = state)) != 0) {
            db_done(&q);
            return -1;
        }
    }
    if (n < max)
        *from = t->to;
    return r;
}

static int note_range(struct store *st, const struct taken_over *t, const struct filter *former,
                      struct error *err)
{
    int64_t from = t->from;
    while (from < t->to)
        if (note_some(st, t, former, &from, err) != 0)
            return -1;
    return 0;
}

int db_former_taken_over(struct store *st, const struct taken_over *t, struct error *err)
{
    struct filter *former = NULL;
    struct db_rows q;
    int r = db_row(st, &q, err, SQL(former_of_claim, .consumer = t->consumer, .epoch = t->epoch));
    if (r <= 0)
        return r;
    r = filter_new(db_text(&q, 0).p, db_text(&q, 1).p, &former, err);
    db_done(&q);
    if (r != 0)
        return -1;
    r = note_range(st, t, former, err);
    filter_free(former);
    return r;
}
