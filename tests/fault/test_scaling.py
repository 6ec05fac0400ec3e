"""Past one machine: four relays share sixteen lanes of a consumer on PostgreSQL, in front of a Redis Cluster of three masters with a
replica each. Whichever of these seven is killed, all keys stay in order, and nothing is lost."""
# build: plain
# quick: no
# clusters: yes
import collections
import json
import os
import threading
import time

import broker_redis
from checker import COMMITTED, Fact
from scenario import Numbers
from support import PgCase, wait_until

RELAYS, LANES, KEYS = 4, 16, 64
QUERY = "stream=k.{aggregate_id}&replicas=1&replicas-wait=300ms"


class Scaling(Numbers, PgCase):
    PREFIX = "outbox."

    def setUp(self):
        super().setUp()
        self.init()
        self.cluster = broker_redis.Cluster(3, replicas=1).__enter__()
        self.addCleanup(self.cluster.close)

    def send(self, n):
        first, self.sent = self.sent, self.sent + n
        self.emit_many({"type": "a", "aggregate_type": "k", "aggregate_id": str(i % KEYS), "payload": i} for i in range(first, self.sent))

    def start(self):
        return self.relay("--consumer", "out", "--lanes", LANES, "--lease", "2s", "--batch", "20", "--sink", self.cluster.url(QUERY))

    def got(self):
        return [(event["payload"], event["event_id"]) for key in range(KEYS) for event in self.entries(f"k.{key}")]

    def entries(self, stream):
        try:
            return [json.loads(fields[1]) for _, fields in self.cluster.entries(stream)]
        except (OSError, RuntimeError, StopIteration):
            return []  # its server is down

    def spread(self, seconds):
        """spread counts, over a while, in how many lanes each worker held a claim."""
        seen, end = collections.defaultdict(set), time.monotonic() + seconds
        while time.monotonic() < end:
            for owner, lane in self.sql("SELECT owner, lane FROM outbox.claim WHERE lane >= 0"): seen[owner].add(lane)
        return {owner: len(lanes) for owner, lanes in seen.items()}

    def test_killing_any_of_seven_processes_loses_nothing(self):
        """Four relays and three masters, each killed in turn under load: everything arrives, in order per key."""
        over = threading.Event()

        def load():
            while not over.wait(0.01): self.send(64)
        relays = [self.start() for _ in range(RELAYS)]
        thread = threading.Thread(target=load)
        thread.start()
        try:
            for i in range(RELAYS):
                relays[i].kill()
                self.fault("relay killed")
                time.sleep(0.5)
                relays[i] = self.start()
            for i in range(3):
                stream = f"k.{7 * i}"
                old = self.cluster.owner(stream)
                old.kill()
                wait_until(lambda: self.moved(stream, old))
                old.start()
                self.cluster.wait_settled()
                self.fault("master killed")
            spread = self.spread(2)
        finally:
            over.set()
            thread.join()
        self.heal(*relays)
        for relay in relays: relay.stop()
        self.reckon(bound=7 * self.sent)
        os.write(int(os.environ.get("OUTBOX_TAP", 1)), f"# lanes each relay had within two seconds: {sorted(spread.values())}\n".encode())
        self.assertEqual(len(spread), RELAYS, spread)
        verdict = json.loads(self.outbox("receive", self.cluster.url(QUERY), "--check", "--consumer", "out", "--json").stdout)
        self.assertEqual((verdict["events"], verdict["lost"], verdict["misordered"]), (self.sent, 0, 0))

    def moved(self, stream, old):
        try:
            return self.cluster.owner(stream) is not old
        except (OSError, RuntimeError, StopIteration):
            return False

    def reckon(self, bound):
        stored = [(n, Fact(n % KEYS, n, id)) for n, id in self.stored()]
        c = self.checker(dict.fromkeys(range(self.sent), COMMITTED), stored)
        c.consumer("out", self.got(), (), bound)
        self.check_left(c)
        c.verdict()
