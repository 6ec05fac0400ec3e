"""Name resolution. A role that may create objects in another role's search_path must not have them run with that role's rights: every function of ours means the server's own functions, operators, types and tables, and so does every
statement that we send, whatever the search_path is.

The trap: look-alikes of everything callable in pg_catalog, in a schema that precedes pg_catalog. An unqualified name resolves
to a look-alike, which reports the call."""
# build: plain
# quick: no
import io
import pathlib
import re
import subprocess
import unittest
import uuid

import psycopg2
import servers
from support import BIN, ROOT, PgCase, postgres_server, wait_until

GUEST = pathlib.Path(BIN).parent / "tests" / "fault" / "fault_guest"
NAMED = "-- Every name is schema-qualified"

# Look-alikes in schema trap: of each function, operator, type and table of pg_catalog, if an ordinary role can create them.
# trap.sprung() remembers that it was called even if everything else is rolled back.
TRAP = r"""
SET search_path = pg_catalog;
SET client_min_messages = error;
CREATE SCHEMA trap;
GRANT USAGE ON SCHEMA trap TO PUBLIC;
CREATE SEQUENCE trap.sprung;
CREATE FUNCTION trap.sprung(what text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
    'BEGIN PERFORM nextval(''trap.sprung''); RAISE EXCEPTION ''trap: % ran as %'', what, session_user; END';
DO $$
DECLARE
    f record;
    args text;
BEGIN
    -- All operators, then all functions, then those that take anything, with so many texts.
    FOR f IN SELECT o.oid, o.oprname AS name, format_type(nullif(o.oprleft, 0), NULL) AS l, format_type(o.oprright, NULL) AS r,
                    format_type(o.oprresult, NULL) AS res
             FROM pg_operator o WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprresult <> 0 LOOP
        BEGIN
            args := concat_ws(', ', f.l, f.r);
            EXECUTE format('CREATE FUNCTION trap.operator_%s(%s) RETURNS %s LANGUAGE plpgsql AS %L', f.oid, args, f.res,
                format('BEGIN PERFORM trap.sprung(%L); END', f.name));
            EXECUTE format('CREATE OPERATOR trap.%s (%s RIGHTARG = %s, FUNCTION = trap.operator_%s)', f.name,
                CASE WHEN f.l IS NOT NULL THEN format('LEFTARG = %s,', f.l) END, f.r, f.oid);
        EXCEPTION WHEN others THEN NULL; -- of pseudo-types
        END;
    END LOOP;
    FOR f IN SELECT p.proname AS name, pg_get_function_identity_arguments(p.oid) AS args, pg_get_function_result(p.oid) AS res
             FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a', 'w')
               AND p.proname = ANY (string_to_array(current_setting('trap.words'), ' ')) LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', f.name,
                replace(f.args, 'ORDER BY ', ''), f.res, format('BEGIN PERFORM trap.sprung(%L); END', f.name));
        EXCEPTION WHEN others THEN NULL;
        END;
    END LOOP;
    FOR f IN SELECT DISTINCT p.proname AS name, n, t FROM pg_proc p, generate_series(1, 6) AS n,
                    unnest('{text, anycompatible}'::text[]) AS t
             WHERE p.pronamespace = 'pg_catalog'::regnamespace AND '"any"'::regtype = ANY (p.proargtypes) AND p.prokind = 'f'
               AND p.proname = ANY (string_to_array(current_setting('trap.words'), ' ')) LOOP
        BEGIN
            args := array_to_string(array_fill(f.t, ARRAY[f.n]), ', ');
            EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS text LANGUAGE plpgsql AS %L', f.name, args,
                format('BEGIN PERFORM trap.sprung(%L); END', f.name));
        EXCEPTION WHEN others THEN NULL;
        END;
    END LOOP;
    FOR f IN SELECT c.relname AS name FROM pg_class c WHERE c.relnamespace = 'pg_catalog'::regnamespace
                AND c.relkind IN ('r', 'v') LOOP
        EXECUTE format('CREATE VIEW trap.%I AS SELECT trap.sprung(%L) AS hidden', f.name, f.name);
    END LOOP;
    FOR f IN SELECT t.typname AS name FROM pg_type t WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype = 'b'
                AND t.typcategory <> 'A' LOOP
        BEGIN
            EXECUTE format('CREATE DOMAIN trap.%I AS pg_catalog.%1$I CHECK (trap.sprung(%L))', f.name, f.name);
        EXCEPTION WHEN others THEN NULL;
        END;
    END LOOP;
END $$;
GRANT SELECT ON ALL TABLES IN SCHEMA trap TO PUBLIC;
"""
PATH = "trap, public, pg_catalog"


