/* doctor.c: what can be wrong with a PostgreSQL server and the outbox in it. Reads only. */
#include <stdio.h>

#include "base/text.h"
#include "store/postgres/postgres.h"

#define DEAD_MAX 50000                  /* dead rows from which on somebody should look */
#define XID_AGE_MAX INT64_C(1500000000) /* of 2.1 billion, at which the server stops */
#define CONNECTIONS_PERCENT 90

struct look {
    struct pg_store *st;
    const struct doctor_request *req;
};

__attribute__((format(printf, 5, 6))) static int say(const struct look *l, enum finding_level level,
                                                     const char *name, const char *advice,
                                                     const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct finding f = {.level = level, .name = name, .text = text, .advice = advice};
    l->req->visit(l->req->ctx, &f);
    return 0;
}

static const char *age(int64_t ms, char out[32])
{
    text_duration_show(ms < 1000 ? ms : ms / 1000 * 1000, out);
    return out;
}

/* ---- the server ---- */

static int server(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err,
                           "SELECT pg_is_in_recovery(), current_setting('server_version')", "");
    if (!r)
        return -1;
    if (pg_true(r, 0, 0))
        say(l, FINDING_PROBLEM, "server", "connect to the primary",
            "this server is a standby: nothing can be emitted or claimed here");
    say(l, FINDING_OK, "server", NULL, "PostgreSQL %s", PQgetvalue(r, 0, 1));
    PQclear(r);
    return 0;
}

/* For an ordinary role pg_stat_activity hides most of what others do, but not that they are
 * there. */
static int connections(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(
        l->st, err,
        "SELECT sum(numbackends), current_setting('max_connections')::int - "
        "current_setting('superuser_reserved_connections')::int FROM pg_stat_database",
        "");
    if (!r)
        return -1;
    int64_t used = pg_int(r, 0, 0), max = pg_int(r, 0, 1);
    PQclear(r);
    bool full = used * 100 >= max * CONNECTIONS_PERCENT;
    return say(l, full ? FINDING_WARNING : FINDING_OK, "connections",
               full ? "raise max_connections, close idle connections, or put a pooler before the "
                      "applications"
                    : NULL,
               "%lld of %lld connections are in use", (long long)used, (long long)max);
}

static void oldest(const struct look *l, const PGresult *r)
{
    char text[32], end[80];
    int64_t ms = pg_int(r, 0, 5);
    bool old = ms > l->req->patience_ms;
    snprintf(end, sizeof end, "end it: SELECT pg_terminate_backend(%s)", PQgetvalue(r, 0, 0));
    say(l, old ? FINDING_WARNING : FINDING_OK, "transaction", old ? end : NULL,
        "the oldest transaction is %s old: pid %s, database \"%s\", role \"%s\", application "
        "\"%s\", %s, %s%s",
        age(ms, text), PQgetvalue(r, 0, 0), PQgetvalue(r, 0, 1), PQgetvalue(r, 0, 2),
        PQgetvalue(r, 0, 3), PQgetvalue(r, 0, 4),
        pg_true(r, 0, 6) ? "has written" : "has only read",
        old ? "; while it lasts no dead row can be removed, and what it has emitted waits" : "");
}

static int transactions(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err,
                           "SELECT pid, coalesce(datname, ''), coalesce(usename, ''), "
                           "application_name, coalesce(state, ''), "
                           "(extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint, "
                           "backend_xid IS NOT NULL, xact_start IS NOT NULL, "
                           "count(*) FILTER (WHERE xact_start IS NULL) OVER () FROM "
                           "pg_stat_activity WHERE pid <> pg_backend_pid() AND "
                           "coalesce(backend_type, 'client backend') IN ('client backend', "
                           "'background worker') AND (backend_xid IS NOT NULL OR "
                           "backend_xmin IS NOT NULL) ORDER BY xact_start LIMIT 1",
                           "");
    if (!r)
        return -1;
    bool any = PQntuples(r) > 0;
    if (any && pg_true(r, 0, 7))
        oldest(l, r);
    if (any && pg_int(r, 0, 8) > 0)
        say(l, FINDING_NOTE, "transaction", "grant this role pg_read_all_stats",
            "%s transactions of other roles are open, and this role may not see since when",
            PQgetvalue(r, 0, 8));
    if (!any)
        say(l, FINDING_OK, "transaction", NULL, "no transaction is open");
    PQclear(r);
    return 0;
}

