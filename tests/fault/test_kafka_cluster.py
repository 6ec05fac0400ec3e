"""A Kafka cluster of three brokers with three replicas, two of which must confirm. Whichever of them fails under load: nothing
is lost, the order of a key is kept, no attempt is counted against an event."""
# build: plain
# clusters: yes
import itertools
import subprocess
import threading
import time
import unittest

import broker_kafka
from scenario import CLAIMS, Numbers
from support import Case, wait_until

BATCH = 200


def setUpModule():
    if why := broker_kafka.unavailable(): raise unittest.SkipTest(why)
    global kafka, names
    kafka = broker_kafka.Cluster(3).start()
    names = (f"c{n}" for n in itertools.count(1))
    unittest.addModuleCleanup(kafka.close)


class Brokers(Numbers, Case):
    def setUp(self):
        super().setUp()
        self.init()
        self.topic = kafka.create(next(names), 6, 3, min_insync_replicas=2)

    def start(self, *more, query=""):
        return self.relay("--log-level", "debug", "--consumer", "out", "--sink", f"kafka://{kafka.hosts}/{self.topic}?{query}",
                          "--batch", BATCH, *more)

    def got(self):
        try:
            found = kafka.read(self.topic)
        except (RuntimeError, subprocess.TimeoutExpired):
            return []
        return [(m.json, m.headers["id"]) for m in found]

    def load(self, until):
        """load emits until the function `until` has ended, and for a moment more. `until` starts brokers, which end with the
        thread that started them, so it runs in this thread."""
        over = threading.Event()
        thread = threading.Thread(target=self.send_on, args=(over,))
        thread.start()
        try:
            until()
        finally:
            over.set()
            thread.join()

    def send_on(self, over):
        while not over.wait(0.05): self.send(100)
        self.send(100)

    def arrived(self, relay):
        self.heal(relay, timeout=120)
        self.assertNotIn("attempt 1 of", relay.output())
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    def each_killed(self):
        """each_killed kills one broker after the other, and starts it again: leaders, followers, and the controller."""
        for broker in kafka.brokers:
            broker.popen.kill()
            broker.popen.wait()
            time.sleep(1)
            broker.start()
            kafka.wait([broker])
            self.fault("broker killed")
            time.sleep(2)

    def test_brokers_killed_in_turn_lose_nothing(self):
        """Any broker may be killed under load, leader or controller: everything arrives once, in order."""
        with self.start() as relay:
            self.send(500)
            self.wait_all(relay)
            self.load(self.each_killed)
            self.arrived(relay)
        # Idempotence covers a new leader; only a producer that gave up repeats messages in flight.
        self.reckon(bound=relay.output().count("sink is down") * CLAIMS * BATCH)

    def test_killing_all_servers_and_restarting_loses_nothing(self):
        """All brokers killed at once, and started again with their data: everything arrives, in order."""
        with self.start() as relay:
            self.send(1000)
            for broker in kafka.brokers: broker.popen.kill()
            for broker in kafka.brokers: broker.popen.wait()
            self.send(300)
            wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
            for broker in kafka.brokers: broker.start()
            kafka.wait()
            self.fault("all brokers killed")
            self.arrived(relay)
        self.reckon(bound=relay.output().count("sink is down") * CLAIMS * BATCH)

    def test_stalled_leader_that_resumes_loses_nothing(self):
        """A broker that stalls under load and resumes as a former leader: everything arrives, in order."""
        with self.start("--timeout", "20s") as relay:
            self.send(500)
            self.wait_all(relay)
            def stop_one():
                kafka.brokers[0].freeze()
                time.sleep(6)
                kafka.brokers[0].thaw()
                self.fault("broker stopped")
            self.load(stop_one)
            self.arrived(relay)
        self.reckon(bound=relay.output().count("sink is down") * CLAIMS * BATCH)

    def test_one_broker_with_a_full_disk_loses_nothing(self):
        """A broker with a full disk aborts in the middle of a batch; the others continue, and everything arrives, in order."""
        with self.start() as relay:
            self.send(500)
            self.wait_all(relay)
            victim = kafka.brokers[0]
            def fill():
                victim.fill_disk(5000)
                wait_until(lambda: not victim.running(), what=victim.log)
                self.assertIn("File too large", victim.log())
                time.sleep(3)
                victim.start()
                kafka.wait([victim])
                self.fault("disk full")
            self.load(fill)
            self.arrived(relay)
        self.reckon(bound=relay.output().count("sink is down") * CLAIMS * BATCH)

    def test_nothing_is_confirmed_with_too_few_replicas(self):
        """With one broker of three left, nothing is confirmed; with two, everything arrives, once."""
        with self.start("--timeout", "5s") as relay:
            self.send(100)
            self.wait_all(relay)
            gone = kafka.brokers[1:]
            for broker in gone:
                broker.popen.kill()
                broker.popen.wait()
            self.send(200)
            wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
            for broker in gone: broker.start()
            kafka.wait(gone)
            self.fault("two of three killed")
            self.arrived(relay)
        self.reckon(bound=relay.output().count("sink is down") * CLAIMS * BATCH)

    def test_topic_with_one_replica_causes_a_warning(self):
        topic = kafka.create(next(names), 1, 1)
        self.send(1)
        with self.relay("--consumer", "out", "--sink", f"kafka://{kafka.hosts}/{topic}") as relay:
            wait_until(lambda: "a single replica" in relay.output() or self.send(1), what=relay.output)

    def test_leader_killed_while_relays_restart_loses_nothing(self):
        """Four relays with 16 lanes, brokers and relays killed in turn: all keys in order, nothing lost."""
        start = lambda: self.start("--lanes", "16", "--lease", "2s")
        relays = [start() for _ in range(4)]
        def storm():
            for n in range(3):
                broker = kafka.brokers[n]
                broker.popen.kill()
                broker.popen.wait()
                relays[n].kill()
                self.fault("broker killed")
                self.fault("relay killed")
                time.sleep(1)
                broker.start()
                kafka.wait([broker])
                relays[n] = start()
                time.sleep(2)
        self.load(storm)
        self.heal(*relays, timeout=120)
        for relay in relays: relay.stop()
        downs = sum(child.output().count("sink is down") for child in self.children)
        self.reckon(bound=(3 + downs) * CLAIMS * BATCH)
