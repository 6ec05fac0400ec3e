"""An idempotency key is unique, for every way to emit: plain INSERT, SQL functions, the command line."""
import sqlite3
import threading
import unittest

from sessions_postgres import Session
from support import Case, MariaCase, PgCase, on_each_store, wait_until

INSERT = "INSERT INTO @event (type, aggregate_type, aggregate_id, payload, idempotency_key) VALUES (?, 'order', '1', ?, ?) RETURNING id"


class Keyed:
    """Plain INSERTs with a key. In PostgreSQL a trigger skips a known event, and refuses a different one under the same key. In
    SQLite the INSERT fails, or skips any event with that key if it says OR IGNORE; in MariaDB, IGNORE."""

    def setUp(self):
        super().setUp()
        self.init()

    def ignoring(self):
        return "" if isinstance(self, PgCase) else "IGNORE" if isinstance(self, MariaCase) else "OR IGNORE"

    def insert(self, key, payload="1", type="order.paid", how=None):
        """insert returns the ids of the stored events: one, or none."""
        if how is None: how = self.ignoring()
        return [str(id) for id, in self.ask(INSERT.replace("INTO", f"{how} INTO"), type, payload, key)]

    def stored(self):
        return self.ask("SELECT count(*), count(idempotency_key) FROM @event")[0]

    def emit_key(self, key, payload="1", **kw):
        return self.json("emit", "order.paid", "--key", "order/1", "--payload", payload, "--idempotency-key", key, **kw)


@on_each_store
class Inserted(Keyed):
    def test_second_insert_with_a_key_stores_and_returns_nothing(self):
        first = self.insert("k")
        self.assertEqual((len(first), self.insert("k"), self.insert("k")), (1, [], []))
        self.assertEqual(len(self.insert("other")), 1)
        self.assertEqual(self.stored(), (2, 2))

    def test_reusing_a_key_for_another_event_is_an_error(self):
        self.insert("k")
        for other in ({"payload": "2"}, {"type": "order.sent"}):
            with self.assertRaisesRegex(Exception, "idempotency.key"): self.insert("k", how="", **other)
        self.assertEqual(self.stored(), (1, 1))

    def test_key_is_the_same_however_the_event_is_emitted(self):
        first = self.insert("k")[0]
        self.assertEqual((self.emit_key("k")["id"], self.emit_key("k")["duplicate"]), (first, True))
        self.outbox("emit", "order.paid", "--key", "order/1", "--payload", "2", "--idempotency-key", "k", status=65)
        self.assertFalse(self.emit_key("e")["duplicate"])
        self.assertEqual(self.insert("e"), [])
        with self.assertRaisesRegex(Exception, "idempotency.key"): self.insert("e", payload="2", how="")
        self.assertEqual(self.stored(), (2, 2))

    def test_duplicate_key_in_one_statement_stores_one_event(self):
        how = self.ignoring()
        self.ask(f"INSERT {how} INTO @event (type, idempotency_key) VALUES ('a', 'k'), ('a', 'k'), ('a', NULL), ('a', NULL)")
        self.assertEqual(self.stored(), (3, 1))

    def test_invalid_keys_are_refused(self):
        for key in ("", "a\nb", "x" * 1025, "\u00e4" * 513):
            with self.assertRaisesRegex(Exception, "idempotency_key: 1 to 1024 bytes, no control character|too long for column 'idempotency_key'"):
                self.insert(key, how="")
        self.assertEqual(self.stored(), (0, 0))

    def test_event_inserted_with_a_key_is_delivered_once(self):
        for _ in range(3): self.insert("k")
        self.drain("--consumer", "mail", "--sink", f"file:{self.path('out')}")
        self.assertEqual([e["type"] for e in self.ndjson(self.path("out"))], ["order.paid"])


@on_each_store
class Taken:
    def test_rolled_back_key_is_free_again(self):
        self.init()
        with self.assertRaises(Exception):  # the whole statement, and its transaction, is undone
            self.ask("INSERT INTO @event (type, idempotency_key) VALUES ('a', 'k'), (NULL, 'l')")
        self.ask("INSERT INTO @event (type, idempotency_key) VALUES ('b', 'k'), ('b', 'l')")
        self.assertEqual(self.ask("SELECT type FROM @event"), [("b",), ("b",)])


class OnSqliteAlone(Keyed, Case):
    def test_plain_duplicate_insert_fails_only_its_statement(self):
        self.insert("k")
        db = sqlite3.connect(self.db, isolation_level=None)
        self.addCleanup(db.close)
        db.execute("BEGIN")
        db.execute("INSERT INTO outbox_event (type) VALUES ('mine')")
        with self.assertRaisesRegex(sqlite3.IntegrityError, "UNIQUE constraint failed: outbox_event.idempotency_key"):
            db.execute("INSERT INTO outbox_event (type, idempotency_key) VALUES ('order.paid', 'k')")
        self.assertEqual(db.execute("INSERT OR IGNORE INTO outbox_event (type, idempotency_key) VALUES ('other', 'k')").rowcount, 0)
        db.execute("COMMIT")
        self.assertEqual(self.stored(), (2, 1))


class AtOnce(PgCase):
    INSERT = "INSERT INTO outbox.event (type, idempotency_key) VALUES ('a', 'k') RETURNING id"

    def setUp(self):
        super().setUp()
        self.init()

    def race(self, end):
        """race makes two transactions insert the same key at once, commits or rolls back the first, and returns the rows stored
        by the second."""
        one, two = Session(self.store), Session(self.store)
        for session in (one, two): self.addCleanup(session.close)
        one.do("BEGIN")
        self.assertEqual(len(one.do(self.INSERT)), 1)
        got = []
        other = threading.Thread(target=lambda: got.append(two.do(self.INSERT)))
        other.start()
        wait_until(lambda: self.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                                    "AND wait_event_type = 'Lock'") == [(1,)])
        one.do(end)
        other.join()
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.event"), [(1,)])
        return len(got[0])

    def test_concurrent_duplicate_waits_and_stores_nothing(self):
        self.assertEqual(self.race("COMMIT"), 0)

    def test_concurrent_duplicate_wins_if_the_first_rolls_back(self):
        self.assertEqual(self.race("ROLLBACK"), 1)

    def test_idempotency_keys_are_separate_for_each_tenant(self):
        producer = Session(self.role("producer"))
        self.addCleanup(producer.close)
        insert = "INSERT INTO outbox.event (type, idempotency_key) VALUES ('a', 'k')"
        for tenant in ("", "acme", "umbrella", "acme"):
            producer.do("SELECT set_config('outbox.tenant', %s, false)", tenant)
            producer.do(insert)
        self.assertEqual(self.sql("SELECT tenant FROM outbox.event ORDER BY seq"), [(None,), ("acme",), ("umbrella",)])


if __name__ == "__main__":
    unittest.main()
