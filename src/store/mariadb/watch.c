/* watch.c: assigning events their seq in commit order (see outbox_order in
 * sql/mariadb/0001_outbox.sql), wake-ups after commits, and polling for new events. The server
 * waits on our behalf (outbox_wait) on a separate connection, and its answer makes that
 * connection's socket readable. It answers at once if a change exists that this handle has not
 * seen, so no wake-up is lost. One poll determines which consumers of a relay want the events of a
 * commit; only those take a turn. */
#include <mysqld_error.h>
#include <poll.h>

#include "base/num.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

/* Events per transaction. Other sessions wait for the sequencer's row meanwhile, for some 100 ms;
 * and each transaction scans all markers, including deleted ones that are not yet purged. */
#define SEQUENCE_MAX 20000
#define RUNS_FROM 1000 /* events per step for which querying runs pays off */
#define RUN_LEAST 64   /* average events per run for which deleting by runs pays off */
#define TRIES 3

#define PATIENCE_MS 20000        /* the server answers by then; less than answer-timeout */
#define IDLE_MAX 1000000         /* ms; longer makes no difference */
#define TRY_AGAIN (2000 * MS_NS) /* until another connection is tried */

/* The state of the sequencer. */
struct sequencer {
    int64_t next, news;
    bool markers; /* some event has no seq yet */
};

static int probe(struct mdb_store *st, struct sequencer *ret, struct error *err)
{
    struct db_rows q;
    int r = db_row(&st->base.store, &q, err, SQL(probe));
    if (r < 0)
        return -1;
    if (r == 0)
        return err_class(err, ERR_NOTOURS, CLASS_FATAL, 0,
                         "%s: the row of outbox_sequencer is missing; restore it from a backup",
                         st->base.shown);
    *ret = (struct sequencer){db_int(&q, 0), db_int(&q, 1), db_int(&q, 2) != 0};
    db_done(&q);
    return 0;
}

/* Deletes the markers of n events, to which the seqs from `next` on were assigned in number order,
 * in runs of consecutive numbers, if these are long: that takes a third of the time. */
static int drop_runs(struct mdb_store *st, int64_t next, int64_t n, int64_t *ret_dropped,
                     struct error *err)
{
    struct db_rows q = db_rows(&st->base.store, err, SQL(runs, .next = next, .after = next + n));
    if (!q.at)
        return -1;
    bool long_ones = (int64_t)mdb_count(&q) * RUN_LEAST <= n;
    int r = 0;
    while (long_ones && r == 0 && db_step(&q, err) == 1) {
        int64_t first = db_int(&q, 0), run = db_int(&q, 1);
        r = db_run(&st->base.store, err,
                   SQL(drop_run, .first = first, .last = first + run - 1, .n = run));
        *ret_dropped += st->changed;
    }
    db_done(&q);
    return r;
}

/* Assigns a seq to up to SEQUENCE_MAX events, inside a transaction. *ret_next is the next seq to be
 * assigned. */
static int assign_seqs(struct mdb_store *st, bool *ret_more, int64_t *ret_next, struct error *err)
{
    int64_t next = 0;
    if (db_value(&st->base.store, err, &next, SQL(lock_sequencer)) != 0)
        return -1;
    if (db_run(&st->base.store, err, SQL(give_seq, .next = next, .max = SEQUENCE_MAX)) != 0)
        return -1;
    int64_t n = st->changed;
    *ret_more = n == SEQUENCE_MAX;
    *ret_next = next + n;
    if (n == 0)
        return 0;

    /* Markers are deleted by runs where that pays off, the rest one by one. */
    int64_t dropped = 0;
    if (n >= RUNS_FROM && drop_runs(st, next, n, &dropped, err) != 0)
        return -1;
    if (dropped < n) {
        if (db_run(&st->base.store, err, SQL(drop_markers, .next = next, .after = next + n)) != 0)
            return -1;
        dropped += st->changed;
    }
    if (dropped != n)
        return err_class(err, ERR_CONFLICT, CLASS_RETRY, 0,
                         "%s: markers of outbox_fresh vanished while they were being sequenced",
                         st->base.shown);
    return db_later(&st->base.store, err, SQL(set_next, .next = next + n));
}

/* Prepares for events whose number already has a seq, because numbers restarted, or that have
 * several markers: deletes all but the first marker. */
static int clear_numbers(struct mdb_store *st, struct error *err)
{
    struct store *base = &st->base.store;
    int64_t ignored = 0;
    if (db_begin(base, err) != 0)
        return -1;
    int r = db_value(base, err, &ignored, SQL(lock_sequencer));
    if (r == 0) {
        struct db_rows q = db_rows(base, err, SQL(doubled, .max = SEQUENCE_MAX));
        while ((r = db_step(&q, err)) == 1) {
            int64_t marker = db_int(&q, 0);
            r = db_run(base, err, SQL(drop_run, .first = marker, .last = marker, .n = 1));
            if (r != 0)
                break;
        }
        db_done(&q);
    }
    if (r == 0)
        r = db_run(base, err, SQL(forget_reused));
    return db_end(base, r, err);
}

