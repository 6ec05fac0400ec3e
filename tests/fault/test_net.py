"""Networks that break: connections that are reset, that stay open while their bytes vanish, that end in the middle of an
answer; between a relay and PostgreSQL, MariaDB, Redis, the endpoint of a webhook. The network is net.py.

# build: plain
# quick: no
"""
import contextlib
import pathlib
import random
import sqlite3
import urllib.parse

import servers
from http_endpoint import Endpoint
from net import Net
from scenario import CLAIMS, SEED, Numbers
from support import BIN, SOAK, TIMEOUT, Case, MariaCase, PgCase, wait_until

CUTS = 40 if SOAK else 4
FUSES = 60 if SOAK else 4
BATCH = 20
UNAVAILABLE, CONFIG = 69, 78
PROGRAMS = pathlib.Path(BIN).parent / "tests" / "fault"
DIRECTIONS = {"requests vanish": {"up": True}, "answers vanish": {"down": True}, "all vanishes": {"up": True, "down": True}}


class Network(Numbers):
    """self.start starts a relay that works through the network self.net."""

    def setUp(self):
        super().setUp()
        self.rng = random.Random(SEED)
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)

    def some(self):
        """some returns the kinds of half-open connections: all in a soak, else one."""
        return list(DIRECTIONS) if SOAK else [self.rng.choice(list(DIRECTIONS))]

    def cut_often(self, relay):
        """cut_often resets every connection repeatedly while there is work."""
        for _ in range(CUTS):
            before = self.missing()
            self.send(60)
            wait_until(lambda: len(self.missing()) < len(before) + 60 * self.rng.random(), what=relay.output)
            if self.net.cut(): self.fault("connections reset")
        self.send(10)
        self.heal(relay)
        self.assertGreater(self.faults["connections reset"], CUTS // 2)

    def blow_fuses(self, relay, most):
        """blow_fuses ends connections in the middle of an answer, at any byte."""
        for _ in range(FUSES):
            blown = self.net.blown
            self.net.fuse(self.rng.randrange(most))
            while self.net.blown == blown:
                self.send(5)
                with contextlib.suppress(AssertionError):
                    wait_until(lambda: self.net.blown > blown or not self.missing(), timeout=10)
            self.fault("answer cut off")
        self.send(10)
        self.heal(relay)


class ToStore(Network):
    """One relay works through the network (self.far), sometimes with another that bypasses it."""

    LEASE, LIMIT = 500, 1500  # ms
    TIMEOUT = "answer_timeout"
    SAID = "timeout expired|has not answered"
    GONE = "the server has not answered for 1s500ms"

    def setUp(self):
        super().setUp()
        self.init()
        self.query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.store).query))

    def start(self, store=None, *more):
        return self.relay("--store", store or self.far, "--consumer", "out", "--sink", f"file:{self.out}", "--batch", BATCH,
                          "--lease", f"{self.LEASE}ms", "--sweep", "10m", "--log-hold", "0s", *more)

    def bound(self, vanished):
        return (CLAIMS * vanished + self.lost_claims("out")) * BATCH

    def test_connections_reset_under_load_lose_nothing(self):
        """A relay whose connections to its store are reset continues on its own; nothing is lost, order is kept."""
        with self.start() as relay: self.cut_often(relay)
        self.reckon(self.bound(self.faults["connections reset"]))

    def test_answer_cut_off_at_any_byte_loses_nothing(self):
        """A relay whose connection ends at any byte of its store's answer continues on its own; nothing is lost."""
        with self.start() as relay: self.blow_fuses(relay, 6000)
        self.reckon(self.bound(self.faults["answer cut off"]))

    def half_open(self, kind, directions):
        self.send(40)
        with self.start(self.far, "--sweep", "2s") as far:  # it may be asleep when its network fails, and query only then
            self.wait_all(far)
            self.net.swallow(**directions)
            asked = self.net.made
            self.send(60)
            with self.start(self.store) as near:
                self.wait_all(near)  # the claims of the other relay have expired
                self.send(20)
                self.wait_all(near)
            # Although its network is still down, it does not wait forever: it reports that and retries.
            wait_until(lambda: self.GONE in far.output() and self.net.made > asked,
                       what=far.output)
            self.net.heal()
            self.fault(f"half-open: {kind}")
            self.send(20)
            self.heal(far)
        self.reckon(self.bound(1))

    def test_relay_recovers_from_a_half_open_connection(self):
        """A connection to a store that stays open while its bytes vanish: another relay takes over after the lease, and
        the one cut off recovers on its own, within its answer timeout."""
        for kind in self.some():
            with self.subTest(kind): self.half_open(kind, DIRECTIONS[kind])
            self.anew()

    def test_emitter_reports_a_half_open_connection(self):
        """An emitter whose answer vanishes ends with a clear error; its idempotency key shows whether the event was stored."""
        self.send(1)
        for _ in range(6 if SOAK else 1):
            self.net.swallow(down=True)
            emit = ["emit", "a", "--key", "k/1", "--payload", 1, "--idempotency-key", "once", "--store", self.far]
            said = self.outbox(*emit, status=UNAVAILABLE).stderr
            self.assertRegex(said, self.SAID)
            self.net.heal()
            self.fault("half-open: answers vanish")
        self.outbox(*emit[:-1], self.far.replace(f"{self.TIMEOUT}={self.LIMIT}ms", f"{self.TIMEOUT}=1m"))
        self.sent += 1
        with self.start() as relay:
            self.heal(relay)
            self.wait_let_go()
        self.reckon(0)


