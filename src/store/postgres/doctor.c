/* doctor.c: checks on a PostgreSQL server and on the outbox in it. They only read. */
#include <stdio.h>

#include "base/text.h"
#include "store/postgres/postgres.h"

#define XID_AGE_MAX INT64_C(1500000000) /* of 2.1 billion, at which the server stops */
#define CONNECTIONS_PERCENT 90
#define DEAD_MAX 50000 /* dead rows of a table that are worth a warning */
#define QUEUE_PERCENT 50

struct look {
    struct pg_store *st;
    const struct doctor_request *req;
    const char *name; /* of the current check */
};

/* A check either reports findings from the rows of its query, or makes its own queries (run). */
struct check {
    const char *name;
    const char *sql;
    int (*report)(const struct look *l, const PGresult *r);
    int (*run)(const struct look *l, struct error *err);
};

/* Reports a finding; advice may be NULL. Returns 0, so that a check can end with it. */
__attribute__((format(printf, 4, 5))) static int say(const struct look *l, enum finding_level level,
                                                     const char *advice, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct finding f = {.level = level, .name = l->name, .text = text, .advice = advice};
    l->req->visit(l->req->ctx, &f);
    return 0;
}

/* Writes a duration, in whole seconds if it is longer than one. Returns out. */
static const char *show_age(int64_t ms, char out[32])
{
    if (ms >= 1000)
        ms = ms / 1000 * 1000;
    text_duration_show(ms, out);
    return out;
}

/* ---- the server ---- */

static const char server_sql[] = "SELECT pg_is_in_recovery(), current_setting('server_version')";

static int server(const struct look *l, const PGresult *r)
{
    bool standby = pg_true(r, 0, 0);
    if (standby)
        say(l, FINDING_PROBLEM, "connect to the primary",
            "this server is a standby: nothing can be emitted or claimed here");
    return say(l, FINDING_OK, NULL, "PostgreSQL %s", PQgetvalue(r, 0, 1));
}

/* pg_stat_database counts all sessions; pg_stat_activity hides most of them from an ordinary
 * role. */
/* clang-format off */
static const char connections_sql[] =
    "SELECT sum(numbackends), "
           "current_setting('max_connections')::int "
             "- current_setting('superuser_reserved_connections')::int "
    "FROM pg_stat_database";
/* clang-format on */

static int connections(const struct look *l, const PGresult *r)
{
    int64_t used = pg_int(r, 0, 0);
    int64_t max = pg_int(r, 0, 1);
    bool full = used * 100 >= max * CONNECTIONS_PERCENT;
    return say(l, full ? FINDING_WARNING : FINDING_OK,
               full ? "raise max_connections, close idle connections, or use a connection pooler"
                    : NULL,
               "%lld of %lld connections are in use", (long long)used, (long long)max);
}

/* clang-format off */
static const char transactions_sql[] =
    "SELECT pid, coalesce(datname, ''), coalesce(usename, ''), application_name, "
           "coalesce(state, ''), "
           "(extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint, "
           "CASE WHEN backend_xid IS NOT NULL THEN 'has written' ELSE 'has only read' END, "
           "xact_start IS NOT NULL, "
           "count(*) FILTER (WHERE xact_start IS NULL) OVER () "
    "FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() "
      "AND coalesce(backend_type, 'client backend') IN ('client backend', 'background worker') "
      "AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) "
    "ORDER BY xact_start "
    "LIMIT 1";
/* clang-format on */

/* Reports the oldest transaction, which holds back VACUUM: a warning if it is older than the
 * caller's patience. */
static void report_oldest(const struct look *l, const PGresult *r)
{
    char age[32], end[80];
    int64_t ms = pg_int(r, 0, 5);
    enum finding_level level = FINDING_OK;
    const char *advice = NULL;
    const char *consequence = "";
    if (ms > l->req->patience_ms) {
        snprintf(end, sizeof end, "end it: SELECT pg_terminate_backend(%s)", PQgetvalue(r, 0, 0));
        level = FINDING_WARNING;
        advice = end;
        consequence = "; until it ends, dead rows are not removed and its events are not delivered";
    }
    say(l, level, advice,
        "the oldest transaction is %s old: pid %s, database \"%s\", role \"%s\", application "
        "\"%s\", %s, %s%s",
        show_age(ms, age), PQgetvalue(r, 0, 0), PQgetvalue(r, 0, 1), PQgetvalue(r, 0, 2),
        PQgetvalue(r, 0, 3), PQgetvalue(r, 0, 4), PQgetvalue(r, 0, 6), consequence);
}

