/* adopt.c: turning rows of an application's table into events: the trigger for new rows, a copy of
 * the existing ones, and marking rows once a consumer has received them. The statements name the
 * application's table and columns, so they are built here. Everything runs inside a transaction. */
#include "store/db/adopt.h"

#include <stdio.h>
#include <string.h>

#include "store/sqlite/sqlite.h"
#include "store_sql.h"

#define TRIGGER "outbox_adopted_" /* and the table's name */
#define NOW_MS "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
#define IDS_MAX ((size_t)1 << 24) /* bytes of the ids that one settlement marks */

/* ---- running built statements ---- */

/* Starts the statement in q, which it frees. */
static struct db_rows rows_of(struct store *base, sqlite3_str *q, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    sqlite3_stmt *stmt = NULL;
    char *sql = sqlite3_str_finish(q);
    int rc = SQLITE_NOMEM;
    if (sql)
        rc = sqlite3_prepare_v2(st->db, sql, -1, &stmt, NULL);
    sqlite3_free(sql);
    if (rc != SQLITE_OK)
        sqlite_fail(st, st->db, rc, err);
    return (struct db_rows){.st = base, .at = stmt, .foreign = true};
}

/* Runs the statement in q, which it frees. */
static int run(struct store *st, sqlite3_str *q, struct error *err)
{
    struct db_rows rows = rows_of(st, q, err);
    return db_step(&rows, err);
}

/* Begins a statement. */
static sqlite3_str *text_new(const struct source *s)
{
    return sqlite3_str_new(sqlite_of(s->st)->db);
}

/* ---- how a row becomes an event ---- */

/* Appends the value of a field in row r, which is NEW or s. */
static void add_value(sqlite3_str *q, const struct source *s, enum field f, const char *r)
{
    const char *of = s->of[f];
    if (!of)
        sqlite3_str_appendall(q, "NULL");
    else if (db_source_literal(of))
        sqlite3_str_appendf(q, "'%.*q'", (int)strlen(of) - 2, of + 1);
    else
        sqlite3_str_appendf(q, "%s.\"%w\"", r, of);
}

/* Appends the condition that row r is unprocessed; `column` is its flag, a time or a boolean, or
 * NULL: no row is ever processed. */
static void add_open(sqlite3_str *q, const char *column, const char *r)
{
    if (!column)
        sqlite3_str_appendall(q, "1");
    else
        sqlite3_str_appendf(q, "(%s.\"%w\" IS NULL OR %s.\"%w\" = 0)", r, column, r, column);
}

#define HEX4 "[0-9a-f][0-9a-f][0-9a-f][0-9a-f]"
#define IS_UUID \
    "typeof(id) = 'text' AND length(id) = 36 AND lower(id) GLOB '" HEX4 HEX4 "-" HEX4 "-" HEX4 \
    "-" HEX4 "-" HEX4 HEX4 HEX4 "'"

/* A GLOB that matches text with a control character or Unicode white space, as bytes. */
#define HAS_SPACE \
    "CAST(x'2a5b012d207f2dc2a0e19a80e280802de2808ae280a8e280a9e280afe2819fe380805d2a' AS TEXT)"

/* The values of an event, from the columns below: the usual types are converted, and text that is
 * not JSON becomes a JSON string. uuid is NULL if the row's id is not one; key is the row's id. A
 * Julian day is not a whole number of milliseconds, so it is rounded. */
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

    "CASE WHEN aggregate_id IS NOT NULL THEN CAST(aggregate_type AS TEXT) END AS aggregate_type, "
    "CASE WHEN aggregate_type IS NOT NULL THEN CAST(aggregate_id AS TEXT) END AS aggregate_id, "
    "CAST(tenant AS TEXT) AS tenant, "
    "id AS key ";

/* The source of event_of_row's columns, which `from` provides under the names of their fields. A
 * type that is too long is cut, by bytes if it is ASCII. */
