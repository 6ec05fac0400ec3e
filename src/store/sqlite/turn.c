/* turn.c: SQLite's part of a turn: checking that the file still holds the same outbox and that
 * event numbers did not restart, making sure that events are on disk before they are handed out,
 * and claiming from all lanes at once. */
#include <stdio.h>

#include "base/num.h"
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

#define LIFE_AT 12 /* in the log's header: the number of restarts, and two salts */

/* ---- the identity of the outbox ---- */

/* Switches to the outbox that was restored into the file. Fails, so that claims are dropped. */
static int move_in(struct sqlite_store *st, struct error *err)
{
    sqlite_identity_read(st);
    st->file.unknown = true;
    sqlite_registrations_moved(st);
    return err_class(
        err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
        "%s: this file now holds another outbox: switched to it; claims made in the previous one "
        "are dropped",
        st->base.shown);
}

int sqlite_check_outbox(struct turn *t, bool there, struct str identity, int64_t last,
                        struct error *err)
{
    struct sqlite_store *st = sqlite_of(t->st);
    const struct sqlite_registration *m = sqlite_registration(t->st, t->consumer);
    bool known = st->identity[0] != '\0';
    if (there) {
        if (known && !str_is(identity, st->identity))
            return move_in(st, err);
        if (!m || last >= m->epoch_seen)
            return 0;
        sqlite_registrations_moved(st);
        return err_class(
            err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
            "%s: an older copy of this outbox was restored into the file: switched to it; claims "
            "made since that copy are dropped, and their events may be delivered again",
            st->base.shown);
    }

    /* The consumer is missing: it was removed, or the file holds another outbox now. */
    struct db_rows q;
    int r = db_row(t->st, &q, err, SQL(identity));
    if (r < 0)
        return -1;
    bool other = r == 1 && known && !str_is(db_text(&q, 0), st->identity);
    db_done(&q);
    return other && m ? move_in(st, err) : 0;
}

/* ---- event numbers that restarted ---- */

/* Positions rely on each number being assigned once. A table that was emptied together with
 * sqlite_sequence, or copied by a tool that omits it, assigns numbers that consumers have already
 * passed. Those events would never be handed out, or be mistaken for parked or dead events of the
 * same number. So all events are renumbered: *ret_events of them, from *ret_from on. */
static int repair_numbers(struct store *st, int64_t *ret_events, int64_t *ret_from,
                          struct error *err)
{
    int64_t base = 0, top = 0, now = db_now(st);
    *ret_from = 0;
    if (db_value(st, err, &base, SQL(highest_number)) != 0)
        return -1;
    if (db_run(st, err, SQL(allow_changes)) != 0)
        return -1;
    if (db_change(st, ret_events, err, SQL(renumber, .base = base)) != 0)
        return -1;
    if (db_run(st, err, SQL(refuse_changes)) != 0)
        return -1;

    /* New events are assigned numbers beyond all that exist, and beyond base. */
    if (DB_VALUES(st, err, {ret_from, SQL(first_event)}, {&top, SQL(last_event)}) != 0)
        return -1;
    return DB_RUN_ALL(st, err, {SQL(forget_sequence)},
                      {SQL(set_sequence, .top = max_i64(top, base))}, {SQL(unpark_nowhere)},
                      {SQL(promote_all, .now = now)}, {SQL(note_renumbered, .now = now)});
}

int sqlite_numbers_keep(struct store *st, struct error *err)
{
    int64_t broken = 0, events, from;
    if (db_value(st, err, &broken, SQL(numbers_broken)) != 0)
        return -1;
    return broken ? repair_numbers(st, &events, &from, err) : 0;
}

/* Makes sure that this consumer has not passed the numbers of events still to come. A repair
 * commits, and the turn fails, so that it is reported. A batched turn repairs nothing, since that
 * would commit the turns of others. */
