"""Sinks that fail in ordinary ways, through the CLI: the right side is blamed, and no process waits forever."""
# build: plain
import fcntl
import time

from scenario import Numbers
from support import Case, wait_until


class FileSink(Numbers, Case):
    def setUp(self):
        super().setUp()
        self.init()

    def start(self, *more):
        return self.relay("--log-level", "debug", "--consumer", "out", "--sink", f"file:{self.out}", *more)

    def lock(self):
        """lock holds the file's lock, as another process would."""
        f = open(self.out, "ab")
        self.addCleanup(f.close)
        fcntl.flock(f, fcntl.LOCK_EX)
        return f

    def down(self, relay, words):
        wait_until(lambda: "sink is down" in relay.output() and words in relay.output(), what=relay.output)

    def test_sink_is_down_while_another_process_holds_its_lock(self):
        """While another process holds the file's lock, the sink is down; then everything arrives, no attempt counted."""
        lock = self.lock()
        with self.start() as relay:
            self.send(50)
            self.down(relay, "another process has")
            self.assertIn("sink is down", self.outbox("status").stdout)
            lock.close()
            self.fault("file locked")
            self.heal(relay)
            self.assertNotIn("attempt 1 of", relay.output())
        self.reckon(0)

    def test_relay_waiting_for_a_lock_stops_on_request(self):
        """SIGTERM ends a relay that waits for a lock, at once and with status 0, whatever the drain deadline."""
        self.lock()
        for seconds in (0, 2.5):  # while it tries, and while it is down
            with self.start("--drain-deadline", "60s") as relay:
                self.send(5)
                wait_until(self.claimed, what=relay.output)
                time.sleep(seconds)
                before = time.monotonic()
                relay.stop()
                self.assertLess(time.monotonic() - before, 15)
        self.assertEqual(self.out.read_bytes(), b"")

    def claimed(self):
        return self.sql("SELECT count(*) FROM outbox_claim") != [(0,)]
