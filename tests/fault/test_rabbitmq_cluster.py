"""Three RabbitMQ nodes, a quorum queue, and a relay that knows all three: whichever is killed, stopped or cut off, nothing is lost, the
order of a key is kept, and attempts are counted against no event."""
# build: plain
# clusters: yes
import contextlib
import json
import signal
import time

import pika
from broker_rabbitmq import Cluster
from scenario import Numbers
from support import Case, wait_until


class Clustered(Numbers, Case):
    cluster = None  # one for the whole file

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if Clustered.cluster is None:
            Clustered.cluster = Cluster(3)
            Clustered.cluster.__enter__()
            cls.addClassCleanup(Clustered.cluster.__exit__)

    def setUp(self):
        super().setUp()
        self.init()
        self.name = self.id().rpartition(".")[2][:60]
        for node in self.cluster.nodes:
            if not node.running(): node.start()
        self.cluster.nodes[0].declare(self.name, self.name)
        wait_until(lambda: self.whole(), what=self.status)
        self.taken = []

    def start(self, *more):
        url = self.cluster.url(self.name, "heartbeat=4s")
        return self.relay("--log-level", "debug", "--consumer", "out", "--sink", url, "--timeout", "5s", *more)

    def alive(self):
        return next(node for node in self.cluster.nodes if node.running())

    def status(self):
        return self.alive().eval(f'rabbit_quorum_queue:status(<<"/">>, <<"{self.name}">>).')

    def whole(self):
        """whole tells whether each node has the queue and is an active member."""
        said = self.status()
        return (said.count(" leader}"), said.count(" follower}")) == (1, 2)

    def leader(self):
        """leader is the node that leads the queue."""
        said = self.alive().eval(f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{self.name}">>)), '
                                 'amqqueue:get_pid(Q).')
        return next((node for node in self.cluster.nodes if node.name in said), self.alive())

    def got(self):
        """got reads the available messages; a queue without its leader returns none for a while."""
        for node in self.cluster.nodes:
            if not node.running(): continue
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                # Messages are acknowledged after they are recorded, so that a lost answer loses none.
                with node.channel() as ch:
                    while True:
                        method, properties, body = ch.basic_get(self.name)
                        if method is None: break
                        self.taken.append((json.loads(body), properties.message_id))
                        ch.basic_ack(method.delivery_tag)
                break
        return self.taken

    def arrived(self, relay):
        self.heal(relay, timeout=150)
        self.assertNotIn("attempt 1 of", relay.output())
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])

    def reckon(self, faults):
        return super().reckon(bound=faults * self.sent)

    def test_queue_leader_killed_under_load_loses_nothing(self):
        """The node that leads the queue is killed midway: the others continue, and everything arrives, in order."""
        with self.start() as relay:
            self.send(500)
            wait_until(lambda: len(self.got()) > 100, what=relay.output)
            victim = self.leader()
            victim.kill()
            self.fault("leader killed")
            self.send(500)
            self.arrived(relay)
            victim.start()
        self.reckon(2)

    def test_nodes_killed_in_turn_lose_nothing(self):
        """One node after the other is killed and restarted under load: everything arrives, in order."""
        with self.start() as relay:
            for node in self.cluster.nodes:
                self.send(200)
                node.kill()
                self.send(200)
                time.sleep(1)
                node.start()
                self.fault("node killed")
            self.arrived(relay)
        self.reckon(4)

    def test_killing_all_servers_and_restarting_loses_nothing(self):
        """All nodes are killed at once, and restarted with their data: everything arrives, in order."""
        with self.start() as relay:
            self.send(500)
            wait_until(lambda: len(self.got()) > 100, what=relay.output)
            self.cluster.kill_all()
            self.send(200)
            wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
            # A node waits for those that stopped after it, so all are started before any is queried.
            self.cluster.start_all()
            self.fault("all killed")
            self.arrived(relay)
        self.reckon(2)

    def test_without_a_majority_nothing_is_confirmed_or_lost(self):
        """With one node of three left nothing is confirmed; when the others are back, everything arrives, in order."""
        with self.start() as relay:
            self.send(100)
            self.wait_all(relay)
            gone = self.cluster.nodes[1:]
            for node in gone: node.freeze()
            for node in gone: node.kill()
            self.send(200)
            wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
            for node in gone: node.launch()
            for node in gone: node.start()
            self.fault("two of three killed")
            self.arrived(relay)
        self.reckon(2)

    def test_relay_leaves_a_stalled_node_for_another(self):
        """The node of the relay's connection stalls: the relay moves to another, and everything arrives, in order."""
        with self.start() as relay:
            self.send(100)
            self.wait_all(relay)
            victim = self.cluster.nodes[0]
            victim.freeze()
            try:
                self.send(300)
                wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
            finally:
                victim.thaw()
            self.fault("node stopped")
            self.arrived(relay)
        self.reckon(2)

    def test_relays_killed_while_a_node_is_down_lose_nothing(self):
        """Two relays share four lanes; a node and then a relay are killed: the others take over, in order."""
        args = ("--lanes", "4", "--lease", "1s")
        with self.start(*args) as stays:
            other = self.start(*args)
            self.send(300)
            self.cluster.nodes[1].kill()
            self.fault("node killed")
            self.send(300)
            other.signal(signal.SIGKILL)
            self.fault("relay killed")
            self.arrived(stays)
            self.cluster.nodes[1].start()
        self.reckon(3)
