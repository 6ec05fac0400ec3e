/* mariadb.c: turning rows of an application's table into events: the trigger for new rows, and a
 * copy of the existing ones. The statements name the application's table and columns, so they are
 * built here; the conversions of columns are in sql/mariadb/functions.sql.
 *
 * In MariaDB, CREATE TRIGGER commits, so the trigger does nothing until a row of outbox_adopted
 * enables it; that row and the events of the existing rows are written in one transaction. If
 * interrupted at any point, the adoption is either done or not, and can be repeated. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "extra/adopt/adopt.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

/* Waiting for a table lock makes other sessions queue behind us. */
#define BRIEFLY "SET STATEMENT lock_wait_timeout = 5 FOR "

/* ---- columns ---- */

enum adopt_kind adopt_mariadb_kind(const struct source *s, const char *column)
{
    static const struct {
        const char *part;
        enum adopt_kind kind;
    } kinds[] = {{"int", ADOPT_KIND_NUMBER},    {"decimal", ADOPT_KIND_NUMBER},
                 {"float", ADOPT_KIND_NUMBER},  {"double", ADOPT_KIND_NUMBER},
                 {"bit", ADOPT_KIND_NUMBER},    {"year", ADOPT_KIND_NUMBER},
                 {"binary", ADOPT_KIND_BYTES},  {"blob", ADOPT_KIND_BYTES},
                 {"datetime", ADOPT_KIND_TIME}, {"timestamp", ADOPT_KIND_TIME},
                 {"date", ADOPT_KIND_TIME}};
    const char *type = s->column[adopt_source_column(s, column)].type;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strstr(type, kinds[i].part))
            return kinds[i].kind;
    return ADOPT_KIND_TEXT;
}

static int check_table(const struct source *s, struct error *err)
{
    const char *at = s->of[F_CREATED], *payload = s->of[F_PAYLOAD];
    if (at && adopt_mariadb_kind(s, at) != ADOPT_KIND_TIME &&
        adopt_mariadb_kind(s, at) != ADOPT_KIND_NUMBER)
        return err_set(err, ERR_CONFIG,
                       "column %.100s of %.100s is neither a time nor a number, and cannot be used "
                       "as created_at; omit it with --column created_at=",
                       at, s->name);
    bool json = adopt_mariadb_kind(s, payload) == ADOPT_KIND_TEXT ||
                adopt_mariadb_kind(s, payload) == ADOPT_KIND_BYTES;
    if (!json)
        return err_set(err, ERR_CONFIG,
                       "column %.100s of %.100s is neither text nor binary, and cannot be used as "
                       "the payload",
                       payload, s->name);
    return adopt_mark_check(s, err);
}

/* ---- parts of statements ---- */

/* Writes a text as a literal, safe against any content. */
static void add_literal(struct buf *b, struct str text)
{
    buf_adds(b, "CONVERT(X'");
    for (size_t i = 0; i < text.n; i++)
        buf_addf(b, "%02x", (unsigned char)text.p[i]);
    buf_adds(b, "' USING utf8mb4)");
}

static bool is_bytes(const struct source *s, const char *column)
{
    return adopt_mariadb_kind(s, column) == ADOPT_KIND_BYTES;
}

/* Appends the value of a column as text. */
static void add_value(struct buf *b, const struct source *s, const char *r, const char *column)
{
    bool bytes = is_bytes(s, column);
    buf_adds(b, bytes ? "LOWER(HEX(" : "CAST(");
    adopt_column(b, s, r, column);
    buf_adds(b, bytes ? "))" : " AS CHAR CHARACTER SET utf8mb4)");
}

static void add_open(struct buf *b, const struct source *s, const char *r, const char *column)
{
    bool text = adopt_mariadb_kind(s, column) == ADOPT_KIND_TEXT || is_bytes(s, column);
    buf_addc(b, '(');
    adopt_column(b, s, r, column);
    buf_adds(b, " IS NULL OR ");
    adopt_column(b, s, r, column);
    buf_adds(b, text ? " IN ('', '0'))" : " = 0)");
}

