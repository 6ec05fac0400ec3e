/* doctor.c: checks on an outbox in PostgreSQL. It only reads. doctor_server.c checks the server. */
#include "store/postgres/doctor.h"

#include <stdio.h>

#include "base/text.h"

#define DEAD_MAX 50000 /* dead rows of a table from which on an operator should look */
#define QUEUE_PERCENT 50

int pg_say(const struct look *l, enum finding_level level, const char *name, const char *advice,
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

const char *pg_say_age(int64_t ms, char out[32])
{
    if (ms >= 1000)
        ms = ms / 1000 * 1000;
    text_duration_show(ms, out);
    return out;
}

/* ---- rights ---- */

/* The rights that a part needs (internal/rights.sql) and the role does not have. A right may be for
 * some columns only. */
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

static const struct part {
    const char *name, *advice;
    enum finding_level level;
} parts[] = {{"consumer", "`outbox grant consumer ROLE`", FINDING_PROBLEM},
             {"operator", "`outbox grant operator ROLE`, if it is to trim", FINDING_NOTE}};

/* Checks whether the role may use the schema at all, and reports if not. */
static int check_usage(const struct look *l, bool *ret, struct error *err)
{
    static const char sql[] =
        "SELECT has_schema_privilege($1::regnamespace, 'USAGE'), current_user";
    PGresult *r = pg_query(l->st, err, sql, "s", l->st->quoted);
    if (!r)
        return -1;
    *ret = pg_true(r, 0, 0);
    if (!*ret)
        pg_say(l, FINDING_PROBLEM, "grants", parts[0].advice, "schema %s is closed to role \"%s\"",
               l->st->quoted, PQgetvalue(r, 0, 1));
    PQclear(r);
    return 0;
}

/* Checks whether the role has all the rights of a part, and reports if not. */
static int check_part(const struct look *l, const struct part *p, bool *ret, struct error *err)
{
    PGresult *r = pg_query(l->st, err, lacking_sql, "s", p->name);
    if (!r)
        return -1;
    const char *lacks = pg_str(r, 0, 0);
    *ret = lacks == NULL;
    if (lacks)
        pg_say(l, p->level, "grants", p->advice, "role \"%s\" cannot work as %s, it lacks %s",
               PQgetvalue(r, 0, 1), p->name, lacks);
    PQclear(r);
    return 0;
}

static int grants(const struct look *l, struct error *err)
{
    bool open;
    if (check_usage(l, &open, err) != 0)
        return -1;
    if (!open)
        return 0;

    bool fine = true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool whole;
        if (check_part(l, &parts[i], &whole, err) != 0)
            return -1;
        if (!whole)
            fine = false;
    }
    if (!fine)
        return 0;
    return pg_say(l, FINDING_OK, "grants", NULL,
                  "this role may do all that relays and operators do");
}

/* Reports other roles that may create functions in the schema. Such functions could be called in
 * place of ours, with the rights of the outbox's owner. */
