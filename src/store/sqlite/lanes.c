/* lanes.c: claiming from all lanes at once. The only worker of a consumer, if all lanes are at the
 * same position, claims from all of them at once: many lanes then cost as much as one. A second
 * worker that finds all lanes taken reserves one. From then on each worker claims from single
 * lanes, until the others are gone and the lanes are at one position again: at the end of the
 * events at the latest. */
#include "store/sqlite/sqlite.h"
#include "store/sqlite/window.h"
#include "store_sql.h"

#define ASIDE 5000 /* ms that a lane is set aside for a worker that does not come back */

int sqlite_lanes_together(struct turn *t, int64_t *ret, struct error *err)
{
    *ret = -1;
    bool of_use = t->req->sole && t->req->lanes > 1;
    if (!of_use)
        return 0;
    return db_value(t->st, err, ret,
                    SQL(lanes_together, .consumer = t->consumer, .lanes = t->req->lanes));
}

int sqlite_claim_all_lanes(struct turn *t, bool *ret_done, struct error *err)
{
    int64_t position;
    *ret_done = false;
    if (sqlite_lanes_together(t, &position, err) != 0)
        return -1;
    if (position < 0 || !db_fresh_lane_free(t, STORE_ALL_LANES))
        return 0;
    *ret_done = true;
    sqlite_window_forget(sqlite_of(t->st));
    return db_fresh_claim_after(t, STORE_ALL_LANES, position, err);
}

/* For a worker that has found nothing: if another one has claimed from all lanes at once and there
 * is more to do, reserves a lane for this worker; the other then claims from single lanes. */
static int set_lane_aside(struct turn *t, struct error *err)
{
    struct sqlite_registration *m = sqlite_registration(t->st, t->consumer);
    int64_t n;
    bool has_some = t->req->n_known > 0;
    if (!m || has_some || t->req->lanes == 1)
        return 0;
    if (db_change(t->st, &n, err,
                  SQL(set_aside, .consumer = t->consumer, .epoch = t->epoch, .owner = t->req->owner,
                      .now = t->now, .lease = ASIDE, .boot = db_of(t->st)->boot,
                      .ahead = db_ahead(t->st, t->now))) != 0)
        return -1;
    if (n == 0)
        return 0;
    m->asked = true;
    db_claim_wait(t, t->now + ASIDE);
    return db_run(t->st, err, SQL(put_progress, .consumer = t->consumer, .epoch = t->epoch));
}

/* Drops the reservation once the worker has found something to do, or no other worker blocks it. */
static int drop_lane_aside(struct turn *t, struct error *err)
{
    struct sqlite_registration *m = sqlite_registration(t->st, t->consumer);
    int64_t n;
    if (!m || !m->asked)
        return 0;
    if (db_change(t->st, &n, err,
                  SQL(drop_aside, .consumer = t->consumer, .owner = t->req->owner)) != 0)
        return -1;
    for (size_t i = 0; i < t->n_claims; i++) {
        struct db_claim *c = &t->claims[i];
        bool aside = !c->others && !c->parked && c->from == c->to;
        c->over = c->over || aside;
    }
    /* The remaining ones may belong to another worker on the same handle. */
    if (n > 0)
        m->asked = false;
    return 0;
}

/* Also sets hint.quiet if there is nothing besides the batch: it has the last event of all, nothing
 * is parked, and a watcher, which polls after every commit, wakes the worker. A worker that listens
 * would be woken by its own commit. */
int sqlite_claimed(struct turn *t, struct error *err)
{
    bool blocked = t->b->n == 0 && t->hint->busy;
    int r = blocked ? set_lane_aside(t, err) : drop_lane_aside(t, err);
    if (r != 0)
        return -1;

    int64_t last = 0;
    bool watched = t->req->no_listen && !t->req->one_shot;
    bool whole = t->b->n > 0 && !t->b->parked && t->req->lanes == 1 && t->req->order != ORDER_NONE;
    if (!watched || !whole)
        return 0;
    if (db_value(t->st, err, &last, SQL(last_event)) != 0)
        return -1;
    if (!t->found.known && db_fresh_find(t, db_fresh_first(t->req), err) != 0)
        return -1;
    t->hint->quiet = last == t->b->to && !t->found.parked;
    return 0;
}
