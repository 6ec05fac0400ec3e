/* trim.c: deleting old rows that are no longer needed, in small steps. */
#include <stdio.h>

#include "base/num.h"
#include "store/db/db.h"
#include "store_sql.h"

#define SAMPLES 168      /* of a consumer while events are kept: one an hour if that is a week */
#define ALL_CONSUMERS "" /* the name of samples of all consumers */
#define ALL_SAMPLE_EVERY 30000 /* ms between these samples at most */
#define LOOK_AT 100000         /* young events that may precede those that can be deleted */
#define COUNT_KEPT 10000
#define PIN_TEXT sizeof(((struct trim_result *)0)->pin)

/* Which events may be deleted: those up to `past`, unless their created_at is after cutoff. A young
 * event among old ones does not hold up the others. An event whose created_at is ahead of the clock
 * counts as old as the next one whose created_at is not. (1) past <= floor. */
struct old {
    int64_t cutoff, now;
    int64_t after; /* an earlier call examined events up to here */
    int64_t floor; /* no consumer needs events up to here */
    int64_t past;  /* all consumers were done up to here at the cutoff */
    int64_t last;  /* the last event that is old enough */
    int64_t n;     /* the number of old events */
};

/* ---- the progress of consumers, now and in the past ---- */

/* Samples the progress of a consumer, or of ALL_CONSUMERS, and drops needless samples. */
static int note_sample(struct store *st, const char *name, int64_t floor, int64_t every,
                       const struct old *o, struct error *err)
{
    if (DB_RUN_ALL(st, err, {SQL(passed_by_now, .consumer = name, .now = o->now)},
                   {SQL(passed_too_far, .consumer = name, .floor = floor)}) != 0)
        return -1;
    bool begun = floor > 0;
    if (begun && db_run(st, err,
                        SQL(put_passed, .consumer = name, .floor = floor, .now = o->now,
                            .every = every)) != 0)
        return -1;
    return db_run(st, err, SQL(passed_long_ago, .consumer = name, .cutoff = o->cutoff));
}

/* Reads what the consumers still need, and sets o->floor and o->past; `pin` describes what holds
 * the floor. note: take samples. */
static int find_past(struct store *st, struct arena *a, bool note, struct old *o, char *pin,
                     struct error *err)
{
    struct consumer_info *list;
    size_t n;
    if (db_consumer_floors(st, a, &list, &n, err) != 0)
        return -1;
    snprintf(pin, PIN_TEXT, "no consumer is registered yet");
    o->floor = n > 0 ? INT64_MAX : 0;
    for (size_t i = 0; i < n; i++) {
        const struct consumer_info *c = &list[i];
        if (c->floor >= o->floor)
            continue;
        o->floor = c->floor;
        snprintf(pin, PIN_TEXT, "consumer \"%s\" (%s at %lld%s)", c->spec.name, c->floor_pin,
                 (long long)c->floor, c->paused ? ", paused" : "");
    }

    /* Samples of all consumers are frequent, so that events are deleted on time, and their number
     * does not grow with the consumers. Those of individual consumers are rare; they are used once
     * a consumer is added or removed. */
    int64_t every = (o->now - o->cutoff) / SAMPLES;
    for (size_t i = 0; note && i < n; i++)
        if (note_sample(st, list[i].spec.name, list[i].floor, every, o, err) != 0)
            return -1;
    if (note && note_sample(st, ALL_CONSUMERS, n > 0 ? o->floor : 0,
                            min_i64(every, ALL_SAMPLE_EVERY), o, err) != 0)
        return -1;

    /* The last event that all consumers had passed by the cutoff, and when; 0: unknown. */
    int64_t all_seq = 0, all_at = 0;
    struct db_rows q;
    int r = db_row(st, &q, err, SQL(passed_by_all, .cutoff = o->cutoff));
    if (r < 0)
        return -1;
    if (r == 1) {
        all_seq = db_int(&q, 0);
        all_at = db_int(&q, 1);
        db_done(&q);
    }

    o->past = o->floor;
    for (size_t i = 0; i < n; i++) {
        const struct consumer_info *c = &list[i];
        bool right_away = o->cutoff >= o->now;
        int64_t past = right_away ? c->floor : 0;
        if (!right_away &&
            db_value(st, err, &past,
                     SQL(passed_by, .consumer = c->spec.name, .cutoff = o->cutoff,
                         .floor = c->floor, .all_seq = all_seq, .all_at = all_at)) != 0)
            return -1;
        o->past = min_i64(o->past, past);
    }
    return 0;
}

