/* adopt.c: turning rows of an application's table into events: the trigger for new rows, and a copy
 * of the existing ones. The statements name the application's table and columns, so they are built
 * here; the conversions of columns are in sql/mariadb/functions.sql.
 *
 * In MariaDB, CREATE TRIGGER commits, so the trigger does nothing until a row of outbox_adopted
 * enables it; that row and the events of the existing rows come in one transaction. If interrupted
 * at any point, the adoption is either done or not, and can be repeated. */
#include "store/mariadb/mariadb.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "store_sql.h"

#define TRIGGER_TEXT 65 /* a name of up to 64 characters */
#define STATEMENT_MAX ((size_t)1 << 20)
#define TRIGGER "outbox_adopted_"
/* A statement that waits for a table lock makes other sessions queue behind it, so it does not wait
 * for long. */
#define BRIEFLY "SET STATEMENT lock_wait_timeout = 5 FOR "

/* ---- running built statements ---- */

/* Runs the statement in b, which it releases. */
static int run(const struct source *s, struct buf *b, struct error *err)
{
    const char *text = buf_cstr(b);
    int r = text ? mdb_exec(mdb_of(s->st), text, err) : err_nomem(err);
    buf_release(b);
    return r;
}

int mdb_adopt_ask(struct mdb_store *st, struct buf *b, struct db_rows *ret, struct error *err)
{
    *ret = (struct db_rows){0};
    if (!buf_cstr(b))
        return err_nomem(err);
    return mdb_ask(st, st->db, b->p, b->n, ret, err);
}

/* ---- names and types ---- */

/* Writes a text of n bytes as a literal, safe against any content. */
static void add_text(struct buf *b, const char *text, size_t n)
{
    buf_adds(b, "CONVERT(X'");
    for (size_t i = 0; i < n; i++)
        buf_addf(b, "%02x", (unsigned char)text[i]);
    buf_adds(b, "' USING utf8mb4)");
}

enum mdb_kind mdb_adopt_kind(const struct source *s, const char *column)
{
    static const struct {
        const char *part;
        enum mdb_kind kind;
    } kinds[] = {
        {"int", MDB_KIND_NUMBER},     {"decimal", MDB_KIND_NUMBER}, {"float", MDB_KIND_NUMBER},
        {"double", MDB_KIND_NUMBER},  {"bit", MDB_KIND_NUMBER},     {"year", MDB_KIND_NUMBER},
        {"binary", MDB_KIND_BYTES},   {"blob", MDB_KIND_BYTES},     {"datetime", MDB_KIND_TIME},
        {"timestamp", MDB_KIND_TIME}, {"date", MDB_KIND_TIME}};
    const char *type = s->type[db_source_column(s, column)];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strstr(type, kinds[i].part))
            return kinds[i].kind;
    return MDB_KIND_TEXT;
}

static int check_table(const struct source *s, struct error *err)
{
    const char *at = s->of[F_CREATED], *payload = s->of[F_PAYLOAD];
    if (at && mdb_adopt_kind(s, at) != MDB_KIND_TIME && mdb_adopt_kind(s, at) != MDB_KIND_NUMBER)
        return err_set(err, ERR_CONFIG,
                       "column %.100s of %.100s is neither a time nor a number, and cannot be used "
                       "as created_at; omit it with --column created_at=",
                       at, s->name);
    bool json = mdb_adopt_kind(s, payload) == MDB_KIND_TEXT ||
                mdb_adopt_kind(s, payload) == MDB_KIND_BYTES;
    if (!json)
        return err_set(err, ERR_CONFIG,
                       "column %.100s of %.100s is neither text nor binary, and cannot be used as "
                       "the payload",
                       payload, s->name);
    return mdb_mark_check(s, err);
}

static void trigger_name(const struct source *s, char ret[ADOPT_TRIGGER_TEXT])
{
    uint64_t h = hash_end(hash_add(HASH_INIT, str_of(s->name)));
    size_t room = TRIGGER_TEXT - sizeof TRIGGER;
    if (strlen(s->name) <= room)
        snprintf(ret, TRIGGER_TEXT, TRIGGER "%s", s->name);
    else
        snprintf(ret, TRIGGER_TEXT, TRIGGER "%016llx", (unsigned long long)h);
}

/* ---- how a row becomes an event ---- */

