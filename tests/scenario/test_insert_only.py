"""Events are insert-only: every attempt to change, delete or replace one is refused with advice, and the first event is
delivered unchanged. trim and restore still work, and doctor reports losses and missing protection where it can detect them."""
# build: plain
import contextlib
import subprocess
import sqlite3

import psycopg2
import pymysql
from support import Case, MariaCase, PgCase, read_ndjson, wait_until

FOUND = 1
ID = "01a1e144-ba7a-7541-824e-a17ad541ace3"


class InsertOnly:
    """REFUSED are statements; `%id` is the id of the first event, which has the idempotency key 'k'."""

    def setUp(self):
        super().setUp()
        self.outbox("init")
        self.sql(f"INSERT INTO {self.events} (id, type, payload, idempotency_key) VALUES ('{ID}', 'first', '1', 'k')")

    def relayed(self):
        self.drain("--consumer", "c", "--sink", f"file:{self.path('out')}")
        return [(e["id"], e["type"], e["payload"]) for e in read_ndjson(self.path("out"))]

    def found(self, name):
        return [f["text"] for f in self.json("doctor", status=None)["findings"] if f["name"] == name]

    def test_replacing_an_event_is_refused(self):
        for statement, said in self.REFUSED.items():
            with self.subTest(statement), self.assertRaisesRegex(self.Error, said):
                self.sql(statement)
            self.assertEqual(self.sql(f"SELECT type FROM {self.events}"), [("first",)], statement)
        self.assertEqual(self.relayed(), [(ID, "first", 1)])

    def test_known_key_is_a_duplicate_or_an_error_but_never_a_loss(self):
        for statement, fails in self.ONCE.items():
            with self.subTest(statement), self.assertRaises(self.Error) if fails else contextlib.nullcontext():
                self.sql(statement)
        self.assertEqual(self.relayed(), [(ID, "first", 1)])

    def test_trim_deletes_events_and_keeps_the_rest_protected(self):
        self.relayed()
        self.assertEqual(self.json("trim", "--older-than", "0s", "--yes")["events"], 1)
        self.sql(f"INSERT INTO {self.events} (type) VALUES ('second')")
        with self.assertRaises(self.Error): self.sql(f"DELETE FROM {self.events}")
        self.assertEqual(self.relayed()[1][1], "second")

    def test_owner_can_erase_an_event_on_purpose(self):
        self.alter_events(f"DELETE FROM {self.events}")
        self.assertEqual(self.relayed(), [])
        self.assertEqual(self.found("lost"), [])

    def test_doctor_finds_a_waiting_event_that_was_deleted(self):
        with self.relay("--consumer", "c", "--sink", "exec:exit 1", "--retry", "base=1h,outage=0s"):
            wait_until(lambda: self.sql(f"SELECT count(*) FROM {self.parked} WHERE claim IS NULL") == [(1,)])
        self.assertEqual(self.found("lost"), [])
        self.alter_events(f"DELETE FROM {self.events}")
        self.assertEqual(self.found("lost"), ['consumer "c": 1 events waiting for it were deleted; the first is 1'])

    def test_doctor_finds_missing_event_protection(self):
        self.assertEqual(self.found("insert-only"), [])
        for statement, said in self.UNGUARDED.items():
            self.sql(statement)
            self.assertRegex(self.outbox("doctor", status=FOUND).stdout, said)


