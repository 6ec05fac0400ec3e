"""Broker failures, one suite for all brokers: nothing is lost, the order of a key is kept, no attempt is counted against an event
for a failure of the broker, and repeats stay within their bound.

    @on_each_store
    class Crashes(broker_faults.Crashes, RedisCase): ...

    class Faults(broker_faults.Faults, NatsCase, Case): ...

A case has `make_broker`, which returns an adapter of brokers.py. QUERY is added to the URL of its sink; EXACTLY_ONCE says that
nothing may arrive twice (dedupe=on, exclusive=on)."""
import contextlib
import itertools
import re
import signal
import sqlite3

from brokers import NEW, OLD
from scenario import Numbers, peak
from support import PgCase, wait_until

names = (f"f{n}" for n in itertools.count(1))


class BrokerCase(Numbers):
    """A relay in front of a destination of the test's own."""

    QUERY, EXACTLY_ONCE, BATCH = "", False, 100

    @property
    def PREFIX(self):
        return "outbox." if isinstance(self, PgCase) else "outbox_"

    def setUp(self):
        super().setUp()
        self.init()
        self.broker = self.make_broker()
        self.name = self.broker.make(next(names))
        self.earlier = []  # messages of destinations that no longer exist

    def make_broker(self):
        """make_broker starts a broker that ends with the test."""
        broker = self.BROKER()
        self.addCleanup(broker.close)
        self.addCleanup(self._end_children)
        return broker

    def url(self, query="", net=None):
        return self.broker.url(self.name, query + self.QUERY, net)

    def start(self, *more, url=None):
        return self.relay("--log-level", "debug", "--consumer", "out", "--sink", url or self.url(), "--batch", self.BATCH, *more)

    def got(self):
        return self.earlier + self.broker.got(self.name)

    def missing(self):
        got = {n for n, _ in self.got()}
        return sorted(set(range(self.sent)) - got)

    def arrived(self, *relays):
        """arrived checks that every event arrived and that no event was blamed: no attempt was counted, none was buried."""
        self.heal(*relays)
        for relay in relays: self.assertNotIn("attempt 1 of", relay.output())
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])

    def down(self, relay, words):
        wait_until(lambda: "sink is down" in relay.output() and words in relay.output(), what=relay.output)

    def refused(self, relay, words):
        wait_until(lambda: re.search(f"failed, attempt 1 of .*{words}", relay.output()), what=relay.output)

    def silent(self, timeout):
        """silent returns the words of a relay about a broker that does not answer."""
        number, unit = re.fullmatch(r"(\d+)(m?s)", timeout).groups()
        return self.broker.SILENT.format(f"{int(number) * (1 if unit == 'ms' else 1000)} ms")

    def reckon(self, faults=0, **more):
        """reckon allows for the repeats that so many faults may cause."""
        return super().reckon(bound=0 if self.EXACTLY_ONCE else faults * self.broker.repeats(self.sent), **more)


class Killed:
    ROUNDS = 1

    def test_killed_and_restarted_broker_loses_nothing(self):
        """A broker that is killed and restarted with its data gets everything, in order."""
        with self.start() as relay:
            for _ in range(self.ROUNDS):
                self.send(300)
                self.broker.server.kill()
                self.send(200)
                self.down(relay, self.broker.AWAY)
                self.broker.server.start()
                self.fault("broker killed")
                self.arrived(relay)
        self.reckon(self.ROUNDS)


class LostAnswers:
    def test_events_are_repeated_in_order_after_a_lost_answer(self):
        """A lost answer repeats its events once, the same ones, and in order."""
        with self.broker.network() as net, self.start(url=self.url(net=net)) as relay:
            self.send(50)
            self.wait_all(relay)
            for _ in range(3):
                cuts, net.drop = net.blown, self.broker.is_answer
                self.send(100)
                wait_until(lambda: net.blown > cuts, what=relay.output)
                self.fault("answer lost")
                self.arrived(relay)
                self.wait_let_go()  # unconfirmed messages have been queried again
        # The broker had stored it; the relay did not know and sent it again.
        if self.broker.LOSES_ANSWERS and not self.EXACTLY_ONCE: self.assertGreater(len(self.got()), self.sent)
        self.reckon(3)