def words():
    """words are all names in our SQL and in the statements of the C code; they include every called function."""
    files = [*ROOT.glob("sql/postgres/**/*.sql"), *ROOT.glob("src/store/postgres/*.c"), *ROOT.glob("src/rows/*.c")]
    return sorted({w for f in files for w in re.findall(r"\w+", f.read_text())})


def setUpModule():
    """setUpModule creates the trap once, in a template database for the others."""
    global template
    template = f"t_{uuid.uuid4().hex}"
    server = postgres_server()
    servers.create_database(server, template)
    unittest.addModuleCleanup(servers.drop_database, server, template)
    servers.execute(server + f"&dbname={template}", f"SELECT set_config('trap.words', '{' '.join(words())}', false); " + TRAP)


class Names(PgCase):
    """Roles with each part, an owner who is not a superuser, and the trap in every search_path."""

    def setUp(self):
        super().setUp()
        self.boss = self.store
        servers.drop_database(postgres_server(), self.dbname)
        servers.create_database(postgres_server(), self.dbname, template)
        self.owner = self.role()
        self.sql(f"GRANT CREATE ON DATABASE {self.dbname} TO {self.name(self.owner)}")
        self.sql("GRANT CREATE ON SCHEMA public TO PUBLIC")
        self.store = self.owner
        self.outbox("init")

    def role(self):
        """role creates a role, dropped with the test, and returns the store as that role connects."""
        name = f"r_{uuid.uuid4().hex}"
        self.as_boss(f"CREATE ROLE {name} LOGIN")
        self.addCleanup(self.as_boss, f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
        return re.sub(r"(?<=[?&]user=)[^&]*", name, self.boss)

    def name(self, store):
        return re.search(r"[?&]user=([^&]*)", store).group(1)

    def as_boss(self, statement, *params):
        return servers.execute(self.boss, statement, *params)

    def grant(self, *parts):
        """grant returns a new role these parts, as the owner."""
        store = self.role()
        for part in parts: self.outbox("grant", part, self.name(store))
        return store

    def set_trap(self):
        self.as_boss(f"ALTER DATABASE {self.dbname} SET search_path = {PATH}")

    def assert_unsprung(self, what=""):
        (value, called), = self.as_boss("SELECT last_value, is_called FROM trap.sprung")
        self.assertFalse(called, f"{what}: a look-alike ran {value} times")


class Trapped(Names):
    def test_trap_fires_for_each_kind_of_object(self):
        self.set_trap()
        for statement in ("SELECT 1 = 1", "SELECT now()", "SELECT 'a'::text", "SELECT * FROM pg_class", "SELECT format('%s', 'a')",
                          "SELECT hashtextextended('a', 0)", "SELECT concat_ws(',', 'a', 'b')", "SELECT max(x) FROM (VALUES (1)) x(x)",
                          "SELECT '{}'::pg_catalog.jsonb ->> 'a'", "SELECT 'a'::pg_catalog.text || 'b'::pg_catalog.text"):
            with self.subTest(statement), self.assertRaisesRegex(psycopg2.Error, "trap:|hidden"):
                servers.execute(self.owner, statement.replace("%s", "%%s"))
        with self.assertRaises(AssertionError): self.assert_unsprung()

    def do(self, store, *statements):
        """do runs each statement as a role, in a session that also has look-alikes in pg_temp."""
        db = psycopg2.connect(store)
        db.autocommit = True
        with db.cursor() as cursor:
            cursor.execute("CREATE TEMP VIEW pg_class AS SELECT trap.sprung('pg_temp') AS hidden; "
                           "CREATE TEMP VIEW pg_locks AS SELECT trap.sprung('pg_temp') AS hidden; "
                           "CREATE TEMP VIEW event AS SELECT trap.sprung('pg_temp') AS hidden; "
                           "CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (trap.sprung('pg_temp'))")
            got = None
            for statement in statements:
                with self.subTest(statement):
                    cursor.execute(statement)
                    got = cursor.fetchall() if cursor.description else None
        db.close()
        return got

    def cli(self, store, *args, **kw):
        with self.subTest(args):
            self.store = store
            done = self.outbox(*args, **kw)
            self.assertNotIn("trap:", done.stdout + done.stderr)
            return done

    def test_producer_never_runs_foreign_code(self):
        producer = self.grant("producer")
        self.set_trap()
        self.do(producer,
                "SELECT outbox.emit('a', 'k', '1', '1')",
                "SELECT outbox.emit('a', 'k', 1, '1'::pg_catalog.json, '{\"a\": \"b\"}'::pg_catalog.json)",
                "SELECT outbox.emit('a', 'k', 'k'::pg_catalog.text, '1'::pg_catalog.jsonb, '{\"a\": \"b\"}'::pg_catalog.jsonb, "
                "version => 1, not_before => '2024-01-01', tenant => 'acme')",
                "SELECT outbox.emit('a', 'k', '1', '1', idempotency_key => 'once')",
                "SELECT outbox.emit_once('a', 'k', '1', '1'::pg_catalog.text, NULL::pg_catalog.text, 'once')",
                "SELECT outbox.emit_once('a', 'k', '1', '1'::pg_catalog.jsonb, NULL::pg_catalog.json, 'twice')",
                "SELECT outbox.emit('a', 'k', '1', '1'::pg_catalog.bytea)",
                "SELECT outbox.emit_once('a', 'k', '1', '1'::pg_catalog.bytea, NULL::pg_catalog.json, 'in bytes')",
                "SELECT outbox._uuid7(), outbox._clock()",
                "SET outbox.tenant = 'acme'", "SELECT outbox.emit('a', NULL, NULL::pg_catalog.text, '1')",
                "SET outbox.max_payload = '4MB'",
                "INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload, headers, not_before) VALUES "
                "('a', 'k', '1', pg_catalog.to_json(pg_catalog.repeat('x', 2000000)), '{\"a\": \"b\"}', '2024-01-01')")
        db = psycopg2.connect(self.owner)  # row-level security is not for COPY
        with db, db.cursor() as cursor:
            cursor.copy_expert("COPY outbox.event (type, payload) FROM STDIN", io.StringIO("a\t1\nb\t2\n"))
        db.close()
        self.cli(producer, "emit", "a", "--key", "k/1", "--payload", "1")
        self.cli(producer, "emit", "a", "--key", "k/1", "--payload", "1", "--idempotency-key", "thrice")
        self.cli(producer, "emit", "--ndjson", "-", input='{"type": "a", "payload": 1}\n' * 3)
        self.assert_unsprung()

    def test_consumers_and_operators_never_run_foreign_code(self):
        consumer, operator = self.grant("consumer"), self.grant("operator")
        for n in range(40): self.emit(f"a.{n % 2}", f"k/{n % 5}", n)
        self.set_trap()
        self.store = consumer
        out = self.path("out")
        with self.relay("--consumer", "mail", "--sink", f"file:{out}", "--events", "a.*", "--lanes", "2") as relay:
            wait_until(lambda: len(self.ndjson(out)) == 40, what=relay.output)
            self.cli(self.owner, "emit", "a.1", "--key", "k/1", "--payload", "1")
            wait_until(lambda: len(self.ndjson(out)) == 41, what=relay.output)
        self.assert_unsprung("relay")
        self.cli(consumer, "relay", "--consumer", "bad", "--sink", "exec:false", "--retry", "base=1ms,attempts=2,outage=0s",
                 "--drain")
        self.do(consumer, "SELECT outbox.register('plain', 'a.0, b.*')",
                "SELECT outbox.handle_once('mail', 'key', 'payload')", "SELECT outbox._handle_all('{a}', '{b}')",
                "SELECT outbox._handled_before('{a}', '{b}')", "SELECT outbox.hwm('stream')")
        (epoch, seq), = self.do(consumer, "SELECT epoch, seq FROM outbox.claim('plain', 'w', 2) LIMIT 1")
        self.do(consumer, f"SELECT outbox.extend('plain', 'w', {epoch})",
                f"SELECT outbox.settle('plain', 'w', {epoch}, '[{{\"seq\": {seq}, \"kind\": \"retry\", \"attempts\": 1, "
                "\"delay_ms\": 1}]')", "SELECT * FROM outbox.claim('plain', 'w')")
        self.do(operator, "SELECT outbox.pause('plain')", "SELECT outbox.pause('plain', false)", "SELECT outbox.redrive('bad')",
                "SELECT * FROM outbox._trim_dry_run('0s')", "SELECT * FROM outbox.trim('0s')", "SELECT * FROM outbox._floors()",
                "SELECT * FROM outbox.consumer_status", "SELECT * FROM outbox.delivery", "SELECT * FROM outbox._backlog('plain', 9)")
        for args in (("status",), ("events",), ("events", "--consumer", "mail"), ("dead",), ("consumers",), ("doctor", "--json"),
                     ("consumers", "pause", "mail"), ("consumers", "resume", "mail"), ("dead", "retry", "--consumer", "bad"),
                     ("trim", "--older-than", "0s"), ("trim", "--older-than", "0s", "--dry-run")):
            self.cli(operator, *args, status=None)
        self.assert_unsprung()

    def test_owner_never_runs_foreign_code(self):
        self.sql("CREATE TABLE public.old (id pg_catalog.int8 PRIMARY KEY, event_type text, payload jsonb, created_at timestamptz, "
                 "processed_at timestamptz)")
        self.sql("INSERT INTO public.old VALUES (1, 'a', '1', now(), NULL)")
        guest = self.name(self.role())
        self.set_trap()
        self.as_boss("DELETE FROM outbox.meta WHERE name OPERATOR(pg_catalog.=) 'functions'")
        for args in (("init",), ("migrate", "status"), ("migrate", "validate"), ("doctor",), ("grant", "consumer", guest),
                     ("revoke", "consumer", guest), ("adopt", "old", "--dry-run"), ("adopt", "old"), ("status",)):
            self.cli(self.owner, *args, status=None)
        self.do(self.owner, "INSERT INTO old VALUES (2, 'a', '2', '2024-01-01', NULL)", "SELECT outbox.unadopt('public.old')",
                "SELECT outbox.rebaseline()", "SELECT * FROM outbox._trouble()")
        self.cli(self.owner, "init")
        self.assertEqual(self.as_boss("SELECT pg_catalog.count(*) FROM outbox.event"), [(2,)])
        self.assert_unsprung()

    def test_superuser_creating_an_outbox_never_runs_foreign_code(self):
        self.set_trap()
        self.store = self.boss
        for args in (("init", "--store", self.boss + "&schema=second"), ("doctor",), ("status",), ("migrate", "validate")):
            self.cli(self.boss, *args, status=None)
        self.assertEqual(len(self.as_boss("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) 'second'")), 1)
        script = self.cli(self.boss, "migrate", "gen", "--store", "postgres:///?schema=third").stdout
        db = psycopg2.connect(self.boss)
        with db, db.cursor() as cursor:
            cursor.execute(script)
            cursor.execute("SHOW search_path")
            self.assertEqual(cursor.fetchall(), [(PATH,)], "later statements of other tools are not ours")
        db.close()
        self.assertEqual(self.cli(self.boss, "migrate", "validate", "--store", self.boss + "&schema=third").stdout,
                         self.cli(self.boss, "migrate", "validate").stdout)
        self.assert_unsprung()

    def test_application_names_never_cause_foreign_code_to_run(self):
        guest = self.grant("producer", "consumer")
        self.sql("CREATE TABLE public.note (n pg_catalog.int4)")
        self.sql("GRANT ALL ON public.note TO PUBLIC")
        self.set_trap()
        done = subprocess.run([GUEST, guest, guest], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assert_unsprung()
        kinds = dict(self.as_boss("SELECT n, pg_catalog.count(*) FROM public.note GROUP BY n"))
        self.assertEqual(kinds, {1: 1, 2: 1, 3: 1, 4: 1, 5: 10, 6: 10})


class Pooled(Names):
    """Behind a pooler sessions are shared: each statement qualifies its names."""

    def test_no_foreign_code_runs_through_a_pooler(self):
        folder = re.search(r"host=([^&]*)", self.boss).group(1)
        server = type("Server", (), {"dir": folder, "port": 5432})
        pooler = servers.PgBouncer(server).start()
        self.addCleanup(pooler.close)
        self.set_trap()
        self.store, out = pooler.url(self.dbname), self.path("out")
        self.emit("a", "k/1", 1)
        self.emit("a", "k/1", 1, "--idempotency-key", "once")
        with self.relay("--consumer", "mail", "--sink", f"file:{out}") as relay:
            wait_until(lambda: len(self.ndjson(out)) == 2, what=relay.output)
        for args in (("init",), ("status",), ("events",), ("dead",), ("consumers",), ("doctor",), ("trim", "--older-than", "0s"),
                     ("migrate", "validate"), ("consumers", "remove", "mail", "--yes")):
            with self.subTest(args):
                done = self.outbox(*args, status=None)
                self.assertNotIn("trap:", done.stdout + done.stderr)
        self.assert_unsprung()


class Catalog(PgCase):
    def test_every_function_uses_the_servers_own_objects(self):
        self.outbox("init")
        self.sql("CREATE TABLE old (id bigint, event_type text, payload jsonb, processed_at timestamptz)")
        self.outbox("adopt", "old")
        rows = self.sql("SELECT p.oid::regprocedure::text, p.prosqlbody IS NOT NULL, p.proconfig, p.prosrc FROM pg_proc p "
                        "WHERE p.pronamespace = 'outbox'::regnamespace")
        self.assertGreater(len(rows), 90)
        for name, bound, config, body in rows:
            with self.subTest(name):
                own = "search_path=pg_catalog, pg_temp" in (config or [])
                self.assertTrue(bound or own or NAMED in body, "the function uses its caller's search_path")

    def test_hot_functions_are_called_without_changing_a_setting(self):
        """A `SET search_path` is done and undone at each call. Every emit and every claimed event passes through these."""
        self.outbox("init")
        free = {name for name, in self.sql("SELECT proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace "
                                           "GROUP BY 1 HAVING bool_and(proconfig IS NULL)")}
        hot = {"_acting_for", "_candidates", "_headers_fit", "_insert_only", "_keeps_id", "_lanes", "_not_before_fits", "_payload_fits",
               "_places", "_sees", "_take_key", "_tenant_fits", "_wakeup_notify", "_window_events", "emit", "emit_once"}
        self.assertEqual(hot - free, set())

    def test_functions_contain_no_unqualified_name(self):
        """No unqualified name is left: no bare operator, function or type."""
        self.outbox("init")
        keywords = {"IF", "AND", "OR", "NOT", "IN", "EXISTS", "VALUES", "RETURN", "WHERE", "SELECT", "COALESCE", "GREATEST", "LEAST",
                    "LATERAL", "AS", "OPERATOR", "FILTER", "OVER", "ANY", "ALL", "THEN", "WHEN", "EVENT", "LATE", "ROW", "ON", "END", "ELSE"}
        for name, body in self.sql("SELECT p.oid::regprocedure::text, p.prosrc FROM pg_proc p WHERE p.pronamespace = "
                                   "'outbox'::regnamespace AND p.prosrc LIKE %s", f"%{NAMED}%"):
            with self.subTest(name):
                text = re.sub(r"--[^\n]*", " ", body)
                text = re.sub(r"'(?:[^']|'')*'", "''", text)
                text = re.sub(r"OPERATOR\(pg_catalog\.[^)]*\)", " , ", text)
                text = re.sub(r"(ERRCODE|HINT)\s*=|SET \w+ =|:=|=>", " ", text)
                self.assertEqual(re.findall(r"(?<!:)::(?!pg_catalog\.|\"?outbox\"?\.)\w*", text), [], "casts")
                text = text.replace("::", " ")
                text = re.sub(r"(?<=[(,])\s*-(?=\d)", "", text)  # a number, no operator
                self.assertEqual(re.findall(r"[^\s\w.,;:()\"'$*\[\]]+", text), [], "operators")
                bare = [w for w in re.findall(r"(?<![\w.\"])(\w+)\s*\(", text) if w.upper() not in keywords]
                self.assertEqual(bare, [], "functions")


if __name__ == "__main__":
    unittest.main()
