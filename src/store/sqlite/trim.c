/* trim.c: deleting what is old and needed by nobody, a little at a time. */
#include <stdio.h>

#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

#define TRIM_ROWS 1000
#define SAMPLES 168    /* taken in the time that events are kept: one an hour in a week */
#define LOOK_AT 100000 /* events that may be in front of those that can go */
#define COUNT_KEPT 10000

/* Which events may go: those up to past, which every consumer was done with at the time of cutoff.
 * None goes that is younger by its own created_at, and one that is odd holds up no other. One whose
 * created_at is ahead of the clock is as old as the next after it that is not: last is the last
 * that is old. (1) past <= floor, up to which nobody needs any event. */
struct old {
    int64_t cutoff, now, floor, past, last, n;
};

/* ---- how far everybody is, and was ---- */

/* note_passed takes a sample of how far a consumer has got, and drops samples that have become
 * untrue, or say nothing more. */
static int note_passed(struct sqlite_store *st, const struct consumer_info *c, const struct old *o,
                       struct error *err)
{
    const char *name = c->spec.name;
    int64_t every = (o->now - o->cutoff) / SAMPLES;
    if (sqlite_run(st, err, SQL(passed_by_now, .consumer = name, .now = o->now)) != 0)
        return -1;
    if (sqlite_run(st, err, SQL(passed_too_far, .consumer = name, .floor = c->floor)) != 0)
        return -1;
    if (c->floor > 0 && sqlite_run(st, err,
                                   SQL(put_passed, .consumer = name, .floor = c->floor,
                                       .now = o->now, .every = every)) != 0)
        return -1;
    return sqlite_run(st, err, SQL(passed_long_ago, .consumer = name, .cutoff = o->cutoff));
}

static int passed_by(struct sqlite_store *st, const struct consumer_info *c, const struct old *o,
                     int64_t *ret, struct error *err)
{
    *ret = 0;
    return sqlite_value(
        st, err, ret,
        SQL(passed_by, .consumer = c->spec.name, .cutoff = o->cutoff, .floor = c->floor));
}

/* find_consumer_past lowers floor and past to where this consumer is and was; pin says who holds
 * the floor. */
static int find_consumer_past(struct sqlite_store *st, const struct consumer_info *c, bool note,
                              struct old *o, char pin[160], struct error *err)
{
    int64_t past = c->floor;
    bool right_away = o->cutoff >= o->now;
    if (note && note_passed(st, c, o, err) != 0)
        return -1;
    if (!right_away && passed_by(st, c, o, &past, err) != 0)
        return -1;
    if (past < o->past)
        o->past = past;
    if (c->floor >= o->floor)
        return 0;
    o->floor = c->floor;
    snprintf(pin, 160, "consumer \"%s\" (%s at %lld%s)", c->spec.name, c->floor_pin,
             (long long)c->floor, c->paused ? ", paused" : "");
    return 0;
}

/* find_past: events up to o->floor are needed by no consumer, pin says who holds it there; and up
 * to o->past they were not at the time of the cutoff, either. note: samples are taken. */
static int find_past(struct sqlite_store *st, bool note, struct old *o, char pin[160],
                     struct error *err)
{
    struct arena a;
    struct consumer_info *c;
    size_t n;
    arena_init(&a, 0);
    int r = sqlite_consumer_floors(st, &a, &c, &n, err);
    o->floor = r == 0 && n > 0 ? INT64_MAX : 0;
    o->past = o->floor;
    snprintf(pin, 160, "no consumer is registered yet");
    for (size_t i = 0; r == 0 && i < n; i++)
        r = find_consumer_past(st, &c[i], note, o, pin, err);
    if (o->past > o->floor)
        o->past = o->floor;
    arena_release(&a);
    return r;
}

/* ---- what may go ---- */

/* find_old looks for up to max events that are old enough, and were passed by everybody long enough
 * ago; max 0: for all. */
static int find_old(struct sqlite_store *st, struct old *o, int64_t max, struct error *err)
{
    int r = 0;
    int64_t look_at = max ? LOOK_AT : INT64_MAX;
    sqlite3_stmt *q = sqlite_rows(st, err, SQL(passed_events, .past = o->past, .max = look_at));
    if (!q)
        return -1;
    o->last = o->n = 0;
    while ((max == 0 || o->n < max) && (r = sqlite_step(st, q, err)) == 1) {
        if (sqlite3_column_int64(q, 1) >= o->cutoff)
            continue;
        o->last = sqlite3_column_int64(q, 0);
        o->n++;
    }
    sqlite3_reset(q);
    return r < 0 ? -1 : 0;
}

/* count_kept: how many are old enough, but past the floor, among the next `most`. */
static int count_kept(struct sqlite_store *st, const struct old *o, int64_t most,
                      struct trim_result *t, struct error *err)
{
    t->kept_for_pin = 0;
    if (sqlite_value(st, err, &t->kept_for_pin,
                     SQL(count_kept, .floor = o->floor, .most = most, .cutoff = o->cutoff)) != 0)
        return -1;
    t->kept_more = t->kept_for_pin >= most;
    if (t->kept_for_pin == 0)
        t->pin[0] = '\0';
    return 0;
}