class Stopped:
    def test_stalled_broker_loses_nothing(self):
        """A broker stalled for longer than the time limit gets everything, in order, once it resumes."""
        with self.start("--timeout", self.broker.TIMEOUT) as relay:
            self.send(100)
            self.wait_all(relay)
            self.broker.server.freeze()
            try:
                self.send(300)
                self.down(relay, self.silent(self.broker.TIMEOUT))
            finally:
                self.broker.server.thaw()
            self.fault("broker stopped")
            self.arrived(relay)
        self.reckon(relay.output().count(self.silent(self.broker.TIMEOUT)))


class Crashes(Killed, Stopped, LostAnswers):
    """Whichever component fails: everything arrives, in order, and is recorded."""


class RelayKilled:
    """Events that a killed relay had published but not settled are repeated in order, at most all that it held, and never if
    the sink promises that."""

    def test_relay_killed_before_settling_loses_nothing(self):
        """A relay that has published events but cannot settle them, because the database is locked, is killed: the next one delivers the rest."""
        self.send(10)
        relay = self.start("--lease", "1s", "--busy-timeout", "30s")
        self.wait_all(relay)
        self.wait_let_go()
        with contextlib.closing(sqlite3.connect(self.db, timeout=30, isolation_level=None)) as db:
            self.broker.server.freeze()
            try:
                self.send(self.BATCH // 2)
                wait_until(lambda: self.sql("SELECT count(*) FROM outbox_claim") != [(0,)], what=relay.output)
                db.execute("BEGIN IMMEDIATE")  # it holds a claim, and cannot settle it
            finally:
                self.broker.server.thaw()
            settled = db.execute("SELECT delivered FROM outbox_consumer").fetchone()[0]
            wait_until(lambda: len(self.got()) > settled, what=relay.output)
            relay.kill()
            self.fault("relay killed")
            db.execute("ROLLBACK")
        with self.start("--lease", "1s") as relay:
            self.arrived(relay)
            self.wait_let_go()
        self.reckon(1)
        if self.broker.LOSES_ANSWERS and not self.EXACTLY_ONCE: self.assertGreater(len(self.got()), self.sent)


class RelaysKilled:
    def test_relays_killed_at_any_moment_lose_nothing(self):
        """Whenever relays are killed, the next one delivers the rest, in order."""
        kills = 5
        for _ in range(kills):
            self.send(300)
            before, relay = len(self.got()), self.start("--lease", "1s", "--batch", "25")
            wait_until(lambda: len(self.got()) > before + 20, what=relay.output)
            relay.kill()
            self.fault("relay killed")
        with self.start("--lease", "1s") as relay:
            self.arrived(relay)
            self.wait_let_go()  # all may have been stored before this one began
        self.reckon(kills)


class Zombies:
    def test_relay_past_its_lease_loses_and_reorders_nothing(self):
        """A relay that continues past its lease loses and reorders nothing; it repeats at most the events it held."""
        start = lambda: self.start("--lease", "500ms", "--batch", "50")
        self.send(1000)
        zombie = start()
        wait_until(self.got, what=zombie.output)
        zombie.freeze(self.db if self.db.exists() else None)
        self.fault("relay stopped past its lease")
        with start() as heir:
            self.wait_all(heir)
            zombie.signal(signal.SIGCONT)
            self.send(100)
            self.arrived(heir)
            zombie.stop()
        bound, self.EXACTLY_ONCE = self.broker.ZOMBIE, False
        self.reckon(bound)


class Outages:
    """Whatever the broker does: everything arrives, in order, and no attempt is counted against an event."""

    def test_connection_lost_after_any_byte_loses_nothing(self):
        """Wherever the answers of the broker break off, everything arrives, in order."""
        cuts = 0
        with self.broker.network() as net, self.start(url=self.url(net=net)) as relay:
            self.send(50)
            self.wait_all(relay)
            for left in self.broker.FUSES:
                blown = net.blown
                net.fuse(left)
                if self.broker.CUT_FIRST: net.cut()
                self.send(60)
                # The size of an answer depends on how events are batched.
                wait_until(lambda: net.blown > blown or self.send(10), what=relay.output)
                self.fault("connection cut")
                cuts += 1
                self.arrived(relay)
            for _ in range(5):
                self.send(60)
                net.cut()
                self.fault("connection cut")
                cuts += 1
            self.arrived(relay)
        self.reckon(self.broker.seen(relay, cuts))

    def test_half_open_connections_cost_only_time(self):
        """A network that drops responses or requests while connections stay open costs only time."""
        timeout = self.broker.TIMEOUT
        words = self.silent(timeout)
        with self.broker.network() as net, self.start("--timeout", timeout, url=self.url(net=net)) as relay:
            self.send(50)
            self.wait_all(relay)
            for swallowed in ({"down": True}, {"up": True}):
                said = relay.output().count(words)
                net.swallow(**swallowed)
                self.send(100)
                wait_until(lambda: relay.output().count(words) > said, what=relay.output)
                net.heal()
                if self.broker.CUTS_TO_HEAL: net.cut()
                self.fault("network half open")
                self.arrived(relay)
        self.reckon(relay.output().count(words))

    def test_revoked_and_restored_login_loses_nothing(self):
        """A broker that refuses the login gets everything, in order, once it accepts it again."""
        secret = self.path("password")
        secret.touch(0o600)
        url = self.broker.let_in(self.name, secret)
        password = secret.read_text().strip()
        self.addCleanup(self.broker.restore)
        with self.start(url=url + self.QUERY) as relay:
            self.send(50)
            self.wait_all(relay)
            self.broker.lock_out()
            wait_until(lambda: "sink is down" in relay.output() or self.send(20), what=relay.output)
            self.down(relay, self.broker.LOGGED_OUT)
            self.broker.let_in_again(secret)
            self.fault("login withdrawn")
            self.arrived(relay)
            for word in (password, OLD, NEW): self.assertNotIn(word, relay.output())
        self.reckon(self.broker.LOGIN)

    def test_recreated_destination_gets_all_later_events(self):
        """A destination that is deleted and recreated gets all later events. Its earlier content is lost, as deletion
        implies."""
        with self.start() as relay:
            self.send(100)
            self.wait_all(relay)
            self.wait_let_go()
            self.earlier = self.got()
            self.broker.delete(self.name)
            self.send(200)
            for words in self.broker.GONE: wait_until(lambda: re.search(words, relay.output()), what=relay.output)
            if self.broker.GONE: self.broker.make(self.name)
            self.fault("destination deleted")
            if self.broker.BLAMES_DELETED:
                self.heal(relay)
                self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])
            else:
                self.arrived(relay)
        self.reckon(self.broker.DELETED)

    def test_only_the_oversized_event_is_buried(self):
        """An event over the broker's limit becomes a dead letter; the others arrive, and the sink counts as up."""
        self.broker.limit_size(self.name)
        self.addCleanup(self.broker.restore)
        with self.start() as relay:
            for _ in range(3):
                self.send(20)
                self.emit_many([{"type": "large", "payload": {"x": "x" * 1000000}, "headers": {"h": "y" * 60000}}])
            self.send(20)
            self.wait_all(relay)
            dead = lambda: self.ask("SELECT error FROM @dead")
            wait_until(lambda: len(dead()) == 3, what=relay.output)
            for error, in dead(): self.assertIn(self.broker.TOO_LARGE, error)
            self.assertNotIn("sink is down", relay.output())

    def test_memory_is_bounded_while_the_broker_hangs(self):
        """The memory for a broker that accepts nothing does not grow with the backlog: less than 48 MiB in all."""
        with self.start("--batch", "1000", "--timeout", "2s", url=self.url(self.broker.LARGE_WINDOW)) as relay:
            self.send(10)
            self.wait_all(relay)
            self.broker.server.freeze()
            try:
                self.sql("""WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
                            INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload)
                            SELECT 'a', 'k', i % 1000, '"' || printf('%02000d', i) || '"' FROM n""")
                self.down(relay, self.silent("2s"))
                first = relay.output().count(self.silent("2s"))
                wait_until(lambda: relay.output().count(self.silent("2s")) > first or "trying again" in relay.output(), what=relay.output)
            finally:
                self.broker.server.thaw()
            self.assertLess(peak(relay.pid), 48 << 10)


class Full:
    def test_full_destination_gets_everything_once_it_has_room(self):
        """A full destination is an outage: it gets everything, in order, once it has room again."""
        url = self.url(self.broker.fill(self.name))
        with self.start(url=url) as relay:
            self.send(200)
            self.down(relay, self.broker.FULL)
            self.broker.make_room(self.name)
            self.fault("no room")
            self.arrived(relay)
        self.reckon()


class Faults(RelayKilled, RelaysKilled, Zombies, Outages):
    """Every fault of a running broker."""