/* Appends the payload as JSON, or the time in ms. */
static void add_part(struct buf *b, const struct source *s, const char *r, struct str part)
{
    const char *at = s->of[F_CREATED], *payload = s->of[F_PAYLOAD];
    bool time = at && adopt_mariadb_kind(s, at) == ADOPT_KIND_TIME;
    if (str_is(part, "json") && is_bytes(s, payload)) {
        buf_adds(b, "outbox_row_bytes(");
        adopt_column(b, s, r, payload);
        buf_adds(b, ")");
    } else if (str_is(part, "json")) {
        adopt_write(b, s, r, "outbox_row_payload({payload})");
    } else if (str_is(part, "time") && !at) {
        buf_adds(b, "outbox_row_time(NULL)");
    } else if (str_is(part, "time")) {
        buf_adds(b, time ? "outbox_row_time(UNIX_TIMESTAMP(" : "outbox_row_time(LEAST(1e15, (");
        adopt_column(b, s, r, at);
        buf_adds(b, time ? "))" : ")))");
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

/* Notes which row an event came from: NOTE, its number, NOTED, the number's source, NOTE_END. The
 * number may have a note already, if outbox_event was truncated. */
#define NOTE "INSERT INTO outbox_adopted_row (nr, source, value) SELECT "
#define NOTED ", {source}, {id} FROM "
#define NOTE_END "{key} IS NOT NULL ON DUPLICATE KEY UPDATE value = VALUES(value), had = 0; "

/* The trigger turns a new row into an event. An id that is a UUID becomes the event's id, unless an
 * event has it already; otherwise the table's default supplies one. VALUES, because SELECT would
 * lock the numbers of outbox_event. */
static int make_trigger(const struct source *s, bool marked, struct error *err)
{
    struct buf b;
    buf_init(&b, ADOPT_STATEMENT_MAX);
    adopt_write(&b, s, "NEW",
                BRIEFLY "CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table} FOR EACH ROW "
                        "BEGIN IF {open} AND (SELECT a.active FROM outbox_adopted a "
                        "WHERE a.source = {source} LOCK IN SHARE MODE) THEN "
                        "IF " ROW_UUID " IS NULL THEN "
                        "INSERT INTO outbox_event (" COPIED ") VALUES (" COPIED_VALUES "); ");
    if (marked)
        adopt_write(&b, s, "NEW", NOTE "LAST_INSERT_ID()" NOTED "DUAL WHERE " NOTE_END);
    adopt_write(&b, s, "NEW",
                "ELSE BEGIN DECLARE CONTINUE HANDLER FOR 1062 BEGIN END; "
                "INSERT INTO outbox_event (id, " COPIED ") VALUES (" ROW_UUID ", " COPIED_VALUES
                "); "
                "END; ");
    if (marked)
        adopt_write(&b, s, "NEW",
                    NOTE "e.nr" NOTED "outbox_event e WHERE e.id = " ROW_UUID " AND " NOTE_END);
    buf_adds(&b, "END IF; END IF; END");
    return adopt_finish(s, &b, err);
}

/* ---- existing rows ---- */

/* Appends the order in which the rows seem to have been written. */
static void add_order(struct buf *b, const struct source *s)
{
    const char *id = s->of[F_ID], *at = s->of[F_CREATED];
    bool counted = id && adopt_mariadb_kind(s, id) == ADOPT_KIND_NUMBER;
    const char *between = " ORDER BY ";
    if (at && !counted) {
        buf_adds(b, between);
        adopt_column(b, s, "s", at);
        between = ", ";
    }
    if (id) {
        buf_adds(b, between);
        adopt_column(b, s, "s", id);
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
    buf_init(&b, ADOPT_STATEMENT_MAX);
    adopt_write(&b, s, "s",
                "CREATE OR REPLACE TEMPORARY TABLE " COPYING
                " (PRIMARY KEY (k), event_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin, "
                "UNIQUE (event_id)) ENGINE = InnoDB AS SELECT {key} AS k, COALESCE(" ROW_UUID ", ");
    buf_adds(&b, id_default);
    adopt_write(&b, s, "s",
                ") AS event_id FROM {table} s WHERE " NEW_ROWS " AND {key} IS NOT NULL");
    return adopt_finish(s, &b, err);
}

/* Notes which row each event with a chosen id came from. */
static int note_copied(const struct source *s, struct error *err)
{
    struct buf b;
    buf_init(&b, ADOPT_STATEMENT_MAX);
    adopt_write(&b, s, "c", NOTE "e.nr, {source}, ");
    buf_adds(&b, is_bytes(s, s->of[F_ID]) ? "LOWER(HEX(c.k))"
                                          : "CAST(c.k AS CHAR CHARACTER SET utf8mb4)");
    buf_adds(&b, " FROM " COPYING " c JOIN outbox_event e ON e.id = c.event_id "
                 "ON DUPLICATE KEY UPDATE value = VALUES(value), had = 0");
    if (adopt_finish(s, &b, err) != 0)
        return -1;
    return mdb_exec(s->st, "DROP TEMPORARY TABLE " COPYING, err);
}

/* Turns each unprocessed row into an event. A DATETIME is taken to be in the server's time zone. */
static int copy(const struct source *s, bool marked, const char *id_default, int64_t *ret,
                struct error *err)
{
    struct buf b;
    buf_init(&b, ADOPT_STATEMENT_MAX);
    buf_adds(&b, "SET STATEMENT time_zone = @@global.time_zone FOR "
                 "INSERT INTO outbox_event (id, " COPIED ") SELECT COALESCE(");
    adopt_write(&b, s, "s", marked ? "c.event_id, " ROW_UUID ", " : ROW_UUID ", ");
    buf_adds(&b, id_default);
    adopt_write(&b, s, "s", "), " COPIED_VALUES " FROM {table} s");
    if (marked)
        adopt_write(&b, s, "s", " LEFT JOIN " COPYING " c ON c.k = {key}");
    adopt_write(&b, s, "s", " WHERE " NEW_ROWS);
    add_order(&b, s);
    if (adopt_finish(s, &b, err) != 0)
        return -1;
    *ret = mdb_of(s->st)->changed;
    return 0;
}

static int copy_rows(const struct source *s, bool marked, int64_t *ret, struct error *err)
{
    struct buf id_default;
    buf_init(&id_default, ADOPT_STATEMENT_MAX);
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

/* Begins or ends the adoption; `copies`: existing rows become events too. It waits for sessions
 * that have inserted into the table, and those about to insert wait: the rows read afterwards are
 * exactly those that the trigger has not seen. */
static int switch_over(const struct source *s, bool active, bool copies, int64_t *ret_copied,
                       struct error *err)
{
    int64_t ignored = 0;
    if (db_begin(s->st, err) != 0)
        return -1;
    int r = db_value(s->st, err, &ignored, SQL(lock_adopted, .source = s->name));
    if (r == 0)
        r = adopt_forget_mark(s->st, s->name, err);
    if (r == 0 && copies)
        r = copy_rows(s, s->req->mark != NULL, ret_copied, err);
    if (r == 0 && active && s->req->mark)
        r = adopt_mark_put(s, err);
    if (r == 0)
        r = db_run(s->st, err,
                   SQL(set_adopted, .source = s->name, .active = active, .now = db_now(s->st)));
    return db_end(s->st, r, err);
}

/* Changes the columns for new rows, or how rows are marked. The trigger is replaced first: what it
 * notes for a mark that is not recorded yet does no harm. */
static int change_adoption(const struct source *s, struct error *err)
{
    bool marked;
    if (adopt_is_marked(s, &marked, err) != 0)
        return -1;
    if (make_trigger(s, marked || s->req->mark, err) != 0)
        return -1;
    if (db_begin(s->st, err) != 0)
        return -1;
    int r = 0;
    if (s->req->mark)
        r = adopt_mark_put(s, err);
    if (r == 0)
        r = db_run(s->st, err, SQL(set_mapping, .source = s->name, .mapping = s->mapping.p));
    return db_end(s->st, r, err);
}

/* ---- the driver ---- */

static int take_rows(const struct source *s, const struct adopted *was, bool copies,
                     struct adopt_result *ret, struct error *err)
{
    if (was->there)
        return change_adoption(s, err);
    if (db_run(s->st, err, SQL(prepare_adopted, .source = s->name, .mapping = s->mapping.p)) != 0)
        return -1;
    if (make_trigger(s, s->req->mark != NULL, err) != 0)
        return -1;
    return switch_over(s, true, copies, &ret->copied, err);
}

/* If interrupted, the table still counts as marked, so that this can be repeated. */
static int drop_mark(const struct source *s, struct error *err)
{
    if (db_run(s->st, err, SQL(end_mark, .source = s->name)) != 0)
        return -1;
    if (make_trigger(s, false, err) != 0)
        return -1;
    return adopt_forget_mark(s->st, s->name, err);
}

/* Always drops the trigger: an interrupted adoption may have left it. */
static int undo_adoption(const struct source *s, bool there, struct error *err)
{
    int64_t ignored = 0;
    if (there && switch_over(s, false, false, &ignored, err) != 0)
        return -1;
    return adopt_drop(s, err);
}

const struct adopt_driver adopt_mariadb = {
    .trigger_max = 64,
    .drop = BRIEFLY "DROP TRIGGER IF EXISTS {trigger}",
    .query = mdb_start,
    .name = mdb_add_name,
    .literal = add_literal,
    .value = add_value,
    .open = add_open,
    .part = add_part,
    .check = check_table,
    .adopt = take_rows,
    .drop_mark = drop_mark,
    .undo = undo_adoption,
};

/* ---- triggers without a definer ---- */

/* Recreates a trigger. The other columns of lost_adopted are the columns of the fields. */
static int renew(struct source *s, const struct db_rows *q, struct error *err)
{
    bool ok = true, marked;
    if (adopt_source_find(s, err) != 0)
        return -1;
    for (int f = 0; f < FIELDS; f++) {
        s->of[f] = db_copy(q, 1 + f, &s->a, &ok).p;
        if (!ok)
            return err_nomem(err);
        bool column = s->of[f] && !adopt_source_literal(s->of[f]);
        if (column && adopt_source_column(s, s->of[f]) < 0)
            return err_set(err, ERR_NOTFOUND, "the table no longer has a column %.100s", s->of[f]);
    }
    if (adopt_is_marked(s, &marked, err) != 0)
        return -1;
    return make_trigger(s, marked, err);
}

int adopt_mariadb_renew(struct mdb_store *st, struct error *err)
{
    struct db_rows q = db_rows(&st->base.store, NULL,
                               SQL(lost_adopted, .schema = st->url.database));
    int r = 0;
    while (r == 0 && db_step(&q, NULL) == 1) {
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
