/* doctor.c: checks on an outbox in MariaDB and its server. It only reads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define NUMBERS_ENOUGH INT64_MAX /* reachable neither by counting nor by insert_id */

/* ---- the server ---- */

/* The columns of `settings`. */
enum { FLUSH, LOG_BIN, SYNC_BINLOG, READ_ONLY, STEP, STRICT, PACKET };

static int server(struct mdb_store *st, const struct doctor_request *req, struct error *err)
{
    struct db_rows q;
    if (db_row(&st->base.store, &q, err, SQL(settings)) != 1)
        return -1;

    bool synced = db_int(&q, FLUSH) == 1;
    bool logged = db_int(&q, LOG_BIN) == 0 || db_int(&q, SYNC_BINLOG) == 1;
    if (synced && logged)
        db_doctor_say(req, FINDING_OK, "durability", NULL, "a commit is on disk when it returns");
    else
        db_doctor_say(
            req, FINDING_NOTE, "durability", "set both to 1, unless this is on purpose",
            "innodb_flush_log_at_trx_commit or sync_binlog is not 1: a crash of the machine may "
            "lose the commits of the last second, including events, some of which may have been "
            "delivered already");
    if (db_int(&q, READ_ONLY) != 0)
        db_doctor_say(req, FINDING_PROBLEM, "read-only",
                      "connect to the primary, or promote this server",
                      "the server is read-only: nothing can be emitted or delivered");
    if (db_int(&q, STRICT) == 0)
        db_doctor_say(
            req, FINDING_NOTE, "sql_mode", "set STRICT_TRANS_TABLES",
            "sql_mode is not strict: the outbox refuses an INSERT whose values do not fit, but "
            "other tables store altered values");
    if (db_int(&q, STEP) != 1)
        db_doctor_say(
            req, FINDING_WARNING, "auto_increment_increment", "write events on only one server",
            "auto_increment_increment is not 1, which suggests that several servers take writes: "
            "events written on different servers have no common order");
    db_done(&q);
    return 0;
}

/* Reports old transactions; without the right to see them, it reports nothing. */
static void transactions(struct mdb_store *st, const struct doctor_request *req)
{
    struct db_rows q = db_rows(&st->base.store, NULL,
                               SQL(old_transactions, .seconds = req->patience_ms / 1000));
    while (db_step(&q, NULL) == 1) {
        char whose[40] = "a prepared transaction (XA)"; /* its session has ended */
        int64_t connection = db_int(&q, 0);
        if (connection != 0)
            snprintf(whose, sizeof whose, "a transaction of connection %lld",
                     (long long)connection);
        db_doctor_say(req, FINDING_WARNING, "transaction",
                      connection != 0 ? "end the transaction, or KILL the connection"
                                      : "find it with XA RECOVER, then XA COMMIT or XA ROLLBACK it",
                      "%s has been open for %lld s: its events are not delivered, and the server "
                      "cannot purge deleted rows",
                      whose, (long long)db_int(&q, 1));
    }
}

/* ---- the tables ---- */

static int engines(struct mdb_store *st, const struct doctor_request *req, struct error *err)
{
    int r;
    struct db_rows q = db_rows(&st->base.store, err,
                               SQL(other_engines, .schema = st->url.database));
    while ((r = db_step(&q, err)) == 1)
        db_doctor_say(
            req, FINDING_PROBLEM, "engine", "ALTER TABLE ... ENGINE = InnoDB",
            "table %.64s uses the engine %.32s, which has no transactions: events are kept even if "
            "their transaction is rolled back",
            db_text(&q, 0).p, db_text(&q, 1).p);
    return r;
}

/* Reports missing triggers, events without a marker, that TRUNCATE could empty the table of events,
 * and events that were deleted before every consumer had received them. */
