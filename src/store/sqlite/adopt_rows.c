/* adopt_rows.c: turning rows into events: the trigger for rows to come, and a copy of the existing
 * ones. The statements name the application's table and columns, so they are put together here. */
#include <string.h>

#include "store/sqlite/adopt.h"
#include "store_sql.h"

/* ---- running what was put together ---- */

sqlite3_stmt *sqlite_adopt_prepare(struct sqlite_store *st, sqlite3_str *q, struct error *err)
{
    sqlite3_stmt *stmt = NULL;
    char *sql = sqlite3_str_finish(q);
    if (!sql) {
        err_nomem(err);
        return NULL;
    }
    int rc = sqlite3_prepare_v2(st->db, sql, -1, &stmt, NULL);
    sqlite3_free(sql);
    if (rc != SQLITE_OK)
        sqlite_fail(st, st->db, rc, err);
    return stmt;
}

/* run runs the statement in q, which it frees. */
static int run(struct sqlite_store *st, sqlite3_str *q, struct error *err)
{
    char *sql = sqlite3_str_finish(q);
    if (!sql)
        return err_nomem(err);
    int r = sqlite_script(st, sql, err);
    sqlite3_free(sql);
    return r;
}

/* ---- how a row becomes an event ---- */

/* add_value appends what a field is in row r, which is NEW or s. */
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

void sqlite_adopt_add_open(sqlite3_str *q, const char *column, const char *r)
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

/* A GLOB for text with a control character or white space of Unicode in it, as bytes. */
#define HAS_SPACE \
    "CAST(x'2a5b012d207f2dc2a0e19a80e280802de2808ae280a8e280a9e280afe2819fe380805d2a' AS TEXT)"

/* What an event is made of, from the columns below: the usual types are made to fit, and text that
 * is no JSON becomes a JSON string. uuid is NULL if the row's id is none; key is the row's own id.
 * A Julian day has no whole milliseconds, so a time is rounded. */
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

/* The columns of event_of_row in their place: `from` has them by the names of their fields. A type
 * that is too long is cut, by bytes where it is ASCII. */
static const char cut_type[] =
    "FROM (SELECT *, CASE WHEN length(CAST(type AS BLOB)) <= 255 THEN type"
    " WHEN type NOT GLOB '*[^!-~]*' THEN substr(type, 1, 255)"
    " ELSE substr(type, 1, 63) END AS cut ";

/* add_row appends a query for what an event is made of, for row r. `from` says where r comes from;
 * it is empty in a trigger. */
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

/* add_trigger appends the trigger. An id that is a UUID becomes the event's, unless one has it
 * already; otherwise the table gives the event one. */
