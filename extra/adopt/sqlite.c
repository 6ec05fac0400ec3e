/* sqlite.c: turning rows of an application's table into events: the trigger for new rows, a copy of
 * the existing ones, and marking rows once a consumer has received them. The statements name the
 * application's table and columns, so they are built here. Everything runs inside a transaction. */
#include "extra/adopt/adopt.h"

#include <stdio.h>
#include <string.h>

#include "store/sqlite/sqlite.h"
#include "store_sql.h"

#define NOW_MS "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
#define IDS_MAX ((size_t)1 << 24) /* bytes of the ids that one settlement marks */

/* ---- parts of statements ---- */

static void *start(struct store *base, const char *text, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(st->db, text, -1, &q, NULL);
    if (rc != SQLITE_OK)
        sqlite_fail(st, st->db, rc, err);
    return q;
}

static void add_quoted(struct buf *b, char quote, struct str s)
{
    buf_addc(b, quote);
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == quote)
            buf_addc(b, quote);
        buf_addc(b, s.p[i]);
    }
    buf_addc(b, quote);
}

static void add_name(struct buf *b, struct str name)
{
    add_quoted(b, '"', name);
}

static void add_literal(struct buf *b, struct str text)
{
    add_quoted(b, '\'', text);
}

static void add_open(struct buf *b, const struct source *s, const char *r, const char *column)
{
    buf_addc(b, '(');
    adopt_column(b, s, r, column);
    buf_adds(b, " IS NULL OR ");
    adopt_column(b, s, r, column);
    buf_adds(b, " = 0)");
}

/* ---- how a row becomes an event ---- */

#define HEX4 "[0-9a-f][0-9a-f][0-9a-f][0-9a-f]"
#define IS_UUID \
    "typeof(id) = 'text' AND length(id) = 36 AND lower(id) GLOB '" HEX4 HEX4 "-" HEX4 "-" HEX4 \
    "-" HEX4 "-" HEX4 HEX4 HEX4 "'"

/* A GLOB that matches text with a control character or Unicode white space, as bytes. */
#define HAS_SPACE \
    "CAST(x'2a5b012d207f2dc2a0e19a80e280802de2808ae280a8e280a9e280afe2819fe380805d2a' AS TEXT)"

/* The values of an event, from the columns of the query below: the usual types are converted, text
 * that is not JSON becomes a JSON string, and a type that is too long is truncated, by bytes if it
 * is ASCII. uuid is NULL if the row's id is not one; key is the row's id. A Julian day is not a
 * whole number of milliseconds, so it is rounded. A query of existing rows continues with their
 * source, and ends with two parentheses. */
static const char event_of_row[] =
    "SELECT CASE WHEN " IS_UUID " THEN lower(id) END AS uuid, "
    "CASE WHEN cut BETWEEN '!' AND printf('%.255s', cut)"
    " AND (cut NOT GLOB '*[^!-~]*' OR cut NOT GLOB " HAS_SPACE ")"
    " THEN cut ELSE 'unknown' END AS type, "
    "CASE WHEN payload IS NULL THEN 'null'"
    " WHEN payload = printf('%.67108864s', payload) AND json_valid(payload) THEN payload"
    " ELSE json_quote(printf('%.67108864s', payload)) END AS payload, "
    "max(0, min(coalesce(CAST(round(CASE typeof(created_at)"
    " WHEN 'integer' THEN"
    " CASE WHEN created_at > 100000000000 THEN created_at ELSE created_at * 1000 END"
    " WHEN 'real' THEN"
    " CASE WHEN created_at < 10000000 THEN (created_at - 2440587.5) * 86400000"
    " ELSE created_at * 1000 END"
    " WHEN 'text' THEN (julianday(created_at) - 2440587.5) * 86400000"
    " END) AS INTEGER), " NOW_MS "), " NOW_MS ")) AS created_at, "
    "CASE WHEN id IS NULL OR " IS_UUID " AND id GLOB '??????????????7????[89abAB]*' THEN NULL"
    " WHEN " IS_UUID " THEN json_object('source_id', lower(id))"
    " ELSE json_object('source_id', printf('%.1000s',"
    " CASE typeof(id) WHEN 'blob' THEN lower(hex(id)) ELSE CAST(id AS TEXT) END))"
    " END AS headers, "
    "CASE WHEN aggregate_id IS NOT NULL THEN CAST(aggregate_type AS TEXT) END"
    " AS aggregate_type, "
    "CASE WHEN aggregate_type IS NOT NULL THEN CAST(aggregate_id AS TEXT) END AS aggregate_id, "
    "CAST(tenant AS TEXT) AS tenant, "
    "id AS key "
    "FROM (SELECT *, CASE WHEN length(CAST(type AS BLOB)) <= 255 THEN type"
    " WHEN type NOT GLOB '*[^!-~]*' THEN substr(type, 1, 255)"
    " ELSE substr(type, 1, 63) END AS cut "
    "FROM (SELECT replace(replace(replace(replace(CAST({type} AS TEXT),"
    " ' ', '_'), char(9), '_'), char(10), '_'), char(13), '_') AS type,"
    " CAST({payload} AS TEXT) AS payload, {id} AS id, {created_at} AS created_at,"
    " {aggregate_type} AS aggregate_type, {aggregate_id} AS aggregate_id, {tenant} AS tenant";

