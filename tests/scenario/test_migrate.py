"""outbox migrate: upgrading a database, describing it, comparing it, and SQL for other tools."""
# build: plain
# quick: no
import json
import re
import sqlite3
import sys
import types

import psycopg2
from support import BIN, Case, PgCase, read_ndjson, thorough, wait_until

FOUND, DATA, UNAVAILABLE, CONFIG = 1, 65, 69, 78


class Up(PgCase):
    def test_migrate_reports_old_and_new_version(self):
        self.assertIn("created an outbox of version 1", self.outbox("migrate", "up").stdout)
        self.assertIn("already at version 1; nothing to do", self.outbox("migrate", "up").stdout)
        self.assertEqual(self.json("migrate", "up"), {"store": self.store, "from": 1, "to": 1, "changed": False})
        self.emit("order.paid")

    def test_concurrent_migrations_are_applied_once(self):
        db = psycopg2.connect(self.store)
        db.cursor().execute("CREATE SCHEMA outbox")  # not committed: the creator waits until all have started
        children = [self.spawn(BIN, "migrate", "up", "--json") for _ in range(8)]
        wait_until(lambda: self.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
                                    "wait_event_type = 'Lock'") == [(8,)])
        db.close()
        for child in children:
            child.wait()
        said = [json.loads(child.output()) for child in children]
        self.assertEqual(sorted(s["changed"] for s in said), [False] * 7 + [True])
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.meta WHERE name = 'schema_version'"), [(1,)])
        self.outbox("migrate", "validate")

    def test_newer_database_is_refused_with_a_message(self):
        self.outbox("init")
        self.sql("UPDATE outbox.meta SET value = '99' WHERE name = 'schema_version'")
        for args in (("up",), ("validate",)):
            self.assertIn("version 99", self.outbox("migrate", *args, status=DATA).stderr)
        self.assertIn("newer than this program", self.outbox("migrate", "status").stdout)
        self.assertEqual(self.json("migrate", "status")["pending"], [])

    def test_status_lists_pending_versions_until_migrated(self):
        self.assertIn("no outbox; this program needs 1: 1 step pending", self.outbox("migrate", "status").stdout)
        self.assertEqual(self.json("migrate", "status"), {"store": self.store, "version": 0, "known": 1, "pending": [1]})
        self.assertEqual(self.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox'"), [(0,)])
        self.outbox("migrate", "up")
        self.assertEqual(self.json("migrate", "status"), {"store": self.store, "version": 1, "known": 1, "pending": [],
                                                          "functions": "same"})


class Functions(PgCase):
    """Functions and views follow the program, though the version of the tables is the same."""

    def setUp(self):
        super().setUp()
        self.outbox("init")
        self.ours = self.meta("functions")

    def meta(self, name):
        return (self.sql("SELECT value FROM outbox.meta WHERE name = %s", name) or [(None,)])[0][0]

    def of_another_build(self):
        """Another build's functions: one does something else, one has another signature, one is missing, one answers
        differently."""
        self.sql("CREATE OR REPLACE FUNCTION outbox._lane_of(lanes int, seq bigint, aggregate_type text, aggregate_id text) RETURNS "
                 "int LANGUAGE sql IMMUTABLE AS 'SELECT 0'")
        self.sql("CREATE FUNCTION outbox.extend(consumer text, worker text) RETURNS boolean LANGUAGE sql AS 'SELECT false'")
        self.sql("CREATE FUNCTION outbox.former() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        self.sql("DROP FUNCTION outbox.hwm(text); CREATE FUNCTION outbox.hwm(stream text) RETURNS int LANGUAGE sql AS 'SELECT 1'")
        self.sql("DROP VIEW outbox.consumer_status; CREATE VIEW outbox.consumer_status AS SELECT 1 AS lonely")
        self.sql("UPDATE outbox.meta SET value = 'another' WHERE name = 'functions'")
        self.sql("UPDATE outbox.meta SET value = value || E'\nextend(text, text)\nformer()' WHERE name = 'functions_list'")

    def test_objects_of_an_earlier_build_are_replaced_or_dropped(self):
        consumer = self.role("consumer")
        self.sql("CREATE FUNCTION outbox.mine(a int) RETURNS int LANGUAGE sql AS 'SELECT a'")
        self.of_another_build()
        self.assertIn("earlier build", self.outbox("migrate", "status").stdout)
        self.assertEqual(self.json("migrate", "status")["functions"], "older")
        self.assertIn("earlier build", self.outbox("doctor", status=None).stdout)
        self.assertIn("the functions were updated", self.outbox("migrate", "up").stdout)
        self.assertEqual(self.meta("functions"), self.ours)
        said = self.json("migrate", "validate")
        self.assertEqual([f["text"] for f in said["findings"]],
                         ["function mine(a integer) was not created by this program"])
        # A role's part is complete again: the view it may read was recreated.
        self.assertEqual(self.json("migrate", "status")["functions"], "same")
        self.emit("t")
        self.drain("--consumer", "a", "--sink", f"file:{self.path('out')}", "--store", consumer)
        self.outbox("status", "--store", consumer)
        self.assertFalse(self.json("migrate", "up")["changed"])

    def test_init_also_migrates(self):
        self.of_another_build()
        self.outbox("init")
        self.assertEqual(self.json("migrate", "validate")["problems"], 0)

    def test_restarted_older_program_does_not_reinstall_its_objects(self):
        self.sql("UPDATE outbox.meta SET value = 'later' WHERE name = 'functions'")
        self.sql("INSERT INTO outbox.meta VALUES ('functions_former', 'x ' || %s)", self.ours)
        self.assertIn("later build and are kept", self.outbox("migrate", "up").stdout)
        self.assertIn("nothing to do", self.outbox("init").stdout)
        self.assertEqual(self.meta("functions"), "later")
        self.assertEqual(self.json("migrate", "status")["functions"], "newer")
        self.assertIn("later build", self.outbox("doctor", status=None).stdout)
        self.emit("t")
        self.drain("--consumer", "a", "--sink", f"file:{self.path('out')}")
        # `migrate up --replace` reinstalls our objects and records the other build as the former one.
        self.assertTrue(self.json("migrate", "up", "--replace")["changed"])
        self.assertEqual((self.meta("functions"), self.meta("functions_former")), (self.ours, "x later"))

    def test_stray_object_of_the_same_name_is_found(self):
        self.sql("CREATE FUNCTION outbox.claim(a text) RETURNS int LANGUAGE sql AS 'SELECT 1'")
        said = self.json("migrate", "validate", status=FOUND)
        self.assertEqual([f["text"] for f in said["findings"]],
                         ["function claim(a text) has the same name as a function of the outbox: calls are ambiguous"])

    def test_obsolete_view_with_dependents_is_kept_and_reported(self):
        self.of_another_build()
        self.sql("CREATE VIEW public.built AS SELECT outbox.former() AS a")
        self.outbox("init")
        self.assertEqual(self.sql("SELECT a FROM public.built"), [(1,)])
        self.assertEqual([f["text"] for f in self.json("migrate", "validate")["findings"]],
                         ["function former() was not created by this program"])

    def test_error_tells_a_non_owner_which_role_to_use(self):
        role = self.role("operator")
        self.assertIn("nothing to do", self.outbox("init", "--store", role).stdout)
        self.of_another_build()
        said = self.outbox("init", "--store", role, status=UNAVAILABLE).stderr
        self.assertRegex(said, r'the outbox in schema "outbox" belongs to role "outbox_test", and "r_\w+" may not change it')
        self.assertEqual(self.meta("functions"), "another")

    def test_objects_upgraded_by_a_superuser_stay_the_owners(self):
        name = f"o_{self.dbname[2:20]}"
        self.sql(f"CREATE ROLE {name} LOGIN; GRANT CREATE ON DATABASE {self.dbname} TO {name}")
        self.addCleanup(self.sql, f"DROP OWNED BY {name}; DROP ROLE {name}")
        mine = re.sub(r"user=\w+", f"user={name}", self.store) + "&schema=theirs"
        self.outbox("init", "--store", mine)
        self.sql("DROP FUNCTION theirs.extend; UPDATE theirs.meta SET value = 'another' WHERE name = 'functions'")
        self.outbox("init", "--store", self.store + "&schema=theirs")
        owners = self.sql("SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'theirs'::regnamespace")
        self.assertEqual(owners, [(name,)])


class Validate(PgCase):
    def differences(self):
        said = self.json("migrate", "validate", status=FOUND)
        self.assertFalse(said["ok"])
        return [f["text"] for f in said["findings"] if f["level"] == "problem"]

    def test_init_creates_a_valid_schema_and_leaves_nothing_behind(self):
        self.outbox("init")
        self.assertIn("all is well", self.outbox("migrate", "validate").stdout)
        self.assertEqual(self.json("migrate", "validate")["findings"], [])
        self.assertEqual(self.sql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'outbox%'"), [("outbox",)])

    def test_database_without_an_outbox_cannot_be_validated(self):
        self.assertIn("no outbox", self.outbox("migrate", "validate", status=DATA).stderr)

    def test_schema_with_quotes_in_its_name_is_valid(self):
        self.store += "&schema=it%27s%20%22%24odd%22%20%E2%82%AC"
        self.outbox("init")
        self.assertEqual(self.json("migrate", "validate")["findings"], [])
        self.assertEqual(self.sql_in("DROP INDEX {}.event_xid"), [])
        self.assertEqual(self.differences(), ["index event.event_xid is missing"])

    def sql_in(self, statement):
        db = psycopg2.connect(re.sub(r"&schema=.*", "", self.store))
        with db, db.cursor() as cursor:
            cursor.execute(statement.format('"it\'s ""$odd"" €"'))
        db.close()
        return []

    @thorough("the case after it has two kinds")
    def test_every_kind_of_change_is_found(self):
        self.outbox("init")
        for change, undo, text in (
                ("DROP INDEX outbox.event_xid", "CREATE INDEX event_xid ON outbox.event (xid, seq)",
                 "index event.event_xid is missing"),
                ("ALTER TABLE outbox.idempotency ALTER hash TYPE numeric",
                 "ALTER TABLE outbox.idempotency ALTER hash TYPE bigint", "column idempotency.hash differs from"),
                ("ALTER TABLE outbox.event ALTER payload DROP DEFAULT",
                 "ALTER TABLE outbox.event ALTER payload SET DEFAULT 'null'", "column event.payload differs from"),
                ("ALTER TABLE outbox.event ADD more text NOT NULL DEFAULT ''", "ALTER TABLE outbox.event DROP more",
                 "column event.more was not created by this program"),
                ("ALTER TABLE outbox.event DISABLE ROW LEVEL SECURITY",
                 "ALTER TABLE outbox.event ENABLE ROW LEVEL SECURITY", "table event differs from"),
                ("ALTER TABLE outbox.lane SET UNLOGGED", "ALTER TABLE outbox.lane SET LOGGED", "table lane differs from"),
                ("ALTER TABLE outbox.event DISABLE TRIGGER take_key", "ALTER TABLE outbox.event ENABLE TRIGGER take_key",
                 "trigger event.take_key differs from"),
                ("ALTER SEQUENCE outbox.epoch CYCLE", "ALTER SEQUENCE outbox.epoch NO CYCLE",
                 "sequence epoch differs from"),
                ("ALTER TABLE outbox.handled DROP CONSTRAINT handled_pkey",
                 "ALTER TABLE outbox.handled ADD PRIMARY KEY (handler, key, tenant)",
                 "constraint handled.handled_pkey is missing"),
                ("ALTER POLICY tenant ON outbox.event TO CURRENT_USER",
                 "ALTER POLICY tenant ON outbox.event TO public", "policy event.tenant differs from"),
                ("ALTER FUNCTION outbox._clock() VOLATILE", "ALTER FUNCTION outbox._clock() STABLE",
                 "function _clock() differs from"),
                ("CREATE OR REPLACE FUNCTION outbox._clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS "
                 "'SELECT now()'",
                 "CREATE OR REPLACE FUNCTION outbox._clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE "
                 "RETURN greatest(statement_timestamp(), CURRENT_TIMESTAMP)", "function _clock() differs from")):
            self.sql(change)
            found = self.differences()
            self.assertTrue(any(f.startswith(text) for f in found), f"{change}: {found}")
            self.sql(undo)
            self.assertEqual(self.json("migrate", "validate")["problems"], 0, undo)

    def test_validate_reports_missing_tables_and_views(self):
        self.outbox("init")
        self.sql("DROP TABLE outbox.setting; DROP VIEW outbox.consumer_status")
        self.assertEqual(self.differences(), ["table setting is missing", "view consumer_status is missing"])

    def test_unrelated_objects_are_noted_without_failing(self):
        self.outbox("init")
        self.sql("CREATE TABLE outbox.mine (a int); CREATE INDEX mine_type ON outbox.event (type)")
        said = self.json("migrate", "validate")
        self.assertEqual((said["ok"], {f["level"] for f in said["findings"]}), (True, {"note"}))
        self.assertIn("index event.mine_type was not created by this program", [f["text"] for f in said["findings"]])

    def test_error_explains_why_a_role_cannot_create_a_schema(self):
        self.outbox("init")
        role = f"r{self.dbname[2:20]}"
        self.sql(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA outbox TO {role}; GRANT SELECT ON outbox.meta TO {role}")
        self.addCleanup(self.sql, f"DROP OWNED BY {role}; DROP ROLE {role}")
        store = re.sub(r"user=\w+", f"user={role}", self.store)
        self.assertIn("rolls back: ", self.outbox("migrate", "validate", "--store", store, status=UNAVAILABLE).stderr)


class Gen(PgCase):
    """Each tool's file is run as that tool would, and the result equals the program's."""

    def gen(self, *args, store=None):
        return self.outbox("migrate", "gen", *args, env={"OUTBOX_STORE": store or ""}).stdout

    def valid(self):
        self.assertEqual(self.json("migrate", "validate")["findings"], [])
        self.emit("order.paid")

    def gone(self, schema="outbox"):
        return self.sql("SELECT count(*) FROM pg_namespace WHERE nspname = %s", schema) == [(0,)]

    def in_transaction(self, sql):
        db = psycopg2.connect(self.store)
        with db, db.cursor() as cursor:
            cursor.execute(sql)
        db.close()

    def test_plain_sql_migration_runs_without_a_tool(self):
        self.sql(self.gen())
        self.valid()

    def test_flyway_migration_runs_in_the_transaction_of_flyway(self):
        text = self.gen("--tool", "flyway")
        self.assertTrue(text.startswith("-- V1__outbox.sql\n"))
        self.assertNotRegex(text, r"(?m)^(BEGIN|COMMIT);")
        self.assertNotIn("${", text)  # text that Flyway would replace
        self.in_transaction(text)
        self.valid()

    def test_golang_migrate_applies_and_reverts(self):
        up, down = re.fullmatch(r"-- ==== \d+_outbox\.up\.sql ====\n(.*)-- ==== \d+_outbox\.down\.sql ====\n(.*)",
                                self.gen("--tool", "golang-migrate"), re.S).groups()
        self.sql(up)
        self.valid()
        self.sql(down)
        self.assertTrue(self.gone())

    def test_alembic_applies_and_reverts(self):
        def execute(text):  # the result of op.execute for a string, in the words of SQLAlchemy's compiler
            self.assertIsNone(re.search(r"(?<![:\w\x5c]):(\w+)(?!:)", text))  # its parameters: none
            self.in_transaction(re.sub(r"\x5c(:[\w\$]*)(?![:\w\$])", lambda m: m.group(1), text))

        sys.modules["alembic"] = types.SimpleNamespace(op=types.SimpleNamespace(execute=execute))
        self.addCleanup(sys.modules.pop, "alembic")
        revision = {}
        exec(compile(self.gen("--tool", "alembic", "--service", "shop"), "revision.py", "exec"), revision)
        self.assertEqual((revision["revision"], revision["down_revision"]), ("outbox_0001", None))
        revision["upgrade"]()
        self.store += "&schema=shop_outbox"
        self.assertEqual(self.json("migrate", "validate")["findings"], [])
        self.store = self.store.replace("&schema=shop_outbox", "")
        revision["downgrade"]()
        self.assertTrue(self.gone("shop_outbox"))

    def test_rails_applies_and_reverts(self):
        text = self.gen("--tool", "rails")
        self.assertRegex(text, r"(?m)^class CreateOutbox < ActiveRecord::Migration\[\d\.\d\]$")
        up, down = re.findall(r"    execute <<~'SQL'\n(.*?)\n    SQL\n", text, re.S)
        self.in_transaction(up)
        self.valid()
        self.in_transaction(down)
        self.assertTrue(self.gone())

    def test_service_starts_on_the_printed_schema(self):
        text = self.gen("--service", "billing", store=self.store)
        self.sql(text)
        ini, start = re.search(r"-- ==== outbox\.ini ====\n(.*)-- ==== to start billing ====\n(.*)", text, re.S).groups()
        self.path("outbox.ini").write_text(re.sub(r"(?m)^-- ?", "", ini))
        nowhere = {"OUTBOX_STORE": ""}
        self.assertIn("1 consumer", self.outbox("-c", "outbox.ini", "config", "check", env=nowhere).stdout)
        for line, says in zip(re.findall(r"(?m)^-- outbox (.*?) *#", start), ("nothing to do", "0 problems", None)):
            if says: # the doctor comments on fsync = off, which test servers have
                self.assertIn(says, self.outbox(*line.split(), env=nowhere, status=None).stdout)
            else:
                self.outbox("-c", "outbox.ini", "emit", "bill.sent", env=nowhere)
                out = self.outbox(*line.split(), "--drain", env=nowhere).stdout
                self.assertEqual(json.loads(out)["type"], "bill.sent")
        self.assertFalse(self.gone("billing_outbox"))
        self.assertTrue(self.gone("outbox"))

    def test_gen_works_without_a_server_and_reveals_no_secret(self):
        url = "postgres://app:s3cret%3F@nowhere.invalid:1/shop?sslmode=require&password=hush&sslpassword=hush2"
        text = self.gen("--service", "shop", store=url)
        for secret in ("s3cret", "hush"):
            self.assertNotIn(secret, text)
        self.assertIn("store = postgres://app@nowhere.invalid:1/shop?sslmode=require&schema=shop_outbox\n", text)
        self.assertIn('CREATE SCHEMA IF NOT EXISTS "shop_outbox"', text)
        self.assertIn("PGPASSWORD", text)
        text = self.gen("--service", "shop", store="postgres://h/shop?schema=other")
        self.assertIn('CREATE SCHEMA IF NOT EXISTS "other"', text)
        self.assertIn("store = postgres://h/shop?schema=other\n", text)

    def test_bad_names_are_refused(self):
        for args, status in ((("--service", "a b"), 64), (("--tool", "make"), 64), (("--service", "s" * 60), 64)):
            self.outbox("migrate", "gen", *args, status=status, env={"OUTBOX_STORE": ""})
        self.outbox("migrate", "gen", status=CONFIG, env={"OUTBOX_STORE": "postgres:///x?schema=a%0Ab"})


class Sqlite(Case):
    def test_up_creates_the_outbox_and_status_describes_it(self):
        self.assertIn("no such file", self.outbox("migrate", "status", status=DATA).stderr)
        self.assertFalse(self.db.exists())
        self.assertIn("created an outbox of version 1", self.outbox("migrate", "up").stdout)
        self.assertFalse(self.json("migrate", "up")["changed"])
        self.assertEqual(self.json("migrate", "status")["pending"], [])
        self.sql("UPDATE outbox_meta SET value = '99' WHERE name = 'schema_version'")
        self.assertIn("newer", self.outbox("migrate", "up", status=DATA).stderr)
        self.assertIn("newer", self.outbox("migrate", "status").stdout)

    def test_concurrent_migrations_are_applied_once(self):
        children = [self.spawn(BIN, "migrate", "up", "--json") for _ in range(8)]
        for child in children:
            child.wait()
        self.assertEqual(sum(json.loads(c.output())["changed"] for c in children), 1)

    def test_generated_migrations_apply_and_revert(self):
        text = self.outbox("migrate", "gen", "--tool", "golang-migrate").stdout
        self.assertFalse(self.db.exists())
        up, down = text.split("-- ==== 000001_outbox.down.sql ====")
        db = sqlite3.connect(self.db)
        db.executescript(up)
        self.emit("order.paid")
        self.drain("--consumer", "a", "--sink", f"file:{self.path('out')}")
        self.assertEqual(len(read_ndjson(self.path("out"))), 1)
        db.executescript(down)
        self.assertEqual(db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'outbox%'").fetchall(), [])
        db.close()

    def test_unsupported_sqlite_commands_are_reported(self):
        self.outbox("init")
        self.assertIn("PostgreSQL only", self.outbox("migrate", "validate", status=CONFIG).stderr)
        self.assertIn("one statement", self.outbox("migrate", "gen", "--tool", "rails", status=CONFIG).stderr)
