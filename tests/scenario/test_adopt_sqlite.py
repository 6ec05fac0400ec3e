"""Adopting a table of a SQLite file: values of any type in any column, and times of any kind."""
import json
import uuid

from flag_table import FlagTable
from support import Case

DATA = 65


class Adoption(FlagTable, Case):
    def test_inserts_never_fail_and_any_value_is_accepted(self):
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

    def test_times_in_any_format_are_kept_to_the_millisecond(self):
        self.sql("CREATE TABLE old (id INTEGER PRIMARY KEY, event_type TEXT, payload TEXT, created_at, processed_at)")
        whole, half = 1763374008, 1763374008.5  # 2025-11-17 10:06:48; as a Julian day it is slightly less
        times = ("2025-11-17 10:06:48", "2025-11-17T10:06:48.500Z", whole, half, whole * 1000 + 7, 2440587.5 + whole / 86400)
        self.outbox("adopt", "old")
        for time in times: self.sql("INSERT INTO old (event_type, payload, created_at) VALUES ('a', '1', ?)", time)
        made = [at - whole * 1000 for at, in self.sql("SELECT created_at FROM outbox_event ORDER BY seq")]
        self.assertEqual(made, [0, 500, 0, 500, 7, 0])

    def test_sqlite_internal_tables_cannot_be_adopted(self):
        self.assertIn("no table sqlite_master", self.outbox("adopt", "sqlite_master", status=DATA).stderr)
