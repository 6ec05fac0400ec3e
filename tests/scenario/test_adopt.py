"""Adopting a table: its producer continues unchanged, and its rows become events; processed rows stay processed.
test_adopt_postgres.py, test_adopt_sqlite.py and test_adopt_mariadb.py test each store's peculiarities."""
# build: plain
import json
import uuid

from flag_table import FlagTable
from support import MariaCase, on_each_store

DATA, USAGE, CONFIG = 65, 64, 78


@on_each_store
class Adoption(FlagTable):
    def types(self):
        return [type for type, in self.ask("SELECT type FROM @event ORDER BY seq")]

    def quoted(self, name):
        quote = "`" if isinstance(self, MariaCase) else '"'
        return quote + name.replace(quote, 2 * quote) + quote

    def test_unprocessed_rows_are_delivered_once_in_order(self):
        self.old_rows(10)
        said = self.outbox("adopt", "outbox").stdout
        self.assertEqual(said, "outbox: adopted; 7 unprocessed rows became events\n")
        self.insert(11, 12)
        events = self.drained()
        self.assertEqual([e["payload"]["n"] for e in events], [1, 2, 4, 5, 7, 8, 10, 11, 12])
        self.assertEqual([e["headers"] for e in events][:3], [{"source_id": "1"}, {"source_id": "2"}, {"source_id": "4"}])
        self.assertEqual({e["type"] for e in events}, {"message:created"})
        self.assertEqual([e["created_at"] for e in events][:2], ["2024-04-30T00:00:00.000Z", "2024-04-29T00:00:00.000Z"])
        self.assertTrue(all(uuid.UUID(e["id"]).version == 7 for e in events))
        self.assertEqual(self.processed(), [3, 6, 9], "rows are marked only with --mark")

    def test_new_row_becomes_an_event_only_if_committed(self):
        self.sql(self.flagged)
        self.outbox("adopt", "outbox")
        do = self.session()
        insert = lambda type, processed="NULL": do(f"INSERT INTO outbox (event_type, payload, processed_at) VALUES ('{type}', '1', {processed})")
        do("BEGIN")
        insert("lost")
        do("ROLLBACK")
        do("BEGIN")
        insert("kept")
        do("SAVEPOINT s")
        insert("undone")
        do("ROLLBACK TO SAVEPOINT s")
        insert("processed already", "'2024-01-01'")
        self.assertEqual(self.types(), [])
        do("COMMIT")
        self.assertEqual(self.types(), ["kept"])
        self.assertEqual(len(self.drained()), 1)

    def test_debezium_shape_keeps_ids_and_order_by_aggregate(self):
        table = self.quoted('Out"`box')
        self.sql(f"CREATE TABLE {table} (id CHAR(36) PRIMARY KEY, aggregatetype VARCHAR(255), aggregateid VARCHAR(255), type VARCHAR(255), "
                 "payload JSON)")
        ids = [str(uuid.uuid4()) for _ in range(4)]
        add = lambda i: self.ask(f"""INSERT INTO {table} VALUES (?, 'order', ?, 'OrderPaid', '{{"x": 1}}')""", ids[i], str(i % 2))
        for i in range(3): add(i)
        self.outbox("adopt", table)
        add(3)
        self.sql(f"DELETE FROM {table}")  # as Debezium's users do: only the insert matters
        events = self.drained()
        if isinstance(self, MariaCase): events[:3] = sorted(events[:3], key=lambda e: ids.index(e["id"]))  # in key order
        self.assertEqual([e["id"] for e in events], ids)
        self.assertEqual([(e["aggregate_type"], e["aggregate_id"], e["type"], e["payload"], e["headers"]) for e in events],
                         [("order", n, "OrderPaid", {"x": 1}, {"source_id": id}) for n, id in zip(("0", "1", "0", "1"), ids)])

    def test_adopting_again_copies_nothing_twice(self):
        self.old_rows(3)
        self.outbox("adopt", "outbox")
        self.assertEqual(self.outbox("adopt", "outbox").stdout, "outbox: already adopted; nothing to do\n")
        self.assertEqual(self.json("adopt", '"outbox"'), {"table": '"outbox"', "adopted": True, "changed": False, "copied": 0})
        for more in ((), ("--dry-run",)):
            self.assertIn("delivered again; omit existing, or undo the adoption first" if not more else "delivered again",
                          self.outbox("adopt", "outbox", "--existing", "copy", *more, status=DATA).stderr)
        self.assertFalse(self.json("adopt", "outbox", "--existing", "skip")["changed"])
        self.insert(4)
        self.assertEqual(self.numbers(), [1, 2, 4])

    def test_adopting_with_other_columns_applies_to_new_rows(self):
        self.sql("CREATE TABLE jobs (id int, event_type varchar(9), kind varchar(9), payload json, body json, processed_at date, done date)")
        add = lambda *values: self.ask("INSERT INTO jobs VALUES (?, 'a', 'b', '1', '2', ?, ?)", *values)
        self.outbox("adopt", "jobs")
        add(1, None, None)
        other = ("--column", "type=kind", "--column", "payload=body", "--column", "processed_at=done")
        said = self.outbox("adopt", "jobs", *other).stdout
        self.assertEqual(said, "jobs: already adopted; new rows will be read with these columns, and existing events are kept\n")
        self.assertEqual(self.outbox("adopt", "jobs", *other).stdout, "jobs: already adopted; nothing to do\n")
        add(2, "2024-01-01", None)
        add(3, None, "2024-01-01")  # processed, by the new column
        had = lambda: [(type, int(payload)) for type, payload in self.ask("SELECT type, CAST(payload AS text) FROM @event ORDER BY seq")]
        self.assertEqual(had(), [("a", 1), ("b", 2)])
        self.assertIn("no column nope", self.outbox("adopt", "jobs", "--column", "type=nope", status=DATA).stderr)
        self.assertTrue(self.json("adopt", "jobs")["changed"])
        add(4, None, "2024-01-01")
        self.assertEqual(had()[-1], ("a", 1))

    def test_dry_run_reports_the_plan_and_changes_nothing(self):
        self.old_rows(10)
        said = self.outbox("adopt", "outbox", "--dry-run").stdout
        self.assertEqual(said.splitlines()[0], "outbox: would be adopted, and 7 unprocessed rows would become events")
        self.assertEqual(json.loads(said.splitlines()[1].removeprefix("columns: ")), {
            "id": "id", "type": "event_type", "payload": "payload", "created_at": "created_at", "processed_at": "processed_at"})
        self.assertEqual(self.json("adopt", "outbox", "--dry-run", "--existing", "skip")["copied"], 0)
        self.assertEqual((self.types(), self.triggers("outbox")), ([], 0))
        self.assertEqual(self.json("adopt", "outbox")["copied"], 7)
        self.assertIn("nothing would be done", self.outbox("adopt", "outbox", "--dry-run").stdout)
        said = self.outbox("adopt", "outbox", "--dry-run", "--column", "created_at=").stdout
        self.assertIn("new rows would be read with these columns", said)
        self.assertFalse(self.json("adopt", "outbox")["changed"])

    def test_undo_keeps_events_and_readopting_requires_a_decision(self):
        self.old_rows(3)
        undo = lambda *how: self.outbox("adopt", "outbox", "--undo", *how).stdout
        self.assertEqual(undo("--yes"), "outbox: was not adopted; nothing to do\n")
        self.assertEqual(undo("--dry-run"), "outbox: is not adopted; nothing would be done\n")
        self.outbox("adopt", "outbox")
        self.assertEqual(undo("--dry-run"), "outbox: would no longer be adopted; existing events would be kept\n")
        self.assertEqual(self.json("adopt", "outbox", "--undo", "--dry-run")["changed"], True)
        self.assertEqual(undo("--yes"), "outbox: no longer adopted; existing events are kept\n")
        self.insert(4)
        self.assertEqual(self.numbers(), [1, 2])
        self.assertEqual(self.triggers("outbox"), 0)
        said = self.outbox("adopt", "outbox", status=DATA).stderr
        for words in ("adopted before", "it is not known which of its rows"): self.assertIn(words, said)
        self.outbox("adopt", "outbox", "--existing", "skip")
        self.insert(5)
        self.assertEqual(self.numbers(), [1, 2, 5])
        undo("--yes")
        self.assertEqual(self.json("adopt", "outbox", "--existing", "copy")["copied"], 4)

    def test_quoted_literal_applies_to_every_row(self):
        self.sql("CREATE TABLE orders (id int, order_id int, payload json, processed_at date)")
        columns = ("--column", "aggregate_type='order'", "--column", "aggregate_id=order_id", "--column", "type='order.paid'")
        self.sql("INSERT INTO orders VALUES (1, 7, '1', NULL), (2, NULL, '2', NULL)")
        self.outbox("adopt", "orders", *columns)
        self.sql("INSERT INTO orders VALUES (3, 8, '3', NULL)")
        had = self.ask("SELECT type, aggregate_type, aggregate_id FROM @event ORDER BY seq")
        if isinstance(self, MariaCase): had[:2] = sorted(had[:2], key=str)  # rows without a key have no order among them
        self.assertEqual(had, [("order.paid", "order", "7"), ("order.paid", None, None), ("order.paid", "order", "8")])
        self.assertTrue(self.json("adopt", "orders", *columns[:4], "--column", "type='order.changed'")["changed"])
        self.sql("INSERT INTO orders VALUES (4, 8, '4', NULL)")
        self.assertEqual(self.types()[-1], "order.changed")
        given = {"aggregate_type": "'order'", "aggregate_id": "order_id", "type": "'t'"}
        column = "only type, aggregate_type and tenant may be text in single quotes"
        wrong = [("payload", "'x'", column), ("id", "'7'", column)]
        wrong += [(field, text, f"{text} is not a valid {field}") for field, text in (
            ("aggregate_type", "''"), ("aggregate_type", "'a/b'"), ("type", "''"), ("type", "'a b'"), ("tenant", "''"))]
        for field, text, says in wrong:
            with self.subTest(field=field, text=text):
                args = [word for item in {**given, field: text}.items() for word in ("--column", "=".join(item))]
                self.assertIn(says, self.outbox("adopt", "orders", *args, status=CONFIG).stderr)

    def test_errors_are_explained(self):
        self.sql("CREATE TABLE odd (id int, kind varchar(9), payload json, done timestamp NULL)")
        self.sql("CREATE VIEW seen AS SELECT * FROM odd")
        own = "outbox.event" if self.postgres else "outbox_event"
        for args, status, says in (
                (["nowhere"], DATA, "no table nowhere"),
                (["odd"], DATA, "neither a processed_at nor an aggregatetype column; its columns are id, kind, payload, done"),
                (["odd", "--column", "processed_at=done"], DATA, "no column event_type to use as the type"),
                (["odd", "--shape", "debezium"], DATA, "no column type to use as the type"),
                (["odd", "--column", "processed_at=done", "--column", "type=sort"], DATA, "no column sort"),
                (["odd", "--column", "processed_at=done", "--column", "type=kind", "--column", "aggregate_id=id"], DATA,
                 "is known for the aggregate_type"),
                (["odd", "--column", "kind=type"], CONFIG, "an event has no field kind"),
                (["odd", "--column", "type"], USAGE, "is not FIELD=COLUMN"),
                (["odd", "--shape", "debezum"], USAGE, "did you mean debezium?"),
                (["seen"], CONFIG, "seen is not a table that can be adopted: it is a view"),
                ([own], CONFIG, f"{own} is not a table that can be adopted: it belongs to the outbox"),
                (["odd", "--mark", "done"], USAGE, "--mark needs --consumer NAME"),
                (["odd", "--consumer", "x"], USAGE, "--consumer needs --mark"),
                (["odd", "--undo", "--existing", "copy"], USAGE, "--undo cannot be combined with"),
                (["odd", "--undo", "--mark", "done", "--consumer", "x"], USAGE, "--undo cannot be combined with"),
                (["odd", "--drop-mark", "--existing", "skip"], USAGE, "--drop-mark cannot be combined")):
            with self.subTest(args=args): self.assertIn(says, self.outbox("adopt", *args, status=status).stderr)
        columns = ["--column", "processed_at=done", "--column", "type=kind", "--consumer", "x"]
        self.assertIn("no column gone", self.outbox("adopt", "odd", *columns, "--mark", "gone", status=DATA).stderr)
        if not self.postgres:
            self.assertIn("column id=NAME", self.outbox("adopt", "odd", *columns, "--mark", "done", "--column", "id=", status=CONFIG)
                          .stderr.replace("--column", "column"))
        self.assertEqual(self.triggers("odd"), 0)


@on_each_store(but=("OnSqlite",))  # which has one writer
class DryRun(FlagTable):
    def test_dry_run_and_a_writer_do_not_wait_for_each_other(self):
        self.sql(self.flagged)
        do = self.session()
        do("BEGIN")
        do("INSERT INTO outbox (event_type, payload) VALUES ('a', '1')")
        self.outbox("adopt", "outbox", "--dry-run")
