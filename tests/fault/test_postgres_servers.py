"""PostgreSQL servers that die, restart or run out of space, and relays that are killed -9: nothing is lost, order is kept, and
no relay has to be restarted.

# build: plain
# quick: no

The storms take their timing from a seed, printed when one fails: OUTBOX_SEED=N replays it as far as processes allow.
OUTBOX_SOAK=1 runs for minutes, each round with another seed."""
import contextlib
import os
import signal
import time

import workload
import psycopg2
import servers
import small_disk
from workload import STORM
from on_server import Load, ServerCase
from scenario import CLAIMS, Numbers
from small_disk import HeldDisk
from support import wait_until

SOON = 20  # seconds: far longer than a relay's reconnect interval, shorter than its sweep
UNAVAILABLE = 69
BATCH = 20


class Storm(workload.Storms, Load):
    pass


class Crash(workload.ServerCrashes, Load):
    def ways(self):
        return {"server stopped immediate": lambda: self.server.stop("immediate"), "server killed": self.server.kill,
                "server stopped fast": lambda: self.server.stop("fast")}

    def test_relay_asleep_during_a_server_restart_still_wakes(self):
        self.init()
        with self.mail("--sweep", "10m") as relay:
            for n, mode in enumerate(("fast", "immediate")):
                self.emit("a", "k/1", 2 * n)
                self.wait_for(range(2 * n + 1), relay)
                wait_until(self.asleep)
                self.server.restart(mode)
                self.emit("a", "k/1", 2 * n + 1)
                self.wait_for(range(2 * n + 2), relay, timeout=SOON)
                wait_until(self.asleep)  # and it sleeps again instead of polling
        self.assertEqual(list(dict.fromkeys(self.got())), [0, 1, 2, 3])


class Trickle(Numbers, ServerCase):
    """The server dies while events arrive one by one: a relay's turns then don't wait for the disk, and no other process
    flushes the log for it."""
    PREFIX = "outbox."
    settings = {"wal_writer_delay": "10s", "wal_level": "minimal", "max_wal_senders": 0}

    def dies(self, relay):
        """A few events, and a crash at the moment the last one is claimed, delivered or settled."""
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

    def test_crash_under_light_load_repeats_only_the_last_event(self):
        self.rounds(self.trickle, STORM)


class Pooled(Load):
    """All clients go through a PgBouncer, which is killed and restarted."""
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

    def test_transaction_pooler_killed_under_load_loses_nothing(self):
        """A PgBouncer in transaction mode that is killed and restarted: committed events are delivered, in order, by the same
        relays."""
        self.rounds(lambda seconds: self.pooled("transaction", seconds), STORM)

    def test_session_pooler_killed_under_load_loses_nothing(self):
        """A PgBouncer in session mode that is killed and restarted: committed events are delivered, in order, by the same
        relays."""
        self.rounds(lambda seconds: self.pooled("session", seconds), STORM)


class SmallDisk(servers.Postgres):
    """A server with a tablespace `small` of a few megabytes, in a separate file system that only it can see. Its log and its
    WAL are elsewhere, so a full tablespace does not end it."""

    MEGABYTES = 16
    MOUNT = (f'mount -t tmpfs -o size={MEGABYTES}m none "$0" && mkdir "$0/space" && '
             'exec unshare -U --map-user=1000 --map-group=1000 setpriv --pdeathsig INT "$@"')

    def prepare(self):
        super().prepare()
        self.run("mkdir", str(self.dir / "small"))

    def command(self):
        return ["unshare", "-rm", "sh", "-c", self.MOUNT, str(self.dir / "small"), *super().command()]


