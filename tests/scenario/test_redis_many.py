"""Redis by the several, through the CLI: a cluster whose servers share the streams, and a master that Sentinels name."""
# build: plain
# quick: no
import json
import pathlib
import re
import shutil
import tempfile

import broker_redis
from broker_rabbitmq import make_certificates
from broker_metrics import BrokerView
from support import Case, wait_until

KEYS = 40


class Many(BrokerView, Case):
    """One group of servers for all cases of a class, empty for each."""

    def setUp(self):
        super().setUp()
        self.init()

    def fill(self, n, first=0):
        self.emit_many({"type": f"t.{i % 8}", "aggregate_type": "k", "aggregate_id": str(i % KEYS), "payload": i}
                       for i in range(first, first + n))

    def check(self, url, consumer="out"):
        """check verifies that every event arrived, in order, and returns the verdict."""
        return json.loads(self.outbox("receive", url, "--check", "--consumer", consumer, "--idle", "500ms", "--json").stdout)


class InACluster(Many):
    @classmethod
    def setUpClass(cls):
        cls.cluster = broker_redis.Cluster(3, replicas=1).__enter__()
        cls.addClassCleanup(cls.cluster.close)

    def setUp(self):
        super().setUp()
        for node in self.cluster.masters(): node("FLUSHALL")

    def to(self, query, *more, seeds=2):
        return ["--consumer", "out", "--sink", self.cluster.url(query, seeds), *more]

    def test_servers_with_slots_are_shown(self):
        """Those we are connected to are the brokers; those that have slots lead."""
        masters = {node.address for node in self.cluster.masters()}
        args = self.to("stream={aggregate_id}")
        self.assertIn("redis-cluster at ", self.outbox("doctor", "--connect", *args, status=None).stdout)
        with self.serve(*args) as relay:
            def all_shown():  # servers are asked for their slots only while events are delivered
                self.fill(KEYS)
                have = self.shown(relay)
                return all(set(have[name].split(",")) == masters for name in ("broker", "leader"))
            wait_until(all_shown, what=lambda: f"{masters}\nbut {self.shown(relay)}")
            self.wait_shown(relay, kind="redis-cluster", connected=1, unconfirmed=0)

    def test_streams_are_spread_over_the_servers(self):
        self.fill(2000)
        self.drain(*self.to("stream=k.{aggregate_id}", seeds=1))
        sizes = [node("DBSIZE") for node in self.cluster.masters()]
        self.assertEqual(sum(sizes), KEYS)
        self.assertEqual(len([n for n in sizes if n]), 3)
        for key in range(0, KEYS, 13):
            got = [json.loads(fields[1])["payload"] for _, fields in self.cluster.entries(f"k.{key}")]
            self.assertEqual(got, list(range(key, 2000, KEYS)))
        verdict = self.check(self.cluster.url("stream=k.{aggregate_id}"))
        self.assertEqual((verdict["events"], verdict["lost"], verdict["misordered"], verdict["repeats"]), (2000, 0, 0, 0))

    def test_hash_tag_keeps_streams_together(self):
        self.fill(100)
        self.drain(*self.to("stream={{{aggregate_type}}}.{type[1]}"))
        self.assertEqual(sorted(node("DBSIZE") for node in self.cluster.masters()), [0, 0, 8])

    def test_cluster_supports_marks_receipts_replicas_and_a_lease(self):
        self.fill(200)
        self.drain(*self.to("stream=k.{aggregate_id}&replicas=1&lease=lock:out&format=plain", "--receipts"))
        marks = [json.loads(line) for line in self.outbox("hwm", "--json").stdout.splitlines()]
        last = {f"k.{key}": self.cluster.entries(f"k.{key}")[-1][0] for key in range(KEYS)}
        self.assertEqual({m["stream"]: m["id"] for m in marks}, last)
        self.assertEqual(len(self.sql("SELECT 1 FROM outbox_receipt")), 200)
        self.assertIsNone(self.cluster.owner("lock:out")("GET", "lock:out"))  # given back

    def test_slots_move_during_delivery_without_loss(self):
        """Every event arrives once, in order, while its slot is moving (ASK) and after it has moved (MOVED)."""
        url = self.cluster.url("stream=k.{aggregate_id}")
        slots = sorted({self.cluster.slot(f"k.{key}") for key in range(KEYS)})
        with self.relay(*self.to("stream=k.{aggregate_id}")) as relay:
            self.fill(500)
            masters = self.cluster.masters()
            before = dict((slot, self.cluster.owner(f"k.{key}")) for key in range(KEYS) for slot in [self.cluster.slot(f"k.{key}")])
            for i, slot in enumerate(slots[::4]):
                self.fill(50, 500 + 50 * i)
                to = masters[(masters.index(before[slot]) + 1) % len(masters)]
                self.cluster.migrate(slot, to)
            total = 500 + 50 * len(slots[::4])
            wait_until(lambda: sum(len(self.cluster.entries(f"k.{key}")) for key in range(KEYS)) >= total, what=relay.output)
        verdict = self.check(url)
        self.assertEqual((verdict["events"], verdict["lost"], verdict["misordered"], verdict["repeats"]), (total, 0, 0, 0))
        self.assertNotIn("sink is down", relay.output())

    def test_config_check_connects_to_the_cluster(self):
        config = self.path("outbox.conf")
        config.write_text(f"[outbox]\nstore = {self.store}\n[consumer out]\nsink = {self.cluster.url('stream=s')}\n")
        self.outbox("-c", config, "config", "check", "--connect")
        with broker_redis.Node() as alone:
            config.write_text(f"[outbox]\nstore = {self.store}\n[consumer out]\nsink = redis-cluster://{alone.address}/?stream=s\n")
            self.assertIn("cluster support disabled", self.outbox("-c", config, "config", "check", "--connect", status=78).stderr)

    def test_plain_url_error_shows_the_cluster_url(self):
        self.fill(20)
        with self.relay("--consumer", "out", "--sink", f"redis://{self.cluster.nodes[0].address}?stream=k.{{aggregate_id}}") as relay:
            wait_until(lambda: "use redis-cluster://" in relay.output(), what=relay.output)


