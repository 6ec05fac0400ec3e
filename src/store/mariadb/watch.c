/* watch.c: wake-ups after commits, and polling for new events. The server waits on our behalf
 * (outbox_wait) on a separate connection, and its answer makes that connection's socket readable.
 * It answers at once if a change exists that this handle has not seen, so no wake-up is lost. One
 * poll tells which consumers of a relay want the events of a commit; only those make a turn. */
#include <mysqld_error.h>
#include <poll.h>

#include "base/num.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define PATIENCE_MS 20000        /* the server answers by then; less than answer-timeout */
#define IDLE_MAX 1000000         /* ms; longer makes no difference */
#define TRY_AGAIN (2000 * MS_NS) /* until another connection is tried */

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

/* Sends the query, and does not wait for the result. */
static bool ask_wakeup(struct mdb_store *st)
{
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
    return st->wakeup.asked;
}

int mdb_wake_fd(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    if (!connect_wakeup(st))
        return -1;
    if (!st->wakeup.asked && !ask_wakeup(st)) {
        mdb_wakeup_release(st);
        return -1;
    }
    return mysql_get_socket(st->wakeup.db);
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
    if (mdb_sequence(st, err) != 0)
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
