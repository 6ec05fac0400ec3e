"""A real Kafka in front of a relay, with every kind of fault: the suite common to all brokers (broker_faults.py), and Kafka's
own. One broker for all cases; test_kafka_cluster.py has three."""
# build: plain
# quick: no
import signal
import time
import unittest

import broker_faults
import broker_kafka
from brokers import KafkaBroker
from scenario import CLAIMS, say
from support import Case, wait_until


def setUpModule():
    if why := broker_kafka.unavailable(): raise unittest.SkipTest(why)
    global broker
    broker = KafkaBroker()
    unittest.addModuleCleanup(broker.close)


class KafkaCase(broker_faults.BrokerCase):
    def make_broker(self):
        return broker

    @property
    def kafka(self):
        return self.broker.server


class Faults(broker_faults.Killed, broker_faults.Stopped, broker_faults.Faults, KafkaCase, Case):
    pass


class FaultsOnce(broker_faults.RelayKilled, KafkaCase, Case):
    """dedupe=on: the next relay finds events in the topic that a killed relay had published but not settled, and does not write
    them again."""

    QUERY, EXACTLY_ONCE = "dedupe=on", True


class Outages(KafkaCase, Case):
    def test_revoked_write_permission_loses_nothing(self):
        """A user who may no longer write to the topic: attempts are counted, and everything arrives once the right is
        restored."""
        with self.start(url=self.broker.let_in(self.name, self.path("password"))) as relay:
            self.send(100)
            self.wait_all(relay)
            self.kafka.deny(self.name)
            self.send(200)
            self.refused(relay, "the user needs WRITE and DESCRIBE on the topic")
            self.kafka.permit(self.name)
            self.fault("right withdrawn")
            self.heal(relay)
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])
        self.reckon()

    def test_quota_slows_delivery_but_loses_nothing(self):
        """A broker with a byte-rate quota gets everything at that rate, in order and once."""
        client, rate = ("clients", "outbox:out"), 20000
        self.kafka.set_for(*client, add=f"producer_byte_rate={rate}")
        self.addCleanup(self.kafka.set_for, *client, remove="producer_byte_rate")
        with self.start() as relay:
            began = time.monotonic()
            for _ in range(6): self.send(200)
            self.fault("quota")
            self.arrived(relay)
            took = time.monotonic() - began
        self.reckon()
        # Two seconds' worth passes at once, plus the events in flight by then; an event has at least 150 bytes.
        self.assertGreater(took, (self.sent - CLAIMS * self.BATCH) * 150 / rate - 2)

    def test_added_partitions_lose_nothing(self):
        """More partitions: a key may move, and everything arrives."""
        with self.start() as relay:
            self.send(100)
            self.wait_all(relay)
            self.kafka.tool("grow", self.name, 2 * self.broker.PARTITIONS)
            self.fault("partitions added")
            self.send(300)
            self.arrived(relay)

    def test_relay_past_its_lease_repeats_only_unsent_messages(self):
        """Nothing fences a relay that continues past its lease with unsent messages: they are repeated, behind newer ones of their
        keys, at most all that it held. First deliveries are in order."""
        self.send(10)
        zombie = self.start("--lease", "1s")
        self.wait_all(zombie)
        self.kafka.freeze()
        try:
            self.send(CLAIMS * self.BATCH)
            wait_until(lambda: self.sql("SELECT * FROM outbox_claim"), what=zombie.output)
            time.sleep(0.3)  # the library probably has them by now; the checks hold either way
            zombie.freeze(self.db)
        finally:
            self.kafka.thaw()
        with self.start("--lease", "1s") as heir:
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
        self.reckon(2)


class Disk(KafkaCase, Case):
    """A private broker, whose disk can be filled."""

    def make_broker(self):
        own = KafkaBroker(settings=None)
        self.addCleanup(own.close)
        self.addCleanup(self._end_children)
        return own

    def test_broker_with_a_full_disk_loses_nothing(self):
        """A broker that aborts because its disk is full, in the middle of a batch, gets everything once it is restarted with
        room."""
        with self.start() as relay:
            self.send(100)
            self.wait_all(relay)
            self.kafka.fill_disk(1000)
            wait_until(lambda: not self.kafka.running() or self.send(200), what=self.kafka.log)
            self.assertIn("File too large", self.kafka.log())
            self.down(relay, "kafka at")
            self.kafka.start()
            self.fault("disk full")
            self.arrived(relay)
        self.reckon(1)
