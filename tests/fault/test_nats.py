"""NATS JetStream in all its bad moods, in front of a relay: nothing lost, the order of a key kept, attempts burnt only where an event
is at fault, and repeats within what each mode promises: none within the duplicate window or among the last messages, and none at all
with exclusive=on."""
# build: plain
# quick: no
import json
import re
import signal
import time

from broker_nats import Cluster, Nats
from net import Net
from scenario import Numbers
from support import Case, PgCase, wait_until

SECOND = 1_000_000_000


class Mood(Numbers):
    """A relay in front of a server of its own. MODE is added to the sink's URL."""

    MODE = ""
    WINDOW = 120 * SECOND  # in which the server knows an id again

    def setUp(self):
        super().setUp()
        self.init()
        self.nats = Nats().start()
        self.addCleanup(self.nats.close)
        self.nats.stream("S", subjects=["s"], duplicate_window=self.WINDOW)

    def start(self, url=None, *more):
        return self.relay("--log-level", "debug", "--consumer", "out", "--sink", url or self.url(), *more)

    def url(self, port=None):
        return self.nats.url("s", f"stream=S{self.MODE}", port)

    def got(self):
        return [(int(m.data), m.headers["id"]) for m in self.nats.messages("S")]

    def arrived(self, relay):
        """arrived: all is there, and nothing of this was an event's fault: no attempt was counted, nothing buried."""
        self.heal(relay)
        self.assertNotIn("attempt 1 of", relay.output())
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    def down(self, relay, words):
        wait_until(lambda: "sink is down" in relay.output() and words in relay.output(), what=relay.output)

    def settled(self, relay):
        """settled waits until the relay has nothing in hand, and then lets it be killed without repeats."""
        wait_until(lambda: not self.sql("SELECT * FROM outbox_claim"), what=relay.output)