static void add_part(struct buf *b, const struct source *s, const char *r, struct str part)
{
    if (str_is(part, "event"))
        adopt_write(b, s, r, event_of_row);
}

/* ---- the trigger ---- */

#define COPIED SQL_COPIED_COLUMNS

/* Creates the trigger as now recorded. An id that is a UUID becomes the event's id, unless an event
 * has it already; otherwise the table's default supplies one. If rows are marked, it also notes
 * which row became which event. */
static int make_trigger(const struct source *s, struct error *err)
{
    bool marked;
    struct buf b;
    if (adopt_is_marked(s, &marked, err) != 0)
        return -1;
    if (adopt_drop(s, err) != 0)
        return -1;
    buf_init(&b, ADOPT_STATEMENT_MAX);
    adopt_write(&b, s, "NEW",
                "CREATE TRIGGER {trigger} AFTER INSERT ON {table} WHEN {open} BEGIN\n"
                "    INSERT INTO outbox_event (id, " COPIED ") SELECT uuid, " COPIED
                " FROM ({event}))) n WHERE uuid IS NOT NULL"
                " AND NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.id = n.uuid);\n"
                "    INSERT INTO outbox_event (" COPIED ") SELECT " COPIED " FROM ({event})))"
                " WHERE uuid IS NULL;\n");
    if (marked)
        adopt_write(&b, s, "NEW",
                    "    INSERT OR IGNORE INTO outbox_adopted_row (event_id, source, row) "
                    "SELECT coalesce(uuid, (SELECT e.id FROM outbox_event e"
                    " WHERE e.seq = last_insert_rowid())), {source}, key FROM ({event})))"
                    " WHERE key IS NOT NULL;\n");
    buf_adds(&b, "END;");
    return adopt_finish(s, &b, err);
}

/* ---- existing rows ---- */

/* Appends the order in which the rows seem to have been written. */
static void add_order(struct buf *b, const struct source *s, bool rowid)
{
    int id = s->of[F_ID] ? adopt_source_column(s, s->of[F_ID]) : -1;
    bool counted = id >= 0 && strcasestr(s->column[id].type, "INT");
    const char *first = counted ? s->of[F_ID] : s->of[F_CREATED];
    const char *between = " ORDER BY ";
    if (first) {
        buf_adds(b, between);
        adopt_column(b, s, "s", first);
        between = ", ";
    }
    if (rowid && !counted)
        buf_addf(b, "%ss.rowid", between);
}

/* The columns of event_of_row. */
enum { UUID, TYPE, PAYLOAD, CREATED_AT, HEADERS, AGGREGATE_TYPE, AGGREGATE_ID, TENANT, KEY };

/* Turns q's current row into an event, unless an event with its id exists. Notes the row if it is
 * to be marked. */
