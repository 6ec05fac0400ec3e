"""Redis in front of a relay, with every kind of fault: the suite common to all brokers (broker_faults.py), and Redis's own. And
the whole round trip, database to database, with everything killed at random."""
# build: plain
# quick: no
import json
import os
import pathlib
import signal
import sqlite3
import threading
import time

import broker_faults
import servers
from brokers import RedisBroker
from scenario import Scenario
from checker import COMMITTED, ROLLED_BACK, Fact
from support import BIN, Case, on_each_store, wait_until

PROGRAMS = pathlib.Path(BIN).parent / "tests" / "fault"


class RedisCase(broker_faults.BrokerCase):
    BROKER = RedisBroker

    @property
    def redis(self):
        return self.broker.server


@on_each_store
class Crashes(broker_faults.Crashes, RedisCase):
    ROUNDS = 3


@on_each_store
class Once(broker_faults.RelaysKilled, broker_faults.LostAnswers, RedisCase):
    """dedupe=on: events appended but not settled are not appended again, whichever relay crashed and whatever answer was
    lost."""

    QUERY, EXACTLY_ONCE = "dedupe=on", True


class Faults(broker_faults.Faults, broker_faults.Full, RedisCase, Case):
    pass


class FaultsOnce(broker_faults.RelayKilled, broker_faults.Zombies, RedisCase, Case):
    """dedupe=on. A relay past its lease may repeat what another relay has settled, but no more than it held."""

    QUERY, EXACTLY_ONCE = "dedupe=on", True


class Outages(RedisCase, Case):
    """Whatever Redis refuses: everything arrives, in order, and no attempt is counted against an event."""

    def test_replica_gets_everything_once_it_is_writable_again(self):
        """A Redis that became a replica gets everything, in order, once it is writable again."""
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

    def test_server_loading_its_data_gets_everything_later(self):
        """A Redis that is still loading gets everything, in order, once it has loaded."""
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
                if "LOADING" in relay.output(): break  # on a busy machine it may query too late for that
            self.assertIn("LOADING", relay.output())
        self.reckon(self.faults["Redis loading"])

    def test_server_that_cannot_save_gets_everything_later(self):
        """A Redis that cannot save and refuses writes gets everything, in order, once it accepts them again."""
        if os.geteuid() != 0: self.skipTest("needs root to revoke the server's access to its folder")
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

    def test_endless_script_delays_events_but_loses_none(self):
        """A Redis busy with a script gets everything, in order, once the script has ended."""
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

    def test_successive_refusals_do_not_count_as_attempts(self):
        """However often the relay restarts: an error to everything counts no attempt against any event."""
        refusals = (("CONFIG SET maxmemory 1", "OOM", "CONFIG SET maxmemory 0"),
                    ("CONFIG SET min-replicas-to-write 3", "NOREPLICAS", "CONFIG SET min-replicas-to-write 0"),
                    ("REPLICAOF 127.0.0.1 1", "READONLY", "REPLICAOF NO ONE"),
                    ("ACL SETUSER default -xadd", "NOPERM", "ACL SETUSER default +xadd"),
                    ("ACL SETUSER default -xadd -eval", "NOPERM", "ACL SETUSER default +xadd +eval"))
        for refusal, words, cure in refusals:
            self.earlier, self.name = self.got(), self.broker.make(next(broker_faults.names))
            start = lambda: self.start("--retry", "base=1ms,attempts=2,jitter=none")
            self.redis(*refusal.split())
            self.send(20)
            for _ in range(3):
                with start() as relay: self.down(relay, words)
                self.assertNotIn("attempt 1 of", relay.output())
            self.redis(*cure.split())
            self.fault(words)
            with start() as relay: self.arrived(relay)
        self.reckon()

    def test_unwritable_stream_holds_back_only_its_own_events(self):
        """Events for an unwritable stream use attempts; other streams continue, and the events arrive if the stream is repaired
        in time."""
        self.redis("SET", "k.bad", "x")
        with self.start("--retry", "base=50ms,cap=1s,attempts=500", url=self.redis.url("stream={aggregate_type}.{type}")) as relay:
            lines = "".join(json.dumps({"type": "bad" if i % 3 == 0 else "good", "aggregate_type": "k", "aggregate_id": str(i),
                                        "payload": i}) + "\n" for i in range(30))
            self.outbox("emit", "--ndjson", "-", input=lines)
            wait_until(lambda: len(self.redis.entries("k.good")) == 20, what=relay.output)
            wait_until(lambda: "failed, attempt 3 of 500" in relay.output(), what=relay.output)
            self.assertNotIn("sink is down", relay.output())
            self.redis("DEL", "k.bad")
            wait_until(lambda: len(self.redis.entries("k.bad")) == 10, what=relay.output)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    def test_cluster_is_refused_with_advice(self):
        cluster = servers.Redis({"cluster-enabled": "yes", "cluster-port": servers.free_port()})
        cluster.start()
        self.addCleanup(cluster.close)
        self.send(1)
        with self.start(url=cluster.url("stream=s")) as relay:
            self.down(relay, "CLUSTERDOWN")
        # It gets half of the slots; the slot of `s` is on a missing node.
        slot = cluster("CLUSTER", "KEYSLOT", "s")
        cluster("CONFIG", "SET", "cluster-require-full-coverage", "no")
        other = servers.Redis({"cluster-enabled": "yes", "cluster-port": servers.free_port()})
        other.start()
        self.addCleanup(other.close)
        cluster("CLUSTER", "MEET", "127.0.0.1", other.port, other.settings["cluster-port"])
        cluster("CLUSTER", "ADDSLOTSRANGE", 0, slot - 1)
        other("CLUSTER", "ADDSLOTSRANGE", slot, slot)
        wait_until(lambda: self.moved(cluster))
        with self.start(url=cluster.url("stream=s")) as relay:
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

    def test_second_database_matches_no_matter_which_process_dies(self):
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
        told, fates = {}, {"c": COMMITTED, "r": ROLLED_BACK}  # it ran to its end, so no outcome is unknown
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
