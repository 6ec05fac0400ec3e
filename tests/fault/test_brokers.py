"""One relay with 28 consumers at four brokers, of which one is killed and another stopped while events are in flight: everything arrives, in
order, no event is blamed, and the consumers of the other brokers get theirs meanwhile (G7). Two servers each of Redis and NATS; with
--soak Redis, NATS, RabbitMQ and Kafka, and for longer."""
# build: plain
# quick: no
import os
import time

import broker_kafka
from brokers import KafkaBroker, NatsBroker, RabbitmqBroker, RedisBroker
from checker import COMMITTED, Fact
from scenario import CLAIMS, KEYS, Numbers
from support import SOAK, Case, wait_until

BATCH = 20
EACH = 7  # consumers of a broker
# The settings of these consumers; without an order any event may be first.
WAYS = [{"order": "key", "lanes": 1}, {"order": "key", "lanes": 4}, {"order": "none", "lanes": 2}, {"order": "global", "lanes": 1},
        {"order": "key", "lanes": 2}, {"order": "key", "lanes": 1, "concurrency": 2}, {"order": "none", "lanes": 1}]
MEANWHILE = 5  # seconds within which the others get everything, on a busy machine
STOPPED = 2  # seconds that a broker stalls: longer than the relay waits for an answer


class Brokers(Numbers, Case):
    BROKERS = [RedisBroker, NatsBroker, RedisBroker, NatsBroker]

    def setUp(self):
        super().setUp()
        self.init()
        self.brokers, self.hurt, self.waits = [], {}, []
        kinds = self.BROKERS
        if SOAK: kinds = [RedisBroker, NatsBroker, RabbitmqBroker] + [KafkaBroker] * (not broker_kafka.unavailable())
        for n, kind in enumerate(kinds):
            self.brokers.append(kind())
            self.brokers[-1].name = f"{kind.__name__.removesuffix('Broker').lower()}{n}"
            self.addCleanup(self.brokers[-1].close)
        self.addCleanup(self._end_children)

    def config(self):
        """config writes the relay's file, with EACH consumers at each broker."""
        parts = []
        for broker in self.brokers:
            for n, way in enumerate(WAYS[:EACH]):
                settings = {"sink": broker.url(broker.make(f"s{n}")), **way}
                parts.append(f"[consumer {broker.name}-{n}]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
        path = self.path("outbox.conf")
        path.write_text("\n".join(parts))
        return path

    def behind(self, brokers):
        """behind returns the consumers of these brokers that have not delivered everything, with their counts."""
        done = dict(self.sql("SELECT name, delivered FROM outbox_consumer"))
        return {f"{p.name}-{n}": done.get(f"{p.name}-{n}") for p in brokers for n in range(EACH)
                if done.get(f"{p.name}-{n}", 0) < self.sent}

    def wait_served(self, brokers, timeout, relay):
        wait_until(lambda: not self.behind(brokers), timeout, lambda: (self.sent, self.behind(brokers), relay.output()[-6000:]))

    def hurt_two(self, killed, stopped, relay):
        """hurt_two takes two brokers down for a while, with events in flight before and after; the others are served
        meanwhile."""
        two = [killed, stopped]
        self.send(100)
        killed.server.kill()
        stopped.server.freeze()
        began = time.monotonic()
        self.send(60)
        self.wait_served([p for p in self.brokers if p not in two], MEANWHILE, relay)
        self.waits.append(time.monotonic() - began)
        time.sleep(max(0, STOPPED - (time.monotonic() - began)))  # events in flight reach their time limit
        killed.server.start()
        stopped.server.thaw()
        for broker in two: self.hurt[broker.name] = self.hurt.get(broker.name, 0) + 1
        self.fault(f"{killed.name[:-1]} killed")
        self.fault(f"{stopped.name[:-1]} stopped")
        self.wait_served(two, 30, relay)
        self.healed()

    def check(self):
        stored = dict(self.stored())
        told = dict.fromkeys(range(self.sent), COMMITTED)
        for n, way in enumerate(WAYS[:EACH]):
            key = {"key": lambda i: i % KEYS, "none": lambda i: None, "global": lambda i: 0}[way["order"]]
            c = self.checker(told, [(i, Fact(key(i), i, id)) for i, id in stored.items()])
            for broker in self.brokers:
                # Events in flight when the broker went down may be repeated, and those tried while it was stalled.
                c.consumer(f"{broker.name}-{n}", broker.got(f"s{n}"), bound=self.hurt[broker.name] * CLAIMS * BATCH)
            c.verdict()
        self.assertEqual(self.held(), [])

    def test_broken_brokers_delay_only_their_own_consumers(self):
        """With 28 consumers at four brokers, one killed and another stopped: all events arrive, in order, none is blamed, and
        the consumers of the others don't wait."""
        with self.relay("-c", self.config(), "--batch", BATCH, "--timeout", "1s", "--log-hold", "0s") as relay:
            self.send(50)
            self.wait_served(self.brokers, 60, relay)
            for _ in range(5 if SOAK else 1):
                for n, broker in enumerate(self.brokers): self.hurt_two(broker, self.brokers[n - 1], relay)
            self.wait_let_go()
        self.assertNotIn("failed, attempt", relay.output())
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])
        self.check()
        os.write(int(os.environ.get("OUTBOX_TAP", 1)), f"# meanwhile: the others had everything after {max(self.waits):.2f} s at most\n".encode())