static const char cut_type[] =
    "FROM (SELECT *, CASE WHEN length(CAST(type AS BLOB)) <= 255 THEN type"
    " WHEN type NOT GLOB '*[^!-~]*' THEN substr(type, 1, 255)"
    " ELSE substr(type, 1, 63) END AS cut ";

/* Appends a query for the values of an event of row r. `from` is the source of r; it is empty in a
 * trigger. */
static void add_row(sqlite3_str *q, const struct source *s, const char *r, const char *from)
{
    static const enum field rest[] = {F_ID, F_CREATED, F_AGG_TYPE, F_AGG_ID, F_TENANT};
    sqlite3_str_appendall(q, event_of_row);
    sqlite3_str_appendall(q, cut_type);

    sqlite3_str_appendall(q, "FROM (SELECT replace(replace(replace(replace(CAST(");
    add_value(q, s, F_TYPE, r);
    sqlite3_str_appendall(
        q, " AS TEXT), ' ', '_'), char(9), '_'), char(10), '_'), char(13), '_') AS type");
    sqlite3_str_appendall(q, ", CAST(");
    add_value(q, s, F_PAYLOAD, r);
    sqlite3_str_appendall(q, " AS TEXT) AS payload");
    for (size_t i = 0; i < sizeof(rest) / sizeof(*rest); i++) {
        sqlite3_str_appendall(q, ", ");
        add_value(q, s, rest[i], r);
        sqlite3_str_appendf(q, " AS %s", db_source_fields[rest[i]]);
    }
    sqlite3_str_appendf(q, "%s))", from);
}

/* ---- the trigger ---- */

/* Appends the trigger. An id that is a UUID becomes the event's id, unless an event has it already;
 * otherwise the table's default supplies one. */
static void add_trigger(sqlite3_str *q, const struct source *s, bool marked)
{
    sqlite3_str_appendf(q, "CREATE TRIGGER \"" TRIGGER "%w\" AFTER INSERT ON \"%w\" WHEN ", s->name,
                        s->name);
    add_open(q, s->of[F_PROCESSED], "NEW");

    sqlite3_str_appendall(q, " BEGIN\n    INSERT INTO outbox_event (id, " SQL_COPIED_COLUMNS
                             ") SELECT uuid, " SQL_COPIED_COLUMNS " FROM (");
    add_row(q, s, "NEW", "");
    sqlite3_str_appendall(q, ") n WHERE uuid IS NOT NULL"
                             " AND NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.id = n.uuid);"
                             "\n    INSERT INTO outbox_event (" SQL_COPIED_COLUMNS
                             ") SELECT " SQL_COPIED_COLUMNS " FROM (");
    add_row(q, s, "NEW", "");
    sqlite3_str_appendall(q, ") WHERE uuid IS NULL;\n");

    if (marked) {
        sqlite3_str_appendf(
            q,
            "    INSERT OR IGNORE INTO outbox_adopted_row (event_id, source, row) SELECT "
            "coalesce(uuid, (SELECT e.id FROM outbox_event e WHERE e.seq = last_insert_rowid())), "
            "%Q, key FROM (",
            s->name);
        add_row(q, s, "NEW", "");
        sqlite3_str_appendall(q, ") WHERE key IS NOT NULL;\n");
    }
    sqlite3_str_appendall(q, "END;");
}

static int drop_trigger(const struct source *s, struct error *err)
{
    sqlite3_str *q = text_new(s);
    sqlite3_str_appendf(q, "DROP TRIGGER IF EXISTS main.\"" TRIGGER "%w\"", s->name);
    return run(s->st, q, err);
}

/* Creates the trigger by the current record. If rows are marked, it also notes which row became
 * which event. */
static int make_trigger(const struct source *s, struct error *err)
{
    bool marked;
    if (db_adopt_is_marked(s, &marked, err) != 0)
        return -1;
    if (drop_trigger(s, err) != 0)
        return -1;
    sqlite3_str *q = text_new(s);
    add_trigger(q, s, marked);
    return run(s->st, q, err);
}

