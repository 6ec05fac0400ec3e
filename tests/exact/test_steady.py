# build: plain
"""What a trickle of events costs the server: counted, not timed, so that it does not grow unseen."""
import re
import time

import servers
from sessions import Exact
from support import wait_until

EVENTS = 40


class Steady(Exact):
    @classmethod
    def setUpClass(cls):
        cls.postgres = servers.Postgres({"log_statement": "all", "log_line_prefix": "%a|"})
        cls.addClassCleanup(cls.postgres.close)
        cls.postgres.start()

    def setUp(self):
        super().setUp()
        self.store = self.postgres.create_database(self.dbname)
        self.addCleanup(servers.drop_database, self.postgres.url(""), self.dbname)
        self.init()
        self.writer = self.session()

    def said(self):
        """said gives what relays have asked the server for so far."""
        return re.findall(r"^outbox[^|]*\|LOG:\s+(?:execute \S+|statement): (.*(?:\n\t.*)*)", self.postgres.log(), re.MULTILINE)

    def test_an_event_that_comes_alone_costs_two_turns_and_a_read(self):
        out = self.path("out")
        relay = self.relay("--consumer", "a", "--sink", f"file:{out}", "--sweep", "10m")
        count = lambda: out.read_bytes().count(b"\n") if out.exists() else 0
        self.writer.emit("a/1")
        wait_until(lambda: count() == 1)
        before = len(self.said())
        for n in range(EVENTS):
            self.writer.emit("a/1")
            wait_until(lambda: count() == n + 2)
            time.sleep(0.003)  # so that it has gone to rest
        said = self.said()[before:]
        turns = [text for text in said if "_turn(" in text]
        self.assertLess(len(turns), 2.4 * EVENTS, said[-20:])
        self.assertLess(len(said), 3.7 * EVENTS, said[-20:])
        relay.stop()
