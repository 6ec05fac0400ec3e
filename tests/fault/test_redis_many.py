"""Redis with Sentinels, and a Redis Cluster, while servers are killed, stopped and restarted, and slots move: no delivered
event is lost with `replicas=1`, the order of a key is kept, and only events in flight are repeated."""
# build: plain
# quick: no
# clusters: yes
import json
import random
import threading
import time

import broker_redis
from scenario import KEYS, Numbers
from support import Case, wait_until


class Under(Numbers, Case):
    """A relay under load, in front of several servers. QUERY is the destination."""

    QUERY = "stream=k.{aggregate_id}&replicas=1&replicas-wait=300ms"

    def setUp(self):
        super().setUp()
        self.init()
        self.several = self.make()
        self.several.__enter__()
        self.addCleanup(self.several.close)

    def start(self, *more):
        return self.relay("--consumer", "out", "--timeout", "5s", "--sink", self.several.url(self.QUERY), *more)

    def got(self):
        return [(event["payload"], event["event_id"]) for key in range(KEYS) for event in self.entries(f"k.{key}")]

    def reckon(self, faults):
        """Events in flight when a server failed may be repeated: all that had been sent, at most."""
        c = super().reckon(bound=faults * self.sent)
        verdict = json.loads(self.outbox("receive", self.several.url(self.QUERY), "--check", "--json").stdout)
        self.assertEqual((verdict["events"], verdict["lost"], verdict["misordered"]), (self.sent, 0, 0))
        return c

    def during(self, harm):
        """during does harm while a separate thread sends events: servers end with the thread that started them."""
        over = threading.Event()

        def load():
            while not over.wait(0.02): self.send(40)
        thread = threading.Thread(target=load)
        thread.start()
        try:
            harm()
        finally:
            over.set()
            thread.join()
        self.send(40)


class Sentinels(Under):
    def make(self):
        return broker_redis.Sentinels()

    def entries(self, stream):
        return [json.loads(fields[1]) for _, fields in self.several.master()("XRANGE", stream, "-", "+")]

    def fail_over(self, harm, heal):
        old = self.several.master()
        harm(old)
        self.several.wait_for_another_master(old)
        heal(old)
        self.several.wait_settled()

    def test_repeatedly_killed_master_loses_nothing(self):
        """Three masters in a row are killed under load: everything arrives, in order."""
        with self.start() as relay:
            self.send(100)
            for _ in range(3):
                self.during(lambda: self.fail_over(lambda node: node.kill(), lambda node: node.start()))
                self.fault("master killed")
            self.heal(relay)
        self.reckon(3)

    def test_stalled_master_loses_nothing(self):
        """A master that is stopped and replaced, and then resumes, gets no more events."""
        with self.start() as relay:
            self.send(100)
            self.during(lambda: self.fail_over(lambda node: node.freeze(), lambda node: node.thaw()))
            self.fault("master stopped")
            self.heal(relay)
        self.reckon(2)

    def test_killed_sentinels_delay_events_but_lose_none(self):
        """Without a majority of Sentinels the master continues; once a majority is back, the master can be replaced."""
        def harm():
            for sentinel in self.several.sentinels[:2]: sentinel.kill()
            time.sleep(2)
            for sentinel in self.several.sentinels[:2]: sentinel.start()
            self.several.wait_settled()
            self.fail_over(lambda node: node.kill(), lambda node: node.start())
        with self.start() as relay:
            self.send(100)
            self.during(harm)
            self.fault("Sentinels and the master killed", 3)
            self.heal(relay)
        self.reckon(2)

    def test_killing_all_servers_and_restarting_loses_nothing(self):
        """All servers and the relay are killed and restarted with their data."""
        relay = self.start()
        self.send(300)
        self.several.kill_all()
        self.send(100)
        relay.kill()
        self.several.restart_all()
        self.several.wait_settled()
        self.fault("all killed")
        with self.start() as relay:
            self.heal(relay)
            self.wait_let_go()
        self.reckon(2)


