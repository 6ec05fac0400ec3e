/* mariadb_mark.c: marking rows of adopted tables as processed once a consumer has received them, in
 * the transaction that settles their delivery. The statements name the application's table and
 * columns, so they are built here.
 *
 * Marking waits for no lock: a session that has rows locked may belong to the program that
 * delivered them before, which marks them itself. Rows that could not be marked stay noted, and the
 * next turn tries again. */
#include <mysqld_error.h>
#include <stdio.h>
#include <string.h>

#include "extra/adopt/adopt.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define IDS_MAX ((size_t)1 << 24)  /* bytes of the ids that one settlement notes */
#define TEXT_MAX ((size_t)1 << 24) /* bytes of a statement */
#define KEYS_MAX ((size_t)1 << 20) /* bytes of the keys that one statement names, about */
#define ROWS_MAX 10000             /* rows of a table that one turn marks */
#define AT_ONCE "SET STATEMENT lock_wait_timeout = 0"
#define AT_ONCE_OR_NOT AT_ONCE ", innodb_lock_wait_timeout = 0"

/* ---- how to mark ---- */

/* The formats of a mark. outbox_marking stores the name: SQL would run with the relay's rights. */
enum stamp { STAMP_TIME, STAMP_TRUE, STAMP_SECONDS, STAMP_MS, STAMP_TEXT, STAMP_RFC3339, STAMPS };
static const struct {
    const char *name, *sql;
} stamps[STAMPS] = {
    [STAMP_TIME] = {"time", "NOW(6)"},
    [STAMP_TRUE] = {"true", "1"},
    [STAMP_SECONDS] = {"seconds", "UNIX_TIMESTAMP()"},
    [STAMP_MS] = {"ms", "FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)"},
    [STAMP_TEXT] = {"text", "DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%d %H:%i:%s')"},
    [STAMP_RFC3339] = {"rfc3339", "DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%dT%H:%i:%sZ')"},
};

/* Returns the format of the value in a marked row. */
static enum stamp stamp_like(struct str value, enum stamp usual)
{
    bool number = usual == STAMP_TRUE || usual == STAMP_SECONDS;
    if (usual == STAMP_TEXT && memchr(value.p, 'T', value.n))
        return STAMP_RFC3339;
    if (!number)
        return usual;
    if (str_is(value, "1"))
        return STAMP_TRUE;
    return value.n > 11 ? STAMP_MS : STAMP_SECONDS;
}

/* Follows the example of a marked row or, if there is none, the type of the column. */
static int read_stamp(const struct source *s, const char *column, enum stamp *ret,
                      struct error *err)
{
    enum adopt_kind kind = adopt_mariadb_kind(s, column);
    const char *type = s->column[adopt_source_column(s, column)].type;
    bool truth = strcmp(type, "tinyint") == 0 || strcmp(type, "bit") == 0;
    enum stamp usual = STAMP_TEXT;
    if (kind == ADOPT_KIND_TIME)
        usual = STAMP_TIME;
    else if (kind == ADOPT_KIND_NUMBER)
        usual = truth ? STAMP_TRUE : STAMP_SECONDS;

    struct source marked = *s;
    struct buf b;
    marked.of[F_PROCESSED] = column;
    buf_init(&b, ADOPT_STATEMENT_MAX);
    adopt_write(&b, &marked, "s", "SELECT {processed_at} FROM {table} s WHERE NOT {open} LIMIT 1");
    struct db_rows q = adopt_start(s, &b, err);
    int r = db_step(&q, err);
    *ret = usual;
    if (r == 1)
        *ret = stamp_like(db_text(&q, 0), usual);
    db_done(&q);
    return r < 0 ? -1 : 0;
}

/* Refuses to keep a mark if rows, noted by another column, could no longer be found. */
static int same_key(const struct source *s, struct error *err)
{
    struct db_rows q;
    const char *id = s->of[F_ID];
    int r = db_row(s->st, &q, err, SQL(marked_by, .source = s->name));
    if (r <= 0)
        return r;
    bool same = id && str_is(db_text(&q, 0), id);
    db_done(&q);
    if (same)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "rows of %.100s are marked, and the column that identifies them cannot change: "
                   "pass --mark and --consumer again, or use --drop-mark first",
                   s->name);
}

