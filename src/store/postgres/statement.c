/* statement.c: statements, parameters, and what PostgreSQL's errors mean to us. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/text.h"
#include "store/postgres/postgres.h"

#define PARAMS_MAX 32
#define STOP_BYTES (1 << 20)
#define TLS_LOOK_MS 50
#define READER_MS 5000 /* what is read ahead can be done without, and leases run out meanwhile */

/* ---- errors ---- */

static const struct {
    const char *state; /* a prefix of the SQLSTATE */
    enum err_code code;
    enum fate fate;
} states[] = {
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

/* one_line copies the first line of a message, without what libpq puts before and behind it. */
static void one_line(const char *from, char *to, size_t size)
{
    size_t n = 0;
    if (strncmp(from, "ERROR:  ", 8) == 0)
        from += 8;
    for (; *from && *from != '\n' && n + 1 < size; from++)
        to[n++] = *from;
    to[n] = '\0';
}

static int fail_as(struct pg_store *st, const char *state, const char *message, const char *hint,
                   struct error *err)
{
    enum err_code code = ERR_INTERNAL;
    enum fate fate = FATE_RETRY;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        if (strncmp(state, states[i].state, strlen(states[i].state)) != 0)
            continue;
        code = states[i].code;
        fate = states[i].fate;
        break;
    }
    char said[300];
    one_line(message, said, sizeof said);
    if (code == ERR_NOTOURS && st->worked)
        return err_fate(err, code, FATE_RETRY, 0,
                        "%s: the outbox in schema %s is gone, or being restored (%s)", st->shown,
                        st->quoted, said);
    if (code == ERR_NOTOURS)
        return err_fate(err, code, fate, 0,
                        "%s: no outbox in schema %s, or it is not whole (%s); make one with "
                        "`outbox init`, or restore it",
                        st->shown, st->quoted, said);
    if (strcmp(state, "2200H") == 0)
        return err_fate(
            err, code, fate, 0,
            "%s: %s; run `outbox status` as the outbox's owner: it puts the sequence right",
            st->shown, said);
    if (strcmp(state, "42501") == 0)
        return err_fate(err, code, fate, 0,
                        "%s: %s; grant the role its part (docs/sql.md, `allow`)", st->shown, said);
    if (strcmp(state, "25006") == 0)
        return err_fate(err, code, fate, 0,
                        "%s: %s; connect to the primary, or turn default_transaction_read_only off "
                        "for this role",
                        st->shown, said);
    if (code == ERR_INTERNAL)
        return err_fate(err, code, fate, 0, "%s: %s (SQLSTATE %s)", st->shown, said, state);
    return err_fate(err, code, fate, 0, "%s: %s%s%s", st->shown, said, hint ? "; " : "",
                    hint ? hint : "");
}

int pg_fail(struct pg_store *st, PGconn *db, const PGresult *r, struct error *err)
{
    const char *state = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;
    char said[300];
    snprintf(st->state, sizeof st->state, "%s", state ? state : "");
    /* A plan for tables that were made anew, or a statement that is not there. */
    bool stale = db == st->db &&
                 (strcmp(st->state, "0A000") == 0 || strcmp(st->state, "26000") == 0);
    if (stale)
        st->stale = true;
    if (st->silent) {
        text_duration_show(st->answer_ms, said);
        st->silent = false;
        return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0,
                        "%s: the server has not answered for %s", st->shown, said);
    }
    if (PQstatus(db) == CONNECTION_BAD || !state) {
        one_line(r && *PQresultErrorMessage(r) ? PQresultErrorMessage(r) : PQerrorMessage(db), said,
                 sizeof said);
        return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0, "%s: %s", st->shown,
                        *said ? said : "the connection was lost");
    }
    return fail_as(st, state, PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY),
                   PQresultErrorField(r, PG_DIAG_MESSAGE_HINT), err);
}

/* ---- waiting ---- */

