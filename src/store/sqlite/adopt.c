/* adopt.c: tables of the application's own whose rows become events. A trigger makes an event of
 * each row that is inserted, in its transaction; where it is wanted, the row is marked as processed
 * when a consumer has had it, in the settlement's transaction. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "store/sqlite/sqlite.h"

#define COLUMNS_MAX 2000 /* as many as SQLite allows a table by default */
#define TRIGGER "outbox_adopted_"

enum field {
    F_ID,
    F_TYPE,
    F_PAYLOAD,
    F_CREATED,
    F_PROCESSED,
    F_AGG_TYPE,
    F_AGG_ID,
    F_TENANT,
    FIELDS
};
static const char *const field_names[FIELDS + 1] = {
    "id",           "type",           "payload",      "created_at",
    "processed_at", "aggregate_type", "aggregate_id", "tenant"};

/* How columns are usually called, and which there must be. */
static const struct shape {
    const char *name;
    const char *usual[FIELDS];
    bool needed[FIELDS];
} shapes[] = {
    {"processed_at",
     {[F_ID] = "id",
      [F_TYPE] = "event_type",
      [F_PAYLOAD] = "payload",
      [F_CREATED] = "created_at",
      [F_PROCESSED] = "processed_at"},
     {[F_TYPE] = true, [F_PAYLOAD] = true, [F_PROCESSED] = true}},
    {"debezium",
     {[F_ID] = "id",
      [F_AGG_TYPE] = "aggregatetype",
      [F_AGG_ID] = "aggregateid",
      [F_TYPE] = "type",
      [F_PAYLOAD] = "payload",
      [F_CREATED] = "created_at"},
     {[F_TYPE] = true, [F_PAYLOAD] = true, [F_AGG_TYPE] = true, [F_AGG_ID] = true}},
};

/* The table, and which of its columns is what. (1) of[f] is a column, a text in single quotes, or
 * NULL: none. */
struct source {
    struct sqlite_store *st;
    const struct adopt_request *req;
    struct arena a;
    const char *name;
    const char **column, **type; /* by their place in the table */
    size_t n;
    bool rowid;
    const char *of[FIELDS];
    struct buf mapping;
};

/* ---- statements that are put together ---- */

/* run runs the statements of q, which it frees. */
static int run(struct sqlite_store *st, sqlite3_str *q, struct error *err)
{
    char *sql = sqlite3_str_finish(q);
    if (!sql)
        return err_nomem(err);
    int rc = sqlite3_exec(st->db, sql, NULL, NULL, NULL);
    sqlite3_free(sql);
    return rc == SQLITE_OK ? 0 : sqlite_fail(st, st->db, rc, err);
}

/* prepare makes a statement of q, which it frees; NULL on failure. */
static sqlite3_stmt *prepare(struct sqlite_store *st, sqlite3_str *q, struct error *err)
{
    char *sql = sqlite3_str_finish(q);
    sqlite3_stmt *stmt = NULL;
    if (!sql) {
        err_nomem(err);
        return NULL;
    }
    int rc = sqlite3_prepare_v2(st->db, sql, -1, &stmt, NULL);
    sqlite3_free(sql);
    if (rc == SQLITE_OK)
        return stmt;
    sqlite_fail(st, st->db, rc, err);
    return NULL;
}

/* ---- the table and its columns ---- */

static bool is_ours(const char *name)
{
    static const char *const ours[] = {
        "meta",   "event",         "idempotency", "consumer", "lane",       "claim",
        "parked", "dead",          "handled",     "receipt",  "setting",    "mark",
        "ended",  "former_filter", "passed",      "adopted",  "adopted_row"};
    if (strncasecmp(name, "sqlite_", 7) == 0)
        return true;
    if (strncasecmp(name, "outbox_", 7) != 0)
        return false;
    for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
        if (strcasecmp(name + 7, ours[i]) == 0)
            return true;
    return false;
}

/* unquoted takes the quotes of "name" away, as SQL writes a name. */
static const char *unquoted(struct source *s, const char *name)
{
    size_t n = strlen(name);
    if (n < 2 || name[0] != '"' || name[n - 1] != '"')
        return name;
    char *out = arena_alloc(&s->a, n);
    if (!out)
        return name;
    size_t k = 0;
    for (size_t i = 1; i < n - 1; i++) {
        out[k++] = name[i];
        if (name[i] == '"' && name[i + 1] == '"')
            i++;
    }
    out[k] = '\0';
    return out;
}

