/* lanes.c: lanes that stand together. A worker that is alone and whose lanes all stand at one place
 * claims from all of them at once: many lanes then cost as much as one. Another worker that comes
 * and finds all lanes taken has one set aside. From then on each claims from single lanes, until
 * the others are gone and the lanes stand together again: at the end of the events at the
 * latest. */
#include "store/sqlite/claim.h"
#include "store_sql.h"

#define ASIDE 5000 /* ms that a lane is set aside for a worker that does not come back */

int sqlite_lanes_together(struct claiming *k, int64_t *ret, struct error *err)
{
    *ret = -1;
    bool of_use = k->req->sole && k->req->lanes > 1;
    if (!of_use)
        return 0;
    return sqlite_value(k->st, err, ret,
                        SQL(lanes_together, .consumer = k->req->consumer, .lanes = k->req->lanes));
}

int sqlite_lanes_ask(struct claiming *k, struct error *err)
{
    struct sqlite_member *m = sqlite_member(k->st, k->req->consumer);
    struct sql_set_aside aside = {
        .consumer = k->req->consumer,
        .epoch = k->epoch,
        .owner = k->req->owner,
        .now = k->now,
        .lease = ASIDE,
        .boot = k->st->boot,
        .ahead = sqlite_ahead(k->st, k->now),
    };
    bool has_some = k->req->n_known > 0;
    if (!m || has_some || k->req->lanes == 1)
        return 0;
    if (sqlite_run(k->st, err, &sql_set_aside, &aside) != 0)
        return -1;
    if (sqlite3_changes(k->st->db) == 0)
        return 0;
    m->asked = true;
    return sqlite_run(k->st, err, SQL(set_epoch, .consumer = aside.consumer, .epoch = k->epoch));
}

int sqlite_lanes_asked(struct claiming *k, struct error *err)
{
    struct sqlite_member *m = sqlite_member(k->st, k->req->consumer);
    if (!m || !m->asked)
        return 0;
    if (sqlite_run(k->st, err,
                   SQL(drop_aside, .consumer = k->req->consumer, .owner = k->req->owner)) != 0)
        return -1;
    /* What is left may be another worker's, on the same handle. */
    if (sqlite3_changes(k->st->db) > 0)
        m->asked = false;
    return 0;
}
