/* connect.c: URLs, connecting and connecting again, transactions, and the table of operations. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/text.h"
#include "store/postgres/handle.h"
#include "store/postgres/postgres.h"

#define PG_OLDEST 15 /* views that ask for the rights of whoever reads them (security_invoker) */
#define ANSWER_MS 60000
#define GONE_AFTER "10s" /* how often the server looks whether we are still there while it works */

extern const struct store_ops store_postgres;

/* ---- URLs ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'         ? c - '0'
           : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10
                                        : -1;
}

/* decode gives the n bytes at p without their percent signs; NULL: out of memory, or not well
 * formed. */
static char *decode(const char *p, size_t n)
{
    char *out = malloc(n + 1), *to = out;
    if (!out)
        return NULL;
    for (const char *end = p + n; p < end;) {
        if (*p != '%') {
            *to++ = *p++;
            continue;
        }
        int high = end - p > 2 ? hex_digit(p[1]) : -1, low = high >= 0 ? hex_digit(p[2]) : -1;
        if (low < 0 || high * 16 + low == 0) {
            free(out);
            return NULL;
        }
        *to++ = (char)(high * 16 + low);
        p += 3;
    }
    *to = '\0';
    return out;
}

/* ours takes one parameter of the query part if it is one of ours; returns whether it was. */
static bool ours(struct pg_store *st, const char *p, size_t n, bool *ok)
{
    static const char *const names[] = {"schema=", "tenant=", "answer_timeout="};
    char **to[] = {&st->schema, &st->tenant, &st->answer};
    for (int i = 0; i < 3; i++) {
        size_t len = strlen(names[i]);
        if (n < len || strncmp(p, names[i], len) != 0)
            continue;
        free(*to[i]);
        *to[i] = decode(p + len, n - len);
        *ok = *ok && *to[i] && **to[i];
        return true;
    }
    return false;
}

static int not_understood(struct error *err)
{
    return err_set(
        err, ERR_CONFIG,
        "the postgres: URL cannot be understood: it is postgres://USER@HOST:PORT/DB?schema=NAME, "
        "with "
        "special characters as %%XX (also in a password), and options as libpq has them");
}

/* find_query gives the URL's query part, NULL if it has none. A password may hold a question mark.
 * One that holds @ or / as it is would be read in pieces, and a message would quote one of them:
 * refused. */
static int find_query(const char *url, const char **ret, struct error *err)
{
    const char *start = strstr(url, "://"), *rest = start ? start + 3 : url;
    const char *user_end = rest + strcspn(rest, "@/");
    if (*user_end == '@')
        rest = user_end + 1;
    const char *query = strchr(rest, '?');
    if (memchr(rest, '@', query ? (size_t)(query - rest) : strlen(rest)))
        return not_understood(err);
    *ret = query;
    return 0;
}

/* split takes what is ours out of the URL; the rest is libpq's. */
static int split(struct pg_store *st, const char *url, struct error *err)
{
    struct buf b;
    const char *query = NULL;
    bool ok = true;
    char glue = '?';
    if (find_query(url, &query, err) != 0)
        return -1;
    buf_init(&b, 1 << 16);
    buf_add(&b, url, query ? (size_t)(query - url) : strlen(url));
    for (const char *p = query ? query + 1 : NULL; p && *p;) {
        size_t n = strcspn(p, "&");
        if (!ours(st, p, n, &ok)) {
            buf_addc(&b, glue);
            buf_add(&b, p, n);
            glue = '&';
        }
        p += n + (p[n] == '&');
    }
    st->conninfo = buf_cstr(&b) ? strdup(b.p) : NULL;
    buf_release(&b);
    if (!ok)
        return err_set(err, ERR_CONFIG,
                       "the store's schema, tenant or answer_timeout is empty or not properly "
                       "percent-encoded");
    st->answer_ms = ANSWER_MS;
    if (st->answer && text_duration(st->answer, &st->answer_ms, err) != 0)
        return err_prefix(err, "answer_timeout in the store's URL");
    return st->conninfo ? 0 : err_nomem(err);
}