/* An ordinary role sees that other sessions have a transaction open, but not since when. */
static int transactions(const struct look *l, const PGresult *r)
{
    if (PQntuples(r) == 0)
        return say(l, FINDING_OK, NULL, "no transaction is open");
    bool dated = pg_true(r, 0, 7);
    bool hidden = pg_int(r, 0, 8) > 0;
    if (dated)
        report_oldest(l, r);
    if (hidden)
        say(l, FINDING_NOTE, "grant this role pg_read_all_stats",
            "%s transactions of other roles are open, and this role may not see since when",
            PQgetvalue(r, 0, 8));
    return 0;
}

/* clang-format off */
static const char prepared_sql[] =
    "SELECT gid, database, owner, "
           "(extract(epoch FROM clock_timestamp() - prepared) * 1000)::bigint, "
           "count(*) OVER (), "
           "quote_literal(gid) "
    "FROM pg_prepared_xacts "
    "ORDER BY prepared "
    "LIMIT 1";
/* clang-format on */

static int prepared(const struct look *l, const PGresult *r)
{
    char age[32], end[600]; /* the name of a prepared transaction has up to 199 bytes */
    if (PQntuples(r) == 0)
        return say(l, FINDING_OK, NULL, "no transaction is prepared");

    int64_t ms = pg_int(r, 0, 3);
    enum finding_level level = FINDING_NOTE;
    const char *advice = NULL;
    const char *consequence = "";
    if (ms > l->req->patience_ms) {
        snprintf(end, sizeof end, "in that database: COMMIT PREPARED or ROLLBACK PREPARED %s",
                 PQgetvalue(r, 0, 5));
        level = FINDING_PROBLEM;
        advice = end;
        consequence = "; it survives every restart, and its events wait until it is ended";
    }
    const char *how_many = pg_int(r, 0, 4) == 1 ? "a transaction is" : "transactions are";
    return say(l, level, advice,
               "%s prepared, the oldest %s ago: \"%s\" in database \"%s\" by role \"%s\"%s",
               how_many, show_age(ms, age), PQgetvalue(r, 0, 0), PQgetvalue(r, 0, 1),
               PQgetvalue(r, 0, 2), consequence);
}

/* clang-format off */
static const char wraparound_sql[] =
    "SELECT datname, age(datfrozenxid) "
    "FROM pg_database "
    "ORDER BY age(datfrozenxid) DESC "
    "LIMIT 1";
/* clang-format on */

/* Warns long before the server runs out of transaction ids and refuses writes. */
static int wraparound(const struct look *l, const PGresult *r)
{
    int64_t xids = pg_int(r, 0, 1);
    if (xids <= XID_AGE_MAX)
        return say(l, FINDING_OK, NULL, "%lld transactions since the last freeze", (long long)xids);
    return say(l, FINDING_PROBLEM,
               "end old and prepared transactions, drop unused replication slots, then VACUUM "
               "that database",
               "database \"%s\" is %lld transactions away from its last freeze; at 2.1 billion "
               "the server refuses writes",
               PQgetvalue(r, 0, 0), (long long)xids);
}

/* synchronous_commit here, and the roles for which it is off; settings that make a crash dangerous;
 * unlogged tables of the schema. */
/* clang-format off */
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
            "WHERE c.relnamespace = to_regnamespace('@schema@') "
              "AND c.relpersistence = 'u' AND c.relkind = 'r')";
/* clang-format on */

static bool is_off(const PGresult *r, int col)
{
    return strcmp(PQgetvalue(r, 0, col), "off") == 0;
}