static int records(struct mdb_store *st, const struct doctor_request *req, struct error *err)
{
    const char *schema = st->url.database;
    int64_t triggers = 0, unmarked = 0, guards = 0, fresh = 0, ordered = 0, beyond = 0;
    if (DB_VALUES(&st->base.store, err, {&triggers, SQL(count_triggers, .schema = schema)},
                  {&unmarked, SQL(unmarked, .max = DOCTOR_ROWS)},
                  {&guards, SQL(count_guards, .schema = schema)},
                  {&fresh, SQL(lost_fresh, .max = DOCTOR_ROWS)},
                  {&ordered, SQL(lost_ordered, .max = DOCTOR_ROWS)},
                  {&beyond, SQL(ahead_of_head)}) != 0)
        return -1;
    if (triggers < MDB_TRIGGERS)
        db_doctor_say(
            req, FINDING_PROBLEM, "trigger", "run `outbox init`",
            "an outbox trigger is missing: new events are not delivered, or events can be "
            "silently replaced or deleted");
    if (unmarked > 0)
        db_doctor_say(
            req, FINDING_PROBLEM, "marker",
            "INSERT INTO outbox_fresh (nr) SELECT nr FROM outbox_event e WHERE NOT EXISTS (SELECT "
            "1 FROM outbox_order o WHERE o.nr = e.nr) AND NOT EXISTS (SELECT 1 FROM outbox_fresh f "
            "WHERE f.nr = e.nr) ORDER BY nr",
            "%lld of the newest events have neither a seq nor a marker: they will never be "
            "delivered",
            (long long)unmarked);
    if (guards == 0)
        db_doctor_say(req, FINDING_WARNING, "insert-only",
                      "create it again with its statement from `outbox migrate gen`",
                      "outbox_guard is missing: TRUNCATE can lose events silently");
    if (beyond > 0)
        db_doctor_say(
            req, FINDING_PROBLEM, "sequencer",
            "UPDATE outbox_sequencer SET next = (SELECT max(seq) + 1 FROM outbox_order)",
            "outbox_sequencer is behind outbox_order: it was reset, and no event can be assigned "
            "a seq");
    if (fresh + ordered > 0)
        db_doctor_say(req, FINDING_PROBLEM, "lost",
                      "restore them from a backup, or emit them again",
                      "%lld events were deleted before every consumer had received them",
                      (long long)(fresh + ordered));
    return db_doctor_lost(&st->base.store, req, err);
}

/* Reports triggers that run as accounts that no longer exist, as after a dump was restored on
 * another server; without the right to see accounts, it reports nothing. */
static void definers(struct mdb_store *st, const struct doctor_request *req)
{
    struct db_rows q = db_rows(&st->base.store, NULL,
                               SQL(lost_definers, .schema = st->url.database));
    while (db_step(&q, NULL) == 1)
        db_doctor_say(
            req, FINDING_PROBLEM, "definer",
            "run `outbox init` as an account that will be kept, or create that account again",
            "trigger %.64s runs as %.200s, an account that does not exist: every statement that "
            "fires it fails",
            db_text(&q, 1).p, db_text(&q, 0).p);
}

/* Reports why rows of adopted tables are not marked. Their events are still delivered. */
static int marked(struct mdb_store *st, const struct doctor_request *req, struct error *err)
{
    int r;
    struct db_rows q = db_rows(&st->base.store, err, SQL(not_marked));
    while ((r = db_step(&q, err)) == 1)
        db_doctor_say(
            req, FINDING_PROBLEM, "marked",
            "fix the cause; or run `outbox adopt TABLE --drop-mark`, and stop the system that "
            "previously delivered the rows",
            "rows of table %.64s are not marked, though consumer \"%.63s\" has received them: "
            "%.1000s",
            db_text(&q, 0).p, db_text(&q, 1).p, db_text(&q, 2).p);
    return r;
}

/* Reports a number so high that few are left, for events or for their markers: some account chose
 * it. Rows above it have to be deleted first, otherwise AUTO_INCREMENT stays above them. */
static int numbers(struct mdb_store *st, const struct doctor_request *req, struct error *err)
{
    int r;
    struct db_rows q = db_rows(&st->base.store, err, SQL(next_numbers, .schema = st->url.database));
    while ((r = db_step(&q, err)) == 1) {
        bool events = db_int(&q, 0) != 0;
        uint64_t next = strtoull(db_text(&q, 1).p, NULL, 10);
        if (next <= NUMBERS_ENOUGH)
            continue;
        db_doctor_say(req, FINDING_PROBLEM, "numbers",
                      events ? "once every consumer has received the events with such numbers: SET "
                               "@outbox_change_events = 'on'; DELETE FROM outbox_event WHERE nr > "
                               "9223372036854775807; ALTER TABLE outbox_event AUTO_INCREMENT = 1"
                             : "once `outbox status` has assigned the events their seqs: ALTER "
                               "TABLE outbox_fresh AUTO_INCREMENT = 1",
                      "the next number of %s is %llu, because an INSERT chose its own number: "
                      "from 18446744073709551615 on, every INSERT fails",
                      events ? "outbox_event" : "outbox_fresh", (unsigned long long)next);
    }
    return r;
}

int mdb_doctor(struct store *base, const struct doctor_request *req, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    struct schema_status s;
    if (server(st, req, err) != 0)
        return -1;
    transactions(st, req);
    if (mdb_schema_status(base, &s, err) != 0)
        return -1;
    if (s.there != MDB_SCHEMA_VERSION)
        return 0; /* tables of another version are not checked */

    if (engines(st, req, err) != 0 || records(st, req, err) != 0)
        return -1;
    definers(st, req);
    if (marked(st, req, err) != 0 || numbers(st, req, err) != 0)
        return -1;
    return db_doctor_consumers(base, req, err);
}
