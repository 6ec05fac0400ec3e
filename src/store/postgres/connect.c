/* connect.c: connecting and reconnecting, connections that handlers use, and checking the outbox
 * there. */
#include <stdlib.h>

#include "store/postgres/postgres.h"

#define PG_OLDEST 15 /* the first with views that run with the reader's rights (security_invoker) */
#define GONE_AFTER "10s" /* how often a busy server checks that the client is still there */

/* ---- a new connection ---- */

static void ignore_notice(void *ctx, const PGresult *r)
{
    (void)ctx;
    (void)r;
}

/* Settings for our own statements, overriding those of the database and the role. Plans use
 * indexes, whatever the statistics say. */
/* clang-format off */
static const char settings_sql[] =
    "SET search_path = " PG_PATH ";"
    "SET application_name = 'outbox';"
    "SET default_transaction_isolation = 'read committed';"
    "SET default_transaction_read_only = off;"
    "SET statement_timeout = 0;"
    "SET lock_timeout = 0;"
    "SET idle_in_transaction_session_timeout = 0;"
    "SET idle_session_timeout = 0;"
    "SET standard_conforming_strings = on;"
    "SET row_security = on;"
    "SET client_min_messages = warning;"
    "SET enable_seqscan = off;"
    "SET enable_bitmapscan = off;"
    "SET enable_indexscan = on;"
    "SET enable_indexonlyscan = on;"
    "SET enable_nestloop = on;"
    "SET jit = off;"
    "SET plan_cache_mode = force_generic_plan";

/* Settings to restore on a connection that handlers use. */
static const char reset_sql[] =
    "RESET search_path;"
    "RESET client_min_messages;"
    "RESET standard_conforming_strings;"
    "RESET enable_seqscan;"
    "RESET enable_bitmapscan;"
    "RESET enable_indexscan;"
    "RESET enable_indexonlyscan;"
    "RESET enable_nestloop;"
    "RESET jit;"
    "RESET plan_cache_mode";
/* clang-format on */

static int reset_settings(struct pg_store *st, struct error *err)
{
    return st->pooled ? 0 : pg_simple(st, reset_sql, err);
}

/* Sets up a new connection that only we use. Behind a pooler the next client of the session would
 * inherit the settings, so there they are sent along with each statement. */
static int set_up(struct pg_store *st, PGconn *db, struct error *err)
{
    if (pg_command(st, db, settings_sql, err) != 0)
        return -1;
    bool has_transaction_timeout = PQserverVersion(db) >= 170000;
    if (has_transaction_timeout && pg_command(st, db, "SET transaction_timeout = 0", err) != 0)
        return -1;
    /* The server should end a statement whose client is gone, even while it waits for a lock.
     * Otherwise each connection that we drop would leave a statement running, until the server has
     * no connection slot left. Not all systems support this. */
    struct error ignored;
    pg_command(st, db, "SET client_connection_check_interval = '" GONE_AFTER "'", &ignored);
    if (st->exposed && reset_settings(st, err) != 0)
        return -1;
    if (!st->tenant)
        return 0;

    const char *tenant = st->tenant;
    PGresult *r = NULL;
    if (PQsendQueryParams(db, "SELECT pg_catalog.set_config('outbox.tenant', $1, false)", 1, NULL,
                          &tenant, NULL, NULL, 0))
        r = pg_last_result(st, db);
    r = pg_checked(st, db, r, err);
    PQclear(r);
    return r ? 0 : -1;
}

/* Checks that the connection was made, and that the server is recent enough for our views and
 * functions. A server that does not report its version is accepted. */
static int check_connected(struct pg_store *st, PGconn *db, struct error *err)
{
    if (!db)
        return err_nomem(err);
    if (PQstatus(db) != CONNECTION_OK)
        return pg_fail(st, db, NULL, err);
    int version = PQserverVersion(db);
    if (version == 0 || version >= PG_OLDEST * 10000)
        return 0;
    return err_class(err, ERR_CONFIG, CLASS_FATAL, 0,
                     "%s: this server is PostgreSQL %d; an outbox needs %d or later", st->shown,
                     version / 10000, PG_OLDEST);
}