static void add_trigger(sqlite3_str *q, const struct source *s, bool marked)
{
    sqlite3_str_appendf(q, "CREATE TRIGGER \"" ADOPT_TRIGGER "%w\" AFTER INSERT ON \"%w\" WHEN ",
                        s->name, s->name);
    sqlite_adopt_add_open(q, s->of[F_PROCESSED], "NEW");

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

int sqlite_adopt_untrigger(const struct source *s, struct error *err)
{
    sqlite3_str *q = sqlite3_str_new(sqlite_of(s->st)->db);
    sqlite3_str_appendf(q, "DROP TRIGGER IF EXISTS main.\"" ADOPT_TRIGGER "%w\"", s->name);
    return run(sqlite_of(s->st), q, err);
}

int sqlite_adopt_trigger(const struct source *s, bool marked, struct error *err)
{
    if (sqlite_adopt_untrigger(s, err) != 0)
        return -1;
    sqlite3_str *q = sqlite3_str_new(sqlite_of(s->st)->db);
    add_trigger(q, s, marked);
    return run(sqlite_of(s->st), q, err);
}

/* ---- rows there are ---- */

/* has_rowid says whether the table can be sorted by its rowid. */
static int has_rowid(const struct source *s, bool *ret, struct error *err)
{
    int64_t without = 0;
    if (db_value(s->st, err, &without, SQL(without_rowid, .source = s->name)) != 0)
        return -1;
    *ret = !without;
    return 0;
}

/* add_from appends where the rows come from, in the order in which they seem to have been
 * written. */
static void add_from(sqlite3_str *q, const struct source *s, bool rowid)
{
    int id = s->of[F_ID] ? db_source_column(s, s->of[F_ID]) : -1;
    bool counted = id >= 0 && strcasestr(s->type[id], "INT");
    sqlite3_str_appendf(q, " FROM main.\"%w\" AS s WHERE ", s->name);
    sqlite_adopt_add_open(q, s->of[F_PROCESSED], "s");

    const char *between = " ORDER BY ";
    const char *first = counted ? s->of[F_ID] : s->of[F_CREATED];
    if (first) {
        sqlite3_str_appendf(q, "%ss.\"%w\"", between, first);
        between = ", ";
    }
    if (rowid && !counted)
        sqlite3_str_appendf(q, "%ss.rowid", between);
}

int sqlite_adopt_count(const struct source *s, int64_t *ret, struct error *err)
{
    bool rowid;
    if (has_rowid(s, &rowid, err) != 0)
        return -1;
    sqlite3_str *q = sqlite3_str_new(sqlite_of(s->st)->db);
    sqlite3_str_appendall(q, "SELECT count(*)");
    add_from(q, s, rowid);
    sqlite3_stmt *stmt = sqlite_adopt_prepare(sqlite_of(s->st), q, err);
    if (!stmt)
        return -1;
    int rc = sqlite3_step(stmt);
    *ret = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return rc == SQLITE_ROW ? 0 : sqlite_fail(sqlite_of(s->st), sqlite_of(s->st)->db, rc, err);
}

/* The columns of event_of_row. */
enum { UUID, TYPE, PAYLOAD, CREATED_AT, HEADERS, AGGREGATE_TYPE, AGGREGATE_ID, TENANT, KEY };

/* copy_row makes an event of the row that q is at, unless there is one with its id. */
static int copy_row(const struct source *s, sqlite3_stmt *q, bool *ret_made, struct error *err)
{
    struct str uuid = sqlite_text(q, UUID);
    struct sql_copy_row_as row = {
        .id = uuid,
        .type = sqlite_text(q, TYPE),
        .payload = sqlite_text(q, PAYLOAD),
        .created_at = sqlite3_column_int64(q, CREATED_AT),
        .headers = sqlite_text(q, HEADERS),
        .aggregate_type = sqlite_text(q, AGGREGATE_TYPE),
        .aggregate_id = sqlite_text(q, AGGREGATE_ID),
        .tenant = sqlite_text(q, TENANT),
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

/* note_row remembers which row the last event was made of. */
static int note_row(const struct source *s, sqlite3_stmt *row, struct error *err)
{
    struct db_rows q = db_rows(s->st, err, SQL(note_row, .source = s->name));
    if (!q.at)
        return -1;
    int at = sqlite3_bind_parameter_index(q.at, ":row");
    sqlite3_bind_value(q.at, at, sqlite3_column_value(row, KEY));
    return db_step(&q, err) < 0 ? -1 : 0;
}

/* copy_one copies the row that q is at, and notes which it was if it is to be marked. */
static int copy_one(const struct source *s, sqlite3_stmt *q, bool marked, int64_t *ret,
                    struct error *err)
{
    bool made;
    if (copy_row(s, q, &made, err) != 0)
        return -1;
    if (!made)
        return 0;
    ++*ret;
    bool noted = marked && sqlite3_column_type(q, KEY) != SQLITE_NULL;
    return noted ? note_row(s, q, err) : 0;
}

/* select_rows prepares the query for all rows that are not processed. */
static sqlite3_stmt *select_rows(const struct source *s, struct error *err)
{
    bool rowid;
    if (has_rowid(s, &rowid, err) != 0)
        return NULL;
    sqlite3_str *text = sqlite3_str_new(sqlite_of(s->st)->db),
                *tail = sqlite3_str_new(sqlite_of(s->st)->db);
    add_from(tail, s, rowid);
    char *from = sqlite3_str_finish(tail);
    add_row(text, s, "s", from ? from : "");
    sqlite3_free(from);
    return sqlite_adopt_prepare(sqlite_of(s->st), text, err);
}

int sqlite_adopt_copy(const struct source *s, bool marked, int64_t *ret, struct error *err)
{
    sqlite3_stmt *q = select_rows(s, err);
    if (!q)
        return -1;
    int rc, r = 0;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        r = copy_one(s, q, marked, ret, err);
        if (r != 0)
            break;
    }
    if (r == 0 && rc != SQLITE_DONE)
        r = sqlite_fail(sqlite_of(s->st), sqlite_of(s->st)->db, rc, err);
    sqlite3_finalize(q);
    return r;
}