/* ---- finding the events to delete ---- */

/* Finds up to max old events, which every consumer passed long ago, among the first look_at. */
static int find_old(struct store *st, struct old *o, int64_t max, int64_t look_at,
                    struct error *err)
{
    int r = 0;
    struct db_rows q = db_rows(
        st, err, SQL(passed_events, .after = o->after, .past = o->past, .max = look_at));
    o->last = 0;
    o->n = 0;
    while (o->n < max && (r = db_step(&q, err)) == 1) {
        if (db_int(&q, 1) >= o->cutoff)
            continue;
        o->last = db_int(&q, 0);
        o->n++;
    }
    db_done(&q);
    return r < 0 ? -1 : 0;
}

/* Counts events that are old enough but past the floor, among the next `most`. */
static int count_kept(struct store *st, const struct old *o, int64_t most, struct trim_result *t,
                      struct error *err)
{
    t->kept_for_pin = 0;
    if (db_value(st, err, &t->kept_for_pin,
                 SQL(count_kept, .floor = o->floor, .most = most, .cutoff = o->cutoff)) != 0)
        return -1;
    t->kept_more = t->kept_for_pin >= most;
    if (t->kept_for_pin == 0)
        t->pin[0] = '\0';
    return 0;
}

/* The time before which inbox rows may be deleted. */
static int64_t inbox_cutoff(struct store *st, const struct trim_request *req)
{
    int64_t kept_ms = req->inbox_ms ? req->inbox_ms : req->older_than_ms;
    return db_now(st) - kept_ms;
}

static int count_going_keys(struct store *st, const struct old *o, int64_t *ret, struct error *err)
{
    return db_value(st, err, ret,
                    SQL(count_going_keys, .last = o->last, .cutoff = o->cutoff, .now = o->now));
}

/* Counts the events that would be deleted, or uses the size of their seq range if that exceeds
 * `most`; then o->last becomes the last event whose key is counted. The last event that is old
 * enough is among the last `most` that every consumer is done with or, if those are all too young
 * by created_at, among the first, where trim_some looks. */
static int count_events(struct store *st, struct old *o, int64_t most, struct trim_result *t,
                        struct error *err)
{
    int64_t first = 0;
    o->last = 0;
    if (db_value(st, err, &o->last,
                 SQL(last_old, .past = o->past, .most = most, .cutoff = o->cutoff)) != 0)
        return -1;
    if (o->last == 0 && find_old(st, o, INT64_MAX, most, err) != 0)
        return -1;
    if (db_value(st, err, &first, SQL(first_event)) != 0)
        return -1;

    o->n = o->last ? o->last - first + 1 : 0;
    t->events_about = o->n > most;
    if (t->events_about) {
        t->events = o->n;
        o->last -= o->n - most;
        return 0;
    }
    return db_value(st, err, &t->events,
                    SQL(count_going, .last = o->last, .cutoff = o->cutoff, .now = o->now));
}

/* Counts the rows that repeated calls would delete, up to a bound for each kind. */
static int count_all(struct store *st, const struct trim_request *req, struct old *o,
                     struct trim_result *t, struct error *err)
{
    int64_t most = req->max_rows ? (int64_t)req->max_rows : STORE_EXACT_ROWS, left_over = 0;
    if (count_events(st, o, most, t, err) != 0)
        return -1;
    if (count_kept(st, o, most, t, err) != 0)
        return -1;
    if (count_going_keys(st, o, &t->keys, err) != 0)
        return -1;
    if (DB_VALUES(st, err,
                  {&left_over, SQL(count_left_over_keys, .cutoff = o->cutoff, .most = most)},
                  {&t->inbox, SQL(count_old_inbox, .cutoff = inbox_cutoff(st, req), .most = most)},
                  {&t->receipts, SQL(count_old_receipts, .cutoff = o->cutoff, .most = most)}) != 0)
        return -1;
    t->keys += left_over;
    t->keys_more = left_over >= most || (t->events_about && t->keys > 0);
    t->inbox_more = t->inbox >= most;
    t->receipts_more = t->receipts >= most;
    return 0;
}

