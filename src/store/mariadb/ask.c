/* ask.c: sending statements to the server and reading its answers. A statement costs the server
 * less than the way there and back. So a transaction of ours sends what nobody waits for together
 * with the next question (mdb_later), and questions that do not follow from each other at once
 * (mdb_ask_all). The server takes the statements of a packet one by one, and none after one that
 * failed. */
#include <mysqld_error.h>
#include <string.h>

#include "store/mariadb/mariadb.h"

#define LATER_MAX (64 * 1024) /* bytes of statements that wait */

/* ---- one statement, on any connection ---- */

/* send_text sends a text, and does not wait for the answer. */
static int send_text(const struct mdb_store *st, MYSQL *db, const char *text, size_t n,
                     struct error *err)
{
    /* The server would only hang up. */
    bool too_large = st->packet_max > 0 && n >= (size_t)st->packet_max;
    if (too_large)
        return err_class(err, ERR_INVALID, CLASS_REJECT, ER_NET_PACKET_TOO_LARGE,
                         "%s: a statement of %zu bytes is more than the server takes; raise "
                         "max_allowed_packet there (it is %lld)",
                         st->shown, n, (long long)st->packet_max);
    int64_t since = clock_mono(&clock_system);
    if (mysql_send_query(db, text, n) != 0)
        return mdb_fail_since(st, db, since, err);
    return 0;
}

/* await_answer waits until the first answer to what was sent has begun. */
static int await_answer(const struct mdb_store *st, MYSQL *db, struct error *err)
{
    int64_t since = clock_mono(&clock_system);
    if (mysql_read_query_result(db) != 0)
        return mdb_fail_since(st, db, since, err);
    return 0;
}

/* take_answer gives the rows of the answer that has begun. */
static int take_answer(const struct mdb_store *st, MYSQL *db, struct mdb_rows **ret,
                       struct error *err)
{
    struct mdb_rows *q = calloc(1, sizeof *q);
    if (!q)
        return err_nomem(err);
    int64_t since = clock_mono(&clock_system);
    q->res = mysql_store_result(db);
    if (!q->res && mysql_errno(db) != 0) {
        mdb_fail_since(st, db, since, err);
        free(q);
        return -1;
    }
    *ret = q;
    return 0;
}

/* skip_rest reads what follows an answer: a CALL gives a status behind its rows. */
static void skip_rest(MYSQL *db)
{
    while (mysql_more_results(db) && mysql_next_result(db) == 0) {
        MYSQL_RES *more = mysql_store_result(db);
        if (more)
            mysql_free_result(more);
    }
}

int mdb_ask(const struct mdb_store *st, MYSQL *db, const char *text, size_t n,
            struct mdb_rows **ret, struct error *err)
{
    if (send_text(st, db, text, n, err) != 0 || await_answer(st, db, err) != 0)
        return -1;
    if (take_answer(st, db, ret, err) != 0)
        return -1;
    skip_rest(db);
    return 0;
}

/* ---- several statements, on ours ---- */

int mdb_group(struct mdb_store *st, bool on, struct error *err)
{
    if (mdb_connect(st, err) != 0)
        return -1;
    if (st->lent || st->grouped == on)
        return 0;
    enum enum_mysql_set_option option = MYSQL_OPTION_MULTI_STATEMENTS_OFF;
    if (on)
        option = MYSQL_OPTION_MULTI_STATEMENTS_ON;
    if (mysql_set_server_option(st->db, option) != 0) {
        mdb_fail(st, st->db, err);
        mdb_disconnect(st);
        return -1;
    }
    st->grouped = on;
    return 0;
}

void mdb_forget_later(struct mdb_store *st)
{
    buf_clear(&st->text);
    st->later = (struct mdb_later){0};
}

/* note_end forgets a connection that broke, or that leads to a server that became a replica: its
 * address may lead to another one by now. Inside a transaction it stays to its end, so that nothing
 * goes on as if it were still open. */
