"""PostgreSQL servers that die, come back, hand over to a standby or run out of space, and relays that are killed -9:
nothing lost, order kept, and nobody has to start a relay again.

# build: plain
# quick: no

The storms take their timing from a seed, printed when one fails: OUTBOX_SEED=N plays it again, as far as processes can
be played again. OUTBOX_SOAK=1 goes on for minutes, each round with another seed."""
import contextlib
import os
import subprocess
import time
import uuid

import crowd
import producer
import psycopg2
import servers
from crowd import STORM
from scenario import CLAIMS, Numbers
from support import TIMEOUT, Case, PgCase, wait_until

SOON = 20  # seconds: far longer than a relay waits between two tries to reach its server, shorter than its sweep
UNAVAILABLE = 69


class ServerCase(Case):
    """A Case on a server of its class's own, with a database of its own."""

    settings = {}

    @classmethod
    def setUpClass(cls):
        cls.server = servers.Postgres(cls.settings).start()
        cls.addClassCleanup(cls.server.close)

    def setUp(self):
        super().setUp()
        self.dbname = f"t_{uuid.uuid4().hex[:12]}"
        self.store = self.server.create_database(self.dbname)
        self.out = self.path("out")

    def sql(self, statement, *params):
        return servers.execute(self.store, statement, *params)

    ask = PgCase.ask

    def mail(self, *more, **kw):
        return self.relay("--consumer", "mail", "--sink", f"file:{self.out}", "--lease", "500ms", *more, **kw)

    def got(self):
        return [ev["payload"] for ev in self.ndjson(self.out)]

    def wait_for(self, payloads, *relays, timeout=TIMEOUT):
        wait_until(lambda: set(self.got()) >= set(payloads), timeout, lambda: "".join(
            [f"missing {sorted(set(payloads) - set(self.got()))[:20]}\n", *(r.output() for r in relays)]))

    def asleep(self):
        return self.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted")


class Crowd(crowd.Crowd, ServerCase):
    PREFIX = "outbox."
    TABLE, FILL = producer.TABLE, producer.FILL

    def rows(self):
        return self.sql("SELECT id::text, aggregate_id, payload::text FROM outbox.event")


class Storm(crowd.Storms, Crowd):
    def test_a_storm_of_kills_loses_invents_and_reorders_nothing(self):
        """Whoever is killed or stopped whenever: what was committed is delivered, in order, and nothing else is."""
        self.rounds(lambda seconds: self.storm(1, seconds), STORM)

    def test_a_storm_of_kills_loses_invents_and_reorders_nothing_with_lanes(self):
        """Whoever is killed or stopped whenever: what was committed is delivered, in order, also in several lanes."""
        self.rounds(lambda seconds: self.storm(4, seconds), STORM)

    def test_a_storm_of_kills_loses_invents_and_reorders_nothing_where_relays_share_many_lanes(self):
        """Whoever is killed or stopped whenever: lanes that relays join, split and take over lose and reorder nothing."""
        self.rounds(lambda seconds: self.storm(16, seconds, relays=3), STORM)


class Crash(Crowd):
    """The server ends without a word and comes back; nobody else is started again."""
    lease = "1s"  # what is in flight takes longer on a server that has just come back and is busy with others

    def crashes(self, seconds):
        self.begin(2)
        crew = self.crew(2, 2)
        end = time.monotonic() + seconds
        ways = {"server stopped immediate": lambda: self.server.stop("immediate"), "server killed": self.server.kill,
                "server stopped fast": lambda: self.server.stop("fast")}
        for n in range(1 << 20):
            before = sum(self.versions().values())
            time.sleep(self.random.uniform(0.2, 0.6))
            wait_until(lambda: sum(self.versions().values()) > before)
            kind = list(ways)[n % 3]
            ways[kind]()
            time.sleep(self.random.uniform(0, 0.3))
            self.server.start()
            self.fault(kind)
            if time.monotonic() > end and n >= 2: break
        self.wait_books(20, crew)
        self.dismiss(crew)
        self.heal()
        self.check()

    def test_a_server_that_dies_under_load_and_comes_back_loses_nothing(self):
        """A server that ends without a word, immediately or fast, and comes back: what was committed is delivered, in
        order, and nobody has to start a relay again."""
        self.rounds(self.crashes, STORM)

    def test_a_server_restarted_while_a_relay_sleeps_finds_it_awake_for_the_next_event(self):
        self.init()
        with self.mail("--sweep", "10m") as relay:
            for n, mode in enumerate(("fast", "immediate")):
                self.emit("a", "k/1", 2 * n)
                self.wait_for(range(2 * n + 1), relay)
                wait_until(self.asleep)
                self.server.restart(mode)
                self.emit("a", "k/1", 2 * n + 1)
                self.wait_for(range(2 * n + 2), relay, timeout=SOON)
                wait_until(self.asleep)  # and it sleeps again, instead of asking on and on
        self.assertEqual(list(dict.fromkeys(self.got())), [0, 1, 2, 3])


