"""PostgreSQL servers that die, come back, hand over to a standby or run out of space, and relays that are killed -9:
nothing lost, order kept, and nobody has to start a relay again.

# build: plain

The storms take their timing from a seed, printed when one fails: OUTBOX_SEED=N plays it again, as far as processes can
be played again. OUTBOX_SOAK=1 goes on for ten minutes, each round with another seed."""
import collections
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import uuid

import psycopg2
import servers
from support import SOAK, TIMEOUT, Case, wait_until

HERE = pathlib.Path(__file__).resolve().parent
SEED = int(os.environ.get("OUTBOX_SEED", random.SystemRandom().randrange(1 << 30)))
STORM = 3  # seconds
SOAK_STORM = 15
SOAK_TIME = 600
CLAIMS = 4  # the most a relay holds at once for one consumer
BATCH = 20
SOON = 8  # seconds: longer than a relay waits between two tries to reach its server, far shorter than its sweep
UNAVAILABLE = 69

APPEND = "exec 9>>{out}; flock 9; cat >&9"
# Says "later" to every ninth event twice, and "never" to every fortieth.
FLAKY = ("exec:[ $((OUTBOX_SEQ % 40)) -ne 0 ] || exit 65; "
         "[ $((OUTBOX_SEQ % 9)) -ne 0 ] || [ $OUTBOX_ATTEMPT -gt 2 ] || exit 75; " + APPEND)


def say(text):
    print(text, file=sys.stderr, flush=True)


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

    def mail(self, *more, **kw):
        return self.relay("--consumer", "mail", "--sink", f"file:{self.out}", "--lease", "500ms", *more, **kw)

    def got(self):
        return [ev["payload"] for ev in self.ndjson(self.out)]

    def wait_for(self, payloads, *relays, timeout=TIMEOUT):
        wait_until(lambda: set(self.got()) >= set(payloads), timeout, lambda: "".join(
            [f"missing {sorted(set(payloads) - set(self.got()))[:20]}\n", *(r.output() for r in relays)]))

    def asleep(self):
        return self.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted")