static int prepared(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err,
                           "SELECT gid, database, owner, (extract(epoch FROM clock_timestamp() - "
                           "prepared) * 1000)::bigint, count(*) OVER (), "
                           "quote_literal(gid) FROM pg_prepared_xacts ORDER BY prepared LIMIT 1",
                           "");
    if (!r)
        return -1;
    if (PQntuples(r) > 0) {
        char text[32], end[600]; /* a name has up to 199 bytes */
        bool old = pg_int(r, 0, 3) > l->req->patience_ms;
        snprintf(end, sizeof end, "in that database: COMMIT PREPARED or ROLLBACK PREPARED %s",
                 PQgetvalue(r, 0, 5));
        say(l, old ? FINDING_PROBLEM : FINDING_NOTE, "prepared-transaction", old ? end : NULL,
            "%s prepared, the oldest %s ago: \"%s\" in database \"%s\" by role \"%s\"%s",
            strcmp(PQgetvalue(r, 0, 4), "1") == 0 ? "a transaction is" : "transactions are",
            age(pg_int(r, 0, 3), text), PQgetvalue(r, 0, 0), PQgetvalue(r, 0, 1),
            PQgetvalue(r, 0, 2),
            old ? "; it outlives every restart until somebody ends it, and what it has emitted "
                  "waits"
                : "");
    } else
        say(l, FINDING_OK, "prepared-transaction", NULL, "no transaction is prepared");
    PQclear(r);
    return 0;
}

static int wraparound(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err,
                           "SELECT datname, age(datfrozenxid) FROM pg_database ORDER BY "
                           "age(datfrozenxid) DESC LIMIT 1",
                           "");
    if (!r)
        return -1;
    int64_t xids = pg_int(r, 0, 1);
    if (xids > XID_AGE_MAX)
        say(l, FINDING_PROBLEM, "wraparound",
            "end old and prepared transactions, drop unused replication slots, then VACUUM that "
            "database",
            "database \"%s\" is %lld transactions away from its last freeze; at 2.1 billion the "
            "server takes no more "
            "writes",
            PQgetvalue(r, 0, 0), (long long)xids);
    else
        say(l, FINDING_OK, "wraparound", NULL, "%lld transactions since the last freeze",
            (long long)xids);
    PQclear(r);
    return 0;
}

static int durability(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(
        l->st, err,
        "SELECT current_setting('synchronous_commit'), (SELECT string_agg(CASE WHEN s.setrole = 0 "
        "THEN 'every role' ELSE "
        "'role \"' || pg_get_userbyid(s.setrole) || '\"' END || CASE WHEN s.setdatabase = 0 THEN "
        "'' ELSE ' in this database' "
        "END, ', ') FROM pg_db_role_setting s WHERE s.setdatabase IN (0, (SELECT oid FROM "
        "pg_database WHERE datname = "
        "current_database())) AND EXISTS (SELECT 1 FROM unnest(s.setconfig) c WHERE c ~* "
        "'^synchronous_commit=(off|false|no|0)$')), current_setting('fsync'), "
        "current_setting('full_page_writes'), (SELECT "
        "string_agg(c.relname, ', ') FROM pg_class c WHERE c.relnamespace = (SELECT n.oid FROM "
        "pg_namespace n WHERE n.nspname "
        "= $1) AND c.relpersistence = 'u' AND c.relkind = 'r')",
        "s", l->st->schema);
    if (!r)
        return -1;
    if (strcmp(PQgetvalue(r, 0, 2), "off") == 0 || strcmp(PQgetvalue(r, 0, 3), "off") == 0) {
        say(l, FINDING_WARNING, "durability",
            "set fsync and full_page_writes to on, and restart the server",
            "fsync is %s, full_page_writes is %s: if the machine crashes, what was committed may "
            "be lost or broken, events "
            "with it, and some may have been delivered already",
            PQgetvalue(r, 0, 2), PQgetvalue(r, 0, 3));
        PQclear(r);
        return 0;
    }
    if (pg_str(r, 0, 4)) {
        say(l, FINDING_PROBLEM, "durability", "ALTER TABLE ... SET LOGGED",
            "tables are unlogged, and empty after a crash: %s", PQgetvalue(r, 0, 4));
        PQclear(r);
        return 0;
    }
    const char *who = pg_str(r, 0, 1);
    bool off = who || strcmp(PQgetvalue(r, 0, 0), "off") == 0;
    say(l, off ? FINDING_WARNING : FINDING_OK, "durability",
        off ? "set synchronous_commit to on for whoever emits" : NULL,
        off ? "synchronous_commit is off for %s: if the server crashes, what was committed in its "
              "last moments is lost, "
              "events with it (none that was delivered: relays commit to disk before they deliver)"
            : "a commit is on disk when it returns (%s)",
        off ? (who ? who : "this role") : "synchronous_commit");
    PQclear(r);
    return 0;
}