static int find_table(struct source *s, struct error *err)
{
    const char *wanted = unquoted(s, s->req->table);
    sqlite3_stmt *q = sqlite_query(
        s->st, err,
        "SELECT name, type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' FROM main.sqlite_master "
        "WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE",
        "s", wanted);
    bool ok = true, can = false;
    if (!q)
        return -1;
    int r = sqlite_step(s->st, q, err);
    if (r < 0)
        return -1;
    if (r == 0)
        return err_set(err, ERR_NOTFOUND, "there is no table %.200s", s->req->table);
    s->name = sqlite_copy(q, 0, &s->a, &ok).p;
    can = sqlite3_column_int(q, 1);
    sqlite3_reset(q);
    if (!ok)
        return err_nomem(err);
    if (!can || is_ours(s->name))
        return err_set(err, ERR_CONFIG, "%.200s is no table that can be adopted", s->name);
    return 0;
}

static int read_columns(struct source *s, struct error *err)
{
    bool ok = true;
    int64_t without = 0;
    sqlite3_stmt *q = sqlite_query(
        s->st, err, "SELECT name, type FROM pragma_table_info(?, 'main') ORDER BY cid", "s",
        s->name);
    int r;
    s->column = arena_alloc(&s->a, COLUMNS_MAX * sizeof(*s->column));
    s->type = arena_alloc(&s->a, COLUMNS_MAX * sizeof(*s->type));
    if (!q)
        return -1;
    if (!s->column || !s->type)
        ok = false;
    while (ok && s->n < COLUMNS_MAX && (r = sqlite_step(s->st, q, err)) != 0) {
        if (r < 0)
            return -1;
        s->column[s->n] = sqlite_copy(q, 0, &s->a, &ok).p;
        s->type[s->n++] = sqlite_copy(q, 1, &s->a, &ok).p;
    }
    sqlite3_reset(q);
    if (!ok)
        return err_nomem(err);
    if (sqlite_number(s->st, err, &without,
                      "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?", "s",
                      s->name) != 0)
        return -1;
    s->rowid = !without;
    return 0;
}

/* column_of finds a column as SQLite does, whatever its case; -1: there is none. */
static int column_of(const struct source *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcasecmp(s->column[i], name) == 0)
            return (int)i;
    return -1;
}

static bool is_literal(const char *text)
{
    size_t n = strlen(text);
    return n >= 2 && text[0] == '\'' && text[n - 1] == '\'';
}

/* given is what --column says of a field; NULL: nothing, "": that there is none. */
static const char *given(const struct adopt_request *req, enum field f)
{
    size_t n = strlen(field_names[f]);
    for (size_t i = 0; i < req->n_columns; i++)
        if (strncmp(req->columns[i], field_names[f], n) == 0 && req->columns[i][n] == '=')
            return req->columns[i] + n + 1;
    return NULL;
}

static int check_given(const struct adopt_request *req, struct error *err)
{
    for (size_t i = 0; i < req->n_columns; i++) {
        const char *name = req->columns[i], *equals = strchr(name, '=');
        bool known = false;
        if (!equals)
            return err_set(err, ERR_CONFIG, "\"%s\" is not FIELD=COLUMN", name);
        for (int f = 0; f < FIELDS; f++)
            known = known || (strlen(field_names[f]) == (size_t)(equals - name) &&
                              strncmp(field_names[f], name, (size_t)(equals - name)) == 0);
        if (known)
            continue;
        return err_set(err, ERR_CONFIG,
                       "%.*s is nothing a column can be: there are id, type, aggregate_type, "
                       "aggregate_id, payload, "
                       "created_at, processed_at and tenant",
                       (int)(equals - name), name);
    }
    return 0;
}

static const struct shape *find_shape(const struct source *s, struct error *err)
{
    const char *flag = given(s->req, F_PROCESSED), *kind = given(s->req, F_AGG_TYPE);
    const char *shape = s->req->shape;
    struct buf all;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        if (strcmp(shape, shapes[i].name) == 0)
            return &shapes[i];
    if (column_of(s, flag ? flag : "processed_at") >= 0)
        return &shapes[0];
    if (column_of(s, kind ? kind : "aggregatetype") >= 0 || (kind && is_literal(kind)))
        return &shapes[1];
    if (flag && !*flag)
        return &shapes[0]; /* no row of it is processed */
    buf_init(&all, 1 << 16);
    for (size_t i = 0; i < s->n; i++)
        buf_addf(&all, "%s%s", i ? ", " : "", s->column[i]);
    err_set(err, ERR_NOTFOUND,
            "table %.100s has neither a column processed_at nor aggregatetype; its columns are "
            "%.250s; say which shape it "
            "has, and which column is what",
            s->name, buf_cstr(&all) ? all.p : "");
    buf_release(&all);
    return NULL;
}