class Crowd(ServerCase):
    """Producers and relays that work while others die, and the reckoning afterwards."""
    lease = "300ms"

    def begin(self, seed, lanes):
        self.random, self.seed, self.lanes = random.Random(seed), seed, lanes
        self.kills = collections.Counter()
        self.outbox("init")
        sys.path.insert(0, str(HERE))
        import producer
        self.sql(producer.TABLE)
        self.sql(producer.FILL)
        self.broken = self.path("broken-down")
        self.broken.touch()
        self.sinks = {"books": f"file:{self.path('books')}", "mail": "exec:" + APPEND.format(out=self.path("mail")),
                      "flaky": FLAKY.format(out=self.path("flaky")),
                      "broken": f"exec:[ ! -e {self.broken} ] || exit 75; " + APPEND.format(out=self.path("broken"))}

    def relay_args(self):
        args = ["--batch", BATCH, "--lease", self.lease, "--lanes", self.lanes, "--concurrency", 6,
                "--retry", "base=20ms,cap=200ms,attempts=1000"]
        for name, sink in self.sinks.items(): args += ["--consumer", name, "--sink", sink]
        return args

    def start(self, kind):
        if kind == "relay": return self.relay(*self.relay_args(), wait=False)
        name = f"p{len(self.children)}"
        return self.spawn(sys.executable, HERE / "producer.py", self.store, self.path(f"diary-{name}"), name,
                          self.random.randrange(1 << 30))

    def crew(self, producers, relays):
        places = [("producer", n) for n in range(producers)] + [("relay", n) for n in range(relays)]
        return {place: self.start(place[0]) for place in places}

    def refuse_death(self, process):
        if not process.running(): self.fail(f"a process ended by itself:\n{process.output()}")

    def dismiss(self, crew):
        for place, process in sorted(crew.items()):
            self.refuse_death(process)
            process.kill()
            self.kills[place[0]] += 1

    def committed(self):
        """committed gives {key: version} as they are in the database, which must know all that the diaries do."""
        told = [line for path in self.dir.glob("diary-*") for line in path.read_text().splitlines()]
        there = dict(self.sql("SELECT key, version FROM account"))
        for key, version in (map(int, line.split()) for line in told):
            self.assertLessEqual(version, there[key], f"key {key}: committed, and gone with the server")
        return there

    def check_consumer(self, name, versions, facts):
        got = self.ndjson(self.path(name))
        dead = {id for id, in self.sql("SELECT id::text FROM outbox.dead WHERE consumer = %s", name)}
        self.assertEqual({ev["id"] for ev in got} | dead, set(facts), f"{name}: lost or invented")
        first = {}
        for ev in got: first.setdefault(ev["id"], ev["payload"])
        for key, last in versions.items():
            arrived = [p["version"] for p in first.values() if p["key"] == key]
            buried = {facts[id]["version"] for id in dead if facts[id]["key"] == key}
            self.assertEqual([v for v in arrived if v not in buried],
                             [v for v in range(1, last + 1) if v not in buried], f"{name}: key {key} out of order")
        repeats = len(got) - len(first)
        bound = (CLAIMS * (self.kills["relay"] + self.kills["stopped"]) + self.lost_claims(name)) * BATCH
        self.assertLessEqual(repeats, bound, f"{name}: more repeats than the claims of the killed and the lost ones")
        return f"{name} {len(first)} + {len(dead - set(first))} dead, {repeats} repeats (bound {bound})"

    def lost_claims(self, name):
        logs = (child.output() for child in self.children if child.log.name.startswith("relay-"))
        return sum(f"consumer={name} claim" in line and "is lost" in line for log in logs for line in log.splitlines())

    def reckon(self, least):
        self.broken.unlink()
        self.drain(*self.relay_args())
        versions = self.committed()
        facts = dict(self.sql("SELECT id::text, payload FROM outbox.event"))
        self.assertEqual(sorted((p["key"], p["version"]) for p in facts.values()),
                         sorted((key, v) for key, last in versions.items() for v in range(1, last + 1)))
        self.assertGreater(len(facts), least, "too little happened to prove anything")
        told = [self.check_consumer(name, versions, facts) for name in self.sinks]
        self.assertEqual(self.sql("SELECT 1 FROM outbox.claim UNION ALL SELECT 1 FROM outbox.parked"), [])
        say(f"seed {self.seed}, lanes {self.lanes}: {len(facts)} events; {dict(self.kills)}; {'; '.join(told)}; lost 0")

    @contextlib.contextmanager
    def seeded(self, seed, lanes):
        try:
            self.begin(seed, lanes)
            yield
        except BaseException:
            say(f"play it again with OUTBOX_SEED={seed}")
            raise

    def again(self, play, lanes):
        """again plays a round once, or for a long time with OUTBOX_SOAK, each time in a new database."""
        play(SEED, lanes, SOAK_STORM if SOAK else STORM)
        end = time.monotonic() + SOAK_TIME / 3
        for n in range(1, 1 << 20):
            if not SOAK or time.monotonic() > end: break
            self.doCleanups()
            self.setUp()
            play(SEED + n, lanes, SOAK_STORM)


class Storm(Crowd):
    """Relays and producers that are killed at random moments and started again, and relays that stand still for longer
    than their leases."""

    def storm(self, seed, lanes, seconds):
        with self.seeded(seed, lanes):
            crew, stopped = self.crew(2, 3), set()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(self.random.choice((0.01, 0.05, 0.2, 0.4)))
                place = self.random.choice(sorted(crew))
                self.refuse_death(crew[place])
                if place in stopped:
                    crew[place].signal(signal.SIGCONT)
                    stopped.remove(place)
                elif place[0] == "relay" and self.random.random() < 0.3:
                    crew[place].signal(signal.SIGSTOP)
                    stopped.add(place)
                    self.kills["stopped"] += 1
                else:
                    crew[place].kill()
                    self.kills[place[0]] += 1
                    crew[place] = self.start(place[0])
            self.dismiss(crew)
            self.reckon(least=50)

    def test_a_storm_of_kills_loses_invents_and_reorders_nothing(self):
        self.again(self.storm, 1)

    def test_a_storm_of_kills_loses_invents_and_reorders_nothing_with_lanes(self):
        self.again(self.storm, 4)