class ToPostgres(ToStore, PgCase):
    PREFIX = "outbox."

    def setUp(self):
        super().setUp()
        self.net = self.stack.enter_context(Net(f"{self.query['host']}/.s.PGSQL.{self.query.get('port', 5432)}"))
        self.far = (f"postgres://{servers.USER}@127.0.0.1:{self.net.port}/{self.dbname}?connect_timeout=2&sslmode=disable"
                    f"&answer_timeout={self.LIMIT}ms")

    def test_invalid_answer_timeout_is_refused(self):
        for value, words in (("soon", "answer_timeout"), ("5", "answer_timeout"), ("", "answer_timeout")):
            said = self.outbox("status", "--store", f"{self.store}&answer_timeout={value}", status=CONFIG).stderr
            self.assertIn(words, said)
        self.outbox("status", "--store", f"{self.store}&answer_timeout=0s")


class ToMariadb(ToStore, MariaCase):
    LEASE, LIMIT, TIMEOUT = 500, 2000, "answer-timeout"
    GONE = "the server has not answered for 2s"

    def setUp(self):
        super().setUp()
        self.net = self.stack.enter_context(Net(self.query["socket"]))
        self.far = f"mariadb://root@127.0.0.1:{self.net.port}/{self.dbname}?answer-timeout={self.LIMIT}ms"