/* wait_for waits until a result can be had without waiting; false: nothing came for too long. A
 * connection whose other end is gone without a word, or which leads through something that
 * swallows, never says anything, and TCP does not notice. The machine's own clock, whatever the
 * store goes by: this is about a real socket. What TLS has read already the socket does not tell,
 * so there it is looked at now and then. */
static bool wait_for(const struct pg_store *st, PGconn *db)
{
    bool limited = st->answer_ms > 0 && !st->patient && !st->opt.any_version;
    int64_t limit = db == st->reader && st->answer_ms > READER_MS ? READER_MS : st->answer_ms;
    int64_t since = clock_mono(&clock_system), most = PQsslInUse(db) ? TLS_LOOK_MS : 60000;
    while (PQisBusy(db)) {
        struct pollfd fd = {.fd = PQsocket(db), .events = POLLIN};
        int64_t left = limited ? limit - (clock_mono(&clock_system) - since) / MS_NS : most;
        if (left <= 0)
            return false;
        int n = poll(&fd, 1, (int)(left < most ? left : most));
        /* PQgetResult knows what to say */
        if ((n < 0 && errno != EINTR) || !PQconsumeInput(db))
            return true;
        if (n > 0)
            since = clock_mono(&clock_system);
    }
    return true;
}

static PGresult *next_result(struct pg_store *st, PGconn *db)
{
    if (!wait_for(st, db)) {
        st->silent = true;
        shutdown(PQsocket(db), SHUT_RDWR); /* for libpq as if the server had gone */
    }
    return PQgetResult(db);
}

/* pg_result: what send_with_path sent ends with a mark, and that the commit failed comes before
 * it. */
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

