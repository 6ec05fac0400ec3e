"""A turn on MariaDB is several statements in one transaction. Whichever process dies, is cut off or stalls between any two of
them: nothing is lost, and no other process waits for long.

# build: plain
# quick: no
"""
from proxy_mariadb import ANSWERED, SENT, STALLED, UNSENT, Proxied
from scenario import CLAIMS, SEED, Numbers
from support import SOAK, MariaCase, wait_until

BATCH = 4
STEPS = 40  # more than the statements needed to number, claim, deliver and settle
EVERY = 1 if SOAK else 8


class Steps(Proxied, Numbers, MariaCase):
    def start(self, store=None, **kw):
        return self.relay("--store", store or self.far, "--consumer", "out", "--sink", f"file:{self.out}", "--batch", BATCH, "--lease", "500ms",
                          "--log-hold", "0s", **kw)

    def some(self):
        """some returns the steps to break at: all in a soak, else every eighth, starting at one chosen by the seed."""
        return range(1 + SEED % EVERY, STEPS + 1, EVERY)

    def send_until(self, stop):
        """send_until sends events until the chosen statement is sent."""
        while not stop.done():
            self.send(BATCH + 2)
            wait_until(lambda: stop.done() or not self.missing())

    def cut_at(self, when):
        relay = self.start()
        for n in self.some():
            stop = self.proxy.at(n, when)
            self.send_until(stop)
            self.fault(f"cut off, {when}")
            self.heal(relay)
        relay.stop()
        return self.reckon((CLAIMS * self.faults[f"cut off, {when}"] + self.lost_claims("out")) * BATCH)

    def test_connection_lost_before_any_statement_is_harmless(self):
        """A connection that ends before any statement of a turn: nothing is lost, and the relay continues on its own."""
        self.cut_at(UNSENT)

    def test_connection_lost_within_any_statement_is_harmless(self):
        """A connection that ends when the server has received any statement of a turn: nothing is lost."""
        self.cut_at(SENT)

    def test_connection_lost_after_any_statement_loses_nothing(self):
        """A connection that ends when the server has answered a statement of a turn, also COMMIT: nothing is lost."""
        self.cut_at(ANSWERED)

    def test_relay_killed_at_any_statement_loses_nothing(self):
        """A relay is killed before any statement of a turn: the next one continues, nothing is lost."""
        for n in self.some():
            relay = self.start()
            stop = self.proxy.at(n, UNSENT, relay.kill)
            self.send_until(stop)
            self.fault("relay killed")
            with self.start() as other:
                self.heal(other)
                self.wait_let_go()  # all may have been delivered before this one began
        self.reckon((CLAIMS * self.faults["relay killed"] + self.lost_claims("out")) * BATCH)

    def test_relay_stalled_at_any_statement_does_not_block_others(self):
        """A relay stalls between two statements of a turn while it holds locks: another one continues within seconds, nothing
        is lost, and the first one continues when it resumes."""
        for n in self.some() if SOAK else (12 + SEED % 5,):
            relay = self.start()
            stop = self.proxy.at(n, STALLED)
            self.send_until(stop)
            self.send(BATCH)
            with self.start(self.store) as other: self.wait_all(other, timeout=30)
            stop.let_go()
            self.fault("relay stood still")
            self.send(BATCH)
            self.heal(relay)
            relay.stop()
        self.reckon((CLAIMS * self.faults["relay stood still"] + self.lost_claims("out")) * BATCH)
