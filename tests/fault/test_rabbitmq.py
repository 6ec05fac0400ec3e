"""RabbitMQ in all its bad moods, in front of a relay: nothing lost, the order of a key kept, attempts burnt only where an event is
at fault, and what comes twice has the same id. One node for all cases; test_rabbitmq_cluster.py has three."""
# build: plain
# quick: no
import json
import re
import signal
import time

from broker_rabbitmq import Rabbit
from net import Net
from scenario import Numbers
from support import Case, wait_until


class Mood(Numbers):
    """A relay in front of the broker, with an exchange and a quorum queue of its own, whose messages are taken out as they come."""

    rabbit = None  # one for the whole file

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if Mood.rabbit is None: Mood.rabbit = Rabbit().start()

    def setUp(self):
        super().setUp()
        self.init()
        self.name = self.id().rpartition(".")[2][:60]
        self.rabbit.declare(self.name, self.name)
        self.taken = []

    def url(self, query="", port=None):
        return f"amqp://127.0.0.1:{port or self.rabbit.port}/%2F/{self.name}?{query}"

    def start(self, url=None, *more):
        return self.relay("--log-level", "debug", "--consumer", "out", "--sink", url or self.url(), *more)

    def got(self):
        self.taken += [(json.loads(body), properties.message_id) for _, properties, body in self.rabbit.take(self.name)]
        return self.taken

    def arrived(self, relay, timeout=60):
        """arrived: all is there, and nothing of this was an event's fault: no attempt was counted, nothing buried."""
        self.heal(relay, timeout=timeout)
        self.assertNotIn("attempt 1 of", relay.output())
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])

    def reckon(self, faults=0, dead=()):
        """What was on its way when the connection broke may come twice: all that had been sent, at most."""
        return super().reckon(bound=faults * self.sent, dead=dead)

    def down(self, relay, words):
        wait_until(lambda: "sink is down" in relay.output() and words in relay.output(), what=relay.output)


class Crashes(Mood, Case):
    """What breaks off, wherever it does: everything arrives, in order, and is recorded."""

    def test_killed_and_started_again(self):
        """A broker that is killed and comes back gets everything, in order.

        With a classic queue: RabbitMQ 3.10 may lose all of a quorum queue's log if a node that is alone is killed within moments of
        its making, and then has no leader ever after."""
        self.rabbit.delete(self.name)
        self.rabbit.declare(self.name, self.name, x_queue_type="classic")
        with self.start() as relay:
            self.send(200)
            self.rabbit.kill()
            self.send(200)
            self.down(relay, "rabbitmq at")
            self.rabbit.start()
            self.fault("broker killed")
            self.arrived(relay)
        self.reckon(1)

    def test_stopped_by_a_signal_and_continued(self):
        """A broker that stands still for longer than the timeout gets everything, in order, once it goes on."""
        with self.start(None, "--timeout", "300ms") as relay:
            self.send(100)
            self.wait_all(relay)
            self.rabbit.pause()
            self.send(300)
            self.down(relay, "has not confirmed for 300 ms")
            self.rabbit.cont()
            self.fault("broker stopped")
            self.arrived(relay)
        self.reckon(relay.output().count("has not confirmed"))

    def test_connection_cut_after_publishing_and_before_the_confirm(self):
        """A confirm that gets lost brings its events once more, the same ones, and in order."""
        with Net(("127.0.0.1", self.rabbit.port)) as net, self.start(self.url(port=net.port)) as relay:
            self.send(50)
            self.wait_all(relay)
            for _ in range(3):
                cuts, net.drop = net.blown, lambda data: b"\x00\x3c\x00\x50" in data  # basic.ack: it has been stored
                self.send(100)
                wait_until(lambda: net.blown > cuts, what=relay.output)
                self.fault("confirm lost")
                self.arrived(relay)
        self.assertGreater(len(self.got()), self.sent)
        self.reckon(3)

    def test_connection_cut_at_any_byte(self):
        """Wherever the answers of the broker break off, in the login too, everything arrives, in order."""
        with Net(("127.0.0.1", self.rabbit.port)) as net, self.start(self.url(port=net.port)) as relay:
            for n, left in enumerate((3, 100, 480, 530, 560, 600, 700)):
                blown = net.blown
                net.fuse(left)
                net.cut()
                self.send(20)
                wait_until(lambda: net.blown > blown, what=relay.output)
                self.fault("answer cut")
            self.arrived(relay)
        self.reckon(len(self.faults) * 7)

    def test_network_that_swallows_answers(self):
        """A broker that nothing is heard from, though connections stay open, gets everything, in order, once it is heard."""
        with Net(("127.0.0.1", self.rabbit.port)) as net, self.start(self.url(port=net.port), "--timeout", "300ms") as relay:
            self.send(50)
            self.wait_all(relay)
            net.swallow(down=True)
            self.send(100)
            self.down(relay, "has not confirmed for 300 ms")
            net.heal()
            self.fault("answers swallowed")
            self.arrived(relay)
        self.reckon(relay.output().count("has not confirmed"))

    def test_relay_killed_between_publishing_and_settling(self):
        """Whenever a relay is killed, the next one delivers the rest, in order; at most what it held comes again."""
        kills = 4
        for _ in range(kills):
            self.send(300)
            before, relay = len(self.got()), self.start(None, "--lease", "300ms", "--batch", "50")
            wait_until(lambda: len(self.got()) > before, what=relay.output)
            relay.kill()
            self.fault("relay killed")
        with self.start(None, "--lease", "300ms") as relay:
            self.arrived(relay)
            self.wait_let_go()
        self.reckon(kills)

    def test_zombie_past_its_lease(self):
        """A relay that stands still past its lease, and goes on when another has taken over, brings nothing out of order."""
        self.send(50)
        with self.start(None, "--lease", "400ms", "--batch", "20") as zombie:
            self.wait_all(zombie)
            self.send(400)
            zombie.freeze(self.db)
            with self.start(None, "--lease", "400ms", "--batch", "20") as heir:
                wait_until(lambda: len(self.got()) > 200, what=heir.output)
                zombie.signal(signal.SIGCONT)
                self.fault("relay stopped past its lease")
                self.arrived(heir)
        self.reckon(1)


