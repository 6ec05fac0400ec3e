/* doctor_server.c: checks on a PostgreSQL server, with or without an outbox. */
#include <stdio.h>

#include "store/postgres/doctor.h"

#define XID_AGE_MAX INT64_C(1500000000) /* of 2.1 billion, at which the server stops */
#define CONNECTIONS_PERCENT 90
#define PREPARED_ADVICE 600 /* bytes; the name of a prepared transaction has up to 199 */

/* clang-format off */
static const char connections_sql[] =
    "SELECT sum(numbackends), "
           "current_setting('max_connections')::int "
             "- current_setting('superuser_reserved_connections')::int "
    "FROM pg_stat_database";

static const char transactions_sql[] =
    "SELECT pid, coalesce(datname, ''), coalesce(usename, ''), application_name, "
           "coalesce(state, ''), "
           "(extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint, "
           "backend_xid IS NOT NULL, "
           "xact_start IS NOT NULL, "
           "count(*) FILTER (WHERE xact_start IS NULL) OVER () "
    "FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() "
      "AND coalesce(backend_type, 'client backend') IN ('client backend', 'background worker') "
      "AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) "
    "ORDER BY xact_start "
    "LIMIT 1";

static const char prepared_sql[] =
    "SELECT gid, database, owner, "
           "(extract(epoch FROM clock_timestamp() - prepared) * 1000)::bigint, "
           "count(*) OVER (), "
           "quote_literal(gid) "
    "FROM pg_prepared_xacts "
    "ORDER BY prepared "
    "LIMIT 1";

static const char wraparound_sql[] =
    "SELECT datname, age(datfrozenxid) "
    "FROM pg_database "
    "ORDER BY age(datfrozenxid) DESC "
    "LIMIT 1";

/* synchronous_commit here, and the roles for which it is off; settings that make a crash dangerous;
 * unlogged tables of the schema. */
static const char durability_sql[] =
    "SELECT current_setting('synchronous_commit'), "
           "(SELECT string_agg(CASE WHEN s.setrole = 0 THEN 'every role' "
                                   "ELSE 'role \"' || pg_get_userbyid(s.setrole) || '\"' END "
                              "|| CASE WHEN s.setdatabase = 0 THEN '' "
                                      "ELSE ' in this database' END, ', ') "
            "FROM pg_db_role_setting s "
            "WHERE s.setdatabase IN (0, (SELECT oid FROM pg_database "
                                        "WHERE datname = current_database())) "
              "AND EXISTS (SELECT 1 FROM unnest(s.setconfig) c "
                          "WHERE c ~* '^synchronous_commit=(off|false|no|0)$')), "
           "current_setting('fsync'), "
           "current_setting('full_page_writes'), "
           "(SELECT string_agg(c.relname, ', ') "
            "FROM pg_class c "
            "WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = $1) "
              "AND c.relpersistence = 'u' AND c.relkind = 'r')";
/* clang-format on */

static int server(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err,
                           "SELECT pg_is_in_recovery(), current_setting('server_version')", "");
    if (!r)
        return -1;
    bool standby = pg_true(r, 0, 0);
    if (standby)
        pg_say(l, FINDING_PROBLEM, "server", "connect to the primary",
               "this server is a standby: nothing can be emitted or claimed here");
    pg_say(l, FINDING_OK, "server", NULL, "PostgreSQL %s", PQgetvalue(r, 0, 1));
    PQclear(r);
    return 0;
}

/* Uses pg_stat_database: pg_stat_activity hides most sessions of others from an ordinary role, but
 * this counts them. */
static int connections(const struct look *l, struct error *err)
{
    static const char text[] = "%lld of %lld connections are in use";
    PGresult *r = pg_query(l->st, err, connections_sql, "");
    if (!r)
        return -1;
    int64_t used = pg_int(r, 0, 0);
    int64_t max = pg_int(r, 0, 1);
    PQclear(r);
    bool full = used * 100 >= max * CONNECTIONS_PERCENT;
    if (!full)
        return pg_say(l, FINDING_OK, "connections", NULL, text, (long long)used, (long long)max);
    return pg_say(l, FINDING_WARNING, "connections",
                  "raise max_connections, close idle connections, or put a pooler before the "
                  "applications",
                  text, (long long)used, (long long)max);
}

/* Reports the oldest transaction: a warning if it is older than the caller has patience. */
static void oldest(const struct look *l, const PGresult *r)
{
    char age[32], end[80];
    int64_t ms = pg_int(r, 0, 5);
    enum finding_level level = FINDING_OK;
    const char *advice = NULL;
    const char *consequence = "";
    const char *has = pg_true(r, 0, 6) ? "has written" : "has only read";
    if (ms > l->req->patience_ms) {
        snprintf(end, sizeof end, "end it: SELECT pg_terminate_backend(%s)", PQgetvalue(r, 0, 0));
        level = FINDING_WARNING;
        advice = end;
        consequence = "; while it lasts no dead row can be removed, and what it has emitted waits";
    }
    pg_say(l, level, "transaction", advice,
           "the oldest transaction is %s old: pid %s, database \"%s\", role \"%s\", application "
           "\"%s\", %s, %s%s",
           pg_say_age(ms, age), PQgetvalue(r, 0, 0), PQgetvalue(r, 0, 1), PQgetvalue(r, 0, 2),
           PQgetvalue(r, 0, 3), PQgetvalue(r, 0, 4), has, consequence);
}