/* Connects; unless `like` is NULL, to the same server as `like`. */
static PGconn *dial(struct pg_store *st, PGconn *like, struct error *err)
{
    /* The later of two settings wins. So the URL follows our defaults, and the encoding, which the
     * URL may not choose, follows the URL. */
    const char *keywords[10] = {"connect_timeout",           "keepalives_idle", "tcp_user_timeout",
                                "fallback_application_name", "dbname",          "client_encoding"};
    const char *values[10] = {"10", "30", "60000", "outbox", st->conninfo, "UTF8"};
    if (like) {
        const char *address = PQhostaddr(like);
        keywords[6] = "hostaddr";
        values[6] = address;
        if (*address == '\0') { /* a Unix socket */
            keywords[6] = "host";
            values[6] = PQhost(like);
        }
        keywords[7] = "port";
        values[7] = PQport(like);
    }

    PGconn *db = PQconnectdbParams(keywords, values, 1);
    PQsetNoticeReceiver(db, ignore_notice, NULL);
    if (check_connected(st, db, err) == 0)
        return db;
    PQfinish(db);
    return NULL;
}

/* ---- the outbox there ---- */

/* clang-format off */
static const char role_sql[] =
    "SELECT row_security_active('@schema@.event'), "
           "current_user, "
           "@schema@._acting_for(current_user), "
           "has_any_column_privilege('@schema@.event', 'INSERT') "
             "AND NOT has_column_privilege('@schema@.event', 'id', 'INSERT')";

static const char trouble_sql[] =
    "SELECT coalesce(t.moved, t.numbers) IS NOT NULL "
           "OR (t.sequence IS NOT NULL AND pg_has_role(c.relowner, 'USAGE')) "
    "FROM @schema@._trouble() t, pg_catalog.pg_class c "
    "WHERE c.oid = '@schema@.event'::regclass";
/* clang-format on */

/* Checks that the role can be limited to the URL's tenant: row-level security applies to it, and it
 * is not limited to another tenant. Also finds out whether the role may choose event ids. */
static int check_tenant(struct pg_store *st, struct error *err)
{
    if (st->tenant && st->pooled)
        return err_set(err, ERR_CONFIG,
                       "%s: a tenant needs a direct connection to the server, not a pooler",
                       st->shown);
    PGresult *r = pg_query(st, err, role_sql, "");
    if (!r)
        return -1;
    bool restricted = pg_true(r, 0, 0);
    const char *role = PQgetvalue(r, 0, 1);
    const char *acts_for = pg_str(r, 0, 2);
    st->given_ids = pg_true(r, 0, 3);

    int result = 0;
    if (st->tenant && !restricted)
        result = err_class(err, ERR_CONFIG, CLASS_FATAL, 0,
                           "%s: tenant \"%.60s\" is set, but role \"%.60s\" owns the outbox or "
                           "bypasses row-level security, and would see every tenant's events; "
                           "connect as another role",
                           st->shown, st->tenant, role);
    else if (st->tenant && (!acts_for || strcmp(acts_for, st->tenant) != 0))
        result = err_class(err, ERR_CONFIG, CLASS_FATAL, 0,
                           "%s: tenant \"%.60s\" is set, but role \"%.60s\" is limited to another "
                           "tenant; connect as another role",
                           st->shown, st->tenant, role);
    PQclear(r);
    return result;
}

/* Repairs an outbox that was restored from another cluster, or whose event numbers restarted,
 * before anything is read from it. Every claim checks that as well, but other commands may precede
 * the first claim. A role that may only emit cannot check it, and need not. */
static int check_moved(struct pg_store *st, struct error *err)
{
    struct error why;
    int64_t moved;
    if (pg_query_number(st, &why, &moved, trouble_sql, "") != 0)
        return why.code == ERR_READONLY ? 0 : err_copy(err, &why);
    if (!moved)
        return 0;

    /* rebaseline reads all events. If it timed out half-way, it would have to start over. */
    bool was_patient = st->patient;
    st->patient = true;
    int result = pg_exec(st, err, "SELECT @schema@.rebaseline()", "");
    st->patient = was_patient;
    if (result == 0)
        return 0;
    return err_prefix(
        err, "the outbox was moved, or its event numbers restarted; it must be repaired first");
}

static int check_outbox(struct pg_store *st, struct error *err)
{
    int64_t version;
    if (pg_version(st, &version, err) != 0)
        return -1;
    if (version == 0)
        return err_class(err, ERR_NOTOURS, CLASS_FATAL, 0,
                         "%s: no outbox in schema %s; create one with `outbox init`", st->shown,
                         st->quoted);
    if (version < PG_SCHEMA_VERSION)
        return err_class(err, ERR_NOTOURS, CLASS_FATAL, 0,
                         "%s: the outbox in schema %s has the older version %lld; upgrade it with "
                         "`outbox migrate up`",
                         st->shown, st->quoted, (long long)version);
    if (check_tenant(st, err) != 0)
        return -1;
    return check_moved(st, err);
}