class BySentinels(Many):
    @classmethod
    def setUpClass(cls):
        cls.group = broker_redis.Sentinels().__enter__()
        cls.addClassCleanup(cls.group.close)

    def setUp(self):
        super().setUp()
        self.group.master()("FLUSHALL")

    def entries(self):
        return len(self.group.master()("XRANGE", "s", "-", "+"))

    def test_z_failover_loses_nothing(self):
        """With replicas=1 nothing that was delivered is lost with the master."""
        url = self.group.url("stream=s&replicas=1")
        with self.serve("--consumer", "out", "--sink", url) as relay:
            self.fill(300)
            wait_until(lambda: self.entries() == 300, what=relay.output)
            old = self.group.master()
            old.kill()
            self.fill(300, 300)
            self.group.wait_for_another_master(old)
            wait_until(lambda: self.entries() >= 600, what=relay.output)
            current = lambda address: address == self.group.master().address  # a slow machine may fail over twice
            self.wait_shown(relay, broker=current, leader=current, connected=1, unconfirmed=0)
        verdict = self.check(url)
        self.assertEqual((verdict["events"], verdict["lost"], verdict["misordered"]), (600, 0, 0))

    def test_status_shows_the_master(self):
        master = self.group.master().address
        args = ["--consumer", "out", "--sink", self.group.url("stream=s")]
        self.assertIn(f"redis-sentinel at {master} answered within", self.outbox("doctor", "--connect", *args, status=None).stdout)
        with self.serve(*args) as relay:
            self.fill(1)
            self.wait_shown(relay, kind="redis-sentinel", broker=master, leader=master, connected=1, unconfirmed=0)

    def test_unreachable_sentinel_is_skipped(self):
        away = broker_redis.free_port()
        self.fill(20)
        self.drain("--consumer", "out", "--sink", f"redis-sentinel://127.0.0.1:{away},{self.group.sentinels[2].address}/shop?stream=s")
        self.assertEqual(self.entries(), 20)

    def test_unknown_master_name_is_reported(self):
        self.fill(1)
        with self.relay("--consumer", "out", "--sink", self.group.url("stream=s").replace("/shop", "/stop")) as relay:
            wait_until(lambda: 'does not know a master "stop"' in relay.output(), what=relay.output)
        self.assertIn("names no master", self.outbox("relay", "--drain", "--consumer", "out", "--sink",
                                                   "redis-sentinel://127.0.0.1?stream=s", status=78).stderr)