class ToRedis(Network, Case):
    """A relay works through the network to Redis."""

    def setUp(self):
        super().setUp()
        self.init()
        self.redis = servers.Redis().start()
        self.addCleanup(self.redis.close)
        self.net = self.stack.enter_context(Net(self.redis.socket))
        self.far = f"redis://127.0.0.1:{self.net.port}?stream=s"

    def start(self, *more):
        return self.relay("--consumer", "out", "--sink", self.far, "--timeout", "300ms", "--batch", BATCH, "--log-hold",
                          "0s", "--sweep", "10m", *more)

    def got(self):
        return [(event["payload"], event["event_id"]) for _, event in self.redis.entries("s")]

    def reckon(self, faults):
        super().reckon((CLAIMS * faults + self.lost_claims("out")) * BATCH)

    def test_connections_reset_under_load_lose_nothing(self):
        """A relay whose connections to Redis are reset continues on its own; nothing is lost, order is kept."""
        with self.start() as relay: self.cut_often(relay)
        self.reckon(self.faults["connections reset"])

    def test_answer_cut_off_at_any_byte_loses_nothing(self):
        """A relay whose connection ends at any byte of Redis's answer continues on its own; nothing is lost."""
        with self.start() as relay: self.blow_fuses(relay, 300)
        self.reckon(self.faults["answer cut off"])

    def test_half_open_connection_is_dropped_after_the_timeout(self):
        """A connection to Redis that stays open while its bytes vanish is dropped after the timeout, and so are those made
        meanwhile; when the network is back the relay recovers on its own."""
        with self.start() as relay:
            for kind, directions in DIRECTIONS.items():
                self.send(30)
                self.wait_all(relay)
                self.net.swallow(**directions)
                made = self.net.made
                self.send(30)
                wait_until(lambda: self.net.made > made + 2, what=lambda: (self.net.made, relay.output()))
                self.assertIn("has not answered for 300 ms", relay.output())
                self.net.heal()
                self.fault(f"half-open: {kind}")
                self.heal(relay)
        self.reckon(3)

    def test_reader_recovers_from_a_half_open_connection(self):
        """A stream reader whose connection stays open while its bytes vanish recovers on its own; each event takes effect once,
        in order."""
        b = self.path("b.db")
        self.outbox("init", "--store", f"sqlite:{b}")
        db = sqlite3.connect(b, timeout=TIMEOUT, isolation_level=None)
        self.addCleanup(db.close)
        db.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, key TEXT, payload TEXT)")
        db.execute("CREATE TABLE account (key TEXT PRIMARY KEY, total INTEGER, last TEXT)")
        self.got = lambda: [(int(n), None) for n, in db.execute("SELECT payload FROM entry ORDER BY id")]
        reader = self.spawn(PROGRAMS / "fault_consumer", b, self.far, "mirror")
        with self.relay("--consumer", "out", "--sink", self.redis.url("stream=s")):
            for kind in self.some():
                self.send(20)
                self.wait_all(reader)
                self.net.swallow(**DIRECTIONS[kind])
                self.send(20)
                wait_until(lambda: len(self.redis.entries("s")) == self.sent)
                self.net.heal()
                self.fault(f"half-open: {kind}")
                self.heal(reader, timeout=90)
        reader.stop()
        self.stored = lambda: [(n, None) for n in range(self.sent)]
        Numbers.reckon(self, bound=0)


class ToWebhook(Network, Case):
    """A relay works through the network to the endpoint of a webhook."""

    def setUp(self):
        super().setUp()
        self.init()
        self.endpoint = Endpoint().start()
        self.addCleanup(self.endpoint.stop)
        self.net = self.stack.enter_context(Net(("127.0.0.1", self.endpoint.port)))
        self.far = f"http://127.0.0.1:{self.net.port}/hook"

    def start(self, *more):
        return self.relay("--consumer", "out", "--sink", self.far, "--timeout", "300ms", "--webhook-connect-timeout", "300ms",
                          "--retry", "base=20ms,cap=50ms,attempts=1000,outage=0s", "--batch", BATCH, "--log-hold", "0s", "--sweep", "10m", *more)

    def got(self):
        return [(int(request.body), request.id) for request in list(self.endpoint.requests)]

    def reckon(self, relay):
        """Each attempt that failed may have arrived."""
        log = relay.output()
        super().reckon(log.count("failed, attempt") + log.count("sink is down") + 4 * sum(self.faults.values()))

    def test_connections_reset_under_load_lose_nothing(self):
        """A relay whose connections to an endpoint are reset continues on its own; nothing is lost, order is kept."""
        with self.start() as relay: self.cut_often(relay)
        self.reckon(relay)

    def test_answer_cut_off_at_any_byte_loses_nothing(self):
        """A relay whose connection ends at any byte of an endpoint's answer continues on its own; nothing is lost."""
        with self.start() as relay: self.blow_fuses(relay, 100)
        self.reckon(relay)

    def test_half_open_connection_is_dropped_after_the_timeout(self):
        """A connection to an endpoint that stays open while its bytes vanish is dropped after the timeout; when the network
        is back the relay recovers on its own."""
        with self.start() as relay:
            for kind, directions in DIRECTIONS.items():
                self.send(30)
                self.wait_all(relay)
                self.net.swallow(**directions)
                self.send(30)
                said = relay.output().count("no complete response")
                wait_until(lambda: relay.output().count("no complete response") > said + 1, what=relay.output)
                self.net.heal()
                self.fault(f"half-open: {kind}")
                self.heal(relay)
        self.reckon(relay)
