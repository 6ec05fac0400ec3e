"""One relay with 28 consumers at four brokers, of which one is killed and another stopped while events are in flight: everything arrives, in
order, no event is blamed, and the consumers of the other brokers get theirs meanwhile (G7). Two servers each of Redis and NATS; with
--soak Redis, NATS, RabbitMQ and Kafka, and for longer."""
# build: plain
# quick: no
import json
import os
import time

import broker_kafka
from broker_nats import Nats
from broker_rabbitmq import Rabbit
from broker_redis import Node
from checker import COMMITTED, Fact
from scenario import CLAIMS, KEYS, Numbers
from support import SOAK, Case, wait_until

BATCH = 20
EACH = 7  # consumers of a broker
# What these consumers are like; of those without an order any may be first.
WAYS = [{"order": "key", "lanes": 1}, {"order": "key", "lanes": 4}, {"order": "none", "lanes": 2}, {"order": "global", "lanes": 1},
        {"order": "key", "lanes": 2}, {"order": "key", "lanes": 1, "concurrency": 2}, {"order": "none", "lanes": 1}]
MEANWHILE = 5  # seconds within which the others have everything, on a busy machine
STOPPED = 2  # seconds that a broker stands still: longer than the relay waits for an answer


class RedisPlace:
    def __init__(self, n):
        self.name, self.server = f"redis{n}", Node().start()

    def make(self, n):
        return self.server.tcp_url(f"stream=s{n}")

    def got(self, n):
        return [(event["payload"], event["event_id"]) for _, event in self.server.entries(f"s{n}")]

    def stop(self):
        self.server.freeze()

    def go_on(self):
        self.server.thaw()


class NatsPlace(RedisPlace):
    def __init__(self, n):
        self.name, self.server = f"nats{n}", Nats().start()

    def make(self, n):
        self.server.stream(f"S{n}", subjects=[f"s{n}"])
        return self.server.url(f"s{n}", f"stream=S{n}")

    def got(self, n):
        return [(int(m.data), m.headers["id"]) for m in self.server.messages(f"S{n}")]

    def stop(self):
        self.server.stand()

    def go_on(self):
        self.server.go()


class RabbitPlace(RedisPlace):
    """Queues are classic ones: see test_rabbitmq.py. What was taken out of them is kept here."""

    def __init__(self, n):
        self.name, self.server, self.taken = f"rabbit{n}", Rabbit().start(), {}

    def make(self, n):
        self.server.declare(f"x{n}", f"q{n}", x_queue_type="classic")
        return self.server.url(f"x{n}")

    def got(self, n):
        taken = self.taken.setdefault(n, [])
        taken += [(json.loads(body), properties.message_id) for _, properties, body in self.server.take(f"q{n}")]
        return taken

    def stop(self):
        self.server.pause()

    def go_on(self):
        self.server.cont()


class KafkaPlace(RedisPlace):
    """A broker that is killed takes seconds to start."""

    def __init__(self, n):
        self.name, self.server = f"kafka{n}", broker_kafka.Kafka().start()

    def make(self, n):
        self.server.create(f"t{n}")
        return f"kafka://{self.server.hosts}/t{n}"

    def got(self, n):
        return [(m.json, m.headers["id"]) for m in self.server.read(f"t{n}")]


class Brokers(Numbers, Case):
    PLACES = [RedisPlace, NatsPlace, RedisPlace, NatsPlace]

    def setUp(self):
        super().setUp()
        self.init()
        self.places, self.hurt, self.waits = [], {}, []
        kinds = self.PLACES
        if SOAK: kinds = [RedisPlace, NatsPlace, RabbitPlace] + [KafkaPlace] * (not broker_kafka.unavailable())
        for n, kind in enumerate(kinds):
            self.places.append(kind(n))
            self.addCleanup(self.places[-1].server.close)
        self.addCleanup(self._end_children)

    def config(self):
        """config writes the relay's file, with EACH consumers at each place."""
        parts = []
        for place in self.places:
            for n, way in enumerate(WAYS[:EACH]):
                settings = {"sink": place.make(n), **way}
                parts.append(f"[consumer {place.name}-{n}]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
        path = self.path("outbox.conf")
        path.write_text("\n".join(parts))
        return path

    def behind(self, places):
        """behind gives the consumers of these places that have not delivered everything, with what they have."""
        done = dict(self.sql("SELECT name, delivered FROM outbox_consumer"))
        return {f"{p.name}-{n}": done.get(f"{p.name}-{n}") for p in places for n in range(EACH)
                if done.get(f"{p.name}-{n}", 0) < self.sent}

    def wait_served(self, places, timeout, relay):
        wait_until(lambda: not self.behind(places), timeout, lambda: (self.sent, self.behind(places), relay.output()[-6000:]))

    def hurt_two(self, killed, stopped, relay):
        """hurt_two: two brokers are gone for a while, with events in flight before and after; the others are served meanwhile."""
        two = [killed, stopped]
        self.send(100)
        killed.server.kill()
        stopped.stop()
        began = time.monotonic()
        self.send(60)
        self.wait_served([p for p in self.places if p not in two], MEANWHILE, relay)
        self.waits.append(time.monotonic() - began)
        time.sleep(max(0, STOPPED - (time.monotonic() - began)))  # what is in flight runs into its time limit
        killed.server.start()
        stopped.go_on()
        for place in two: self.hurt[place.name] = self.hurt.get(place.name, 0) + 1
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
            for place in self.places:
                # What was in flight when the broker went may come again, and what was tried while it stood still.
                c.consumer(f"{place.name}-{n}", place.got(n), bound=self.hurt[place.name] * CLAIMS * BATCH)
            c.verdict()
        self.assertEqual(self.held(), [])

    def test_brokers_killed_and_stopped_delay_only_their_own_consumers(self):
        """With 28 consumers at four brokers, one of which is killed and another stopped: all events arrive, in order, none is blamed, and the
        consumers of the others don't wait."""
        with self.relay("-c", self.config(), "--batch", BATCH, "--timeout", "1s", "--log-hold", "0s") as relay:
            self.send(50)
            self.wait_served(self.places, 60, relay)
            for _ in range(5 if SOAK else 1):
                for n, place in enumerate(self.places): self.hurt_two(place, self.places[n - 1], relay)
            self.wait_let_go()
        self.assertNotIn("failed, attempt", relay.output())
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])
        self.check()
        os.write(int(os.environ.get("OUTBOX_TAP", 1)), f"# meanwhile: the others had everything after {max(self.waits):.2f} s at most\n".encode())