/* Appends a column of row r, which is NEW or s. */
static void add_column(struct buf *b, const char *column, const char *r)
{
    buf_addf(b, "%s.", r);
    mdb_add_name(b, str_of(column));
}

void mdb_adopt_add_text(struct buf *b, const char *column, enum mdb_kind kind, const char *r)
{
    bool bytes = kind == MDB_KIND_BYTES;
    buf_adds(b, bytes ? "LOWER(HEX(" : "CAST(");
    add_column(b, column, r);
    buf_adds(b, bytes ? "))" : " AS CHAR CHARACTER SET utf8mb4)");
}

/* Appends the value of a field in row r, as text. */
static void add_value(struct buf *b, const struct source *s, enum field f, const char *r)
{
    const char *of = s->of[f];
    if (!of) {
        buf_adds(b, "NULL");
    } else if (db_source_literal(of)) {
        add_text(b, of + 1, strlen(of) - 2);
    } else {
        mdb_adopt_add_text(b, of, mdb_adopt_kind(s, of), r);
    }
}

/* Appends the payload as JSON. */
static void add_payload(struct buf *b, const struct source *s, const char *r)
{
    bool bytes = mdb_adopt_kind(s, s->of[F_PAYLOAD]) == MDB_KIND_BYTES;
    buf_adds(b, bytes ? "outbox_row_bytes(" : "outbox_row_payload(");
    if (bytes)
        add_column(b, s->of[F_PAYLOAD], r);
    else
        add_value(b, s, F_PAYLOAD, r);
    buf_adds(b, ")");
}

/* Appends the time in ms. */
static void add_created(struct buf *b, const struct source *s, const char *r)
{
    const char *of = s->of[F_CREATED];
    if (!of) {
        buf_adds(b, "outbox_row_time(NULL)");
        return;
    }
    bool time = mdb_adopt_kind(s, of) == MDB_KIND_TIME;
    buf_adds(b, time ? "outbox_row_time(UNIX_TIMESTAMP(" : "outbox_row_time(LEAST(1e15, (");
    add_column(b, of, r);
    buf_adds(b, time ? "))" : ")))");
}

void mdb_adopt_add_open(struct buf *b, const char *column, bool text, const char *r)
{
    buf_adds(b, "(");
    add_column(b, column, r);
    buf_adds(b, " IS NULL OR ");
    add_column(b, column, r);
    buf_adds(b, text ? " IN ('', '0'))" : " = 0)");
}

/* Appends the condition that row r is unprocessed. */
static void add_open(struct buf *b, const struct source *s, const char *r)
{
    const char *of = s->of[F_PROCESSED];
    if (!of) {
        buf_adds(b, "TRUE");
        return;
    }
    enum mdb_kind kind = mdb_adopt_kind(s, of);
    mdb_adopt_add_open(b, of, kind == MDB_KIND_TEXT || kind == MDB_KIND_BYTES, r);
}

/* Appends a part of a statement by its name; a field's name stands for its value as text. */
static void add_part(struct buf *b, const struct source *s, const char *r, struct str part)
{
    char trigger[ADOPT_TRIGGER_TEXT];
    if (str_is(part, "table")) {
        mdb_add_name(b, str_of(s->name));
    } else if (str_is(part, "trigger")) {
        trigger_name(s, trigger);
        mdb_add_name(b, str_of(trigger));
    } else if (str_is(part, "source")) {
        add_text(b, s->name, strlen(s->name));
    } else if (str_is(part, "key")) {
        add_column(b, s->of[F_ID], r);
    } else if (str_is(part, "open")) {
        add_open(b, s, r);
    } else if (str_is(part, "json")) {
        add_payload(b, s, r);
    } else if (str_is(part, "time")) {
        add_created(b, s, r);
    }
    for (int f = 0; f < FIELDS; f++)
        if (str_is(part, db_source_fields[f]))
            add_value(b, s, (enum field)f, r);
}

/* Appends SQL in which {part} stands for a part that depends on the table, of row r: NEW in the
 * trigger, s in a query. */
static void add_sql(struct buf *b, const struct source *s, const char *r, const char *sql)
{
    for (;;) {
        size_t n = strcspn(sql, "{");
        buf_add(b, sql, n);
        sql += n;
        if (!*sql)
            return;
        size_t part = strcspn(sql, "}");
        add_part(b, s, r, (struct str){sql + 1, part - 1});
        sql += part + 1;
    }
}