class BySentinelsWithPasswords(Many):
    """Servers and Sentinels have separate passwords, which come from files or the environment and are never shown."""

    def test_sentinel_and_master_logins_both_work(self):
        with broker_redis.Sentinels(replicas=1, sentinels=1, password="s3cret-data", sentinel_password="s3cret-watch") as group:
            self.fill(100)
            secret = self.path("watch")
            secret.write_text("s3cret-watch\n")
            url = group.url("stream=s&replicas=1")
            env = {"OUTBOX_REDIS_PASSWORD": "s3cret-data"}
            with self.relay("--consumer", "out", "--sink", url, env=env) as relay:
                wait_until(lambda: "NOAUTH" in relay.output(), what=relay.output)  # at the Sentinel
            self.drain("--consumer", "out", "--sink", url + f"&sentinel-password-file={secret}", env=env)
            self.assertEqual(group.master()("XLEN", "s"), 100)
            env["OUTBOX_REDIS_SENTINEL_PASSWORD"] = "s3cret-wrong"
            self.fill(1, 100)
            with self.relay("--consumer", "out", "--sink", url, env=env) as wrong:
                wait_until(lambda: "WRONGPASS" in wrong.output(), what=wrong.output)
            self.assertNotIn("s3cret", relay.output() + wrong.output())
            env["OUTBOX_REDIS_SENTINEL_PASSWORD"] = "s3cret-watch"
            self.drain("--consumer", "out", "--sink", url, env=env)
            self.assertEqual(group.master()("XLEN", "s"), 101)


class BySentinelsWithTls(Many):
    """Sentinels, master and replica accept only TLS; each certificate must be valid."""

    def test_sentinels_and_master_are_reached_over_tls(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="obtls"))
        self.addCleanup(shutil.rmtree, folder)
        folder.chmod(0o755)
        make_certificates(folder)
        with broker_redis.Sentinels(replicas=1, sentinels=1, tls=folder) as group:
            url = group.url(f"stream=s&replicas=1&ca={folder}/ca.crt")
            self.fill(50)
            self.drain("--consumer", "out", "--sink", url)
            self.assertEqual(group.master()("XLEN", "s"), 50)
            verdict = self.check(url)
            self.assertEqual((verdict["events"], verdict["lost"], verdict["misordered"]), (50, 0, 0))

            self.fill(1, 50)
            for wrong, words in ((group.url("stream=s"), "certificate"),
                                 (url.replace("rediss-", "redis-").partition("&ca=")[0], "127.0.0.1")):
                with self.subTest(words), self.relay("--consumer", "out", "--sink", wrong) as relay:
                    wait_until(lambda: re.search(f"sink is down: sentinel at .*{words}", relay.output()), what=relay.output)
            self.assertEqual(group.master()("XLEN", "s"), 50)

            with self.serve("--consumer", "out", "--sink", url) as relay:
                old = group.master()
                wait_until(lambda: old("XLEN", "s") == 51, what=relay.output)
                self.wait_shown(relay, kind="redis-sentinel", broker=old.address, leader=old.address, connected=1, unconfirmed=0)
                old.kill()
                new = group.wait_for_another_master(old)
                new("CONFIG", "SET", "min-replicas-to-write", "0")
            self.fill(9, 51)
            self.drain("--consumer", "out", "--sink", url.replace("&replicas=1", ""))
            self.assertEqual(new("XLEN", "s"), 60)
