/* statement.c: sending statements, reading results, and what PostgreSQL's errors mean. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/text.h"
#include "store/postgres/postgres.h"

#define PARAMS_MAX 32
#define STATEMENT_NAME 16
#define STOP_BYTES (1 << 20) /* of rows that are read rather than cancelled */
#define TLS_LOOK_MS 50
#define LOOK_MS 60000
#define READER_MS 5000 /* reading ahead can be done without, and leases run out meanwhile */

/* ---- errors ---- */

/* The first entry that matches counts. */
static const struct meaning {
    const char *state; /* a prefix of the SQLSTATE */
    enum err_code code;
    enum fate fate;
} meanings[] = {
    {"OB001", ERR_CONFLICT, FATE_RETRY}, {"OB002", ERR_CONFIG, FATE_RETRY},
    {"OB003", ERR_NOTFOUND, FATE_FATAL}, {"OB004", ERR_CONFIG, FATE_FATAL},
    {"OB005", ERR_NEWER, FATE_FATAL},    {"OB006", ERR_CONFIG, FATE_RETRY},
    {"2200H", ERR_CONFIG, FATE_RETRY},   {"42P01", ERR_NOTOURS, FATE_FATAL},
    {"3F000", ERR_NOTOURS, FATE_FATAL},  {"42883", ERR_NOTOURS, FATE_FATAL},
    {"42501", ERR_READONLY, FATE_RETRY}, {"25006", ERR_READONLY, FATE_RETRY},
    {"40001", ERR_BUSY, FATE_RETRY},     {"40P01", ERR_BUSY, FATE_RETRY},
    {"55P03", ERR_BUSY, FATE_RETRY},     {"57014", ERR_BUSY, FATE_RETRY},
    {"53100", ERR_FULL, FATE_RETRY},     {"53", ERR_UNAVAILABLE, FATE_RETRY},
    {"57", ERR_UNAVAILABLE, FATE_RETRY}, {"08", ERR_UNAVAILABLE, FATE_RETRY},
    {"58", ERR_UNAVAILABLE, FATE_RETRY}, {"28", ERR_UNAVAILABLE, FATE_RETRY},
    {"22", ERR_INVALID, FATE_REJECT},    {"23", ERR_INVALID, FATE_REJECT},
    {"25", ERR_MISUSE, FATE_RETRY},
};

/* meaning_of returns what a SQLSTATE means to us. */
static struct meaning meaning_of(const char *state)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (strncmp(state, meanings[i].state, strlen(meanings[i].state)) == 0)
            return meanings[i];
    return (struct meaning){"", ERR_INTERNAL, FATE_RETRY};
}

/* one_line copies the first line of a message, without the severity that libpq puts before it. */
static void one_line(const char *from, char *to, size_t size)
{
    size_t n = 0;
    if (strncmp(from, "ERROR:  ", 8) == 0)
        from += 8;
    for (; *from && *from != '\n' && n + 1 < size; from++)
        to[n++] = *from;
    to[n] = '\0';
}

/* advice_for says what to do about an error whose message does not say it. */
static const char *advice_for(const char *state)
{
    if (strcmp(state, "2200H") == 0)
        return "run `outbox status` as the outbox's owner: it puts the sequence right";
    if (strcmp(state, "42501") == 0)
        return "grant the role its part (docs/sql.md, `allow`)";
    if (strcmp(state, "25006") == 0)
        return "connect to the primary, or turn default_transaction_read_only off for this role";
    return NULL;
}

/* fail_without_outbox is what an error means that says something of the outbox is not there. */
static int fail_without_outbox(const struct pg_store *st, enum fate fate, const char *said,
                               struct error *err)
{
    if (st->worked)
        return err_fate(err, ERR_NOTOURS, FATE_RETRY, 0,
                        "%s: the outbox in schema %s is gone, or being restored (%s)", st->shown,
                        st->quoted, said);
    return err_fate(err, ERR_NOTOURS, fate, 0,
                    "%s: no outbox in schema %s, or it is not whole (%s); make one with "
                    "`outbox init`, or restore it",
                    st->shown, st->quoted, said);
}

