/* mariadb.c: claims of rows in MariaDB, in one transaction:
 *
 *     SELECT key FROM jobs WHERE criteria ORDER BY order_by LIMIT n FOR UPDATE SKIP LOCKED
 *     UPDATE jobs SET fields WHERE key IN (those)
 *     SELECT columns FROM jobs WHERE key IN (those) ORDER BY FIELD(key, those)
 *
 * The first query locks the candidates and skips rows locked by other sessions. The other
 * statements use only keys, so a claim never has more rows than wanted. MariaDB has no UPDATE ...
 * RETURNING. READ COMMITTED locks these rows and no gaps between them. */
#include <errmsg.h>
#include <mysql.h>
#include <mysqld_error.h>
#include <stdio.h>
#include <stdlib.h>

#include "extra/rows/rows.h"

#define MARK '\1'
#define KEYS_AT_ONCE 1000
#define TRIES 5   /* attempts of a claim chosen as a deadlock victim */
#define BINARY 63 /* number of the character set "binary" */

static const char read_committed[] = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED";

/* ---- errors ---- */

static enum err_code code_of(unsigned native)
{
    switch (native) {
    case ER_LOCK_DEADLOCK:
    case ER_LOCK_WAIT_TIMEOUT:
    case ER_STATEMENT_TIMEOUT:
    case ER_QUERY_INTERRUPTED:
    case ER_CHECKREAD: return ERR_BUSY;
    case ER_OPTION_PREVENTS_STATEMENT:
    case ER_READ_ONLY_MODE:
    case ER_TABLEACCESS_DENIED_ERROR:
    case ER_COLUMNACCESS_DENIED_ERROR: return ERR_READONLY;
    case ER_DISK_FULL:
    case ER_RECORD_FILE_FULL: return ERR_FULL;
    case CR_OUT_OF_MEMORY:
    case ER_OUTOFMEMORY: return ERR_NOMEM;
    default: break;
    }
    bool lost = native >= CR_MIN_ERROR && native <= CR_MAX_ERROR;
    bool ended = native == ER_SERVER_SHUTDOWN || native == ER_CONNECTION_KILLED;
    return lost || ended ? ERR_UNAVAILABLE : ERR_INVALID;
}

static int fail(MYSQL *db, struct error *err)
{
    enum err_code code = code_of(mysql_errno(db));
    bool final = code == ERR_INVALID || code == ERR_READONLY;
    return err_class(err, code, final ? CLASS_FATAL : CLASS_RETRY, (int)mysql_errno(db),
                     "could not claim rows: %.300s", mysql_error(db));
}

static int ready(void *conn, struct error *err)
{
    unsigned status = 0;
    if (mariadb_get_infov(conn, MARIADB_CONNECTION_SERVER_STATUS, &status) != 0)
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                         "could not claim rows: the connection is broken");
    if (status & SERVER_STATUS_IN_TRANS)
        return rows_in_transaction(err);
    return 0;
}

/* ---- statements ---- */

/* Writes text independently of the connection's character set and sql_mode. */
static void add_text(struct buf *b, const struct rows_value *v)
{
    buf_adds(b, v->kind == ROWS_BLOB ? "X'" : "_utf8mb4 X'");
    for (size_t i = 0; i < v->text.n; i++)
        buf_addf(b, "%02x", (unsigned char)v->text.p[i]);
    buf_addc(b, '\'');
}

static void add_literal(struct buf *b, const struct rows_value *v)
{
    switch (v->kind) {
    case ROWS_NULL: buf_adds(b, "NULL"); break;
    case ROWS_TEXT:
    case ROWS_BLOB: add_text(b, v); break;
    case ROWS_INT:
        if (v->text.p)
            buf_add(b, v->text.p, v->text.n); /* the server's text: it may be unsigned */
        else
            buf_addi64(b, v->number);
        break;
    case ROWS_REAL: buf_addf(b, "%.17g", v->real); break;
    }
}

/* Replaces each placeholder with its value. */
static void write_out(const char *text, const struct rows_sql *sql, struct buf *b)
{
    while (*text) {
        size_t n = strcspn(text, (char[]){MARK, '\0'});
        buf_add(b, text, n);
        text += n;
        if (!*text)
            return;
        char *end;
        unsigned long i = strtoul(text + 1, &end, 10);
        add_literal(b, &sql->params[i - 1]);
        text = end;
    }
}

static enum rows_kind kind_of(const MYSQL_FIELD *f)
{
    if (f->flags & NUM_FLAG && f->decimals == 0 && f->type != MYSQL_TYPE_FLOAT &&
        f->type != MYSQL_TYPE_DOUBLE && f->type != MYSQL_TYPE_TIMESTAMP)
        return ROWS_INT;
    bool is_bytes = f->charsetnr == BINARY && f->type >= MYSQL_TYPE_TINY_BLOB &&
                    f->type <= MYSQL_TYPE_STRING;
    return is_bytes ? ROWS_BLOB : ROWS_TEXT;
}