static int take_field(struct source *s, const struct shape *shape, enum field f, struct error *err)
{
    const char *named = given(s->req, f), *name = named ? named : shape->usual[f];
    bool none = named && !*named;
    bool needed = shape->needed[f] && !(none && f == F_PROCESSED);
    if (none)
        name = NULL;
    bool text = name && is_literal(name);
    bool may_be_text = f == F_TYPE || f == F_AGG_TYPE || f == F_TENANT;
    if (text && !may_be_text)
        return err_set(err, ERR_CONFIG,
                       "%s: a text in single quotes is for type, aggregate_type or tenant", name);
    if (text) {
        s->of[f] = name;
        return 0;
    }
    int at = name ? column_of(s, name) : -1;
    if (at >= 0) {
        s->of[f] = s->column[at];
        return 0;
    }
    if (!name && needed)
        return err_set(err, ERR_NOTFOUND, "%s has to be said", field_names[f]);
    if (name && (needed || named))
        return err_set(err, ERR_NOTFOUND,
                       "table %.100s has no column %.100s, which would be the %s", s->name, name,
                       field_names[f]);
    return 0;
}

static void write_mapping(struct source *s)
{
    bool any = false;
    buf_addc(&s->mapping, '{');
    for (int f = 0; f < FIELDS; f++) {
        if (!s->of[f])
            continue;
        if (any)
            buf_addc(&s->mapping, ',');
        json_quote(&s->mapping, str_of(field_names[f]));
        buf_addc(&s->mapping, ':');
        json_quote(&s->mapping, str_of(s->of[f]));
        any = true;
    }
    buf_addc(&s->mapping, '}');
}

static int map_columns(struct source *s, struct error *err)
{
    if (check_given(s->req, err) != 0)
        return -1;
    const struct shape *shape = find_shape(s, err);
    if (!shape)
        return -1;
    for (int f = 0; f < FIELDS; f++)
        if (take_field(s, shape, (enum field)f, err) != 0)
            return -1;
    if (!s->of[F_AGG_TYPE] != !s->of[F_AGG_ID])
        return err_set(err, ERR_NOTFOUND, "%s has to be said",
                       s->of[F_AGG_ID] ? "aggregate_type" : "aggregate_id");
    write_mapping(s);
    return buf_cstr(&s->mapping) ? 0 : err_nomem(err);
}

/* ---- how a row becomes an event ---- */

/* add_value appends what a field is of row r: NEW, or s. */
static void add_value(sqlite3_str *q, const struct source *s, enum field f, const char *r)
{
    const char *of = s->of[f];
    if (!of)
        sqlite3_str_appendall(q, "NULL");
    else if (is_literal(of))
        sqlite3_str_appendf(q, "'%.*q'", (int)strlen(of) - 2, of + 1);
    else
        sqlite3_str_appendf(q, "%s.\"%w\"", r, of);
}

/* add_open appends the condition that a row is not processed. A flag may be a time or a truth
 * value. */
static void add_open(sqlite3_str *q, const char *column, const char *r)
{
    if (!column)
        sqlite3_str_appendall(q, "1");
    else
        sqlite3_str_appendf(q, "(%s.\"%w\" IS NULL OR %s.\"%w\" = 0)", r, column, r, column);
}

#define HEX4 "[0-9a-f][0-9a-f][0-9a-f][0-9a-f]"
#define NOW_MS "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

/* add_row appends a query for what an event is made of: uuid (NULL: the row's id is none), type,
 * payload, created_at, headers, aggregate_type, aggregate_id, tenant, and the row's own id as key.
 * Types are made to fit, as text that is no JSON is. A Julian day has no whole milliseconds, so a
 * time is rounded. `from` is empty in a trigger. */
