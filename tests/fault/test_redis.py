"""Redis in all its bad moods, in front of a relay: nothing lost, the order of a key kept, attempts burnt only where an event
is at fault, and what comes twice has the same event id. And the whole round trip, database to database, with everything
killed at random."""
import os
import pathlib
import random
import signal
import socket
import sqlite3
import sys
import threading
import time

import servers
from support import BIN, SOAK, Case, wait_until

PROGRAMS = pathlib.Path(BIN).parent / "tests" / "fault"
SEED = int(os.environ.get("OUTBOX_SEED", random.SystemRandom().randrange(1 << 30)))


class Gate(threading.Thread):
    """A proxy that passes bytes on, and can cut a connection when the server has answered: the client never hears."""

    def __init__(self, server, path):
        super().__init__(daemon=True)
        self.server, self.path = str(server), str(path)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o777)
        self.listener.listen(16)
        self.cut_next = 0  # replies to XADD to swallow, each with its connection
        self.cuts = 0
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.link, args=(client,), daemon=True).start()

    def link(self, client):
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.server)
            threading.Thread(target=self.back, args=(server, client), daemon=True).start()
            while data := client.recv(1 << 16): server.sendall(data)
        except OSError:
            pass
        self.close(client, server)

    def back(self, server, client):
        try:
            while data := server.recv(1 << 16):
                if self.cut_next and data.startswith(b"$"):  # ids: XADD has been done
                    self.cut_next -= 1
                    self.cuts += 1
                    break
                client.sendall(data)
        except OSError:
            pass
        self.close(client, server)

    @staticmethod
    def close(*sockets):
        for s in sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()


class Moods(Case):
    """One relay with one consumer; Redis goes through something; everything arrives."""

    KEYS = 5

    def setUp(self):
        super().setUp()
        self.outbox("init")
        self.redis = servers.Redis({"key-load-delay": 0}).start()
        self.addCleanup(self.redis.close)
        self.sent = 0

    def send(self, n):
        self.emit_many({"type": "t", "aggregate_type": "k", "aggregate_id": str(i % self.KEYS), "payload": i}
                       for i in range(self.sent, self.sent + n))
        self.sent += n

    def start(self, url=None, *more):
        return self.relay("--log-level", "debug", "--consumer", "out", "--sink", url or self.redis.url("stream=s"), *more)

    def first_times(self):
        """first_times gives the payloads in the order of their first coming; an id that comes again must be the same."""
        seen, order = {}, []
        for _, event in self.redis.entries("s"):
            n = event["payload"]
            if n not in seen: order.append(n)
            self.assertEqual(seen.setdefault(n, event["event_id"]), event["event_id"])
        return order

    def arrived(self, relay):
        wait_until(lambda: len(self.first_times()) == self.sent, what=relay.output)
        order = self.first_times()
        for key in range(self.KEYS):
            self.assertEqual([n for n in order if n % self.KEYS == key], list(range(key, self.sent, self.KEYS)))
        # Nothing of this was an event's fault: no attempt was counted, nothing buried.
        self.assertNotIn("attempt 1 of", relay.output())
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    def down(self, relay, words):
        wait_until(lambda: "sink is down" in relay.output() and words in relay.output(), what=relay.output)

    def test_killed_and_started_again(self):
        with self.start() as relay:
            for _ in range(3):
                self.send(200)
                self.redis.kill()
                self.send(200)
                self.down(relay, "redis at")
                self.redis.start()
            self.arrived(relay)

    def test_stopped_by_a_signal_and_continued(self):
        with self.start(None, "--timeout", "300ms") as relay:
            self.send(100)
            self.arrived(relay)
            os.kill(self.redis.popen.pid, signal.SIGSTOP)
            self.send(300)
            self.down(relay, "has not answered for 300 ms")
            os.kill(self.redis.popen.pid, signal.SIGCONT)
            self.arrived(relay)

    def test_out_of_memory(self):
        with self.start() as relay:
            self.redis("CONFIG", "SET", "maxmemory", 1)
            self.send(200)
            self.down(relay, "OOM")
            self.redis("CONFIG", "SET", "maxmemory", 0)
            self.arrived(relay)

    def test_read_only_replica(self):
        with self.start() as relay:
            self.send(20)
            self.arrived(relay)
            self.redis("REPLICAOF", "127.0.0.1", 1)
            self.send(200)
            self.down(relay, "READONLY")
            self.redis("REPLICAOF", "NO", "ONE")
            self.arrived(relay)

    def test_loading(self):
        with self.start() as relay:
            self.send(200)
            self.arrived(relay)
            # It looks at its clients after every 1024 commands of the file.
            self.redis("EVAL", "for i = 1, 6000 do redis.call('set', 'x' .. i, i) end", 0)
            self.redis.kill()
            self.redis.settings |= {"key-load-delay": 300}
            self.send(50)
            self.redis.start()  # returns when it has loaded
            self.arrived(relay)
            self.assertIn("LOADING", relay.output())

    def test_cannot_save(self):
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
            self.arrived(relay)

    def test_script_that_does_not_end(self):
        with self.start() as relay:
            self.redis("CONFIG", "SET", "busy-reply-threshold", 50)
            busy = threading.Thread(target=self.loop_in_redis, daemon=True)
            busy.start()
            wait_until(self.is_busy)
            self.send(50)
            self.down(relay, "BUSY")
            self.redis("SCRIPT", "KILL")
            wait_until(lambda: not self.is_busy())
            self.arrived(relay)

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

    def test_connection_cut_after_xadd_and_before_the_reply(self):
        gate = Gate(self.redis.socket, self.path("gate"))
        with self.start(f"unix:{self.path('gate')}?stream=s") as relay:
            self.send(50)
            self.arrived(relay)
            for _ in range(3):
                gate.cut_next, cuts = 1, gate.cuts
                self.send(100)
                wait_until(lambda: gate.cuts > cuts, what=relay.output)
                self.arrived(relay)
        # It had been added, the relay did not know, and added it again.
        self.assertGreater(len(self.redis.entries("s")), self.sent)

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
        relay = self.relay("--consumer", "out", "--sink", cluster.url("stream=s"), wait=False)
        relay.wait(expect=69)
        self.assertIn("this is a cluster", relay.output())
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    @staticmethod
    def moved(cluster):
        try:
            cluster("XLEN", "s")
        except RuntimeError as e:
            return "MOVED" in str(e)
        return False


