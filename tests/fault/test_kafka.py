"""A real Kafka in all its bad moods, in front of a relay: nothing lost, the order of a key kept, no attempt counted against an
event for what a broker does, and what comes twice within its bound."""
# build: plain
# quick: no
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import threading
import time
import unittest

import broker_kafka
from net import Net
from scenario import CLAIMS, Numbers, peak, say
from support import Case, PgCase, on_each_store, wait_until

BATCH = 100


class Detour(Net):
    """A network in front of a broker's listener that says it is here."""

    def __init__(self, broker):
        super().__init__(("127.0.0.1", broker.inner_port))
        self.at = broker.proxy_port

    def __enter__(self):
        super().__enter__()
        self.listener.close()
        self.listener = socket.create_server(("127.0.0.1", self.at), reuse_port=False)
        self.port = self.at

        threading.Thread(target=self.accept, daemon=True).start()
        return self


def setUpModule():
    if why := broker_kafka.unavailable(): raise unittest.SkipTest(why)
    global kafka, names
    # A login is good for a moment, as it is where tokens or passwords expire; quotas hold after two seconds.
    settings = {**broker_kafka.RULES, "connections.max.reauth.ms": 2000, "quota.window.num": 2}
    kafka = broker_kafka.Kafka(settings).start()
    names = (f"f{n}" for n in itertools.count(1))
    unittest.addModuleCleanup(kafka.close)


class Mood(Numbers):
    """A relay in front of a topic of its own, with three partitions."""

    PARTITIONS = 3

    def setUp(self):
        super().setUp()
        self.init()
        self.topic = self.broker.create(next(names), self.PARTITIONS)

    @property
    def broker(self):
        return kafka

    @property
    def PREFIX(self):
        return "outbox." if isinstance(self, PgCase) else "outbox_"

    def url(self, hosts=None, query=""):
        return f"kafka://{hosts or self.broker.hosts}/{self.topic}?{query}"

    def start(self, url=None, *more):
        return self.relay("--log-level", "debug", "--consumer", "out", "--sink", url or self.url(), "--batch", BATCH, *more)

    def got(self):
        try:
            found = self.broker.read(self.topic)
        except RuntimeError:  # it is away
            return []
        return [(m.json, m.headers["id"]) for m in found]

    def missing(self):
        got = {n for n, _ in self.got()}
        return sorted(set(range(self.sent)) - got)

    def arrived(self, relay):
        """arrived: all is there, and nothing of this was an event's fault: no attempt was counted, nothing buried."""
        self.heal(relay)
        self.assertNotIn("attempt 1 of", relay.output())
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])

    def down(self, relay, words):
        wait_until(lambda: "sink is down" in relay.output() and words in relay.output(), what=relay.output)

    def refused(self, relay, words):
        wait_until(lambda: re.search(f"failed, attempt 1 of .*{words}", relay.output()), what=relay.output)


@on_each_store
class Broker(Mood):
    def test_killed_and_started_again_with_its_data(self):
        """A broker that is killed and comes back gets everything, in order."""
        with self.start() as relay:
            self.send(300)
            kafka.kill()
            self.send(300)
            self.down(relay, "kafka at")
            kafka.start()
            self.fault("broker killed")
            self.arrived(relay)
        # What had been sent and was not confirmed came again; the sink went through it once per kill, at most.
        self.reckon(bound=CLAIMS * BATCH)


