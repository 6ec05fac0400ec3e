"""Wrong and jumping clocks of relays, emitters and the server. Leases, retries and positions use the store's clock, which is
the server's, or in SQLite each program's; durations use the monotonic clock. Whatever the clocks show: nothing is lost, the
order of a key is kept, and no event waits for an hour.

# build: plain
# quick: no
"""
import os
import random
import time
import unittest
import uuid

import mariadb_server
import servers
from faketime import FOUND, HOUR, Clock
from scenario import APPEND, CLAIMS, SEED, Numbers
from support import SOAK, Case, MariaCase, PgCase, wait_until

BATCH = 20
ROUNDS = 20 if SOAK else 5
JUMPS = (HOUR, -HOUR, 2 * HOUR, 0, -2 * HOUR, 5, -5)
SOON = 45  # seconds; far less than a clock was wrong, and less than the sweep
# Of every third event the first attempt fails.
SECOND = "exec:[ $((OUTBOX_SEQ % 3)) -ne 0 ] || [ $OUTBOX_ATTEMPT -gt 1 ] || exit 75; " + APPEND


@unittest.skipUnless(FOUND, "libfaketime is not installed (Debian package faketime)")
class Clocks(Numbers):
    def setUp(self):
        super().setUp()
        self.rng = random.Random(SEED)
        self.init()

    def clock(self, name, seconds=0):
        return Clock(self.path(f"clock-{name}"), seconds)

    def start(self, clock=None, *more):
        return self.relay("--consumer", "out", "--sink", SECOND.format(out=self.out), "--batch", BATCH, "--lease", "1500ms",
                          "--retry", "base=20ms,cap=100ms,attempts=1000,outage=0s", "--sweep", "60s", "--log-hold", "0s", *more,
                          env=clock.env() if clock else None)

    def emit_at(self, clock, n, *more):
        """emit_at sends n events from an emitter with this clock."""
        self.wrong = clock
        try:
            self.send(n)
        finally:
            self.wrong = None

    wrong = None

    def env(self, extra=None):
        return super().env({**(self.wrong.env() if self.wrong else {}), **(extra or {})})

    def bound(self, faults):
        return (CLAIMS * faults + self.lost_claims("out")) * BATCH

    def apart(self):
        """apart starts three relays and three emitters whose clocks are an hour apart; it returns the clocks and the relays."""
        clocks = [self.clock("ahead", HOUR), self.clock("behind", -HOUR), self.clock("right")]
        relays = [self.start(clock) for clock in clocks]
        for n in range(ROUNDS): self.emit_at(clocks[n % 3], 15)
        self.fault("clock an hour ahead")
        self.fault("clock an hour behind")
        return clocks, relays

    def jump(self, clock, own, emit):
        """jump moves a clock back and forth, under two relays that use the clock `own`. Every second time it kills them just
        before, so that their leases and pending retries have outdated times."""
        relays = [self.start(own), self.start(own)]
        for n in range(ROUNDS):
            emit(15)
            wait_until(lambda: self.sql(f"SELECT 1 FROM {self.PREFIX}claim") or not self.missing())
            if n % 2:
                for relay in relays: relay.kill()
                self.fault("relay killed", 2)
            clock.set(JUMPS[n % len(JUMPS)])
            self.fault("clock jumped")
            if n % 2: relays = [self.start(own), self.start(own)]
        self.heal(*relays, timeout=SOON)
        for relay in relays: relay.stop()
        self.reckon(self.bound(sum(self.faults.values())))

    def delayed(self):
        """delayed checks that not_before is a time of the emitter's clock. If that clock is behind, the delay has no effect; if
        it is ahead, the delay is longer by the difference. Later events of the key wait."""
        fast, slow = self.clock("fast", 1), self.clock("slow", -HOUR)
        with self.start() as relay:
            for clock, least, most in ((slow, 0, SOON), (fast, 1.2, SOON)):
                self.wrong, begin = clock, time.monotonic()
                self.outbox("emit", "a", "--key", f"k/{self.sent % 5}", "--payload", self.sent, "--delay", "300ms")
                self.wrong = None
                self.sent += 1
                self.fault("emitter's clock wrong")
                self.send(10)
                self.heal(relay, timeout=most)
                self.assertGreater(time.monotonic() - begin, least)
        self.reckon(0)