/* ---- the outbox ---- */

/* What a part of the work needs (internal/rights.sql) and the role has not. A right may be for
 * some columns only. */
static PGresult *lacking(const struct look *l, const char *part, struct error *err)
{
    return pg_query(
        l->st, err,
        "SELECT string_agg(m.p[1] || ' on ' || r.object, ', '), current_user FROM "
        "@schema@._rights($1) r, LATERAL "
        "regexp_matches(r.privilege, '([A-Z]+)(?: [(]([^)]*)[)])?', 'g') m(p) WHERE r.kind <> "
        "'SCHEMA' AND NOT CASE "
        "WHEN r.kind = 'FUNCTION' THEN has_function_privilege(to_regproc(r.object), m.p[1]) "
        "WHEN r.kind = 'SEQUENCE' THEN has_sequence_privilege(r.object, m.p[1]) "
        "WHEN m.p[2] IS NULL THEN has_table_privilege(r.object, m.p[1]) "
        "ELSE (SELECT bool_and(has_column_privilege(r.object, c, m.p[1])) FROM "
        "regexp_split_to_table(m.p[2], ', ') c) END",
        "s", part);
}

static int grants(const struct look *l, struct error *err)
{
    static const struct {
        const char *part, *advice;
        enum finding_level level;
    } parts[] = {{"consumer", "`outbox grant consumer ROLE`", FINDING_PROBLEM},
                 {"operator", "`outbox grant operator ROLE`, if it shall trim", FINDING_NOTE}};
    bool fine = true;
    PGresult *r = pg_query(l->st, err,
                           "SELECT has_schema_privilege($1::regnamespace, 'USAGE'), current_user",
                           "s", l->st->quoted);
    bool open = r && pg_true(r, 0, 0);
    if (r && !open)
        say(l, FINDING_PROBLEM, "grants", parts[0].advice, "schema %s is closed to role \"%s\"",
            l->st->quoted, PQgetvalue(r, 0, 1));
    PQclear(r);
    if (!open)
        return r ? 0 : -1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!(r = lacking(l, parts[i].part, err)))
            return -1;
        if (pg_str(r, 0, 0)) {
            fine = false;
            say(l, parts[i].level, "grants", parts[i].advice,
                "role \"%s\" cannot work as %s, it lacks %s", PQgetvalue(r, 0, 1), parts[i].part,
                PQgetvalue(r, 0, 0));
        }
        PQclear(r);
    }
    return fine ? say(l, FINDING_OK, "grants", NULL,
                      "this role may do all that relays and operators do")
                : 0;
}

static int doorbell(const struct look *l, struct error *err)
{
    if (l->st->pooled)
        return say(l, FINDING_WARNING, "doorbell",
                   "give relays an address that leads to the server itself",
                   "a pooler stands between: relays cannot be woken through it, and poll");
    PGresult *r = pg_query(
        l->st, err,
        "SELECT @schema@.bell_works(), coalesce(current_setting('outbox.doorbell', true), ''), "
        "current_setting('max_prepared_transactions'), pg_is_in_recovery(), "
        "(pg_notification_queue_usage() * 100)::int",
        "");
    if (!r)
        return -1;
    bool works = pg_true(r, 0, 0), off = strcmp(PQgetvalue(r, 0, 1), "off") == 0,
         standby = pg_true(r, 0, 3);
    int64_t prepared_max = pg_int(r, 0, 2), used = pg_int(r, 0, 4);
    PQclear(r);
    if (standby)
        return say(l, FINDING_WARNING, "doorbell", "connect to the primary",
                   "nobody can be woken on a standby");
    if (!works && off)
        return say(l, FINDING_NOTE, "doorbell", "reset the setting outbox.doorbell",
                   "switched off by the setting outbox.doorbell: relays poll");
    if (!works)
        return say(l, FINDING_NOTE, "doorbell",
                   "set max_prepared_transactions to 0, or outbox.doorbell to on if nobody "
                   "prepares a transaction that emits",
                   "max_prepared_transactions is %lld, and a transaction that rang could not be "
                   "prepared: relays poll",
                   (long long)prepared_max);
    if (used >= 50)
        return say(
            l, FINDING_WARNING, "doorbell", "end the oldest transaction of a session that listens",
            "the queue of notifications is %lld %% full; once it is, emits fail", (long long)used);
    return say(l, FINDING_OK, "doorbell", NULL, "works: a commit wakes relays that sleep");
}