#define ROW_UUID "outbox_row_uuid({id})"
#define COPIED "type, payload, created_at, headers, aggregate_type, aggregate_id, tenant"
/* The values of these columns; the aggregate's fields are NULL if one of them is. */
#define COPIED_VALUES \
    "outbox_row_type({type}), {json}, {time}, outbox_row_headers({id}), " \
    "IF({aggregate_id} IS NULL, NULL, {aggregate_type}), " \
    "IF({aggregate_type} IS NULL, NULL, {aggregate_id}), {tenant}"

/* ---- the trigger ---- */

/* A statement that notes which row the event with a number came from: NOTE, the number, NOTED, the
 * source of the number, NOTE_END. Numbers start over if outbox_event is truncated, so the number
 * may have a note already, of another row. */
#define NOTE "INSERT INTO outbox_adopted_row (nr, source, value) SELECT "
#define NOTED ", {source}, {id} FROM "
#define NOTE_END "{key} IS NOT NULL ON DUPLICATE KEY UPDATE value = VALUES(value), had = 0; "

/* The trigger makes an event of a new row. An id that is a UUID becomes the event's id, unless an
 * event has it already; otherwise the table's default supplies one. VALUES, because SELECT would
 * lock the numbers of outbox_event. */
static int make_trigger(const struct source *s, bool marked, struct error *err)
{
    struct buf b;
    buf_init(&b, STATEMENT_MAX);
    add_sql(&b, s, "NEW",
            BRIEFLY "CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table} FOR EACH ROW "
                    "BEGIN IF {open} AND (SELECT a.active FROM outbox_adopted a "
                    "WHERE a.source = {source} LOCK IN SHARE MODE) THEN "
                    "IF " ROW_UUID " IS NULL THEN "
                    "INSERT INTO outbox_event (" COPIED ") VALUES (" COPIED_VALUES "); ");
    if (marked)
        add_sql(&b, s, "NEW", NOTE "LAST_INSERT_ID()" NOTED "DUAL WHERE " NOTE_END);
    add_sql(&b, s, "NEW",
            "ELSE BEGIN DECLARE CONTINUE HANDLER FOR 1062 BEGIN END; "
            "INSERT INTO outbox_event (id, " COPIED ") VALUES (" ROW_UUID ", " COPIED_VALUES "); "
            "END; ");
    if (marked)
        add_sql(&b, s, "NEW",
                NOTE "e.nr" NOTED "outbox_event e WHERE e.id = " ROW_UUID " AND " NOTE_END);
    buf_adds(&b, "END IF; END IF; END");
    return run(s, &b, err);
}

static int drop_trigger(const struct source *s, struct error *err)
{
    struct buf b;
    buf_init(&b, STATEMENT_MAX);
    add_sql(&b, s, "NEW", BRIEFLY "DROP TRIGGER IF EXISTS {trigger}");
    return run(s, &b, err);
}

/* ---- existing rows ---- */

static int count_rows(const struct source *s, int64_t *ret, struct error *err)
{
    struct db_rows q;
    struct buf b;
    buf_init(&b, STATEMENT_MAX);
    add_sql(&b, s, "s", "SELECT count(*) FROM {table} s WHERE {open}");
    int r = mdb_adopt_ask(mdb_of(s->st), &b, &q, err);
    buf_release(&b);
    if (r != 0)
        return -1;
    if (db_step(&q, err) == 1)
        *ret = db_int(&q, 0);
    db_done(&q);
    return 0;
}

/* Appends the order in which the rows seem to have been written. */
static void add_order(struct buf *b, const struct source *s)
{
    const char *id = s->of[F_ID], *at = s->of[F_CREATED];
    bool counted = id && mdb_adopt_kind(s, id) == MDB_KIND_NUMBER;
    const char *between = " ORDER BY ";
    if (at && !counted) {
        buf_adds(b, between);
        add_column(b, at, "s");
        between = ", ";
    }
    if (id) {
        buf_adds(b, between);
        add_column(b, id, "s");
    }
}

/* Reads the default expression of an event's id; the caller releases b. */
static int read_id_default(const struct source *s, struct buf *b, struct error *err)
{
    struct db_rows q;
    int r = db_row(s->st, &q, err, SQL(id_default, .schema = s->schema));
    if (r < 0)
        return -1;
    if (r == 0)
        return err_set(err, ERR_NOTOURS, "outbox_event has no column id");
    buf_addstr(b, db_text(&q, 0));
    db_done(&q);
    return buf_cstr(b) ? 0 : err_nomem(err);
}