/* An outbox that worked before and is now missing or incomplete may be being restored, so a retry
 * is worthwhile. */
static int check_usable(struct pg_store *st, struct error *err)
{
    struct error why;
    if (check_outbox(st, &why) == 0) {
        st->worked = true;
        return 0;
    }
    if (st->worked && why.code == ERR_NOTOURS) {
        why.retry_class = CLASS_RETRY;
        err_prefix(&why, "the outbox is gone, or being restored");
    }
    return err_copy(err, &why);
}

/* ---- the main connection ---- */

/* Closes the connection, and resets all state that depends on it. */
static void disconnect(struct pg_store *st)
{
    pg_reader_close(st);
    PQfinish(st->db);
    st->db = NULL;
    free(st->path_was);
    st->path_was = NULL;
    pg_wakeup_disconnected(&st->wakeup);
}

/* Opens the main connection and checks the outbox. */
static int reconnect(struct pg_store *st, struct error *err)
{
    st->db = dial(st, NULL, err);
    if (!st->db)
        return -1;
    st->generation[PG_MAIN]++;
    st->stale = false;

    /* Behind a pooler, the backend that answers may not be the one that accepted the connection. */
    PGresult *r = pg_ask(st, st->db, "SELECT pg_catalog.pg_backend_pid()");
    r = pg_checked(st, st->db, r, err);
    if (!r)
        return -1;
    st->pooled = pg_int(r, 0, 0) != PQbackendPID(st->db);
    PQclear(r);
    if (!st->pooled && set_up(st, st->db, err) != 0)
        return -1;
    bool any_outbox = st->opt.create || st->opt.any_version;
    return any_outbox ? 0 : check_usable(st, err);
}

int pg_ready(struct pg_store *st, struct error *err)
{
    bool alive = st->db && PQstatus(st->db) == CONNECTION_OK;
    bool usable = alive && (st->in_tx || !st->stale);
    if (usable)
        return 0;
    if (st->in_tx)
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                         "%s: the connection was lost, and with it the open transaction: begin "
                         "that again",
                         st->shown);
    disconnect(st);
    if (reconnect(st, err) == 0)
        return 0;
    disconnect(st);
    return -1;
}

/* ---- a connection that handlers use ---- */

/* Resets what set_up set for our own statements. Nothing is prepared from here on, because a
 * handler's DISCARD ALL would drop it. If the connection was exposed before, the session is reset:
 * handlers must not find state left by those of another consumer. */
int pg_expose_connection(struct store *base, int64_t idle_ms, struct error *err)
{
    struct pg_store *st = pg_of(base);
    bool again = st->exposed;
    st->exposed = true;
    st->idle_ms = idle_ms;
    if (!again || st->pooled)
        return reset_settings(st, err);
    if (pg_ready(st, err) != 0)
        return -1;
    if (pg_command(st, st->db, "DISCARD ALL", err) != 0)
        return -1;
    return set_up(st, st->db, err);
}

/* ---- the connection that reads ahead ---- */

void pg_reader_close(struct pg_store *st)
{
    PQfinish(st->reader);
    st->reader = NULL;
    st->ahead.on = false;
    st->ahead.stream.open = false;
    st->ahead.kept.there = false;
    st->silent = false;
}

/* Whether both connections lead to the same server. A standby, or the server after a failover, may
 * lack events, which would be lost if we read ahead from there. */
static bool same_server(struct pg_store *st)
{
    static const char sql[] =
        "SELECT pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_is_in_recovery()";
    bool same = false;
    PGresult *a = pg_ask(st, st->db, sql);
    PGresult *b = pg_ask(st, st->reader, sql);
    bool answered = PQresultStatus(a) == PGRES_TUPLES_OK && PQresultStatus(b) == PGRES_TUPLES_OK;
    if (answered) {
        bool same_start = strcmp(PQgetvalue(a, 0, 0), PQgetvalue(b, 0, 0)) == 0;
        bool standby = pg_true(b, 0, 1);
        same = same_start && !standby;
    }
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
        return err_set(err, ERR_UNAVAILABLE, "cannot read ahead through a pooler");
    st->reader = dial(st, st->db, err);
    if (!st->reader)
        return -1;
    st->generation[PG_READER]++;
    if (set_up(st, st->reader, err) == 0 && same_server(st))
        return 0;
    pg_reader_close(st);
    return err_set(err, ERR_UNAVAILABLE, "%s: the second connection reached another server",
                   st->shown);
}