class Crash(Crowd):
    """The server ends without a word and comes back; nobody else is started again."""
    lease = "1s"  # what is in flight takes longer on a server that has just come back and is busy with others

    def crashes(self, seed, lanes, seconds):
        with self.seeded(seed, lanes):
            crew = self.crew(2, 2)
            end = time.monotonic() + seconds
            ways = [lambda: self.server.stop("immediate"), self.server.kill, lambda: self.server.stop("fast")]
            for n in range(1 << 20):
                before = sum(self.committed().values())
                time.sleep(self.random.uniform(0.2, 0.6))
                wait_until(lambda: sum(self.committed().values()) > before)
                ways[n % 3]()
                time.sleep(self.random.uniform(0, 0.3))
                self.server.start()
                self.kills["server"] += 1
                if time.monotonic() > end and n >= 2: break
            # They all go on by themselves, each with its own connections.
            before = len(self.ndjson(self.path("books")))
            wait_until(lambda: len(self.ndjson(self.path("books"))) > before + 20)
            self.dismiss(crew)
            self.reckon(least=50)

    def test_a_server_that_dies_under_load_and_comes_back_loses_nothing(self):
        self.again(self.crashes, 2)

    def test_a_server_restarted_while_a_relay_sleeps_finds_it_awake_for_the_next_event(self):
        self.outbox("init")
        with self.mail() as relay:
            for n, mode in enumerate(("fast", "immediate")):
                self.emit("a", "k/1", 2 * n)
                self.wait_for(range(2 * n + 1), relay)
                wait_until(self.asleep)
                self.server.restart(mode)
                self.emit("a", "k/1", 2 * n + 1)
                self.wait_for(range(2 * n + 2), relay, timeout=SOON)
                wait_until(self.asleep)  # and it sleeps again, instead of asking on and on
        self.assertEqual(list(dict.fromkeys(self.got())), [0, 1, 2, 3])


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
        self.outbox("init")
        id = self.emit("a", "k/1", 1)
        copy = self.standby.url(self.dbname)
        wait_until(lambda: servers.execute(copy, "SELECT to_regclass('outbox.event')")[0][0] and
                   servers.execute(copy, "SELECT 1 FROM outbox.event"))
        self.assertIn(id, self.outbox("events", "list", "--store", copy).stdout)
        self.outbox("status", "--store", copy)
        for args in (["emit", "a"], ["relay", "--consumer", "m", "--sink", "stdout:"]):
            self.assertIn("connect to the primary", self.outbox(*args, "--store", copy, status=UNAVAILABLE).stderr)
        self.outbox("emit", "a", status=UNAVAILABLE, env={"OUTBOX_STORE": copy + "&target_session_attrs=read-write"})

    def test_a_relay_follows_to_the_standby_that_takes_over(self):
        with self.seeded(SEED, 1):
            crew = self.crew(2, 2)
            wait_until(lambda: len(self.ndjson(self.path("books"))) > 30)
            self.primary.kill()
            self.kills["server"] += 1
            servers.execute(self.standby.url("postgres"), "SELECT pg_promote()")
            before = len(self.ndjson(self.path("books")))
            wait_until(lambda: len(self.ndjson(self.path("books"))) > before + 30,
                       what=lambda: "".join(process.output() for process in crew.values()))
            self.dismiss(crew)
            self.reckon(least=50)


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


class DiskFull(ServerCase):
    @classmethod
    def setUpClass(cls):
        if not SmallDisk.possible(): return cls.skipTest(cls, "this machine lets nobody mount a small file system")
        cls.server = SmallDisk().start()
        cls.addClassCleanup(cls.server.close)
        servers.execute(cls.server.url("postgres"), f"CREATE TABLESPACE small LOCATION '{cls.server.dir}/small/space'")

    def setUp(self):
        Case.setUp(self)
        self.dbname, self.out = "shop", self.path("out")
        servers.execute(self.server.url("postgres"), f"CREATE DATABASE {self.dbname} TABLESPACE small")
        self.store = self.server.url(self.dbname)

    def fill(self):
        """fill takes what room there is, in large pieces and then in small ones."""
        self.sql("CREATE TABLE ballast (piece text)")
        self.sql("ALTER TABLE ballast ALTER piece SET STORAGE EXTERNAL")
        for size in (1 << 20, 1 << 16, 6000):
            with contextlib.suppress(psycopg2.errors.DiskFull):
                while True: self.sql("INSERT INTO ballast VALUES (repeat('x', %s))", size)

    def test_a_full_disk_refuses_emits_clearly_and_loses_nothing(self):
        count = 300
        large = f'"{os.urandom(40000).hex()}"'
        self.outbox("init")
        self.drain("--consumer", "mail", "--sink", f"file:{self.out}")
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(n % 3), "payload": n}
                        for n in range(count)])
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
            self.assertLess(len(set(self.got())), count)
            self.sql("DROP TABLE ballast")
        db.close()
        self.wait_for(range(count), relay)
        relay.stop()
        for key in range(3):
            mine = [n for n in dict.fromkeys(self.got()) if n % 3 == key]
            self.assertEqual(mine, sorted(mine), f"order of key {key}")
        self.outbox("emit", "a", "--payload", large)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.event"), [(count + 1,)])


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
        self.outbox("init")
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