void pg_clear_results(PGconn *db)
{
    if (PQtransactionStatus(db) == PQTRANS_ACTIVE)
        PQclear(PQexec(db, ""));
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

/* ---- texts ---- */

/* put_mark writes what stands for the mark at p, and gives how long the mark is; 0: it is none. */
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

/* pg_expand: in a literal the schema's name has its single quotes doubled. A literal begins and
 * ends with a single quote, and two of them in it leave it as it is; in a comment they mean
 * nothing. */
char *pg_expand(const struct pg_store *st, const char *sql)
{
    struct buf b;
    bool literal = false;
    buf_init(&b, 1 << 20);
    for (const char *p = sql; *p;) {
        size_t n = 1, mark = 0;
        if (!literal && strncmp(p, "--", 2) == 0)
            n = strcspn(p, "\n");
        if (*p == '@')
            mark = put_mark(st, p, literal, &b);
        if (*p == '\'')
            literal = !literal;
        if (!mark)
            buf_add(&b, p, n);
        p += mark ? mark : n;
    }
    char *text = buf_cstr(&b) ? strdup(b.p) : NULL;
    buf_release(&b);
    return text;
}

static int find(struct pg_store *st, const char *sql, size_t *ret, struct error *err)
{
    for (size_t i = 0; i < st->n_cached; i++)
        if (st->cached[i].sql == sql) {
            *ret = i;
            return 0;
        }
    if (st->n_cached == PG_STATEMENTS_MAX)
        return err_set(err, ERR_INTERNAL, "statement cache is full");
    char *text = pg_expand(st, sql);
    if (!text)
        return err_nomem(err);
    st->cached[st->n_cached].sql = sql;
    st->cached[st->n_cached].text = text;
    st->cached[st->n_cached].generation = 0;
    *ret = st->n_cached++;
    return 0;
}

/* ---- parameters ---- */

struct params {
    const char *values[PARAMS_MAX];
    int lengths[PARAMS_MAX];
    int formats[PARAMS_MAX];
    char numbers[PARAMS_MAX][24];
    int n;
};

/* Texts are sent in binary form, which for text, json and the like is the bytes themselves: no NUL
 * needed behind them. */
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

/* name_of gives the statement's name on the server, having prepared it there; "" where that cannot
 * be relied on. */
static int name_of(struct pg_store *st, enum pg_link link, size_t i, char name[16],
                   struct error *err)
{
    PGconn *db = link == PG_MAIN ? st->db : st->reader;
    unsigned now = link == PG_MAIN ? st->generation : st->reader_generation;
    unsigned *there = link == PG_MAIN ? &st->cached[i].generation
                                      : &st->cached[i].reader_generation;
    name[0] = '\0';
    if (st->pooled || st->lent)
        return 0;
    snprintf(name, 16, "outbox_%zu", i);
    if (*there == now)
        return 0;
    PGresult *r = PQsendPrepare(db, name, st->cached[i].text, 0, NULL) ? pg_last_result(st, db)
                                                                       : NULL;
    int bad = PQresultStatus(r) != PGRES_COMMAND_OK ? pg_fail(st, db, r, err) : 0;
    PQclear(r);
    if (!bad)
        *there = now;
    return bad;
}

static bool went_well(const PGresult *r)
{
    ExecStatusType s = PQresultStatus(r);
    return s == PGRES_TUPLES_OK || s == PGRES_COMMAND_OK || s == PGRES_SINGLE_TUPLE;
}

/* ---- whose names they mean ---- */

/* Our statements write most names without a schema, and mean the server's own. Where names are
 * looked up as somebody else wants it, whoever may create things there could have his own run in
 * their place, with our rights. On our own connections set_up sees to it. Behind a pooler each
 * statement brings the search_path along; in a transaction that we share with the application it is
 * changed for the statement and put back. Statements that begin with PG_NAMED need none of that. */
#define SET_PATH "pg_catalog.set_config('search_path', '" PG_PATH "', true)"

static bool names_are_safe(const struct pg_store *st, const char *sql)
{
    if (strncmp(sql, PG_NAMED, sizeof PG_NAMED - 1) == 0)
        return true;
    if (st->in_tx)
        return !st->tx_shared;
    return !st->pooled && !st->lent;
}

static int take_path(struct pg_store *st, struct error *err)
{
    static const char sql[] = "SELECT pg_catalog.current_setting('search_path'), " SET_PATH;
    pg_clear_results(st->db);
    PGresult *r = PQsendQuery(st->db, sql) ? pg_last_result(st, st->db) : NULL;
    int bad = went_well(r) ? 0 : pg_fail(st, st->db, r, err);
    free(st->path_was);
    st->path_was = bad ? NULL : strdup(PQgetvalue(r, 0, 0));
    PQclear(r);
    if (!bad && !st->path_was)
        bad = err_nomem(err);
    return bad;
}

/* give_path_back: in a transaction that has failed it cannot be done, and its end does it. */
static void give_path_back(struct pg_store *st)
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

/* send_with_path sends a statement in one transaction with the search_path it is to have. */
static int send_with_path(struct pg_store *st, const char *text, const struct params *p, int binary)
{
    PGconn *db = st->db;
    int ok = PQenterPipelineMode(db) &&
             PQsendQueryParams(db, "SELECT " SET_PATH, 0, NULL, NULL, NULL, NULL, 0) &&
             PQsendQueryParams(db, text, p->n, NULL, p->values, p->lengths, p->formats, binary) &&
             PQpipelineSync(db);
    if (!ok)
        return 0;
    for (PGresult *r; (r = next_result(st, db));)
        PQclear(r); /* of the first */
    return 1;
}

/* send_statement sends a statement on one of our connections. */
static int send_statement(struct pg_store *st, enum pg_link link, const char *sql,
                          const struct params *p, int binary, struct error *err)
{
    size_t i = 0;
    char name[16];
    int ok;
    if ((link == PG_MAIN ? pg_ready(st, err) : pg_reader_ready(st, err)) != 0)
        return -1;
    if (link == PG_MAIN && pg_speak_utf8(st, err) != 0)
        return -1;
    PGconn *db = link == PG_MAIN ? st->db : st->reader;
    bool safe = link == PG_READER || names_are_safe(st, sql);
    if (!safe && st->in_tx && take_path(st, err) != 0)
        return -1;
    if (find(st, sql, &i, err) != 0 || name_of(st, link, i, name, err) != 0) {
        give_path_back(st);
        return -1;
    }
    if (link == PG_MAIN)
        pg_clear_results(db);
    if (!safe && !st->in_tx)
        ok = send_with_path(st, st->cached[i].text, p, binary);
    else if (*name)
        ok = PQsendQueryPrepared(db, name, p->n, p->values, p->lengths, p->formats, binary);
    else
        ok = PQsendQueryParams(db, st->cached[i].text, p->n, NULL, p->values, p->lengths,
                               p->formats, binary);
    return ok ? 0 : pg_fail(st, db, NULL, err);
}

static PGresult *run(struct pg_store *st, const char *sql, const struct params *p,
                     struct error *err)
{
    if (send_statement(st, PG_MAIN, sql, p, 0, err) != 0)
        return NULL;
    PGresult *r = pg_last_result(st, st->db);
    give_path_back(st);
    if (went_well(r))
        return r;
    pg_fail(st, st->db, r, err);
    PQclear(r);
    return NULL;
}

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

/* pg_finish: the rows come before the commit. That this failed, or that nobody can tell, comes
 * behind them. */
PGresult *pg_finish(struct pg_store *st, struct error *err)
{
    PGresult *said = pg_result(st, st->db);
    for (PGresult *r; (r = pg_result(st, st->db));) {
        bool worse = went_well(said) && !went_well(r);
        PQclear(worse ? said : r);
        if (worse)
            said = r;
    }
    give_path_back(st);
    if (said && went_well(said))
        return said;
    pg_fail(st, st->db, said, err);
    PQclear(said);
    return NULL;
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
    if (went_well(r))
        return r;
    pg_fail(st, db, r, err);
    PQclear(r);
    return NULL;
}

int pg_simple(struct pg_store *st, const char *text, struct error *err)
{
    pg_clear_results(st->db);
    PGresult *r = PQsendQuery(st->db, text) ? pg_last_result(st, st->db) : NULL;
    int bad = went_well(r) ? 0 : pg_fail(st, st->db, r, err);
    PQclear(r);
    return bad;
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
    PGconn *db = link == PG_MAIN ? st->db : st->reader;
    int ok = PQsetSingleRowMode(db) && PQflush(db) >= 0;
    return ok ? 0 : pg_fail(st, db, NULL, err);
}

int pg_next_row(struct pg_store *st, enum pg_link link, PGresult **ret, struct error *err)
{
    PGconn *db = link == PG_MAIN ? st->db : st->reader;
    PGresult *r = pg_result(st, db);
    int failed = 0;
    if (r && PQresultStatus(r) == PGRES_SINGLE_TUPLE) {
        *ret = r;
        return 1;
    }
    for (; r; r = pg_result(st, db)) { /* the end, or an error */
        if (!went_well(r) && !failed)
            failed = pg_fail(st, db, r, err);
        PQclear(r);
    }
    if (!failed && PQstatus(db) == CONNECTION_BAD)
        failed = pg_fail(st, db, NULL, err);
    if (link == PG_MAIN)
        give_path_back(st);
    return failed;
}

/* Mostly there is little left, and reading it is cheaper than having it cancelled. */
void pg_stop(struct pg_store *st, enum pg_link link)
{
    PGconn *db = link == PG_MAIN ? st->db : st->reader;
    PGresult *r;
    size_t bytes = 0;
    while (bytes < STOP_BYTES && (r = pg_result(st, db))) {
        for (int i = 0; PQntuples(r) == 1 && i < PQnfields(r); i++)
            bytes += (size_t)PQgetlength(r, 0, i);
        PQclear(r);
    }
    if (bytes >= STOP_BYTES) {
        char why[256];
        PGcancel *c = PQgetCancel(db);
        if (c)
            PQcancel(c, why, sizeof why);
        PQfreeCancel(c);
        while ((r = pg_result(st, db)))
            PQclear(r);
    }
    if (link == PG_MAIN)
        give_path_back(st);
    st->silent = false; /* nobody asks here what became of it */
}

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
