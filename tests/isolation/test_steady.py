# build: plain
"""The cost of a trickle of events for the server: counted, not timed, so that an increase is noticed."""
import re
import time

from sessions_postgres import ExactAlone
from support import wait_until

EVENTS = 40
IN_TIME = 0.015  # seconds from one event to the next; a relay waits for 20 ms before it settles


class Steady(ExactAlone):
    settings = {"log_statement": "all", "log_line_prefix": "%a|"}

    def setUp(self):
        super().setUp()
        self.writer = self.session()

    def said(self):
        """said returns the relays' statements up to now."""
        return re.findall(r"^outbox[^|]*\|LOG:\s+(?:execute \S+|statement): (.*(?:\n\t.*)*)", self.postgres.log(), re.MULTILINE)

    def test_single_event_costs_one_turn_and_one_read(self):
        """A delivered event is settled with the next claim, if that follows in time."""
        out = self.path("out")
        relay = self.relay("--consumer", "a", "--sink", f"file:{out}", "--sweep", "10m")
        count = lambda: out.read_bytes().count(b"\n") if out.exists() else 0
        self.writer.emit("a/1")
        wait_until(lambda: count() == 1)
        before = len(self.said())
        late = 0  # how often the machine was too slow for the next event to be in time: then the settlement has a separate turn
        seen = time.monotonic()
        for n in range(EVENTS):
            time.sleep(0.003)  # so that the relay is idle
            self.writer.emit("a/1")
            late += time.monotonic() - seen > IN_TIME
            seen = time.monotonic()
            wait_until(lambda: count() == n + 2)
        said = self.said()[before:]
        turns = [text for text in said if "_turn" in text]
        self.assertLessEqual(len(turns), 1.15 * EVENTS + 2 * late, said[-20:])
        self.assertLessEqual(len(said), 2.15 * EVENTS + 4 * late, said[-20:])
        relay.stop()
