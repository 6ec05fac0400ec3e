"""Adopting a table of a SQLite file: its producer goes on unchanged, and its rows become events; what was processed stays processed."""
import json
import sqlite3
import uuid

from flag_table import SQLITE as FLAGGED, FlagTable
from support import Case

DATA, USAGE, CONFIG = 65, 64, 78

class Adoption(FlagTable, Case):
    def test_a_new_row_is_an_event_if_and_only_if_its_transaction_commits(self):
        self.sql(FLAGGED)
        self.outbox("adopt", "outbox")
        db = sqlite3.connect(self.db, isolation_level=None)
        self.addCleanup(db.close)
        insert = "INSERT INTO outbox (event_type, payload, processed_at) VALUES (?, '1', ?)"
        db.execute("BEGIN")
        db.execute(insert, ("lost", None))
        db.execute("ROLLBACK")
        db.execute("BEGIN")
        db.execute(insert, ("kept", None))
        db.execute("SAVEPOINT s")
        db.execute(insert, ("undone", None))
        db.execute("ROLLBACK TO s")
        db.execute(insert, ("processed already", "2024-01-01"))
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_event"), [(0,)])
        db.execute("COMMIT")
        self.assertEqual(self.sql("SELECT type FROM outbox_event"), [("kept",)])

    def test_its_inserts_never_fail_and_values_of_any_kind_are_taken(self):
        self.sql("CREATE TABLE old (id, event_type, payload, processed_at)")
        self.outbox("adopt", "old")
        same = str(uuid.uuid4())
        rows = [(same.upper(), "a", '{"b":  1}'), (7, "Order Paid", "no json"), (None, None, None), ("8", " ", "1"),
                (9, "x" * 300, 1.5), (10, "deep", "[" * 100000), (b"\x01\x02", "ü" * 200, b'{"c":2}'), (11, "a\x01b", 'qu"ote\n'),
                (same, "again", "1")]
        for row in rows: self.sql("INSERT INTO old (id, event_type, payload) VALUES (?, ?, ?)", *row)
        got = self.sql("SELECT id, type, payload, json_extract(headers, '$.source_id') FROM outbox_event ORDER BY seq")
        self.assertEqual(got[0], (same, "a", '{"b":  1}', same))
        self.assertEqual([row[1:] for row in got[1:]],
                         [("Order_Paid", '"no json"', "7"), ("unknown", "null", None), ("_", "1", "8"), ("x" * 255, "1.5", "9"),
                          ("deep", json.dumps("[" * 100000), "10"), ("ü" * 63, '{"c":2}', "0102"), ("unknown", '"qu\\"ote\\n"', "11")])
        self.assertEqual(len(self.drained()), 8)

    def test_a_time_of_any_kind_is_kept_to_the_millisecond(self):
        self.sql("CREATE TABLE old (id INTEGER PRIMARY KEY, event_type TEXT, payload TEXT, created_at, processed_at)")
        whole, half = 1763374008, 1763374008.5  # 2025-11-17 10:06:48, which as a Julian day is a little less than that
        times = ("2025-11-17 10:06:48", "2025-11-17T10:06:48.500Z", whole, half, whole * 1000 + 7, 2440587.5 + whole / 86400)
        self.outbox("adopt", "old")
        for time in times: self.sql("INSERT INTO old (event_type, payload, created_at) VALUES ('a', '1', ?)", time)
        made = [at - whole * 1000 for at, in self.sql("SELECT created_at FROM outbox_event ORDER BY seq")]
        self.assertEqual(made, [0, 500, 0, 500, 7, 0])

    def test_the_debezium_shape_keeps_ids_and_order_by_aggregate(self):
        self.sql('CREATE TABLE "Out""box" (id TEXT PRIMARY KEY, aggregatetype TEXT, aggregateid TEXT, type TEXT, payload TEXT)')
        ids = [str(uuid.uuid4()) for _ in range(4)]
        add = """INSERT INTO "Out""box" VALUES (?, 'order', ?, 'OrderPaid', '{"x": 1}')"""
        for i in range(3): self.sql(add, ids[i], str(i % 2))
        self.outbox("adopt", '"Out""box"')
        self.sql(add, ids[3], "1")
        self.sql('DELETE FROM "Out""box"')  # as Debezium's users do: only the insert matters
        events = self.drained()
        self.assertEqual([e["id"] for e in events], ids)
        self.assertEqual([(e["aggregate_type"], e["aggregate_id"], e["type"], e["payload"], e["headers"]) for e in events],
                         [("order", n, "OrderPaid", {"x": 1}, {"source_id": id}) for n, id in zip(("0", "1", "0", "1"), ids)])

    def test_what_is_wrong_is_said(self):
        self.sql("CREATE TABLE odd (id int, kind text, payload json, done timestamp)")
        self.sql("CREATE VIEW seen AS SELECT * FROM odd")
        for args, status, says in (
                (["nowhere"], DATA, "no table nowhere"),
                (["odd"], DATA, "neither a column processed_at nor aggregatetype; its columns are id, kind, payload, done"),
                (["odd", "--column", "processed_at=done"], DATA, "no column event_type, which would be the type"),
                (["odd", "--column", "processed_at=done", "--column", "type=kind", "--column", "aggregate_id=id"], DATA,
                 "is known to be the aggregate_type"),
                (["odd", "--column", "kind=type"], CONFIG, "no field of an event is called kind"),
                (["seen"], CONFIG, "seen is not a table that can be adopted: it is a view"),
                (["outbox_event"], CONFIG, "outbox_event is not a table that can be adopted: it is the outbox's own"),
                (["sqlite_master"], DATA, "no table sqlite_master"),
                (["odd", "--mark", "done"], USAGE, "--mark needs --consumer NAME"),
                (["odd", "--consumer", "x"], USAGE, "--consumer needs --mark"),
                (["odd", "--undo", "--mark", "done", "--consumer", "x"], USAGE, "--undo takes no"),
                (["odd", "--drop-mark", "--existing", "skip"], USAGE, "--drop-mark takes no")):
            with self.subTest(args=args): self.assertIn(says, self.outbox("adopt", *args, status=status).stderr)
        columns = ["--column", "processed_at=done", "--column", "type=kind", "--consumer", "x"]
        self.assertIn("no column gone", self.outbox("adopt", "odd", *columns, "--mark", "gone", status=DATA).stderr)
        self.assertIn("column id=NAME", self.outbox("adopt", "odd", *columns, "--mark", "done", "--column", "id=", status=CONFIG)
                      .stderr.replace("--column", "column"))
        self.assertEqual(self.sql("SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'odd'"), [(0,)])