/* ---- existing rows ---- */

/* Appends the source of the rows, in the order in which they seem to have been written. */
static void add_from(sqlite3_str *q, const struct source *s, bool rowid)
{
    int id = s->of[F_ID] ? db_source_column(s, s->of[F_ID]) : -1;
    bool counted = id >= 0 && strcasestr(s->type[id], "INT");
    sqlite3_str_appendf(q, " FROM main.\"%w\" AS s WHERE ", s->name);
    add_open(q, s->of[F_PROCESSED], "s");

    const char *between = " ORDER BY ";
    const char *first = counted ? s->of[F_ID] : s->of[F_CREATED];
    if (first) {
        sqlite3_str_appendf(q, "%ss.\"%w\"", between, first);
        between = ", ";
    }
    if (rowid && !counted)
        sqlite3_str_appendf(q, "%ss.rowid", between);
}

static int count_rows(const struct source *s, int64_t *ret, struct error *err)
{
    sqlite3_str *q = text_new(s);
    sqlite3_str_appendf(q, "SELECT count(*) FROM main.\"%w\" AS s WHERE ", s->name);
    add_open(q, s->of[F_PROCESSED], "s");
    struct db_rows rows = rows_of(s->st, q, err);
    if (db_step(&rows, err) != 1)
        return -1;
    *ret = db_int(&rows, 0);
    db_done(&rows);
    return 0;
}

/* The columns of event_of_row. */
enum { UUID, TYPE, PAYLOAD, CREATED_AT, HEADERS, AGGREGATE_TYPE, AGGREGATE_ID, TENANT, KEY };

/* Turns q's current row into an event, unless an event with its id exists. */
static int copy_row(const struct source *s, const struct db_rows *q, bool *ret_made,
                    struct error *err)
{
    struct str uuid = db_text(q, UUID);
    struct sql_copy_row_as row = {
        .id = uuid,
        .type = db_text(q, TYPE),
        .payload = db_text(q, PAYLOAD),
        .created_at = db_int(q, CREATED_AT),
        .headers = db_text(q, HEADERS),
        .aggregate_type = db_text(q, AGGREGATE_TYPE),
        .aggregate_id = db_text(q, AGGREGATE_ID),
        .tenant = db_text(q, TENANT),
    };
    *ret_made = true;
    if (!uuid.p)
        return db_run(s->st, err,
                      SQL(copy_row, .type = row.type, .payload = row.payload,
                          .created_at = row.created_at, .headers = row.headers,
                          .aggregate_type = row.aggregate_type, .aggregate_id = row.aggregate_id,
                          .tenant = row.tenant));

    int64_t known = 0;
    if (db_value(s->st, err, &known, SQL(event_known, .id = uuid)) != 0)
        return -1;
    *ret_made = !known;
    if (known)
        return 0;
    return db_run(s->st, err, &sql_copy_row_as, &row);
}

/* Notes which row became the last event. */
static int note_row(const struct source *s, const struct db_rows *row, struct error *err)
{
    struct db_rows q = db_rows(s->st, err, SQL(note_row, .source = s->name));
    if (!q.at)
        return -1;
    int at = sqlite3_bind_parameter_index(q.at, ":row");
    sqlite3_bind_value(q.at, at, sqlite3_column_value(row->at, KEY));
    return db_step(&q, err) < 0 ? -1 : 0;
}