/* Unprocessed rows that are not events yet. */
#define NEW_ROWS "{open} AND NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.id = " ROW_UUID ")"
/* A temporary table: the event id chosen for each row, by the row's key. */
#define COPYING "outbox_copying"

/* Fills the temporary table. */
static int choose_ids(const struct source *s, const char *id_default, struct error *err)
{
    struct buf b;
    buf_init(&b, STATEMENT_MAX);
    add_sql(&b, s, "s",
            "CREATE OR REPLACE TEMPORARY TABLE " COPYING
            " (PRIMARY KEY (k), event_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin, "
            "UNIQUE (event_id)) ENGINE = InnoDB AS SELECT {key} AS k, COALESCE(" ROW_UUID ", ");
    buf_adds(&b, id_default);
    add_sql(&b, s, "s", ") AS event_id FROM {table} s WHERE " NEW_ROWS " AND {key} IS NOT NULL");
    return run(s, &b, err);
}

/* Notes which row each event with a chosen id came from. */
static int note_copied(const struct source *s, struct error *err)
{
    struct buf b;
    buf_init(&b, STATEMENT_MAX);
    add_sql(&b, s, "c", NOTE "e.nr, {source}, ");
    mdb_adopt_add_text(&b, "k", mdb_adopt_kind(s, s->of[F_ID]), "c");
    buf_adds(&b, " FROM " COPYING " c JOIN outbox_event e ON e.id = c.event_id "
                 "ON DUPLICATE KEY UPDATE value = VALUES(value), had = 0");
    if (run(s, &b, err) != 0)
        return -1;
    return mdb_exec(mdb_of(s->st), "DROP TEMPORARY TABLE " COPYING, err);
}

/* Makes an event of each unprocessed row. A DATETIME has no time zone: it is taken to be in the
 * server's, the default of sessions. */
static int copy(const struct source *s, bool marked, const char *id_default, int64_t *ret,
                struct error *err)
{
    struct buf b;
    buf_init(&b, STATEMENT_MAX);
    buf_adds(&b, "SET STATEMENT time_zone = @@global.time_zone FOR "
                 "INSERT INTO outbox_event (id, " COPIED ") SELECT COALESCE(");
    add_sql(&b, s, "s", marked ? "c.event_id, " ROW_UUID ", " : ROW_UUID ", ");
    buf_adds(&b, id_default);
    add_sql(&b, s, "s", "), " COPIED_VALUES " FROM {table} s");
    if (marked)
        add_sql(&b, s, "s", " LEFT JOIN " COPYING " c ON c.k = {key}");
    add_sql(&b, s, "s", " WHERE " NEW_ROWS);
    add_order(&b, s);
    if (run(s, &b, err) != 0)
        return -1;
    *ret = mdb_of(s->st)->changed;
    return 0;
}

static int copy_rows(const struct source *s, bool marked, int64_t *ret, struct error *err)
{
    struct buf id_default;
    buf_init(&id_default, STATEMENT_MAX);
    int r = read_id_default(s, &id_default, err);
    if (r == 0 && marked)
        r = choose_ids(s, id_default.p, err);
    if (r == 0)
        r = copy(s, marked, id_default.p, ret, err);
    if (r == 0 && marked)
        r = note_copied(s, err);
    buf_release(&id_default);
    return r;
}

/* ---- adopting ---- */

/* The change to make once no other session uses the table. */
struct switching {
    bool active; /* rows become events from now on */
    bool copies; /* existing rows become events too */
};

/* Makes the change. It waits for sessions that have inserted into the table, and those about to
 * insert wait: the rows read afterwards are exactly those that the trigger has not seen. */
static int switch_over(const struct source *s, struct switching to, int64_t *ret_copied,
                       struct error *err)
{
    int64_t ignored = 0;
    if (mdb_begin(s->st, err) != 0)
        return -1;
    int r = db_value(s->st, err, &ignored, SQL(lock_adopted, .source = s->name));
    if (r == 0)
        r = db_adopt_forget_mark(s->st, s->name, err);
    if (r == 0 && to.copies)
        r = copy_rows(s, s->req->mark != NULL, ret_copied, err);
    if (r == 0 && to.active && s->req->mark)
        r = mdb_mark_put(s, err);
    if (r == 0)
        r = db_run(s->st, err,
                   SQL(set_adopted, .source = s->name, .active = to.active, .now = db_now(s->st)));
    return db_end(s->st, r, err);
}

