/* statement.c: sending statements, and reading their rows. */
#include <stdio.h>
#include <stdlib.h>

#include "store/postgres/postgres.h"

#define PARAMS_MAX 32
#define STATEMENT_NAME 16
#define STOP_BYTES (1 << 20) /* of rows that are read rather than cancelled */

/* ---- the marks in our SQL ---- */

static const struct pg_mark *find_mark(const struct pg_mark *marks, const char *p)
{
    for (; marks && marks->mark; marks++)
        if (strncmp(p, marks->mark, strlen(marks->mark)) == 0)
            return marks;
    return NULL;
}

/* Inside a literal, the single quotes of the schema's name are doubled. A doubled quote inside a
 * literal toggles `literal` twice, so it needs no special case. Comments are skipped, because an
 * apostrophe there begins no literal. */
void pg_fill(struct buf *b, const struct pg_store *st, const char *sql, const struct pg_mark *more)
{
    char version[12];
    const struct pg_mark own[] = {{"@schema@", st->quoted}, {"@version@", version}, {NULL, NULL}};
    snprintf(version, sizeof version, "%d", PG_SCHEMA_VERSION);
    bool literal = false;
    for (const char *p = sql; *p;) {
        const struct pg_mark *m = NULL;
        if (*p == '@') {
            m = find_mark(own, p);
            if (!m)
                m = find_mark(more, p);
        }
        if (m) {
            buf_adds(b, m == own && literal ? st->literal : m->text);
            p += strlen(m->mark);
            continue;
        }
        bool comment = !literal && strncmp(p, "--", 2) == 0;
        size_t n = comment ? strcspn(p, "\n") : 1;
        if (*p == '\'')
            literal = !literal;
        buf_add(b, p, n);
        p += n;
    }
}

char *pg_expand(const struct pg_store *st, const char *sql)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    pg_fill(&b, st, sql, NULL);
    const char *whole = buf_cstr(&b);
    char *text = whole ? strdup(whole) : NULL;
    buf_release(&b);
    return text;
}

/* ---- commands without parameters ---- */

PGresult *pg_ask(struct pg_store *st, PGconn *db, const char *text)
{
    if (!PQsendQuery(db, text))
        return NULL;
    return pg_last_result(st, db);
}

PGresult *pg_checked(struct pg_store *st, PGconn *db, PGresult *r, struct error *err)
{
    if (pg_went_well(r))
        return r;
    pg_fail(st, db, r, err);
    PQclear(r);
    return NULL;
}

int pg_command(struct pg_store *st, PGconn *db, const char *text, struct error *err)
{
    PGresult *r = pg_checked(st, db, pg_ask(st, db, text), err);
    PQclear(r);
    return r ? 0 : -1;
}

int pg_simple(struct pg_store *st, const char *text, struct error *err)
{
    pg_clear_results(st->db);
    return pg_command(st, st->db, text, err);
}

int pg_script(struct pg_store *st, const char *sql, const struct pg_mark *more, struct error *err)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    pg_fill(&b, st, sql, more);
    const char *text = buf_cstr(&b);
    int result = text ? pg_simple(st, text, err) : err_nomem(err);
    buf_release(&b);
    return result;
}

/* ---- the search_path ---- */

/* Most names in our statements have no schema, and mean the server's own objects. With another
 * search_path, a role that may create objects in its schemas could have them run, with our rights,
 * in place of the server's. The cases:
 *
 *   PATH_IS_OURS     on our own connection, where set_up in connect.c has set the path, and for a
 *                    statement that begins with PG_NAMED, which needs no path
 *   PATH_CHANGED     in a transaction that we share with the application: the path is changed for
 *                    the statement, and restored after it
 *   PATH_SENT_ALONG  behind a pooler: the path is sent along with each statement */
enum path { PATH_IS_OURS, PATH_CHANGED, PATH_SENT_ALONG };

#define SET_PATH "pg_catalog.set_config('search_path', '" PG_PATH "', true)"

