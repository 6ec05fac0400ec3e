/* adopt.c: application tables whose rows become events: maps columns to fields, and adopts the
 * table. A trigger turns each inserted row into an event, in the same transaction. On request, rows
 * are marked as processed once a consumer has received them, in the transaction that settles the
 * delivery. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "extra/adopt/adopt.h"
#include "store_sql.h"

#define TRIGGER "outbox_adopted_" /* and the table's name, or its hash */
#define TRIGGER_SIZE 512

/* The names of the fields in --column and in the mapping. */
static const char *const field_names[FIELDS] = {
    [F_ID] = "id",
    [F_TYPE] = "type",
    [F_PAYLOAD] = "payload",
    [F_CREATED] = "created_at",
    [F_PROCESSED] = "processed_at",
    [F_AGG_TYPE] = "aggregate_type",
    [F_AGG_ID] = "aggregate_id",
    [F_TENANT] = "tenant",
};

/* The usual names of columns, and which of them are required. */
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
static const struct shape *const processed_shape = &shapes[0], *const debezium_shape = &shapes[1];

/* ---- the table ---- */

static bool is_ours(const char *name)
{
    static const char *const ours[] = {
        "meta",      "event",   "idempotency",   "consumer", "lane",        "claim",   "parked",
        "dead",      "handled", "receipt",       "setting",  "mark",        "ended",   "order",
        "sequencer", "fresh",   "former_filter", "passed",   "adopted_row", "adopted", "marking"};
    if (strncasecmp(name, "sqlite_", 7) == 0)
        return true;
    if (strncasecmp(name, "outbox_", 7) != 0)
        return false;
    for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
        if (strcasecmp(name + 7, ours[i]) == 0)
            return true;
    return false;
}

/* Strips the quotes from "name", or from MariaDB's `name`, unless memory runs out. */
static const char *unquoted(struct source *s, const char *name)
{
    size_t n = strlen(name);
    char quote = name[0];
    bool quotes = quote == '"' || quote == '`';
    bool quoted = quotes && n >= 2 && name[n - 1] == quote;
    if (!quoted)
        return name;
    char *out = arena_alloc(&s->a, n);
    if (!out)
        return name;

    size_t k = 0;
    for (size_t i = 1; i < n - 1; i++) {
        bool doubled = name[i] == quote && name[i + 1] == quote;
        out[k++] = name[i];
        if (doubled)
            i++;
    }
    out[k] = '\0';
    return out;
}

/* Finds the table by its name as written in SQL. */
static int find_table(struct source *s, struct error *err)
{
    const char *wanted = unquoted(s, s->req->table);
    bool ok = true;
    struct db_rows q;
    int r = db_row(s->st, &q, err, SQL(find_table, .name = wanted, .schema = s->schema));
    if (r < 0)
        return -1;
    if (r == 0)
        return err_set(err, ERR_NOTFOUND, "there is no table %.200s", s->req->table);
    s->name = db_copy(&q, 0, &s->a, &ok).p;
    const char *why = db_copy(&q, 1, &s->a, &ok).p;
    db_done(&q);
    if (!ok)
        return err_nomem(err);
    if (is_ours(s->name))
        why = "it belongs to the outbox";
    if (why)
        return err_set(err, ERR_CONFIG, "%.200s is not a table that can be adopted: %.300s",
                       s->name, why);
    return 0;
}

static bool read_column(const struct db_rows *q, struct arena *a, void *element)
{
    struct source_column *c = element;
    bool ok = true;
    c->name = db_copy(q, 0, a, &ok).p;
    c->type = db_copy(q, 1, a, &ok).p;
    return ok;
}

int adopt_source_find(struct source *s, struct error *err)
{
    if (find_table(s, err) != 0)
        return -1;
    struct db_list l = {.a = &s->a, .size = sizeof *s->column, .read = read_column};
    if (db_list(s->st, &l, err, SQL(table_columns, .source = s->name, .schema = s->schema)) != 0)
        return -1;
    s->column = l.elements;
    s->n = l.n;
    return 0;
}