/* Reports only the worst finding. */
static int durability(const struct look *l, const PGresult *r)
{
    const char *roles = pg_str(r, 0, 1);
    const char *unlogged = pg_str(r, 0, 4);
    if (is_off(r, 2) || is_off(r, 3))
        return say(l, FINDING_WARNING,
                   "set fsync and full_page_writes to on, and restart the server",
                   "fsync is %s, full_page_writes is %s: if the machine crashes, committed data "
                   "may be lost or corrupted, including events, some of which may have been "
                   "delivered already",
                   PQgetvalue(r, 0, 2), PQgetvalue(r, 0, 3));
    if (unlogged)
        return say(l, FINDING_PROBLEM, "ALTER TABLE ... SET LOGGED",
                   "tables are unlogged, and empty after a crash: %s", unlogged);
    if (!roles && is_off(r, 0))
        roles = "this role";
    if (roles)
        return say(l, FINDING_WARNING, "set synchronous_commit to on for roles that emit",
                   "synchronous_commit is off for %s: if the server crashes, its last commits are "
                   "lost, including events (none that was delivered: relays commit to disk before "
                   "they deliver)",
                   roles);
    return say(l, FINDING_OK, NULL, "a commit is on disk when it returns (synchronous_commit)");
}

static const struct check server_checks[] = {
    {"server", .sql = server_sql, .report = server},
    {"connections", .sql = connections_sql, .report = connections},
    {"transaction", .sql = transactions_sql, .report = transactions},
    {"prepared-transaction", .sql = prepared_sql, .report = prepared},
    {"wraparound", .sql = wraparound_sql, .report = wraparound},
    {"durability", .sql = durability_sql, .report = durability},
    {0},
};

/* ---- rights ---- */

/* Whether the role may use the schema. Without that right it cannot call _rights. */
static const char usage_sql[] =
    "SELECT has_schema_privilege('@schema@'::regnamespace, 'USAGE'), current_user";

/* The rights that a part needs (functions/grants.sql) and the role does not have. A right may be
 * for some columns only. */
/* clang-format off */
static const char lacking_sql[] =
    "SELECT string_agg(m.p[1] || ' on ' || r.object, ', '), current_user "
    "FROM @schema@._rights($1) r, "
         "LATERAL regexp_matches(r.privilege, '([A-Z]+)(?: [(]([^)]*)[)])?', 'g') m(p) "
    "WHERE r.kind <> 'SCHEMA' "
      "AND NOT CASE "
          "WHEN r.kind = 'FUNCTION' THEN has_function_privilege(to_regproc(r.object), m.p[1]) "
          "WHEN r.kind = 'SEQUENCE' THEN has_sequence_privilege(r.object, m.p[1]) "
          "WHEN m.p[2] IS NULL THEN has_table_privilege(r.object, m.p[1]) "
          "ELSE (SELECT bool_and(has_column_privilege(r.object, c, m.p[1])) "
                "FROM regexp_split_to_table(m.p[2], ', ') c) "
          "END";
/* clang-format on */

static int grants(const struct look *l, struct error *err)
{
    static const struct {
        const char *name, *advice;
        enum finding_level level;
    } parts[] = {{"consumer", "`outbox grant consumer ROLE`", FINDING_PROBLEM},
                 {"operator", "`outbox grant operator ROLE`, if it is to trim", FINDING_NOTE}};

    PGresult *r = pg_query(l->st, err, usage_sql, "");
    if (!r)
        return -1;
    bool open = pg_true(r, 0, 0);
    if (!open)
        say(l, FINDING_PROBLEM, parts[0].advice, "schema %s is closed to role \"%s\"",
            l->st->quoted, PQgetvalue(r, 0, 1));
    PQclear(r);
    if (!open)
        return 0;

    bool fine = true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        r = pg_query(l->st, err, lacking_sql, "s", parts[i].name);
        if (!r)
            return -1;
        const char *lacks = pg_str(r, 0, 0);
        if (lacks) {
            fine = false;
            say(l, parts[i].level, parts[i].advice, "role \"%s\" cannot work as %s, it lacks %s",
                PQgetvalue(r, 0, 1), parts[i].name, lacks);
        }
        PQclear(r);
    }
    if (!fine)
        return 0;
    return say(l, FINDING_OK, NULL, "this role has all rights that relays and operators need");
}

/* Reports other roles that may create functions in the schema. Such functions could be called in
 * place of ours, with the rights of the outbox's owner. */
