/* statement.c: prepared statements, result codes, transactions, including those that the
 * application's handlers use, and the driver for store/db. */
#include "store/sqlite/sqlite.h"

/* To SQLite a missing table is an error in the SQL; to us it means that there is no outbox. */
static enum err_code code_of(int rc, const char *message)
{
    static const struct {
        int rc;
        enum err_code code;
    } codes[] = {
        {SQLITE_BUSY, ERR_BUSY},
        {SQLITE_LOCKED, ERR_BUSY},
        {SQLITE_FULL, ERR_FULL},
        {SQLITE_NOMEM, ERR_NOMEM},
        {SQLITE_READONLY, ERR_READONLY},
        {SQLITE_PERM, ERR_READONLY},
        {SQLITE_AUTH, ERR_READONLY},
        {SQLITE_NOTADB, ERR_NOTOURS},
        {SQLITE_CORRUPT, ERR_NOTOURS},
        {SQLITE_CONSTRAINT, ERR_INVALID},
        {SQLITE_TOOBIG, ERR_INVALID},
        {SQLITE_MISMATCH, ERR_INVALID},
        {SQLITE_CANTOPEN, ERR_UNAVAILABLE},
        {SQLITE_IOERR, ERR_UNAVAILABLE},
    };
    int primary = rc & 0xff;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].rc == primary)
            return codes[i].code;

    bool no_table = primary == SQLITE_ERROR && strstr(message, "no such table: ");
    return no_table ? ERR_NOTOURS : ERR_INTERNAL;
}

int sqlite_fail(struct sqlite_store *st, sqlite3 *db, int rc, struct error *err)
{
    const char *message = db ? sqlite3_errmsg(db) : sqlite3_errstr(rc);
    const char *where = st ? st->base.shown : "sqlite";
    enum err_code code = code_of(rc, message);
    enum retry_class fate = code == ERR_INTERNAL ? CLASS_FATAL : CLASS_RETRY;
    bool no_table = code == ERR_NOTOURS && (rc & 0xff) == SQLITE_ERROR;

    if (code == ERR_BUSY)
        return err_class(err, code, CLASS_RETRY, rc,
                         "%s: locked by another process for too long; try again", where);
    if (no_table)
        return err_class(err, code, CLASS_FATAL, rc,
                         "%s: no outbox in this database (%s); create one with `outbox init`",
                         where, message);
    if (strstr(message, "unsafe use of "))
        return err_class(err, ERR_CONFIG, CLASS_FATAL, rc,
                         "%s: this connection has `PRAGMA trusted_schema = OFF`, and the outbox's "
                         "tables check events with SQLite's JSON functions: turn it on there (%s)",
                         where, message);
    if (code == ERR_FULL)
        return err_class(err, code, CLASS_RETRY, rc, "%s: no space left on the device", where);
    return err_class(err, code, fate, rc, "%s: %s", where, message);
}

/* ---- preparing and binding ---- */

sqlite3_stmt *sqlite_plain(struct sqlite_store *st, const char *sql, struct error *err)
{
    if (sqlite_unstick(st, err) != 0)
        return NULL;
    if (sqlite_file_check(st, err) != 0)
        return NULL;
    for (size_t i = 0; i < st->n_cached; i++)
        if (st->cached[i].sql == sql) {
            sqlite3_reset(st->cached[i].stmt);
            return st->cached[i].stmt;
        }

    if (st->n_cached == STATEMENTS_MAX) {
        err_set(err, ERR_INTERNAL, "statement cache is full");
        return NULL;
    }
    sqlite3_stmt *q;
    int rc = sqlite3_prepare_v3(st->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &q, NULL);
    if (rc != SQLITE_OK) {
        sqlite_fail(st, st->db, rc, err);
        return NULL;
    }
    st->cached[st->n_cached].sql = sql;
    st->cached[st->n_cached++].stmt = q;
    return q;
}