#define NOWHERE "/nonexistent/outbox"

/* nowhere names a socket that is not there, as many times as there are hosts. */
static const char *nowhere(PQconninfoOption *opts, struct buf *b)
{
    size_t hosts = 1;
    for (const PQconninfoOption *o = opts; o->keyword; o++) {
        bool names = strcmp(o->keyword, "host") == 0 || strcmp(o->keyword, "hostaddr") == 0;
        size_t n = 1;
        for (const char *p = names && o->val ? o->val : ""; *p; p++)
            n += *p == ',';
        if (n > hosts)
            hosts = n;
    }
    for (size_t i = 0; i < hosts; i++)
        buf_adds(b, i ? "," NOWHERE : NOWHERE);
    return buf_cstr(b);
}

/* check_options has libpq look at its own options, which it does before it connects: so it is sent
 * nowhere. What it says then of anything but the connection is a mistake in the URL, and no use in
 * trying again. */
static int check_options(const struct pg_store *st, PQconninfoOption *opts, struct error *err)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    const char *const names[] = {"dbname", "host", "hostaddr", NULL};
    const char *const values[] = {st->conninfo, nowhere(opts, &b), "", NULL};
    int r = values[1] ? 0 : err_nomem(err);
    PGconn *conn = r == 0 ? PQconnectStartParams(names, values, 1) : NULL;
    const char *said = conn ? PQerrorMessage(conn) : "";
    bool refused = conn && PQstatus(conn) == CONNECTION_BAD && *said && !strstr(said, NOWHERE);
    if (refused)
        r = err_set(err, ERR_CONFIG, "%s: %.*s", st->shown, (int)strcspn(said, "\n"), said);
    PQfinish(conn);
    buf_release(&b);
    return r;
}

/* show makes what messages call this database: never with its password. */
static int show(struct pg_store *st, struct error *err)
{
    char *why = NULL;
    PQconninfoOption *opts = PQconninfoParse(st->conninfo, &why);
    const char *host = NULL, *db = NULL;
    if (!opts) { /* libpq's message may quote a piece of the password */
        PQfreemem(why);
        return not_understood(err);
    }
    for (PQconninfoOption *o = opts; o->keyword; o++) {
        if (strcmp(o->keyword, "host") == 0 || strcmp(o->keyword, "hostaddr") == 0)
            host = o->val ? o->val : host;
        if (strcmp(o->keyword, "dbname") == 0)
            db = o->val;
    }
    char text[256];
    snprintf(text, sizeof text, "postgres:%s%s%s", host ? host : "", host ? "/" : "", db ? db : "");
    st->shown = strdup(text);
    int r = st->shown ? check_options(st, opts, err) : err_nomem(err);
    PQconninfoFree(opts);
    return r;
}

static int quote(struct pg_store *st, struct error *err)
{
    struct buf b;
    /* a line's end would end a comment, too, and what follows it would be read as SQL */
    bool control = false;
    for (const char *p = st->schema; *p; p++)
        control = control || iscntrl((unsigned char)*p);
    if (control || strlen(st->schema) > 63 || strstr(st->schema, "$outbox$") ||
        strncmp(st->schema, "pg_", 3) == 0)
        return err_set(err, ERR_CONFIG,
                       "schema \"%.70s\": a name has at most 63 bytes, no control characters, does "
                       "not begin with pg_ "
                       "and does not contain $outbox$",
                       st->schema);
    buf_init(&b, 1024);
    buf_addc(&b, '"');
    for (const char *p = st->schema; *p; p++) {
        if (*p == '"')
            buf_addc(&b, '"');
        buf_addc(&b, *p);
    }
    buf_addc(&b, '"');
    st->quoted = buf_cstr(&b) ? strdup(b.p) : NULL;
    buf_clear(&b);
    for (const char *p = st->quoted; p && *p; p++) {
        if (*p == '\'')
            buf_addc(&b, '\'');
        buf_addc(&b, *p);
    }
    st->literal = buf_cstr(&b) ? strdup(b.p) : NULL;
    buf_release(&b);
    return st->quoted && st->literal ? 0 : err_nomem(err);
}

