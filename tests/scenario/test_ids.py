"""Ids of events, for every way to emit: the command line, plain INSERT, and in PostgreSQL emit and COPY."""
import contextlib
import io
import sqlite3
import time
import unittest
import uuid

import psycopg2

from support import TIMEOUT, Case, PgCase, on_each_store, read_ndjson

LINES = '{"type":"lines"}\n' * 200


def next_millisecond():
    """next_millisecond lets the clock tick: between connections, SQLite's ids go by milliseconds."""
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now: pass


class Ids:
    def check(self, ids, since, count):
        """check: ids are of version 7, and in the order of their numbers and creation times."""
        self.assertEqual(len(ids), count)
        self.assertEqual([(a, b) for a, b in zip(ids, ids[1:]) if a >= b], [])
        parsed = [uuid.UUID(id) for id in ids]
        self.assertEqual({(id.version, id.variant) for id in parsed}, {(7, uuid.RFC_4122)})
        times = [id.int >> 80 for id in parsed]
        self.assertLessEqual(since, times[0])
        self.assertLessEqual(times[-1], int(time.time() * 1000) + 1)
        self.assertEqual(len({id.int & (1 << 50) - 1 for id in parsed}), count)


class SqliteIds(Ids, Case):
    def test_ids_ascend_however_events_are_emitted(self):
        self.init()
        since = int(time.time() * 1000)
        with contextlib.closing(sqlite3.connect(self.db, timeout=TIMEOUT, isolation_level=None)) as db:
            db.execute("CREATE TABLE orders (n INTEGER PRIMARY KEY)")
            for round in range(3):
                for i in range(100): db.execute("INSERT INTO outbox_event (type) VALUES ('plain')")
                next_millisecond()
                self.emit("cli")
                self.outbox("emit", "--ndjson", "-", "--atomic", input=LINES)
                self.emit("cli", None, None, "--idempotency-key", f"k{round}")
                next_millisecond()
                db.execute("BEGIN")
                for i in range(100):
                    db.execute("INSERT INTO orders VALUES (?)", (1_000_000 * round + 1000 - i,))
                    db.execute("INSERT INTO outbox_event (type) VALUES ('plain')")
                db.execute("COMMIT")
            ids = [id for id, in db.execute("SELECT id FROM outbox_event ORDER BY seq")]
        self.check(ids, since, 3 * 402)


class PostgresIds(Ids, PgCase):
    def test_ids_ascend_however_events_are_emitted(self):
        self.init()
        since = int(time.time() * 1000)
        with contextlib.closing(psycopg2.connect(self.store)) as db, db.cursor() as cursor:
            for round in range(3):
                for i in range(100): cursor.execute("INSERT INTO outbox.event (type) VALUES ('plain')")
                for i in range(100): cursor.execute("SELECT outbox.emit('sql', NULL, NULL::text, '{}')")
                db.commit()
                self.emit("cli")
                self.outbox("emit", "--ndjson", "-", "--atomic", input=LINES)
                self.emit("cli", None, None, "--idempotency-key", f"k{round}")
                cursor.execute("INSERT INTO outbox.event (type) SELECT 'many' FROM generate_series(1, 500)")
                cursor.copy_expert("COPY outbox.event (type) FROM STDIN", io.StringIO("copied\n" * 500))
                cursor.execute("SELECT outbox.emit('many', NULL, NULL::text, '{}') FROM generate_series(1, 100)")
                db.commit()
            cursor.execute("SELECT id::text FROM outbox.event ORDER BY seq")
            ids = [id for id, in cursor.fetchall()]
        self.check(ids, since, 3 * 1502)


@on_each_store
class Given:
    """An id that a producer chooses."""

    def setUp(self):
        super().setUp()
        self.init()

    def insert(self, id):
        self.ask("INSERT INTO @event (id, type) VALUES (?, 'given')", id)

    def ids(self):
        return [str(id) for id, in self.ask("SELECT id FROM @event")]

    def test_only_version_7_uuids_are_accepted(self):
        for wrong in ("018f3c2a-1b2c-4000-8000-000000000000", "018f3c2a-1b2c-1000-8000-000000000000", "018f3c2a-1b2c-7000-c000-000000000000",
                      "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"):
            with self.subTest(wrong), self.assertRaisesRegex(Exception, "id: a UUIDv7"): self.insert(wrong)
        self.assertEqual(self.ids(), [])
        self.insert("018f3c2a-1b2c-7000-8000-000000000000")
        self.assertEqual(self.ids(), ["018f3c2a-1b2c-7000-8000-000000000000"])

    def test_adopted_row_keeps_its_id_and_reports_it(self):
        there, new, ours = str(uuid.uuid4()), str(uuid.uuid4()), "018f3c2a-1b2c-7000-8000-000000000001"
        self.sql("CREATE TABLE box (id CHAR(36), aggregatetype VARCHAR(9), aggregateid VARCHAR(9), type VARCHAR(9), payload VARCHAR(9))")
        row = "INSERT INTO box VALUES ('{}', 'o', '1', 't', '1')"
        self.sql(row.format(there))
        self.outbox("adopt", "box", "--existing", "copy")
        for id in (new, ours): self.sql(row.format(id))
        self.drain("--consumer", "c", "--sink", f"file:{self.path('out')}")
        self.assertEqual([(e["id"], e["headers"]) for e in read_ndjson(self.path("out"))],
                         [(there, {"source_id": there}), (new, {"source_id": new}), (ours, {})])
        with self.assertRaisesRegex(Exception, "id: a UUIDv7"): self.insert(str(uuid.uuid4()))


if __name__ == "__main__":
    unittest.main()