class Moods(Mood, Case):
    """Whatever mood the broker is in: everything arrives, in order, and no attempt is counted against an event."""

    def alarmed(self, alarm, words):
        """alarmed has the broker block whoever publishes, for a while."""
        with self.start(None, "--timeout", "2s") as relay:
            self.send(50)
            self.wait_all(relay)
            alarm(True)
            self.addCleanup(alarm, False)
            self.send(500)
            self.down(relay, words)
            alarm(False)
            self.fault("alarm")
            self.arrived(relay)
        self.reckon(1)

    def test_memory_alarm(self):
        """A broker that is low on memory gets everything, in order, when it has some again; the relay says why it waits."""
        self.alarmed(self.rabbit.alarm, "takes no messages: low on memory")

    def test_disk_alarm(self):
        """The same with a broker whose disk is almost full."""
        self.alarmed(self.rabbit.disk_alarm, "takes no messages: low on disk")

    def test_full_queue(self):
        """A queue that is full, and refuses, gets everything, in order, as it is emptied."""
        self.rabbit.delete(self.name)
        self.rabbit.declare(self.name, self.name, x_max_length=20, x_overflow="reject-publish")
        with self.start(self.url("routing-key=k")) as relay:
            self.send(200)
            self.down(relay, "basic.nack")
            self.fault("queue full")
            self.arrived(relay)
        self.reckon()

    def test_queue_deleted_and_made_again(self):
        """Events that no queue is bound for arrive once there is one, if that is in time."""
        with self.start() as relay:
            self.send(50)
            self.wait_all(relay)
            with self.rabbit.channel() as ch: ch.queue_delete(self.name)
            self.send(50)
            wait_until(lambda: "no queue is bound" in relay.output(), what=relay.output)
            self.rabbit.declare(self.name, self.name)
            self.fault("queue deleted")
            self.heal(relay)
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])
        self.reckon()

    def test_exchange_deleted_and_made_again(self):
        """An exchange that is gone uses up attempts of its events, and no more; once it is back, everything arrives."""
        with self.start() as relay:
            self.send(50)
            self.wait_all(relay)
            with self.rabbit.channel() as ch: ch.exchange_delete(self.name)
            self.send(50)
            wait_until(lambda: re.search(f"failed, attempt 1 of .*no exchange '{self.name}'", relay.output()), what=relay.output)
            self.rabbit.declare(self.name, self.name)
            self.fault("exchange deleted")
            self.heal(relay)
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])
        self.reckon(1)

    def test_message_larger_than_the_broker_takes_is_buried_alone(self):
        """An event over the broker's limit becomes a dead letter; what is around it arrives, and the sink counts as up."""
        self.rabbit.eval("application:set_env(rabbit, max_message_size, 100000).")
        self.addCleanup(self.rabbit.eval, "application:set_env(rabbit, max_message_size, 134217728).")
        with self.start() as relay:
            for _ in range(3):
                self.send(20)
                self.outbox("emit", "--ndjson", "-", input=json.dumps({"type": "large", "payload": {"x": "x" * 200000}}) + "\n")
            self.send(20)
            self.wait_all(relay)
            wait_until(lambda: self.ask("SELECT count(*) FROM @dead") == [(3,)], what=relay.output)
            self.assertIn("larger than configured max size", relay.output())
            self.assertNotIn("sink is down", relay.output())

    def test_login_withdrawn_and_given_back(self):
        """A broker that lets us in no more gets everything, in order, once it does again."""
        self.rabbit.eval('rabbit_auth_backend_internal:add_user(<<"courier">>, <<"one">>, <<"t">>), '
                         'rabbit_auth_backend_internal:set_permissions(<<"courier">>, <<"/">>, <<"">>, <<".*">>, <<"">>, <<"t">>).')
        secret = self.path("secret")
        with open(secret, "w") as f: f.write("one\n")
        with self.start(self.url(f"user=courier&password-file={secret}")) as relay:
            self.send(50)
            self.wait_all(relay)
            self.rabbit.eval('rabbit_auth_backend_internal:change_password(<<"courier">>, <<"two">>, <<"t">>), '
                             '[rabbit_networking:close_connection(C, "t") || C <- rabbit_networking:connections()].')
            self.send(50)
            self.down(relay, "refused the login")
            with open(secret, "w") as f: f.write("two\n")
            self.fault("password changed")
            self.arrived(relay)
        self.assertNotIn("one", relay.output().split())
        self.reckon(1)

    def test_idle_relay_keeps_its_connection(self):
        """A relay that has nothing to do answers heartbeats, so that its connection is there for the next event."""
        with self.start(self.url("heartbeat=1s")) as relay:
            self.send(1)
            self.wait_all(relay)
            before = self.rabbit.eval("[rabbit_misc:pid_to_string(P) || P <- rabbit_networking:connections()].")
            time.sleep(4)
            self.assertEqual(self.rabbit.eval("[rabbit_misc:pid_to_string(P) || P <- rabbit_networking:connections()]."), before)
            self.send(1)
            self.wait_all(relay)