/* Assigns seqs in a transaction, and tries again if that can help. */
static int give_some(struct mdb_store *st, bool *ret_more, int64_t *ret_next, struct error *err)
{
    struct store *base = &st->base.store;
    struct error why;
    for (int i = 0; i < TRIES; i++) {
        int r = db_begin(base, &why);
        if (r == 0) {
            r = assign_seqs(st, ret_more, ret_next, &why);
            r = db_end(base, r, &why);
        }
        if (r == 0)
            return 0;
        if (why.native == ER_DUP_ENTRY) {
            if (clear_numbers(st, err) != 0)
                return -1;
        } else if (why.native != ER_LOCK_DEADLOCK) {
            break;
        }
    }
    return err_copy(err, &why);
}

int mdb_sequence(struct store *base, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    struct sequencer s = {0};
    struct error why;
    bool more = true;
    if (probe(st, &s, err) != 0)
        return -1;
    bool new = s.markers || s.next != st->wakeup.next || s.news != st->wakeup.news;
    if (new)
        st->wakeup.active = clock_mono(&clock_system);
    st->wakeup.next = s.next;
    st->wakeup.news = s.news;
    if (!s.markers)
        return 0;
    while (more) {
        if (give_some(st, &more, &s.next, &why) == 0) {
            st->wakeup.next = s.next;
            continue;
        }
        if (why.code == ERR_READONLY)
            return 0; /* events with a seq can be read */
        return err_copy(err, &why);
    }
    return 0;
}

/* Best effort: otherwise relays notice at their next sweep. */
void mdb_news(struct store *st)
{
    db_run(st, NULL, SQL(notify));
}

/* ---- wake-ups ---- */

void mdb_wakeup_release(struct mdb_store *st)
{
    if (st->wakeup.db)
        mysql_close(st->wakeup.db);
    st->wakeup.db = NULL;
    st->wakeup.asked = false;
    st->wakeup.again = clock_mono(&clock_system) + TRY_AGAIN;
}

/* Opens the connection, whose isolation level lets it see events before they are committed. */
static bool connect_wakeup(struct mdb_store *st)
{
    struct error ignored;
    if (st->wakeup.db)
        return true;
    if (clock_mono(&clock_system) < st->wakeup.again)
        return false;
    st->wakeup.db = mdb_dial(st, &ignored);
    if (st->wakeup.db &&
        mysql_query(st->wakeup.db, "SET SESSION tx_isolation = 'READ-UNCOMMITTED'") == 0)
        return true;
    mdb_wakeup_release(st);
    return false;
}

int mdb_wake_fd(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    if (!connect_wakeup(st))
        return -1;
    if (st->wakeup.asked)
        return mysql_get_socket(st->wakeup.db);

    /* Send the query, without waiting for its result. */
    struct buf b;
    int64_t idle = (clock_mono(&clock_system) - st->wakeup.active) / MS_NS;
    struct sql_wait args = {
        .next = st->wakeup.next,
        .news = st->wakeup.news,
        .patience = PATIENCE_MS,
        .idle = min_i64(idle, IDLE_MAX),
    };
    buf_init(&b, 4096);
    mdb_write(st, MDB_QUOTED, &sql_wait, &args, &b);
    st->wakeup.asked = !b.failed && mysql_send_query(st->wakeup.db, b.p, b.n) == 0;
    buf_release(&b);
    if (st->wakeup.asked)
        return mysql_get_socket(st->wakeup.db);
    mdb_wakeup_release(st);
    return -1;
}

/* Reads the result, if it has arrived. */
void mdb_wake_clear(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    if (!st->wakeup.asked)
        return;
    struct pollfd fd = {.fd = mysql_get_socket(st->wakeup.db), .events = POLLIN};
    bool answered = poll(&fd, 1, 0) == 1;
    if (!answered)
        return;
    st->wakeup.asked = false;
    if (mysql_read_query_result(st->wakeup.db) != 0) {
        mdb_wakeup_release(st);
        return;
    }
    do {
        MYSQL_RES *r = mysql_store_result(st->wakeup.db);
        if (r)
            mysql_free_result(r);
    } while (mysql_next_result(st->wakeup.db) == 0);
}

/* ---- polling ---- */

int mdb_poll_new(struct store *base, bool skip_query, bool payloads, new_event_visit *visit,
                 void *ctx, struct watch_result *ret, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    struct watch_result found = {.wait_ms = -1};
    bool first = st->looked < 0;
    if (mdb_sequence(&st->base.store, err) != 0)
        return -1;
    int64_t head = st->wakeup.next - 1, last = st->looked;
    bool events = head != st->looked, changes = st->wakeup.news != st->looked_news;
    if (skip_query || first)
        found.all = first || events;
    else if (events && db_new_events(base, &last, payloads, visit, ctx, &found.n, err) != 0)
        return -1;
    found.all = found.all || changes || found.n > DB_NEW_EVENTS;
    st->looked = head;
    st->looked_news = st->wakeup.news;
    if (mdb_wake_fd(base) < 0)
        found.wait_ms = DB_POLL_UNWOKEN;
    *ret = found;
    return 0;
}