/* Reports transactions that hold back VACUUM, and so the removal of dead rows. An ordinary role
 * sees that other sessions have one open, but not since when. */
static int transactions(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, transactions_sql, "");
    if (!r)
        return -1;
    bool any = PQntuples(r) > 0;
    bool dated = any && pg_true(r, 0, 7);
    bool hidden = any && pg_int(r, 0, 8) > 0;
    if (dated)
        oldest(l, r);
    if (hidden)
        pg_say(l, FINDING_NOTE, "transaction", "grant this role pg_read_all_stats",
               "%s transactions of other roles are open, and this role may not see since when",
               PQgetvalue(r, 0, 8));
    if (!any)
        pg_say(l, FINDING_OK, "transaction", NULL, "no transaction is open");
    PQclear(r);
    return 0;
}

static void oldest_prepared(const struct look *l, const PGresult *r)
{
    char age[32], end[PREPARED_ADVICE];
    int64_t ms = pg_int(r, 0, 3);
    enum finding_level level = FINDING_NOTE;
    const char *advice = NULL;
    const char *consequence = "";
    const char *how_many = pg_int(r, 0, 4) == 1 ? "a transaction is" : "transactions are";
    if (ms > l->req->patience_ms) {
        snprintf(end, sizeof end, "in that database: COMMIT PREPARED or ROLLBACK PREPARED %s",
                 PQgetvalue(r, 0, 5));
        level = FINDING_PROBLEM;
        advice = end;
        consequence =
            "; it outlives every restart until it is ended, and what it has emitted waits";
    }
    pg_say(l, level, "prepared-transaction", advice,
           "%s prepared, the oldest %s ago: \"%s\" in database \"%s\" by role \"%s\"%s", how_many,
           pg_say_age(ms, age), PQgetvalue(r, 0, 0), PQgetvalue(r, 0, 1), PQgetvalue(r, 0, 2),
           consequence);
}

static int prepared(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, prepared_sql, "");
    if (!r)
        return -1;
    if (PQntuples(r) > 0)
        oldest_prepared(l, r);
    else
        pg_say(l, FINDING_OK, "prepared-transaction", NULL, "no transaction is prepared");
    PQclear(r);
    return 0;
}

/* Warns long before the server runs out of transaction ids and stops taking writes. */
static int wraparound(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, wraparound_sql, "");
    if (!r)
        return -1;
    int64_t xids = pg_int(r, 0, 1);
    if (xids > XID_AGE_MAX)
        pg_say(l, FINDING_PROBLEM, "wraparound",
               "end old and prepared transactions, drop unused replication slots, then VACUUM "
               "that database",
               "database \"%s\" is %lld transactions away from its last freeze; at 2.1 billion "
               "the server takes no more writes",
               PQgetvalue(r, 0, 0), (long long)xids);
    else
        pg_say(l, FINDING_OK, "wraparound", NULL, "%lld transactions since the last freeze",
               (long long)xids);
    PQclear(r);
    return 0;
}

static bool is_off(const PGresult *r, int col)
{
    return strcmp(PQgetvalue(r, 0, col), "off") == 0;
}

/* Reports the worst that durability_sql found. */
static int say_durability(const struct look *l, const PGresult *r)
{
    const char *roles = pg_str(r, 0, 1);
    const char *unlogged = pg_str(r, 0, 4);
    if (is_off(r, 2) || is_off(r, 3))
        return pg_say(l, FINDING_WARNING, "durability",
                      "set fsync and full_page_writes to on, and restart the server",
                      "fsync is %s, full_page_writes is %s: if the machine crashes, what was "
                      "committed may be lost or broken, events with it, and some may have been "
                      "delivered already",
                      PQgetvalue(r, 0, 2), PQgetvalue(r, 0, 3));
    if (unlogged)
        return pg_say(l, FINDING_PROBLEM, "durability", "ALTER TABLE ... SET LOGGED",
                      "tables are unlogged, and empty after a crash: %s", unlogged);
    if (!roles && is_off(r, 0))
        roles = "this role";
    if (roles)
        return pg_say(
            l, FINDING_WARNING, "durability", "set synchronous_commit to on for roles that emit",
            "synchronous_commit is off for %s: if the server crashes, what was committed "
            "in its last moments is lost, events with it (none that was delivered: relays "
            "commit to disk before they deliver)",
            roles);
    return pg_say(l, FINDING_OK, "durability", NULL,
                  "a commit is on disk when it returns (synchronous_commit)");
}

static int durability(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, durability_sql, "s", l->st->schema);
    if (!r)
        return -1;
    say_durability(l, r);
    PQclear(r);
    return 0;
}

const struct check pg_checks_server[] = {
    {"server", server},
    {"connections", connections},
    {"transaction", transactions},
    {"prepared-transaction", prepared},
    {"wraparound", wraparound},
    {"durability", durability},
    {NULL, NULL},
};