class Sqlite(InsertOnly, Case):
    events, parked, Error = "outbox_event", "outbox_parked", sqlite3.IntegrityError
    REFUSED = {
        "INSERT OR REPLACE INTO outbox_event (type, idempotency_key) VALUES ('b', 'k')": "none was replaced: to insert once",
        "REPLACE INTO outbox_event (type, idempotency_key) VALUES ('b', 'k')": "none was replaced",
        f"REPLACE INTO outbox_event (type, id) VALUES ('b', '{ID}')": "none was replaced",
        "REPLACE INTO outbox_event (type, seq) VALUES ('b', 1)": "none was replaced",
        "REPLACE INTO outbox_event SELECT * FROM outbox_event": "none was replaced",
        "INSERT INTO outbox_event (type, seq) VALUES ('b', -1)": "seq: positive",
        "INSERT INTO outbox_event (type, idempotency_key) VALUES ('b', 'k') ON CONFLICT (idempotency_key) "
        "WHERE idempotency_key IS NOT NULL DO UPDATE SET type = 'b'": "this one was not changed: to insert once",
        "UPDATE outbox_event SET type = 'b'": "this one was not changed",
        "UPDATE OR REPLACE outbox_event SET seq = 7": "this one was not changed",
        "UPDATE OR IGNORE outbox_event SET payload = '2'": "this one was not changed",
        "DELETE FROM outbox_event": "this one was not deleted: `outbox trim` deletes old events",
        "DELETE FROM outbox_event WHERE seq = 1": "this one was not deleted",
    }
    ONCE = {
        "INSERT OR IGNORE INTO outbox_event (type, idempotency_key) VALUES ('first', 'k')": False,
        "INSERT INTO outbox_event (type, idempotency_key) VALUES ('first', 'k') ON CONFLICT DO NOTHING": False,
        "INSERT INTO outbox_event (type, idempotency_key) VALUES ('first', 'k')": True,
        "INSERT OR ABORT INTO outbox_event (type, idempotency_key) VALUES ('first', 'k')": True,
        "INSERT OR FAIL INTO outbox_event (type, idempotency_key) VALUES ('first', 'k')": True,
    }
    UNGUARDED = {
        "INSERT INTO outbox_meta VALUES ('change_events', '')": "insert-only .*outbox_meta has the row change_events",
        "DROP TRIGGER outbox_event_deleted": "insert-only .*a trigger on outbox_event is missing",
    }

    def test_insert_or_replace_with_a_new_key_only_inserts(self):
        self.sql("INSERT OR REPLACE INTO outbox_event (type, idempotency_key) VALUES ('second', 'new')")
        self.assertEqual([e[1] for e in self.relayed()], ["first", "second"])

    def test_or_replace_in_the_firing_statement_replaces_nothing(self):
        """An application's INSERT OR REPLACE into one of its tables, whose trigger emits: OR REPLACE applies inside, too."""
        self.sql("CREATE TABLE cart (n INTEGER PRIMARY KEY)")
        self.sql("CREATE TRIGGER told AFTER INSERT ON cart BEGIN "
                 "INSERT INTO outbox_event (type, idempotency_key) VALUES ('cart', NEW.n); END")
        self.sql("INSERT INTO cart VALUES (1)")
        with self.assertRaisesRegex(sqlite3.IntegrityError, "none was replaced"): self.sql("INSERT OR REPLACE INTO cart VALUES (1)")
        self.assertEqual([e[1] for e in self.relayed()], ["first", "cart"])

    def test_doctor_finds_keys_whose_event_was_deleted(self):
        self.json("emit", "paid", "--idempotency-key", "twice")
        self.alter_events("DELETE FROM outbox_event WHERE type = 'paid'")
        self.assertIn("1 events with an idempotency key were deleted, but not by trim", self.outbox("doctor", status=None).stdout)

    def test_dump_can_be_restored(self):
        with contextlib.closing(sqlite3.connect(self.db)) as db: dump = "\n".join(db.iterdump())
        for path in self.dir.glob("shop.db*"): path.unlink()
        with contextlib.closing(sqlite3.connect(self.db)) as db: db.executescript(dump)
        self.assertEqual(self.relayed(), [(ID, "first", 1)])
        with self.assertRaises(sqlite3.IntegrityError): self.sql("DELETE FROM outbox_event")