class Moods(Mood, Case):
    def test_killed_and_started_again(self):
        """A server that is killed and comes back with its data gets everything, in order, and once."""
        with self.start() as relay:
            for _ in range(3):
                self.send(300)
                self.nats.kill()
                self.send(200)
                self.down(relay, "nats at")
                self.nats.start()
                self.fault("server killed")
                self.arrived(relay)
        self.reckon(0)

    def test_stopped_by_a_signal_and_continued(self):
        """A server that stands still for longer than the time limit gets everything, in order, and once."""
        with self.start(None, "--timeout", "500ms") as relay:
            self.send(100)
            self.wait_all(relay)
            self.nats.stand()
            self.send(300)
            self.down(relay, "has not answered for 500 ms")
            self.nats.go()
            self.fault("server stopped")
            self.arrived(relay)
        self.reckon(0)

    def test_connection_cut_at_any_byte(self):
        """A connection that is reset after any number of bytes brings everything, in order, and once."""
        with Net(("127.0.0.1", self.nats.port)) as net, self.start(self.url(net.port)) as relay:
            self.send(50)
            self.wait_all(relay)
            for left in (0, 1, 7, 40, 100, 350, 900, 2000):
                blown = net.blown
                net.fuse(left)
                self.send(60)
                wait_until(lambda: net.blown > blown, what=relay.output)
                self.fault("connection cut")
                self.arrived(relay)
        self.reckon(0)

    def test_answer_that_never_comes_is_asked_for_again(self):
        """An answer that is lost while the connection lives on costs two seconds, and the event is neither lost nor stored twice."""
        with Net(("127.0.0.1", self.nats.port)) as net, self.start(self.url(net.port)) as relay:
            self.send(50)
            self.wait_all(relay)
            self.settled(relay)
            lost = []

            def swallow_one(_, data):
                found = None if lost else re.search(rb'MSG _INBOX\.\S+ \S+ +\d+\r\n\{"stream":"S", ?"seq":\d+\}\r\n', data)
                if not found: return data
                lost.append(found[0])
                return data.replace(found[0], b"")
            net.burn = swallow_one
            made = net.made
            self.send(50)
            wait_until(lambda: lost, what=relay.output)
            self.fault("answer lost")
            self.arrived(relay)
            self.settled(relay)
            self.healed()
            if not self.MODE:  # with exclusive=on the next answer tells, or the connection is made anew to look
                self.assertNotIn("sink is down", relay.output())
                self.assertEqual(net.made, made)
        self.reckon(0)

    def test_half_open_network(self):
        """A network that swallows answers, or what is sent, while connections stay open, costs time alone."""
        with Net(("127.0.0.1", self.nats.port)) as net, self.start(self.url(net.port), "--timeout", "700ms") as relay:
            self.send(50)
            self.wait_all(relay)
            for swallowed in ({"down": True}, {"up": True}):
                said = relay.output().count("has not answered for")
                net.swallow(**swallowed)
                self.send(100)
                wait_until(lambda: relay.output().count("has not answered for") > said, what=relay.output)
                net.heal()
                self.fault("network half open")
                self.arrived(relay)
        self.reckon(0)

    def test_full_stream(self):
        """A full stream with discard=new is an outage, not a fault of the events."""
        self.nats.update("S", subjects=["s"], duplicate_window=self.WINDOW, max_msgs=100, discard="new")
        with self.start() as relay:
            self.send(200)
            self.down(relay, "maximum messages exceeded (10077)")
            self.nats.update("S", subjects=["s"], duplicate_window=self.WINDOW, max_msgs=-1, discard="new")
            self.fault("stream full")
            self.arrived(relay)
        self.reckon(0)

    def test_no_disk_left(self):
        """An account without storage is an outage."""
        self.nats.kill()
        self.nats.config = "accounts { A { jetstream: { max_file: 60KB }, users: [ { user: a, password: a } ] } }\nno_auth_user: a\n"
        self.nats.start()
        self.nats.stream("S", subjects=["s"])
        with self.start() as relay:
            self.send(400)
            self.down(relay, "resource")
            self.nats.reload(self.nats.config.replace("60KB", "60MB"))
            self.fault("storage used up")
            self.arrived(relay)
        self.reckon(0)

    def test_stream_deleted_and_made_again(self):
        """A stream that is deleted is an outage until it is made again. What was in it is gone with it, which is what deleting means."""
        with self.start() as relay:
            self.send(100)
            self.wait_all(relay)
            self.settled(relay)
            before = self.got()
            self.nats.delete("S")
            self.send(200)
            self.down(relay, "no leader, or is gone")
            self.nats.stream("S", subjects=["s"])
            self.fault("stream deleted")
            first, self.got = before, lambda got=self.got: first + got()
            self.arrived(relay)
        self.reckon(0)

    def test_login_withdrawn_and_given_back(self):
        """A user who may not log in any more is an outage."""
        users = "accounts {{ A {{ jetstream: enabled, users: [ {{ user: admin, password: admin }}{} ] }} }}\nno_auth_user: admin\n"
        both = users.format(", { user: relay, password: geheim }")
        self.nats.kill()
        self.nats.config = both
        self.nats.start()
        self.nats.stream("S", subjects=["s"])
        secret = self.path("password")
        secret.write_text("geheim\n")
        secret.chmod(0o600)
        with self.start(self.nats.url("s", f"stream=S&user=relay&password-file={secret}")) as relay:
            self.send(50)
            self.wait_all(relay)
            self.nats.reload(users.format(""))
            self.send(100)
            self.down(relay, "Authorization Violation")
            self.nats.reload(both)
            self.fault("login withdrawn")
            self.arrived(relay)
            self.assertNotIn("geheim", relay.output())
        self.reckon(0)

    def test_event_that_is_too_large_is_buried_alone(self):
        """An event that is larger than the server takes becomes a dead letter, and the others go on."""
        with self.start() as relay:
            self.send(50)
            self.outbox("emit", "--ndjson", "-", input=json.dumps({"type": "big", "payload": "x" * 1048500}))
            self.send(50)
            self.wait_all(relay)
            wait_until(lambda: self.sql("SELECT count(*) FROM outbox_dead") == [(1,)], what=relay.output)
        (error,), = self.sql("SELECT error FROM outbox_dead")
        self.assertIn("max_payload is 1048576", error)

    def test_memory_is_bounded_while_the_server_stands_still(self):
        """A server that takes nothing costs no more memory the more there is for it: less than 48 MiB."""
        lines = "".join(json.dumps({"type": "a", "aggregate_type": "k", "aggregate_id": str(i), "payload": "x" * 2000}) + "\n"
                        for i in range(30000))
        self.outbox("emit", "--ndjson", "-", input=lines)
        with self.start(self.nats.url("s", f"stream=S&window=4096{self.MODE}"), "--timeout", "1s", "--batch", "1000") as relay:
            wait_until(lambda: len(self.nats.messages("S")) > 3000, what=relay.output)
            self.nats.stand()
            wait_until(lambda: relay.output().count("has not answered") > 2, what=relay.output)
            self.nats.go()
            with open(f"/proc/{relay.popen.pid}/status") as f: peak = next(line for line in f if line.startswith("VmHWM"))
        self.assertLess(int(peak.split()[1]), 48 << 10, peak)

    def kill_between(self, repeats):
        """kill_between kills relays at any moment, the one between storing and settling included."""
        for pause in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
            self.send(400)
            relay = self.start(None, "--lease", "1s")
            time.sleep(pause)
            relay.kill()
            self.fault("relay killed")
        with self.start() as relay:
            self.heal(relay)
            self.wait_let_go()  # all may have been stored before this one began
        self.reckon(repeats)

    def test_relay_killed_between_publish_and_settle(self):
        """A relay that is killed has its events taken over by the next one, and none is stored twice."""
        self.kill_between(0)