static int strangers(const struct look *l, struct error *err)
{
    PGresult *r = pg_strangers(l->st, err);
    if (!r)
        return -1;
    const char *who = NULL;
    if (PQntuples(r) > 0)
        who = pg_str(r, 0, 0);
    if (who)
        pg_say(l, FINDING_PROBLEM, "schema",
               "REVOKE CREATE ON SCHEMA ... FROM them, or ALTER SCHEMA ... OWNER TO the outbox's "
               "owner",
               "others may create functions in schema %s, which would run with the rights of the "
               "outbox's owner: %s",
               l->st->quoted, who);
    else
        pg_say(l, FINDING_OK, "schema", NULL, "no other role may create anything in schema %s",
               l->st->quoted);
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

static int say_wakeup(const struct look *l, const PGresult *r)
{
    bool works = pg_true(r, 0, 0);
    bool off = strcmp(PQgetvalue(r, 0, 1), "off") == 0;
    bool standby = pg_true(r, 0, 3);
    int64_t used = pg_int(r, 0, 4);
    if (standby)
        return pg_say(l, FINDING_WARNING, "wakeup", "connect to the primary",
                      "relays cannot be woken on a standby");
    if (!works && off)
        return pg_say(l, FINDING_NOTE, "wakeup", "reset the setting outbox.wakeup",
                      "switched off by the setting outbox.wakeup: relays look every few "
                      "milliseconds instead");
    if (!works)
        return pg_say(
            l, FINDING_NOTE, "wakeup",
            "set max_prepared_transactions to 0, or outbox.wakeup to on if no client "
            "prepares a transaction that emits",
            "max_prepared_transactions is %lld, and a transaction that notified could not be "
            "prepared: relays look every few milliseconds instead",
            (long long)pg_int(r, 0, 2));
    if (used >= QUEUE_PERCENT)
        return pg_say(
            l, FINDING_WARNING, "wakeup", "end the oldest transaction of a session that listens",
            "the queue of notifications is %lld %% full; once it is, emits fail", (long long)used);
    return pg_say(l, FINDING_OK, "wakeup", NULL, "works: a commit wakes relays that sleep");
}

static int wakeup(const struct look *l, struct error *err)
{
    if (l->st->pooled)
        return pg_say(l, FINDING_WARNING, "wakeup",
                      "give relays an address that leads to the server itself",
                      "there is a pooler in between: relays cannot be woken through it, and look "
                      "every few milliseconds instead");
    PGresult *r = pg_query(l->st, err, wakeup_sql, "");
    if (!r)
        return -1;
    say_wakeup(l, r);
    PQclear(r);
    return 0;
}

/* ---- dead rows ---- */

/* clang-format off */
static const char dead_rows_sql[] =
    "SELECT c.relname, "
           "pg_stat_get_dead_tuples(c.oid), "
           "pg_stat_get_live_tuples(c.oid), "
           "pg_size_pretty(pg_table_size(c.oid)), "
           "current_setting('autovacuum') "
    "FROM pg_class c "
    "WHERE c.relnamespace = $1::regnamespace "
      "AND c.relname IN ('lane', 'claim', 'parked', 'event') "
    "ORDER BY 2 DESC";
/* clang-format on */

static void say_dead_rows(const struct look *l, const PGresult *r, int i)
{
    char advice[256];
    const char *table = PQgetvalue(r, i, 0);
    snprintf(advice, sizeof advice,
             "end the transaction that keeps them alive, if one is named here; VACUUM "
             "%.140s.%.20s",
             l->st->quoted, table);
    pg_say(l, FINDING_WARNING, "dead-rows", advice,
           "table %s has %lld dead rows beside %lld live ones (%s)", table,
           (long long)pg_int(r, i, 1), (long long)pg_int(r, i, 2), PQgetvalue(r, i, 3));
}

static int dead_rows(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, dead_rows_sql, "s", l->st->quoted);
    if (!r)
        return -1;
    bool fine = true;
    int64_t sum = 0;
    for (int i = 0; i < PQntuples(r); i++) {
        int64_t dead = pg_int(r, i, 1);
        int64_t live = pg_int(r, i, 2);
        bool too_many = dead > DEAD_MAX && dead >= live / 5;
        sum += dead;
        if (too_many) {
            fine = false;
            say_dead_rows(l, r, i);
        }
    }
    bool vacuum_off = PQntuples(r) > 0 && strcmp(PQgetvalue(r, 0, 4), "off") == 0;
    if (vacuum_off)
        pg_say(l, FINDING_WARNING, "dead-rows", "switch autovacuum on",
               "autovacuum is off: dead rows are not removed");
    else if (fine)
        pg_say(l, FINDING_OK, "dead-rows", NULL, "%lld dead rows", (long long)sum);
    PQclear(r);
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

static const char positions_sql[] =
    "SELECT c.name, count(x.lane), c.lanes + 1 "
    "FROM @schema@.consumer c "
    "LEFT JOIN LATERAL @schema@._lanes(c.name, c.lanes) x ON true "
    "GROUP BY c.name, c.lanes "
    "HAVING count(x.lane) <= c.lanes "
    "ORDER BY c.name";

static const char locks_sql[] =
    "SELECT c.name, "
           "h.who, "
           "coalesce(floor(extract(epoch FROM clock_timestamp() - h.since) * 1000), 0)::bigint "
    "FROM @schema@.consumer c, LATERAL @schema@._holder(c.xmax) h "
    "ORDER BY c.name";
/* clang-format on */

/* Reports expired claims that no worker has taken over. */
static int claims(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, claims_sql, "");
    if (!r)
        return -1;
    bool fine = true;
    for (int i = 0; i < PQntuples(r); i++) {
        char age[32];
        int64_t ms = pg_int(r, i, 2);
        const char *plural = pg_int(r, i, 1) == 1 ? "" : "s";
        if (ms <= l->req->patience_ms)
            continue;
        fine = false;
        pg_say(l, FINDING_WARNING, "claim",
               "start a relay that runs this consumer: it takes them over",
               "consumer \"%s\": %s claim%s of workers that vanished, the oldest ran out %s ago "
               "(%s), and no relay takes them over",
               PQgetvalue(r, i, 0), PQgetvalue(r, i, 1), plural, pg_say_age(ms, age),
               PQgetvalue(r, i, 3));
    }
    if (fine)
        pg_say(l, FINDING_OK, "claim", NULL, "none is left behind");
    PQclear(r);
    return 0;
}