class Moods(Mood, Case):
    def test_stopped_by_a_signal_and_continued(self):
        """A broker that stands still for longer than the timeout gets everything, in order, once it goes on."""
        with self.start(None, "--timeout", "2s") as relay:
            self.send(100)
            self.wait_all(relay)
            kafka.freeze()
            try:
                self.send(300)
                self.down(relay, "has not confirmed for 2000 ms")
            finally:
                kafka.thaw()
            self.fault("broker stopped")
            self.arrived(relay)
        self.reckon(bound=relay.output().count("has not confirmed") * CLAIMS * BATCH)

    def test_connections_cut_at_any_byte(self):
        """Connections that break off, in the middle of a request or of an answer, repeat and lose nothing."""
        with Detour(kafka) as net, self.start(self.url(kafka.proxy_hosts)) as relay:
            self.send(50)
            self.wait_all(relay)
            for n in (0, 1, 3, 7, 30, 60, 200):
                net.fuse(n)
                self.send(100)
                # How many bytes answers have depends on how events go together.
                wait_until(lambda: net.left is None or self.send(10), what=relay.output)
                self.fault("connection cut")
                self.arrived(relay)
            for _ in range(5):
                self.send(100)
                net.cut()
                self.fault("connection cut")
            self.arrived(relay)
        # An idempotent producer sends again what was not confirmed, and the broker knows what it has. What our own deadline ended,
        # on a busy machine, or a second without any broker, may come again.
        self.reckon(bound=relay.output().count("sink is down") * CLAIMS * BATCH)

    def test_half_open_network(self):
        """Answers that vanish while connections stay open: everything arrives once the network is whole."""
        with Detour(kafka) as net, self.start(self.url(kafka.proxy_hosts), "--timeout", "3s") as relay:
            self.send(50)
            self.wait_all(relay)
            net.swallow(down=True)
            self.send(200)
            self.down(relay, "has not confirmed for 3000 ms")
            net.heal()
            net.cut()
            self.fault("network half open")
            self.arrived(relay)
        self.reckon(bound=relay.output().count("has not confirmed") * CLAIMS * BATCH)

    def test_topic_deleted_and_made_again(self):
        """A topic that is deleted uses up attempts of its events, and no more; made again, it gets everything from then on."""
        with self.start() as relay:
            self.send(100)
            self.wait_all(relay)
            before = self.got()
            kafka.delete(self.topic)
            self.send(200)
            self.refused(relay, f"topic {self.topic}: ")
            kafka.create(self.topic, self.PARTITIONS)
            self.fault("topic deleted")
            wait_until(lambda: {n for n, _ in before + self.got()} == set(range(self.sent)), what=relay.output)
            self.healed()
            after = self.got()
        self.got = lambda: before + after
        self.reckon(bound=CLAIMS * BATCH)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    def logged_in(self):
        """logged_in is the URL of somebody who has to log in."""
        secret = self.path("password")
        secret.write_text(broker_kafka.PASSWORD + "\n")
        secret.chmod(0o600)
        return self.url(f"{broker_kafka.USER}@{kafka.sasl_hosts}", f"password-file={secret}")

    def test_right_to_write_withdrawn_and_given_back(self):
        """A user who may not write to the topic any more: attempts are counted, and everything arrives once the right is back."""
        with self.start(self.logged_in()) as relay:
            self.send(100)
            self.wait_all(relay)
            kafka.deny(self.topic)
            self.send(200)
            self.refused(relay, "the user needs the rights WRITE and DESCRIBE on the topic")
            kafka.permit(self.topic)
            self.fault("right withdrawn")
            self.heal(relay)
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])
        self.reckon(bound=0)

    def test_login_withdrawn_and_given_back(self):
        """A user who may not log in any more is an outage; given another password, everything arrives with the next login."""
        user, secret = ("users", broker_kafka.USER), self.path("password")
        self.addCleanup(kafka.set_for, *user, add=f"SCRAM-SHA-512=[password={broker_kafka.PASSWORD}]")
        with self.start(self.logged_in()) as relay:
            self.send(100)
            self.wait_all(relay)
            kafka.set_for(*user, add="SCRAM-SHA-512=[password=another]")
            wait_until(lambda: self.send(10) or "sink is down" in relay.output(), what=relay.output)
            self.down(relay, "uthentication")
            secret.write_text("another\n")
            self.fault("password changed")
            self.arrived(relay)
            self.assertNotIn(broker_kafka.PASSWORD, relay.output())
        self.reckon(bound=0)

    def test_quota(self):
        """A broker that holds a client to some bytes a second gets everything at that pace, in order, and once."""
        client, rate = ("clients", "outbox:out"), 20000
        kafka.set_for(*client, add=f"producer_byte_rate={rate}")
        self.addCleanup(kafka.set_for, *client, remove="producer_byte_rate")
        with self.start() as relay:
            began = time.monotonic()
            for _ in range(6): self.send(200)
            self.fault("quota")
            self.arrived(relay)
            took = time.monotonic() - began
        self.reckon(bound=0)
        # Two seconds' worth is let through at once, and what was on its way by then; an event is 150 bytes at least.
        self.assertGreater(took, (self.sent - CLAIMS * BATCH) * 150 / rate - 2)

    def test_partitions_added(self):
        """More partitions: a key may move, and everything arrives."""
        with self.start() as relay:
            self.send(100)
            self.wait_all(relay)
            kafka.tool("grow", self.topic, 2 * self.PARTITIONS)
            self.fault("partitions added")
            self.send(300)
            self.arrived(relay)

    def test_relay_killed_between_publishing_and_settling(self):
        """What a killed relay had published and not settled comes again, at most all that it held, and in order."""
        self.die_unsettled(self.url())
        self.reckon(bound=CLAIMS * BATCH)
        self.assertGreater(len(self.got()), self.sent)

    def test_dedupe_writes_nothing_twice_that_a_killed_relay_had_published(self):
        """With dedupe=on, what a killed relay had published and not settled is found in the topic, and not written again."""
        self.die_unsettled(self.url(query="dedupe=on"))
        self.reckon(bound=0)

    def die_unsettled(self, url):
        """die_unsettled has a relay publish what it cannot settle, because the database is locked, and kills it."""
        self.send(10)
        relay = self.start(url, "--lease", "1s", "--busy-timeout", "30s")
        self.wait_all(relay)
        wait_until(lambda: self.sql("SELECT count(*) FROM outbox_claim") == [(0,)])
        with contextlib.closing(sqlite3.connect(self.db, timeout=30, isolation_level=None)) as db:
            kafka.freeze()
            try:
                self.send(BATCH // 2)
                wait_until(lambda: self.sql("SELECT count(*) FROM outbox_claim") != [(0,)], what=relay.output)
                db.execute("BEGIN IMMEDIATE")  # it holds a claim, and cannot settle it
            finally:
                kafka.thaw()
            settled = db.execute("SELECT delivered FROM outbox_consumer").fetchone()[0]
            wait_until(lambda: len(self.got()) > settled, what=relay.output)
            relay.kill()
            self.fault("relay killed")
            db.execute("ROLLBACK")
        with self.start(url, "--lease", "1s") as relay: self.settled(relay)
        self.healed()

    def settled(self, relay):
        """settled: nothing is claimed or parked any more."""
        rows = lambda: [self.sql(f"SELECT count(*) FROM outbox_{name}")[0][0] for name in ("claim", "parked")]
        behind = lambda: self.json("status")
        wait_until(lambda: rows() == [0, 0] and '"behind": 0' in json.dumps(behind()), what=relay.output)

    def test_zombie_past_its_lease(self):
        """A relay that stands still past its lease, and goes on after another has taken over, loses nothing; what it still
        had comes again, at most all that it held."""
        self.send(3000)
        zombie = self.start(None, "--lease", "500ms")
        wait_until(self.got)
        zombie.freeze(self.db)
        self.fault("relay stopped")
        with self.start(None, "--lease", "500ms") as heir:
            self.wait_all(heir)
            zombie.signal(signal.SIGCONT)
            self.send(100)
            self.heal(heir)
            zombie.stop()
        self.reckon(bound=2 * CLAIMS * BATCH)

    def test_zombie_that_still_had_to_send(self):
        """Nothing fences a relay that goes on after its lease with messages in its hands: they come again, behind newer ones of their
        keys, at most all that it held. What comes first is in order."""
        self.send(10)
        zombie = self.start(None, "--lease", "1s")
        self.wait_all(zombie)
        kafka.freeze()
        try:
            self.send(CLAIMS * BATCH)
            wait_until(lambda: self.sql("SELECT * FROM outbox_claim"), what=zombie.output)
            time.sleep(0.3)  # most likely they are in the hands of the library now; what follows is true in any case
            zombie.freeze(self.db)
        finally:
            kafka.thaw()
        with self.start(None, "--lease", "1s") as heir:
            self.wait_all(heir)
            self.send(100)
            self.wait_all(heir)
            before = len(self.got())
            zombie.signal(signal.SIGCONT)
            self.fault("relay stopped past its lease")
            wait_until(lambda: "is lost" in zombie.output(), what=zombie.output)
            self.send(100)
            self.heal(heir)
            zombie.stop()
        late = len(self.got()) - before - 100
        say(f"# the zombie wrote {late} messages that were there; {before - self.sent + 100} had come twice before")
        self.reckon(bound=2 * CLAIMS * BATCH)

    def test_memory_is_bounded_while_the_broker_stands_still(self):
        """A broker that takes nothing costs no more memory the more there is for it: less than 48 MiB in all."""
        self.sql("""WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
                    INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload)
                    SELECT 'a', 'k', i % 1000, '"' || printf('%02000d', i) || '"' FROM n""")
        with self.start(None, "--batch", "1000", "--timeout", "2s") as relay:
            wait_until(lambda: int(kafka.tool("count", self.topic)) > 2000, what=relay.output)
            kafka.freeze()
            try:
                self.down(relay, "has not confirmed for 2000 ms")
            finally:
                kafka.thaw()
            self.assertLess(peak(relay.pid), 48 << 10)


class Disk(Mood, Case):
    """A broker of its own, whose disk can be filled."""

    broker = None

    def setUp(self):
        self.broker = broker_kafka.Kafka().start()
        self.addCleanup(self.broker.close)
        super().setUp()

    def test_disk_is_full(self):
        """A broker that ends because its disk is full, in the middle of a batch, gets everything once it is started with room."""
        with self.start() as relay:
            self.send(100)
            self.wait_all(relay)
            self.broker.fill_disk(1000)
            wait_until(lambda: not self.broker.running() or self.send(200), what=self.broker.log)
            self.assertIn("File too large", self.broker.log())
            self.down(relay, "kafka at")
            self.broker.start()
            self.fault("disk full")
            self.arrived(relay)
        self.reckon(bound=CLAIMS * BATCH)