class MariaDB(InsertOnly, MariaCase):
    events, parked, Error = "outbox_event", "outbox_parked", pymysql.err.MySQLError
    REFUSED = {
        "REPLACE INTO outbox_event (type, idempotency_key) VALUES ('b', 'k')": "none was deleted or replaced",
        f"REPLACE INTO outbox_event (type, id) VALUES ('b', '{ID}')": "none was deleted or replaced",
        "REPLACE INTO outbox_event (type, nr) VALUES ('b', 1)": "none was deleted or replaced",
        "INSERT INTO outbox_event (type, idempotency_key) VALUES ('b', 'k') ON DUPLICATE KEY UPDATE type = 'b'": "none was changed",
        "UPDATE outbox_event SET type = 'b'": "none was changed",
        "UPDATE IGNORE outbox_event SET nr = 7": "none was changed",
        "DELETE FROM outbox_event": "none was deleted",
        "DELETE IGNORE e FROM outbox_event e": "none was deleted",
        "TRUNCATE outbox_event": "events are insert-only: outbox trim deletes old ones",
    }
    ONCE = {
        "INSERT IGNORE INTO outbox_event (type, idempotency_key) VALUES ('first', 'k')": False,
        "INSERT INTO outbox_event (type, idempotency_key) VALUES ('first', 'k')": True,
    }
    UNGUARDED = {
        "DROP TABLE outbox_guard": "insert-only .*TRUNCATE can lose events",
        "DROP TRIGGER outbox_event_deleted": "trigger .*an outbox trigger is missing",
    }

    def test_owner_can_erase_an_event_on_purpose(self):
        """Its position shows that it was not trimmed, and does so until every consumer is past it."""
        self.alter_events("DELETE FROM outbox_event")
        self.assertIn("1 events were deleted before every consumer had received them", self.outbox("doctor", status=FOUND).stdout)
        self.emit("later")
        self.assertEqual([e[1] for e in self.relayed()], ["later"])
        self.assertEqual(self.found("lost"), [])

    def test_doctor_finds_events_not_received_by_any_consumer(self):
        self.relayed()
        for n in range(3): self.sql("INSERT INTO outbox_event (type) VALUES (%s)", f"t{n}")
        self.json("status")
        self.alter_events("DELETE FROM outbox_event WHERE type = 't1'")
        self.assertIn("1 events were deleted before every consumer had received them", self.outbox("doctor", status=FOUND).stdout)


class Postgres(InsertOnly, PgCase):
    events, parked, Error = "outbox.event", "outbox.parked", psycopg2.Error
    SEQ_1 = "INSERT INTO outbox.event (seq, type) OVERRIDING SYSTEM VALUE VALUES (1, 'b') ON CONFLICT (seq) DO"
    REFUSED = {
        f"{SEQ_1} UPDATE SET type = 'b'": "UPDATE on outbox.event is refused",
        "UPDATE outbox.event SET type = 'b'": "UPDATE on outbox.event is refused, nothing was changed\nHINT:.*to insert once",
        "DELETE FROM outbox.event": "DELETE on outbox.event is refused, nothing was changed\nHINT:.*outbox trim",
        "WITH gone AS (DELETE FROM outbox.event RETURNING *) SELECT * FROM gone": "DELETE on outbox.event is refused",
        "TRUNCATE outbox.event": "TRUNCATE on outbox.event is refused",
        "TRUNCATE outbox.event, outbox.dead CASCADE": "TRUNCATE on outbox.event is refused",
        "MERGE INTO outbox.event e USING (VALUES (1)) v (n) ON e.seq = v.n WHEN MATCHED THEN DELETE": "DELETE on outbox.event is refused",
        "SELECT outbox.trim('0'); DELETE FROM outbox.event": "DELETE on outbox.event is refused",  # its permission ends with the transaction
    }
    ONCE = {
        f"{SEQ_1} NOTHING": False,
        "INSERT INTO outbox.event (type, payload, idempotency_key) VALUES ('first', '1', 'k')": False,
        "INSERT INTO outbox.event (type, payload, idempotency_key) VALUES ('other', '1', 'k')": True,
    }
    UNGUARDED = {
        "ALTER TABLE outbox.event DISABLE TRIGGER insert_only": "insert-only .*is off",
        "DROP TRIGGER insert_only ON outbox.event": "insert-only .*is off",
    }

    def test_dump_or_its_data_alone_can_be_restored(self):
        for args in ([], ["--data-only", "-t", "outbox.event"]):
            dump = subprocess.run(["pg_dump", *args, self.store], check=True, capture_output=True, text=True).stdout
            self.sql("DROP SCHEMA outbox CASCADE")
            if args: self.outbox("init")
            subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", self.store], check=True, capture_output=True, input=dump, text=True)
            with self.assertRaises(psycopg2.Error): self.sql("DELETE FROM outbox.event")
        self.assertEqual(self.relayed(), [(ID, "first", 1)])