/* Turns the unprocessed rows into events, and notes the rows if they will be marked. */
static int copy_rows(const struct source *s, bool marked, int64_t *ret, struct error *err)
{
    int64_t without_rowid = 0;
    if (db_value(s->st, err, &without_rowid, SQL(without_rowid, .source = s->name)) != 0)
        return -1;
    sqlite3_str *text = text_new(s), *tail = text_new(s);
    add_from(tail, s, !without_rowid);
    char *from = sqlite3_str_finish(tail);
    add_row(text, s, "s", from ? from : "");
    sqlite3_free(from);

    struct db_rows q = rows_of(s->st, text, err);
    int r;
    while ((r = db_step(&q, err)) == 1) {
        bool made = false;
        r = copy_row(s, &q, &made, err);
        if (r == 0 && made && marked && !db_null(&q, KEY))
            r = note_row(s, &q, err);
        if (r != 0)
            break;
        if (made)
            ++*ret;
    }
    db_done(&q);
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
    const char *type = s->type[db_source_column(s, column)];
    enum stamp stamp = STAMP_TIME;
    if (strcasestr(type, "BOOL"))
        stamp = STAMP_TRUE;
    else if (strcasestr(type, "INT"))
        stamp = STAMP_SECONDS;

    sqlite3_str *q = text_new(s);
    sqlite3_str_appendf(q,
                        "SELECT CASE typeof(x)"
                        " WHEN 'text' THEN CASE WHEN x LIKE '%%T%%' THEN %d ELSE %d END"
                        " WHEN 'integer' THEN CASE WHEN x = 1 THEN %d"
                        " WHEN x > 100000000000 THEN %d ELSE %d END"
                        " WHEN 'real' THEN CASE WHEN x < 10000000 THEN %d ELSE %d END"
                        " ELSE %d END"
                        " FROM (SELECT s.\"%w\" AS x FROM main.\"%w\" AS s WHERE NOT ",
                        STAMP_RFC3339, STAMP_TIME, STAMP_TRUE, STAMP_MS, STAMP_SECONDS,
                        STAMP_JULIAN, STAMP_SECONDS, stamp, column, s->name);
    add_open(q, column, "s");
    sqlite3_str_appendall(q, " LIMIT 1)");

    struct db_rows rows = rows_of(s->st, q, err);
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
    const char *source = db_text(table, 0).p, *mark = db_text(table, 1).p;
    const char *key = db_text(table, 2).p, *stamp = db_text(table, 3).p;
    sqlite3_str *q = sqlite3_str_new(sqlite_of(st)->db);
    sqlite3_str_appendf(q,
                        "UPDATE main.\"%w\" AS s SET \"%w\" = %s"
                        " WHERE s.\"%w\" IN (SELECT a.row FROM outbox_adopted_row a"
                        " WHERE a.source = %Q"
                        " AND a.event_id IN (SELECT value FROM json_each(?1)))"
                        " AND ",
                        source, mark, stamp, key, source);
    add_open(q, mark, "s");
    struct db_rows rows = rows_of(st, q, err);
    if (rows.at)
        sqlite3_bind_text(rows.at, 1, ids, -1, SQLITE_STATIC);
    if (db_step(&rows, err) != 0)
        return err_prefix(err,
                          "could not mark rows of %.100s (outbox adopt --drop-mark turns marking "
                          "off)",
                          source);
    return 0;
}

int sqlite_adopt_mark(struct store *st, const char *consumer, const struct settlement *s,
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
    size_t n = db_delivered_ids(s, &ids);
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

static void trigger_name(const struct source *s, char ret[ADOPT_TRIGGER_TEXT])
{
    snprintf(ret, ADOPT_TRIGGER_TEXT, TRIGGER "%s", s->name);
}

static int adopt_table(const struct source *s, const struct adopted *was, bool copies,
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
    if (db_adopt_forget_mark(s->st, s->name, err) != 0)
        return -1;
    return make_trigger(s, err);
}

static int undo_adoption(const struct source *s, bool there, struct error *err)
{
    if (!there)
        return 0;
    if (db_adopt_forget_mark(s->st, s->name, err) != 0)
        return -1;
    return drop_trigger(s, err);
}

const struct adopt_driver sqlite_adopt_driver = {
    .one_transaction = true,
    .trigger_name = trigger_name,
    .check = db_mark_check,
    .count = count_rows,
    .adopt = adopt_table,
    .drop_mark = drop_mark,
    .undo = undo_adoption,
};