int adopt_mark_check(const struct source *s, struct error *err)
{
    const char *mark = s->req->mark;
    if (!mark)
        return s->req->drop_mark ? 0 : same_key(s, err);
    if (adopt_mark_allowed(s, err) != 0)
        return -1;
    if (adopt_mariadb_kind(s, mark) == ADOPT_KIND_BYTES)
        return err_set(
            err, ERR_CONFIG,
            "column %.100s of table %.100s is binary, and cannot hold the mark: it must be a time, "
            "a number or text",
            mark, s->name);
    return 0;
}

/* Deletes the notes of delivered rows: another consumer's deliveries may count now. */
int adopt_mark_put(const struct source *s, struct error *err)
{
    enum stamp stamp;
    const char *key = s->of[F_ID];
    bool same = false;
    if (read_stamp(s, s->req->mark, &stamp, err) != 0)
        return -1;
    struct db_rows q;
    int r = db_row(s->st, &q, err, SQL(marked_by, .source = s->name));
    if (r < 0)
        return -1;
    if (r == 1) {
        same = str_is(db_text(&q, 0), key);
        db_done(&q);
    }
    if (r == 1 && !same && db_run(s->st, err, SQL(forget_rows, .source = s->name)) != 0)
        return -1;
    if (db_run(s->st, err, SQL(forget_had, .source = s->name)) != 0)
        return -1;
    return db_run(s->st, err,
                  SQL(put_marking, .source = s->name, .consumer = s->req->consumer,
                      .mark = s->req->mark, .stamp = stamps[stamp].name, .key = key,
                      .kind = s->column[adopt_source_column(s, key)].type));
}

/* ---- delivered rows ---- */

/* Notes which rows of adopted tables the consumer has received, from the settlement. */
static int note_had(struct store *st, const struct settlement *s, struct error *err)
{
    struct buf ids;
    buf_init(&ids, IDS_MAX);
    size_t n = adopt_delivered_ids(s, &ids);
    int r = 0;
    if (!buf_cstr(&ids))
        r = err_nomem(err);
    else if (n > 0)
        r = db_later(st, err, SQL(note_had, .consumer = s->consumer, .ids = ids.p));
    buf_release(&ids);
    return r;
}

/* ---- marking ---- */

/* The state of a row to mark. */
enum seen {
    UNSEEN, /* locked by another session, or deleted */
    OURS,   /* locked by us, not marked */
    MARKED, /* marked already */
    LEFT,   /* exists, locked by another session */
};

struct row {
    int64_t nr;
    struct str key;
    enum seen seen;
};

/* A table whose rows are marked. (1) source has the columns of the key and of the mark, which is
 * its F_PROCESSED. (2) rows are sorted by their keys. */
struct table {
    struct mdb_store *st;
    struct source source;
    struct arena a;
    const char *trouble;
    enum stamp stamp;
    struct row *rows;
    size_t n;
};

static int by_key(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    size_t n = x->key.n < y->key.n ? x->key.n : y->key.n;
    int order = memcmp(x->key.p, y->key.p, n);
    if (order != 0)
        return order;
    return (x->key.n > y->key.n) - (x->key.n < y->key.n);
}

/* Returns whether a text can be put into a statement as it is. */
static bool is_number(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!strchr("0123456789.-+e", s.p[i]))
            return false;
    return s.n > 0;
}

/* Appends a key as a literal. The text of a binary key is in hexadecimal digits already. */
static void add_key(struct buf *b, const struct table *t, struct str key)
{
    enum adopt_kind kind = adopt_mariadb_kind(&t->source, t->source.of[F_ID]);
    if (kind == ADOPT_KIND_NUMBER && is_number(key)) {
        buf_addstr(b, key);
        return;
    }
    if (kind == ADOPT_KIND_BYTES)
        buf_adds(b, "UNHEX(");
    mdb_add_hex(b, key);
    if (kind == ADOPT_KIND_BYTES)
        buf_addc(b, ')');
}