static enum path path_for(const struct pg_store *st, enum pg_link link, const char *sql)
{
    bool needs_none = strncmp(sql, PG_NAMED, sizeof PG_NAMED - 1) == 0;
    bool shared_tx = st->in_tx && st->tx_shared;
    bool foreign_session = !st->in_tx && (st->pooled || st->exposed);

    if (needs_none || link == PG_READER)
        return PATH_IS_OURS;
    if (shared_tx)
        return PATH_CHANGED;
    if (foreign_session)
        return PATH_SENT_ALONG;
    return PATH_IS_OURS;
}

/* Sets our search_path on the main connection, and saves the application's. */
static int path_change(struct pg_store *st, struct error *err)
{
    pg_clear_results(st->db);
    PGresult *r = pg_ask(st, st->db, "SELECT pg_catalog.current_setting('search_path'), " SET_PATH);
    r = pg_checked(st, st->db, r, err);
    if (!r)
        return -1;
    free(st->path_was);
    st->path_was = strdup(PQgetvalue(r, 0, 0));
    PQclear(r);
    return st->path_was ? 0 : err_nomem(err);
}

/* Restores the application's search_path, if path_change changed it. In a failed transaction this
 * is impossible; the end of the transaction restores it. */
static void path_restore(struct pg_store *st)
{
    const char *path = st->path_was;
    if (!path)
        return;
    if (PQsendQueryParams(st->db, "SELECT pg_catalog.set_config('search_path', $1, true)", 1, NULL,
                          &path, NULL, NULL, 0))
        PQclear(pg_last_result(st, st->db));
    free(st->path_was);
    st->path_was = NULL;
}

/* ---- prepared statements ---- */

/* Finds a statement in the cache, or adds it; NULL on failure. */
static struct pg_cached *find_cached(struct pg_store *st, const char *sql, struct error *err)
{
    for (size_t i = 0; i < st->n_cached; i++)
        if (st->cached[i].sql == sql)
            return &st->cached[i];
    if (st->n_cached == PG_STATEMENTS_MAX) {
        err_set(err, ERR_INTERNAL, "statement cache is full");
        return NULL;
    }
    char *text = pg_expand(st, sql);
    if (!text) {
        err_nomem(err);
        return NULL;
    }
    struct pg_cached *c = &st->cached[st->n_cached++];
    *c = (struct pg_cached){.sql = sql, .text = text};
    return c;
}

/* ---- parameters ---- */

struct params {
    const char *values[PARAMS_MAX];
    int lengths[PARAMS_MAX];
    int formats[PARAMS_MAX];
    char numbers[PARAMS_MAX][24];
    int n;
};

static void add_number(struct params *p, int i, int64_t n)
{
    snprintf(p->numbers[i], sizeof p->numbers[i], "%lld", (long long)n);
    p->values[i] = p->numbers[i];
}

/* A struct str is sent in binary format, which for text and json is the bytes themselves, so it
 * needs no NUL. */
static void params_collect(struct params *p, const char *fmt, va_list ap)
{
    for (p->n = 0; *fmt; fmt++) {
        const int64_t *optional;
        struct str s;
        int i = p->n++;
        p->values[i] = NULL;
        p->formats[i] = 0;
        p->lengths[i] = 0;
        switch (*fmt) {
        case 'i': add_number(p, i, va_arg(ap, int64_t)); break;
        case 'o':
            optional = va_arg(ap, const int64_t *);
            if (optional)
                add_number(p, i, *optional);
            break;
        case 'b': p->values[i] = va_arg(ap, int) ? "t" : "f"; break;
        case 's': p->values[i] = va_arg(ap, const char *); break;
        default:
            s = va_arg(ap, struct str);
            p->values[i] = s.p;
            p->lengths[i] = (int)s.n;
            p->formats[i] = 1;
        }
    }
}

/* Collects the variable arguments of the calling function, which follow fmt. */
#define COLLECT_PARAMS(p, fmt) \
    do { \
        va_list ap; \
        va_start(ap, fmt); \
        params_collect(p, fmt, ap); \
        va_end(ap); \
    } while (0)

/* ---- sending ---- */

static PGconn *conn_of(const struct pg_store *st, enum pg_link link)
{
    return link == PG_MAIN ? st->db : st->reader;
}