static int dead_rows(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(
        l->st, err,
        "SELECT c.relname, pg_stat_get_dead_tuples(c.oid), pg_stat_get_live_tuples(c.oid), "
        "pg_size_pretty(pg_table_size(c.oid)), current_setting('autovacuum') FROM pg_class c WHERE "
        "c.relnamespace = "
        "$1::regnamespace AND c.relname IN ('lane', 'claim', 'parked', 'event') ORDER BY 2 DESC",
        "s", l->st->quoted);
    if (!r)
        return -1;
    bool fine = true;
    int64_t sum = 0;
    for (int i = 0; i < PQntuples(r); i++) {
        int64_t dead = pg_int(r, i, 1), live = pg_int(r, i, 2);
        sum += dead;
        if (dead <= DEAD_MAX || dead < live / 5)
            continue;
        char advice[256];
        fine = false;
        snprintf(
            advice, sizeof advice,
            "end the transaction that keeps them alive, if one is named here; VACUUM %.140s.%.20s",
            l->st->quoted, PQgetvalue(r, i, 0));
        say(l, FINDING_WARNING, "dead-rows", advice,
            "table %s has %lld dead rows beside %lld live ones (%s)", PQgetvalue(r, i, 0),
            (long long)dead, (long long)live, PQgetvalue(r, i, 3));
    }
    if (PQntuples(r) > 0 && strcmp(PQgetvalue(r, 0, 4), "off") == 0)
        say(l, FINDING_WARNING, "dead-rows", "switch autovacuum on",
            "autovacuum is off: nobody removes dead rows");
    else if (fine)
        say(l, FINDING_OK, "dead-rows", NULL, "%lld dead rows", (long long)sum);
    PQclear(r);
    return 0;
}

static int claims(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err,
                           "SELECT consumer, count(*), (extract(epoch FROM @schema@._clock() - "
                           "min(locked_until)) * 1000)::bigint, "
                           "(array_agg(owner ORDER BY locked_until))[1] FROM @schema@.claim WHERE "
                           "locked_until <= @schema@._clock() "
                           "GROUP BY consumer ORDER BY consumer",
                           "");
    if (!r)
        return -1;
    bool fine = true;
    for (int i = 0; i < PQntuples(r); i++) {
        char text[32];
        if (pg_int(r, i, 2) <= l->req->patience_ms)
            continue;
        fine = false;
        say(l, FINDING_WARNING, "claim",
            "start a relay that runs this consumer: it takes them over",
            "consumer \"%s\": %s claim%s of workers that vanished, the oldest ran out %s ago (%s), "
            "and nobody takes over",
            PQgetvalue(r, i, 0), PQgetvalue(r, i, 1), pg_int(r, i, 1) == 1 ? "" : "s",
            age(pg_int(r, i, 2), text), PQgetvalue(r, i, 3));
    }
    if (fine)
        say(l, FINDING_OK, "claim", NULL, "none is left behind");
    PQclear(r);
    return 0;
}

/* A consumer whose rows in table lane are gone (deleted by hand, a table that was unlogged) has no
 * position. */
