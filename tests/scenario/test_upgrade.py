"""The upgrade to a made-up next version (next_version.py), on each store: init upgrades an outbox while producers and a relay
are at work, can be killed at any moment, and programs of this version are refused in clear words, and settle or release their
claims."""
# build: plain
import contextlib
import json
import random
import sqlite3
import threading
import time

import mariadb_server
import next_version
import psycopg2
from next_version import NEXT, THIS
from support import BIN, SOAK, TIMEOUT, MariaCase, PgCase, on_each_store, wait_until

DATA = 65
PENDING = f"the outbox has version {THIS}; this program needs {NEXT}"
NEWER = f"version {NEXT}, but this program knows only versions up to {THIS}; use a newer outbox"


@on_each_store
class Upgrade:
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.NEXT = next_version.make()

    def setUp(self):
        super().setUp()
        self.outbox("init")
        self.out = self.path("out")

    def next(self, *args, status=0):
        """next runs the next version's program."""
        child = self.spawn(self.NEXT, *args, log=f"next-{len(self.children)}.log")
        child.wait(expect=status, timeout=TIMEOUT)
        return child.output()

    def consumer(self, *more):
        return "--consumer", "mail", "--sink", f"file:{self.out}", *more

    def delivered(self):
        return [event["payload"] for event in self.ndjson(self.out)]

    def connect_any(self):
        """connect_any returns an application's connection, and a function that emits the n-th event."""
        if isinstance(self, PgCase):
            db = psycopg2.connect(self.store)
            db.autocommit = True
            insert = "INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload) VALUES ('t', 'k', '1', %s)"
        elif isinstance(self, MariaCase):
            db = mariadb_server.connect(self.store)
            insert = "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) VALUES ('t', 'k', '1', %s)"
        else:
            db = sqlite3.connect(self.db, timeout=TIMEOUT, isolation_level=None)
            insert = "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) VALUES ('t', 'k', '1', ?)"
        return db, lambda n: db.cursor().execute(insert, (str(n),))

    @contextlib.contextmanager
    def producer(self):
        """producer emits events one after the other meanwhile, and returns their number."""
        stop, count, trouble = threading.Event(), [0], []

        def produce():
            db, emit = self.connect_any()
            with contextlib.closing(db):
                while not stop.is_set():
                    try:
                        emit(count[0])
                    except Exception as e:
                        return trouble.append(e)
                    count[0] += 1
                    time.sleep(0.002)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            yield count
        finally:
            stop.set()
            thread.join()
            self.assertEqual(trouble, [])

    def brought_up(self):
        """brought_up checks that the migration is complete, and returns how many rows it filled in."""
        rows, = self.ask("SELECT count(*) FROM @made_up")[0]
        self.ask("SELECT made_up FROM @consumer")
        self.assertIn(f"version {NEXT}; this program needs {NEXT}: nothing is pending", self.next("migrate", "status"))
        self.assertFalse(json.loads(self.next("migrate", "up", "--json"))["changed"])
        return rows

    def test_upgrade_succeeds_under_a_working_producer_and_relay(self):
        """The producer continues, the relay of this version stops gracefully, the next one's delivers the rest: each event
        once."""
        relay = self.relay(*self.consumer("--batch", "5", "--sweep", "100ms"))
        with self.producer() as count:
            wait_until(lambda: count[0] > 50 and self.delivered(), what=relay.output)
            self.next("init")
            at = count[0]
            wait_until(lambda: count[0] > at + 50)
            relay.wait(expect=DATA)
        self.assertIn(f"this outbox was upgraded to version {NEXT}; this program knows {THIS}: update it", relay.output())
        self.assertNotIn("abandoned", relay.output())
        self.next("relay", *self.consumer(), "--drain")
        self.assertEqual(self.delivered(), list(range(count[0])))
        self.assertGreater(self.brought_up(), 0)

    def begin_anew(self):
        """begin_anew recreates an outbox of this version."""
        if isinstance(self, PgCase):
            self.sql("DROP SCHEMA outbox CASCADE")
        elif isinstance(self, MariaCase):
            for verb in "DROP", "CREATE": mariadb_server.execute(self.server_url, f"{verb} DATABASE {self.dbname}")
            mariadb_server.forget_connections()
        else:
            for path in self.dir.glob("shop.db*"): path.unlink()
        self.outbox("init")

    def test_upgrade_killed_at_any_moment_can_be_completed(self):
        rng = random.Random(7)
        started = time.monotonic()
        self.next("migrate", "status")
        overhead = time.monotonic() - started
        for n in range(40 if SOAK else 5):
            if n:
                self.begin_anew()
            self.emit_many({"type": "t", "payload": i} for i in range(20))
            child = self.spawn(self.NEXT, "init")
            time.sleep(rng.uniform(0, 2 * overhead + (0.4 if isinstance(self, PgCase) else 0.05)))
            child.kill()
            self.next("init")
            self.assertEqual(self.brought_up(), 20)
            self.assertEqual(self.ask("SELECT count(*) FROM @event"), [(20,)])

    def test_relay_with_a_delivery_in_flight_releases_its_claims(self):
        hold, begun = self.path("hold"), self.path("begun")
        hold.touch()
        self.emit_many({"type": "t", "aggregate_type": "k", "aggregate_id": "1", "payload": i} for i in range(4))
        sink = f"exec:touch {begun}; while [ -e {hold} ]; do sleep 0.02; done; cat >>{self.out}"
        relay = self.relay("--consumer", "mail", "--sink", sink, "--batch", "2", "--lease", "1m", "--sweep", "100ms")
        wait_until(begun.exists, what=relay.output)
        self.next("init")
        relay.wait(expect=DATA)
        self.assertEqual(self.ask("SELECT count(*) FROM @claim"), [(0,)])
        hold.unlink()
        self.next("relay", "--consumer", "mail", "--sink", f"exec:cat >>{self.out}", "--drain")
        self.assertEqual(self.delivered(), [0, 1, 2, 3])

    def test_both_versions_name_the_upgrade_command(self):
        self.assertIn(f"version {THIS}; this program needs {NEXT}: 1 step pending; run `outbox migrate up`", self.next("migrate", "status"))
        self.assertIn(f"{PENDING}; run `outbox migrate up`", self.next("doctor", status=1))
        for command in (("status",), ("emit", "t"), ("relay", *self.consumer(), "--drain")):
            with self.subTest(command): self.assertRegex(self.next(*command, status=DATA), f"older version {THIS}; upgrade it with `outbox (init|migrate up)`")
        self.next("migrate", "up")
        self.assertIn(f"the outbox has {NEWER}", self.outbox("doctor", status=1).stdout)
        self.assertIn("the installed version is newer than this program", self.outbox("migrate", "status", status=None).stdout)
        for command in (("status",), ("emit", "t"), ("init",), ("migrate", "up"), ("relay", *self.consumer(), "--drain")):
            with self.subTest(command): self.assertIn(NEWER, self.outbox(*command, status=DATA).stderr)

    def test_concurrent_upgrades_are_applied_once(self):
        self.emit("t")
        children = [self.spawn(self.NEXT, "migrate", "up", "--json") for _ in range(4)]
        for child in children: child.wait()
        self.assertEqual(sorted(json.loads(child.output())["changed"] for child in children), [False] * 3 + [True])
        self.brought_up()
