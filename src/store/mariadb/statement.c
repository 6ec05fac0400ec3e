/* statement.c: writing statements as text, sending them to the server, reading the results, and the
 * driver for store/db. Except for the inserts of emit.c, nothing is prepared on the server: it
 * would be lost with the connection, and the caller's connection must keep no trace of it.
 *
 * A statement costs less than a round trip. So our transactions send statements whose results are
 * not needed together with the next query (db_later), and independent queries at once (db_ask_all).
 * The server runs the statements of a packet one by one, and stops at the first that fails. */
#include <mysqld_error.h>
#include <string.h>

#include "store/mariadb/mariadb.h"

#define LATER_MAX (64 * 1024) /* bytes of statements that wait */

/* ---- writing ---- */

void mdb_add_name(struct buf *b, struct str name)
{
    buf_addc(b, '`');
    for (size_t i = 0; i < name.n; i++) {
        if (name.p[i] == '`')
            buf_addc(b, '`');
        buf_addc(b, name.p[i]);
    }
    buf_addc(b, '`');
}

void mdb_add_hex(struct buf *b, struct str s)
{
    static const char digits[] = "0123456789abcdef";
    buf_adds(b, "_utf8mb4 X'");
    char *to = buf_reserve(b, 2 * s.n);
    for (size_t i = 0; to && i < s.n; i++) {
        *to++ = digits[(unsigned char)s.p[i] >> 4];
        *to++ = digits[(unsigned char)s.p[i] & 15];
    }
    if (to)
        b->n += 2 * s.n;
    buf_addc(b, '\'');
}

/* Our sessions never have NO_BACKSLASH_ESCAPES. */
static void add_quoted(struct buf *b, struct str s)
{
    buf_expect(b, s.n + 2);
    buf_addc(b, '\'');
    const char *p = s.p, *end = s.p + s.n;
    while (p < end) {
        const char *stop = p;
        while (stop < end && *stop != '\'' && *stop != '\\' && *stop != '\0')
            stop++;
        buf_add(b, p, (size_t)(stop - p));
        if (stop == end)
            break;
        buf_addc(b, '\\');
        buf_addc(b, *stop ? *stop : '0');
        p = stop + 1;
    }
    buf_addc(b, '\'');
}

static void add_literal(struct buf *b, enum mdb_literals how, struct str s)
{
    if (!s.p)
        buf_adds(b, "NULL");
    else if (how == MDB_HEX)
        mdb_add_hex(b, s);
    else
        add_quoted(b, s);
}

static void add_value(struct buf *b, enum mdb_literals how, char type, const void *arg)
{
    const char *text;
    const int64_t *number;
    switch (type) {
    case 'i': buf_addi64(b, *(const int64_t *)arg); break;
    case 't': add_literal(b, how, *(const struct str *)arg); break;
    case 's':
        text = *(const char *const *)arg;
        add_literal(b, how, text ? str_of(text) : (struct str){0});
        break;
    case 'o':
        number = *(const int64_t *const *)arg;
        if (number)
            buf_addi64(b, *number);
        else
            buf_adds(b, "NULL");
        break;
    }
}

void mdb_write(const struct mdb_store *st, enum mdb_literals how, const struct sql *sql,
               const void *args, struct buf *b)
{
    const struct sql_parameter *p = sql->in[SQL_MARIADB].parameter;
    const char *at = sql->in[SQL_MARIADB].text;
    for (;;) {
        size_t n = strcspn(at, "?\1");
        buf_add(b, at, n);
        at += n;
        if (!*at)
            return;
        if (*at == '?' && how == MDB_OPEN) {
            buf_addc(b, '?');
        } else if (*at == '?') {
            add_value(b, how, p->type, (const char *)args + p->at);
            p++;
        } else {
            buf_adds(b, st->quoted);
        }
        at++;
    }
}

/* ---- rows ---- */