static int positions(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(
        l->st, err,
        "SELECT c.name, count(x.lane), c.lanes + 1 FROM @schema@.consumer c LEFT JOIN LATERAL "
        "@schema@._lanes(c.name, c.lanes) x ON "
        "true GROUP BY c.name, c.lanes HAVING count(x.lane) <= c.lanes ORDER BY c.name",
        "");
    if (!r)
        return -1;
    for (int i = 0; i < PQntuples(r); i++) {
        char advice[200];
        snprintf(advice, sizeof advice,
                 "restore the table, or run `outbox consumers remove %.63s` and start it anew, "
                 "where you want it to",
                 PQgetvalue(r, i, 0));
        say(l, FINDING_PROBLEM, "position", advice,
            "consumer \"%s\" has lost its place, and gets nothing: %s of its %s rows in table lane "
            "are left",
            PQgetvalue(r, i, 0), PQgetvalue(r, i, 1), PQgetvalue(r, i, 2));
    }
    if (PQntuples(r) == 0)
        say(l, FINDING_OK, "position", NULL, "every consumer has its own");
    PQclear(r);
    return 0;
}

/* Positions are made of transaction ids, which mean nothing in another cluster. */
static int restored(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(
        l->st, err,
        "SELECT concat_ws('; ', t.moved, t.numbers), (SELECT value FROM @schema@.meta WHERE name = "
        "'rebaselined_at'), (SELECT value FROM @schema@.meta WHERE name = 'renumbered_at'), "
        "(SELECT value FROM @schema@.meta "
        "WHERE name = 'renumbered_why'), t.sequence FROM @schema@._trouble() t",
        "");
    if (!r)
        return -1;
    if (pg_str(r, 0, 2))
        say(l, FINDING_NOTE, "restore", NULL,
            "event numbers had begun again, or came from elsewhere, and were put right at %s: %s",
            PQgetvalue(r, 0, 2), PQgetvalue(r, 0, 3));
    if (pg_str(r, 0, 4))
        say(l, FINDING_WARNING, "restore",
            "run `outbox status` as the outbox's owner: it puts the sequence right",
            "%s: consumers go on, and read more than they would have to", PQgetvalue(r, 0, 4));
    if (*PQgetvalue(r, 0, 0))
        say(l, FINDING_PROBLEM, "restore",
            "run `outbox status` as the outbox's owner: it makes it right; some events may be "
            "delivered again",
            "this is not the outbox its consumers know, and nothing is handed out until it is made "
            "right: %s",
            PQgetvalue(r, 0, 0));
    else if (pg_str(r, 0, 1))
        say(l, FINDING_NOTE, "restore", NULL,
            "a restore was found, and positions were made anew, at %s", PQgetvalue(r, 0, 1));
    else
        say(l, FINDING_OK, "restore", NULL, "the cluster is the one this outbox was made in");
    PQclear(r);
    return 0;
}

/* What keeps rows of adopted tables from being marked keeps no event from being delivered: it is
 * told here. */
static int marked(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(
        l->st, err,
        "SELECT m.tab, m.consumer, m.error, to_char(m.error_at AT TIME ZONE 'UTC', 'YYYY-MM-DD "
        "HH24:MI:SS "
        "\"UTC\"') FROM @schema@.marking m WHERE m.error IS NOT NULL ORDER BY m.id",
        "");
    if (!r)
        return -1;
    for (int i = 0; i < PQntuples(r); i++)
        say(l, FINDING_PROBLEM, "marked",
            "put that right; or `outbox adopt TABLE --drop-mark`, and stop what delivered them "
            "before",
            "rows of table %s are not marked, though consumer %s has had them, since %s: %s",
            PQgetvalue(r, i, 0), PQgetvalue(r, i, 1), PQgetvalue(r, i, 3), PQgetvalue(r, i, 2));
    PQclear(r);
    return 0;
}

/* Functions of adopted tables that earlier versions made run casts of the table's owner with the
 * rights of the outbox's. */
static int adopted(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err,
                           "SELECT (SELECT string_agg(t::text, ', ') FROM "
                           "@schema@._adopted_formerly() t), (SELECT count(*) FROM "
                           "pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE p.pronamespace = "
                           "$1::regnamespace AND p.proname "
                           "LIKE 'adopted\\_%' AND t.tgparentid = 0)",
                           "s", l->st->quoted);
    if (!r)
        return -1;
    if (pg_str(r, 0, 0))
        say(l, FINDING_PROBLEM, "adopted",
            "as the outbox's owner, or a superuser: `outbox adopt TABLE` again, with its columns "
            "as they are now",
            "the triggers of these tables are of an earlier version, and their owners could use "
            "them to act as the outbox's: %s",
            PQgetvalue(r, 0, 0));
    else if (pg_int(r, 0, 1) > 0)
        say(l, FINDING_OK, "adopted", NULL, "%s adopted, by triggers that do no more than that",
            pg_int(r, 0, 1) == 1 ? "a table is" : "tables are");
    PQclear(r);
    return 0;
}

