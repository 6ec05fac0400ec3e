"""Retention counts from delivery, through the binary, on both stores: a few samples record when a consumer passed an event."""
# build: plain
import unittest

from sessions_postgres import Exact
from support import Case, PgCase, wait_until


class Counting:
    """For each store: self.passed is the table of samples, self.hours(n) an age in its terms, self.event the table of
    events."""

    def setUp(self):
        super().setUp()
        self.init()

    def deliver(self):
        self.drain("--consumer", "mail", "--sink", f"file:{self.path('out')}")

    def trim(self, *more):
        return self.json("trim", "--older-than", "168h", *more)["events"]

    def older(self, hours, *columns):
        for table, column in columns: self.alter_events(f"UPDATE {table} SET {column} = {column} - {self.hours(hours)}")

    def samples(self):
        """Of single consumers."""
        return [tuple(row) for row in self.sql(f"SELECT consumer, seq FROM {self.passed} WHERE consumer <> '' ORDER BY consumer, seq")]

    def test_event_delivered_after_8_days_is_kept_168_hours(self):
        self.emit("order.paid")
        self.older(8 * 24, (self.event, "created_at"))
        self.deliver()
        self.assertEqual(self.trim(), 0)
        self.assertEqual(self.samples(), [("mail", 1)])
        self.older(167, (self.event, "created_at"), (self.passed, "at"))
        self.assertEqual((self.trim("--dry-run"), self.trim()), (0, 0))
        self.older(2, (self.event, "created_at"), (self.passed, "at"))
        self.assertEqual((self.trim("--dry-run"), self.trim()), (1, 1))

    def test_number_of_samples_stays_small(self):
        for n in range(1, 5):
            self.emit("order.paid")
            self.deliver()
            for _ in range(2): self.trim()  # once an hour is enough
            self.assertEqual(self.samples(), [("mail", 2 * seq - 1) for seq in range(1, n + 1)])
            self.emit("order.paid")
            self.deliver()
            self.trim()
            self.older(1, (self.passed, "at"), (self.event, "created_at"))
        self.older(168, (self.passed, "at"), (self.event, "created_at"))
        self.assertEqual(self.trim(), 7)  # the eighth was delivered after the last sample
        self.assertEqual(self.samples(), [("mail", 7), ("mail", 8)])  # earlier samples no longer count
        self.outbox("consumers", "remove", "mail", "--yes")
        self.assertEqual(self.samples(), [])

    def test_moving_a_position_back_discards_its_samples(self):
        for _ in range(3): self.emit("order.paid")
        self.deliver()
        self.trim()
        self.older(200, (self.passed, "at"), (self.event, "created_at"))
        self.back(1)
        self.assertEqual((self.trim(), self.samples()), (0, [("mail", 1)]))


class OnSQLite(Counting, Case):
    event, passed = "outbox_event", "outbox_passed"

    def hours(self, n): return f"{n * 3600000}"

    def back(self, seq): self.sql("UPDATE outbox_lane SET position = ?", seq)


class OnPostgres(Counting, PgCase):
    event, passed = "outbox.event", "outbox.passed"

    def hours(self, n): return f"interval '{n} hours'"

    def back(self, seq): self.sql(f"UPDATE outbox.lane SET floor = {seq} WHERE lane >= 0")

    def test_batch_cost_depends_only_on_deleted_events(self):
        """Of a table that was never analysed, too."""
        kept, gone = 20000, 200
        self.sql("ALTER TABLE outbox.event SET (autovacuum_enabled = off)")
        self.sql(f"INSERT INTO outbox.event (type) SELECT 'order.paid' FROM generate_series(1, {kept + gone})")
        self.sql("SELECT outbox.register('mail', start_at => 'end')")
        looked = """SELECT seq_tup_read + idx_tup_fetch, n_tup_del FROM pg_stat_user_tables
                    WHERE schemaname = 'outbox' AND relname = 'event'"""
        before = self.sql(looked)[0][0]
        calls = 10
        for _ in range(calls):  # the plan for any range is tested as well
            self.assertEqual(self.sql(f"SELECT events, more FROM outbox.trim('0s', {gone // calls})"), [(gone // calls, True)])
        wait_until(lambda: self.sql(looked)[0][1] == gone, what="the statistics")
        self.assertLess(self.sql(looked)[0][0] - before, 20 * gone + kept / 2)


class Late(Exact):
    """A transaction gets its numbers when it begins to write, and may commit long after others that began later."""

    def test_event_committed_late_is_kept_168_hours(self):
        late = self.session()
        late.do("BEGIN; INSERT INTO outbox.event (type) VALUES ('late')")
        self.emit("order.paid")
        sink = ("--consumer", "mail", "--sink", f"file:{self.path('out')}")
        self.drain(*sink)
        self.assertEqual(self.json("trim")["events"], 0)
        for table, column in (("outbox.event", "created_at"), ("outbox.passed", "at")):
            self.alter_events(f"UPDATE {table} SET {column} = {column} - interval '169 hours'")
        late.do("COMMIT")
        self.alter_events("UPDATE outbox.event SET created_at = created_at - interval '169 hours' WHERE type = 'late'")
        self.drain(*sink)
        self.assertEqual([e["type"] for e in self.ndjson(self.path("out"))], ["order.paid", "late"])
        self.assertEqual(self.json("trim")["events"], 1)
        self.assertEqual(self.sql("SELECT type FROM outbox.event"), [("late",)])
        self.sql("UPDATE outbox.passed SET at = at - interval '169 hours'")
        self.assertEqual(self.json("trim")["events"], 1)

    def test_open_transaction_does_not_slow_down_batches(self):
        """The index entries of deleted events stay; a batch begins behind those of the last one."""
        gone, calls = 20000, 20
        self.sql(f"INSERT INTO outbox.event (type) SELECT 'order.paid' FROM generate_series(1, {gone})")
        self.sql("SELECT outbox.register('mail', start_at => 'end')")
        looked = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'outbox' AND indexrelname = 'event_pkey'"
        held = self.session()
        held.do("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        before, upto, deleted = self.sql(looked)[0][0], 0, 0
        for _ in range(calls):
            [(events, upto)] = self.sql(f"SELECT events, upto FROM outbox.trim('0s', {gone // calls}, NULL, {upto})")
            deleted += events
        self.assertEqual(deleted, gone)
        wait_until(lambda: self.sql(looked)[0][0] >= before + 2 * gone, what="the statistics")
        self.assertLess(self.sql(looked)[0][0] - before, 5 * gone)


if __name__ == "__main__":
    unittest.main()