/* fail_as is what an error of the server with a SQLSTATE becomes. */
static int fail_as(struct pg_store *st, const char *state, const PGresult *r, struct error *err)
{
    struct meaning m = meaning_of(state);
    char said[300];
    one_line(PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY), said, sizeof said);
    if (m.code == ERR_NOTOURS)
        return fail_without_outbox(st, m.fate, said, err);
    if (m.code == ERR_INTERNAL)
        return err_fate(err, m.code, m.fate, 0, "%s: %s (SQLSTATE %s)", st->shown, said, state);

    const char *advice = advice_for(state);
    if (!advice)
        advice = PQresultErrorField(r, PG_DIAG_MESSAGE_HINT);
    if (!advice)
        return err_fate(err, m.code, m.fate, 0, "%s: %s", st->shown, said);
    return err_fate(err, m.code, m.fate, 0, "%s: %s; %s", st->shown, said, advice);
}

/* fail_lost reports a connection that broke, or a failure of libpq's own. */
static int fail_lost(const struct pg_store *st, const PGconn *db, const PGresult *r,
                     struct error *err)
{
    char said[300];
    const char *message = PQresultErrorMessage(r);
    if (*message == '\0')
        message = PQerrorMessage(db);
    one_line(message, said, sizeof said);
    if (*said == '\0')
        snprintf(said, sizeof said, "the connection was lost");
    return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0, "%s: %s", st->shown, said);
}

/* fail_silent reports a connection that was given up. */
static int fail_silent(struct pg_store *st, struct error *err)
{
    char limit[32];
    text_duration_show(st->answer_ms, limit);
    st->silent = false;
    return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0, "%s: the server has not answered for %s",
                    st->shown, limit);
}

/* outdated says whether the error is about something prepared: a plan for tables that were made
 * anew, or a statement that does not exist any more. */
static bool outdated(const char *state)
{
    return strcmp(state, "0A000") == 0 || strcmp(state, "26000") == 0;
}

int pg_fail(struct pg_store *st, PGconn *db, const PGresult *r, struct error *err)
{
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    bool coded = state != NULL;
    if (!coded)
        state = "";
    snprintf(st->state, sizeof st->state, "%s", state);
    if (db == st->db && outdated(state))
        st->stale = true;

    if (st->silent)
        return fail_silent(st, err);
    if (PQstatus(db) == CONNECTION_BAD || !coded)
        return fail_lost(st, db, r, err);
    return fail_as(st, state, r, err);
}

/* ---- waiting ---- */

/* answer_limit returns for how many milliseconds the server may be silent; 0: no limit. */
static int64_t answer_limit(const struct pg_store *st, const PGconn *db)
{
    if (st->patient || st->opt.any_version)
        return 0;
    if (db == st->reader && st->answer_ms > READER_MS)
        return READER_MS;
    return st->answer_ms;
}

/* wait_for waits until a result can be had without waiting. Returns false if nothing came for too
 * long: a connection whose other end vanished never says anything, and TCP does not notice. It goes
 * by the machine's own clock, whatever clock the store is given, because this is about a real
 * socket. The socket does not tell what TLS has read already, so with TLS it looks now and then. */
static bool wait_for(const struct pg_store *st, PGconn *db)
{
    int64_t limit = answer_limit(st, db);
    int64_t since = clock_mono(&clock_system);
    int64_t most = PQsslInUse(db) ? TLS_LOOK_MS : LOOK_MS;
    while (PQisBusy(db)) {
        int64_t wait = most;
        if (limit > 0) {
            int64_t left = limit - (clock_mono(&clock_system) - since) / MS_NS;
            if (left <= 0)
                return false;
            if (left < most)
                wait = left;
        }

        struct pollfd fd = {.fd = PQsocket(db), .events = POLLIN};
        int n = poll(&fd, 1, (int)wait);
        bool broken = n < 0 && errno != EINTR;
        if (broken || !PQconsumeInput(db))
            return true; /* PQgetResult knows what to say */
        if (n > 0)
            since = clock_mono(&clock_system);
    }
    return true;
}