int adopt_source_column(const struct source *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcasecmp(s->column[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* ---- the request ---- */

bool adopt_source_literal(const char *text)
{
    size_t n = strlen(text);
    return n >= 2 && text[0] == '\'' && text[n - 1] == '\'';
}

/* Returns the --column setting of a field; NULL: not set, "": no column. */
static const char *given(const struct adopt_request *req, enum field f)
{
    for (size_t i = 0; i < req->n_columns; i++) {
        size_t n = strcspn(req->columns[i], "=");
        if (str_is((struct str){req->columns[i], n}, field_names[f]))
            return req->columns[i] + n + 1;
    }
    return NULL;
}

/* Refuses a malformed --column; runs before all other checks. */
static int check_given(const struct adopt_request *req, struct error *err)
{
    for (size_t i = 0; i < req->n_columns; i++) {
        const char *name = req->columns[i], *equals = strchr(name, '=');
        if (!equals)
            return err_set(err, ERR_CONFIG, "\"%s\" is not FIELD=COLUMN", name);
        const struct str field = {name, (size_t)(equals - name)};
        bool known = false;
        for (int f = 0; f < FIELDS; f++)
            known = known || str_is(field, field_names[f]);
        if (known)
            continue;
        return err_set(err, ERR_CONFIG,
                       "an event has no field %.*s; its fields are id, type, aggregate_type, "
                       "aggregate_id, payload, created_at, processed_at and tenant",
                       (int)field.n, name);
    }
    return 0;
}

/* ---- the mapping of columns to fields ---- */

static int say_no_shape(const struct source *s, struct error *err)
{
    struct buf all;
    buf_init(&all, 1 << 16);
    for (size_t i = 0; i < s->n; i++)
        buf_addf(&all, "%s%s", i ? ", " : "", s->column[i].name);
    const char *columns = buf_cstr(&all);
    err_set(err, ERR_NOTFOUND,
            "table %.100s has neither a processed_at nor an aggregatetype column; its columns are "
            "%.250s; name its shape, and the column of each field",
            s->name, columns ? columns : "");
    buf_release(&all);
    return -1;
}

/* Finds the requested shape; without a request, guesses it from the column that only tables of one
 * shape have. NULL: the table has neither column. */
static const struct shape *find_shape(const struct source *s)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        if (strcmp(s->req->shape, shapes[i].name) == 0)
            return &shapes[i];

    const char *flag = given(s->req, F_PROCESSED), *kind = given(s->req, F_AGG_TYPE);
    bool no_flag = flag && !*flag; /* its rows are never processed */
    if (!flag)
        flag = "processed_at";
    if (!kind)
        kind = "aggregatetype";
    if (adopt_source_column(s, flag) >= 0)
        return processed_shape;
    if (adopt_source_literal(kind) || adopt_source_column(s, kind) >= 0)
        return debezium_shape;
    return no_flag ? processed_shape : NULL;
}

/* Uses a text in single quotes for every row. An invalid one would fail every INSERT. */
static int take_literal(struct source *s, enum field f, const char *text, struct error *err)
{
    const struct str value = {text + 1, strlen(text) - 2};
    const struct event_limits limits = {.payload_max = EVENT_PAYLOAD_MAX};
    struct new_event ev = {.type = STR("any")};
    struct error why;
    switch (f) {
    case F_TYPE: ev.type = value; break;
    case F_TENANT: ev.tenant = value; break;
    case F_AGG_TYPE:
        ev.aggregate_type = value;
        ev.aggregate_id = STR("any");
        break;
    default:
        return err_set(err, ERR_CONFIG,
                       "%s: only type, aggregate_type and tenant may be text in single quotes",
                       text);
    }
    if (event_check(&ev, &limits, &why) != 0)
        return err_set(err, ERR_CONFIG, "%s is not a valid %s: %s", text, field_names[f], why.text);
    s->of[f] = text;
    return 0;
}

/* Uses a column, if the table has it. */
static int take_column(struct source *s, enum field f, const char *name, bool needed,
                       struct error *err)
{
    int at = adopt_source_column(s, name);
    if (at >= 0)
        s->of[f] = s->column[at].name;
    else if (needed)
        return err_set(err, ERR_NOTFOUND, "table %.100s has no column %.100s to use as the %s",
                       s->name, name, field_names[f]);
    return 0;
}

static int say_missing(enum field f, struct error *err)
{
    const char *field = field_names[f];
    return err_set(err, ERR_NOTFOUND, "no column is known for the %s; name one: %s=COLUMN", field,
                   field);
}

/* Finds the column of a field: the one named in the request, or the shape's usual one. */
static int take_field(struct source *s, const struct shape *shape, enum field f, struct error *err)
{
    const char *named = given(s->req, f), *usual = shape->usual[f];
    if (!named && !usual)
        return 0;
    if (!named)
        return take_column(s, f, usual, shape->needed[f], err);
    if (!*named) {
        /* A table whose rows are never marked as processed needs no flag. */
        bool needed = shape->needed[f] && f != F_PROCESSED;
        return needed ? say_missing(f, err) : 0;
    }
    if (adopt_source_literal(named))
        return take_literal(s, f, named, err);
    return take_column(s, f, named, true, err);
}

/* Writes the mapping as JSON. */
static int write_mapping(struct source *s, struct error *err)
{
    const char *between = "";
    buf_addc(&s->mapping, '{');
    for (int f = 0; f < FIELDS; f++) {
        if (!s->of[f])
            continue;
        buf_adds(&s->mapping, between);
        json_quote(&s->mapping, str_of(field_names[f]));
        buf_addc(&s->mapping, ':');
        json_quote(&s->mapping, str_of(s->of[f]));
        between = ",";
    }
    buf_addc(&s->mapping, '}');
    return buf_cstr(&s->mapping) ? 0 : err_nomem(err);
}

/* Decides which column provides which field, from the request and the table's shape. */
static int map_columns(struct source *s, struct error *err)
{
    if (check_given(s->req, err) != 0)
        return -1;
    const struct shape *shape = find_shape(s);
    if (!shape)
        return say_no_shape(s, err);
    for (int f = 0; f < FIELDS; f++)
        if (take_field(s, shape, (enum field)f, err) != 0)
            return -1;

    bool has_type = s->of[F_AGG_TYPE], has_id = s->of[F_AGG_ID];
    if (has_type != has_id)
        return say_missing(has_id ? F_AGG_TYPE : F_AGG_ID, err);
    return write_mapping(s, err);
}

/* ---- statements that name the table and its columns ---- */

static const struct adopt_driver *driver_of(const struct source *s)
{
    return s->st->ops->driver->adopt;
}

/* The trigger that turns the table's rows into events. */
static void trigger_name(const struct source *s, char ret[TRIGGER_SIZE])
{
    uint64_t h = hash_end(hash_add(HASH_INIT, str_of(s->name)));
    if (strlen(TRIGGER) + strlen(s->name) <= driver_of(s)->trigger_max)
        snprintf(ret, TRIGGER_SIZE, TRIGGER "%s", s->name);
    else
        snprintf(ret, TRIGGER_SIZE, TRIGGER "%016llx", (unsigned long long)h);
}

void adopt_column(struct buf *b, const struct source *s, const char *r, const char *column)
{
    buf_addf(b, "%s.", r);
    driver_of(s)->name(b, str_of(column));
}

static void add_part(struct buf *b, const struct source *s, const char *r, struct str part)
{
    const struct adopt_driver *d = driver_of(s);
    char trigger[TRIGGER_SIZE];
    for (int f = 0; f < FIELDS; f++) {
        const char *of = s->of[f];
        if (!str_is(part, field_names[f]))
            continue;
        if (!of)
            buf_adds(b, "NULL");
        else if (adopt_source_literal(of))
            d->literal(b, (struct str){of + 1, strlen(of) - 2});
        else
            d->value(b, s, r, of);
        return;
    }
    if (str_is(part, "table")) {
        d->name(b, str_of(s->name));
    } else if (str_is(part, "trigger")) {
        trigger_name(s, trigger);
        d->name(b, str_of(trigger));
    } else if (str_is(part, "mark")) {
        d->name(b, str_of(s->of[F_PROCESSED]));
    } else if (str_is(part, "source")) {
        d->literal(b, str_of(s->name));
    } else if (str_is(part, "key")) {
        adopt_column(b, s, r, s->of[F_ID]);
    } else if (!str_is(part, "open")) {
        d->part(b, s, r, part);
    } else if (s->of[F_PROCESSED]) {
        d->open(b, s, r, s->of[F_PROCESSED]);
    } else {
        buf_addc(b, '1'); /* no row is ever processed */
    }
}

void adopt_write(struct buf *b, const struct source *s, const char *r, const char *sql)
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

struct db_rows adopt_start(const struct source *s, struct buf *b, struct error *err)
{
    struct db_rows q = {.st = s->st, .foreign = true};
    const char *text = buf_cstr(b);
    if (text)
        q.at = driver_of(s)->query(s->st, text, err);
    else
        err_nomem(err);
    buf_release(b);
    return q;
}

int adopt_finish(const struct source *s, struct buf *b, struct error *err)
{
    struct db_rows q = adopt_start(s, b, err);
    return db_finish(&q, err);
}

int adopt_run(const struct source *s, const char *r, const char *sql, struct error *err)
{
    struct buf b;
    buf_init(&b, ADOPT_STATEMENT_MAX);
    adopt_write(&b, s, r, sql);
    return adopt_finish(s, &b, err);
}

int adopt_drop(const struct source *s, struct error *err)
{
    return adopt_run(s, "NEW", driver_of(s)->drop, err);
}

/* Counts the unprocessed rows. */
static int count_rows(const struct source *s, int64_t *ret, struct error *err)
{
    struct buf b;
    buf_init(&b, ADOPT_STATEMENT_MAX);
    adopt_write(&b, s, "s", "SELECT count(*) FROM {table} s WHERE {open}");
    struct db_rows q = adopt_start(s, &b, err);
    if (db_step(&q, err) != 1)
        return -1;
    *ret = db_int(&q, 0);
    db_done(&q);
    return 0;
}

/* ---- the mark ---- */

int adopt_is_marked(const struct source *s, bool *ret, struct error *err)
{
    int64_t marked = 0;
    if (db_value(s->st, err, &marked, SQL(is_marked, .source = s->name)) != 0)
        return -1;
    *ret = marked != 0;
    return 0;
}

int adopt_forget_mark(struct store *st, const char *table, struct error *err)
{
    return DB_RUN_ALL(st, err, {SQL(forget_rows, .source = table)},
                      {SQL(forget_mark, .source = table)});
}

int adopt_mark_allowed(const struct source *s, struct error *err)
{
    const char *mark = s->req->mark, *id = s->of[F_ID];
    int64_t unique = 0;
    if (!mark)
        return 0;
    if (adopt_source_column(s, mark) < 0)
        return err_set(err, ERR_NOTFOUND, "table %.100s has no column %.100s to mark", s->name,
                       mark);
    if (!id)
        return err_set(
            err, ERR_CONFIG,
            "rows of %.100s can be marked only by a column that identifies them: --column id=NAME",
            s->name);
    if (db_value(s->st, err, &unique,
                 SQL(is_unique, .schema = s->schema, .source = s->name, .name = id)) != 0)
        return -1;
    if (!unique)
        return err_set(err, ERR_CONFIG,
                       "rows of %.100s cannot be marked: column %.100s does not identify them; "
                       "name one that does, a primary key or a UNIQUE column: --column id=NAME",
                       s->name, id);
    return store_name_check(s->req->consumer, err);
}

/* Relies on outcomes being in batch order. */
size_t adopt_delivered_ids(const struct settlement *s, struct buf *b)
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
        if (n > 0)
            buf_addc(b, ',');
        json_quote(b, ev->id);
        n++;
    }
    buf_addc(b, ']');
    return n;
}