static int copy_row(const struct source *s, const struct db_rows *q, bool marked, int64_t *copied,
                    struct error *err)
{
    struct sqlite_store *st = sqlite_of(s->st);
    struct str uuid = db_text(q, UUID);
    char id[UUID_TEXT + 1];
    int64_t known = 0;
    if (uuid.p && db_value(s->st, err, &known, SQL(event_known, .id = uuid)) != 0)
        return -1;
    if (known)
        return 0;
    if (uuid.p)
        snprintf(id, sizeof id, "%s", uuid.p);
    else
        rng_uuid7(&st->uuid, db_now(s->st), (uint64_t)sqlite3_total_changes(st->db), &st->base.rng,
                  id);
    if (db_run(s->st, err,
               SQL(insert_event, .id = id, .type = db_text(q, TYPE), .payload = db_text(q, PAYLOAD),
                   .now = db_int(q, CREATED_AT), .headers = db_text(q, HEADERS),
                   .aggregate_type = db_text(q, AGGREGATE_TYPE),
                   .aggregate_id = db_text(q, AGGREGATE_ID), .tenant = db_text(q, TENANT))) != 0)
        return -1;
    ++*copied;
    if (!marked || db_null(q, KEY))
        return 0;

    struct db_rows note = db_rows(s->st, err, SQL(note_row, .id = id, .source = s->name));
    if (note.at) /* a key may have any type */
        sqlite3_bind_value(note.at, sqlite3_bind_parameter_index(note.at, ":row"),
                           sqlite3_column_value(q->at, KEY));
    return db_finish(&note, err);
}

/* Turns the unprocessed rows into events, and notes the rows if they will be marked. */
static int copy_rows(const struct source *s, bool marked, int64_t *ret, struct error *err)
{
    int64_t without_rowid = 0;
    struct buf b;
    int r;
    if (db_value(s->st, err, &without_rowid, SQL(without_rowid, .source = s->name)) != 0)
        return -1;
    buf_init(&b, ADOPT_STATEMENT_MAX);
    adopt_write(&b, s, "s", "{event} FROM main.{table} AS s WHERE {open}");
    add_order(&b, s, !without_rowid);
    buf_adds(&b, "))");
    struct db_rows q = adopt_start(s, &b, err);
    while ((r = db_step(&q, err)) == 1)
        if (copy_row(s, &q, marked, ret, err) != 0) {
            db_done(&q);
            return -1;
        }
    return r;
}

/* ---- how to mark ---- */

/* The formats of the mark of a processed row. */
enum stamp { STAMP_TIME, STAMP_RFC3339, STAMP_TRUE, STAMP_SECONDS, STAMP_MS, STAMP_JULIAN };
static const char *const stamps[] = {
    [STAMP_TIME] = "datetime('now')",
    [STAMP_RFC3339] = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
    [STAMP_TRUE] = "1",
    [STAMP_SECONDS] = "CAST(strftime('%s', 'now') AS INTEGER)",
    [STAMP_MS] = NOW_MS,
    [STAMP_JULIAN] = "julianday('now')",
};

/* Returns the SQL expression that marks a row, a string constant. It follows the example of a
 * marked row or, if there is none, the declared type of the column. */
static int mark_stamp(const struct source *s, const char *column, const char **ret,
                      struct error *err)
{
    const char *type = s->column[adopt_source_column(s, column)].type;
    enum stamp stamp = STAMP_TIME;
    if (strcasestr(type, "BOOL"))
        stamp = STAMP_TRUE;
    else if (strcasestr(type, "INT"))
        stamp = STAMP_SECONDS;

    struct source marked = *s;
    struct buf b;
    marked.of[F_PROCESSED] = column;
    buf_init(&b, ADOPT_STATEMENT_MAX);
    buf_addf(&b,
             "SELECT CASE typeof(x)"
             " WHEN 'text' THEN CASE WHEN x LIKE '%%T%%' THEN %d ELSE %d END"
             " WHEN 'integer' THEN CASE WHEN x = 1 THEN %d"
             " WHEN x > 100000000000 THEN %d ELSE %d END"
             " WHEN 'real' THEN CASE WHEN x < 10000000 THEN %d ELSE %d END"
             " ELSE %d END",
             STAMP_RFC3339, STAMP_TIME, STAMP_TRUE, STAMP_MS, STAMP_SECONDS, STAMP_JULIAN,
             STAMP_SECONDS, stamp);
    adopt_write(&b, &marked, "s",
                " FROM (SELECT {processed_at} AS x FROM main.{table} AS s WHERE NOT {open}"
                " LIMIT 1)");
    struct db_rows rows = adopt_start(s, &b, err);
    int r = db_step(&rows, err);
    if (r < 0)
        return -1;
    if (r == 1)
        stamp = (enum stamp)db_int(&rows, 0);
    db_done(&rows);
    *ret = stamps[stamp];
    return 0;
}

