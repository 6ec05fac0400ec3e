"""A cluster of three NATS servers under load: a leader killed, every server in turn, all of them, one stalled; with one event
of a key in flight, and with exclusive=on. And the scale that docs/proof.md mentions: four relays, 16 lanes, three servers, any
one of the seven killed in turn."""
# build: plain
# clusters: yes
import time

from broker_nats import Cluster
from checker import COMMITTED, Fact
from scenario import Numbers
from support import Case, PgCase, wait_until


class OnCluster(Numbers):
    MODE, KEYS = "", 5
    most = 0  # messages that have been there at once
    of_leader = False

    def setUp(self):
        super().setUp()
        self.init()
        self.cluster = Cluster(3)
        self.enterContext(self.cluster)
        self.cluster.stream("S", subjects=["s"], num_replicas=3)

    def start(self, *more):
        return self.relay("--consumer", "out", "--sink", self.cluster.url("s", f"stream=S{self.MODE}"), "--timeout", "3s", *more)

    def got(self):
        """got reads the stream. While waiting, any replica will do, and a cluster without a leader has nothing yet. The final
        check reads the leader's messages, once they are as many as were seen before: a leader that was stopped may answer until
        it notices its successor."""
        deadline = time.monotonic() + 90
        while True:
            try:
                found = self.cluster.messages("S", self.of_leader)
            except RuntimeError:
                found = []
            complete = not self.of_leader or len(found) >= self.most
            if complete or time.monotonic() > deadline: break
            time.sleep(0.2)
        self.most = max(self.most, len(found))
        return [(int(m.data), m.headers["id"]) for m in found]

    def reckon(self, bound, dead=()):
        self.of_leader = True
        return super().reckon(bound, dead)

    def dead(self):
        return self.sql(f"SELECT count(*) FROM {self.PREFIX}dead")


class Killed(OnCluster, Case):
    def test_servers_killed_in_turn_lose_nothing(self):
        """Whichever server is killed, the remaining two continue, in order, and nothing arrives twice."""
        with self.start() as relay:
            for node in self.cluster.nodes:
                self.send(800)
                node.kill()
                self.fault("server killed")
                self.send(400)
                self.heal(relay)
                node.start()
                wait_until(lambda: all(r["current"] for r in self.replicas()), what=lambda: self.replicas())
        self.assertEqual(self.dead(), [(0,)])
        self.reckon(0)

    def replicas(self):
        return self.cluster.api("STREAM.INFO.S")["cluster"].get("replicas", [])

    def test_killing_all_servers_and_restarting_loses_nothing(self):
        """A cluster killed as a whole and restarted has everything, in order, and once."""
        with self.start() as relay:
            self.send(800)
            wait_until(lambda: self.got(), what=relay.output)
            for node in self.cluster.nodes: node.kill()
            self.send(400)
            wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
            for node in self.cluster.nodes: node.start()
            self.fault("all servers killed")
            self.heal(relay)
        self.assertEqual(self.dead(), [(0,)])
        self.reckon(0)

    def test_replaced_leader_that_resumes_stores_nothing_twice(self):
        """A stalled leader is replaced, and messages it still holds when it resumes are stored once."""
        with self.start() as relay:
            self.send(300)
            self.wait_all(relay)
            for _ in range(2):
                leader = wait_until(lambda: self.cluster.leader("S"))
                leader.freeze()
                self.send(600)
                others = [node for node in self.cluster.nodes if node is not leader]
                running, self.cluster.running = self.cluster.running, lambda: others
                self.heal_slowly(relay)
                leader.thaw()
                self.cluster.running = running
                self.fault("leader stopped")
                self.heal(relay)
        self.assertEqual(self.dead(), [(0,)])
        self.reckon(0)

    def heal_slowly(self, relay):
        """heal_slowly waits for every event while one of the servers does not answer."""
        self.wait_all(relay, timeout=90)

    def test_without_a_majority_nothing_is_stored_or_lost(self):
        """Two of three servers down is an outage: everything arrives, in order and once, when there is a majority again."""
        with self.start() as relay:
            self.send(300)
            self.wait_all(relay)
            for node in self.cluster.nodes[1:]: node.kill()
            self.send(300)
            wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
            time.sleep(2)
            for node in self.cluster.nodes[1:]: node.start()
            self.fault("majority lost")
            self.heal(relay)
        self.assertEqual(self.dead(), [(0,)])
        self.reckon(0)


class KilledOwn(Killed):
    MODE = "&exclusive=on"


class Scale(OnCluster, PgCase):
    """Four relays, 16 lanes, three servers."""

    PREFIX = "outbox."
    KEYS = 64

    def send(self, n, store=None):
        first, self.sent = self.sent, self.sent + n
        self.emit_many({"type": "a", "aggregate_type": "k", "aggregate_id": str(i % self.KEYS), "payload": i}
                       for i in range(first, first + n))

    def reckon(self, bound, dead=()):
        self.of_leader = True
        stored = [(n, Fact(n % self.KEYS, n, id)) for n, id in self.stored()]
        c = self.checker(dict.fromkeys(range(self.sent), COMMITTED), stored)
        c.consumer("out", self.got(), dead, bound)
        self.check_left(c)
        c.verdict()

    def test_killing_any_of_seven_processes_loses_nothing(self):
        """Whichever relay or server is killed: all keys in order, nothing lost, nothing twice."""
        start = lambda: self.start("--lanes", "16", "--lease", "2s")
        relays = [start() for _ in range(4)]
        self.send(500)
        self.wait_all(*relays)
        for node in self.cluster.nodes:
            self.send(600)
            node.kill()
            self.fault("server killed")
            self.send(600)
            self.heal(*relays, timeout=90)
            node.start()
        for i in range(4):
            self.send(600)
            relays[i].kill()
            self.fault("relay killed")
            self.send(600)
            relays[i] = start()
            self.heal(*relays, timeout=90)
        self.reckon(0)