int sqlite_check_numbers(struct turn *t, struct error *err)
{
    int64_t broken = 0, events, from;
    const char *shown = db_of(t->st)->shown;
    if (db_value(t->st, err, &broken, SQL(numbers_broken_for, .consumer = t->consumer)) != 0)
        return -1;
    if (!broken)
        return 0;
    if (t->batched)
        return err_set(err, ERR_CONFLICT, "%s: event numbers restarted", shown);
    if (repair_numbers(t->st, &events, &from, err) != 0)
        return -1;
    if (db_commit(t->st, err) != 0)
        return -1;
    return err_class(
        err, ERR_CONFLICT, CLASS_RETRY, 0,
        "%s: event numbers restarted below those that consumers have received (was the table "
        "emptied, or sqlite_sequence reset?): %lld events were renumbered, from %lld on; none is "
        "lost, and some may be delivered again",
        shown, (long long)events, (long long)from);
}

/* ---- events are on disk before they are handed out ---- */

static sqlite3_file *file_of(struct sqlite_store *st, int which)
{
    sqlite3_file *f = NULL;
    int rc = sqlite3_file_control(st->db, "main", which, &f);
    bool open = rc == SQLITE_OK && f && f->pMethods;
    return open ? f : NULL;
}

/* A producer may have set `PRAGMA synchronous = OFF`, so its commit may only be in the page cache.
 * The commit of our claim syncs the write-ahead log, and with it everything before it in the log.
 * That is enough while the producer's commit is still in the log. If a process that does not sync
 * has checkpointed and restarted the log, the commit is in the database file, unsynced. */
static int make_durable(struct sqlite_store *st, struct error *err)
{
    unsigned char life[SQLITE_LOG_LIFE] = {0};
    if (st->memory)
        return 0;
    sqlite3_file *log = file_of(st, SQLITE_FCNTL_JOURNAL_POINTER);
    sqlite3_file *db = file_of(st, SQLITE_FCNTL_FILE_POINTER);
    if (!log || !db)
        return 0; /* without a log each of our commits syncs the database */
    if (log->pMethods->xRead(log, life, sizeof life, LIFE_AT) != SQLITE_OK)
        memset(life, 0, sizeof life);
    bool same_life = memcmp(life, st->log_life, sizeof life) == 0;
    if (st->synced && same_life)
        return 0;

    int rc = db->pMethods->xSync(db, SQLITE_SYNC_NORMAL);
    if (rc != SQLITE_OK)
        return err_class(
            err, ERR_UNAVAILABLE, CLASS_RETRY, rc,
            "%s: could not be synced to disk; events are delivered only once they are durable",
            st->base.shown);
    memcpy(st->log_life, life, sizeof life);
    st->synced = true;
    return 0;
}

/* ---- before and after ---- */

int sqlite_before_turns(struct turn *t, size_t n, struct error *err)
{
    struct store *base = t->st;
    struct sqlite_store *st = sqlite_of(base);
    bool own = false;
    int r = 0;
    if (!sqlite3_get_autocommit(st->db))
        return err_set(err, ERR_MISUSE,
                       "a claim inside an open transaction would not be durable, and is refused");
    if (sqlite_file_adopt(st, err) != 0)
        return -1;
    if (n > 1 && sqlite_snapshot_begin(base, &own, err) != 0)
        return -1;
    for (size_t i = 0; i < n && r == 0; i++) {
        bool parked_due = false, claims = t[i].req && t[i].req->max_events > 0;
        if (!claims)
            continue;
        if (t[i].req->parked_first)
            r = db_parked_due(&t[i], &parked_due, err);
        if (r == 0 && !parked_due)
            r = sqlite_prefetch(&t[i], err);
    }
    sqlite_snapshot_end(base, own);
    return r;
}

int sqlite_after_turns(struct turn *t, size_t n, struct error *err)
{
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || t[i].b->n > 0;
    if (any && make_durable(sqlite_of(t->st), err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        struct sqlite_registration *m = NULL;
        if (t[i].b->n > 0)
            m = sqlite_registration(t->st, t[i].consumer);
        if (m)
            m->epoch_seen = t[i].b->epoch;
    }
    return 0;
}

#define ASIDE 5000 /* how long a lane stays reserved for a vanished worker, in ms */

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

/* For a worker that found no events: if another worker has claimed from all lanes at once and there
 * are more events, reserves a lane for this worker; the other one then claims from individual
 * lanes. */
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