/* ---- planning ---- */

/* Reads the state of an earlier adoption of the table. */
static int read_adopted(const struct source *s, struct adopted *ret, struct error *err)
{
    char trigger[TRIGGER_SIZE];
    int64_t there = 0, once = 0, alike = 0;
    trigger_name(s, trigger);
    if (DB_VALUES(
            s->st, err,
            {&there, SQL(is_adopted, .source = s->name, .trigger = trigger, .schema = s->schema)},
            {&once, SQL(was_adopted, .source = s->name)},
            {&alike, SQL(adopted_alike, .source = s->name, .mapping = s->mapping.p,
                         .mark = s->req->mark, .consumer = s->req->consumer)}) != 0)
        return -1;
    *ret = (struct adopted){.there = there != 0, .once = once != 0, .alike = alike != 0};
    return 0;
}

/* Refuses to copy rows twice, and to guess what to do with them. */
static int check_existing(const struct source *s, const struct adopted *was, struct error *err)
{
    const char *existing = s->req->existing;
    bool copy = existing && strcmp(existing, "copy") == 0;
    if (was->there && copy)
        return err_set(err, ERR_CONFLICT,
                       "table %.100s is already adopted, and its rows became events: copies would "
                       "be delivered again; omit existing, or undo the adoption first",
                       s->name);
    if (!was->there && was->once && !existing)
        return err_set(err, ERR_CONFLICT,
                       "table %.100s was adopted before, and it is not known which of its rows "
                       "became events then; existing copy turns all unprocessed rows into events, "
                       "and existing skip begins with new rows",
                       s->name);
    return 0;
}