static void note_end(struct mdb_store *st)
{
    unsigned code = mysql_errno(st->db);
    bool lost = mdb_is_lost(code);
    st->moved = st->moved || mdb_is_elsewhere(code);
    if (!lost && !st->moved)
        return;
    mdb_bell_release(st);
    if (!st->in_tx)
        mdb_disconnect(st);
}

/* next_answer begins the answer to the next statement of a packet. */
static int next_answer(const struct mdb_store *st, struct error *err)
{
    int64_t since = clock_mono(&clock_system);
    int r = mysql_next_result(st->db);
    if (r == 0)
        return 0;
    if (r > 0)
        return mdb_fail_since(st, st->db, since, err);
    return err_set(err, ERR_INTERNAL, "%s: a statement got no answer", st->shown);
}

/* note_changed notes what a statement without rows has changed. */
static void note_changed(struct mdb_store *st)
{
    st->changed = (int64_t)mysql_affected_rows(st->db);
    st->wrote = st->wrote || st->changed > 0;
}

/* read_answers reads the answers to the statements that waited, and those to n questions. */
static int read_answers(struct mdb_store *st, struct mdb_rows **ret, size_t n, struct error *err)
{
    size_t waited = st->later.n;
    for (size_t i = 0; i < waited + n; i++) {
        if (i > 0 && next_answer(st, err) != 0)
            return -1;
        st->changed = 0;
        if (i < waited)
            note_changed(st);
        else if (take_answer(st, st->db, &ret[i - waited], err) != 0)
            return -1;
    }
    if (n > 0 && !ret[n - 1]->res)
        note_changed(st);
    skip_rest(st->db);
    return 0;
}

/* send_and_read sends the first `size` bytes of the text, and reads the answers. What was read
 * ahead is fetched while the server is at work on them, if that was asked for. */
static int send_and_read(struct mdb_store *st, size_t size, struct mdb_rows **ret, size_t n,
                         struct error *err)
{
    if (send_text(st, st->db, st->text.p, size, err) != 0)
        return -1;
    if (st->beside)
        mdb_ahead_fetch(st);
    if (await_answer(st, st->db, err) != 0)
        return -1;
    return read_answers(st, ret, n, err);
}

/* exchange sends the first `size` bytes of the text: what waits, and n questions. On failure
 * nothing waits any more, and there are no answers. */
static int exchange(struct mdb_store *st, size_t size, struct mdb_rows **ret, size_t n,
                    struct error *err)
{
    struct error why;
    for (size_t i = 0; i < n; i++)
        ret[i] = NULL;
    if (send_and_read(st, size, ret, n, &why) == 0)
        return 0;

    note_end(st);
    mdb_forget_later(st);
    for (size_t i = 0; i < n; i++) {
        mdb_done(ret[i]);
        ret[i] = NULL;
    }
    if (err)
        *err = why;
    return -1;
}

/* send_later sends what waits, and leaves the text behind it. */
static int send_later(struct mdb_store *st, struct error *err)
{
    size_t behind = st->later.size + 1; /* a semicolon */
    if (exchange(st, st->later.size, NULL, 0, err) != 0)
        return -1;
    st->later = (struct mdb_later){0};
    size_t left = st->text.n - behind;
    memmove(st->text.p, st->text.p + behind, left);
    buf_truncate(&st->text, left);
    return 0;
}

/* end_statement ends a statement that was added to the text. If that became too long, what waits
 * goes first. */
static int end_statement(struct mdb_store *st, struct error *err)
{
    if (st->text.failed) {
        mdb_forget_later(st);
        return err_nomem(err);
    }
    bool beyond = st->packet_max > 0 && st->text.n >= (size_t)st->packet_max;
    bool too_long = beyond || st->text.n > LATER_MAX;
    if (st->later.n == 0 || !too_long)
        return 0;
    return send_later(st, err);
}

static int add_text(struct mdb_store *st, const char *text, struct error *err)
{
    if (st->text.n > 0)
        buf_addc(&st->text, ';');
    buf_adds(&st->text, text);
    return end_statement(st, err);
}