/* ---- connecting ---- */

static void ignore_notice(void *ctx, const PGresult *r)
{
    (void)ctx;
    (void)r;
}

/* command runs something on a new connection. */
static int command(struct pg_store *st, PGconn *db, const char *text, const char *param,
                   struct error *err)
{
    int ok = param ? PQsendQueryParams(db, text, 1, NULL, &param, NULL, NULL, 0)
                   : PQsendQuery(db, text);
    PGresult *r = ok ? pg_last_result(st, db) : NULL;
    ExecStatusType s = PQresultStatus(r);
    int bad = s == PGRES_TUPLES_OK || s == PGRES_COMMAND_OK ? 0 : pg_fail(st, db, r, err);
    PQclear(r);
    return bad;
}

/* watch_us has the server end a statement whose client is gone, also while it waits for a lock:
 * else each connection that was given up would leave one behind, until there is no place for the
 * next. Some systems cannot. */
static void watch_us(struct pg_store *st, PGconn *db)
{
    struct error ignored;
    command(st, db, "SET client_connection_check_interval = '" GONE_AFTER "'", NULL, &ignored);
}

/* set_up prepares a new connection. Most settings are for our own statements; behind a pooler a
 * session's settings would be somebody else's tomorrow. */
static int set_up(struct pg_store *st, PGconn *db, struct error *err)
{
    if (command(st, db,
                "SET search_path = " PG_PATH
                "; SET application_name = 'outbox'; SET default_transaction_isolation = 'read "
                "committed'; SET "
                "default_transaction_read_only = off; SET statement_timeout = 0; SET lock_timeout "
                "= 0; SET "
                "idle_in_transaction_session_timeout = 0; SET standard_conforming_strings = on; "
                "SET row_security = on; SET "
                "client_min_messages = warning; SET enable_seqscan = off; SET "
                "enable_bitmapscan = off; SET enable_indexscan = on; SET enable_indexonlyscan = "
                "on; SET enable_nestloop = "
                "on; SET jit = off; SET plan_cache_mode = force_generic_plan",
                NULL, err) != 0)
        return -1;
    if (command(st, db, "SET idle_session_timeout = 0", NULL, err) != 0)
        return -1;
    if (PQserverVersion(db) >= 170000 &&
        command(st, db, "SET transaction_timeout = 0", NULL, err) != 0)
        return -1;
    watch_us(st, db);
    if (st->lent && pg_lend(&st->base, st->idle_ms, err) != 0)
        return -1;
    return st->tenant ? command(st, db, "SELECT pg_catalog.set_config('outbox.tenant', $1, false)",
                                st->tenant, err)
                      : 0;
}

/* check_server refuses a server that our views and functions could not be made on. One that does
 * not say is tried. */
static int check_server(const struct pg_store *st, const PGconn *db, struct error *err)
{
    int version = PQserverVersion(db);
    if (version == 0 || version >= PG_OLDEST * 10000)
        return 0;
    return err_fate(err, ERR_CONFIG, FATE_FATAL, 0,
                    "%s: this server is PostgreSQL %d; an outbox needs %d or later", st->shown,
                    version / 10000, PG_OLDEST);
}