void mdb_rows_free(struct mdb_rows *q)
{
    if (q && q->res)
        mysql_free_result(q->res);
    if (q)
        free(q->places);
    free(q);
}

static int64_t rows_number(const struct mdb_rows *q, int col)
{
    return q->row[col] ? strtoll(q->row[col], NULL, 10) : 0;
}

/* All rows are on the client already. A row without a place is skipped. */
static int driver_step(struct db_rows *at, struct error *err)
{
    struct mdb_rows *q = at->at;
    bool placed = false;
    (void)err;
    while (q->res && !placed) {
        q->row = mysql_fetch_row(q->res);
        if (!q->row)
            break;
        int64_t nr = rows_number(q, 0);
        while (q->place < q->n_places && q->places[q->place].nr < nr)
            q->place++;
        placed = !q->places || (q->place < q->n_places && q->places[q->place].nr == nr);
    }
    if (!q->row) {
        mdb_rows_free(q);
        return 0;
    }
    q->size = mysql_fetch_lengths(q->res);
    return 1;
}

static void driver_done(struct db_rows *q)
{
    mdb_rows_free(q->at);
}

static bool driver_null(const struct db_rows *at, int col)
{
    const struct mdb_rows *q = at->at;
    return q->row[col] == NULL;
}

static int64_t driver_integer(const struct db_rows *at, int col)
{
    const struct mdb_rows *q = at->at;
    bool is_seq = q->places && col == EVENT_SEQ;
    return is_seq ? q->places[q->place].seq : rows_number(q, col);
}

static struct str driver_text(const struct db_rows *at, int col)
{
    const struct mdb_rows *q = at->at;
    return (struct str){q->row[col], q->row[col] ? q->size[col] : 0};
}

size_t mdb_count(const struct db_rows *at)
{
    const struct mdb_rows *q = at->at;
    return q->res ? (size_t)mysql_num_rows(q->res) : 0;
}

/* ---- one statement, on any connection ---- */

/* Sends a text, and does not wait for the result. */
static int send_text(const struct mdb_store *st, MYSQL *db, const char *text, size_t n,
                     struct error *err)
{
    /* The server would close the connection without an error. */
    bool too_large = st->packet_max > 0 && n >= (size_t)st->packet_max;
    if (too_large)
        return err_class(
            err, ERR_INVALID, CLASS_REJECT, ER_NET_PACKET_TOO_LARGE,
            "%s: a statement of %zu bytes is larger than the server accepts; raise its "
            "max_allowed_packet (now %lld)",
            st->base.shown, n, (long long)st->packet_max);
    int64_t since = clock_mono(&clock_system);
    if (mysql_send_query(db, text, n) != 0)
        return mdb_fail_since(st, db, since, err);
    return 0;
}

/* Waits for the start of the first result. */
static int await_answer(const struct mdb_store *st, MYSQL *db, struct error *err)
{
    int64_t since = clock_mono(&clock_system);
    if (mysql_read_query_result(db) != 0)
        return mdb_fail_since(st, db, since, err);
    return 0;
}

/* Returns the rows of the current result, in *ret->at if that is allocated already. */
static int take_answer(const struct mdb_store *st, MYSQL *db, struct db_rows *ret,
                       struct error *err)
{
    struct mdb_rows *q = ret->at;
    if (!q)
        q = calloc(1, sizeof *q);
    if (!q)
        return err_nomem(err);
    *ret = (struct db_rows){.st = (struct store *)&st->base.store, .at = q};
    int64_t since = clock_mono(&clock_system);
    q->res = mysql_store_result(db);
    if (q->res || mysql_errno(db) == 0)
        return 0;
    mdb_fail_since(st, db, since, err);
    db_done(ret);
    return -1;
}

/* Reads the remaining results: a CALL returns a status after its rows. */
static void skip_rest(MYSQL *db)
{
    while (mysql_more_results(db) && mysql_next_result(db) == 0) {
        MYSQL_RES *more = mysql_store_result(db);
        if (more)
            mysql_free_result(more);
    }
}

