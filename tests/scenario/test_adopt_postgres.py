"""Adopting a table of a PostgreSQL database: cases beyond test_adopt.py, and hostile owners of tables."""
# build: plain
# quick: no
import json
import re
import threading
import unittest
import uuid

import psycopg2
from flag_table import POSTGRES as FLAGGED, FlagTable
from support import BIN, PgCase, wait_until

DATA, AGAIN, CONFIG, UNAVAILABLE = 65, 75, 78, 69


class Adoption(FlagTable, PgCase):
    def test_old_producers_never_fail_and_need_no_new_rights(self):
        self.sql("CREATE TABLE old (id text, event_type text, payload text, processed_at date)")
        self.outbox("adopt", "old")
        store = self.role()
        self.sql(f"GRANT INSERT ON old TO {store.partition('user=')[2].partition('&')[0]}")
        db = psycopg2.connect(store)
        self.addCleanup(db.close)
        db.autocommit = True
        same = str(uuid.uuid4())
        rows = [(same, "a", '{"b":  1}'), ("7", "Order Paid", "no json"), (None, None, None), ("8", " ", "1"),
                ("9", "x" * 300, '["\\ud800"]'), ("10", "deep", "[" * 100000)]
        with db.cursor() as cursor:
            for row in rows: cursor.execute("INSERT INTO old (id, event_type, payload) VALUES (%s, %s, %s)", row)
        got = self.sql("SELECT id::text, type, payload::text, headers ->> 'source_id' FROM outbox.event ORDER BY seq")
        self.assertEqual(got[0], (same, "a", '{"b":  1}', same))
        self.assertEqual(got[1][1:], ("Order_Paid", '"no json"', "7"))
        self.assertEqual(got[2][1:], ("unknown", "null", None))
        self.assertEqual(got[3][1:], ("_", "1", "8"))
        self.assertEqual((got[4][1], got[4][3]), ("x" * 255, "9"))
        self.assertEqual(got[5][1:], ("deep", json.dumps("[" * 100000), "10"))

    def test_payloads_of_every_kind_become_json(self):
        for kind, given, wanted in (("json", '{"b":  [1, 2]}', '{"b":  [1, 2]}'), ("jsonb", '{"b":  1}', '{"b": 1}'),
                                    ("text", '{"b":  1}', '{"b":  1}'), ("varchar(20)", "words", '"words"'),
                                    ("bytea", b'{"b":  1}', '{"b":  1}'), ("bytea", b"words", '"words"'),
                                    ("bytea", b"\xff\x00", '"/wA="'), ("jsonb", None, "null")):
            for when in ("before", "after"):
                with self.subTest(kind=kind, given=given, when=when):
                    self.sql("DROP TABLE IF EXISTS old")
                    self.sql(f"CREATE TABLE old (id int, event_type text, payload {kind}, processed_at timestamp)")
                    if when == "after": self.outbox("adopt", "old", "--existing", "copy")
                    self.sql("INSERT INTO old VALUES (1, 'a', %s)", given)
                    if when == "before": self.outbox("adopt", "old", "--existing", "copy")
                    self.assertEqual(self.sql("SELECT payload::text FROM outbox.event ORDER BY seq DESC LIMIT 1"), [(wanted,)])
        self.sql("CREATE TABLE bad (id int, event_type text, payload int, processed_at timestamp)")
        self.assertIn("payload", self.outbox("adopt", "bad", status=CONFIG).stderr)

    def test_new_version_converts_earlier_adoptions(self):
        self.sql("CREATE TABLE orders (id int, order_id int, payload json, processed_at date)")
        self.outbox("adopt", "orders", "--column", "aggregate_type='order'", "--column", "aggregate_id=order_id", "--column",
                    "type='t'")
        name = self.sql("SELECT proname FROM pg_proc WHERE proname ~ '^adopted_[0-9]'")[0][0]
        first = self.sql("SELECT prosrc FROM pg_proc WHERE proname = %s", name)[0][0].split("\n")[0]
        self.sql(f"CREATE OR REPLACE FUNCTION outbox.{name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$" + first +
                 "\nBEGIN RETURN NULL; END$$")
        self.sql("UPDATE outbox.meta SET value = 'another' WHERE name = 'functions'")
        writer = psycopg2.connect(self.store)  # no table is locked for that
        self.addCleanup(writer.close)
        with writer.cursor() as cursor: cursor.execute("INSERT INTO orders VALUES (1, 1, '1')")
        self.init()
        writer.commit()
        self.sql("INSERT INTO orders VALUES (2, 2, '2')")
        self.assertEqual(self.sql("SELECT aggregate_id FROM outbox.event"), [("2",)])

    def test_rows_of_concurrent_writers_arrive_once(self):
        """Adoption waits for transactions that have written, and makes the others wait: no row is missed in between."""
        self.old_rows(3)
        early = psycopg2.connect(self.store)
        self.addCleanup(early.close)
        stop, done = threading.Event(), []

        def write():
            db = psycopg2.connect(self.store)
            with db, db.cursor() as cursor:
                while not stop.is_set():
                    cursor.execute("INSERT INTO outbox (event_type, payload) VALUES ('busy', '{}') RETURNING id")
                    row = cursor.fetchone()[0]
                    db.commit()
                    done.append(row)
            db.close()

        with early.cursor() as cursor:
            cursor.execute("INSERT INTO outbox (event_type, payload) VALUES ('early', '{}') RETURNING id")
            first = cursor.fetchone()[0]
        writers = [threading.Thread(target=write) for _ in range(3)]
        for writer in writers: writer.start()
        try:
            wait_until(lambda: len(done) > 20)
            adopting = self.spawn(BIN, "adopt", "outbox")
            wait_until(lambda: self.sql("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'outbox'::regclass"))
            early.commit()
            adopting.wait()
            seen = len(done)
            wait_until(lambda: len(done) > seen + 20)
        finally:
            early.close()
            stop.set()
            for writer in writers: writer.join()
        got = [int(e["headers"]["source_id"]) for e in self.drained()]
        self.assertEqual(sorted(got), sorted([1, 2, first] + done))

    def test_table_that_stays_locked_is_left_alone(self):
        self.sql(FLAGGED)
        db = psycopg2.connect(self.store)
        self.addCleanup(db.close)
        with db.cursor() as cursor: cursor.execute("INSERT INTO outbox (event_type, payload) VALUES ('a', '1')")
        self.assertIn("lock timeout", self.outbox("adopt", "outbox", status=AGAIN).stderr)
        db.commit()
        self.assertEqual(self.json("adopt", "outbox")["copied"], 1)

    def test_adopted_columns_may_have_other_names(self):
        self.sql('CREATE TABLE jobs (nr int, "What ""is""" text, body text, owner text, "of" text, born timestamp, '
                 'done boolean)')
        self.sql("INSERT INTO jobs VALUES (1, 'x', '1', 'order', '7', '2024-01-02', false), "
                 "(2, 'y', '2', 'order', NULL, NULL, NULL), "
                 "(3, 'z', '3', 'order', '7', NULL, true)")
        columns = ("id=nr", 'type=What "is"', "payload=body", "aggregate_type=owner", "aggregate_id=of", "created_at=born",
                   "processed_at=done")
        self.outbox("adopt", "jobs", *(word for column in columns for word in ("--column", column)))
        self.sql("INSERT INTO jobs VALUES (4, 'w', '4', 'order', '8', 'infinity', NULL)")
        got = self.sql("SELECT type, aggregate_type, aggregate_id, headers ->> 'source_id', created_at <= now() "
                       "FROM outbox.event ORDER BY seq")
        self.assertEqual(got, [("x", "order", "7", "1", True), ("y", None, None, "2", True), ("w", "order", "8", "4", True)])
        self.assertEqual(self.sql("SELECT created_at::date::text FROM outbox.event WHERE type = 'x'"), [("2024-01-02",)])

    def test_debezium_shape_accepts_any_schema_and_id_type(self):
        self.sql('CREATE SCHEMA "Shop"')
        self.sql('CREATE TABLE "Shop"."Out""box" (id UUID PRIMARY KEY, aggregatetype TEXT, aggregateid TEXT, type TEXT, payload JSONB)')
        id = str(uuid.uuid4())
        add = """INSERT INTO "Shop"."Out""box" VALUES (%s, 'order', 'x', 'OrderPaid', '{"x": 1}')"""
        self.outbox("adopt", '"Shop"."Out""box"')
        self.sql("BEGIN; " + add + '; DELETE FROM "Shop"."Out""box"; COMMIT', id)
        self.assertEqual([(e["id"], e["headers"]) for e in self.drained()], [(id, {"source_id": id})])

    def test_undo_leaves_no_function_behind(self):
        self.old_rows(1)
        self.outbox("adopt", "outbox")
        self.assertEqual(self.outbox("adopt", "public.outbox").stdout, "public.outbox: already adopted; nothing to do\n")
        self.outbox("adopt", "outbox", "--undo", "--yes")
        self.assertEqual(self.sql(r"SELECT count(*) FROM pg_proc WHERE proname ~ '^adopted_\d'"), [(0,)])

    def test_errors_are_explained(self):
        self.sql("CREATE TABLE odd (id int, event_type text, payload json, processed_at timestamp)")
        for args, status, says in (
                (["no where"], DATA, "no table no where"),
                (["outbox.dead", "--column", "processed_at=dead_at", "--column", "type=type"], CONFIG, "outbox.dead is not a table that can be adopted"),
                (["odd", "--store", self.role("operator")], UNAVAILABLE, "permission denied")):
            with self.subTest(args=args): self.assertIn(says, self.outbox("adopt", *args, status=status).stderr)
        self.assertEqual(self.triggers("odd"), 0)

    def test_validate_ignores_adopted_tables(self):
        self.old_rows(1)
        self.outbox("adopt", "outbox")
        self.outbox("migrate", "validate")