/* Prepares a statement on a connection unless it is prepared there, and writes its name. The name
 * is "" if prepared statements cannot be relied on. */
static int prepare_cached(struct pg_store *st, enum pg_link link, struct pg_cached *c,
                          char name[STATEMENT_NAME], struct error *err)
{
    name[0] = '\0';
    if (st->pooled || st->exposed)
        return 0;
    snprintf(name, STATEMENT_NAME, "outbox_%zu", (size_t)(c - st->cached));
    if (c->generation[link] == st->generation[link])
        return 0;

    PGconn *db = conn_of(st, link);
    PGresult *r = NULL;
    if (PQsendPrepare(db, name, c->text, 0, NULL))
        r = pg_last_result(st, db);
    r = pg_checked(st, db, r, err);
    PQclear(r);
    if (!r)
        return -1;
    c->generation[link] = st->generation[link];
    return 0;
}

/* Sends a statement and the search_path it needs in one transaction. Like libpq's functions,
 * returns 1 if they were sent. */
static int send_with_path(struct pg_store *st, const char *text, const struct params *p, int binary)
{
    PGconn *db = st->db;
    if (!PQenterPipelineMode(db))
        return 0;
    if (!PQsendQueryParams(db, "SELECT " SET_PATH, 0, NULL, NULL, NULL, NULL, 0))
        return 0;
    if (!PQsendQueryParams(db, text, p->n, NULL, p->values, p->lengths, p->formats, binary))
        return 0;
    if (!PQpipelineSync(db))
        return 0;
    for (PGresult *r; (r = pg_next_result(st, db));)
        PQclear(r); /* of setting the path */
    return 1;
}

/* Resets the encoding after a handler changed it on an exposed connection. */
static int speak_utf8(struct pg_store *st, struct error *err)
{
    if (!st->exposed)
        return 0;
    if (strcmp(pg_encoding_to_char(PQclientEncoding(st->db)), "UTF8") == 0)
        return 0;
    if (PQsetClientEncoding(st->db, "UTF8") == 0)
        return 0;
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                     "%s: a handler changed client_encoding, and it cannot be restored", st->shown);
}

/* Sends a statement on one of our connections. */
static int send_statement(struct pg_store *st, enum pg_link link, const char *sql,
                          const struct params *p, int binary, struct error *err)
{
    char name[STATEMENT_NAME];
    int ready = link == PG_READER ? pg_reader_ready(st, err) : pg_ready(st, err);
    if (ready != 0)
        return -1;
    if (link == PG_MAIN && speak_utf8(st, err) != 0)
        return -1;
    enum path path = path_for(st, link, sql);
    if (path == PATH_CHANGED && path_change(st, err) != 0)
        return -1;
    struct pg_cached *c = find_cached(st, sql, err);
    if (!c || prepare_cached(st, link, c, name, err) != 0) {
        path_restore(st);
        return -1;
    }

    PGconn *db = conn_of(st, link);
    int sent;
    if (link == PG_MAIN)
        pg_clear_results(db);
    if (path == PATH_SENT_ALONG)
        sent = send_with_path(st, c->text, p, binary);
    else if (*name)
        sent = PQsendQueryPrepared(db, name, p->n, p->values, p->lengths, p->formats, binary);
    else
        sent = PQsendQueryParams(db, c->text, p->n, NULL, p->values, p->lengths, p->formats,
                                 binary);
    return sent ? 0 : pg_fail(st, db, NULL, err);
}

/* Sends a statement and waits for its rows. */
static PGresult *run_statement(struct pg_store *st, const char *sql, const struct params *p,
                               struct error *err)
{
    if (send_statement(st, PG_MAIN, sql, p, 0, err) != 0)
        return NULL;
    PGresult *r = pg_last_result(st, st->db);
    path_restore(st);
    return pg_checked(st, st->db, r, err);
}

/* ---- statements ---- */

PGresult *pg_query(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...)
{
    struct params p;
    COLLECT_PARAMS(&p, fmt);
    return run_statement(st, sql, &p, err);
}