/* dial connects, to the very server that `like` is connected to, if there is one. */
static PGconn *dial(struct pg_store *st, PGconn *like, struct error *err)
{
    /* The later of two settings counts: what the URL says comes after ours, but for the encoding,
     * which is not its to choose. */
    const char *keywords[10] = {"connect_timeout",           "keepalives_idle", "tcp_user_timeout",
                                "fallback_application_name", "dbname",          "client_encoding"};
    const char *values[10] = {"10", "30", "60000", "outbox", st->conninfo, "UTF8"};
    if (like) {
        bool address = *PQhostaddr(like) != '\0';
        keywords[6] = address ? "hostaddr" : "host";
        values[6] = address ? PQhostaddr(like) : PQhost(like);
        keywords[7] = "port";
        values[7] = PQport(like);
    }
    PGconn *db = PQconnectdbParams(keywords, values, 1);
    if (!db) {
        err_nomem(err);
        return NULL;
    }
    PQsetNoticeReceiver(db, ignore_notice, NULL);
    int bad = PQstatus(db) == CONNECTION_OK ? check_server(st, db, err)
                                            : pg_fail(st, db, NULL, err);
    if (!bad)
        return db;
    PQfinish(db);
    return NULL;
}

void pg_reader_close(struct pg_store *st)
{
    PQfinish(st->reader);
    st->reader = NULL;
    st->ahead.sent = st->ahead.ready = st->ahead.kept.there = st->silent = false;
}

static void disconnect(struct pg_store *st)
{
    pg_reader_close(st);
    PQfinish(st->db);
    st->db = NULL;
    free(st->path_was);
    st->path_was = NULL;
    st->vacated = st->vacated || st->bell == BELL_HOLDER;
    st->bell = BELL_AWAKE;
    st->listening = st->rang = st->told = false;
}

/* look_around finds out who answers: if another process than we were told, a pooler stands
 * between. */
static int look_around(struct pg_store *st, struct error *err)
{
    PGresult *r = PQsendQuery(st->db, "SELECT pg_catalog.pg_backend_pid()")
                      ? pg_last_result(st, st->db)
                      : NULL;
    if (PQresultStatus(r) != PGRES_TUPLES_OK) {
        pg_fail(st, st->db, r, err);
        PQclear(r);
        return -1;
    }
    st->pooled = pg_int(r, 0, 0) != PQbackendPID(st->db);
    PQclear(r);
    return st->pooled ? 0 : set_up(st, st->db, err);
}

int pg_ready(struct pg_store *st, struct error *err)
{
    bool fine = st->db && PQstatus(st->db) == CONNECTION_OK;
    if (fine && (st->in_tx || !st->stale))
        return 0;
    if (st->in_tx)
        return err_fate(
            err, ERR_UNAVAILABLE, FATE_RETRY, 0,
            "%s: the connection was lost, and the open transaction with it: begin it again",
            st->shown);
    disconnect(st);
    st->db = dial(st, NULL, err);
    if (!st->db)
        return -1;
    st->generation++;
    st->stale = false;
    if (look_around(st, err) == 0 &&
        (st->opt.create || st->opt.any_version || pg_check(st, err) == 0))
        return 0;
    disconnect(st);
    return -1;
}

/* same_server: what is read ahead must come from where the claims are; a standby, or a server that
 * another one took over from, may lack events, and they would be lost. */
static bool same_server(struct pg_store *st)
{
    static const char sql[] =
        "SELECT pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_is_in_recovery()";
    PGresult *a = PQsendQuery(st->db, sql) ? pg_last_result(st, st->db) : NULL;
    PGresult *b = PQsendQuery(st->reader, sql) ? pg_last_result(st, st->reader) : NULL;
    bool same = PQresultStatus(a) == PGRES_TUPLES_OK && PQresultStatus(b) == PGRES_TUPLES_OK &&
                !pg_true(b, 0, 1) && strcmp(PQgetvalue(a, 0, 0), PQgetvalue(b, 0, 0)) == 0;
    PQclear(a);
    PQclear(b);
    return same;
}

int pg_reader_ready(struct pg_store *st, struct error *err)
{
    if (st->reader && PQstatus(st->reader) == CONNECTION_OK)
        return 0;
    pg_reader_close(st);
    if (st->pooled)
        return err_set(err, ERR_UNAVAILABLE, "nothing is read ahead through a pooler");
    st->reader = dial(st, st->db, err);
    if (!st->reader)
        return -1;
    st->reader_generation++;
    if (set_up(st, st->reader, err) == 0 && same_server(st))
        return 0;
    pg_reader_close(st);
    return err_set(err, ERR_UNAVAILABLE, "%s: the second connection came to another server",
                   st->shown);
}