/* Reports consumers that have lost rows of table lane, and so their position; they may have been
 * deleted by hand. */
static int positions(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, positions_sql, "");
    if (!r)
        return -1;
    for (int i = 0; i < PQntuples(r); i++) {
        char advice[200];
        const char *name = PQgetvalue(r, i, 0);
        snprintf(advice, sizeof advice,
                 "restore the table, or run `outbox consumers remove %.63s` and start it anew "
                 "where you want it",
                 name);
        pg_say(l, FINDING_PROBLEM, "position", advice,
               "consumer \"%s\" has lost its place, and gets nothing: %s of its %s rows in table "
               "lane are left",
               name, PQgetvalue(r, i, 1), PQgetvalue(r, i, 2));
    }
    if (PQntuples(r) == 0)
        pg_say(l, FINDING_OK, "position", NULL, "every consumer has its position");
    PQclear(r);
    return 0;
}

/* clang-format off */
static const char guards_sql[] =
    "SELECT count(*) "
    "FROM pg_catalog.pg_trigger t "
    "WHERE t.tgrelid = '@schema@.event'::regclass "
      "AND t.tgname = 'insert_only' "
      "AND t.tgenabled IN ('O', 'A')";

/* Deleted events that wait for a retry: trim never deletes those, and a dead letter that was sent
 * back has its own copy. */
static const char lost_sql[] =
    "SELECT p.consumer, count(*), min(p.seq) "
    "FROM (SELECT x.consumer, x.seq FROM @schema@.parked x LIMIT 10000) p "
    "WHERE NOT EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq = p.seq) "
      "AND NOT EXISTS (SELECT 1 FROM @schema@.dead d "
                      "WHERE d.consumer = p.consumer AND d.seq = p.seq) "
    "GROUP BY p.consumer "
    "ORDER BY p.consumer";
/* clang-format on */

/* Checks whether events can be changed and deleted silently. */
static int insert_only(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, guards_sql, "");
    if (!r)
        return -1;
    bool guarded = pg_int(r, 0, 0) > 0;
    PQclear(r);
    if (guarded)
        return 0;
    return pg_say(l, FINDING_PROBLEM, "insert-only",
                  "ALTER TABLE event ENABLE TRIGGER insert_only, or create it again as `outbox "
                  "migrate gen` has it",
                  "the trigger insert_only on table event is off: UPDATE, DELETE and TRUNCATE can "
                  "lose events silently");
}

/* Reports events that were deleted too early, as far as that can be detected: sequences leave gaps
 * of their own. */