static int foreign_creators(const struct look *l, struct error *err)
{
    PGresult *r = pg_foreign_creators(l->st, err);
    if (!r)
        return -1;
    const char *roles = NULL;
    if (PQntuples(r) > 0)
        roles = pg_str(r, 0, 0);
    if (roles)
        say(l, FINDING_PROBLEM,
            "REVOKE CREATE ON SCHEMA ... FROM them, or ALTER SCHEMA ... OWNER TO the outbox's "
            "owner",
            "other roles may create functions in schema %s, which would run with the rights of "
            "the outbox's owner: %s",
            l->st->quoted, roles);
    else
        say(l, FINDING_OK, NULL, "no other role may create anything in schema %s", l->st->quoted);
    PQclear(r);
    return 0;
}

/* ---- wake-ups ---- */

/* clang-format off */
static const char wakeup_sql[] =
    "SELECT @schema@.wakeup_works(), "
           "coalesce(current_setting('outbox.wakeup', true), ''), "
           "current_setting('max_prepared_transactions'), "
           "pg_is_in_recovery(), "
           "(pg_notification_queue_usage() * 100)::int";
/* clang-format on */

static int wakeup(const struct look *l, const PGresult *r)
{
    bool works = pg_true(r, 0, 0);
    bool switched_off = strcmp(PQgetvalue(r, 0, 1), "off") == 0;
    bool standby = pg_true(r, 0, 3);
    int64_t used = pg_int(r, 0, 4);
    if (l->st->pooled)
        return say(l, FINDING_WARNING, "give relays an address that leads to the server itself",
                   "this connection goes through a pooler: relays cannot be woken, and poll every "
                   "few milliseconds instead");
    if (standby)
        return say(l, FINDING_WARNING, "connect to the primary",
                   "relays cannot be woken on a standby");
    if (!works && switched_off)
        return say(l, FINDING_NOTE, "reset the setting outbox.wakeup",
                   "switched off by the setting outbox.wakeup: relays poll every few "
                   "milliseconds instead");
    if (!works)
        return say(l, FINDING_NOTE,
                   "set max_prepared_transactions to 0, or outbox.wakeup to on if no client "
                   "prepares a transaction that emits",
                   "max_prepared_transactions is %lld, and a transaction that has notified cannot "
                   "be prepared: relays poll every few milliseconds instead",
                   (long long)pg_int(r, 0, 2));
    if (used >= QUEUE_PERCENT)
        return say(l, FINDING_WARNING, "end the oldest transaction of a session that listens",
                   "the queue of notifications is %lld %% full; once it is, emits fail",
                   (long long)used);
    return say(l, FINDING_OK, NULL, "a commit wakes sleeping relays");
}

/* Transactions that lock a consumer, and (name NULL) unrelated sessions that hold a wake-up
 * lock. */
/* clang-format off */
static const char locks_sql[] =
    "SELECT c.name, "
           "h.who, "
           "coalesce(floor(extract(epoch FROM clock_timestamp() - h.since) * 1000), 0)::bigint "
    "FROM @schema@.consumer c, LATERAL @schema@._holder(c.xmax) h "
    "UNION ALL "
    "SELECT NULL, w, 0 FROM @schema@._wakeup_foreign_holders() w WHERE w IS NOT NULL "
    "ORDER BY 1";
/* clang-format on */

/* A worker locks its consumer only for a moment: a transaction that holds the lock for longer is
 * reported. */
static int locks(const struct look *l, const PGresult *r)
{
    bool fine = true;
    for (int i = 0; i < PQntuples(r); i++) {
        char age[32];
        const char *consumer = pg_str(r, i, 0);
        int64_t ms = pg_int(r, i, 2);
        if (!consumer)
            say(l, FINDING_WARNING, "end that session, and find out why its role took the lock",
                "an unrelated session holds a wake-up lock, so relays poll every second instead "
                "of being woken: %s",
                PQgetvalue(r, i, 1));
        else if (ms > l->req->patience_ms)
            say(l, FINDING_WARNING,
                "end that transaction: no worker of this consumer can claim until then",
                "consumer \"%s\" has been locked for %s by %s", consumer, show_age(ms, age),
                PQgetvalue(r, i, 1));
        else
            continue;
        fine = false;
    }
    if (!fine)
        return 0;
    return say(l, FINDING_OK, NULL, "no lock blocks the relays");
}