static int add_statement(struct mdb_store *st, const struct sql *sql, const void *args,
                         struct error *err)
{
    if (st->text.n > 0)
        buf_addc(&st->text, ';');
    mdb_write(st, st->lent ? MDB_HEX : MDB_QUOTED, sql, args, &st->text);
    return end_statement(st, err);
}

/* ask_now sends the text, which ends with n questions. */
static int ask_now(struct mdb_store *st, struct mdb_rows **ret, size_t n, struct error *err)
{
    if (exchange(st, st->text.n, ret, n, err) != 0)
        return -1;
    mdb_forget_later(st);
    return 0;
}

static void wait_behind(struct mdb_store *st)
{
    st->later.n++;
    st->later.size = st->text.n;
}

int mdb_later(struct mdb_store *st, struct error *err, const struct sql *sql, const void *args)
{
    if (!st->grouped || !st->in_tx)
        return mdb_run(st, err, sql, args);
    if (add_statement(st, sql, args, err) != 0)
        return -1;
    wait_behind(st);
    st->wrote = true;
    return 0;
}

int mdb_exec_later(struct mdb_store *st, const char *text, struct error *err)
{
    if (!st->grouped)
        return mdb_exec(st, text, err);
    if (add_text(st, text, err) != 0)
        return -1;
    wait_behind(st);
    return 0;
}

/* ask_each asks on a connection that takes one statement at a time. */
static int ask_each(struct mdb_store *st, const struct mdb_question *ask, size_t n,
                    struct mdb_rows **ret, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        ret[i] = mdb_rows(st, err, ask[i].sql, ask[i].args);
        if (ret[i])
            continue;
        while (i-- > 0)
            mdb_done(ret[i]);
        return -1;
    }
    return 0;
}

int mdb_ask_all(struct mdb_store *st, const struct mdb_question *ask, size_t n,
                struct mdb_rows **ret, struct error *err)
{
    if (mdb_connect(st, err) != 0)
        return -1;
    if (!st->grouped)
        return ask_each(st, ask, n, ret, err);
    for (size_t i = 0; i < n; i++)
        if (add_statement(st, ask[i].sql, ask[i].args, err) != 0)
            return -1;
    return ask_now(st, ret, n, err);
}

int mdb_ask_beside(struct mdb_store *st, const struct mdb_question *ask, size_t n,
                   struct mdb_rows **ret, struct error *err)
{
    st->beside = true;
    int r = mdb_ask_all(st, ask, n, ret, err);
    st->beside = false;
    return r;
}

/* ---- one statement, on ours ---- */

struct mdb_rows *mdb_rows(struct mdb_store *st, struct error *err, const struct sql *sql,
                          const void *args)
{
    struct mdb_rows *q;
    if (mdb_connect(st, err) != 0 || add_statement(st, sql, args, err) != 0)
        return NULL;
    if (ask_now(st, &q, 1, err) != 0)
        return NULL;
    return q;
}

int mdb_row(struct mdb_store *st, struct mdb_rows **ret, struct error *err, const struct sql *sql,
            const void *args)
{
    *ret = mdb_rows(st, err, sql, args);
    return mdb_step(ret);
}

int mdb_run(struct mdb_store *st, struct error *err, const struct sql *sql, const void *args)
{
    struct mdb_rows *q = mdb_rows(st, err, sql, args);
    if (!q)
        return -1;
    mdb_done(q);
    return 0;
}

int mdb_value(struct mdb_store *st, struct error *err, int64_t *ret, const struct sql *sql,
              const void *args)
{
    struct mdb_rows *q;
    int r = mdb_row(st, &q, err, sql, args);
    if (r <= 0)
        return r;
    if (!mdb_null(q, 0))
        *ret = mdb_int(q, 0);
    mdb_done(q);
    return 0;
}

int mdb_exec(struct mdb_store *st, const char *text, struct error *err)
{
    struct mdb_rows *q;
    if (mdb_connect(st, err) != 0 || add_text(st, text, err) != 0)
        return -1;
    if (ask_now(st, &q, 1, err) != 0)
        return -1;
    mdb_done(q);
    return 0;
}