void sqlite_bind(sqlite3_stmt *q, const struct sql *sql, const void *args)
{
    const struct sql_text *own = &sql->in[SQL_SQLITE];
    for (size_t i = 0; i < own->n; i++) {
        const struct sql_parameter *p = &own->parameter[i];
        const void *arg = (const char *)args + p->at;
        const int64_t *number = NULL;
        struct str text = {0};
        switch (p->type) {
        case 'i': number = arg; break;
        case 'o': number = *(const int64_t *const *)arg; break;
        case 't': text = *(const struct str *)arg; break;
        case 's':
            text.p = *(const char *const *)arg;
            text.n = text.p ? strlen(text.p) : 0;
            break;
        }
        int at = (int)i + 1;
        if (number)
            sqlite3_bind_int64(q, at, *number);
        else if (text.p)
            sqlite3_bind_text64(q, at, text.p, text.n, SQLITE_STATIC, SQLITE_UTF8);
        else
            sqlite3_bind_null(q, at);
    }
}

/* ---- running ---- */

int sqlite_step(struct sqlite_store *st, sqlite3_stmt *q, struct error *err)
{
    if (!q)
        return -1;
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW)
        return 1;
    if (rc != SQLITE_DONE) /* before the reset, which clears the message */
        sqlite_fail(st, sqlite3_db_handle(q), rc, err);
    sqlite3_reset(q);
    return rc == SQLITE_DONE ? 0 : -1;
}

int sqlite_exec(struct sqlite_store *st, const char *sql, struct error *err)
{
    sqlite3_stmt *q = sqlite_plain(st, sql, err);
    int r;
    do
        r = sqlite_step(st, q, err);
    while (r == 1);
    return r;
}

/* ---- the driver ---- */

static void *driver_rows(struct store *st, const struct sql *sql, const void *args,
                         struct error *err)
{
    sqlite3_stmt *q = sqlite_plain(sqlite_of(st), sql->in[SQL_SQLITE].text, err);
    if (q)
        sqlite_bind(q, sql, args);
    return q;
}

static void driver_done(struct db_rows *q)
{
    if (q->foreign)
        sqlite3_finalize(q->at);
    else
        sqlite3_reset(q->at);
}

static int driver_step(struct db_rows *q, struct error *err)
{
    int r = sqlite_step(sqlite_of(q->st), q->at, err);
    if (r != 1 && q->foreign)
        sqlite3_finalize(q->at);
    return r;
}

static bool driver_null(const struct db_rows *q, int col)
{
    return sqlite3_column_type(q->at, col) == SQLITE_NULL;
}

static int64_t driver_integer(const struct db_rows *q, int col)
{
    return sqlite3_column_int64(q->at, col);
}

static struct str driver_text(const struct db_rows *q, int col)
{
    return sqlite_text(q->at, col);
}

static int64_t driver_changed(struct store *st)
{
    return sqlite3_changes64(sqlite_of(st)->db);
}

static bool driver_wrote(struct store *base)
{
    const struct sqlite_store *st = sqlite_of(base);
    return sqlite3_total_changes64(st->db) != st->changes_before;
}

static int64_t driver_now(struct store *base)
{
    const struct db_store *st = db_of(base);
    return st->turn_now ? st->turn_now : clock_wall(st->opt.clock);
}

/* The cache compares addresses, so each text occurs only here. */
static const char begin_sql[] = "BEGIN IMMEDIATE";
static const char commit_sql[] = "COMMIT";
static const char rollback_sql[] = "ROLLBACK";
static const char read_sql[] = "BEGIN";

int sqlite_tx_prepare(struct sqlite_store *st, struct error *err)
{
    static const char *const all[] = {begin_sql, commit_sql, rollback_sql};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!sqlite_plain(st, all[i], err))
            return -1;
    return 0;
}