class Cluster(Under):
    def make(self):
        return broker_redis.Cluster(3, replicas=1)

    def entries(self, stream):
        try:
            return [json.loads(fields[1]) for _, fields in self.several.entries(stream)]
        except (OSError, RuntimeError, StopIteration):
            return []  # its server is down

    def another_owner(self, stream, old):
        def find():
            try:
                now = self.several.owner(stream)
            except (OSError, RuntimeError, StopIteration):
                return None
            return now is not old and now
        return wait_until(find)

    def fail_over(self, harm, heal):
        stream = f"k.{random.randrange(KEYS)}"
        old = self.several.owner(stream)
        harm(old)
        self.another_owner(stream, old)
        heal(old)
        self.several.wait_settled()

    def test_masters_killed_in_turn_lose_nothing(self):
        """Three masters in a row are killed under load: everything arrives, in order."""
        with self.start() as relay:
            self.send(100)
            for _ in range(3):
                self.during(lambda: self.fail_over(lambda node: node.kill(), lambda node: node.start()))
                self.fault("master killed")
            self.heal(relay)
        self.reckon(3)

    def test_stalled_master_is_replaced_and_loses_nothing(self):
        """A master that is stopped and replaced, and then resumes, gets no more events."""
        with self.start("--timeout", "30s") as relay:
            self.send(100)
            start = time.monotonic()
            self.during(lambda: self.fail_over(lambda node: node.freeze(), lambda node: node.thaw()))
            self.fault("master stopped")
            self.heal(relay)
            self.assertLess(time.monotonic() - start, 25)  # long before the timeout
        self.reckon(2)

    def test_slots_moving_under_load_lose_nothing(self):
        """All slots that are in use move around for a while: everything arrives, once, and in order."""
        def harm():
            for _ in range(4):
                for key in range(KEYS):
                    owner = self.several.owner(f"k.{key}")
                    masters = self.several.masters()
                    self.several.migrate(self.several.slot(f"k.{key}"), masters[(masters.index(owner) + 1) % 3])
                    self.fault("slot moved")
        with self.start() as relay:
            self.send(100)
            self.during(harm)
            self.heal(relay)
            self.assertNotIn("sink is down", relay.output())
        self.reckon(0)

    def test_killed_master_delays_only_its_own_streams(self):
        """While the streams of one server cannot be written, those of the others continue."""
        self.without_replica(lambda node: node.kill(), lambda node: None)

    def test_stalled_master_delays_only_its_own_streams(self):
        """While the streams of one server stall, those of the others continue, long before the timeout."""
        self.without_replica(lambda node: node.freeze(), lambda node: node.thaw())

    def without_replica(self, harm, heal):
        stream = "k.0"
        owner = self.several.owner(stream)
        others = [f"k.{key}" for key in range(KEYS) if self.several.owner(f"k.{key}") is not owner]
        for node in self.several.nodes:
            if node is not owner and f":{owner.port}@" in node("CLUSTER", "NODES") and "myself,slave" in node("CLUSTER", "NODES"):
                if node("ROLE")[2] == owner.port: node.kill()
        with self.relay("--consumer", "out", "--sink", self.several.url("stream=k.{aggregate_id}")) as relay:
            self.send(100)
            self.wait_all(relay)
            harm(owner)
            self.send(200)
            expected = {n for n in range(self.sent) if f"k.{n % KEYS}" in others}
            wait_until(lambda: expected <= {n for n, _ in self.got_of(others)}, timeout=20, what=relay.output)
            self.assertNotIn("sink is down", relay.output())
            heal(owner)
            for node in self.several.nodes:
                if not node.running(): node.start()
            self.several.wait_settled()
            self.fault("master away")
            self.heal(relay)
        self.reckon(5)

    def got_of(self, streams):
        return [(event["payload"], event["event_id"]) for stream in streams for event in self.entries(stream)]

    def test_killing_all_servers_and_restarting_loses_nothing(self):
        """All servers and the relay are killed and restarted with their data."""
        relay = self.start()
        self.send(300)
        self.several.kill_all()
        self.send(100)
        relay.kill()
        self.several.restart_all()
        self.fault("all killed")
        with self.start() as relay:
            self.heal(relay)
            self.wait_let_go()
        self.reckon(2)


class OneStreamOfACluster(Cluster):
    """The same if all events go to one stream, so that a missing server makes the sink unreachable."""

    QUERY = "stream=k&replicas=1&replicas-wait=300ms"

    def got(self):
        return [(event["payload"], event["event_id"]) for event in self.entries("k")]

    def fail_over(self, harm, heal):
        old = self.several.owner("k")
        harm(old)
        self.another_owner("k", old)
        heal(old)
        self.several.wait_settled()

    test_slots_moving_under_load_lose_nothing = test_killed_master_delays_only_its_own_streams = test_stalled_master_delays_only_its_own_streams = None