static int lost(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, lost_sql, "");
    if (!r)
        return -1;
    for (int i = 0; i < PQntuples(r); i++)
        pg_say(l, FINDING_PROBLEM, "lost", "bring them back from a backup, or emit them again",
               "consumer \"%s\": %s events that wait for it were deleted, the first is %s",
               PQgetvalue(r, i, 0), PQgetvalue(r, i, 1), PQgetvalue(r, i, 2));
    PQclear(r);
    return 0;
}

/* Reports transactions that have had a consumer locked for long. A worker locks its consumer only
 * for a moment. */
static int consumer_locks(const struct look *l, bool *fine, struct error *err)
{
    PGresult *r = pg_query(l->st, err, locks_sql, "");
    if (!r)
        return -1;
    for (int i = 0; i < PQntuples(r); i++) {
        char age[32];
        int64_t ms = pg_int(r, i, 2);
        if (ms <= l->req->patience_ms)
            continue;
        *fine = false;
        pg_say(l, FINDING_WARNING, "lock",
               "end that transaction: nothing of this consumer is handed out meanwhile",
               "consumer \"%s\" has been locked for %s by %s", PQgetvalue(r, i, 0),
               pg_say_age(ms, age), PQgetvalue(r, i, 1));
    }
    PQclear(r);
    return 0;
}

/* Reports unrelated sessions that hold a wake-up lock. */
static int foreign_lock_holders(const struct look *l, bool *fine, struct error *err)
{
    PGresult *r = pg_query(l->st, err, "SELECT @schema@._wakeup_foreign_holders()", "");
    if (!r)
        return -1;
    const char *who = pg_str(r, 0, 0);
    if (who) {
        *fine = false;
        pg_say(l, FINDING_WARNING, "lock", "end that session, and ask its role why",
               "a wake-up lock is held by an unrelated session, so relays "
               "poll every second instead of being woken: %s",
               who);
    }
    PQclear(r);
    return 0;
}

static int locks(const struct look *l, struct error *err)
{
    bool fine = true;
    if (consumer_locks(l, &fine, err) != 0)
        return -1;
    if (foreign_lock_holders(l, &fine, err) != 0)
        return -1;
    if (!fine)
        return 0;
    return pg_say(l, FINDING_OK, "lock", NULL, "no lock is in the way of relays");
}

/* ---- restores ---- */

/* clang-format off */
static const char restored_sql[] =
    "SELECT concat_ws('; ', t.moved, t.numbers), "
           "(SELECT value FROM @schema@.meta WHERE name = 'rebaselined_at'), "
           "(SELECT value FROM @schema@.meta WHERE name = 'renumbered_at'), "
           "(SELECT value FROM @schema@.meta WHERE name = 'renumbered_why'), "
           "t.sequence "
    "FROM @schema@._trouble() t";
/* clang-format on */

/* Checks whether positions are valid here. They consist of transaction ids, which mean nothing in
 * another cluster. */
static int restored(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, restored_sql, "");
    if (!r)
        return -1;
    const char *trouble = PQgetvalue(r, 0, 0);
    const char *rebaselined_at = pg_str(r, 0, 1);
    const char *renumbered_at = pg_str(r, 0, 2);
    const char *sequence = pg_str(r, 0, 4);
    if (renumbered_at)
        pg_say(l, FINDING_NOTE, "restore", NULL,
               "event numbers had started over, or came from elsewhere, and were repaired at %s: "
               "%s",
               renumbered_at, PQgetvalue(r, 0, 3));
    if (sequence)
        pg_say(l, FINDING_WARNING, "restore",
               "run `outbox status` as the outbox's owner: it repairs the sequence",
               "%s: consumers go on, but read more than they need to", sequence);
    if (*trouble)
        pg_say(l, FINDING_PROBLEM, "restore",
               "run `outbox status` as the outbox's owner: it repairs that; some events may be "
               "delivered again",
               "this is not the outbox its consumers know, and nothing is handed out until it is "
               "repaired: %s",
               trouble);
    else if (rebaselined_at)
        pg_say(l, FINDING_NOTE, "restore", NULL,
               "the outbox was restored elsewhere, and its positions were corrected, at %s",
               rebaselined_at);
    else
        pg_say(l, FINDING_OK, "restore", NULL, "this outbox is in the cluster it was made in");
    PQclear(r);
    return 0;
}

