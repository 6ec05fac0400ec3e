"""Redis in all its bad moods, in front of a relay: nothing lost, the order of a key kept, attempts burnt only where an event
is at fault, and what comes twice has the same event id. And the whole round trip, database to database, with everything
killed at random."""
# build: plain
# quick: no
import json
import os
import pathlib
import re
import signal
import sqlite3
import threading
import time

import servers
from checker import COMMITTED, ROLLED_BACK, Fact
from net import Net
from scenario import Numbers, Scenario
from support import BIN, Case, PgCase, on_each_store, wait_until

PROGRAMS = pathlib.Path(BIN).parent / "tests" / "fault"
# An answer with ids in it: events have been added. It may come in one piece with the answer to something else.
IDS = re.compile(rb"^[$*]", re.MULTILINE).search


class Mood(Numbers):
    """A relay in front of a Redis of its own."""

    def setUp(self):
        super().setUp()
        self.init()
        self.redis = servers.Redis({"key-load-delay": 0}).start()
        self.addCleanup(self.redis.close)
        self.streams = ["s"]

    def start(self, url=None, *more):
        return self.relay("--log-level", "debug", "--consumer", "out", "--sink", url or self.redis.url("stream=s"), *more)

    def got(self):
        return [(event["payload"], event["event_id"]) for s in self.streams for _, event in self.redis.entries(s)]

    def arrived(self, relay):
        """arrived: all is there, and nothing of this was an event's fault: no attempt was counted, nothing buried."""
        self.heal(relay)
        self.assertNotIn("attempt 1 of", relay.output())
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])

    def reckon(self, faults=0):
        """What was on its way when the connection broke may come twice: all that had been sent, at most."""
        super().reckon(bound=faults * self.sent)

    def down(self, relay, words):
        wait_until(lambda: "sink is down" in relay.output() and words in relay.output(), what=relay.output)


@on_each_store
class Crashes(Mood):
    """What breaks off, wherever it does: everything arrives, in order, and is recorded."""

    @property
    def PREFIX(self):
        return "outbox." if isinstance(self, PgCase) else "outbox_"

    def test_killed_and_started_again(self):
        """A Redis that is killed and comes back gets everything, in order."""
        with self.start() as relay:
            for _ in range(3):
                self.send(200)
                self.redis.kill()
                self.send(200)
                self.down(relay, "redis at")
                self.redis.start()
                self.fault("Redis killed")
            self.arrived(relay)
        self.reckon(3)

    def test_stopped_by_a_signal_and_continued(self):
        """A Redis that stands still for longer than the timeout gets everything, in order, once it goes on."""
        with self.start(None, "--timeout", "300ms") as relay:
            self.send(100)
            self.wait_all(relay)
            os.kill(self.redis.popen.pid, signal.SIGSTOP)
            self.send(300)
            self.down(relay, "has not answered for 300 ms")
            os.kill(self.redis.popen.pid, signal.SIGCONT)
            self.fault("Redis stopped")
            self.arrived(relay)
        self.reckon(relay.output().count("has not answered"))

    def test_connection_cut_after_xadd_and_before_the_reply(self):
        """A reply that gets lost brings its events once more, the same ones, and in order."""
        with Net(self.redis.socket) as net, self.start(f"redis://127.0.0.1:{net.port}?stream=s") as relay:
            self.send(50)
            self.wait_all(relay)
            for _ in range(3):
                cuts, net.drop = net.blown, IDS
                self.send(100)
                wait_until(lambda: net.blown > cuts, what=relay.output)
                self.fault("reply lost")
                self.arrived(relay)
        # It had been added, the relay did not know, and added it again.
        self.assertGreater(len(self.redis.entries("s")), self.sent)
        self.reckon(3)


@on_each_store
class Once(Mood):
    """dedupe=on: what was appended and not settled is not appended again, whoever crashed and whatever answer was lost."""

    @property
    def PREFIX(self):
        return "outbox." if isinstance(self, PgCase) else "outbox_"

    def test_relays_killed_between_publish_and_settle(self):
        """Relays are killed at any moment, and the next one goes on: every event is in the stream once, and in order."""
        url = self.redis.url("stream=s&dedupe=on")
        for n in range(5):
            relay = self.start(url, "--lease", "1s", "--batch", "25")
            self.send(200)
            wait_until(lambda: len(self.got()) > 200 * n + 20, what=relay.output)
            relay.kill()
            self.fault("relay killed")
        # All may be there by now, and is not settled: that takes a relay to the end.
        self.drain("--consumer", "out", "--sink", url, "--lease", "1s", "--batch", "25", timeout=120)
        self.heal()
        self.reckon()

    def test_answers_lost(self):
        """Connections are cut after XADD and before its answer: every event is in the stream once, and in order."""
        with Net(self.redis.socket) as net, self.start(f"redis://127.0.0.1:{net.port}?stream=s&dedupe=on") as relay:
            self.send(50)
            self.wait_all(relay)
            for _ in range(3):
                cuts, net.drop = net.blown, IDS
                self.send(100)
                wait_until(lambda: net.blown > cuts, what=relay.output)
                self.fault("reply lost")
                self.heal(relay)
                self.wait_let_go()  # what was in doubt has been asked about again
        self.reckon()