/* next_result is PQgetResult with the limit. */
static PGresult *next_result(struct pg_store *st, PGconn *db)
{
    if (!wait_for(st, db)) {
        st->silent = true;
        shutdown(PQsocket(db), SHUT_RDWR); /* to libpq it looks as if the server had gone */
    }
    return PQgetResult(db);
}

/* pg_result also ends what send_with_path began. That ends with a mark, and if its commit failed,
 * the error comes before the mark. */
PGresult *pg_result(struct pg_store *st, PGconn *db)
{
    PGresult *r = next_result(st, db);
    if (r || PQpipelineStatus(db) == PQ_PIPELINE_OFF)
        return r;
    r = next_result(st, db);
    if (r && PQresultStatus(r) != PGRES_PIPELINE_SYNC)
        return r;
    PQclear(r);
    PQexitPipelineMode(db);
    return NULL;
}

PGresult *pg_last_result(struct pg_store *st, PGconn *db)
{
    PGresult *last = NULL;
    for (PGresult *r; (r = pg_result(st, db));) {
        PQclear(last);
        last = r;
        if (PQstatus(db) == CONNECTION_BAD)
            break;
    }
    return last;
}

void pg_clear_results(PGconn *db)
{
    if (PQtransactionStatus(db) == PQTRANS_ACTIVE)
        PQclear(PQexec(db, ""));
}

/* ---- commands ---- */

static bool went_well(const PGresult *r)
{
    ExecStatusType s = PQresultStatus(r);
    return s == PGRES_TUPLES_OK || s == PGRES_COMMAND_OK || s == PGRES_SINGLE_TUPLE;
}

PGresult *pg_ask(struct pg_store *st, PGconn *db, const char *text)
{
    if (!PQsendQuery(db, text))
        return NULL;
    return pg_last_result(st, db);
}

int pg_command(struct pg_store *st, PGconn *db, const char *text, struct error *err)
{
    int result = 0;
    PGresult *r = pg_ask(st, db, text);
    if (!went_well(r))
        result = pg_fail(st, db, r, err);
    PQclear(r);
    return result;
}

int pg_simple(struct pg_store *st, const char *text, struct error *err)
{
    pg_clear_results(st->db);
    return pg_command(st, st->db, text, err);
}

int pg_script(struct pg_store *st, const char *sql, struct error *err)
{
    char *text = pg_expand(st, sql);
    if (!text)
        return err_nomem(err);
    int result = pg_simple(st, text, err);
    free(text);
    return result;
}

/* ---- texts ---- */

/* put_mark writes what the mark at p stands for, and returns the length of the mark; 0: there is
 * none. */
static size_t put_mark(const struct pg_store *st, const char *p, bool in_literal, struct buf *b)
{
    static const char schema[] = "@schema@", version[] = "@version@";
    if (strncmp(p, schema, sizeof schema - 1) == 0) {
        buf_adds(b, in_literal ? st->literal : st->quoted);
        return sizeof schema - 1;
    }
    if (strncmp(p, version, sizeof version - 1) == 0) {
        buf_addf(b, "%d", PG_SCHEMA_VERSION);
        return sizeof version - 1;
    }
    return 0;
}

/* pg_expand doubles the single quotes of the schema's name inside a literal. A literal begins and
 * ends with a single quote, so the two that stand for one inside it make no difference. In a
 * comment quotes mean nothing. */