class Hostile(PgCase):
    """The table's owner is hostile, and the outbox belongs to a superuser. The owner's code must run with the owner's rights, or
    not at all: mallory.ran records the role it ran as."""

    def setUp(self):
        super().setUp()
        self.outbox("init")
        self.mallory = self.role()
        self.name = re.search(r"[?&]user=([^&]*)", self.mallory).group(1)
        self.sql(f"CREATE SCHEMA mallory AUTHORIZATION {self.name}; "
                 "CREATE TABLE mallory.ran (who text, what text); GRANT INSERT ON mallory.ran TO PUBLIC; "
                 "GRANT USAGE ON SCHEMA mallory TO PUBLIC")
        self.addCleanup(self.sql, "DROP SCHEMA mallory CASCADE")
        # A function declared immutable that has side effects.
        self.act("CREATE FUNCTION mallory.note(what text) RETURNS void LANGUAGE plpgsql AS "
                 "'BEGIN INSERT INTO mallory.ran VALUES (current_user, what); END'",
                 "CREATE FUNCTION mallory.odd(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS "
                 "'BEGIN PERFORM mallory.note(''odd''); RETURN x; END'")

    def act(self, *statements):
        """act does something as mallory, each time on a new connection."""
        for statement in statements:
            db = psycopg2.connect(self.mallory)
            db.autocommit = True
            try:
                with db.cursor() as cursor: cursor.execute(statement)
            finally:
                db.close()

    def cast(self, typ, to, how="ASSIGNMENT"):
        """cast creates a cast of mallory's from one of his types."""
        name = f"mallory.{typ}_to_{to}"
        value = {"text": "'t'", "json": "'1'::json", "bytea": "'x'::bytea", "timestamptz": "now()"}[to]
        self.act(f"CREATE FUNCTION {name}(mallory.{typ}) RETURNS {to} LANGUAGE plpgsql AS "
                 f"$$BEGIN PERFORM mallory.note('cast to {to}'); RETURN {value}; END$$",
                 f"CREATE CAST (mallory.{typ} AS {to}) WITH FUNCTION {name} AS {how}")

    def assert_nothing_ran_as_us(self):
        self.assertEqual({who for who, in self.sql("SELECT DISTINCT who FROM mallory.ran")} - {self.name}, set())

    def table(self, **types):
        columns = {"id": "bigint", "event_type": "text", "payload": "jsonb", "created_at": "timestamptz", "tenant": "text", **types}
        self.act("CREATE TABLE mallory.old (%s, processed_at timestamptz)" % ", ".join(f"{n} {t}" for n, t in columns.items()))

    def test_casts_of_the_owners_types_are_never_run(self):
        self.act("CREATE TYPE mallory.mood AS ENUM ('sad', 'ok')", "CREATE TYPE mallory.pair AS (a int, b text)",
                 "CREATE TYPE mallory.span AS RANGE (SUBTYPE = int4)",
                 "CREATE DOMAIN mallory.word AS text CHECK (VALUE <> 'never')")
        for typ in ("mood", "pair", "span"):
            for to in ("text", "json", "bytea", "timestamptz"): self.cast(typ, to, "IMPLICIT")
        self.table(id="mallory.pair", event_type="mallory.mood", tenant="mallory.word", kind="mallory.mood", nr="mallory.span",
                   payload="mallory.word")
        row = "INSERT INTO mallory.old (id, event_type, payload, tenant, kind, nr) VALUES ((1, 'x'), 'ok', '{\"n\": 1}', 'acme', 'sad', '[1,3)')"
        self.act(row)
        self.outbox("adopt", "mallory.old", "--column", "tenant=tenant", "--column", "aggregate_type=kind", "--column", "aggregate_id=nr")
        self.act(row)
        self.assert_nothing_ran_as_us()
        self.assertEqual(self.sql("SELECT type, aggregate_type, aggregate_id, payload, tenant, headers->>'source_id' FROM outbox.event"),
                         [("ok", "sad", "[1,3)", {"n": 1}, "acme", "(1,x)")] * 2)

    def test_column_whose_type_changes_later_never_runs_code(self):
        self.table()
        self.outbox("adopt", "mallory.old", "--column", "tenant=tenant")
        self.act("CREATE TYPE mallory.mood AS ENUM ('sad', '1')")
        for to in ("text", "json", "bytea", "timestamptz"): self.cast("mood", to, "IMPLICIT")
        for column in ("id", "event_type", "payload", "created_at", "tenant"):
            self.act(f"ALTER TABLE mallory.old DROP COLUMN {column}", f"ALTER TABLE mallory.old ADD COLUMN {column} mallory.mood")
            try:
                self.act(f"INSERT INTO mallory.old ({column}) VALUES ('1')")
            except psycopg2.Error as e:  # a mood is not a time
                self.assertEqual((column, e.pgcode), ("created_at", "22007"))
        self.assert_nothing_ran_as_us()

    def test_expressions_of_a_table_do_not_run_as_the_adopter(self):
        self.table(more="int DEFAULT mallory.odd(3)", made="int GENERATED ALWAYS AS (mallory.odd(4)) STORED")
        self.act("INSERT INTO mallory.old (event_type, payload) VALUES ('a', '1')",
                 "CREATE INDEX ON mallory.old ((mallory.odd(1)))", "CREATE INDEX ON mallory.old (id) WHERE mallory.odd(1) = 1",
                 "CREATE STATISTICS mallory.s ON (mallory.odd(1)), id FROM mallory.old",
                 "ALTER TABLE mallory.old ADD CHECK (mallory.odd(1) = 1)",
                 "CREATE POLICY p ON mallory.old USING (mallory.odd(1) = 1)", "ALTER TABLE mallory.old ENABLE ROW LEVEL SECURITY",
                 "CREATE FUNCTION mallory.tell() RETURNS trigger LANGUAGE plpgsql AS "
                 "'BEGIN PERFORM mallory.note(''trigger''); RETURN NEW; END'",
                 "CREATE TRIGGER a BEFORE INSERT ON mallory.old FOR EACH ROW EXECUTE FUNCTION mallory.tell()",
                 "CREATE TRIGGER z AFTER INSERT ON mallory.old FOR EACH ROW EXECUTE FUNCTION mallory.tell()")
        self.outbox("adopt", "mallory.old", "--dry-run")
        self.outbox("adopt", "mallory.old")
        self.act("INSERT INTO mallory.old (event_type, payload) VALUES ('b', '2')")
        self.outbox("adopt", "mallory.old", "--column", "tenant=tenant")
        self.outbox("adopt", "mallory.old", "--undo", "--yes")
        self.assert_nothing_ran_as_us()
        self.assertEqual(self.sql("SELECT type FROM outbox.event ORDER BY seq"), [("a",), ("b",)])

    def test_reading_rows_never_runs_owner_code_as_the_adopter(self):
        """The owner's function runs with the owner's rights; but a setting, a cursor or a trigger of it can outlive it."""
        self.table()
        things = {
            "search_path": "PERFORM set_config('search_path', 'mallory, pg_catalog', false)",
            "cursor": "EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT mallory.note(''cursor'')'",
            "deferred": "INSERT INTO mallory.late VALUES (1)",
            "prepared": "EXECUTE 'PREPARE adopt AS SELECT mallory.note(''prepared'')'",
            "index": "CREATE INDEX ON outbox.rows_of_{} ((mallory.odd(1)))"}
        self.act("INSERT INTO mallory.old (event_type, payload) VALUES ('a', '1')", "CREATE TABLE mallory.late (x int)",
                 "CREATE FUNCTION mallory.tell() RETURNS trigger LANGUAGE plpgsql AS "
                 "'BEGIN PERFORM mallory.note(''deferred''); RETURN NULL; END'",
                 "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON mallory.late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
                 "EXECUTE FUNCTION mallory.tell()",
                 "CREATE FUNCTION mallory.format(text, text) RETURNS text LANGUAGE plpgsql AS "
                 "'BEGIN PERFORM mallory.note(''format''); RETURN pg_catalog.format($1, $2); END'",
                 "CREATE FUNCTION mallory.act() RETURNS void LANGUAGE plpgsql AS 'BEGIN END'",
                 "CREATE FUNCTION mallory.act_odd(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS "
                 "'BEGIN PERFORM mallory.act(); RETURN x; END'",
                 "CREATE INDEX ON mallory.old (id) WHERE mallory.act_odd(1) = 1")
        self.sql(f"GRANT USAGE ON SCHEMA outbox TO {self.name}")
        oid, = self.sql("SELECT 'mallory.old'::regclass::oid")[0]
        for name, what in things.items():
            with self.subTest(name):
                self.act(f"CREATE OR REPLACE FUNCTION mallory.act() RETURNS void LANGUAGE plpgsql AS $$BEGIN {what.format(oid)}; END$$")
                self.outbox("adopt", "mallory.old", "--existing", "copy", "--dry-run", status=None)
                self.outbox("adopt", "mallory.old", "--existing", "copy", status=None)
                self.sql("SELECT outbox.unadopt('mallory.old')")
                self.assert_nothing_ran_as_us()

    def test_trigger_function_cannot_be_abused_elsewhere(self):
        self.table()
        self.outbox("adopt", "mallory.old")
        f, = self.sql("SELECT p.oid::regproc::text FROM pg_proc p WHERE proname LIKE 'adopted\\_%%'".replace("%%", "%"))[0]
        for statement in (f"CREATE TRIGGER other AFTER UPDATE ON mallory.old FOR EACH ROW EXECUTE FUNCTION {f}()",
                          "CREATE TABLE mallory.other (LIKE mallory.old); CREATE TRIGGER other AFTER INSERT ON mallory.other "
                          f"FOR EACH ROW EXECUTE FUNCTION {f}()", "SELECT outbox._adopt_tenant('x')"):
            with self.subTest(statement), self.assertRaises(psycopg2.errors.InsufficientPrivilege):
                self.act(statement)

    def test_tenant_connection_writes_only_for_its_tenant(self):
        self.table()
        self.outbox("adopt", "mallory.old", "--column", "tenant=tenant")
        insert = "INSERT INTO mallory.old (event_type, payload, tenant) VALUES ('a', '1', %s)"
        self.act(f"SET outbox.tenant = 'acme'; {insert % repr('acme')}", f"SET outbox.tenant = 'acme'; {insert % 'NULL'}",
                 insert % repr("other"))
        with self.assertRaisesRegex(psycopg2.errors.InsufficientPrivilege, 'works for tenant "acme"'):
            self.act(f"SET outbox.tenant = 'acme'; {insert % repr('other')}")
        self.assertEqual(self.sql("SELECT tenant FROM outbox.event ORDER BY seq"), [("acme",), ("acme",), ("other",)])

    def test_rows_are_read_with_their_owners_rights_or_not_at_all(self):
        self.table()
        other = self.role()
        name = re.search(r"[?&]user=([^&]*)", other).group(1)
        adopt = lambda *args, **kw: self.outbox("adopt", "mallory.old", *args, "--store", other + "&schema=second", **kw)
        self.sql(f"CREATE SCHEMA second AUTHORIZATION {name}")
        self.addCleanup(self.sql, "DROP SCHEMA second CASCADE")
        self.act("INSERT INTO mallory.old (event_type, payload) VALUES ('a', '1')", f"GRANT ALL ON mallory.old TO {name}",
                 f"GRANT USAGE ON SCHEMA mallory TO {name}")
        self.outbox("init", "--store", other + "&schema=second")
        self.assertIn("can be read only with the rights of its owner", adopt(status=UNAVAILABLE).stderr)
        adopt("--existing", "skip")
        self.sql(f"GRANT {self.name} TO {name}")
        adopt("--undo", "--yes")
        adopt("--existing", "copy")
        self.assertEqual(self.sql("SELECT type FROM second.event"), [("a",)])
        self.assertEqual(self.sql(f"SELECT has_schema_privilege('{self.name}', 'second', 'CREATE')"), [(False,)])

    def test_no_row_is_marked_where_foreign_code_would_run(self):
        """An UPDATE runs triggers of the table, so only roles that may act as the outbox's owner anyway may make it."""
        mark = ("--mark", "processed_at", "--consumer", "mail")
        self.table(nr="int PRIMARY KEY DEFAULT 1")
        said = self.outbox("adopt", "mallory.old", *mark, status=CONFIG).stderr
        self.assertIn(f'belongs to role "{self.name}", which could have its code run with the rights of', said)
        self.assertEqual(self.sql("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'mallory.old'::regclass"), [(0,)])
        # A table of ours on which mallory may create triggers, or which he owns later.
        self.sql(f"CREATE TABLE ours (LIKE mallory.old INCLUDING ALL); GRANT TRIGGER ON ours TO {self.name}")
        self.outbox("adopt", "ours", *mark)
        self.act("CREATE FUNCTION mallory.tell() RETURNS trigger LANGUAGE plpgsql AS "
                 "'BEGIN PERFORM mallory.note(''trigger''); RETURN NEW; END'",
                 "CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON ours DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
                 "EXECUTE FUNCTION mallory.tell()")
        deliver = lambda n: (self.sql("INSERT INTO ours (nr, event_type, payload) VALUES (%s, 'a', '1')", n),
                             self.drain("--consumer", "mail", "--sink", "exec:true"))
        why = lambda: self.sql("SELECT error FROM outbox.marking")[0][0]
        deliver(1)
        self.assertIn(f'trigger "late" of table public.ours calls a function of role "{self.name}"', why())
        self.sql(f"DROP TRIGGER late ON ours; ALTER TABLE ours OWNER TO {self.name}")
        deliver(2)
        self.assertIn("table public.ours belongs to role", why())
        self.assertEqual(self.sql("SELECT count(*) FROM ours WHERE processed_at IS NULL"), [(2,)])
        self.assertEqual(self.sql("SELECT count(*) FROM mallory.ran"), [(0,)])
        self.sql("ALTER TABLE ours OWNER TO CURRENT_USER")
        deliver(3)
        self.assertEqual(self.sql("SELECT count(*) FROM ours WHERE processed_at IS NULL"), [(0,)])
        self.assertIsNone(why())
        self.sql("DROP TABLE ours")

    def test_init_replaces_a_trigger_function_if_its_columns_exist(self):
        self.table()
        self.outbox("adopt", "mallory.old")
        old = "CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS %s"
        find = lambda: self.sql("SELECT p.oid::regproc::text, p.prosrc FROM pg_proc p WHERE proname LIKE 'adopted\\_%'")[0]
        f, body = find()
        former = body.split("\n")[0] + "\nBEGIN INSERT INTO outbox.event (type, payload) VALUES (NEW.event_type::text, '1'); RETURN NULL; END"
        for drop in (False, True):
            self.sql(old % (f, f"$f${former}$f$"))
            self.sql("DELETE FROM outbox.meta WHERE name = 'functions'")
            if drop: self.act("ALTER TABLE mallory.old DROP COLUMN payload")
            self.outbox("init")
            self.assertEqual(find()[1], former if drop else body)


if __name__ == "__main__":
    unittest.main()
