"""NATS JetStream in front of a relay, with every kind of fault: the suite common to all brokers (broker_faults.py), and NATS's
own. Nothing is stored twice within the duplicate window or among the last messages, and never with exclusive=on."""
# build: plain
# quick: no
import re
import time

import broker_faults
from broker_nats import Cluster
from brokers import NatsBroker
from scenario import Numbers
from support import Case, PgCase, wait_until


class NatsCase(broker_faults.BrokerCase):
    BROKER = NatsBroker

    @property
    def nats(self):
        return self.broker.server


class Faults(broker_faults.Crashes, broker_faults.Faults, broker_faults.Full, NatsCase, Case):
    ROUNDS = 3

    def test_missing_acknowledgement_is_requested_again(self):
        """An answer that is lost while the connection lives on costs two seconds, and the event is neither lost nor stored twice."""
        with self.broker.network() as net, self.start(url=self.url(net=net)) as relay:
            self.send(50)
            self.wait_all(relay)
            self.wait_let_go()
            lost = []

            def swallow_one(_, data):
                found = None if lost else re.search(rb'MSG _INBOX\.\S+ \S+ +\d+\r\n\{"stream":"[A-Z0-9]+", ?"seq":\d+\}\r\n', data)
                if not found: return data
                lost.append(found[0])
                return data.replace(found[0], b"")
            net.burn = swallow_one
            made = net.made
            self.send(50)
            wait_until(lambda: lost, what=relay.output)
            self.fault("answer lost")
            self.arrived(relay)
            self.wait_let_go()
            self.healed()
            if not self.QUERY:  # with exclusive=on the next answer shows it, or a new connection looks it up
                self.assertNotIn("sink is down", relay.output())
                self.assertEqual(net.made, made)
        self.reckon()

    def test_full_storage_is_an_outage(self):
        """An account without storage is an outage."""
        self.nats.kill()
        self.nats.config = "accounts { A { jetstream: { max_file: 60KB }, users: [ { user: a, password: a } ] } }\nno_auth_user: a\n"
        self.nats.start()
        self.broker.make(self.name)
        with self.start() as relay:
            self.send(400)
            self.down(relay, "resource")
            self.nats.reload(self.nats.config.replace("60KB", "60MB"))
            self.fault("storage used up")
            self.arrived(relay)
        self.reckon()


class FaultsExclusive(Faults):
    """The same with exclusive=on."""

    QUERY, EXACTLY_ONCE = "exclusive=on", True


class Zombies(broker_faults.Zombies, NatsCase, PgCase):
    pass


class ZombiesExclusive(Zombies):
    QUERY, EXACTLY_ONCE = "exclusive=on", True


class Forgetful(broker_faults.RelaysKilled, NatsCase, Case):
    """A server that immediately forgets ids: only looking back, or the chain, keeps events from being stored twice."""

    def make_broker(self):
        broker = NatsBroker(window=NatsBroker.SECOND // 10)
        self.addCleanup(broker.close)
        self.addCleanup(self._end_children)
        return broker

    def test_server_down_past_the_window_stores_nothing_twice(self):
        """A server that was away for longer than it remembers ids stores nothing twice."""
        with self.start() as relay:
            for _ in range(3):
                self.send(300)
                self.nats.kill()
                self.down(relay, self.broker.AWAY)
                time.sleep(0.3)
                self.nats.start()
                self.fault("server killed")
                self.arrived(relay)
        self.reckon()


class ForgetfulExclusive(Forgetful):
    QUERY, EXACTLY_ONCE = "exclusive=on", True


class Three(Numbers, Case):
    """A cluster of three. More of its faults are in test_nats_cluster.py."""

    def test_killed_leader_loses_and_repeats_nothing(self):
        """After a leader is killed, the remaining two continue, in order, and nothing arrives twice."""
        self.init()
        with Cluster(3) as cluster:
            cluster.stream("S", subjects=["s"], num_replicas=3)
            self.got = lambda: [(int(m.data), m.headers["id"]) for m in cluster.messages("S")]
            with self.relay("--consumer", "out", "--sink", cluster.url("s", "stream=S")) as relay:
                self.send(300)
                self.wait_all(relay)
                self.send(1500)
                cluster.leader("S").kill()
                self.fault("leader killed")
                self.send(200)
                self.heal(relay)
                self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])
            self.reckon(0)
