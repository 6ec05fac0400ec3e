"""outbox migrate: bringing a database up to date, telling what is there, comparing, and SQL for other tools."""
import json
import re
import sqlite3
import sys
import types

import psycopg2
from support import BIN, Case, PgCase, read_ndjson, wait_until

FOUND, DATA, UNAVAILABLE, CONFIG = 1, 65, 69, 78


class Up(PgCase):
    def test_says_from_which_version_to_which(self):
        self.assertIn("made an outbox of version 2", self.outbox("migrate", "up").stdout)
        self.assertIn("version 2 already; nothing to do", self.outbox("migrate", "up").stdout)
        self.assertEqual(self.json("migrate", "up"), {"store": self.store, "from": 2, "to": 2, "changed": False})
        self.emit("order.paid")

    def test_several_at_once_migrate_once(self):
        db = psycopg2.connect(self.store)
        db.cursor().execute("CREATE SCHEMA outbox")  # not committed: whoever makes the outbox waits, until all are there
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

    def test_a_newer_database_is_refused_and_told(self):
        self.outbox("init")
        self.sql("UPDATE outbox.meta SET value = '99' WHERE name = 'schema_version'")
        for args in (("up",), ("validate",)):
            self.assertIn("version 99", self.outbox("migrate", *args, status=DATA).stderr)
        self.assertIn("newer than this program", self.outbox("migrate", "status").stdout)
        self.assertEqual(self.json("migrate", "status")["pending"], [])

    def test_status_before_and_after(self):
        self.assertIn("no outbox, this program makes 2: 2 steps pending", self.outbox("migrate", "status").stdout)
        self.assertEqual(self.json("migrate", "status"), {"store": self.store, "version": 0, "known": 2, "pending": [1, 2]})
        self.assertEqual(self.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox'"), [(0,)])
        self.outbox("migrate", "up")
        self.assertEqual(self.json("migrate", "status"), {"store": self.store, "version": 2, "known": 2, "pending": []})


class Validate(PgCase):
    def differences(self):
        said = self.json("migrate", "validate", status=FOUND)
        self.assertFalse(said["ok"])
        return [f["text"] for f in said["findings"] if f["level"] == "problem"]

    def test_what_the_program_made_is_valid_and_nothing_is_left_behind(self):
        self.outbox("init")
        self.assertIn("all is well", self.outbox("migrate", "validate").stdout)
        self.assertEqual(self.json("migrate", "validate")["findings"], [])
        self.assertEqual(self.sql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'outbox%'"), [("outbox",)])

    def test_without_an_outbox_there_is_nothing_to_compare(self):
        self.assertIn("no outbox", self.outbox("migrate", "validate", status=DATA).stderr)

    def test_a_schema_with_quotes_in_its_name_is_valid(self):
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

    def test_every_kind_of_change_is_found(self):
        self.outbox("init")
        for change, undo, text in (
                ("DROP INDEX outbox.event_xid", "CREATE INDEX event_xid ON outbox.event (xid, seq)",
                 "index event.event_xid is missing"),
                ("ALTER TABLE outbox.idempotency ALTER hash TYPE numeric",
                 "ALTER TABLE outbox.idempotency ALTER hash TYPE bigint", "column idempotency.hash is not as"),
                ("ALTER TABLE outbox.event ALTER payload DROP DEFAULT",
                 "ALTER TABLE outbox.event ALTER payload SET DEFAULT 'null'", "column event.payload is not as"),
                ("ALTER TABLE outbox.event ADD more text NOT NULL DEFAULT ''", "ALTER TABLE outbox.event DROP more",
                 "column event.more is not of this program's making"),
                ("ALTER TABLE outbox.event DISABLE ROW LEVEL SECURITY",
                 "ALTER TABLE outbox.event ENABLE ROW LEVEL SECURITY", "table event is not as"),
                ("ALTER TABLE outbox.lane SET UNLOGGED", "ALTER TABLE outbox.lane SET LOGGED", "table lane is not as"),
                ("ALTER TABLE outbox.event DISABLE TRIGGER ring", "ALTER TABLE outbox.event ENABLE TRIGGER ring",
                 "trigger event.ring is not as"),
                ("ALTER SEQUENCE outbox.epoch CYCLE", "ALTER SEQUENCE outbox.epoch NO CYCLE",
                 "sequence epoch is not as"),
                ("ALTER TABLE outbox.handled DROP CONSTRAINT handled_pkey",
                 "ALTER TABLE outbox.handled ADD PRIMARY KEY (handler, key)",
                 "constraint handled.handled_pkey is missing"),
                ("ALTER POLICY tenant ON outbox.event TO CURRENT_USER",
                 "ALTER POLICY tenant ON outbox.event TO public", "policy event.tenant is not as"),
                ("ALTER FUNCTION outbox.clock() VOLATILE", "ALTER FUNCTION outbox.clock() STABLE",
                 "function clock() is not as"),
                ("CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS "
                 "'SELECT now()'",
                 "CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS "
                 "'SELECT greatest(statement_timestamp(), transaction_timestamp())'", "function clock() is not as")):
            self.sql(change)
            found = self.differences()
            self.assertTrue(any(f.startswith(text) for f in found), f"{change}: {found}")
            self.sql(undo)
            self.assertEqual(self.json("migrate", "validate")["problems"], 0, undo)

    def test_a_missing_table_is_one_difference_and_a_missing_view_another(self):
        self.outbox("init")
        self.sql("DROP TABLE outbox.receipt; DROP VIEW outbox.delivery")
        self.assertEqual(self.differences(), ["table receipt is missing", "view delivery is missing"])

    def test_what_stands_beside_is_noted_but_no_fault(self):
        self.outbox("init")
        self.sql("CREATE TABLE outbox.mine (a int); CREATE INDEX mine_type ON outbox.event (type)")
        said = self.json("migrate", "validate")
        self.assertEqual((said["ok"], {f["level"] for f in said["findings"]}), (True, {"note"}))
        self.assertIn("index event.mine_type is not of this program's making", [f["text"] for f in said["findings"]])

    def test_a_role_that_may_not_make_schemas_is_told_what_for(self):
        self.outbox("init")
        role = f"r{self.dbname[2:20]}"
        self.sql(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA outbox TO {role}; GRANT SELECT ON outbox.meta TO {role}")
        self.addCleanup(self.sql, f"DROP OWNED BY {role}; DROP ROLE {role}")
        store = re.sub(r"user=\w+", f"user={role}", self.store)
        self.assertIn("rolls back: ", self.outbox("migrate", "validate", "--store", store, status=UNAVAILABLE).stderr)


class Gen(PgCase):
    """Each tool's file is run as that tool would, and what it makes is what the program makes."""

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

    def test_plain_runs_by_itself(self):
        self.sql(self.gen())
        self.valid()

    def test_flyway_runs_in_the_transaction_of_the_tool(self):
        text = self.gen("--tool", "flyway")
        self.assertTrue(text.startswith("-- V1__outbox.sql\n"))
        self.assertNotRegex(text, r"(?m)^(BEGIN|COMMIT);")
        self.assertNotIn("${", text)  # what Flyway would replace
        self.in_transaction(text)
        self.valid()

    def test_golang_migrate_goes_up_and_down(self):
        up, down = re.fullmatch(r"-- ==== \d+_outbox\.up\.sql ====\n(.*)-- ==== \d+_outbox\.down\.sql ====\n(.*)",
                                self.gen("--tool", "golang-migrate"), re.S).groups()
        self.sql(up)
        self.valid()
        self.sql(down)
        self.assertTrue(self.gone())

    def test_alembic_goes_up_and_down(self):
        def execute(text):  # what op.execute makes of a string, in the words of SQLAlchemy's compiler
            self.assertIsNone(re.search(r"(?<![:\w\x5c]):(\w+)(?!:)", text))  # what is a parameter to it: none
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

    def test_rails_goes_up_and_down(self):
        text = self.gen("--tool", "rails")
        self.assertRegex(text, r"(?m)^class CreateOutbox < ActiveRecord::Migration\[\d\.\d\]$")
        up, down = re.findall(r"    execute <<~'SQL'\n(.*?)\n    SQL\n", text, re.S)
        self.in_transaction(up)
        self.valid()
        self.in_transaction(down)
        self.assertTrue(self.gone())

    def test_a_service_starts_with_what_is_printed(self):
        text = self.gen("--service", "billing", store=self.store)
        self.sql(text)
        ini, start = re.search(r"-- ==== outbox\.ini ====\n(.*)-- ==== to start billing ====\n(.*)", text, re.S).groups()
        self.path("outbox.ini").write_text(re.sub(r"(?m)^-- ?", "", ini))
        nowhere = {"OUTBOX_STORE": ""}
        self.assertIn("1 consumer", self.outbox("-c", "outbox.ini", "config", "check", env=nowhere).stdout)
        for line, says in zip(re.findall(r"(?m)^-- outbox (.*?) *#", start), ("nothing to do", "all is well", None)):
            if says:
                self.assertIn(says, self.outbox(*line.split(), env=nowhere).stdout)
            else:
                self.outbox("-c", "outbox.ini", "emit", "bill.sent", env=nowhere)
                out = self.outbox(*line.split(), "--drain", env=nowhere).stdout
                self.assertEqual(json.loads(out)["type"], "bill.sent")
        self.assertFalse(self.gone("billing_outbox"))
        self.assertTrue(self.gone("outbox"))

    def test_needs_no_server_and_tells_no_secret(self):
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
        for args, status in ((("--service", "a b"), 64), (("--tool", "make"), 64), (("--service", "s" * 60), CONFIG)):
            self.outbox("migrate", "gen", *args, status=status, env={"OUTBOX_STORE": ""})
        self.outbox("migrate", "gen", status=CONFIG, env={"OUTBOX_STORE": "postgres:///x?schema=a%0Ab"})


class Sqlite(Case):
    def test_up_and_status(self):
        self.assertIn("no such file", self.outbox("migrate", "status", status=DATA).stderr)
        self.assertFalse(self.db.exists())
        self.assertIn("made an outbox of version 2", self.outbox("migrate", "up").stdout)
        self.assertFalse(self.json("migrate", "up")["changed"])
        self.assertEqual(self.json("migrate", "status")["pending"], [])
        self.sql("UPDATE outbox_meta SET value = '99' WHERE name = 'schema_version'")
        self.assertIn("newer", self.outbox("migrate", "up", status=DATA).stderr)
        self.assertIn("newer", self.outbox("migrate", "status").stdout)

    def test_several_at_once_migrate_once(self):
        children = [self.spawn(BIN, "migrate", "up", "--json") for _ in range(8)]
        for child in children:
            child.wait()
        self.assertEqual(sum(json.loads(c.output())["changed"] for c in children), 1)

    def test_gen_goes_up_and_down(self):
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

    def test_what_is_not_there_for_sqlite_says_so(self):
        self.outbox("init")
        self.assertIn("PostgreSQL only", self.outbox("migrate", "validate", status=CONFIG).stderr)
        self.assertIn("one statement", self.outbox("migrate", "gen", "--tool", "rails", status=CONFIG).stderr)