static int take_row(MYSQL_RES *res, MYSQL_ROW from, struct outbox_rows *ret, struct error *err)
{
    const unsigned long *size = mysql_fetch_lengths(res);
    const MYSQL_FIELD *fields = mysql_fetch_fields(res);
    struct rows_value *row = rows_add(ret);
    if (!row)
        return err_nomem(err);
    for (size_t i = 0; i < ret->n_columns; i++) {
        if (!from[i])
            continue;
        row[i].kind = kind_of(&fields[i]);
        row[i].text = (struct str){arena_bytes(&ret->a, from[i], size[i]), size[i]};
        if (!row[i].text.p)
            return err_nomem(err);
    }
    return 0;
}

static int take_rows(MYSQL *db, struct outbox_rows *ret, struct error *err)
{
    MYSQL_RES *res = mysql_store_result(db);
    MYSQL_ROW row;
    int r = 0;
    if (!res)
        return mysql_errno(db) ? fail(db, err) : 0;
    while (r == 0 && ret && (row = mysql_fetch_row(res)))
        r = take_row(res, row, ret, err);
    mysql_free_result(res);
    return r;
}

/* Counts the rows that an UPDATE matched, whether it changed them or not. */
static int64_t matched(MYSQL *db)
{
    long long n;
    const char *info = mysql_info(db);
    if (info && sscanf(info, "Rows matched: %lld", &n) == 1)
        return n;
    return (int64_t)mysql_affected_rows(db);
}

static int run(void *conn, struct rows_sql *sql, struct outbox_rows *ret, int64_t *ret_changed,
               struct error *err)
{
    const char *text = rows_sql_text(sql, err);
    struct buf b;
    if (!text)
        return -1;
    buf_init(&b, 16 << 20);
    write_out(text, sql, &b);
    int r = 0;
    if (b.failed)
        r = err_nomem(err);
    else if (mysql_real_query(conn, b.p, b.n) != 0)
        r = fail(conn, err);
    buf_release(&b);
    if (r != 0)
        return -1;
    if (ret_changed)
        *ret_changed = matched(conn);
    return take_rows(conn, ret, err);
}

const struct rows_dialect rows_mariadb = {
    .name = "mariadb",
    .mark = MARK,
    .quote = '`',
    .begin = "START TRANSACTION",
    .now = {"(NOW(6) + INTERVAL (", " * 1000) MICROSECOND)"},
    .now_ms = {"(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + ", ")"},
    .ready = ready,
    .run = run,
};

/* ---- the claim ---- */

/* n of the picked keys, from index `from` on. */
struct part {
    const struct outbox_rows *keys;
    size_t from, n;
};

static void add_keys(struct rows_sql *sql, const struct part *p)
{
    for (size_t i = 0; i < p->n; i++) {
        if (i > 0)
            rows_sql_add(sql, ", ");
        add_literal(&sql->text, &p->keys->cells[p->from + i]);
    }
}

static int change(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                  const struct part *p, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, d);
    rows_sql_update_by_key(&sql, c);
    rows_sql_add(&sql, " IN (");
    add_keys(&sql, p);
    rows_sql_add(&sql, ")");
    return rows_run(conn, &sql, NULL, NULL, err);
}

/* Reads the current rows in the order in which they were picked. */
static int read_back(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                     const struct part *p, struct outbox_rows *ret, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, d);
    rows_sql_select_by_key(&sql, c);
    rows_sql_add(&sql, " IN (");
    add_keys(&sql, p);
    rows_sql_add(&sql, ") ORDER BY FIELD(");
    rows_sql_key(&sql, c);
    rows_sql_add(&sql, ", ");
    add_keys(&sql, p);
    rows_sql_add(&sql, ")");
    return rows_run(conn, &sql, ret, NULL, err);
}

/* Claims inside a transaction. */
static int claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                 struct outbox_rows *keys, struct outbox_rows *ret, struct error *err)
{
    if (rows_pick(d, conn, c, " FOR UPDATE SKIP LOCKED", keys, err) != 0)
        return -1;
    for (size_t from = 0; from < keys->n; from += KEYS_AT_ONCE) {
        struct part p = {keys, from, keys->n - from};
        if (p.n > KEYS_AT_ONCE)
            p.n = KEYS_AT_ONCE;
        if (change(d, conn, c, &p, err) != 0)
            return -1;
        if (read_back(d, conn, c, &p, ret, err) != 0)
            return -1;
    }
    return rows_run_text(d, conn, "COMMIT", err);
}

int rows_mariadb_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                       struct outbox_rows *ret, struct error *err)
{
    struct error why;
    for (int i = 0; i < TRIES; i++) {
        struct outbox_rows keys;
        rows_init(&keys, 1);
        int r = rows_run_text(d, conn, read_committed, &why);
        if (r == 0)
            r = rows_run_text(d, conn, d->begin, &why);
        bool begun = r == 0;
        if (begun)
            r = claim(d, conn, c, &keys, ret, &why);
        rows_release(&keys);
        if (r == 0)
            return 0;

        if (begun)
            rows_run_text(d, conn, "ROLLBACK", NULL);
        ret->n = 0;
        if (why.native != ER_LOCK_DEADLOCK)
            break;
    }
    if (err)
        *err = why;
    return -1;
}