/* ---- tables ---- */

/* clang-format off */
static const char dead_rows_sql[] =
    "SELECT c.relname, "
           "pg_stat_get_dead_tuples(c.oid), "
           "pg_stat_get_live_tuples(c.oid), "
           "pg_size_pretty(pg_table_size(c.oid)), "
           "current_setting('autovacuum') "
    "FROM pg_class c "
    "WHERE c.relnamespace = '@schema@'::regnamespace "
      "AND c.relname IN ('lane', 'claim', 'parked', 'event') "
    "ORDER BY 2 DESC";
/* clang-format on */

static int dead_rows(const struct look *l, const PGresult *r)
{
    bool fine = true;
    int64_t sum = 0;
    for (int i = 0; i < PQntuples(r); i++) {
        char advice[256];
        const char *table = PQgetvalue(r, i, 0);
        int64_t dead = pg_int(r, i, 1);
        int64_t live = pg_int(r, i, 2);
        sum += dead;
        bool too_many = dead > DEAD_MAX && dead >= live / 5;
        if (!too_many)
            continue;
        fine = false;
        snprintf(advice, sizeof advice,
                 "end the transaction that keeps them alive, if one is named here; VACUUM "
                 "%.140s.%.20s",
                 l->st->quoted, table);
        say(l, FINDING_WARNING, advice, "table %s has %lld dead rows beside %lld live ones (%s)",
            table, (long long)dead, (long long)live, PQgetvalue(r, i, 3));
    }
    bool vacuum_off = PQntuples(r) > 0 && strcmp(PQgetvalue(r, 0, 4), "off") == 0;
    if (vacuum_off)
        return say(l, FINDING_WARNING, "switch autovacuum on",
                   "autovacuum is off: dead rows are not removed");
    if (!fine)
        return 0;
    return say(l, FINDING_OK, NULL, "%lld dead rows", (long long)sum);
}

/* clang-format off */
static const char insert_only_sql[] =
    "SELECT count(*) "
    "FROM pg_catalog.pg_trigger t "
    "WHERE t.tgrelid = '@schema@.event'::regclass "
      "AND t.tgname = 'insert_only' "
      "AND t.tgenabled IN ('O', 'A')";
/* clang-format on */

static int insert_only(const struct look *l, const PGresult *r)
{
    bool enabled = pg_int(r, 0, 0) > 0;
    if (enabled)
        return 0;
    return say(l, FINDING_PROBLEM,
               "ALTER TABLE event ENABLE TRIGGER insert_only, or create it again with the output "
               "of `outbox migrate gen`",
               "the trigger insert_only on table event is off: UPDATE, DELETE and TRUNCATE can "
               "lose events silently");
}

/* Events that wait for a retry, and were deleted: trim never deletes those, and a dead letter that
 * was sent back has its own copy. Other early deletions cannot be detected, because sequences have
 * gaps. */
/* clang-format off */
static const char lost_sql[] =
    "SELECT p.consumer, count(*), min(p.seq) "
    "FROM (SELECT x.consumer, x.seq FROM @schema@.parked x LIMIT 10000) p "
    "WHERE NOT EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq = p.seq) "
      "AND NOT EXISTS (SELECT 1 FROM @schema@.dead d "
                      "WHERE d.consumer = p.consumer AND d.seq = p.seq) "
    "GROUP BY p.consumer "
    "ORDER BY p.consumer";
/* clang-format on */

static int lost(const struct look *l, const PGresult *r)
{
    for (int i = 0; i < PQntuples(r); i++)
        say(l, FINDING_PROBLEM, "restore them from a backup, or emit them again",
            "consumer \"%s\": %s events that wait for it were deleted, the first is %s",
            PQgetvalue(r, i, 0), PQgetvalue(r, i, 1), PQgetvalue(r, i, 2));
    return 0;
}

/* ---- consumers ---- */

/* clang-format off */
static const char claims_sql[] =
    "SELECT consumer, "
           "count(*), "
           "(extract(epoch FROM @schema@._clock() - min(locked_until)) * 1000)::bigint, "
           "(array_agg(owner ORDER BY locked_until))[1] "
    "FROM @schema@.claim "
    "WHERE locked_until <= @schema@._clock() "
    "GROUP BY consumer "
    "ORDER BY consumer";