int pg_query_number(struct pg_store *st, struct error *err, int64_t *ret, const char *sql,
                    const char *fmt, ...)
{
    struct params p;
    COLLECT_PARAMS(&p, fmt);
    PGresult *r = run_statement(st, sql, &p, err);
    if (!r)
        return -1;
    *ret = 0;
    if (PQntuples(r) > 0)
        *ret = pg_true(r, 0, 0) ? 1 : pg_int(r, 0, 0);
    PQclear(r);
    return 0;
}

int pg_start(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...)
{
    struct params p;
    COLLECT_PARAMS(&p, fmt);
    return send_statement(st, PG_MAIN, sql, &p, 1, err);
}

/* Reads all results: the rows come first, and a failed commit, or its unknown outcome, is reported
 * after them. */
PGresult *pg_finish(struct pg_store *st, struct error *err)
{
    PGresult *said = pg_result(st, st->db);
    for (PGresult *r; (r = pg_result(st, st->db));) {
        bool worse = pg_went_well(said) && !pg_went_well(r);
        PGresult *less = r;
        if (worse) {
            less = said;
            said = r;
        }
        PQclear(less);
    }
    path_restore(st);
    return pg_checked(st, st->db, said, err);
}

int pg_exec(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...)
{
    struct params p;
    COLLECT_PARAMS(&p, fmt);
    PGresult *r = run_statement(st, sql, &p, err);
    PQclear(r);
    return r ? 0 : -1;
}

PGresult *pg_query_on(struct pg_store *st, PGconn *db, struct error *err, const char *sql,
                      const char *fmt, ...)
{
    struct params p;
    COLLECT_PARAMS(&p, fmt);
    if (!db)
        return run_statement(st, sql, &p, err);
    const char *text = pg_emit_text(st, sql);
    PGresult *r = PQexecParams(db, text, p.n, NULL, p.values, p.lengths, p.formats, 0);
    return pg_checked(st, db, r, err);
}

/* ---- rows, one at a time ---- */

int pg_send(struct pg_store *st, enum pg_link link, struct error *err, const char *sql,
            const char *fmt, ...)
{
    struct params p;
    COLLECT_PARAMS(&p, fmt);
    if (send_statement(st, link, sql, &p, 1, err) != 0)
        return -1;
    PGconn *db = conn_of(st, link);
    bool started = PQsetSingleRowMode(db) && PQflush(db) >= 0;
    return started ? 0 : pg_fail(st, db, NULL, err);
}

int pg_next_row(struct pg_store *st, enum pg_link link, PGresult **ret, struct error *err)
{
    PGconn *db = conn_of(st, link);
    PGresult *r = pg_result(st, db);
    if (PQresultStatus(r) == PGRES_SINGLE_TUPLE) {
        *ret = r;
        return 1;
    }

    /* The rows have ended, or an error follows them. */
    int result = 0;
    for (; r; r = pg_result(st, db)) {
        if (!pg_went_well(r) && result == 0)
            result = pg_fail(st, db, r, err);
        PQclear(r);
    }
    if (result == 0 && PQstatus(db) == CONNECTION_BAD)
        result = pg_fail(st, db, NULL, err);
    if (link == PG_MAIN)
        path_restore(st);
    return result;
}

/* Reads the remaining rows, which are usually few and cheaper to read than to cancel. Cancels the
 * statement if they are many. */
void pg_stop(struct pg_store *st, enum pg_link link)
{
    PGconn *db = conn_of(st, link);
    size_t bytes = 0;
    bool cancelled = false;
    for (PGresult *r; (r = pg_result(st, db));) {
        for (int i = 0; PQntuples(r) == 1 && i < PQnfields(r); i++)
            bytes += (size_t)PQgetlength(r, 0, i);
        PQclear(r);
        if (bytes < STOP_BYTES || cancelled)
            continue;
        char why[256];
        PGcancel *c = PQgetCancel(db);
        if (c)
            PQcancel(c, why, sizeof why);
        PQfreeCancel(c);
        cancelled = true;
    }
    if (link == PG_MAIN)
        path_restore(st);
    st->silent = false; /* its outcome does not matter */
}