static void add_row(sqlite3_str *q, const struct source *s, const char *r, const char *from)
{
    static const enum field order[] = {F_ID, F_PAYLOAD, F_CREATED, F_AGG_TYPE, F_AGG_ID, F_TENANT};
    sqlite3_str_appendall(
        q,
        "SELECT CASE WHEN typeof(id) = 'text' AND length(id) = 36 AND lower(id) GLOB '" HEX4 HEX4
        "-" HEX4 "-" HEX4 "-" HEX4 "-" HEX4 HEX4 HEX4 "' THEN lower(id) END AS uuid, "
        "CASE WHEN cut BETWEEN '!' AND printf('%.255s', cut) AND (cut NOT GLOB '*[^!-~]*' OR cut "
        "NOT GLOB "
        "CAST(x'2a5b012d207f2dc2a0e19a80e280802de2808ae280a8e280a9e280afe2819fe380805d2a' AS "
        "TEXT)) THEN cut "
        "ELSE 'unknown' END AS type, "
        "CASE WHEN payload IS NULL THEN 'null' WHEN payload = printf('%.67108864s', payload) AND "
        "json_valid(payload) "
        "THEN payload ELSE json_quote(printf('%.67108864s', payload)) END AS payload, "
        "max(0, min(coalesce(CAST(round(CASE typeof(created_at) "
        "WHEN 'integer' THEN CASE WHEN created_at > 100000000000 THEN created_at ELSE created_at * "
        "1000 END "
        "WHEN 'real' THEN CASE WHEN created_at < 10000000 THEN (created_at - 2440587.5) * 86400000 "
        "ELSE created_at * 1000 END "
        "WHEN 'text' THEN (julianday(created_at) - 2440587.5) * 86400000 END) AS INTEGER), " NOW_MS
        "), " NOW_MS ")) AS created_at, "
        "CASE WHEN id IS NOT NULL AND NOT (typeof(id) = 'text' AND length(id) = 36 AND lower(id) "
        "GLOB '" HEX4 HEX4 "-" HEX4 "-" HEX4 "-" HEX4 "-" HEX4 HEX4 HEX4
        "') THEN json_object('source_id', printf('%.1000s', "
        "CASE typeof(id) WHEN 'blob' THEN lower(hex(id)) ELSE CAST(id AS TEXT) END)) END AS "
        "headers, "
        "CASE WHEN aggregate_id IS NOT NULL THEN CAST(aggregate_type AS TEXT) END AS "
        "aggregate_type, "
        "CASE WHEN aggregate_type IS NOT NULL THEN CAST(aggregate_id AS TEXT) END AS aggregate_id, "
        "CAST(tenant AS TEXT) AS tenant, id AS key FROM (SELECT *, CASE WHEN length(CAST(type AS "
        "BLOB)) <= 255 THEN type "
        "WHEN type NOT GLOB '*[^!-~]*' THEN substr(type, 1, 255) ELSE substr(type, 1, 63) END AS "
        "cut FROM (SELECT "
        "replace(replace(replace(replace(CAST(");
    add_value(q, s, F_TYPE, r);
    sqlite3_str_appendall(
        q, " AS TEXT), ' ', '_'), char(9), '_'), char(10), '_'), char(13), '_') AS type");
    for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
        bool payload = order[i] == F_PAYLOAD;
        sqlite3_str_appendall(q, payload ? ", CAST(" : ", ");
        add_value(q, s, order[i], r);
        sqlite3_str_appendf(q, "%s AS %s", payload ? " AS TEXT)" : "", field_names[order[i]]);
    }
    sqlite3_str_appendf(q, "%s))", from);
}

#define COPIED "type, payload, created_at, headers, aggregate_type, aggregate_id, tenant"

/* add_trigger appends the trigger. An id that is a UUID is the event's, if none has it; any other
 * is given one by the table. Whether rows are to be marked, which row became which event is
 * noted. */