class RoundTrip(Case):
    """Database A, relay, Redis, reader, database B: everything in between is killed, and B ends equal to A."""

    def test_b_ends_equal_to_a_whatever_is_killed(self):
        until = time.monotonic() + 600
        seed = SEED
        self.storm(seed, 4)
        while SOAK and time.monotonic() < until:
            seed += 1
            self.storm(seed, 15)

    def b_sql(self, statement):
        db = sqlite3.connect(self.b, timeout=60)
        try:
            with db: return db.execute(statement).fetchall()
        finally:
            db.close()

    def begin(self):
        folder = self.path(f"storm-{len(self.children)}")
        folder.mkdir()
        self.db, self.b = folder / "a.db", folder / "b.db"
        self.store = f"sqlite:{self.db}"
        self.outbox("init")
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

    def storm(self, seed, seconds):
        rng = random.Random(seed)
        self.begin()
        producer = self.spawn(PROGRAMS / "fault_producer", self.db, self.path(f"diary-{seed}"), "p", rng.randrange(1 << 30))
        relay, reader, kills = self.run_relay(), self.run_reader(), 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.05, 0.4))
            what = rng.choice(("relay", "reader", "redis", "pause"))
            kills += 1
            if what == "relay":
                relay.kill()
                relay = self.run_relay()
            elif what == "reader":
                reader.kill()
                reader = self.run_reader()
            elif what == "redis":
                self.redis.kill()
                self.redis.start()
            else:
                self.redis.popen.send_signal(signal.SIGSTOP)
                time.sleep(rng.uniform(0, 0.2))
                self.redis.popen.send_signal(signal.SIGCONT)
        producer.stop()
        relay.kill()
        reader.kill()
        self.reckon(seed, kills)

    def reckon(self, seed, kills):
        self.run_relay("--drain").wait()
        self.run_reader("through").wait()
        a = self.sql("SELECT aggregate_id, payload FROM outbox_event ORDER BY seq")
        b = self.b_sql("SELECT key, payload FROM entry ORDER BY id")
        print(f"seed {seed}: {kills} kills, {len(a)} events, {self.redis('XLEN', 'ledger.account')} entries",
              file=sys.stderr, flush=True)
        self.assertGreater(len(a), 50)
        self.assertEqual(sorted(a), sorted(b), f"seed {seed}")
        for key in {row[0] for row in a}:
            self.assertEqual([row for row in a if row[0] == key], [row for row in b if row[0] == key], f"seed {seed}")
        totals = dict(self.b_sql("SELECT key, total FROM account"))
        self.assertEqual(totals, {key: sum(1 for row in a if row[0] == key) for key in totals})