int sqlite_unstick(struct sqlite_store *st, struct error *err)
{
    if (!st->stuck)
        return 0;
    int rc = SQLITE_OK;
    if (!sqlite3_get_autocommit(st->db))
        rc = sqlite3_exec(st->db, rollback_sql, NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return sqlite_fail(st, st->db, rc, err);
    st->stuck = false;
    return 0;
}

int sqlite_tx_gone(struct store *base, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (sqlite_unstick(st, err) != 0)
        return -1;
    bool gone = st->base.in_tx && sqlite3_get_autocommit(st->db);
    if (!gone)
        return 0;
    return err_set(
        err, ERR_MISUSE,
        "the database rolled this transaction back after an earlier failure: begin it again");
}

static int driver_begin(struct store *base, bool ours, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    (void)ours;
    if (sqlite_exec(st, begin_sql, err) != 0)
        return -1;
    st->base.began = clock_wall(st->base.opt.clock);
    st->changes_before = sqlite3_total_changes64(st->db);
    return 0;
}

/* If possible, the counter is corrected before the write lock is released. If not, a relay is woken
 * for nothing. */
static int driver_commit(struct store *base, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (st->base.own_commit)
        atomic_fetch_add(&st->family->quiet_commits, 1);
    st->committing = true; /* the commit hook allows this commit */
    int r = sqlite_exec(st, commit_sql, err);
    st->committing = false;
    if (r != 0 && st->base.own_commit)
        atomic_fetch_sub(&st->family->quiet_commits, 1);
    return r;
}

static int driver_exec(struct store *st, const char *text, struct error *err)
{
    return sqlite_script(sqlite_of(st), text, err);
}

/* A commit to a deleted or replaced file counts as failed. */
static int driver_committed(struct store *st, struct error *err)
{
    return sqlite_file_check(sqlite_of(st), err);
}

static void driver_rollback(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    for (size_t i = 0; i < st->n_cached; i++)
        sqlite3_reset(st->cached[i].stmt);
    if (!sqlite3_get_autocommit(st->db))
        sqlite_exec(st, rollback_sql, NULL);
    st->stuck = !sqlite3_get_autocommit(st->db);
}

int sqlite_snapshot_begin(struct store *base, bool *ret_own, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    *ret_own = sqlite3_get_autocommit(st->db) != 0;
    if (!*ret_own)
        return 0;
    return sqlite_exec(st, read_sql, err);
}

void sqlite_snapshot_end(struct store *base, bool own)
{
    if (own)
        sqlite_exec(sqlite_of(base), rollback_sql, NULL);
}

/* ---- handlers ---- */

/* The commit hook. Only we may commit a transaction that we opened: a handler's COMMIT becomes a
 * rollback, so that no effect is kept without its record. */
static int refuse_commit(void *ctx)
{
    const struct sqlite_store *st = ctx;
    return st->base.in_tx && !st->committing;
}

int sqlite_expose(struct store *base, int64_t idle_ms, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    (void)idle_ms; /* there is no server to end the transaction of a hung process */
    (void)err;
    st->base.lent = true;
    sqlite3_commit_hook(st->db, refuse_commit, st);
    return 0;
}

enum tx_state sqlite_tx_state(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    bool open = st->base.in_tx && !sqlite3_get_autocommit(st->db);
    return open ? TX_OPEN : TX_GONE;
}

const struct db_driver sqlite_driver = {
    .dialect = SQL_SQLITE,
    .schema_version = SQLITE_SCHEMA_VERSION,
    .not_ours = " (no outbox_meta beside it); use another file",
    .streams = true,
    .commit_wakes = true,
    .together = 1,
    .rows = driver_rows,
    .step = driver_step,
    .done = driver_done,
    .null = driver_null,
    .integer = driver_integer,
    .text = driver_text,
    .changed = driver_changed,
    .wrote = driver_wrote,
    .begin = driver_begin,
    .commit = driver_commit,
    .committed = driver_committed,
    .rollback = driver_rollback,
    .exec = driver_exec,
    .no_savepoint = SQLITE_ERROR,
    .now = driver_now,
    .snapshot_begin = sqlite_snapshot_begin,
    .snapshot_end = sqlite_snapshot_end,
    .keep_numbers = sqlite_numbers_keep,
    .tx_gone = sqlite_tx_gone,
    .target = sqlite_target,
    .target_rows = sqlite_target_rows,
    .target_changed = sqlite_target_changed,
    .insert = sqlite_insert,
    .adopt = &adopt_sqlite,
    .before_turns = sqlite_before_turns,
    .check_outbox = sqlite_check_outbox,
    .check_numbers = sqlite_check_numbers,
    .read_fresh = sqlite_read_fresh,
    .claim_all_lanes = sqlite_claim_all_lanes,
    .claimed = sqlite_claimed,
    .mark_rows = adopt_sqlite_mark,
    .after_turns = sqlite_after_turns,
};