class Zombies(Mood, Case):
    """A relay that stands still past its lease, and goes on when another has taken over."""

    QUERY, REPEATS = "stream=s", 1

    def test_zombie_past_its_lease(self):
        """A relay that goes on after its lease loses nothing and brings nothing out of order; what it held comes again, at most."""
        start = lambda: self.start(self.redis.url(self.QUERY), "--lease", "500ms", "--batch", "50")
        self.send(1000)
        zombie = start()
        wait_until(self.got, what=zombie.output)
        zombie.freeze(self.db)
        self.fault("relay stopped past its lease")
        with start() as heir:
            self.wait_all(heir)
            zombie.signal(signal.SIGCONT)
            self.send(100)
            self.heal(heir)
            zombie.stop()
        self.reckon(self.REPEATS)


class ZombiesOnce(Zombies):
    """The same with dedupe=on: what another has settled it may bring again, but no more than it held."""

    QUERY = "stream=s&dedupe=on"


class Moods(Mood, Case):
    """Whatever mood Redis is in: everything arrives, in order, and no attempt is counted against an event."""

    def test_out_of_memory(self):
        """A Redis without memory gets everything, in order, when it has some again."""
        with self.start() as relay:
            self.redis("CONFIG", "SET", "maxmemory", 1)
            self.send(200)
            self.down(relay, "OOM")
            self.redis("CONFIG", "SET", "maxmemory", 0)
            self.fault("Redis out of memory")
            self.arrived(relay)
        self.reckon()

    def test_login_withdrawn_and_given_back(self):
        """A Redis that lets us in no more gets everything, in order, once it does again."""
        secret = self.path("password")
        secret.write_text("one\n")
        self.redis("ACL", "SETUSER", "courier", "on", ">one", "~*", "+@all")
        with self.start(self.redis.url(f"stream=s&user=courier&password-file={secret}")) as relay:
            self.send(50)
            self.wait_all(relay)
            self.redis("ACL", "SETUSER", "courier", "resetpass", ">two")
            self.redis("CLIENT", "KILL", "USER", "courier")
            self.send(100)
            self.down(relay, "WRONGPASS")
            secret.write_text("two\n")
            self.fault("password changed")
            self.arrived(relay)
        self.reckon()

    def test_stream_deleted_under_load(self):
        """A stream that is deleted begins anew; what was in it is gone with it, which is what deleting means."""
        with self.start() as relay:
            self.send(100)
            self.wait_all(relay)
            before = self.got()
            self.redis("DEL", "s")
            self.fault("stream deleted")
            first, self.got = before, lambda got=self.got: first + got()
            self.send(200)
            self.arrived(relay)
        self.reckon()

    def test_read_only_replica(self):
        """A Redis that became a replica gets everything, in order, when it may be written to again."""
        with self.start() as relay:
            self.send(20)
            self.wait_all(relay)
            self.redis("REPLICAOF", "127.0.0.1", 1)
            self.send(200)
            self.down(relay, "READONLY")
            self.redis("REPLICAOF", "NO", "ONE")
            self.fault("Redis a replica")
            self.arrived(relay)
        self.reckon()

    def test_loading(self):
        """A Redis that is still loading gets everything, in order, when it has loaded."""
        with self.start() as relay:
            self.send(200)
            self.wait_all(relay)
            # It looks at its clients after every 1024 commands of the file.
            self.redis("EVAL", "for i = 1, 6000 do redis.call('set', 'x' .. i, i) end", 0)
            self.redis.settings |= {"key-load-delay": 300}
            for _ in range(10):
                self.redis.kill()
                self.send(50)
                self.redis.start()  # returns when it has loaded
                self.fault("Redis loading")
                self.arrived(relay)
                if "LOADING" in relay.output(): break  # on a busy machine it may ask too late for that
            self.assertIn("LOADING", relay.output())
        self.reckon(self.faults["Redis loading"])

    def test_cannot_save(self):
        """A Redis that cannot save and refuses writes gets everything, in order, when it takes them again."""
        if os.geteuid() != 0: self.skipTest("needs root to take the server's folder away from it")
        with self.start() as relay:
            self.redis("CONFIG", "SET", "save", "1 1")
            os.chown(self.redis.dir, 0, 0)
            os.chmod(self.redis.dir, 0o755)
            self.redis("BGSAVE")
            wait_until(lambda: "rdb_last_bgsave_status:err" in self.redis("INFO", "persistence"))
            self.send(100)
            self.down(relay, "MISCONF")
            os.chown(self.redis.dir, servers.NOBODY, servers.NOBODY)
            self.redis("CONFIG", "SET", "save", "")
            self.redis("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
            self.fault("Redis cannot save")
            self.arrived(relay)
        self.reckon()

    def test_script_that_does_not_end(self):
        """A Redis busy with a script gets everything, in order, when that has ended."""
        with self.start() as relay:
            self.redis("CONFIG", "SET", "busy-reply-threshold", 50)
            busy = threading.Thread(target=self.loop_in_redis, daemon=True)
            busy.start()
            wait_until(self.is_busy)
            self.send(50)
            self.down(relay, "BUSY")
            self.redis("SCRIPT", "KILL")
            wait_until(lambda: not self.is_busy())
            self.fault("Redis busy")
            self.arrived(relay)
        self.reckon()

    def loop_in_redis(self):
        try:
            self.redis("EVAL", "while true do end", 0)
        except (RuntimeError, OSError):
            pass

    def is_busy(self):
        try:
            self.redis("GET", "x")
        except RuntimeError as e:
            return "BUSY" in str(e)
        return False

    def test_one_mood_after_the_other_over_many_restarts(self):
        """Whoever restarts however often: an error to everything counts no attempt against any event."""
        moods = (("CONFIG SET maxmemory 1", "OOM", "CONFIG SET maxmemory 0"),
                 ("CONFIG SET min-replicas-to-write 3", "NOREPLICAS", "CONFIG SET min-replicas-to-write 0"),
                 ("REPLICAOF 127.0.0.1 1", "READONLY", "REPLICAOF NO ONE"),
                 ("ACL SETUSER default -xadd", "NOPERM", "ACL SETUSER default +xadd"),
                 ("ACL SETUSER default -xadd -eval", "NOPERM", "ACL SETUSER default +xadd +eval"))
        for number, (fall, words, cure) in enumerate(moods):
            stream = f"s{number}"
            self.streams.append(stream)
            start = lambda: self.start(self.redis.url(f"stream={stream}"), "--retry", "base=1ms,attempts=2,jitter=none")
            self.redis(*fall.replace("STREAM", stream).split())
            self.send(20)
            for _ in range(3):
                with start() as relay: self.down(relay, words)
                self.assertNotIn("attempt 1 of", relay.output())
            self.redis(*cure.replace("STREAM", stream).split())
            self.fault(words)
            with start() as relay: self.arrived(relay)
        self.reckon()

    def test_stream_that_takes_nothing_keeps_only_its_own_events(self):
        """What cannot go to one stream has its attempts; other streams go on, and it arrives if that is cured in time."""
        self.streams = ["k.good", "k.bad"]
        self.redis("SET", "k.bad", "x")
        with self.start(self.redis.url("stream={aggregate_type}.{type}"), "--retry", "base=50ms,cap=1s,attempts=500") as relay:
            lines = "".join(json.dumps({"type": "bad" if i % 3 == 0 else "good", "aggregate_type": "k", "aggregate_id": str(i),
                                        "payload": i}) + "\n" for i in range(30))
            self.outbox("emit", "--ndjson", "-", input=lines)
            wait_until(lambda: len(self.redis.entries("k.good")) == 20, what=relay.output)
            wait_until(lambda: "failed, attempt 3 of 500" in relay.output(), what=relay.output)
            self.assertNotIn("sink is down", relay.output())
            self.redis("DEL", "k.bad")
            wait_until(lambda: len(self.redis.entries("k.bad")) == 10, what=relay.output)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    def test_event_larger_than_the_server_takes_is_buried_alone(self):
        """An event over the server's limit becomes a dead letter; what is around it arrives, and the sink counts as up."""
        self.redis("CONFIG", "SET", "proto-max-bulk-len", "1mb")
        with self.start() as relay:
            for _ in range(5):
                self.send(20)
                line = json.dumps({"type": "large", "payload": {"x": "x" * 1000000}, "headers": {"h": "y" * 60000}}) + "\n"
                self.outbox("emit", "--ndjson", "-", input=line)
            self.send(20)
            self.wait_all(relay)
            wait_until(lambda: self.sql("SELECT count(*) FROM outbox_dead") == [(5,)], what=relay.output)
            self.assertIn("proto-max-bulk-len", relay.output())
            self.assertNotIn("sink is down", relay.output())

    def test_cluster_is_refused_in_clear_words(self):
        cluster = servers.Redis({"cluster-enabled": "yes", "cluster-port": servers.free_port()})
        cluster.start()
        self.addCleanup(cluster.close)
        self.send(1)
        with self.start(cluster.url("stream=s")) as relay:
            self.down(relay, "CLUSTERDOWN")
        # It gets half of the slots: those of `s` are with a node that is not there.
        slot = cluster("CLUSTER", "KEYSLOT", "s")
        cluster("CONFIG", "SET", "cluster-require-full-coverage", "no")
        other = servers.Redis({"cluster-enabled": "yes", "cluster-port": servers.free_port()})
        other.start()
        self.addCleanup(other.close)
        cluster("CLUSTER", "MEET", "127.0.0.1", other.port, other.settings["cluster-port"])
        cluster("CLUSTER", "ADDSLOTSRANGE", 0, slot - 1)
        other("CLUSTER", "ADDSLOTSRANGE", slot, slot)
        wait_until(lambda: self.moved(cluster))
        with self.start(cluster.url("stream=s")) as relay:
            self.down(relay, "a server of a cluster")
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    @staticmethod
    def moved(cluster):
        try:
            cluster("XLEN", "s")
        except RuntimeError as e:
            return "MOVED" in str(e)
        return False


class RoundTrip(Scenario, Case):
    """Database A, relay, Redis, reader, database B: everything in between is killed, and B ends equal to A."""

    def test_b_ends_equal_to_a_whatever_is_killed(self):
        """Whatever is killed between two databases, the second gets each event of the first once, in order."""
        self.rounds(self.storm, 4)

    def b_sql(self, statement):
        db = sqlite3.connect(self.b, timeout=60)
        try:
            with db: return db.execute(statement).fetchall()
        finally:
            db.close()

    def begin(self):
        self.b = self.path("b.db")
        self.init()
        self.outbox("init", "--store", f"sqlite:{self.b}")
        self.sql("CREATE TABLE ledger (producer TEXT, n INTEGER, count INTEGER)")
        self.b_sql("CREATE TABLE entry (id INTEGER PRIMARY KEY, key TEXT, payload TEXT)")
        self.b_sql("CREATE TABLE account (key TEXT PRIMARY KEY, total INTEGER, last TEXT)")
        self.redis = servers.Redis().start()
        self.addCleanup(self.redis.close)
        self.url = self.redis.url("stream=ledger.{aggregate_type}")

    def run_relay(self, *more):
        return self.relay("--consumer", "out", "--sink", self.url, "--lease", "300ms", "--batch", "20", *more, wait=False)

    def run_reader(self, *more):
        return self.spawn(PROGRAMS / "fault_consumer", self.b, self.redis.url("stream=ledger.account"), "mirror", *more)

    def storm(self, seconds):
        rng = self.random
        self.begin()
        producer = self.spawn(PROGRAMS / "fault_producer", self.db, self.path("diary"), "p", rng.randrange(1 << 30))
        relay, reader = self.run_relay(), self.run_reader()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.05, 0.4))
            what = rng.choice(("relay killed", "reader killed", "Redis killed", "Redis stopped"))
            if what == "relay killed":
                relay.kill()
                relay = self.run_relay()
            elif what == "reader killed":
                reader.kill()
                reader = self.run_reader()
            elif what == "Redis killed":
                self.redis.kill()
                self.redis.start()
            else:
                self.redis.popen.send_signal(signal.SIGSTOP)
                time.sleep(rng.uniform(0, 0.2))
                self.redis.popen.send_signal(signal.SIGCONT)
            self.fault(what)
        producer.stop()
        relay.kill()
        reader.kill()
        self.fault_over()
        self.run_relay("--drain").wait()
        self.run_reader("through").wait()
        self.healed()
        self.check()

    def told(self):
        told, fates = {}, {"c": COMMITTED, "r": ROLLED_BACK}  # it was let come to its end: nothing is unknown
        for state, n, count in (line.split() for line in self.path("diary").read_text().splitlines()):
            if state in fates: told |= {(int(n), i): fates[state] for i in range(int(count))}
        return told

    def check(self):
        name = lambda text: (lambda p: (p["n"], p["i"]))(json.loads(text))
        a = self.sql("SELECT seq, aggregate_id, payload FROM outbox_event ORDER BY seq")
        b = self.b_sql("SELECT key, payload FROM entry ORDER BY id")
        c = self.checker(self.told(), [(name(text), Fact(key, seq, (key, text))) for seq, key, text in a])
        c.consumer("B", [(name(text), (key, text)) for key, text in b], bound=0)
        self.check_left(c)
        c.verdict()
        self.assertGreater(c.events, 50)
        totals = dict(self.b_sql("SELECT key, total FROM account"))
        self.assertEqual(totals, {key: sum(1 for row in a if row[1] == key) for key in totals})
