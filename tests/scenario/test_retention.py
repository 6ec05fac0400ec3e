"""Retention counts from delivery, through the binary, on both stores: when a consumer got past an event is told by a few samples."""
# build: plain
import unittest

from sessions import Exact
from support import Case, PgCase


class Counting:
    """On a store: self.passed is the table of samples, self.hours(n) an age in its terms, self.event the table of events."""

    def setUp(self):
        super().setUp()
        self.init()

    def deliver(self):
        self.drain("--consumer", "mail", "--sink", f"file:{self.path('out')}")

    def trim(self, *more):
        return self.json("trim", "--older-than", "168h", *more)["events"]

    def older(self, hours, *columns):
        for table, column in columns: self.sql(f"UPDATE {table} SET {column} = {column} - {self.hours(hours)}")

    def samples(self):
        return [tuple(row) for row in self.sql(f"SELECT consumer, seq FROM {self.passed} ORDER BY consumer, seq")]

    def test_an_event_that_waited_eight_days_in_an_outage_is_kept_for_168_hours_after_its_delivery(self):
        self.emit("order.paid")
        self.older(8 * 24, (self.event, "created_at"))
        self.deliver()
        self.assertEqual(self.trim(), 0)
        self.assertEqual(self.samples(), [("mail", 1)])
        self.older(167, (self.event, "created_at"), (self.passed, "at"))
        self.assertEqual((self.trim("--dry-run"), self.trim()), (0, 0))
        self.older(2, (self.event, "created_at"), (self.passed, "at"))
        self.assertEqual((self.trim("--dry-run"), self.trim()), (1, 1))

    def test_samples_stay_few(self):
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
        self.assertEqual(self.samples(), [("mail", 7), ("mail", 8)])  # those before say nothing more
        self.outbox("consumers", "remove", "mail", "--yes")
        self.assertEqual(self.samples(), [])

    def test_a_place_that_went_back_takes_its_samples_along(self):
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


class Late(Exact):
    """A transaction takes its numbers when it begins to write, and may commit long after others that began later."""

    def test_an_event_committed_long_after_its_number_was_passed_is_kept_for_168_hours_after_its_delivery(self):
        late = self.session()
        late.do("BEGIN; INSERT INTO outbox.event (type) VALUES ('late')")
        self.emit("order.paid")
        sink = ("--consumer", "mail", "--sink", f"file:{self.path('out')}")
        self.drain(*sink)
        self.assertEqual(self.json("trim")["events"], 0)
        for table, column in (("outbox.event", "created_at"), ("outbox.passed", "at")):
            self.sql(f"UPDATE {table} SET {column} = {column} - interval '169 hours'")
        late.do("COMMIT")
        self.sql("UPDATE outbox.event SET created_at = created_at - interval '169 hours' WHERE type = 'late'")
        self.drain(*sink)
        self.assertEqual([e["type"] for e in self.ndjson(self.path("out"))], ["order.paid", "late"])
        self.assertEqual(self.json("trim")["events"], 1)
        self.assertEqual(self.sql("SELECT type FROM outbox.event"), [("late",)])
        self.sql("UPDATE outbox.passed SET at = at - interval '169 hours'")
        self.assertEqual(self.json("trim")["events"], 1)


if __name__ == "__main__":
    unittest.main()