/* clang-format on */

static int claims(const struct look *l, const PGresult *r)
{
    bool fine = true;
    for (int i = 0; i < PQntuples(r); i++) {
        char age[32];
        int64_t ms = pg_int(r, i, 2);
        const char *plural = pg_int(r, i, 1) == 1 ? "" : "s";
        if (ms <= l->req->patience_ms)
            continue;
        fine = false;
        say(l, FINDING_WARNING, "start a relay that runs this consumer: it takes them over",
            "consumer \"%s\": %s claim%s of workers that vanished, the oldest ran out %s ago "
            "(%s), and no relay takes them over",
            PQgetvalue(r, i, 0), PQgetvalue(r, i, 1), plural, show_age(ms, age),
            PQgetvalue(r, i, 3));
    }
    if (!fine)
        return 0;
    return say(l, FINDING_OK, NULL, "none is left behind");
}

/* Consumers with missing rows in table lane, which may have been deleted by hand. */
/* clang-format off */
static const char positions_sql[] =
    "SELECT c.name, count(x.lane), c.lanes + 1 "
    "FROM @schema@.consumer c "
    "LEFT JOIN LATERAL @schema@._lanes(c.name, c.lanes) x ON true "
    "GROUP BY c.name, c.lanes "
    "HAVING count(x.lane) <= c.lanes "
    "ORDER BY c.name";
/* clang-format on */

static int positions(const struct look *l, const PGresult *r)
{
    for (int i = 0; i < PQntuples(r); i++) {
        char advice[200];
        const char *name = PQgetvalue(r, i, 0);
        snprintf(advice, sizeof advice,
                 "restore the table, or run `outbox consumers remove %.63s` and register it again "
                 "where it should start",
                 name);
        say(l, FINDING_PROBLEM, advice,
            "consumer \"%s\" has lost its place, and gets no events: %s of its %s rows in "
            "table lane are left",
            name, PQgetvalue(r, i, 1), PQgetvalue(r, i, 2));
    }
    if (PQntuples(r) > 0)
        return 0;
    return say(l, FINDING_OK, NULL, "every consumer has its position");
}

/* Whether positions are valid here: they consist of transaction ids, which mean nothing in another
 * cluster. */
/* clang-format off */
static const char restored_sql[] =
    "SELECT concat_ws('; ', t.moved, t.numbers), "
           "(SELECT value FROM @schema@.meta WHERE name = 'rebaselined_at'), "
           "(SELECT value FROM @schema@.meta WHERE name = 'renumbered_at'), "
           "(SELECT value FROM @schema@.meta WHERE name = 'renumbered_why'), "
           "t.sequence "
    "FROM @schema@._trouble() t";
/* clang-format on */

static int restored(const struct look *l, const PGresult *r)
{
    const char *trouble = PQgetvalue(r, 0, 0);
    const char *rebaselined_at = pg_str(r, 0, 1);
    const char *renumbered_at = pg_str(r, 0, 2);
    const char *sequence = pg_str(r, 0, 4);
    if (renumbered_at)
        say(l, FINDING_NOTE, NULL,
            "event numbers had started over, or came from elsewhere, and were repaired at %s: %s",
            renumbered_at, PQgetvalue(r, 0, 3));
    if (sequence)
        say(l, FINDING_WARNING,
            "run `outbox status` as the outbox's owner: it repairs the sequence",
            "%s: consumers continue, but read more than they need to", sequence);
    if (*trouble)
        return say(l, FINDING_PROBLEM,
                   "run `outbox status` as the outbox's owner: it repairs that; some events may "
                   "be delivered again",
                   "this is not the outbox its consumers know, and nothing is handed out until it "
                   "is repaired: %s",
                   trouble);
    if (rebaselined_at)
        return say(l, FINDING_NOTE, NULL,
                   "the outbox was restored elsewhere, and its positions were corrected, at %s",
                   rebaselined_at);
    return say(l, FINDING_OK, NULL, "this outbox is in the cluster where it was created");
}

/* ---- adopted tables ---- */

/* Tables whose triggers earlier versions created: those run casts of the table's owner with the
 * rights of the outbox's owner. */