/* ---- adopted tables ---- */

/* clang-format off */
static const char marked_sql[] =
    "SELECT m.tab, m.consumer, m.error, "
           "to_char(m.error_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS \"UTC\"') "
    "FROM @schema@.marking m "
    "WHERE m.error IS NOT NULL "
    "ORDER BY m.id";

static const char adopted_sql[] =
    "SELECT (SELECT string_agg(t::text, ', ') FROM @schema@._adopted_formerly() t), "
           "(SELECT count(*) "
            "FROM pg_trigger t "
            "JOIN pg_proc p ON p.oid = t.tgfoid "
            "WHERE p.pronamespace = $1::regnamespace "
              "AND p.proname LIKE 'adopted\\_%' "
              "AND t.tgparentid = 0)";
/* clang-format on */

/* Reports what prevents rows of adopted tables from being marked. Their events are still delivered,
 * so no other check reports it. */
static int marked(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, marked_sql, "");
    if (!r)
        return -1;
    for (int i = 0; i < PQntuples(r); i++)
        pg_say(l, FINDING_PROBLEM, "marked",
               "fix that; or run `outbox adopt TABLE --drop-mark`, and stop what delivered "
               "these rows before",
               "rows of table %s are not marked, though consumer %s has had them, since %s: %s",
               PQgetvalue(r, i, 0), PQgetvalue(r, i, 1), PQgetvalue(r, i, 3), PQgetvalue(r, i, 2));
    PQclear(r);
    return 0;
}

/* Reports triggers that earlier versions created: they run casts of the table's owner with the
 * rights of the outbox's owner. */
static int adopted(const struct look *l, struct error *err)
{
    PGresult *r = pg_query(l->st, err, adopted_sql, "s", l->st->quoted);
    if (!r)
        return -1;
    const char *formerly = pg_str(r, 0, 0);
    int64_t n = pg_int(r, 0, 1);
    if (formerly)
        pg_say(l, FINDING_PROBLEM, "adopted",
               "as the outbox's owner, or a superuser: `outbox adopt TABLE` again, with its "
               "columns as they are now",
               "the triggers of these tables are of an earlier version, and their owners could use "
               "them to act as the outbox's: %s",
               formerly);
    else if (n > 0)
        pg_say(l, FINDING_OK, "adopted", NULL, "%s adopted, with triggers of this version",
               n == 1 ? "a table is" : "tables are");
    PQclear(r);
    return 0;
}

/* ---- all of it ---- */

static const struct check checks_outbox[] = {
    {"grants", grants},
    {"schema", strangers},
    {"wakeup", wakeup},
    {"dead-rows", dead_rows},
    {"claim", claims},
    {"position", positions},
    {"restore", restored},
    {"lock", locks},
    {"adopted", adopted},
    {"marked", marked},
    {"insert-only", insert_only},
    {"lost", lost},
    {NULL, NULL},
};

/* Runs all checks of a list. A check that fails is a finding as well; only a lost server ends the
 * run. */
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
        pg_say(l, FINDING_WARNING, c->name, NULL, "could not be checked: %s", why.text);
    }
    return 0;
}

int pg_doctor(struct store *base, const struct doctor_request *req, struct error *err)
{
    struct look l = {.st = pg_of(base), .req = req};
    struct schema_status s;
    struct error why;
    if (run(&l, pg_checks_server, err) != 0)
        return -1;
    if (pg_schema_status(base, &s, &why) != 0) {
        bool no_rights = why.code == ERR_READONLY; /* not even to read the version */
        if (no_rights)
            return grants(&l, err);
        return 0; /* the caller meets other failures itself */
    }
    if (s.there != s.known)
        return 0; /* as the caller has reported */
    return run(&l, checks_outbox, err);
}