static int64_t inbox_end(const struct sqlite_store *st, const struct trim_request *req)
{
    return sqlite_now(st) - (req->inbox_ms ? req->inbox_ms : req->older_than_ms);
}

static int trim_keys(struct sqlite_store *st, int64_t cutoff, int64_t inbox_cutoff, int64_t max,
                     struct trim_result *t, struct error *err)
{
    if (sqlite_run(st, err, SQL(drop_left_over_keys, .cutoff = cutoff, .max = max)) != 0)
        return -1;
    t->keys += sqlite3_changes(st->db);
    if (sqlite_run(st, err, SQL(drop_old_inbox, .cutoff = inbox_cutoff, .max = max)) != 0)
        return -1;
    t->inbox = sqlite3_changes(st->db);
    if (sqlite_run(st, err, SQL(drop_old_receipts, .cutoff = cutoff, .max = max)) != 0)
        return -1;
    t->receipts = sqlite3_changes(st->db);
    return 0;
}

static int count_going_keys(struct sqlite_store *st, const struct old *o, int64_t *ret,
                            struct error *err)
{
    return sqlite_value(st, err, ret,
                        SQL(count_going_keys, .last = o->last, .cutoff = o->cutoff, .now = o->now));
}

static int dry_run(struct sqlite_store *st, const struct trim_request *req, struct old *o,
                   struct trim_result *t, struct error *err)
{
    if (find_old(st, o, 0, err) != 0)
        return -1;
    if (sqlite_value(st, err, &t->events,
                     SQL(count_going, .last = o->last, .cutoff = o->cutoff, .now = o->now)) != 0)
        return -1;
    if (count_kept(st, o, INT64_MAX, t, err) != 0)
        return -1;
    int64_t left_over = 0;
    if (count_going_keys(st, o, &t->keys, err) != 0)
        return -1;
    if (sqlite_value(st, err, &left_over, SQL(count_left_over_keys, .cutoff = o->cutoff)) != 0)
        return -1;
    t->keys += left_over;
    if (sqlite_value(st, err, &t->inbox, SQL(count_old_inbox, .cutoff = inbox_end(st, req))) != 0)
        return -1;
    return sqlite_value(st, err, &t->receipts, SQL(count_old_receipts, .cutoff = o->cutoff));
}

/* trim_told: what is told of single events, and of filters that judged them, goes with them. */
static int trim_told(struct sqlite_store *st, int64_t last, struct error *err)
{
    if (sqlite_run(st, err, SQL(drop_ended, .last = last)) != 0)
        return -1;
    return sqlite_run(st, err, SQL(drop_former_filters, .last = last));
}

static int trim_going_keys(struct sqlite_store *st, const struct old *o, struct trim_result *t,
                           struct error *err)
{
    if (count_going_keys(st, o, &t->keys, err) != 0)
        return -1;
    if (t->keys == 0)
        return 0;
    return sqlite_run(st, err,
                      SQL(drop_going_keys, .last = o->last, .cutoff = o->cutoff, .now = o->now));
}

static int trim_some(struct sqlite_store *st, const struct trim_request *req, struct old *o,
                     struct trim_result *t, struct error *err)
{
    int64_t max = req->max_rows ? (int64_t)req->max_rows : TRIM_ROWS;
    if (find_old(st, o, max, err) != 0)
        return -1;
    if (o->n > 0) {
        if (trim_going_keys(st, o, t, err) != 0)
            return -1;
        if (sqlite_run(st, err,
                       SQL(drop_going, .last = o->last, .cutoff = o->cutoff, .now = o->now)) != 0)
            return -1;
        t->events = sqlite3_changes(st->db);
        if (trim_told(st, o->last, err) != 0)
            return -1;
    }
    bool more_events = o->n == max;
    if (more_events)
        t->pin[0] = '\0';
    else if (count_kept(st, o, COUNT_KEPT, t, err) != 0)
        return -1;
    if (trim_keys(st, o->cutoff, inbox_end(st, req), max, t, err) != 0)
        return -1;
    t->more = more_events || t->keys >= max || t->inbox >= max || t->receipts >= max;
    return 0;
}

int sqlite_trim(struct store *base, const struct trim_request *req, struct trim_result *ret,
                struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct trim_result t = {0};
    struct old o = {.now = sqlite_now(st)};
    o.cutoff = o.now - req->older_than_ms;
    if (req->dry_run) {
        if (find_past(st, false, &o, t.pin, err) != 0 || dry_run(st, req, &o, &t, err) != 0)
            return -1;
        *ret = t;
        return 0;
    }
    /* the floor is found under the lock: nobody moves it meanwhile */
    if (sqlite_begin(base, err) != 0)
        return -1;
    o.now = sqlite_now(st); /* it may have been waited for */
    o.cutoff = o.now - req->older_than_ms;
    if (sqlite_numbers_keep(st, err) != 0 || find_past(st, true, &o, t.pin, err) != 0 ||
        trim_some(st, req, &o, &t, err) != 0) {
        sqlite_rollback(base);
        return -1;
    }
    if (sqlite_commit(base, err) != 0)
        return -1;
    *ret = t;
    return 0;
}