class Trickle(Numbers, ServerCase):
    """The server dies while one event comes after the other: the turns of a relay don't wait for the disk then, and nobody else writes
    the log for it."""
    PREFIX = "outbox."
    settings = {"wal_writer_delay": "10s", "wal_level": "minimal", "max_wal_senders": 0}

    def dies(self, relay):
        """A few events, and death in the moment in which the last one is claimed, delivered or settled."""
        for _ in range(self.random.randrange(3, 12)): self.send(1)
        time.sleep(self.random.uniform(0, 0.01))
        self.server.kill()
        self.server.start()
        self.fault("server killed")
        self.wait_all(relay)

    def trickle(self, seconds):
        self.init()
        with self.mail() as relay:
            end = time.monotonic() + seconds
            for n in range(1 << 20):
                self.dies(relay)
                if time.monotonic() > end and n >= 4: break
            self.send(1)
            self.heal(relay)
            self.wait_let_go()
        self.reckon(2 * self.faults["server killed"])

    def test_a_server_that_dies_while_one_event_comes_after_the_other_repeats_the_last_ones_and_loses_nothing(self):
        self.rounds(self.trickle, STORM)


class Pooled(Crowd):
    """Everybody goes through a PgBouncer, which is killed and comes back."""
    lease = "1s"

    def sql(self, statement, *params):
        return servers.execute(self.server.url(self.dbname), statement, *params)

    def pooled(self, mode, seconds):
        self.begin(1)
        pooler = servers.PgBouncer(self.server, {"pool_mode": mode}).start()
        self.addCleanup(pooler.close)
        self.addCleanup(self._end_children)
        self.store = pooler.url(self.dbname)
        crew = self.crew(2, 2)
        end = time.monotonic() + seconds
        while time.monotonic() < end or not self.faults:
            self.wait_books(10, crew)
            pooler.kill()
            time.sleep(self.random.uniform(0, 0.3))
            pooler.start()
            self.fault("pooler killed")
        self.wait_books(20, crew)
        self.dismiss(crew)
        self.heal()
        self.check()

    def test_a_transaction_pooler_killed_under_load_loses_nothing(self):
        """A PgBouncer in transaction mode that is killed and comes back: what was committed is delivered, in order, by the same
        relays."""
        self.rounds(lambda seconds: self.pooled("transaction", seconds), STORM)

    def test_a_session_pooler_killed_under_load_loses_nothing(self):
        """A PgBouncer in session mode that is killed and comes back: what was committed is delivered, in order, by the same
        relays."""
        self.rounds(lambda seconds: self.pooled("session", seconds), STORM)


class Standby(servers.Postgres):
    """A streaming copy of another server."""

    def __init__(self, primary):
        super().__init__()
        self.primary = primary

    def prepare(self):
        self.run(str(self.bin / "pg_basebackup"), "-h", str(self.primary.dir), "-U", servers.USER, "-D",
                 str(self.dir / "data"), "-R", "-X", "stream", "-c", "fast", "--no-sync")
        self.settings |= {"unix_socket_directories": str(self.dir), "port": self.port}