class DiskFull(Numbers, ServerCase):
    PREFIX = "outbox."

    @classmethod
    def setUpClass(cls):
        if not small_disk.possible(): return cls.skipTest(cls, "this machine does not allow mounting a small file system")

    def setUp(self):
        """A server per test: files of a dropped database occupy space as long as any process has them open."""
        self.server = SmallDisk().start()
        self.addCleanup(self.server.close)
        super().setUp()
        servers.execute(self.server.url("postgres"), f"CREATE TABLESPACE small LOCATION '{self.server.dir}/small/space'")
        servers.execute(self.server.url("postgres"), f"ALTER DATABASE {self.dbname} SET TABLESPACE small")

    def fill(self):
        """fill uses up the room, in large pieces and then in small ones."""
        self.sql("CREATE TABLE ballast (piece text)")
        self.sql("ALTER TABLE ballast ALTER piece SET STORAGE EXTERNAL")
        for size in (1 << 20, 1 << 16, 6000):
            with contextlib.suppress(psycopg2.errors.DiskFull):
                while True: self.sql("INSERT INTO ballast VALUES (repeat('x', %s))", size)

    def test_emits_fail_clearly_on_a_full_disk_and_lose_nothing(self):
        """A database without room refuses emits and says why; committed events are delivered, in order, once there is room
        again."""
        large = f'"{os.urandom(40000).hex()}"'
        self.init()
        self.drain("--consumer", "mail", "--sink", f"file:{self.out}")
        self.send(300)
        db = psycopg2.connect(self.store)
        with db, db.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1")  # while this session is open, no space can be reused
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
        # An unrecorded delivery is repeated, and a relay holds at most four batches of one event.
        self.reckon(bound=CLAIMS * (relay.output().count("trying again") + self.lost_claims("mail")))
        self.outbox("emit", "a", "--payload", large)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.event"), [(self.sent + 1,)])

    def test_relay_recovers_after_a_full_disk(self):
        """A database that repeatedly fills up under a relay: the relay continues, and committed events are delivered, in order,
        with no help but free space."""
        self.init()
        with self.mail("--batch", 1) as relay:
            for n in range(2):
                self.send(100)
                self.wait_all(relay)
                relay.freeze()
                self.send(100)
                self.fill()
                relay.signal(signal.SIGCONT)
                # Writes may find room in existing pages.
                wait_until(lambda: relay.output().count("No space left on device") > n or not self.missing(), what=relay.output)
                self.sql("DROP TABLE ballast")
                self.fault("database full")
                self.heal(relay)
            self.wait_let_go()
        self.reckon(bound=CLAIMS * (relay.output().count("trying again") + self.lost_claims("mail")))


class SmallLog(HeldDisk, servers.Postgres):
    """A server whose write-ahead log is on a small disk: without room there it ends itself."""

    MEGABYTES = 64

    def prepare(self):
        super().prepare()
        self.settings |= {"max_wal_size": "32MB", "min_wal_size": "32MB"}
        here, log = self.dir / "wal", self.dir / "data" / "pg_wal"
        self.run("mkdir", str(here))
        self.hold(here)
        self.run(*self.inside("sh", "-c", 'cp -a "$1/." "$0" && rm -r "$1" && ln -s "$0" "$1"', str(here), str(log)))


class LogFull(Numbers, ServerCase):
    PREFIX = "outbox."

    @classmethod
    def setUpClass(cls):
        if not small_disk.possible(): return cls.skipTest(cls, "this machine does not allow mounting a small file system")
        cls.server = SmallLog().start()
        cls.addClassCleanup(cls.server.close)

    def test_server_aborting_on_a_full_disk_loses_nothing(self):
        """Without room for its log the server ends itself. Restarted with room, it has every committed event, and relays
        continue without a restart."""
        self.init()
        with self.mail("--batch", BATCH) as relay:
            self.send(200)
            self.wait_all(relay)
            relay.freeze()
            self.send(100)
            self.server.fill()
            with self.assertRaises(psycopg2.Error):
                self.sql("CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)")
            relay.signal(signal.SIGCONT)
            wait_until(lambda: "could not" in relay.output(), what=relay.output)
            wait_until(lambda: not self.server.running(), what=self.server.log)
            self.server.make_room()
            self.server.start()
            self.fault("log full")
            self.send(50)
            self.heal(relay)
            self.wait_let_go()
        self.reckon(bound=CLAIMS * (1 + self.lost_claims("mail")) * BATCH)


class TwoPhase(ServerCase):
    """Where two-phase commit is enabled no transaction notifies, because a transaction that notified could not be prepared; the
    relay polls."""

    settings = {"max_prepared_transactions": 5}

    def prepare(self, name, payload):
        db = psycopg2.connect(self.store)
        try:
            with db.cursor() as cursor:
                cursor.execute("SELECT outbox.emit('a', 'k', '1', %s)", (str(payload),))
                cursor.execute(f"PREPARE TRANSACTION '{name}'")
        finally:
            db.close()

    def test_prepared_transactions_survive_a_crash(self):
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
