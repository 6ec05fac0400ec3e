"""The preset `slow` on each store: the test reads the waits where they are stored, and shortens them there."""
import unittest

from support import on_each_store, wait_until


@on_each_store
class Slow:
    def test_each_retry_waits_as_documented_until_the_event_expires(self):
        self.init()
        self.emit("a")
        sink = ["--consumer", "mail", "--sink", "exec:exit 1", "--retry", "slow,outage=0s"]
        found = f"SELECT attempts, {self.millis('due_at')} - {self.millis('failed_at')} FROM @parked WHERE attempts = ? AND claim IS NULL"
        waits = []
        for attempt in range(1, 6):
            with self.relay(*sink) as relay: waits += wait_until(lambda: self.ask(found, attempt), what=relay.output)
            self.ask(f"UPDATE @parked SET due_at = {self.time_of(1000)}")
        self.assertEqual([(attempts, round(ms / 60000, 2)) for attempts, ms in waits], [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16)])
        with self.relay(*sink) as relay: wait_until(lambda: self.ask("SELECT 1 FROM @dead WHERE attempts = 6"), what=relay.output)
        self.assertEqual(self.ask("SELECT count(*) FROM @parked"), [(0,)])


if __name__ == "__main__":
    unittest.main()