class Own(Moods):
    """The same with exclusive=on."""

    MODE = "&exclusive=on"


class Zombies(Mood, PgCase):
    PREFIX = "outbox."

    def test_zombie_past_its_lease(self):
        """A relay that stood still while another took over stores nothing twice, and nothing out of order."""
        with self.start(None, "--lease", "1s") as first:
            self.send(500)
            wait_until(lambda: self.got(), what=first.output)
            first.signal(signal.SIGSTOP)
            self.send(300)
            with self.start(None, "--lease", "1s") as second:
                self.wait_all(second)
                first.signal(signal.SIGCONT)
                self.fault("relay stopped past its lease")
                self.send(300)
                self.heal(first, second)
        self.reckon(0)


class ZombiesOwn(Zombies):
    MODE = "&exclusive=on"


class Forgetful(Mood, Case):
    """A server that forgets ids at once: what keeps events from being stored twice is looking back, or the chain."""

    WINDOW = 100_000_000

    kill_between = Moods.kill_between

    def test_relay_killed_and_looked_back(self):
        """A relay that begins looks at what is there: nothing is stored twice, however long ago it was."""
        self.kill_between(0)

    def test_server_killed_for_longer_than_the_window(self):
        """A server that was away for longer than it remembers ids stores nothing twice."""
        with self.start() as relay:
            for _ in range(3):
                self.send(300)
                self.nats.kill()
                self.down(relay, "nats at")
                time.sleep(0.3)
                self.nats.start()
                self.fault("server killed")
                self.arrived(relay)
        self.reckon(0)


class ForgetfulOwn(Forgetful):
    MODE = "&exclusive=on"


class Three(Numbers, Case):
    """A cluster of three. More of its faults are in test_nats_cluster.py."""

    def test_leader_killed(self):
        """A leader that is killed costs a moment: the two that are left go on, in order, and nothing comes twice."""
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
