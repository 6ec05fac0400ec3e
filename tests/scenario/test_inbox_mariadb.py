"""A consumer in any language on MariaDB: it receives events, and outbox_handle_once makes its effect happen once."""
# build: plain
import sys

import mariadb_server
import pymysql
from support import ROOT, MariaCase, wait_until

# Receives an event, takes effect, and at first fails: before its commit for one half of the events, after it for the other.
PROGRAM = """
import json, os, sys
sys.path.insert(0, %(tests)r)
import mariadb_server
event = json.load(sys.stdin)
tried = os.path.join(%(folder)r, event["id"])
again = os.path.exists(tried)
open(tried, "w").close()
db = mariadb_server.connect(%(store)r)
cursor = db.cursor()
cursor.execute("BEGIN")
cursor.execute("CALL outbox_handle_once('billing', %%s, @first)", event["id"])
cursor.execute("SELECT @first")
if cursor.fetchone()[0]: cursor.execute("INSERT INTO bill VALUES (%%s)", event["id"])
if not again and event["payload"] %% 2: sys.exit(1)
cursor.execute("COMMIT")
if not again: sys.exit(1)
"""


class Inbox(MariaCase):
    def setUp(self):
        super().setUp()
        self.init()

    def call(self, cursor, handler, key):
        cursor.execute("CALL outbox_handle_once(%s, %s, @first)", (handler, key))
        cursor.execute("SELECT @first")
        return bool(cursor.fetchone()[0])

    def test_redelivered_events_take_effect_once_each(self):
        self.sql("CREATE TABLE bill (event CHAR(36))")
        program = self.path("program.py")
        program.write_text(PROGRAM % {"tests": str(ROOT / "tests" / "lib"), "folder": str(self.dir), "store": self.store})
        for n in range(6): self.emit("order.paid", payload=str(n))
        with self.relay("--consumer", "billing", "--sink", f"exec:{sys.executable} {program}", "--retry", "base=10ms,jitter=none,outage=0s"):
            wait_until(lambda: self.sql("SELECT delivered FROM outbox_consumer") == [(6,)])
        self.assertEqual(sorted(self.sql("SELECT event FROM bill")), sorted(self.sql("SELECT id FROM outbox_event")))

    def test_inbox_returns_first_only_once_and_rolls_back(self):
        one, other = self.connect().cursor(), self.connect().cursor()
        one.execute("BEGIN")
        self.assertTrue(self.call(one, "a", "\u2603"))
        self.assertFalse(self.call(one, "a", "\u2603"))
        self.assertTrue(self.call(one, "b", "\u2603"))
        one.execute("ROLLBACK")
        other.execute("SET autocommit = 0")
        self.assertTrue(self.call(other, "a", "\u2603"))
        other.execute("COMMIT")
        one.execute("BEGIN")
        self.assertFalse(self.call(one, "a", "\u2603"))
        self.assertTrue(self.call(one, "a", "\u2603 "))
        one.execute("COMMIT")
        self.assertEqual(self.sql("SELECT handler_name, idempotency_key FROM outbox_event_handled ORDER BY 2"),
                         [("a", "\u2603"), ("a", "\u2603 ")])

    def test_invalid_calls_are_refused(self):
        cursor = self.connect().cursor()
        with self.assertRaisesRegex(pymysql.err.MySQLError, "no transaction is open"): self.call(cursor, "a", "b")
        self.sql("INSERT INTO outbox_handled (handler, `key`, hash, at) VALUES ('a', 'x', 1, 1)")
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute("BEGIN")
        for handler, key, why in (("", "b", "1 to 1024"), ("a", "", "1 to 1024"), (None, "b", "1 to 1024"), ("a", None, "1 to 1024"),
                                  ("a", "x" * 1025, "1 to 1024"), ("a\n", "b", "control"), ("a", "x", "another payload")):
            with self.subTest(key=key), self.assertRaisesRegex(pymysql.err.MySQLError, why): self.call(cursor, handler, key)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_handled"), [(1,)])

    def test_account_with_the_consumer_grant_may_call_inbox(self):
        self.sql("CREATE USER inbox_guest@localhost")
        self.addCleanup(self.sql, "DROP USER inbox_guest@localhost")
        self.outbox("grant", "consumer", "inbox_guest@localhost")
        _, name, path = mariadb_server.ADDRESS.match(self.store).groups()
        db = pymysql.connect(unix_socket=path, user="inbox_guest", database=name, charset="utf8mb4")
        cursor = db.cursor()
        cursor.execute("BEGIN")
        self.assertTrue(self.call(cursor, "a", "b"))
        db.close()