int mdb_ask(const struct mdb_store *st, MYSQL *db, const char *text, size_t n, struct db_rows *ret,
            struct error *err)
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
    if (st->base.lent || st->grouped == on)
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

/* Drops a connection that broke, or whose server became a replica: the address may lead to another
 * server by now. Inside a transaction it is kept until the end, so that nothing runs outside of the
 * transaction unnoticed. */
static void note_end(struct mdb_store *st)
{
    unsigned code = mysql_errno(st->db);
    bool lost = mdb_is_lost(code);
    st->moved = st->moved || mdb_is_elsewhere(code);
    if (!lost && !st->moved)
        return;
    mdb_wakeup_release(st);
    if (!st->base.in_tx)
        mdb_disconnect(st);
}

/* Notes the number of rows that a statement without a result set has changed. */
static void note_changed(struct mdb_store *st)
{
    st->changed = (int64_t)mysql_affected_rows(st->db);
    st->wrote = st->wrote || st->changed > 0;
}

/* Reads the results of the deferred statements, and those of n queries. */
static int read_answers(struct mdb_store *st, struct db_rows *ret, size_t n, struct error *err)
{
    size_t waited = st->later.n;
    for (size_t i = 0; i < waited + n; i++) {
        int64_t since = clock_mono(&clock_system);
        int next = i > 0 ? mysql_next_result(st->db) : 0;
        if (next > 0)
            return mdb_fail_since(st, st->db, since, err);
        if (next < 0)
            return err_set(err, ERR_INTERNAL, "%s: the server did not answer a statement",
                           st->base.shown);
        st->changed = 0;
        if (i < waited)
            note_changed(st);
        else if (take_answer(st, st->db, &ret[i - waited], err) != 0)
            return -1;
    }
    const struct mdb_rows *last = n > 0 ? ret[n - 1].at : NULL;
    if (last && !last->res)
        note_changed(st);
    skip_rest(st->db);
    return 0;
}

/* Sends the first `size` bytes of the text: the deferred statements and n queries, and reads the
 * results. If requested, fetches the events read ahead while the server works. On failure nothing
 * is deferred any more, and there are no results. */
static int exchange(struct mdb_store *st, size_t size, struct db_rows *ret, size_t n,
                    struct error *err)
{
    struct error why;
    int r = 0;
    /* The results are allocated first: running out of memory after a COMMIT was sent would report a
     * failure for a transaction that the server has committed. */
    for (size_t i = 0; i < n; i++) {
        ret[i] = (struct db_rows){&st->base.store, calloc(1, sizeof(struct mdb_rows)), false};
        if (!ret[i].at)
            r = err_nomem(&why);
    }
    if (r == 0)
        r = send_text(st, st->db, st->text.p, size, &why);
    if (r == 0 && st->beside)
        mdb_ahead_fetch(st);
    if (r == 0)
        r = await_answer(st, st->db, &why);
    if (r == 0)
        r = read_answers(st, ret, n, &why);
    if (r == 0)
        return 0;

    note_end(st);
    mdb_forget_later(st);
    for (size_t i = 0; i < n; i++)
        db_done(&ret[i]);
    return err_copy(err, &why);
}

/* Sends the deferred statements, and keeps the text after them. */
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

/* Ends a statement that was added to the text. If the text became too long, the deferred statements
 * are sent first. */
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
    mdb_write(st, st->base.lent ? MDB_HEX : MDB_QUOTED, sql, args, &st->text);
    return end_statement(st, err);
}

/* Sends the text, which ends with n queries. */
static int ask_now(struct mdb_store *st, struct db_rows *ret, size_t n, struct error *err)
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