/* check_tenant: for one who stands above row-level security a tenant would be an empty word, and
 * one who is held to a tenant cannot work for another. Beside that it finds out whether this role
 * may choose the ids of events. */
static int check_tenant(struct pg_store *st, struct error *err)
{
    if (st->tenant && st->pooled)
        return err_set(err, ERR_CONFIG,
                       "%s: a tenant needs a connection of its own, not one of a pool", st->shown);
    PGresult *r = pg_query(st, err,
                           "SELECT row_security_active('@schema@.event'), current_user, "
                           "@schema@._acting_for(current_user), "
                           "has_any_column_privilege('@schema@.event', 'INSERT') AND NOT "
                           "has_column_privilege('@schema@.event', 'id', 'INSERT')",
                           "");
    if (!r)
        return -1;
    int bad = 0;
    st->given_ids = pg_true(r, 0, 3);
    const char *acts = pg_str(r, 0, 2);
    bool another = st->tenant && pg_true(r, 0, 0) && (!acts || strcmp(acts, st->tenant) != 0);
    if (another)
        bad = err_fate(err, ERR_CONFIG, FATE_FATAL, 0,
                       "%s: tenant \"%.60s\" is set, but role \"%.60s\" is held to another; "
                       "connect as another role",
                       st->shown, st->tenant, PQgetvalue(r, 0, 1));
    if (st->tenant && !pg_true(r, 0, 0))
        bad = err_fate(err, ERR_CONFIG, FATE_FATAL, 0,
                       "%s: tenant \"%.60s\" is set, but role \"%.60s\" owns the outbox or "
                       "bypasses row-level security, and "
                       "would see every tenant's events; connect as another role",
                       st->shown, st->tenant, PQgetvalue(r, 0, 1));
    PQclear(r);
    return bad;
}

/* check_home: an outbox that was restored from another cluster, or whose numbers began again, is
 * made right before anybody reads from it. One who may only emit cannot know, and need not. Every
 * claim looks, too: this is for whoever comes first. */
static int check_home(struct pg_store *st, struct error *err)
{
    struct error why;
    PGresult *r = pg_query(
        st, &why,
        "SELECT coalesce(t.moved, t.numbers) IS NOT NULL OR (t.sequence IS NOT NULL AND "
        "pg_has_role(c.relowner, 'USAGE')) "
        "FROM @schema@._trouble() t, pg_catalog.pg_class c WHERE c.oid = '@schema@.event'::regclass",
        "");
    bool moved = r && pg_true(r, 0, 0);
    PQclear(r);
    if (!r && why.code != ERR_READONLY) {
        *err = why;
        return -1;
    }
    if (!moved)
        return 0;
    bool was = st->patient;
    /* it goes through all events, and given up half-way it would begin again each time */
    st->patient = true;
    int bad = pg_exec(st, err, NULL, "SELECT @schema@.rebaseline()", "");
    st->patient = was;
    if (!bad)
        return 0;
    return err_prefix(
        err, "the outbox was moved, or its numbers began again, and must be made right first");
}

static int check(struct pg_store *st, struct error *err)
{
    int64_t version;
    if (pg_version(st, &version, err) != 0)
        return -1;
    if (version == 0)
        return err_fate(err, ERR_NOTOURS, FATE_FATAL, 0,
                        "%s: no outbox in schema %s; make one with `outbox init`", st->shown,
                        st->quoted);
    if (version < PG_SCHEMA_VERSION)
        return err_fate(err, ERR_NOTOURS, FATE_FATAL, 0,
                        "%s: the outbox in schema %s has the older version %lld; upgrade it with "
                        "`outbox migrate up`",
                        st->shown, st->quoted, (long long)version);
    return check_tenant(st, err) == 0 ? check_home(st, err) : -1;
}