/* ---- marking ---- */

/* Marks the rows of one table, given by a row of marked_tables, with one UPDATE. */
static int mark_rows(struct store *st, const struct db_rows *table, const char *ids,
                     struct error *err)
{
    const struct source s = {
        .st = st,
        .name = db_text(table, 0).p,
        .of = {[F_PROCESSED] = db_text(table, 1).p, [F_ID] = db_text(table, 2).p},
    };
    struct buf b;
    buf_init(&b, ADOPT_STATEMENT_MAX);
    adopt_write(&b, &s, "s", "UPDATE main.{table} AS s SET {mark} = ");
    buf_addstr(&b, db_text(table, 3));
    adopt_write(&b, &s, "s",
                " WHERE {key} IN (SELECT a.row FROM outbox_adopted_row a"
                " WHERE a.source = {source}"
                " AND a.event_id IN (SELECT value FROM json_each(?1))) AND {open}");
    struct db_rows rows = adopt_start(&s, &b, err);
    if (rows.at)
        sqlite3_bind_text(rows.at, 1, ids, -1, SQLITE_STATIC);
    if (db_step(&rows, err) != 0)
        return err_prefix(err,
                          "could not mark rows of %.100s (`outbox adopt --drop-mark` turns "
                          "marking off)",
                          s.name);
    return 0;
}

int adopt_sqlite_mark(struct store *st, const char *consumer, const struct settlement *s,
                      struct error *err)
{
    struct db_rows q;
    if (!s)
        return 0;
    int r = db_row(st, &q, err, SQL(marked_tables, .consumer = consumer));
    if (r <= 0)
        return r;

    struct buf ids;
    buf_init(&ids, IDS_MAX);
    size_t n = adopt_delivered_ids(s, &ids);
    if (!buf_cstr(&ids))
        r = err_nomem(err);
    while (r == 1 && n > 0) {
        r = mark_rows(st, &q, ids.p, err);
        if (r == 0)
            r = db_step(&q, err);
    }
    db_done(&q);
    if (r == 0)
        r = db_run(st, err, SQL(forget_marked, .ids = ids.p));
    buf_release(&ids);
    return r < 0 ? -1 : 0;
}

/* ---- the driver ---- */

static int take_rows(const struct source *s, const struct adopted *was, bool copies,
                     struct adopt_result *ret, struct error *err)
{
    const struct adopt_request *req = s->req;
    const char *stamp = NULL;
    (void)was;
    if (req->mark && mark_stamp(s, req->mark, &stamp, err) != 0)
        return -1;
    if (db_run(s->st, err,
               SQL(put_adopted, .source = s->name, .mapping = s->mapping.p, .mark = req->mark,
                   .consumer = req->consumer, .key = s->of[F_ID], .stamp = stamp,
                   .now = db_now(s->st))) != 0)
        return -1;
    if (copies && copy_rows(s, req->mark != NULL, &ret->copied, err) != 0)
        return -1;
    return make_trigger(s, err);
}

static int drop_mark(const struct source *s, struct error *err)
{
    if (adopt_forget_mark(s->st, s->name, err) != 0)
        return -1;
    return make_trigger(s, err);
}

static int undo_adoption(const struct source *s, bool there, struct error *err)
{
    if (!there)
        return 0;
    if (adopt_forget_mark(s->st, s->name, err) != 0)
        return -1;
    return adopt_drop(s, err);
}

const struct adopt_driver adopt_sqlite = {
    .one_transaction = true,
    .trigger_max = 500,
    .drop = "DROP TRIGGER IF EXISTS main.{trigger}",
    .query = start,
    .name = add_name,
    .literal = add_literal,
    .value = adopt_column,
    .open = add_open,
    .part = add_part,
    .check = adopt_mark_allowed,
    .adopt = take_rows,
    .drop_mark = drop_mark,
    .undo = undo_adoption,
};