class OnSqlite(Clocks, Case):
    def test_relays_with_clocks_an_hour_apart_lose_nothing(self):
        """Programs of one machine whose clocks are an hour apart keep working: leases are measured by the time since the
        machine started. Nothing is lost or out of order, and no claim is taken over before it expires."""
        _, relays = self.apart()
        self.heal(*relays, timeout=SOON)
        for relay in relays: relay.stop()
        self.reckon(self.bound(0))

    def hold(self, clock):
        """hold starts a relay whose command never ends for an event of the type hang."""
        gate, calls = self.path("gate"), self.path("calls")
        if not gate.exists():
            os.mkfifo(gate)
            self.addCleanup(os.close, os.open(gate, os.O_RDWR))
        sink = f"exec:echo $OUTBOX_TYPE >>{calls}; [ $OUTBOX_TYPE != hang ] || read nothing <{gate}"
        return self.relay("--consumer", "out", "--sink", sink, "--order", "none", "--batch", "1", "--concurrency", "1", "--lease", "15s", "--timeout", "10m",
                          env=clock.env())

    def calls(self, type):
        path = self.path("calls")
        return path.read_text().split("\n").count(type) if path.exists() else 0

    def test_process_with_a_wrong_clock_never_steals_a_live_claim(self):
        """A claim is stolen neither by a process whose clock is ahead or behind nor after all clocks were set; only after its
        owner died."""
        machine = self.clock("machine")
        owner = self.hold(machine)
        self.emit("hang")
        wait_until(lambda: self.calls("hang") == 1, what=owner.output)
        others = [self.hold(self.clock("ahead", HOUR)), self.hold(self.clock("behind", -HOUR)), self.hold(machine)]
        for n, jump in enumerate((0, HOUR, -HOUR, 0)):
            machine.set(jump)
            for i in range(10): self.emit(f"t{n}-{i}")  # each commit makes the others poll
            # All but those that the owner has claimed ahead.
            wait_until(lambda: sum(self.calls(f"t{n}-{i}") for i in range(10)) > 5, what=lambda: [relay.output() for relay in others])
            self.assertEqual(self.calls("hang"), 1, [relay.output() for relay in others])
        owner.kill()
        wait_until(lambda: self.calls("hang") > 1, timeout=SOON, what=lambda: [relay.output() for relay in others])
        for relay in others: relay.kill()

    def test_claim_from_before_a_reboot_uses_the_wall_clock(self):
        owner = self.hold(self.clock("right"))
        self.emit("hang")
        wait_until(lambda: self.calls("hang") == 1, what=owner.output)
        owner.kill()
        self.sql("UPDATE outbox_claim SET owner = 'of another boot', boot = boot + 1, ahead = ahead - 7200000, lease = 60000,"
                 " locked_until = locked_until + 50000")
        early = self.hold(self.clock("early"))
        self.emit("t")
        wait_until(lambda: self.calls("t") == 1, what=early.output)
        self.assertEqual(self.calls("hang"), 1)
        early.kill()
        late = self.hold(self.clock("late", 120))
        wait_until(lambda: self.calls("hang") == 2, timeout=SOON, what=late.output)
        late.kill()

    def test_clock_jump_does_not_delay_events(self):
        """A machine's clock that jumps by hours, back and forth: leases and retries last as long as they were meant to, nothing
        is lost or out of order."""
        clock = self.clock("machine")
        self.jump(clock, clock, lambda n: self.emit_at(clock, n))

    def test_delay_uses_the_emitters_clock_and_holds_back_its_key(self):
        """A delayed event of an emitter whose clock is wrong arrives later or sooner by that much, and in the order of its
        key."""
        self.delayed()


class ByServer(Clocks):
    """The store's clock is the server's."""

    def test_relay_clocks_an_hour_apart_have_no_effect(self):
        """Programs whose clocks are an hour apart keep working: the server's clock counts. Nothing is lost or out of order, and
        no claim is taken over before it expires."""
        _, relays = self.apart()
        self.heal(*relays, timeout=SOON)
        for relay in relays: relay.stop()
        self.reckon(self.bound(0))

    def test_jumping_relay_clock_has_no_effect(self):
        """A relay's clock that jumps by hours changes nothing."""
        clock = self.clock("machine")
        with self.start(clock) as relay:
            for n in range(ROUNDS):
                self.emit_at(clock, 15)
                clock.set(JUMPS[n % len(JUMPS)])
                self.fault("clock jumped")
                time.sleep(self.rng.uniform(0, 0.4))
            self.heal(relay, timeout=SOON)
        self.reckon(self.bound(0))

    def test_delay_uses_the_emitters_clock_and_holds_back_its_key(self):
        """A delayed event of an emitter whose clock is wrong arrives later or sooner by that much, and in the order of its
        key."""
        self.delayed()


class OnPostgres(ByServer, PgCase):
    PREFIX = "outbox."


class OnMariadb(ByServer, MariaCase):
    pass


class Fake:
    """A server that uses a clock of ours. A mixin for a server."""

    def prepare(self):
        super().prepare()
        self.clock = Clock(self.dir / "clock")

    def command(self):
        return ["env", *(f"{name}={value}" for name, value in self.clock.env().items()), *super().command()]


class FakePostgres(Fake, servers.Postgres):
    def now(self, url):
        return float(servers.execute(url, "SELECT extract(epoch FROM now())")[0][0])


class FakeMariaDB(Fake, mariadb_server.MariaDB):
    def now(self, url):
        return float(mariadb_server.execute(url, "SELECT unix_timestamp(now(3))")[0][0])


class OfTheServer(Clocks):
    @classmethod
    def setUpClass(cls):
        if not FOUND: return
        cls.server = cls.FAKE().start()
        cls.addClassCleanup(cls.server.close)

    def setUp(self):
        self.dbname = f"t_{uuid.uuid4().hex[:12]}"
        Case.setUp(self)
        self.store = self.server.create_database(self.dbname)
        self.out, self.sent, self.rng = self.path("out"), 0, random.Random(SEED)
        self.init()

    def test_server_clock_jump_does_not_delay_events(self):
        """The server's clock jumps by hours, to and fro, under load: leases and retries last as long as they were meant to,
        nothing is lost or out of order."""
        self.assertLess(abs(self.server.now(self.store) - time.time()), 5)
        self.addCleanup(self.server.clock.set, 0)
        self.jump(self.server.clock, None, self.send)
        self.server.clock.set(HOUR)
        now = self.server.now(self.store)
        self.assertGreater(now - time.time(), HOUR / 2, "the server's clock does not jump")


class OfThePostgresServer(OfTheServer, Case):
    postgres = True
    PREFIX, FAKE = "outbox.", FakePostgres

    def sql(self, statement, *params):
        return servers.execute(self.store, statement, *params)

    ask = PgCase.ask


class OfTheMariadbServer(OfTheServer, Case):
    FAKE = FakeMariaDB

    def sql(self, statement, *params):
        return mariadb_server.execute(self.store, statement, *params)

    ask = MariaCase.ask