/* Runs a statement on the rows in a state; *ret->at is NULL if there are none, or on failure. */
static int start(const struct table *t, const char *sql, enum seen seen, const char *end,
                 struct db_rows *ret, struct error *err)
{
    size_t n = 0;
    struct buf b;
    buf_init(&b, TEXT_MAX);
    adopt_write(&b, &t->source, "s", sql);
    buf_adds(&b, " IN (");
    for (size_t i = 0; i < t->n; i++) {
        if (t->rows[i].seen != seen)
            continue;
        if (n > 0)
            buf_addc(&b, ',');
        add_key(&b, t, t->rows[i].key);
        n++;
    }
    buf_addf(&b, ")%s", end);
    *ret = (struct db_rows){0};
    if (n > 0)
        *ret = adopt_start(&t->source, &b, err);
    buf_release(&b);
    return n == 0 || ret->at ? 0 : -1;
}

/* Notes the rows of a result: their keys and, if selected, whether they are open. */
static void note_rows(struct table *t, struct db_rows *q, bool locked)
{
    while (q->at && db_step(q, NULL) == 1) {
        struct row wanted = {.key = db_text(q, 0)};
        struct row *r = bsearch(&wanted, t->rows, t->n, sizeof *t->rows, by_key);
        if (!r)
            continue;
        r->seen = LEFT;
        if (locked)
            r->seen = db_int(q, 1) != 0 ? OURS : MARKED;
    }
}

/* Marks the rows that no other session has locked. They are locked by key only: with the flag in
 * the condition, the server might use an index on the flag, and lock other rows. If another session
 * has locked an index on the flag, the UPDATE does not wait for it either. */
static int set_marks(struct table *t, struct error *err)
{
    struct db_rows q;
    char update[300];
    if (start(t, AT_ONCE " FOR SELECT {id}, {open} FROM {table} s WHERE {key}", UNSEEN,
              " FOR UPDATE SKIP LOCKED", &q, err) != 0)
        return -1;
    note_rows(t, &q, true);

    snprintf(update, sizeof update,
             AT_ONCE_OR_NOT ", time_zone = @@global.time_zone FOR "
                            "UPDATE {table} s SET s.{mark} = %s WHERE {key}",
             stamps[t->stamp].sql);
    if (start(t, update, OURS, "", &q, err) != 0)
        return -1;
    db_done(&q);

    /* Distinguish rows locked by another session from deleted ones. */
    if (start(t, AT_ONCE " FOR SELECT {id} FROM {table} s WHERE {key}", UNSEEN, "", &q, err) != 0)
        return -1;
    note_rows(t, &q, false);
    return 0;
}

/* Deletes the notes of rows that are marked or deleted. */
static int forget_rows(const struct table *t, struct error *err)
{
    struct buf ids;
    size_t n = 0;
    buf_init(&ids, IDS_MAX);
    buf_addc(&ids, '[');
    for (size_t i = 0; i < t->n; i++) {
        if (t->rows[i].seen == LEFT)
            continue;
        if (n > 0)
            buf_addc(&ids, ',');
        buf_addi64(&ids, t->rows[i].nr);
        n++;
    }
    buf_addc(&ids, ']');
    int r = 0;
    if (!buf_cstr(&ids))
        r = err_nomem(err);
    else if (n > 0)
        r = db_run(&t->st->base.store, err,
                   SQL(forget_marked, .source = t->source.name, .ids = ids.p));
    buf_release(&ids);
    return r;
}

/* Records the error that prevents rows from being marked; NULL: none. It is written only when it
 * changes, so error_at is when the problem first occurred. */
static int put_trouble(const struct table *t, const char *trouble, struct error *err)
{
    bool same = !trouble && !t->trouble;
    if (trouble && t->trouble)
        same = strcmp(trouble, t->trouble) == 0;
    if (same)
        return 0;
    return db_run(&t->st->base.store, err,
                  SQL(put_trouble, .source = t->source.name, .error = trouble,
                      .now = mdb_now(&t->st->base.store)));
}

/* Decides what a failure to mark rows means: the turn fails only if the transaction is over. To
 * find out, it asks the server: with innodb_rollback_on_timeout, even a lock wait timeout ends the
 * transaction. */
