"""Locks any role can take. A role without rights in the outbox can hold any advisory lock, and sees in pg_locks which are in
use: the effect must be no more than an occasional poll, and the log and doctor must name the session."""
# build: plain
# quick: no
import re
import select
import unittest

import psycopg2
from support import PgCase, wait_until

SOON = 20  # seconds, on the busiest of machines: a relay that was kept from being woken looks every second


class Strangers(PgCase):
    def setUp(self):
        super().setUp()
        self.outbox("init")
        if self.sql("SHOW max_prepared_transactions") != [("0",)]:
            self.sql(f"ALTER DATABASE {self.dbname} SET outbox.wakeup = 'on'")
        self.out = self.path("out")
        self.nobody = self.role()
        self.role_name = re.search(r"[?&]user=([^&]*)", self.nobody).group(1)
        self.stranger = psycopg2.connect(self.nobody, application_name="the stranger")
        self.addCleanup(self.stranger.close)
        self.stranger.autocommit = True

    def keys(self):
        """keys are those that are in use in this database, and all that were ever used by an outbox."""
        seen = self.sql("SELECT DISTINCT (classid::bigint << 32) | objid::bigint FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
                        "WHERE d.datname = current_database() AND locktype = 'advisory'")
        made = [self.sql("SELECT hashtextextended(%s, 0)", '"outbox" ' + name)[0] for name in
                ("wakeup", "consumer mail", "migrate", "epoch")]
        return {key for key, in [*seen, *made]} | {key ^ 1 for key, in [*seen, *made]}

    def squat(self, how, keys=None):
        """squat makes the unrelated session take every free lock."""
        with self.stranger.cursor() as cursor:
            for key in keys or self.keys(): cursor.execute(f"SELECT pg_try_advisory_lock{how}(%s)", (key,))

    def leave(self):
        with self.stranger.cursor() as cursor: cursor.execute("SELECT pg_advisory_unlock_all()")

    def mail(self):
        return self.relay("--consumer", "mail", "--sink", f"file:{self.out}")

    def wait_for(self, n, relay):
        wait_until(lambda: len(self.ndjson(self.out)) == n, SOON, relay.output)

    def findings(self):
        return [f for f in self.json("doctor", status=None)["findings"] if f["name"] == "lock"]

    def test_lock_of_an_unrelated_role_never_blocks_a_relay(self):
        for how in ("", "_shared"):
            with self.subTest(how):
                wait_until(lambda: not self.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"))  # of the relay before
                self.squat(how)
                done = len(self.ndjson(self.out))
                with self.mail() as relay:
                    for n in range(1, 4):
                        self.emit("a", "k/1", n)
                        self.wait_for(done + n, relay)
                    wait_until(lambda: 'application "the stranger"' in relay.output(), SOON, relay.output)
                    self.assertIn(f'pid {self.stranger.info.backend_pid}, role "{self.role_name}"', relay.output())
                    found, = self.findings()
                    self.assertEqual(found["level"], "warning")
                    self.assertIn('application "the stranger"', found["text"])
                    self.leave()
                    wait_until(lambda: "wake-ups work again" in relay.output(), SOON, relay.output)
                    self.assertEqual([f["level"] for f in self.findings()], ["ok"])

    def test_unrelated_role_cannot_block_init_or_settling(self):
        self.squat("")
        self.sql("DELETE FROM outbox.meta WHERE name = 'functions'")
        self.outbox("init", timeout=SOON)
        self.emit("a", "k/1", 1)
        self.sql("SELECT outbox.register('mail')")
        epoch, = self.sql("SELECT epoch FROM outbox.claim('mail', 'w')")[0]
        self.assertEqual(self.sql("SELECT outbox.settle('mail', 'w', %s)", epoch), [(True,)])

    def test_unrelated_notifications_do_not_keep_a_relay_awake(self):
        with self.mail() as relay:
            (pid,), = wait_until(lambda: self.sql("SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = "
                                                  "current_database() AND locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted"))
            keys = self.keys()
            self.emit("a", "k/1", 1)
            self.wait_for(1, relay)
            while True:  # the relay must be awake for that
                self.squat("_shared", keys)
                if self.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = %s AND mode = 'ShareLock' AND "
                            "(classid::bigint << 32 | objid::bigint) = outbox._wakeup_key()", self.stranger.info.backend_pid): break
                self.sql("SELECT pg_notify(outbox.wakeup_channel(), n::text) FROM generate_series(1, 20) n")
            wait_until(lambda: "the stranger" in relay.output(), SOON, relay.output)
            # Each statement of the relay begins at another time.
            looks = set()
            end = self.sql("SELECT clock_timestamp() + interval '2 s'")[0][0]
            while self.sql("SELECT clock_timestamp() < %s", end)[0][0]:
                looks |= set(self.sql("SELECT query_start FROM pg_stat_activity WHERE pid = %s", pid))
            self.assertLess(len(looks), 20)

    def test_unrelated_lock_holder_does_not_make_commits_notify(self):
        listener = psycopg2.connect(self.store)
        self.addCleanup(listener.close)
        listener.autocommit = True
        channel, key = self.sql("SELECT outbox.wakeup_channel(), outbox._wakeup_key()")[0]
        with listener.cursor() as cursor: cursor.execute(f"LISTEN {channel}")
        self.squat("", [key])
        self.emit("a", "k/1", 1)
        self.leave()
        own = psycopg2.connect(self.store)
        self.addCleanup(own.close)
        own.autocommit = True
        with own.cursor() as cursor: cursor.execute("SELECT pg_advisory_lock(%s)", (key,))
        self.emit("a", "k/1", 2)
        wait_until(lambda: select.select([listener], [], [], 0.1)[0])
        listener.poll()
        self.assertEqual(len(listener.notifies), 1, "only of the second, while a worker held the lock")

    def test_producer_holding_the_wake_up_lock_is_also_reported(self):
        """It emits and never sleeps; only roles that may work can take the lock."""
        for part, strange in ("producer", True), ("consumer", False):
            holder = psycopg2.connect(self.role(part))
            self.addCleanup(holder.close)
            holder.autocommit = True
            with holder.cursor() as cursor: cursor.execute("SELECT pg_try_advisory_lock(outbox._wakeup_key())")
            self.assertEqual(self.sql("SELECT outbox._wakeup_lock_is_foreign(), outbox._wakeup_foreign_holders() IS NOT NULL"), [(strange, strange)], part)
            holder.close()
            wait_until(lambda: self.sql("SELECT count(*) FROM outbox._wakeup_locks()") == [(0,)])

    def test_relay_names_the_session_that_locks_a_consumers_row(self):
        holder = psycopg2.connect(self.store, application_name="the holder")
        self.addCleanup(holder.close)
        with self.mail() as relay:
            with holder.cursor() as cursor: cursor.execute("SELECT 1 FROM outbox.consumer FOR UPDATE")
            self.emit("a", "k/1", 1)
            wait_until(lambda: 'application "the holder", since' in relay.output(), what=relay.output)
            self.assertIn('consumer "mail" is locked by pid', relay.output())
            found, = [f["text"] for f in self.json("doctor", "--patience", "1s", status=None)["findings"] if f["name"] == "lock"]
            self.assertIn('application "the holder"', found)
            holder.rollback()
            self.wait_for(1, relay)

    def test_empty_poll_writes_nothing(self):
        self.sql("SELECT outbox.register('mail')")
        self.sql("SELECT * FROM outbox.claim('mail', 'w')")
        look = "SELECT count(*) FROM outbox.claim('mail', 'w'); SELECT pg_current_xact_id_if_assigned() IS NULL"
        db = psycopg2.connect(self.store)
        self.addCleanup(db.close)
        for what in ("nothing at all", "an event that is done", "one that waits"):
            with self.subTest(what), db, db.cursor() as cursor:
                cursor.execute(look)
                self.assertEqual(cursor.fetchall(), [(True,)])
            if what == "nothing at all":
                self.emit("a", "k/1", 1)
                self.drain("--consumer", "mail", "--sink", f"file:{self.out}")
                self.sql("SELECT * FROM outbox.claim('mail', 'w')")
            elif what == "an event that is done":
                self.outbox("emit", "a", "--delay", "1h")
                self.drain("--consumer", "mail", "--sink", f"file:{self.out}")
                self.sql("SELECT * FROM outbox.claim('mail', 'w')")


if __name__ == "__main__":
    unittest.main()