class Failover(Crowd):
    @classmethod
    def setUpClass(cls):
        pass

    def setUp(self):
        self.primary = self.server = servers.Postgres().start()
        super().setUp()
        self.addCleanup(self.primary.close)
        self.standby = Standby(self.primary).start()
        self.addCleanup(self.standby.close)
        # What was told to be committed is on both.
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.sql("SELECT pg_reload_conf()")
        wait_until(lambda: self.sql("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
        hosts = f"host={self.primary.dir},{self.standby.dir}"
        self.store = self.store.replace(f"host={self.primary.dir}", hosts) + "&target_session_attrs=read-write"

    def test_a_standby_can_be_read_and_says_why_it_cannot_be_written_to(self):
        self.init()
        id = self.emit("a", "k/1", 1)
        copy = self.standby.url(self.dbname)
        wait_until(lambda: servers.execute(copy, "SELECT to_regclass('outbox.event')")[0][0] and
                   servers.execute(copy, "SELECT 1 FROM outbox.event"))
        self.assertIn(id, self.outbox("events", "list", "--store", copy).stdout)
        self.outbox("status", "--store", copy)
        consumer = ["--consumer", "m", "--sink", "stdout:"]
        for args in (["emit", "a"], ["relay", "--drain", *consumer]):
            self.assertIn("connect to the primary", self.outbox(*args, "--store", copy, status=UNAVAILABLE).stderr)
        with self.relay(*consumer, "--store", copy, wait=False) as relay:
            wait_until(lambda: "connect to the primary" in relay.output(), what=relay.output)
            self.assertTrue(relay.running())
        self.outbox("emit", "a", status=UNAVAILABLE, env={"OUTBOX_STORE": copy + "&target_session_attrs=read-write"})

    def test_a_relay_follows_to_the_standby_that_takes_over(self):
        """A primary that dies and a standby that takes over: what was committed on both is delivered, in order, by the same
        relays."""
        self.rounds(self.failover, 0)

    def failover(self, _):
        self.begin(1)
        crew = self.crew(2, 2)
        self.wait_books(30, crew)
        self.primary.kill()
        self.fault("primary killed")
        servers.execute(self.standby.url("postgres"), "SELECT pg_promote()")
        self.fault_over()
        self.wait_books(30, crew)
        self.dismiss(crew)
        self.heal()
        self.check()


class SmallDisk(servers.Postgres):
    """A server with a tablespace `small` of a few megabytes, in a file system of its own that only it can see. Its log
    and its WAL are elsewhere: it does not die of it."""

    MEGABYTES = 16
    MOUNT = (f'mount -t tmpfs -o size={MEGABYTES}m none "$0" && mkdir "$0/space" && '
             'exec unshare -U --map-user=1000 --map-group=1000 setpriv --pdeathsig INT "$@"')

    def prepare(self):
        super().prepare()
        self.run("mkdir", str(self.dir / "small"))

    def command(self):
        return ["unshare", "-rm", "sh", "-c", self.MOUNT, str(self.dir / "small"), *super().command()]

    @staticmethod
    def possible():
        argv = [*servers.unprivileged("KILL"), "unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
        return subprocess.run(argv, cwd="/", capture_output=True).returncode == 0


class DiskFull(Numbers, ServerCase):
    PREFIX = "outbox."

    @classmethod
    def setUpClass(cls):
        if not SmallDisk.possible(): return cls.skipTest(cls, "this machine lets nobody mount a small file system")
        cls.server = SmallDisk().start()
        cls.addClassCleanup(cls.server.close)
        servers.execute(cls.server.url("postgres"), f"CREATE TABLESPACE small LOCATION '{cls.server.dir}/small/space'")

    def setUp(self):
        super().setUp()
        servers.execute(self.server.url("postgres"), f"ALTER DATABASE {self.dbname} SET TABLESPACE small")

    def fill(self):
        """fill takes what room there is, in large pieces and then in small ones."""
        self.sql("CREATE TABLE ballast (piece text)")
        self.sql("ALTER TABLE ballast ALTER piece SET STORAGE EXTERNAL")
        for size in (1 << 20, 1 << 16, 6000):
            with contextlib.suppress(psycopg2.errors.DiskFull):
                while True: self.sql("INSERT INTO ballast VALUES (repeat('x', %s))", size)

    def test_a_full_disk_refuses_emits_clearly_and_loses_nothing(self):
        """A database without room refuses emits and says why; what was committed is delivered, in order, when there is
        room again."""
        large = f'"{os.urandom(40000).hex()}"'
        self.init()
        self.drain("--consumer", "mail", "--sink", f"file:{self.out}")
        self.send(300)
        db = psycopg2.connect(self.store)
        with db, db.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1")  # as long as this goes on, no place can be used again
            self.fill()
            said = self.outbox("emit", "a", "--payload", large, status=UNAVAILABLE).stderr
            self.assertIn("No space left on device", said)
            self.assertIn("make room, then try again", said)
            relay = self.mail("--batch", 1)
            wait_until(lambda: "No space left on device" in relay.output() and "trying again" in relay.output(),
                       what=lambda: (len(self.got()), relay.output()))
            self.assertTrue(self.missing())
            self.sql("DROP TABLE ballast")
        db.close()
        self.fault("database full")
        self.wait_all(relay)
        self.healed()
        relay.stop()
        # A delivery that could not be recorded comes again, and a relay holds four of one event at most.
        self.reckon(bound=CLAIMS * (relay.output().count("trying again") + self.lost_claims("mail")))
        self.outbox("emit", "a", "--payload", large)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.event"), [(self.sent + 1,)])


class TwoPhase(ServerCase):
    """Where transactions may be prepared for two-phase commit nobody rings, because such a transaction could not be
    prepared; the relay looks by itself."""

    settings = {"max_prepared_transactions": 5}

    def prepare(self, name, payload):
        db = psycopg2.connect(self.store)
        try:
            with db.cursor() as cursor:
                cursor.execute("SELECT outbox.emit('a', 'k', '1', %s)", (str(payload),))
                cursor.execute(f"PREPARE TRANSACTION '{name}'")
        finally:
            db.close()

    def test_prepared_transactions_are_delivered_once_they_commit_also_after_a_crash(self):
        self.init()
        with self.mail() as relay:
            self.prepare("one", 1)
            self.prepare("two", 2)
            self.emit("a", "k/1", 3)
            self.wait_for([3], relay)
            self.assertEqual(self.asleep(), [])
            self.assertEqual(self.sql("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"), [])
            self.server.restart("immediate")
            self.sql("COMMIT PREPARED 'one'")
            self.wait_for([3, 1], relay, timeout=SOON)
            self.sql("ROLLBACK PREPARED 'two'")
            self.emit("a", "k/1", 4)
            self.wait_for([3, 1, 4], relay, timeout=SOON)
        self.assertEqual(list(dict.fromkeys(self.got())), [3, 1, 4])