/* What others may create beside our functions could be called in their place, with the rights of
 * the outbox's owner. */
static int strangers(const struct look *l, struct error *err)
{
    PGresult *r = pg_strangers(l->st, err);
    if (!r)
        return -1;
    if (PQntuples(r) && pg_str(r, 0, 0))
        say(l, FINDING_PROBLEM, "schema",
            "REVOKE CREATE ON SCHEMA ... FROM them, or ALTER SCHEMA ... OWNER TO the outbox's "
            "owner",
            "others may create functions in schema %s, which would run with the rights of the "
            "outbox's owner: %s",
            l->st->quoted, PQgetvalue(r, 0, 0));
    else
        say(l, FINDING_OK, "schema", NULL, "nobody else may create anything in schema %s",
            l->st->quoted);
    PQclear(r);
    return 0;
}

/* Who has what relays wait for: the lock of a consumer, which those who work for it take for a
 * moment; those of the doorbell. */
static int locks(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(
        l->st, err,
        "SELECT c.name, h.who, coalesce(floor(extract(epoch FROM "
        "clock_timestamp() - h.since) * 1000), 0)::bigint FROM "
        "@schema@.consumer c, LATERAL @schema@._holder(c.xmax) h ORDER BY c.name",
        "");
    if (!r)
        return -1;
    bool fine = true;
    for (int i = 0; i < PQntuples(r); i++) {
        char text[32];
        if (pg_int(r, i, 2) <= l->req->patience_ms)
            continue;
        fine = false;
        say(l, FINDING_WARNING, "lock",
            "end that transaction: nothing of this consumer is handed out meanwhile",
            "consumer \"%s\" has been locked for %s by %s", PQgetvalue(r, i, 0),
            age(pg_int(r, i, 2), text), PQgetvalue(r, i, 1));
    }
    PQclear(r);
    r = pg_query(l->st, err, "SELECT @schema@._bell_squatters()", "");
    if (!r)
        return -1;
    if (pg_str(r, 0, 0)) {
        fine = false;
        say(l, FINDING_WARNING, "lock", "end that session, and ask its role why",
            "a lock of the doorbell is held by one who has no business with it, and relays look "
            "every second instead of being woken: %s",
            PQgetvalue(r, 0, 0));
    }
    PQclear(r);
    return fine ? say(l, FINDING_OK, "lock", NULL, "nobody is in the way of relays") : 0;
}

/* ---- all of it ---- */

struct check {
    const char *name;
    int (*look)(const struct look *l, struct error *err);
};

static const struct check of_server[] = {
    {"server", server},
    {"connections", connections},
    {"transaction", transactions},
    {"prepared-transaction", prepared},
    {"wraparound", wraparound},
    {"durability", durability},
    {NULL, NULL},
};
static const struct check of_outbox[] = {
    {"grants", grants},   {"schema", strangers},   {"doorbell", doorbell}, {"dead-rows", dead_rows},
    {"claim", claims},    {"position", positions}, {"restore", restored},  {"lock", locks},
    {"adopted", adopted}, {"marked", marked},      {NULL, NULL},
};

/* run: what cannot be looked at is a finding, too; only a server that is gone ends it. */
static int run(const struct look *l, const struct check *c, struct error *err)
{
    struct error why;
    for (; c->name; c++) {
        if (c->look(l, &why) == 0)
            continue;
        if (why.code == ERR_UNAVAILABLE) {
            if (err)
                *err = why;
            return -1;
        }
        say(l, FINDING_WARNING, c->name, NULL, "cannot be looked at: %s", why.text);
    }
    return 0;
}

int pg_doctor(struct store *base, const struct doctor_request *req, struct error *err)
{
    struct look l = {.st = pg_of(base), .req = req};
    struct schema_status s;
    struct error why;
    if (run(&l, of_server, err) != 0)
        return -1;
    if (pg_schema_status(base, &s, &why) != 0) {
        /* no right to read even the version */
        if (why.code == ERR_READONLY)
            return grants(&l, err);
        return 0; /* who called has seen it, too */
    }
    return s.there == s.known ? run(&l, of_outbox, err) : 0;
}