static void add_trigger(sqlite3_str *q, const struct source *s, bool marked)
{
    sqlite3_str_appendf(q, "CREATE TRIGGER \"" TRIGGER "%w\" AFTER INSERT ON \"%w\" WHEN ", s->name,
                        s->name);
    add_open(q, s->of[F_PROCESSED], "NEW");
    sqlite3_str_appendall(q, " BEGIN\n    INSERT INTO outbox_event (id, " COPIED
                             ") SELECT uuid, " COPIED " FROM (");
    add_row(q, s, "NEW", "");
    sqlite3_str_appendall(q, ") n WHERE uuid IS NOT NULL AND NOT EXISTS (SELECT 1 FROM "
                             "outbox_event e WHERE e.id = n.uuid);\n"
                             "    INSERT INTO outbox_event (" COPIED ") SELECT " COPIED " FROM (");
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

/* ---- what was done before ---- */

/* What is known of a table. */
struct former {
    bool there; /* it is adopted now */
    bool once;  /* it was, before */
    bool same;  /* with these columns, and marked as it is to be now */
};

static int look_back(struct source *s, struct former *ret, struct error *err)
{
    int64_t trigger = 0, once = 0, same = 0;
    const struct adopt_request *req = s->req;
    char name[512];
    snprintf(name, sizeof(name), TRIGGER "%s", s->name);
    if (sqlite_number(s->st, err, &trigger,
                      "SELECT 1 FROM main.sqlite_master WHERE type = 'trigger' AND name = ?", "s",
                      name) != 0 ||
        sqlite_number(s->st, err, &once, "SELECT 1 FROM outbox_adopted WHERE source = ?", "s",
                      s->name) != 0 ||
        sqlite_number(s->st, err, &same,
                      "SELECT mapping = ?2 AND (?3 IS NULL OR (mark IS ?3 AND consumer IS ?4)) "
                      "FROM outbox_adopted "
                      "WHERE source = ?1",
                      "ssss", s->name, s->mapping.p, req->mark, req->consumer) != 0)
        return -1;
    *ret = (struct former){trigger != 0, once != 0, same != 0};
    return 0;
}

static int decided(const struct source *s, const struct former *was, struct error *err)
{
    const char *existing = s->req->existing;
    if (was->there && existing && strcmp(existing, "copy") == 0)
        return err_set(err, ERR_CONFLICT,
                       "table %.100s is adopted: its rows became events when it was, and copied "
                       "again they would be "
                       "delivered twice; leave existing out, or undo first",
                       s->name);
    if (!was->there && was->once && !existing)
        return err_set(err, ERR_CONFLICT,
                       "table %.100s was adopted before, and which of its rows became events then "
                       "cannot be told; say "
                       "existing copy to make events of all that are not processed, or existing "
                       "skip to begin with new "
                       "ones",
                       s->name);
    return 0;
}

/* ---- rows there are ---- */

static void add_from(sqlite3_str *q, const struct source *s)
{
    int id = s->of[F_ID] ? column_of(s, s->of[F_ID]) : -1;
    bool number = id >= 0 && strcasestr(s->type[id], "INT");
    sqlite3_str_appendf(q, " FROM main.\"%w\" AS s WHERE ", s->name);
    add_open(q, s->of[F_PROCESSED], "s");
    if (number)
        sqlite3_str_appendf(q, " ORDER BY s.\"%w\"", s->of[F_ID]);
    else if (s->of[F_CREATED])
        sqlite3_str_appendf(q, " ORDER BY s.\"%w\"%s", s->of[F_CREATED],
                            s->rowid ? ", s.rowid" : "");
    else if (s->rowid)
        sqlite3_str_appendall(q, " ORDER BY s.rowid");
}

static int count_rows(const struct source *s, int64_t *ret, struct error *err)
{
    sqlite3_str *q = sqlite3_str_new(s->st->db);
    sqlite3_str_appendall(q, "SELECT count(*)");
    add_from(q, s);
    sqlite3_stmt *stmt = prepare(s->st, q, err);
    if (!stmt)
        return -1;
    int rc = sqlite3_step(stmt);
    *ret = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return rc == SQLITE_ROW ? 0 : sqlite_fail(s->st, s->st->db, rc, err);
}

/* copy_row makes an event of the row that stmt is at. */
static int copy_row(const struct source *s, sqlite3_stmt *q, bool *ret_made, struct error *err)
{
    struct sqlite_store *st = s->st;
    int64_t known = 0;
    struct str uuid = sqlite_text(q, 0);
    if (uuid.p &&
        sqlite_number(st, err, &known, "SELECT 1 FROM outbox_event WHERE id = ?", "t", uuid) != 0)
        return -1;
    *ret_made = !known;
    if (known)
        return 0;
    if (uuid.p)
        return sqlite_exec(
            st, err, "INSERT INTO outbox_event (id, " COPIED ") VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            "tttitttt", uuid, sqlite_text(q, 1), sqlite_text(q, 2),
            (int64_t)sqlite3_column_int64(q, 3), sqlite_text(q, 4), sqlite_text(q, 5),
            sqlite_text(q, 6), sqlite_text(q, 7));
    return sqlite_exec(
        st, err, "INSERT INTO outbox_event (" COPIED ") VALUES (?, ?, ?, ?, ?, ?, ?)", "ttitttt",
        sqlite_text(q, 1), sqlite_text(q, 2), (int64_t)sqlite3_column_int64(q, 3),
        sqlite_text(q, 4), sqlite_text(q, 5), sqlite_text(q, 6), sqlite_text(q, 7));
}

/* note_row remembers which row the last event was made of, so that it can be marked. */
static int note_row(const struct source *s, sqlite3_stmt *row, struct error *err)
{
    sqlite3_stmt *q = sqlite_query(
        s->st, err,
        "INSERT OR IGNORE INTO outbox_adopted_row (event_id, source, row) SELECT id, ?, ?2 FROM "
        "outbox_event WHERE seq = last_insert_rowid()",
        "s", s->name);
    if (!q)
        return -1;
    sqlite3_bind_value(q, 2, sqlite3_column_value(row, 8));
    return sqlite_step(s->st, q, err) < 0 ? -1 : 0;
}

static int copy_rows(const struct source *s, bool marked, int64_t *ret, struct error *err)
{
    sqlite3_str *text = sqlite3_str_new(s->st->db), *from = sqlite3_str_new(s->st->db);
    add_from(from, s);
    char *tail = sqlite3_str_finish(from);
    add_row(text, s, "s", tail ? tail : "");
    sqlite3_free(tail);
    sqlite3_stmt *q = prepare(s->st, text, err);
    int rc = SQLITE_DONE, r = 0;
    if (!q)
        return -1;
    while (r == 0 && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        bool made;
        r = copy_row(s, q, &made, err);
        if (r != 0 || !made)
            continue;
        ++*ret;
        if (marked && sqlite3_column_type(q, 8) != SQLITE_NULL)
            r = note_row(s, q, err);
    }
    if (r == 0 && rc != SQLITE_DONE)
        r = sqlite_fail(s->st, s->st->db, rc, err);
    sqlite3_finalize(q);
    return r;
}

/* ---- marking ---- */

/* stamp_of is how a row is marked as processed, in the way that those that are have it; else as the
 * column's type suggests. */
static int stamp_of(const struct source *s, const char *column, const char **ret, struct error *err)
{
    static const char *const stamps[] = {"datetime('now')",
                                         "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
                                         "1",
                                         "CAST(strftime('%s', 'now') AS INTEGER)",
                                         NOW_MS,
                                         "julianday('now')"};
    const char *type = s->type[column_of(s, column)];
    int kind = strcasestr(type, "BOOL") ? 2 : strcasestr(type, "INT") ? 3 : 0;
    sqlite3_str *q = sqlite3_str_new(s->st->db);
    sqlite3_str_appendf(q,
                        "SELECT CASE typeof(x) WHEN 'text' THEN x LIKE '%%T%%' WHEN 'integer' THEN "
                        "CASE WHEN x = 1 THEN 2 WHEN x > "
                        "100000000000 THEN 4 ELSE 3 END WHEN 'real' THEN CASE WHEN x < 10000000 "
                        "THEN 5 ELSE 3 END ELSE %d END FROM "
                        "(SELECT s.\"%w\" AS x FROM main.\"%w\" AS s WHERE NOT ",
                        kind, column, s->name);
    add_open(q, column, "s");
    sqlite3_str_appendall(q, " LIMIT 1)");
    sqlite3_stmt *stmt = prepare(s->st, q, err);
    if (!stmt)
        return -1;
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        kind = sqlite3_column_int(stmt, 0);
    sqlite3_finalize(stmt);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return sqlite_fail(s->st, s->st->db, rc, err);
    *ret = stamps[kind];
    return 0;
}

/* is_unique tells whether no two rows have the same value in a column: it is the rowid, or the only
 * column of a unique index. */
static int is_unique(const struct source *s, const char *column, bool *ret, struct error *err)
{
    int64_t found = 0;
    if (sqlite_number(s->st, err, &found,
                      "SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1, 'main') WHERE pk AND "
                      "name = ?2 AND type = 'INTEGER' COLLATE "
                      "NOCASE AND (SELECT sum(pk > 0) FROM pragma_table_info(?1, 'main')) = 1) OR "
                      "EXISTS (SELECT 1 FROM "
                      "pragma_index_list(?1, 'main') i WHERE i.\"unique\" AND NOT i.partial AND "
                      "(SELECT count(*) = 1 AND min(c.name) = ?2 "
                      "FROM pragma_index_info(i.name, 'main') c))",
                      "ss", s->name, column) != 0)
        return -1;
    *ret = found != 0;
    return 0;
}

static int check_mark(const struct source *s, struct error *err)
{
    const char *mark = s->req->mark;
    bool unique;
    if (!mark)
        return 0;
    if (column_of(s, mark) < 0)
        return err_set(err, ERR_NOTFOUND,
                       "table %.100s has no column %.100s, which would be marked", s->name, mark);
    if (!s->of[F_ID])
        return err_set(
            err, ERR_CONFIG,
            "to mark rows of %.100s takes a column that tells them apart; say --column id=NAME",
            s->name);
    if (is_unique(s, s->of[F_ID], &unique, err) != 0)
        return -1;
    if (!unique)
        return err_set(err, ERR_CONFIG,
                       "rows of %.100s cannot be marked: its column %.100s does not tell its rows "
                       "apart; say --column "
                       "id=NAME for one that does, a primary key or UNIQUE by itself",
                       s->name, s->of[F_ID]);
    return store_name_check(s->req->consumer, err);
}

/* keep notes what was done: the columns, and how rows are marked. Without a new mark the former one
 * stays. */
static int keep(const struct source *s, struct error *err)
{
    const struct adopt_request *req = s->req;
    const char *stamp = NULL;
    if (req->mark && stamp_of(s, req->mark, &stamp, err) != 0)
        return -1;
    return sqlite_exec(s->st, err,
                       "INSERT INTO outbox_adopted (source, mapping, mark, consumer, key, stamp, "
                       "at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) "
                       "ON CONFLICT (source) DO UPDATE SET mapping = ?2, mark = coalesce(?3, "
                       "mark), consumer = coalesce(?4, "
                       "consumer), key = ?5, stamp = coalesce(?6, stamp), at = ?7",
                       "ssssssi", s->name, s->mapping.p, req->mark, req->consumer, s->of[F_ID],
                       stamp, sqlite_now(s->st));
}

static int forget_mark(const struct source *s, bool *ret_was, struct error *err)
{
    int64_t was = 0;
    if (sqlite_number(s->st, err, &was,
                      "SELECT 1 FROM outbox_adopted WHERE source = ? AND mark IS NOT NULL", "s",
                      s->name) != 0)
        return -1;
    *ret_was = was;
    if (sqlite_exec(s->st, err, "DELETE FROM outbox_adopted_row WHERE source = ?", "s", s->name) !=
        0)
        return -1;
    return sqlite_exec(
        s->st, err,
        "UPDATE outbox_adopted SET mark = NULL, consumer = NULL, stamp = NULL WHERE source = ?",
        "s", s->name);
}

/* ---- all of it, inside a transaction ---- */

static int drop_trigger(const struct source *s, struct error *err)
{
    sqlite3_str *q = sqlite3_str_new(s->st->db);
    sqlite3_str_appendf(q, "DROP TRIGGER IF EXISTS main.\"" TRIGGER "%w\"", s->name);
    return run(s->st, q, err);
}

static int make_trigger(const struct source *s, struct error *err)
{
    int64_t marked = 0;
    if (sqlite_number(s->st, err, &marked,
                      "SELECT mark IS NOT NULL FROM outbox_adopted WHERE source = ?", "s",
                      s->name) != 0)
        return -1;
    if (drop_trigger(s, err) != 0)
        return -1;
    sqlite3_str *q = sqlite3_str_new(s->st->db);
    add_trigger(q, s, marked != 0);
    return run(s->st, q, err);
}

static int undo(struct source *s, const struct former *was, struct adopt_result *ret,
                struct error *err)
{
    bool marked;
    ret->changed = was->there;
    if (s->req->dry_run || !was->there)
        return 0;
    if (forget_mark(s, &marked, err) != 0)
        return -1;
    return drop_trigger(s, err);
}

static int drop_mark(struct source *s, struct adopt_result *ret, struct error *err)
{
    if (forget_mark(s, &ret->changed, err) != 0)
        return -1;
    if (s->req->dry_run || !ret->changed)
        return 0;
    return make_trigger(s, err);
}

static int adopt(struct source *s, struct adopt_result *ret, struct error *err)
{
    struct former was;
    bool skip = s->req->existing && strcmp(s->req->existing, "skip") == 0;
    if (find_table(s, err) != 0 || read_columns(s, err) != 0)
        return -1;
    if (s->req->undo) {
        buf_adds(&s->mapping, "");
        if (look_back(s, &was, err) != 0)
            return -1;
        return undo(s, &was, ret, err);
    }
    if (map_columns(s, err) != 0 || check_mark(s, err) != 0 || look_back(s, &was, err) != 0)
        return -1;
    if (s->req->drop_mark)
        return drop_mark(s, ret, err);
    if (decided(s, &was, err) != 0)
        return -1;
    snprintf(ret->mapping, sizeof(ret->mapping), "%s", s->mapping.p);
    ret->changed = !was.there || !was.same;
    ret->other_columns = was.there && !was.same;
    bool copies = !was.there && !skip;
    if (s->req->dry_run)
        return copies ? count_rows(s, &ret->copied, err) : 0;
    if (!ret->changed)
        return 0;
    if (keep(s, err) != 0)
        return -1;
    if (copies && copy_rows(s, s->req->mark != NULL, &ret->copied, err) != 0)
        return -1;
    return make_trigger(s, err);
}

int sqlite_adopt(struct store *base, const struct adopt_request *req, struct adopt_result *ret,
                 struct error *err)
{
    struct source s = {.st = sqlite_of(base), .req = req};
    struct adopt_result res = {0};
    arena_init(&s.a, 0);
    buf_init(&s.mapping, 1 << 20);
    int r = sqlite_begin(base, err);
    if (r == 0) {
        r = adopt(&s, &res, err);
        if (r != 0 || req->dry_run)
            sqlite_rollback(base);
        else
            r = sqlite_commit(base, err);
    }
    buf_release(&s.mapping);
    arena_release(&s.a);
    if (r == 0)
        *ret = res;
    return r;
}

/* ---- settling ---- */

/* add_delivered appends the ids of what was delivered as JSON; returns how many. Outcomes come in
 * the order of the batch. */
static size_t add_delivered(const struct settlement *s, struct buf *b)
{
    size_t n = 0, k = 0;
    buf_addc(b, '[');
    for (size_t i = 0; i < s->b->n; i++) {
        const struct event *ev = &s->b->ev[i];
        bool named = k < s->n && s->out[k].ev->seq == ev->seq;
        bool failed = named && s->out[k].kind != OUTCOME_DELIVERED;
        bool given_back = s->release_from && ev->seq >= s->release_from;
        if (named)
            k++;
        if (failed || given_back)
            continue;
        if (n++)
            buf_addc(b, ',');
        json_quote(b, ev->id);
    }
    buf_addc(b, ']');
    return n;
}

/* mark_rows marks the rows of one table: one UPDATE, however many there are. */
static int mark_rows(struct sqlite_store *st, sqlite3_stmt *table, const char *ids,
                     struct error *err)
{
    const char *source = (const char *)sqlite3_column_text(table, 0),
               *mark = (const char *)sqlite3_column_text(table, 1);
    const char *key = (const char *)sqlite3_column_text(table, 2),
               *stamp = (const char *)sqlite3_column_text(table, 3);
    sqlite3_str *q = sqlite3_str_new(st->db);
    sqlite3_str_appendf(q,
                        "UPDATE main.\"%w\" AS s SET \"%w\" = %s WHERE s.\"%w\" IN (SELECT a.row "
                        "FROM outbox_adopted_row a WHERE "
                        "a.source = %Q AND a.event_id IN (SELECT value FROM json_each(?1))) AND ",
                        source, mark, stamp, key, source);
    add_open(q, mark, "s");
    sqlite3_stmt *stmt = prepare(st, q, err);
    if (!stmt)
        return err_prefix(err, "could not mark rows of %.100s (outbox adopt --drop-mark ends that)",
                          source);
    sqlite3_bind_text(stmt, 1, ids, -1, SQLITE_STATIC);
    int rc = sqlite3_step(stmt);
    sqlite3_finalize(stmt);
    if (rc != SQLITE_DONE) {
        sqlite_fail(st, st->db, rc, err);
        return err_prefix(err, "could not mark rows of %.100s (outbox adopt --drop-mark ends that)",
                          source);
    }
    return 0;
}

int sqlite_adopt_mark(struct sqlite_store *st, const struct settlement *s, struct error *err)
{
    struct buf ids;
    int r, failed = 0;
    sqlite3_stmt *q = sqlite_query(
        st, err,
        "SELECT a.source, a.mark, a.key, a.stamp FROM outbox_adopted a WHERE a.consumer = ? AND "
        "a.mark "
        "IS NOT NULL AND EXISTS (SELECT 1 FROM main.sqlite_master m WHERE m.type = 'table' AND "
        "m.name = a.source)",
        "s", s->consumer);
    if (!q)
        return -1;
    r = sqlite_step(st, q, err);
    if (r <= 0)
        return r;
    buf_init(&ids, (size_t)1 << 24);
    size_t n = add_delivered(s, &ids);
    if (!buf_cstr(&ids))
        failed = err_nomem(err);
    for (; r > 0 && n > 0 && failed == 0; r = failed ? r : sqlite_step(st, q, err))
        failed = mark_rows(st, q, ids.p, err);
    sqlite3_reset(q);
    if (failed == 0 && r == 0 && n > 0)
        failed = sqlite_exec(
            st, err,
            "DELETE FROM outbox_adopted_row WHERE event_id IN (SELECT value FROM json_each(?))",
            "s", ids.p);
    buf_release(&ids);
    return failed != 0 || r < 0 ? -1 : 0;
}