char *pg_expand(const struct pg_store *st, const char *sql)
{
    struct buf b;
    bool literal = false;
    buf_init(&b, 1 << 20);
    for (const char *p = sql; *p;) {
        if (*p == '@') {
            size_t mark = put_mark(st, p, literal, &b);
            p += mark;
            if (mark > 0)
                continue;
        }
        bool comment = !literal && strncmp(p, "--", 2) == 0;
        size_t n = comment ? strcspn(p, "\n") : 1;
        if (*p == '\'')
            literal = !literal;
        buf_add(&b, p, n);
        p += n;
    }
    const char *whole = buf_cstr(&b);
    char *text = whole ? strdup(whole) : NULL;
    buf_release(&b);
    return text;
}

/* find_cached returns the statement with its text; NULL on failure. */
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

/* collect takes the parameters. A struct str goes in binary form, which for text, json and the like
 * is the bytes themselves: they need no NUL behind them. */
static void collect(struct params *p, const char *fmt, va_list ap)
{
    p->n = 0;
    for (; *fmt; fmt++) {
        int i = p->n++;
        p->formats[i] = 0;
        p->lengths[i] = 0;
        if (*fmt == 'i') {
            snprintf(p->numbers[i], sizeof p->numbers[i], "%lld", (long long)va_arg(ap, int64_t));
            p->values[i] = p->numbers[i];
        } else if (*fmt == 'b') {
            p->values[i] = va_arg(ap, int) ? "t" : "f";
        } else if (*fmt == 's') {
            p->values[i] = va_arg(ap, const char *);
        } else {
            struct str s = va_arg(ap, struct str);
            p->values[i] = s.p;
            p->lengths[i] = (int)s.n;
            p->formats[i] = 1;
        }
    }
}

/* ---- the search_path of a statement ---- */

/* Our statements write most names without a schema, and mean the server's own. If the search_path
 * were somebody else's, whoever may create things there could have them run in place of the
 * server's, with our rights. On a connection of our own, set_up in connect.c sees to that. In a
 * transaction that we share with the application the path is changed for the statement and put
 * back. Behind a pooler each statement brings its path along. A statement that begins with PG_NAMED
 * needs none of this. */
enum path { PATH_IS_OURS, PATH_CHANGED, PATH_SENT_ALONG };

#define SET_PATH "pg_catalog.set_config('search_path', '" PG_PATH "', true)"

static enum path path_for(const struct pg_store *st, enum pg_link link, const char *sql)
{
    bool named = strncmp(sql, PG_NAMED, sizeof PG_NAMED - 1) == 0;
    if (named || link == PG_READER)
        return PATH_IS_OURS;
    if (st->in_tx)
        return st->tx_shared ? PATH_CHANGED : PATH_IS_OURS;
    if (st->pooled || st->lent)
        return PATH_SENT_ALONG;
    return PATH_IS_OURS;
}

/* change_path sets our search_path for a statement, and notes the application's. */
static int change_path(struct pg_store *st, struct error *err)
{
    pg_clear_results(st->db);
    PGresult *r = pg_ask(st, st->db, "SELECT pg_catalog.current_setting('search_path'), " SET_PATH);
    free(st->path_was);
    st->path_was = NULL;
    if (!went_well(r)) {
        pg_fail(st, st->db, r, err);
        PQclear(r);
        return -1;
    }
    st->path_was = strdup(PQgetvalue(r, 0, 0));
    PQclear(r);
    return st->path_was ? 0 : err_nomem(err);
}

/* restore_path puts the path back that change_path changed. In a transaction that has failed it
 * cannot be done, and the end of the transaction does it. */
static void restore_path(struct pg_store *st)
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

/* ---- sending ---- */

static PGconn *conn_of(const struct pg_store *st, enum pg_link link)
{
    return link == PG_MAIN ? st->db : st->reader;
}

/* link_ready connects one of our connections if need be. */
static int link_ready(struct pg_store *st, enum pg_link link, struct error *err)
{
    if (link == PG_READER)
        return pg_reader_ready(st, err);
    if (pg_ready(st, err) != 0)
        return -1;
    return pg_speak_utf8(st, err);
}

/* prepare prepares a statement on the connection, once, and writes its name there. The name is ""
 * if prepared statements cannot be relied on. */