static int driver_later(struct store *base, const struct sql *sql, const void *args,
                        struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    if (!st->grouped || !st->base.in_tx)
        return db_run(base, err, sql, args);
    if (add_statement(st, sql, args, err) != 0)
        return -1;
    wait_behind(st);
    st->wrote = true;
    return 0;
}

int mdb_exec_later(struct mdb_store *st, const char *text, struct error *err)
{
    if (!st->grouped)
        return mdb_exec(&st->base.store, text, err);
    if (add_text(st, text, err) != 0)
        return -1;
    wait_behind(st);
    return 0;
}

/* If requested, fetches the events read ahead meanwhile. 1: multi-statements are off. */
static int driver_ask_all(struct store *base, const struct db_question *ask, size_t n,
                          struct db_rows *ret, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    int r = mdb_connect(st, err);
    if (r == 0 && !st->grouped)
        r = 1;
    for (size_t i = 0; i < n && r == 0; i++)
        r = add_statement(st, ask[i].sql, ask[i].args, err);
    if (r == 0)
        r = ask_now(st, ret, n, err);
    st->beside = false;
    return r;
}

/* ---- one statement, on ours ---- */

static void *driver_rows(struct store *base, const struct sql *sql, const void *args,
                         struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    struct db_rows q;
    if (mdb_connect(st, err) != 0 || add_statement(st, sql, args, err) != 0)
        return NULL;
    return ask_now(st, &q, 1, err) == 0 ? q.at : NULL;
}

void *mdb_start(struct store *base, const char *text, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    struct db_rows q;
    if (mdb_connect(st, err) != 0 || add_text(st, text, err) != 0)
        return NULL;
    return ask_now(st, &q, 1, err) == 0 ? q.at : NULL;
}

int mdb_exec(struct store *st, const char *text, struct error *err)
{
    struct mdb_rows *q = mdb_start(st, text, err);
    mdb_rows_free(q);
    return q ? 0 : -1;
}

/* ---- the driver ---- */

static int64_t driver_changed(struct store *st)
{
    return mdb_of(st)->changed;
}

static bool driver_wrote(struct store *st)
{
    return mdb_of(st)->wrote;
}

static int driver_commit(struct store *st, struct error *err)
{
    return mdb_exec(st, "COMMIT", err);
}

static bool driver_again(const struct error *why)
{
    return why->native == ER_DUP_ENTRY || why->native == ER_LOCK_DEADLOCK;
}

const struct db_driver mdb_driver = {
    .dialect = SQL_MARIADB,
    .schema_version = MDB_SCHEMA_VERSION,
    .not_ours = ", or this account may not use that outbox (it sees no outbox_meta beside the "
                "table); use another database, or grant the account its rights with `outbox grant`",
    .together = DB_TOGETHER,
    .rows = driver_rows,
    .step = driver_step,
    .done = driver_done,
    .null = driver_null,
    .integer = driver_integer,
    .text = driver_text,
    .changed = driver_changed,
    .wrote = driver_wrote,
    .ask_all = driver_ask_all,
    .later = driver_later,
    .duplicate = ER_DUP_ENTRY,
    .begin = mdb_begin,
    .commit = driver_commit,
    .rollback = mdb_rollback,
    .exec = mdb_exec,
    .no_savepoint = ER_SP_DOES_NOT_EXIST,
    .now = mdb_now,
    .snapshot_begin = mdb_snapshot_begin,
    .snapshot_end = mdb_snapshot_end,
    .number = mdb_sequence,
    .news = mdb_news,
    .again = driver_again,
    .tx_gone = mdb_tx_gone,
    .target = mdb_target,
    .target_rows = mdb_target_rows,
    .target_changed = mdb_target_changed,
    .insert = mdb_insert,
    .adopt = &adopt_mariadb,
    .before_turns = mdb_before_turns,
    .heard = mdb_heard,
    .read_fresh = mdb_read_fresh,
    .mark_rows = adopt_mark_rows,
    .before_commit = mdb_read_on,
    .after_turns = mdb_after_turns,
};