/* Deletes the events that find_old found, with all that only they needed. */
static int trim_events(struct store *st, const struct old *o, struct trim_result *t,
                       struct error *err)
{
    if (o->n == 0)
        return 0;
    if (count_going_keys(st, o, &t->keys, err) != 0)
        return -1;
    if (t->keys > 0 &&
        db_run(st, err,
               SQL(drop_going_keys, .last = o->last, .cutoff = o->cutoff, .now = o->now)) != 0)
        return -1;
    /* The database refuses to delete events without this permission, which is withdrawn again. */
    if (DB_RUN_ALL(st, err,
                   {SQL(drop_going_rows, .last = o->last, .cutoff = o->cutoff, .now = o->now)},
                   {SQL(allow_changes)}) != 0)
        return -1;
    int r = db_change(st, &t->events, err,
                      SQL(drop_going, .last = o->last, .cutoff = o->cutoff, .now = o->now));
    if (db_run(st, r == 0 ? err : NULL, SQL(refuse_changes)) != 0 || r != 0)
        return -1;
    return DB_RUN_ALL(st, err, {SQL(drop_places, .last = o->last)},
                      {SQL(drop_ended, .last = o->last)},
                      {SQL(drop_former_filters, .last = o->last)});
}

/* Deletes up to max_rows of each kind. */
static int trim_some(struct store *st, const struct trim_request *req, struct old *o,
                     struct trim_result *t, struct error *err)
{
    int64_t max = req->max_rows ? (int64_t)req->max_rows : STORE_TRIM_ROWS, left_over;
    if (find_old(st, o, max, LOOK_AT, err) != 0)
        return -1;
    if (trim_events(st, o, t, err) != 0)
        return -1;

    bool more_events = o->n == max;
    if (more_events)
        t->pin[0] = '\0';
    else if (count_kept(st, o, COUNT_KEPT, t, err) != 0)
        return -1;

    /* Rows that are not deleted with an event: left-over keys, inbox rows and receipts. */
    if (db_change(st, &left_over, err, SQL(drop_left_over_keys, .cutoff = o->cutoff, .max = max)) !=
        0)
        return -1;
    t->keys += left_over;
    if (db_change(st, &t->inbox, err,
                  SQL(drop_old_inbox, .cutoff = inbox_cutoff(st, req), .max = max)) != 0)
        return -1;
    if (db_change(st, &t->receipts, err, SQL(drop_old_receipts, .cutoff = o->cutoff, .max = max)) !=
        0)
        return -1;
    bool more_rest = t->keys >= max || t->inbox >= max || t->receipts >= max;
    t->more = more_events || more_rest;
    t->upto = t->more ? o->last : 0;
    return 0;
}

/* Trims in the open transaction, under a lock that adding a consumer also takes. Floors only rise,
 * so events that no consumer needs when the floors are read are not needed when they are deleted. A
 * dry run only reads, and needs no transaction. */
static int trim(struct store *st, struct arena *a, const struct trim_request *req,
                struct trim_result *t, struct error *err)
{
    int64_t ignored = 0;
    bool samples = !req->dry_run && req->after == 0;
    if (!req->dry_run && db_value(st, err, &ignored, SQL(lock_trim)) != 0)
        return -1;
    /* Read the time only now: waiting for the lock may have taken a while. */
    struct old o = {.now = db_now(st), .after = req->dry_run ? 0 : req->after};
    o.cutoff = o.now - req->older_than_ms;
    if (!req->dry_run && db_keep_numbers(st, err) != 0)
        return -1;
    if (find_past(st, a, samples, &o, t->pin, err) != 0)
        return -1;
    return req->dry_run ? count_all(st, req, &o, t, err) : trim_some(st, req, &o, t, err);
}

int db_trim(struct store *st, const struct trim_request *req, struct trim_result *ret,
            struct error *err)
{
    struct trim_result t = {0};
    struct arena a;
    if (db_give_numbers(st, err) != 0)
        return -1;
    if (!req->dry_run && db_begin(st, err) != 0)
        return -1;
    arena_init(&a, 0);
    int r = trim(st, &a, req, &t, err);
    arena_release(&a);
    if (!req->dry_run)
        r = db_end(st, r, err);
    if (r == 0)
        *ret = t;
    return r;
}