/* Changes the columns for new rows, or how rows are marked. The trigger is replaced first: what it
 * notes for a mark that is not recorded yet does no harm. */
static int change_adoption(const struct source *s, struct error *err)
{
    bool marked;
    if (db_adopt_is_marked(s, &marked, err) != 0)
        return -1;
    if (make_trigger(s, marked || s->req->mark, err) != 0)
        return -1;
    if (mdb_begin(s->st, err) != 0)
        return -1;
    int r = 0;
    if (s->req->mark)
        r = mdb_mark_put(s, err);
    if (r == 0)
        r = db_run(s->st, err, SQL(set_mapping, .source = s->name, .mapping = s->mapping.p));
    return db_end(s->st, r, err);
}

/* ---- the driver ---- */

static int adopt_table(const struct source *s, const struct adopted *was, bool copies,
                       struct adopt_result *ret, struct error *err)
{
    if (was->there)
        return change_adoption(s, err);
    struct switching to = {.active = true, .copies = copies};
    if (db_run(s->st, err, SQL(prepare_adopted, .source = s->name, .mapping = s->mapping.p)) != 0)
        return -1;
    if (make_trigger(s, s->req->mark != NULL, err) != 0)
        return -1;
    return switch_over(s, to, &ret->copied, err);
}

/* If interrupted, the table still counts as marked, so that this can be repeated. */
static int drop_mark(const struct source *s, struct error *err)
{
    if (db_run(s->st, err, SQL(end_mark, .source = s->name)) != 0)
        return -1;
    if (make_trigger(s, false, err) != 0)
        return -1;
    return db_adopt_forget_mark(s->st, s->name, err);
}

/* Always drops the trigger: an interrupted adoption may have left it. */
static int undo_adoption(const struct source *s, bool there, struct error *err)
{
    int64_t ignored = 0;
    if (there && switch_over(s, (struct switching){0}, &ignored, err) != 0)
        return -1;
    return drop_trigger(s, err);
}

const struct adopt_driver mdb_adopt_driver = {
    .trigger_name = trigger_name,
    .check = check_table,
    .count = count_rows,
    .adopt = adopt_table,
    .drop_mark = drop_mark,
    .undo = undo_adoption,
};

/* ---- triggers without a definer ---- */

/* Recreates the trigger of the table in a row of lost_adopted, whose other columns are the columns
 * of the fields. */
static int renew(struct source *s, const struct db_rows *q, struct error *err)
{
    bool ok = true, marked;
    if (db_source_find(s, err) != 0)
        return -1;
    for (int f = 0; f < FIELDS; f++) {
        s->of[f] = db_copy(q, 1 + f, &s->a, &ok).p;
        if (!ok)
            return err_nomem(err);
        bool column = s->of[f] && !db_source_literal(s->of[f]);
        if (column && db_source_column(s, s->of[f]) < 0)
            return err_set(err, ERR_NOTFOUND, "it no longer has a column %.100s", s->of[f]);
    }
    if (db_adopt_is_marked(s, &marked, err) != 0)
        return -1;
    return make_trigger(s, marked, err);
}

int mdb_adopt_renew(struct mdb_store *st, struct error *err)
{
    struct error ignored;
    struct db_rows q = db_rows(&st->base.store, &ignored,
                               SQL(lost_adopted, .schema = st->url.database));
    int r = 0;
    while (r == 0 && db_step(&q, &ignored) == 1) {
        struct buf name;
        buf_init(&name, 1 << 10);
        mdb_add_name(&name, db_text(&q, 0));
        struct adopt_request req = {.table = buf_cstr(&name)};
        struct source s = {.st = &st->base.store, .schema = st->url.database, .req = &req};
        arena_init(&s.a, 0);
        r = req.table ? renew(&s, &q, err) : err_nomem(err);
        arena_release(&s.a);
        buf_release(&name);
        if (r != 0)
            err_prefix(err,
                       "could not recreate the trigger of table %.64s, which runs as an account "
                       "that no longer exists",
                       db_text(&q, 0).p);
    }
    db_done(&q);
    return r;
}
