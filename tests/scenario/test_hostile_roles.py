"""Hostile roles of the database: each attempts operations without a grant. All share one outbox with a row in every table; each
attempt is rolled back.

Every role attempts everything in the schema; tests/rights.md lists the attempts that succeed. To regenerate it:

    python3 tests/scenario/test_hostile_roles.py --write
"""
# build: plain
# quick: no
import json
import pathlib
import subprocess
import sys
import textwrap
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import psycopg2
import servers
from sessions_postgres import request
from support import BIN, ROOT, postgres_server

REFUSED = "42501"
RIGHTS = ROOT / "tests" / "rights.md"


class Lair:
    """An outbox in a separate database, and the roles that attack it. Consumers: mail and audit are the platform's, a.mail and
    b.mail are tenants'."""

    def __init__(self):
        server = postgres_server()
        self.dbname = f"t_{uuid.uuid4().hex}"
        servers.create_database(server, self.dbname)
        self.url = server.replace("postgres:///?", f"postgres:///{self.dbname}?")
        self.db = psycopg2.connect(self.url)
        self.db.autocommit = True
        self.names = []
        self.do("SET jit = off")
        self.outbox("init")
        self.knows = self.do("SELECT value::int FROM outbox.meta WHERE name = 'schema_version'")[0][0]  # another's worker gets nothing
        self.fill()

    def close(self):
        for name in self.names: self.do(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
        self.db.close()
        servers.drop_database(postgres_server(), self.dbname)

    def outbox(self, *args):
        done = subprocess.run([BIN, *args, "--store", self.url], capture_output=True, text=True, check=False)
        if done.returncode != 0: raise AssertionError(f"{args}: {done.stderr}")
        return done.stdout

    def do(self, statement, *params):
        with self.db.cursor() as cursor:
            cursor.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []

    def role(self, *grants):
        """role creates a role; each grant is the rest of an `outbox grant` command, with {} for its name."""
        name = f"h{uuid.uuid4().hex[:12]}"
        self.do(f"CREATE ROLE {name} LOGIN")
        self.names.append(name)
        for grant in grants: self.outbox("grant", *(word.replace("{}", name) for word in grant.split()))
        return name

    def fill(self):
        """fill leaves a dead letter, a parked event, a live claim and more of each consumer, and of each tenant."""
        for tenant, consumers in (("", ("mail", "audit")), ("a", ("a.mail",)), ("b", ("b.mail",))):
            self.do("SELECT set_config('outbox.tenant', %s, false)", tenant)
            for i in (1, 2): self.do("SELECT outbox.emit('t', 'k', %s, %s)", f"{tenant}{i}", json.dumps(f"secret of {tenant}"))
            self.do("SELECT outbox.emit('t', 'k', '3', '3', idempotency_key => %s)", f"key of {tenant or 'all'}")
            for name in consumers: self.do("SELECT outbox.register(%s, lanes => 1)", name)
            self.do("SELECT outbox.handle_once(%s, 'seen')", consumers[0])
        self.do("SET outbox.tenant = ''")
        # As the owner cannot claim for a tenant, two roles leave claims of their own.
        self.claims = {}
        for name, role in (("mail", self.role("consumer {}")), ("a.mail", self.role("consumer {} --tenant a")),
                           ("b.mail", self.role("consumer {} --tenant b"))):
            self.do(f"SET SESSION AUTHORIZATION {role}")
            rows = self.do("SELECT epoch, seq FROM outbox.claim(%s, 'w')", name)
            out = [{"seq": rows[0][1], "kind": "dead", "error": "bad"}, {"seq": rows[1][1], "kind": "retry", "delay_ms": 3600000}]
            self.do("SELECT outbox.settle(%s, 'w', %s, %s)", name, rows[0][0], json.dumps(out))
            self.do("RESET SESSION AUTHORIZATION")
            self.do("SELECT outbox.emit('t', 'k', '4', '4', tenant => %s)", name[0] if name[1] == "." else None)
            self.do(f"SET SESSION AUTHORIZATION {role}")
            self.claims[name] = self.do("SELECT epoch FROM outbox.claim(%s, 'w', lease_ms => 86400000)", name)[0][0]
            self.do("RESET SESSION AUTHORIZATION")
        self.claims["audit"] = self.do("SELECT epoch FROM outbox.claim('audit', 'w', 1, 86400000)")[0][0]
        # The rest as it would be, for each consumer: the visibility of an empty table proves nothing.
        for table, columns in {"dead": "seq, id, type, payload, attempts, created_at, dead_at", "parked": "seq, key, attempts"}.items():
            self.do(f"INSERT INTO outbox.{table} (consumer, {columns}) SELECT 'audit', {columns} FROM outbox.{table} "
                    "WHERE consumer = 'mail' ON CONFLICT DO NOTHING")
        for row in ("setting (consumer, generation, events, predicate, ordering, lanes, since) SELECT name, 1, '', '', 'key', 1, now()",
                    "ended (consumer, seq, state) SELECT name, 1, 'dropped'",
                    "receipt (consumer, seq, event_id, at) SELECT name, 1, gen_random_uuid(), now()",
                    "mark (consumer, stream, hi, lo, at) SELECT name, 'stream', 1, 1, now()",
                    "marking (consumer, tab, col, keys) SELECT name, (900000 + row_number() OVER ())::int::oid, 'done', '{id}'",
                    "former_filter (consumer, n, lane, lanes, events, predicate, epoch, seen, floor, pos, head) "
                    "SELECT name, 1, 0, 1, '', '', 0, '1:1:', 0, 0, 0"):
            self.do(f"INSERT INTO outbox.{row} FROM outbox.consumer ON CONFLICT DO NOTHING")
        self.do("INSERT INTO outbox.adopted_row (marking, seq, key) SELECT id, 1, ARRAY[consumer] FROM outbox.marking ON CONFLICT DO NOTHING")
        self.letters = dict(self.do("SELECT consumer, min(seq) FROM outbox.dead GROUP BY 1"))


lair = None


def setUpModule():
    global lair
    lair = Lair()


def tearDownModule():
    lair.close()


# ---- every statement, by every role ----

# attempt runs a statement with the caller's rights, undoes it, and returns the outcome: the error's SQLSTATE and text, or
# 'done', its result, and the tables' content then.
ATTEMPT = """
CREATE FUNCTION lair.state() RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE t text; h text; r jsonb := '{}';
BEGIN
    FOR t IN SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('SELECT md5(string_agg(x::text, chr(10) ORDER BY x::text)) FROM outbox.%I x', t) INTO h;
        r := r || jsonb_build_object(t, h);
    END LOOP;
    RETURN r;
END$$;
CREATE FUNCTION lair.attempt(statement text, rows boolean, OUT state text, OUT said text, OUT got jsonb) LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
    state := 'done';
    got := '[]';
    IF rows THEN
        FOR r IN EXECUTE statement LOOP got := got || jsonb_build_array(to_jsonb(r)); END LOOP;
    ELSE
        EXECUTE statement;
    END IF;
    said := lair.state();
    RAISE EXCEPTION USING ERRCODE = 'LR000', MESSAGE = 'undo';
EXCEPTION
    WHEN SQLSTATE 'LR000' THEN NULL;
    WHEN OTHERS THEN state := SQLSTATE; said := SQLERRM;
END$$;
"""

MODES = ("ACCESS EXCLUSIVE", "EXCLUSIVE", "SHARE ROW EXCLUSIVE", "SHARE", "SHARE UPDATE EXCLUSIVE")

CLAIMS = ("claim", "claim_batch")  # refused in a transaction that has written, so each is tried in a separate one
# The name of an argument decides its value; otherwise its type does. {target}: a consumer, {epoch}: its live claim.
BY_NAME = {"consumer": "'{target}'", "handler": "'{target}'", "handlers": "ARRAY['{target}']", "keys": "ARRAY['k']", "worker": "'w'",
           "owner": "'w'", "epoch": "{epoch}", "settle_epoch": "{epoch}", "role": "'{role}'", "who": "'{role}'", "part": "'operator'",
           "event_id": "NULL", "tenant": "NULL", "idempotency_key": "'k2'", "not_before": "NULL", "predicate": "''", "events": "''",
           "ordering": "'key'", "start_at": "'end'", "how": "'start'", "retry": "'fast'", "knows": "{knows}", "ahead_lane": "-1", "ahead_n": "0",
           "ahead_to": "0", "ahead_from": "0", "release_from": "0", "max_attempts": "0", "marks": "NULL", "force": "true",
           "headers": "NULL", "source": "'lair.adopted'", "older_than": "'0s'", "inbox": "NULL", "existing": "NULL", "shape": "'auto'",
           "columns": "'{{}}'", "paused": "true", "generation": "NULL", "outcomes": "'[]'", "tried": "1"}
BY_TYPE = {"text": "'x'", "name": "'x'", "integer": "1", "bigint": "1", "boolean": "true", "json": "'[]'", "jsonb": "'[]'",
           "interval": "'1s'", "timestamp with time zone": "now()", "uuid": "NULL", "text[]": "'{{}}'", "bigint[]": "'{{}}'",
           "bytea": "'x'", "regclass": "'outbox.event'", "pg_snapshot": "'1:1:'", "xid8": "'3'", "anycompatible": "'x'",
           "outbox._request": "REQUEST", "outbox._request[]": "ARRAY[REQUEST]"}
BY_TYPE = {name: value.replace("REQUEST", "ROW(0, '{target}', 'w', {epoch}, 1, '[]', 0, NULL, 1, 1, 0, 1, true, true, 1, '{{}}', 'key', 1, "
                                          "'', '', -1, 'x', 0, 0, 0, NULL, NULL)::outbox._request") for name, value in BY_TYPE.items()}


class Matrix:
    """The operations that each role was found to be allowed."""

    def __init__(self, lair):
        self.lair = lair
        lair.do("CREATE SCHEMA lair; GRANT USAGE, CREATE ON SCHEMA lair TO PUBLIC")
        lair.do(ATTEMPT)
        adopter = lair.role()
        lair.do("CREATE TABLE lair.adopted (id bigint, event_type text, payload jsonb, processed_at timestamptz)")
        lair.do(f"ALTER TABLE lair.adopted OWNER TO {adopter}")
        lair.outbox("adopt", "lair.adopted")
        self.roles = {"without a part": lair.role(), "owner of an adopted table": adopter, "producer": lair.role("producer {}"),
                      "consumer of audit": lair.role("consumer {} --consumer audit"), "consumer of all": lair.role("consumer {}"),
                      "operator": lair.role("operator {}"), "producer of a": lair.role("producer {} --tenant a"),
                      "consumer of a": lair.role("consumer {} --tenant a"), "operator of a": lair.role("operator {} --tenant a")}
        self.own = {"consumer of audit": "audit", "consumer of a": "a.mail", "operator of a": "a.mail", "producer of a": "a.mail"}
        self.before = lair.do("SELECT lair.state()")[0][0]

    def attempts(self, role, statements, rows=False):
        """attempts returns (SQLSTATE or 'done', text or the tables after, rows) of each statement, tried by the role."""
        self.lair.do("SELECT set_config('outbox.tenant', %s, false)", "a" if role.endswith(" of a") else "")
        self.lair.do(f"SET SESSION AUTHORIZATION {self.roles[role]}")
        try:
            return self.lair.do("SELECT a.state, a.said, a.got FROM unnest(%s) WITH ORDINALITY AS s (text, n), "
                                "lair.attempt(s.text, %s) a ORDER BY s.n", list(statements), rows)
        finally:
            self.lair.do("RESET SESSION AUTHORIZATION; SET outbox.tenant = ''")

    def alone(self, role, statement):
        """alone attempts one statement that needs a separate transaction."""
        self.lair.db.autocommit = False
        try:
            self.lair.do(f"SET SESSION AUTHORIZATION {self.roles[role]}")
            self.lair.do(statement)
            self.lair.do("RESET SESSION AUTHORIZATION")
            return "done", json.dumps(self.lair.do("SELECT lair.state()")[0][0]), None
        except psycopg2.Error as error:
            return error.pgcode, str(error), None
        finally:
            self.lair.db.rollback()
            self.lair.db.autocommit = True

    def changed(self, said):
        after = json.loads(said)
        return sorted(name for name in after if after[name] != self.before[name])

    # ---- tables ----

    def relations(self):
        """relations returns each table, view and sequence with its columns."""
        return self.lair.do("SELECT c.relname, c.relkind::text, array_agg(a.attname::text ORDER BY a.attnum) FROM pg_class c JOIN "
                            "pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped WHERE c.relnamespace = "
                            "'outbox'::regnamespace AND c.relkind IN ('r', 'v', 'S') GROUP BY c.relname, c.relkind ORDER BY "
                            "c.relkind = 'S', c.relkind = 'v', 1")

    def may(self, role, statements):
        """may returns for each statement whether the role was allowed to run it. Other errors occur after that decision, and so
        does row-level security, which shows a role its own rows."""
        return [state != REFUSED or "row-level security" in said for state, said, _ in self.attempts(role, statements)]

    def columns(self, role, verb, statement, columns):
        allowed = [c for c, yes in zip(columns, self.may(role, [statement.format(c) for c in columns])) if yes]
        if not allowed: return []
        if allowed == columns: return [verb]
        left = [c for c in columns if c not in allowed]
        return [f"{verb} all but {', '.join(left)}" if len(left) < len(allowed) else f"{verb} {', '.join(allowed)}"]

    def reads(self, role, name, columns):
        state, _, found = self.attempts(role, [f"SELECT count(*) AS n FROM outbox.{name}"], rows=True)[0]
        if state == REFUSED: return []
        total = self.lair.do(f"SELECT count(*) FROM outbox.{name}")[0][0]
        verb = "reads" if found[0]["n"] == total else "reads its own"
        return self.columns(role, verb, f"SELECT {{}} FROM outbox.{name}", columns)

    def of_table(self, role, name, kind, columns):
        cell = self.reads(role, name, columns)
        if kind == "S":
            yes = self.may(role, [f"SELECT nextval('outbox.{name}')", f"SELECT setval('outbox.{name}', 1)"])
            return cell + [verb for verb, may in zip(("nextval", "setval"), yes) if may]
        if kind == "v": return cell
        cell += self.columns(role, "inserts", f"INSERT INTO outbox.{name} ({{}}) VALUES (DEFAULT)", columns)
        cell += self.columns(role, "updates", f"UPDATE outbox.{name} SET {{}} = DEFAULT", columns)
        others = {"deletes": f"DELETE FROM outbox.{name}", "truncates": f"TRUNCATE outbox.{name}",
                  "refers to": f"CREATE TABLE lair.r (x text REFERENCES outbox.{name})",
                  "makes triggers": f"CREATE TRIGGER t BEFORE INSERT ON outbox.{name} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
                  "changes": f"ALTER TABLE outbox.{name} ADD COLUMN mine int", "drops": f"DROP TABLE outbox.{name} CASCADE",
                  "makes policies": f"CREATE POLICY mine ON outbox.{name}", "makes rules": f"CREATE RULE r AS ON INSERT TO outbox.{name} "
                  "DO INSTEAD NOTHING", "indexes": f"CREATE INDEX ON outbox.{name} ({columns[0]})",
                  "locks rows": f"SELECT 1 FROM outbox.{name} FOR KEY SHARE", **{f"locks in {m}": f"LOCK TABLE outbox.{name} IN {m} MODE NOWAIT" for m in MODES}}
        return cell + [verb for verb, may in zip(others, self.may(role, others.values())) if may]

    def tables(self):
        return {name: {role: "; ".join(self.of_table(role, name, kind, columns)) for role in self.roles}
                for name, kind, columns in self.relations()}

    # ---- wake-ups ----

    def wakeup_locks(self):
        """wakeup_locks returns which roles may use the advisory locks and the channel, which are not objects with rights."""
        key, channel = self.lair.do("SELECT outbox._wakeup_key(), outbox.wakeup_channel()")[0]
        acts = {f"{verb} the {nth} lock": f"SELECT 1 / pg_try_advisory_xact_lock{how}({k})::int" for nth, k in (("first", key), ("second", key ^ 1))
                for verb, how in (("holds", ""), ("shares", "_shared"))}
        acts.update({"listens": f"LISTEN {channel}", "notifies": f"NOTIFY {channel}"})
        return {role: [act for act, (state, _, _) in zip(acts, self.attempts(role, acts.values())) if state == "done"] for role in self.roles}

    # ---- functions ----

    def functions(self):
        return self.lair.do("SELECT p.proname, p.oid::regprocedure::text, p.proargnames, (SELECT array_agg(format_type(t, NULL) ORDER BY "
                            "n) FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS x (t, n)) FROM pg_proc p WHERE p.pronamespace = "
                            "'outbox'::regnamespace AND p.prorettype <> 'trigger'::regtype ORDER BY 1, 2")

    def call(self, name, names, types, role, target):
        given = []
        for i, kind in enumerate(types or []):
            called = names[i] if names else ""
            value = BY_NAME.get(called, BY_TYPE.get(kind, "NULL"))
            if kind == "anycompatible": kind = "text"
            if kind == "anyelement": kind = "text"
            if called == "max_attempts" and name in CLAIMS: value = "5"
            if called == "target" and name in CLAIMS: value = "'{target}'"
            if called == "events" and "register" in name: value = "'t'"
            if called == "seq" and "drop" in name: value = "{letter}"
            value = value.format(target=target, epoch=self.lair.claims[target], letter=self.lair.letters[target], role=self.roles[role],
                                 knows=self.lair.knows)
            given.append(f"({value})::{kind}")
        return f"SELECT * FROM outbox.{name}({', '.join(given)})"

    def of_function(self, role, name, names, types):
        """of_function returns the outcome of a call: '' if refused; otherwise whether it works for the role's own consumers or
        for any."""
        targets = [self.own.get(role, "mail"), "b.mail"]
        calls = [self.call(name, names, types, role, target) for target in targets]
        own, other = [self.alone(role, c) for c in calls] if name in CLAIMS else self.attempts(role, calls)
        touched = [self.changed(said) if state == "done" else [] for state, said, _ in (own, other)]
        if own[0] == REFUSED and other[0] == REFUSED: return ""
        if touched[1] and touched[1] == touched[0]: return "changes"
        if touched[0]: return "changes its own"
        if touched[1]: return "CHANGES ANOTHER'S"
        return "calls"

    def calls(self):
        found = {}
        for name, _, names, types in self.functions():
            cells = {role: self.of_function(role, name, names, types) for role in self.roles}
            former = found.setdefault(name, cells)
            for role, cell in cells.items():
                if len(cell) > len(former[role]): former[role] = cell
        return found


def in_table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def alike(cells_of):
    """alike returns {cells: names}: objects with which the same roles may do the same."""
    groups = {}
    for name, cells in cells_of.items(): groups.setdefault(tuple(cells.values()), []).append(name)
    return groups


def rows(groups):
    """rows returns rows of a table, those that the fewest may use first."""
    ordered = sorted(groups.items(), key=lambda item: (sum(map(bool, item[0])), item[1]))
    return [[", ".join(f"`{name}`" for name in names), *(cell or "-" for cell in cells[2:])] for cells, names in ordered if any(cells)]


def written(matrix):
    """written is tests/rights.md."""
    tables, calls, roles = matrix.tables(), matrix.calls(), list(matrix.roles)
    rung = {}
    for role, acts in matrix.wakeup_locks().items(): rung.setdefault(", ".join(acts) or "nothing", []).append(role)
    outside = [name for name, cells in {**tables, **calls}.items() if cells[roles[0]] or cells[roles[1]]]
    return ("# What each role may do\n\n"
            "Written by `tests/scenario/test_hostile_roles.py --write`, which tries everything with a role of\n"
            "each kind. `docs/operations.md` says what each part is for. `consumer of audit` was granted one\n"
            "consumer; roles `of a` are bound to tenant `a`.\n\n"
            f"A {roles[0].replace('without a part', 'role without a part')}, and the owner of an adopted table, could use: {', '.join(outside) or 'nothing'}.\n\n" +
            in_table(["table", *roles[2:]], [[f"`{name}`", *(cells[role] or "-" for role in roles[2:])] for name, cells in tables.items()]) + "\n" +
            "*reads its own*: rows of its consumers, or of its tenant. No role could lock a table against others,\n"
            "or alter it.\n\n" +
            in_table(["function", *roles[2:]], rows(alike(calls)) + [["all others", *("-" for _ in roles[2:])]]) + "\n" +
            "*calls*: the role can call it, and it changed nothing, for its own consumers or others. *changes its\n"
            "own*: it changed something only for the role's own consumers or tenant. *changes*: it did so for any\n"
            "consumer that was named; for the inbox (`handle`), within the role's tenant. *-*: refused.\n\n" +
            textwrap.fill("The locks for wake-ups, and their channel: " +
                          "; ".join(f"{'every role' if len(who) == len(roles) else ', '.join(who)}: {acts}" for acts, who in rung.items()) + ".", 100) + "\n")


class Everything(unittest.TestCase):
    maxDiff = None

    def test_docs_list_exactly_the_allowed_operations(self):
        untouched = Lair()
        self.addCleanup(untouched.close)
        self.assertEqual(written(Matrix(untouched)).splitlines(), RIGHTS.read_text().splitlines(),
                         "run tests/scenario/test_hostile_roles.py --write, and check that the difference is intended")


class Hostile(unittest.TestCase):
    def as_role(self, role):
        """as_role returns a connection of the role, closed at the end of the test."""
        db = psycopg2.connect(lair.url.replace("user=outbox_test", f"user={role}"))
        db.autocommit = True
        self.addCleanup(db.close)
        return db

    def run_on(self, db, statement, *params):
        with db.cursor() as cursor:
            cursor.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []

    def turn(self, db, consumer, knows=None, **fields):
        """turn calls the functions that _turn calls for such a role, and returns the epoch of the claim."""
        return self.run_on(db, "SELECT epoch FROM outbox._worker_turn(json_populate_record(outbox._no_request(%s, 'w'), %s), %s)", consumer,
                           request(**fields), knows)[0][0]

    def refused(self, db, statement, *params, state=REFUSED):
        with self.assertRaises(psycopg2.Error, msg=statement) as caught: self.run_on(db, statement, *params)
        self.assertEqual(caught.exception.pgcode, state, f"{statement}: {caught.exception}")
        return str(caught.exception)


class Consumers(Hostile):
    """A role with the part consumer, for audit alone, and one for all."""

    @classmethod
    def setUpClass(cls):
        cls.audit, cls.all = lair.role("consumer {} --consumer audit"), lair.role("consumer {}")

    FORGED = "(consumer, seq, id, type, payload, attempts, created_at, dead_at, retrying) VALUES ('audit', 1000, gen_random_uuid(), " \
             "'order.paid', '{\"total\": 0}', 0, now(), now(), true)"

    def test_role_cannot_invent_an_event_that_a_relay_would_deliver(self):
        for role in (self.audit, self.all):
            db = self.as_role(role)
            self.refused(db, f"INSERT INTO outbox.dead {self.FORGED}")
            self.refused(db, "INSERT INTO outbox.parked (consumer, seq, key, attempts, due_at) VALUES ('audit', 1000, 0, 0, now())")
            self.refused(db, "INSERT INTO outbox.event (type) VALUES ('x')")

    def test_role_cannot_settle_extend_or_shrink_anothers_claim(self):
        db, epoch = self.as_role(self.audit), lair.claims["mail"]
        said = self.refused(db, "SELECT outbox.settle('mail', 'w', %s)", epoch)
        self.assertIn(f'role "{self.audit}" may not work on consumer "mail"', said)
        self.assertIn("--consumer mail", said)
        self.refused(db, "SELECT outbox.extend('mail', 'w', %s)", epoch)
        self.refused(db, "SELECT outbox._worker_shrink('mail', 'w', %s, 1)", epoch)
        self.refused(db, "SELECT outbox.claim('mail', 'v')")
        self.refused(db, "SELECT outbox.register('mail', events => 'none')")
        self.refused(db, "SELECT outbox.register('other')")
        self.refused(db, "SELECT outbox._report('mail', 'all is well')")

    def test_role_can_work_on_its_own_consumer_and_handlers(self):
        db = self.as_role(self.audit)
        self.assertEqual(self.run_on(db, "SELECT outbox.register('audit')"), [(False,)])
        self.run_on(db, "BEGIN")
        self.assertTrue(self.run_on(db, "SELECT outbox.handle_once('audit.ledger', 'k')")[0][0])
        self.refused(db, "SELECT outbox.handle_once('auditor', 'k')")
        self.run_on(db, "ROLLBACK")
        self.run_on(db, "BEGIN")
        self.assertTrue(self.run_on(db, "SELECT outbox.register('audit.ledger')")[0][0])
        self.run_on(db, "ROLLBACK")
        self.assertEqual(self.run_on(db, "SELECT outbox.extend('audit', 'w', %s, 86400000)", lair.claims["audit"]), [(True,)])

    def test_role_cannot_see_anothers_dead_letters_claims_or_name(self):
        db = self.as_role(self.audit)
        for table in ("lane", "claim", "parked", "dead", "mark", "receipt", "setting", "ended", "former_filter", "delivery"):
            self.assertEqual(self.run_on(db, f"SELECT consumer FROM outbox.{table} WHERE consumer <> 'audit'"), [], table)
        self.assertEqual(self.run_on(db, "SELECT name FROM outbox.consumer_status"), [("audit",)])
        self.assertEqual(self.run_on(db, "SELECT 1 FROM outbox._claimed('mail', %s)", lair.claims["mail"]), [])

    def test_role_cannot_move_a_lane_or_a_sequence(self):
        for role in (self.audit, self.all):
            db = self.as_role(role)
            self.refused(db, "UPDATE outbox.lane SET seen = '9999:9999:'")
            self.refused(db, "DELETE FROM outbox.lane")
            for sequence in ("epoch", "event_seq_seq"):
                self.refused(db, f"SELECT nextval('outbox.{sequence}')")
                self.refused(db, f"SELECT setval('outbox.{sequence}', 1)")

    def test_role_cannot_leave_a_receipt_that_stops_every_consumer(self):
        """A receipt past the last event's number looks as if event numbers had restarted."""
        db = self.as_role(self.all)
        self.refused(db, """SELECT outbox.settle('mail', 'w', %s, '[{"seq": 9000000000000000000, "kind": "delivered",
            "id": "01a1e144-ba7a-7541-824e-a17ad541ace3", "receipt": "r"}]')""", lair.claims["mail"], state="OB004")

    def test_role_cannot_claim_past_the_last_event(self):
        """The numbers of claims are where new ones continue when an outbox is repaired."""
        db = self.as_role(self.audit)
        self.run_on(db, "BEGIN")
        lane = self.run_on(db, "SELECT target::text, pos FROM outbox.lane WHERE consumer = 'audit' AND lane = 0")[0]
        for settled in (lair.claims["audit"], 0):
            self.turn(db, "audit", knows=lair.knows, epoch=settled, tried=1, max_events=1, ordering="key", lanes=1, events="", predicate="",
                      ahead_lane=0, ahead_target=lane[0], ahead_from=lane[1], ahead_to=9000000000000000000, ahead_n=1, ahead_members=1)
        self.assertEqual(self.run_on(db, "SELECT 1 FROM outbox.claim WHERE to_seq > 1000000"), [])
        self.run_on(db, "ROLLBACK")

    def test_role_cannot_exhaust_claim_numbers_by_false_statements(self):
        """Epochs are shared, and setval is not rolled back: past their end no worker could claim or settle."""
        db, name = self.as_role(lair.role("consumer {} --consumer known")), "known"
        lair.do("SELECT outbox.emit('t', NULL, NULL, '1') FROM generate_series(1, 4)")
        self.run_on(db, f"SELECT outbox.register('{name}')")
        epoch = self.run_on(db, f"SELECT epoch FROM outbox.claim('{name}', 'w', 2)")[0][0]
        target, pos = self.run_on(db, f"SELECT target::text, pos FROM outbox.lane WHERE consumer = '{name}' AND lane = 0")[0]
        before = lair.do("SELECT last_value FROM outbox.epoch")[0][0]
        taken = self.turn(db, name, knows=lair.knows, epoch=epoch, tried=2, known=[9223372036854775000], ordering="key", lanes=1, events="",
                          predicate="", ahead_lane=0, ahead_target=target, ahead_from=pos, ahead_to=pos + 2, ahead_n=2, ahead_members=1)
        self.assertGreater(taken, epoch)
        self.assertLess(lair.do("SELECT last_value FROM outbox.epoch")[0][0], before + 10)

    def test_reported_cluster_identity_is_not_trusted(self):
        db = self.as_role(self.audit)
        self.run_on(db, "SET outbox.cluster = '1234567890'")
        self.run_on(db, "SELECT count(*) FROM outbox.claim('audit', 'me', 1, 1)")
        self.assertEqual(lair.do("SELECT 1 FROM outbox.lane WHERE home LIKE '1234567890%'"), [])
        self.assertEqual(lair.do("SELECT moved IS NOT NULL FROM outbox._trouble()"), [(False,)])

    def test_code_of_a_role_never_runs_with_the_owners_rights(self):
        """Functions and operators named like PostgreSQL's, found first in its search_path."""
        db, schema = self.as_role(self.audit), f"s{uuid.uuid4().hex[:8]}"
        lair.do(f"CREATE SCHEMA {schema} AUTHORIZATION {self.audit}")
        lair.do(f"CREATE TABLE {schema}.ran_as (who text); GRANT INSERT, SELECT ON {schema}.ran_as TO PUBLIC")
        spy = f"LANGUAGE plpgsql AS $$BEGIN INSERT INTO {schema}.ran_as VALUES (current_user); RETURN "
        for name, args, returns, value in (
                ("hashtextextended", "text, int", "bigint", "1"), ("hashtextextended", "text, bigint", "bigint", "1"),
                ("coalesce_", "text", "text", "$1"), ("set_config", "text, text, boolean", "text", "$2"),
                ("current_setting", "text", "text", "'x'"), ("current_setting", "text, boolean", "text", "''"),
                ("clock_timestamp", "", "timestamptz", "now()"), ("greatest_", "", "int", "1"),
                ("has_table_privilege", "regclass, text", "boolean", "true"), ("has_table_privilege", "oid, text", "boolean", "true"),
                ("pg_has_role", "name, oid, text", "boolean", "true"), ("format", "text, text", "text", "$1"),
                ("eq", "text, text", "boolean", "true"), ("ne", "text, text", "boolean", "true")):
            self.run_on(db, f"CREATE FUNCTION {schema}.{name}({args}) RETURNS {returns} {spy}{value}; END$$")
        for sign, function in (("=", "eq"), ("<>", "ne"), ("~~", "eq"), ("!~", "ne")):
            self.run_on(db, f"CREATE OPERATOR {schema}.{sign} (LEFTARG = text, RIGHTARG = text, FUNCTION = {schema}.{function})")
        self.run_on(db, f"SET search_path = {schema}, pg_catalog")
        for statement in ("SELECT outbox._worker_register('mail', '', '', 'key', 1, 'fast', 'end', NULL, 'start')",
                          "SELECT outbox._worker_extend('audit', 'w', 1, 1000, false)", "SELECT outbox._worker_handle('audit', 'k', 1)",
                          f"SELECT outbox._worker_turn(json_populate_record(outbox._no_request('audit', 'me'), "
                          f"'{request(max_events=1, lease_ms=1)}'), {lair.knows})"):
            try:
                self.run_on(db, statement)
            except psycopg2.Error as error:
                self.assertIn("mail", statement, error)
        self.assertEqual(lair.do(f"SELECT DISTINCT who FROM {schema}.ran_as WHERE who <> %s", self.audit), [])

    def test_index_maintenance_never_raises_the_rights_of_a_role(self):
        """A function in an index of its own table, which a superuser's ANALYZE runs with the superuser's rights, in that
        session."""
        db, schema = self.as_role(self.audit), f"s{uuid.uuid4().hex[:8]}"
        lair.do(f"CREATE SCHEMA {schema} AUTHORIZATION {self.audit}")
        self.run_on(db, f"CREATE TABLE {schema}.t (x int, said text); INSERT INTO {schema}.t VALUES (1), (2)")
        self.run_on(db, f"CREATE FUNCTION {schema}.f(x int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN x; END'")
        self.run_on(db, f"CREATE INDEX i ON {schema}.t ({schema}.f(x))")
        self.run_on(db, f"CREATE FUNCTION {schema}.g() RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM outbox._worker_report('a.mail', "
                        "'stolen'); EXCEPTION WHEN insufficient_privilege THEN NULL; END$$")
        self.run_on(db, f"CREATE OR REPLACE FUNCTION {schema}.f(x int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN PERFORM "
                        f"{schema}.g(); RETURN x; END$$")
        lair.do("SET outbox.tenant = 'a'")  # a session that could succeed: a superuser has the parts granted to roles bound to a tenant
        self.addCleanup(lair.do, "SET outbox.tenant = ''")
        lair.do(f"ANALYZE {schema}.t")
        self.assertEqual(lair.do("SELECT 1 FROM outbox.consumer WHERE report = 'stolen'"), [])


class Readers(Hostile):
    """Roles with manually granted read access to the tables, as for reports and backups."""

    def test_init_does_not_make_a_read_all_role_an_operator(self):
        reader = lair.role()
        lair.do(f"GRANT USAGE ON SCHEMA outbox TO {reader}; GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO {reader}")
        lair.do(f"GRANT SELECT ON ALL SEQUENCES IN SCHEMA outbox TO {reader}; DELETE FROM outbox.meta WHERE name = 'functions'")
        lair.outbox("init")
        db = self.as_role(reader)
        self.assertEqual(self.run_on(db, "SELECT outbox.parts(%s)", reader), [])
        for call in ("pause('mail')", "remove('mail', true)", "trim('0s')", "redrive('mail')", "register('new')", "claim('mail', 'w')"):
            self.refused(db, f"SELECT outbox.{call}")

    def test_read_all_worker_cannot_operate(self):
        worker = lair.role("consumer {} --consumer audit")
        lair.do(f"GRANT pg_read_all_data TO {worker}")
        db = self.as_role(worker)
        self.refused(db, "SELECT outbox.register('mail', events => 'none', how => 'purpose')")
        self.refused(db, "SELECT outbox.register('new')")
        self.assertEqual(lair.do("SELECT events FROM outbox.consumer WHERE name = 'mail'"), [("",)])


class Schemas(Hostile):
    """A schema created before the outbox, in which another role may create functions, or has created look-alikes."""

    def init(self, schema):
        return subprocess.run([BIN, "init", "--store", f"{lair.url}&schema={schema}"], capture_output=True, text=True, check=False)

    def schema(self, more):
        name, stranger = f"s{uuid.uuid4().hex[:8]}", lair.role()
        lair.do(more.format(name=name, stranger=stranger))
        self.addCleanup(lair.do, f"DROP SCHEMA {name} CASCADE")
        return name, stranger

    def test_init_refuses_a_schema_that_others_can_change(self):
        for more, who in (("CREATE SCHEMA {name} AUTHORIZATION {stranger}", None),
                          ("CREATE SCHEMA {name}; GRANT CREATE ON SCHEMA {name} TO {stranger}", None),
                          ("CREATE SCHEMA {name}; GRANT CREATE ON SCHEMA {name} TO PUBLIC", "every role")):
            name, stranger = self.schema(more)
            done = self.init(name)
            self.assertNotEqual(done.returncode, 0, more)
            self.assertIn(who or stranger, done.stderr)
            self.assertIn("REVOKE CREATE", done.stderr)

    def test_doctor_names_roles_that_may_create_functions_here(self):
        name, stranger = self.schema("CREATE SCHEMA {name}")
        self.assertEqual(self.init(name).returncode, 0)
        for level, more in ("ok", ""), ("problem", f"GRANT CREATE ON SCHEMA {name} TO {stranger}"):
            if more: lair.do(more)
            done = subprocess.run([BIN, "doctor", "--json", "--store", f"{lair.url}&schema={name}"], capture_output=True, text=True, check=False)
            found, = [f for f in json.loads(done.stdout)["findings"] if f["name"] == "schema"]
            self.assertEqual(found["level"], level)
            if more: self.assertIn(stranger, found["text"])


class Tenants(Hostile):
    """Roles bound to a tenant that claim to be another tenant or the platform."""

    @classmethod
    def setUpClass(cls):
        cls.consumer = lair.role("consumer {} --tenant a")
        cls.producer = lair.role("producer {} --tenant a")
        cls.operator = lair.role("operator {} --tenant a")

    def connections(self, role):
        for said in ("", "a", "b"):
            db = self.as_role(role)
            self.run_on(db, "SELECT set_config('outbox.tenant', %s, false)", said)
            yield said, db

    def test_claiming_another_tenant_reveals_nothing(self):
        for role in (self.consumer, self.operator):
            for said, db in self.connections(role):
                self.assertEqual(self.run_on(db, "SELECT DISTINCT tenant FROM outbox.event"), [("a",)], said)
                self.assertEqual(self.run_on(db, "SELECT name FROM outbox.consumer"), [("a.mail",)], said)
                self.assertEqual(self.run_on(db, "SELECT DISTINCT consumer FROM outbox.dead"), [("a.mail",)], said)

    def test_role_sees_only_adopted_rows_of_its_own_consumers(self):
        for said, db in self.connections(self.operator):
            self.assertEqual(self.run_on(db, "SELECT key FROM outbox.adopted_row"), [(["a.mail"],)], said)

    def test_role_cannot_work_on_another_tenants_consumer(self):
        for said, db in self.connections(self.consumer):
            for name in ("b.mail", "mail"):
                state = REFUSED if said == "b" else "OB003"
                self.refused(db, f"SELECT outbox.claim('{name}', 'v')", state=state)
                self.refused(db, f"SELECT outbox.settle('{name}', 'w', {lair.claims[name]})", state=state)
                self.refused(db, f"SELECT outbox.register('{name}')", state=REFUSED if said == "b" else "OB004")
                if said != "b": self.assertEqual(self.run_on(db, f"SELECT outbox.extend('{name}', 'w', {lair.claims[name]})"), [(False,)])

    def test_role_cannot_operate_on_another_tenants_consumer(self):
        for said, db in self.connections(self.operator):
            if said == "b": continue
            for name in ("b.mail", "mail"):
                self.assertEqual(self.run_on(db, f"SELECT outbox.pause('{name}')"), [(False,)])
                self.refused(db, f"SELECT outbox.redrive('{name}')", state="OB003")
                self.assertEqual(self.run_on(db, f"SELECT known FROM outbox.remove('{name}', true)"), [(False,)])
            self.refused(db, "SELECT outbox.trim('0s')", state="OB004")
        self.assertEqual(lair.do("SELECT count(*) FROM outbox.consumer WHERE paused"), [(0,)])

    def test_role_emits_only_for_itself_and_cannot_choose_ids(self):
        event = lair.do("SELECT id FROM outbox.event WHERE tenant = 'b' LIMIT 1")[0][0]
        for said, db in self.connections(self.producer):
            self.run_on(db, "BEGIN")
            mine = self.run_on(db, "SELECT outbox.emit('x', 'k', '1', '1')")[0][0]
            once = self.run_on(db, "SELECT id, duplicate FROM outbox.emit_once('x', 'k', '1', '1', NULL, 'once')")[0]
            again = self.run_on(db, "SELECT id, duplicate FROM outbox.emit_once('x', 'k', '1', '1', NULL, 'once')")[0]
            self.assertEqual((once[1], again[1], again[0]), (False, True, once[0]))
            self.assertEqual(len(self.run_on(db, "SELECT id FROM outbox.event WHERE id IN (%s, %s)", mine, once[0])), 2)
            self.run_on(db, "ROLLBACK")
            self.refused(db, "SELECT outbox.emit('x', 'k', '1', '1', tenant => 'b')")
            self.refused(db, "INSERT INTO outbox.event (type, tenant) VALUES ('x', 'b')")
            self.refused(db, "INSERT INTO outbox.event (type, tenant) VALUES ('x', NULL)")
            self.refused(db, "INSERT INTO outbox.event (id, type, tenant) VALUES (%s, 'x', 'a')", event)

    def test_role_cannot_choose_ids_through_an_adopted_table(self):
        event = lair.do("SELECT id FROM outbox.event WHERE tenant = 'b' LIMIT 1")[0][0]
        lair.do("CREATE TABLE IF NOT EXISTS public.old (id uuid, event_type text, payload jsonb, processed_at timestamptz)")
        lair.outbox("adopt", "public.old")
        lair.do(f"GRANT INSERT ON public.old TO {self.producer}")
        for said, db in self.connections(self.producer):
            self.run_on(db, "INSERT INTO public.old VALUES (%s, 'adopted', '1')", event)
        self.assertEqual(lair.do("SELECT tenant FROM outbox.event WHERE id = %s", event), [("b",)])
        self.assertEqual(lair.do("SELECT tenant, headers->>'source_id' FROM outbox.event WHERE type = 'adopted'"), [("a", event)] * 3)
        lair.do("INSERT INTO public.old VALUES ('01a1e144-ba7a-7541-824e-a17ad541ace3', 'adopted', '1')")
        self.assertEqual(lair.do("SELECT count(*) FROM outbox.event WHERE id = '01a1e144-ba7a-7541-824e-a17ad541ace3'"), [(1,)])

    def test_role_cannot_move_another_tenants_mark(self):
        """A mark beyond the written entries makes a reader skip everything up to it."""
        reader = self.as_role(lair.role("consumer {} --tenant b --consumer b.mail"))
        for db, name, hi in ((self.as_role(lair.role("consumer {} --consumer mail")), "mail", 5), (reader, "b.mail", 6),
                             (self.as_role(self.consumer), "a.mail", 9)):
            self.turn(db, name, max_events=0, max_attempts=0, marks=[{"stream": "orders", "hi": hi, "lo": 0}])
        self.assertEqual(lair.do("SELECT outbox.hwm('orders'), outbox.hwm('orders', 'a.mail')"), [("5-0", "9-0")])
        self.assertEqual(self.run_on(reader, "SELECT outbox.hwm('orders'), outbox.hwm('orders', 'a.mail')"), [("6-0", None)])
        self.assertEqual(lair.outbox("hwm", "orders"), "5-0\n")
        self.assertEqual(lair.outbox("hwm", "--consumer", "b.mail", "--json").count("6-0"), 1)

    def test_role_cannot_inject_text_into_a_listing_of_marks(self):
        db = self.as_role(self.consumer)
        self.turn(db, "a.mail", max_events=0, max_attempts=0, marks=[{"stream": "\33[2J\n\u202eall is well", "hi": 1, "lo": 0}])
        shown = lair.outbox("hwm")
        self.assertIn("all is well", shown)
        self.assertFalse(set("\33\u202e") & set(shown), shown)

    def test_role_cannot_learn_another_tenants_keys(self):
        """It can neither read a key nor detect one: the same key is a different key for it, and it does not wait for the
        other's transaction."""
        holder = psycopg2.connect(lair.url)
        self.addCleanup(holder.close)
        with holder.cursor() as cursor: cursor.execute("SELECT outbox.emit('t', 'k', '1', '1', idempotency_key => 'held', tenant => 'b')")
        for said, db in self.connections(self.producer):
            self.assertEqual(self.run_on(db, "SELECT DISTINCT tenant FROM outbox.idempotency"), [("a",)], said)
            self.run_on(db, "SET statement_timeout = '5s'")
            self.run_on(db, "BEGIN")
            for key in ("key of b", "held"):
                self.assertEqual(self.run_on(db, f"SELECT duplicate FROM outbox.emit_once('t', 'k', '9', '9', NULL, '{key}')"), [(False,)])
            self.run_on(db, "ROLLBACK")
            self.refused(db, "INSERT INTO outbox.idempotency (tenant, key, event_id, hash) VALUES ('b', 'next', gen_random_uuid(), 0)")

    def test_tenant_role_has_its_own_inbox(self):
        for said, db in self.connections(self.consumer):
            if said == "b": continue
            self.run_on(db, "BEGIN")
            self.assertEqual(self.run_on(db, "SELECT outbox.handle_once('b.mail', 'seen')"), [(True,)])
            self.assertEqual(self.run_on(db, "SELECT outbox._handled_before('{mail}', '{seen}')"), [])
            self.run_on(db, "ROLLBACK")
            self.refused(db, "SELECT * FROM outbox.handled")
            self.refused(db, "INSERT INTO outbox.handled (handler, key, hash) VALUES ('mail', 'x', 0)")

    def test_role_cannot_learn_what_others_received(self):
        """A role's tenant and consumers are visible only to that role and to operators. A leaky function of the reader, cheap
        enough to run first, sees no rows of others either."""
        other = lair.role("consumer {} --consumer b.mail --tenant b")
        leak = "CREATE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$BEGIN RAISE NOTICE '%', $1; RETURN true; END$$"
        for role, own in ((self.consumer, ["a", "*"]), (self.producer, ["a"]), (lair.role("consumer {} --consumer audit"), ["audit"]),
                          (lair.role("producer {}"), [])):
            db = self.as_role(role)
            for function in ("_acting_for", "_sees"): self.refused(db, f"SELECT outbox.{function}(%s)", other)
            self.run_on(db, leak)
            self.run_on(db, "SELECT 1 FROM outbox.held_here WHERE pg_temp.leak(tenant)")
            self.run_on(db, "SELECT 1 FROM outbox.works_here WHERE pg_temp.leak(consumer)")
            self.assertEqual([said.split()[-1] for said in db.notices], own)

    def test_function_emits_for_its_owners_tenant_not_the_callers(self):
        """An application's SECURITY DEFINER function emits for its owner's tenant, whoever the caller is."""
        schema = f"s{uuid.uuid4().hex[:8]}"
        lair.do(f"CREATE SCHEMA {schema} AUTHORIZATION {self.producer}; GRANT USAGE ON SCHEMA {schema} TO PUBLIC")
        self.run_on(self.as_role(self.producer), f"CREATE FUNCTION {schema}.order_paid() RETURNS uuid LANGUAGE sql SECURITY DEFINER "
                                                 "AS $$ SELECT outbox.emit('order.paid', 'k', '1', '1') $$")
        for caller in (lair.role(), lair.role("producer {} --tenant b")):
            event = self.run_on(self.as_role(caller), f"SELECT {schema}.order_paid()")[0][0]
            self.assertEqual(lair.do("SELECT tenant FROM outbox.event WHERE id = %s", event), [("a",)])


def write():
    global lair
    lair = Lair()
    try:
        RIGHTS.write_text(written(Matrix(lair)))
    finally:
        lair.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]: write()
    else: unittest.main()