static int classify_failure(const struct table *t, const struct error *why, struct error *err)
{
    struct store *st = &t->st->base.store;
    int64_t open = 0, there = 0;
    bool over = why->code == ERR_NOMEM || mdb_is_lost((unsigned)why->native) ||
                why->native == ER_LOCK_DEADLOCK;
    if (over || db_value(st, NULL, &open, SQL(in_transaction)) != 0 || !open)
        return err_copy(err, why);
    switch (why->native) {
    case ER_LOCK_WAIT_TIMEOUT:
    case ER_QUERY_INTERRUPTED:
    case ER_STATEMENT_TIMEOUT: return 0;
    case ER_NO_SUCH_TABLE:
        /* If it is the adopted one, marking ends; otherwise one of its triggers uses it. */
        if (db_value(st, err, &there,
                     SQL(has_table, .schema = t->st->url.database, .name = t->source.name)) != 0)
            return -1;
        if (!there)
            return adopt_forget_mark(st, t->source.name, err);
        return put_trouble(t, why->text, err);
    default: return put_trouble(t, why->text, err);
    }
}

/* Reads the rows to mark. */
static int read_rows(struct table *t, struct error *err)
{
    struct db_rows q = db_rows(&t->st->base.store, err,
                               SQL(rows_to_mark, .source = t->source.name, .max = ROWS_MAX));
    size_t bytes = 0;
    if (!q.at)
        return -1;
    t->rows = arena_alloc(&t->a, (mdb_count(&q) + 1) * sizeof *t->rows);
    bool ok = t->rows != NULL;
    while (ok && bytes < KEYS_MAX && db_step(&q, err) == 1) {
        struct row *r = &t->rows[t->n++];
        *r = (struct row){.nr = db_int(&q, 0), .key = db_copy(&q, 1, &t->a, &ok)};
        bytes += r->key.n;
    }
    db_done(&q);
    if (!ok)
        return err_nomem(err);
    if (t->n > 0)
        qsort(t->rows, t->n, sizeof *t->rows, by_key);
    return 0;
}

/* Marks rows of one table, as far as possible without waiting. */
static int mark_rows(struct table *t, struct error *err)
{
    struct error why;
    if (read_rows(t, err) != 0)
        return -1;
    if (t->n == 0)
        return 0;
    if (set_marks(t, &why) != 0)
        return classify_failure(t, &why, err);
    if (forget_rows(t, err) != 0)
        return -1;
    return put_trouble(t, NULL, err);
}

/* Marks rows of the table in q's current row, of marked_tables. */
static int mark_table(struct mdb_store *st, const struct db_rows *q, struct error *err)
{
    enum stamp stamp = STAMP_TIME;
    for (int i = 0; i < STAMPS; i++)
        if (str_is(db_text(q, 2), stamps[i].name))
            stamp = (enum stamp)i;
    bool text = stamp == STAMP_TEXT || stamp == STAMP_RFC3339;
    const char *mark = db_text(q, 1).p, *key = db_text(q, 3).p;
    struct source_column columns[] = {{key, db_text(q, 4).p}, {mark, text ? "text" : "int"}};
    struct table t = {
        .st = st,
        .source = {.st = &st->base.store,
                   .name = db_text(q, 0).p,
                   .column = columns,
                   .n = 2,
                   .of = {[F_ID] = key, [F_PROCESSED] = mark}},
        .stamp = stamp,
        .trouble = db_text(q, 5).p,
    };
    arena_init(&t.a, 0);
    int r = mark_rows(&t, err);
    arena_release(&t.a);
    return r;
}

int adopt_mark_rows(struct store *st, const char *consumer, const struct settlement *s,
                    struct error *err)
{
    int r;
    if (s && note_had(st, s, err) != 0)
        return -1;
    struct db_rows q = db_rows(st, err, SQL(marked_tables, .consumer = consumer));
    while ((r = db_step(&q, err)) == 1) {
        if (mark_table(mdb_of(st), &q, err) == 0)
            continue;
        db_done(&q);
        return -1;
    }
    return r;
}