/* ---- adopting ---- */

static int undo(struct source *s, struct adopt_result *ret, struct error *err)
{
    struct adopted was;
    buf_adds(&s->mapping, "");
    if (read_adopted(s, &was, err) != 0)
        return -1;
    ret->changed = was.there;
    return s->req->dry_run ? 0 : driver_of(s)->undo(s, was.there, err);
}

/* Adopts the table, or only reports the result. All checks precede the first change. */
static int adopt(struct source *s, struct adopt_result *ret, struct error *err)
{
    const struct adopt_driver *d = driver_of(s);
    struct adopted was;
    if (map_columns(s, err) != 0)
        return -1;
    if (d->check(s, err) != 0)
        return -1;
    if (s->req->drop_mark) {
        if (adopt_is_marked(s, &ret->changed, err) != 0)
            return -1;
        return s->req->dry_run || !ret->changed ? 0 : d->drop_mark(s, err);
    }

    if (read_adopted(s, &was, err) != 0)
        return -1;
    if (check_existing(s, &was, err) != 0)
        return -1;
    bool skip = s->req->existing && strcmp(s->req->existing, "skip") == 0;
    bool copies = !was.there && !skip;
    snprintf(ret->mapping, sizeof ret->mapping, "%s", s->mapping.p);
    ret->changed = !was.there || !was.alike;
    ret->other_columns = was.there && !was.alike;

    if (s->req->dry_run)
        return copies ? count_rows(s, &ret->copied, err) : 0;
    return ret->changed ? d->adopt(s, &was, copies, ret, err) : 0;
}

int adopt_table(struct store *st, const struct adopt_request *req, struct adopt_result *ret,
                struct error *err)
{
    bool one_transaction = st->ops->driver->adopt->one_transaction;
    struct source s = {.st = st, .req = req, .schema = db_of(st)->schema};
    struct adopt_result res = {0};
    if (one_transaction && db_begin(st, err) != 0)
        return -1;
    arena_init(&s.a, 0);
    buf_init(&s.mapping, 1 << 20);
    int r = adopt_source_find(&s, err);
    if (r == 0)
        r = req->undo ? undo(&s, &res, err) : adopt(&s, &res, err);
    if (one_transaction && r == 0 && !req->dry_run)
        r = db_commit(st, err);
    else if (one_transaction)
        db_rollback(st);
    buf_release(&s.mapping);
    arena_release(&s.a);
    if (r == 0)
        *ret = res;
    return r;
}
