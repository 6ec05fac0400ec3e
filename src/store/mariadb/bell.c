/* bell.c: being told when something was committed, on a connection of its own. The server looks in
 * our place (outbox_wait), and its answer makes the connection's socket readable. It answers for as
 * long as there is anything that this handle does not know of, so no wake-up is lost. */
#include <mysqld_error.h>
#include <poll.h>

#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define PATIENCE_MS 20000        /* then the server answers anyway: less than answer-timeout */
#define IDLE_MAX 1000000         /* ms; longer makes no difference */
#define TRY_AGAIN (2000 * MS_NS) /* until another connection is tried */

static void hang_up(struct mdb_store *st)
{
    if (st->bell.db)
        mysql_close(st->bell.db);
    st->bell.db = NULL;
    st->bell.asked = false;
    st->bell.again = clock_mono(&clock_system) + TRY_AGAIN;
}

void mdb_bell_release(struct mdb_store *st)
{
    hang_up(st);
}

/* connect_bell makes the connection, which sees events before they are committed. */
static bool connect_bell(struct mdb_store *st)
{
    if (st->bell.db)
        return true;
    if (clock_mono(&clock_system) < st->bell.again)
        return false;
    struct error ignored;
    st->bell.db = mdb_dial(st, &ignored);
    if (st->bell.db &&
        mysql_query(st->bell.db, "SET SESSION tx_isolation = 'READ-UNCOMMITTED'") == 0)
        return true;
    hang_up(st);
    return false;
}

/* ask sends the question, and does not wait for the answer. */
static bool ask(struct mdb_store *st)
{
    struct buf b;
    int64_t idle = (clock_mono(&clock_system) - st->bell.active) / MS_NS;
    struct sql_wait args = {
        .next = st->bell.next,
        .news = st->bell.news,
        .patience = PATIENCE_MS,
        .idle = idle < IDLE_MAX ? idle : IDLE_MAX,
    };
    buf_init(&b, 4096);
    mdb_write(st, MDB_QUOTED, &sql_wait, &args, &b);
    st->bell.asked = !b.failed && mysql_send_query(st->bell.db, b.p, b.n) == 0;
    buf_release(&b);
    return st->bell.asked;
}

int mdb_bell_fd(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    if (!connect_bell(st))
        return -1;
    if (!st->bell.asked && !ask(st)) {
        hang_up(st);
        return -1;
    }
    return mysql_get_socket(st->bell.db);
}

/* take_answer reads the answer that has come. */
static void take_answer(struct mdb_store *st)
{
    st->bell.asked = false;
    if (mysql_read_query_result(st->bell.db) != 0) {
        hang_up(st);
        return;
    }
    do {
        MYSQL_RES *r = mysql_store_result(st->bell.db);
        if (r)
            mysql_free_result(r);
    } while (mysql_next_result(st->bell.db) == 0);
}

void mdb_bell_clear(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    if (!st->bell.asked)
        return;
    struct pollfd fd = {.fd = mysql_get_socket(st->bell.db), .events = POLLIN};
    bool answered = poll(&fd, 1, 0) == 1;
    if (answered)
        take_answer(st);
}