/* pg_check: where an outbox was and is not any more, or only a part of it, it is being restored. */
int pg_check(struct pg_store *st, struct error *err)
{
    struct error why;
    bool good = check(st, &why) == 0;
    if (good)
        st->worked = true;
    if (good)
        return 0;
    if (st->worked && why.code == ERR_NOTOURS) {
        why.fate = FATE_RETRY;
        err_prefix(&why, "the outbox is gone, or being restored");
    }
    if (err)
        *err = why;
    return -1;
}

/* ---- handles ---- */

void pg_close(struct store *base)
{
    struct pg_store *st = pg_of(base);
    PQfinish(st->reader);
    PQfinish(st->db);
    for (size_t i = 0; i < st->n_cached; i++)
        free(st->cached[i].text);
    for (int i = 0; i < 3; i++)
        free(st->foreign[i]);
    if (st->rang_fd >= 0)
        close(st->rang_fd);
    arena_release(&st->ahead.a);
    arena_release(&st->ahead.kept.a);
    free(st->path_was);
    free(st->ahead.seen);
    free(st->ahead.target);
    free(st->conninfo);
    free(st->shown);
    free(st->schema);
    free(st->quoted);
    free(st->literal);
    free(st->tenant);
    free(st->answer);
    free(st);
}

static struct pg_store *store_new(const struct store_options *opt)
{
    struct pg_store *st = calloc(1, sizeof *st);
    if (!st)
        return NULL;
    st->base.ops = &store_postgres;
    st->base.caps = store_postgres.caps;
    st->opt = *opt;
    if (!st->opt.clock)
        st->opt.clock = &clock_system;
    if (!st->opt.payload_max)
        st->opt.payload_max = EVENT_PAYLOAD_MAX;
    st->rang_fd = -1;
    arena_init(&st->ahead.a, 0);
    arena_init(&st->ahead.kept.a, 0);
    rng_seed_os(&st->rng);
    return st;
}

struct pg_store *pg_new(const char *url, const char *schema, const struct store_options *opt,
                        struct error *err)
{
    struct pg_store *st = store_new(opt);
    if (!st) {
        err_nomem(err);
        return NULL;
    }
    st->schema = strdup(schema);
    if (!st->schema)
        err_nomem(err);
    else if (split(st, url, err) == 0 && st->schema && show(st, err) == 0 && quote(st, err) == 0)
        return st;
    pg_close(&st->base);
    return NULL;
}

static int pg_open(const char *url, const struct store_options *opt, struct store **ret,
                   struct error *err)
{
    struct pg_store *st = pg_new(url, PG_SCHEMA, opt, err);
    if (!st)
        return -1;
    if (pg_emit_texts(st, err) == 0 && pg_ready(st, err) == 0) {
        *ret = &st->base;
        return 0;
    }
    pg_close(&st->base);
    return -1;
}

static int pg_dup(struct store *base, struct store **ret, struct error *err)
{
    struct pg_store *from = pg_of(base), *st = store_new(&from->opt);
    if (!st)
        return err_nomem(err);
    st->conninfo = strdup(from->conninfo);
    st->shown = strdup(from->shown);
    st->schema = strdup(from->schema);
    st->quoted = strdup(from->quoted);
    st->literal = strdup(from->literal);
    st->tenant = from->tenant ? strdup(from->tenant) : NULL;
    st->answer_ms = from->answer_ms;
    if (!st->conninfo || !st->shown || !st->schema || !st->quoted || !st->literal ||
        (from->tenant && !st->tenant))
        err_nomem(err);
    else if (pg_emit_texts(st, err) == 0 && pg_ready(st, err) == 0) {
        *ret = &st->base;
        return 0;
    }
    pg_close(&st->base);
    return -1;
}

#define BEGIN "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

static int begin(struct pg_store *st, const char *text, struct error *err)
{
    if (st->in_tx)
        return err_set(err, ERR_MISUSE, "a transaction is open already");
    if (pg_ready(st, err) != 0 || pg_simple(st, text, err) != 0)
        return -1;
    st->in_tx = true;
    return 0;
}