static int prepare(struct pg_store *st, enum pg_link link, struct pg_cached *c,
                   char name[STATEMENT_NAME], struct error *err)
{
    name[0] = '\0';
    if (st->pooled || st->lent)
        return 0;
    snprintf(name, STATEMENT_NAME, "outbox_%zu", (size_t)(c - st->cached));
    if (c->generation[link] == st->generation[link])
        return 0;

    PGconn *db = conn_of(st, link);
    PGresult *r = NULL;
    int result = 0;
    if (PQsendPrepare(db, name, c->text, 0, NULL))
        r = pg_last_result(st, db);
    if (PQresultStatus(r) == PGRES_COMMAND_OK)
        c->generation[link] = st->generation[link];
    else
        result = pg_fail(st, db, r, err);
    PQclear(r);
    return result;
}

/* send_with_path sends a statement and the search_path it needs in one transaction. Returns whether
 * it was sent, as libpq's functions do. */
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
    for (PGresult *r; (r = next_result(st, db));)
        PQclear(r); /* of setting the path */
    return 1;
}

/* send_statement sends a statement on one of our connections. */
static int send_statement(struct pg_store *st, enum pg_link link, const char *sql,
                          const struct params *p, int binary, struct error *err)
{
    char name[STATEMENT_NAME];
    if (link_ready(st, link, err) != 0)
        return -1;
    enum path path = path_for(st, link, sql);
    if (path == PATH_CHANGED && change_path(st, err) != 0)
        return -1;
    struct pg_cached *c = find_cached(st, sql, err);
    if (!c || prepare(st, link, c, name, err) != 0) {
        restore_path(st);
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

/* take returns a result that went well, and clears one that did not. */
static PGresult *take(struct pg_store *st, PGconn *db, PGresult *r, struct error *err)
{
    if (went_well(r))
        return r;
    pg_fail(st, db, r, err);
    PQclear(r);
    return NULL;
}

/* run sends a statement and waits for its rows. */
static PGresult *run(struct pg_store *st, const char *sql, const struct params *p,
                     struct error *err)
{
    if (send_statement(st, PG_MAIN, sql, p, 0, err) != 0)
        return NULL;
    PGresult *r = pg_last_result(st, st->db);
    restore_path(st);
    return take(st, st->db, r, err);
}

/* ---- statements ---- */

PGresult *pg_query(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...)
{
    struct params p;
    va_list ap;
    va_start(ap, fmt);
    collect(&p, fmt, ap);
    va_end(ap);
    return run(st, sql, &p, err);
}

int pg_start(struct pg_store *st, struct error *err, const char *sql, const char *fmt, ...)
{
    struct params p;
    va_list ap;
    va_start(ap, fmt);
    collect(&p, fmt, ap);
    va_end(ap);
    return send_statement(st, PG_MAIN, sql, &p, 0, err);
}

/* pg_finish reads to the end: the rows come before the commit, and that the commit failed, or that
 * nobody can tell, comes after them. */
PGresult *pg_finish(struct pg_store *st, struct error *err)
{
    PGresult *said = pg_result(st, st->db);
    for (PGresult *r; (r = pg_result(st, st->db));) {
        bool worse = went_well(said) && !went_well(r);
        PGresult *less = r;
        if (worse) {
            less = said;
            said = r;
        }
        PQclear(less);
    }
    restore_path(st);
    return take(st, st->db, said, err);
}

int pg_exec(struct pg_store *st, struct error *err, int64_t *ret_n, const char *sql,
            const char *fmt, ...)
{
    struct params p;
    va_list ap;
    va_start(ap, fmt);
    collect(&p, fmt, ap);
    va_end(ap);
    PGresult *r = run(st, sql, &p, err);
    if (!r)
        return -1;
    if (ret_n)
        *ret_n = strtoll(PQcmdTuples(r), NULL, 10);
    PQclear(r);
    return 0;
}

PGresult *pg_query_on(struct pg_store *st, PGconn *db, struct error *err, const char *text,
                      const char *fmt, ...)
{
    struct params p;
    va_list ap;
    va_start(ap, fmt);
    collect(&p, fmt, ap);
    va_end(ap);
    PGresult *r = PQexecParams(db, text, p.n, NULL, p.values, p.lengths, p.formats, 0);
    return take(st, db, r, err);
}

/* ---- rows, one at a time ---- */

int pg_send(struct pg_store *st, enum pg_link link, struct error *err, const char *sql,
            const char *fmt, ...)
{
    struct params p;
    va_list ap;
    va_start(ap, fmt);
    collect(&p, fmt, ap);
    va_end(ap);
    if (send_statement(st, link, sql, &p, 1, err) != 0)
        return -1;
    PGconn *db = conn_of(st, link);
    bool started = PQsetSingleRowMode(db) && PQflush(db) >= 0;
    return started ? 0 : pg_fail(st, db, NULL, err);
}

/* read_end reads what comes after the last row: the end, or an error. */
static int read_end(struct pg_store *st, PGconn *db, PGresult *r, struct error *err)
{
    int result = 0;
    for (; r; r = pg_result(st, db)) {
        if (!went_well(r) && result == 0)
            result = pg_fail(st, db, r, err);
        PQclear(r);
    }
    if (result == 0 && PQstatus(db) == CONNECTION_BAD)
        result = pg_fail(st, db, NULL, err);
    return result;
}

int pg_next_row(struct pg_store *st, enum pg_link link, PGresult **ret, struct error *err)
{
    PGconn *db = conn_of(st, link);
    PGresult *r = pg_result(st, db);
    if (PQresultStatus(r) == PGRES_SINGLE_TUPLE) {
        *ret = r;
        return 1;
    }
    int result = read_end(st, db, r, err);
    if (link == PG_MAIN)
        restore_path(st);
    return result;
}

/* row_size counts the bytes of a row; 0 if the result has none. */
static size_t row_size(const PGresult *r)
{
    size_t bytes = 0;
    if (PQntuples(r) != 1)
        return 0;
    for (int i = 0; i < PQnfields(r); i++)
        bytes += (size_t)PQgetlength(r, 0, i);
    return bytes;
}

/* cancel has the server stop, and discards what it has sent. */
static void cancel(struct pg_store *st, PGconn *db)
{
    char why[256];
    PGcancel *c = PQgetCancel(db);
    if (c)
        PQcancel(c, why, sizeof why);
    PQfreeCancel(c);
    for (PGresult *r; (r = pg_result(st, db));)
        PQclear(r);
}

/* pg_stop reads what is left, which is mostly little: that is cheaper than to cancel it. */
void pg_stop(struct pg_store *st, enum pg_link link)
{
    PGconn *db = conn_of(st, link);
    PGresult *r;
    size_t bytes = 0;
    while (bytes < STOP_BYTES && (r = pg_result(st, db))) {
        bytes += row_size(r);
        PQclear(r);
    }
    if (bytes >= STOP_BYTES)
        cancel(st, db);
    if (link == PG_MAIN)
        restore_path(st);
    st->silent = false; /* nobody asks what became of it */
}

/* ---- values ---- */

int64_t pg_int(const PGresult *r, int row, int col)
{
    return PQgetisnull(r, row, col) ? 0 : strtoll(PQgetvalue(r, row, col), NULL, 10);
}

bool pg_true(const PGresult *r, int row, int col)
{
    return *PQgetvalue(r, row, col) == 't';
}

const char *pg_str(const PGresult *r, int row, int col)
{
    return PQgetisnull(r, row, col) ? NULL : PQgetvalue(r, row, col);
}

const char *pg_copy(const PGresult *r, int row, int col, struct arena *a, bool *ok)
{
    if (PQgetisnull(r, row, col))
        return NULL;
    const char *s = arena_bytes(a, PQgetvalue(r, row, col), (size_t)PQgetlength(r, row, col));
    if (!s)
        *ok = false;
    return s;
}