/* clang-format off */
static const char adopted_sql[] =
    "SELECT (SELECT string_agg(t::text, ', ') FROM @schema@._adopted_formerly() t), "
           "(SELECT count(*) FROM @schema@._adoptions() a WHERE NOT a.inherited)";
/* clang-format on */

static int adopted(const struct look *l, const PGresult *r)
{
    const char *formerly = pg_str(r, 0, 0);
    int64_t n = pg_int(r, 0, 1);
    if (formerly)
        return say(l, FINDING_PROBLEM,
                   "as the outbox's owner, or a superuser: `outbox adopt TABLE` again, with its "
                   "present columns",
                   "an earlier version made the triggers of these tables, and their owners could "
                   "use them to act as the outbox's: %s",
                   formerly);
    if (n == 0)
        return 0;
    return say(l, FINDING_OK, NULL, "%s adopted, with triggers of this version",
               n == 1 ? "a table is" : "tables are");
}

/* Reasons why rows of adopted tables are not marked. Their events are still delivered, so no other
 * check reports it. */
/* clang-format off */
static const char marked_sql[] =
    "SELECT m.tab, m.consumer, m.error, "
           "to_char(m.error_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS \"UTC\"') "
    "FROM @schema@.marking m "
    "WHERE m.error IS NOT NULL "
    "ORDER BY m.id";
/* clang-format on */

static int marked(const struct look *l, const PGresult *r)
{
    for (int i = 0; i < PQntuples(r); i++)
        say(l, FINDING_PROBLEM,
            "fix that; or run `outbox adopt TABLE --drop-mark`, and stop what delivered these "
            "rows before",
            "rows of table %s are not marked, though consumer %s has received them, since %s: %s",
            PQgetvalue(r, i, 0), PQgetvalue(r, i, 1), PQgetvalue(r, i, 3), PQgetvalue(r, i, 2));
    return 0;
}

static const struct check outbox_checks[] = {
    {"grants", .run = grants},
    {"schema", .run = foreign_creators},
    {"wakeup", .sql = wakeup_sql, .report = wakeup},
    {"dead-rows", .sql = dead_rows_sql, .report = dead_rows},
    {"claim", .sql = claims_sql, .report = claims},
    {"position", .sql = positions_sql, .report = positions},
    {"restore", .sql = restored_sql, .report = restored},
    {"lock", .sql = locks_sql, .report = locks},
    {"adopted", .sql = adopted_sql, .report = adopted},
    {"marked", .sql = marked_sql, .report = marked},
    {"insert-only", .sql = insert_only_sql, .report = insert_only},
    {"lost", .sql = lost_sql, .report = lost},
    {0},
};

/* ---- running the checks ---- */

static int run_check(struct look *l, const struct check *c, struct error *err)
{
    l->name = c->name;
    if (c->run)
        return c->run(l, err);
    PGresult *r = pg_query(l->st, err, c->sql, "");
    if (!r)
        return -1;
    c->report(l, r);
    PQclear(r);
    return 0;
}

/* Runs the checks of a list. A check that fails is a finding as well; only a lost server ends the
 * run. */
static int run_checks(struct look *l, const struct check *c, struct error *err)
{
    struct error why;
    for (; c->name; c++) {
        if (run_check(l, c, &why) == 0)
            continue;
        if (why.code == ERR_UNAVAILABLE) {
            if (err)
                *err = why;
            return -1;
        }
        say(l, FINDING_WARNING, NULL, "could not be checked: %s", why.text);
    }
    return 0;
}

int pg_doctor(struct store *base, const struct doctor_request *req, struct error *err)
{
    struct look l = {.st = pg_of(base), .req = req};
    struct schema_status s;
    struct error why;
    if (run_checks(&l, server_checks, err) != 0)
        return -1;
    if (pg_schema_status(base, &s, &why) != 0) {
        bool no_rights = why.code == ERR_READONLY; /* not even to read the version */
        if (no_rights)
            return run_check(&l, &outbox_checks[0], err);
        return 0; /* the caller meets other failures itself */
    }
    if (s.there != s.known)
        return 0; /* the caller has reported that */
    return run_checks(&l, outbox_checks, err);
}