int pg_begin(struct store *base, struct error *err)
{
    struct pg_store *st = pg_of(base);
    if (begin(st, BEGIN "; SET LOCAL search_path = " PG_PATH, err) != 0)
        return -1;
    st->tx_shared = false;
    return 0;
}

/* pg_begin_shared: the application's statements find their tables as on a connection of its own. */
int pg_begin_shared(struct store *base, struct error *err)
{
    struct pg_store *st = pg_of(base);
    const char *text = BEGIN "; SET LOCAL search_path = DEFAULT";
    char limited[160];
    if (st->lent || st->pooled)
        text = BEGIN;
    if (st->lent && st->idle_ms) {
        snprintf(limited, sizeof limited,
                 BEGIN "; SET LOCAL idle_in_transaction_session_timeout = %lld",
                 (long long)st->idle_ms);
        text = limited;
    }
    if (begin(st, text, err) != 0)
        return -1;
    st->tx_shared = true;
    return 0;
}

/* pg_commit: after a statement failed the server answers COMMIT with a rollback, and no error. */
int pg_commit(struct store *base, struct error *err)
{
    struct pg_store *st = pg_of(base);
    if (!st->in_tx)
        return err_set(err, ERR_MISUSE, "no transaction is open");
    if (PQtransactionStatus(st->db) == PQTRANS_INERROR) {
        pg_rollback(base);
        return err_set(
            err, ERR_MISUSE,
            "an earlier failure made the database give this transaction up: begin it again");
    }
    st->in_tx = false;
    return pg_simple(st, "COMMIT", err);
}

void pg_rollback(struct store *base)
{
    struct pg_store *st = pg_of(base);
    if (PQstatus(st->db) == CONNECTION_OK && PQtransactionStatus(st->db) != PQTRANS_IDLE)
        pg_simple(st, "ROLLBACK", NULL);
    st->in_tx = false;
}

#define POSTGRES_OPS(name) \
    { \
        .scheme = name, .synopsis = "postgres://USER@HOST/DB?schema=NAME", \
        .caps = STORE_DOORBELL | STORE_SHARED | STORE_FREE | STORE_REMOTE, .open = pg_open, \
        .close = pg_close, .dup = pg_dup, .init = pg_init, .schema_status = pg_schema_status, \
        .validate = pg_validate, .ddl = pg_ddl, .doctor = pg_doctor, .begin = pg_begin_shared, \
        .commit = pg_commit, .rollback = pg_rollback, .emit = pg_emit, \
        .consumer_put = pg_consumer_put, .consumer_list = pg_consumer_list, \
        .consumer_history = pg_consumer_history, .consumer_gauge = pg_consumer_gauge, \
        .consumer_specs = pg_consumer_specs, .consumer_pause = pg_consumer_pause, \
        .consumer_remove = pg_consumer_remove, .consumer_report = pg_consumer_report, \
        .turn = pg_turn, .extend = pg_extend, .bell_fd = pg_bell_fd, .bell_clear = pg_bell_clear, \
        .handle_once = pg_handle_once, .lend = pg_lend, .savepoint = pg_savepoint, \
        .tx_state = pg_tx_state, .settle = pg_settle, .handled = pg_handled, \
        .handled_put = pg_handled_put, .info = pg_info, .events = pg_events, .dead = pg_dead, \
        .dead_retry = pg_dead_retry, .retry_now = pg_retry_now, .dead_drop = pg_dead_drop, \
        .trim = pg_trim, .marks = pg_marks, .grant = pg_grant, .adopt = pg_adopt, \
    }

extern const struct store_ops store_postgresql;
const struct store_ops store_postgres = POSTGRES_OPS("postgres");
const struct store_ops store_postgresql = POSTGRES_OPS("postgresql"); /* as libpq writes it, too */

struct pg_conn *postgres_handle(struct store *st)
{
    return st->ops == &store_postgres || st->ops == &store_postgresql ? pg_of(st)->db : NULL;
}
