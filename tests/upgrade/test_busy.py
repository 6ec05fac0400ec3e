"""Bringing an outbox up while it is in use: producers are not kept waiting, a long transaction is waited for, whoever is killed
half-way leaves the old version whole, and several at once do it once."""
# build: plain
# quick: no
import contextlib
import json
import os
import pathlib
import random
import sqlite3
import subprocess
import threading
import time

import psycopg2
from support import BIN, SOAK, Case, PgCase, read_ndjson, wait_until

HERE = pathlib.Path(__file__).resolve().parent
AGAIN = 75


class Older:
    """An outbox of 0.1.0, as it was dumped."""

    def events(self):
        return [e["id"] for e in json.loads(HERE.joinpath(f"0.1.0.{self.kind}.json").read_text())["events"]]

    def version(self):
        return self.sql(f"SELECT value FROM {self.table('meta')} WHERE name = 'schema_version'")[0][0]

    def count(self):
        return self.sql(f"SELECT count(*) FROM {self.table('event')}")[0][0]

    def whole(self):
        """whole: what was there is there, and it is of one version or the other."""
        self.assertIn(self.version(), ("1", self.LATEST))
        there = {str(i) for (i,) in self.sql(f"SELECT id FROM {self.table('event')}")}
        self.assertLessEqual(set(self.events()), there)

    def test_several_at_once_bring_it_up_once(self):
        children = [self.spawn(BIN, "migrate", "up", "--json") for _ in range(6)]
        for child in children: child.wait()
        self.assertEqual(sorted(json.loads(c.output())["changed"] for c in children), [False] * 5 + [True])
        self.whole()

    def test_killed_at_any_moment_it_leaves_the_old_version_whole(self):
        rng = random.Random(4)
        started = time.monotonic()
        self.spawn(BIN, "migrate", "status").wait()
        overhead = time.monotonic() - started
        for _ in range(60 if SOAK else 12):
            child = self.spawn(BIN, "init")
            time.sleep(rng.uniform(0, 3 * overhead + 0.05))
            child.kill()
            self.settled()
            self.whole()
            self.reset()
        self.outbox("init")
        self.assertEqual(self.version(), self.LATEST)
        self.whole()
        self.sql(f"UPDATE {self.table('event')} SET not_before = NULL")
        self.drain("--consumer", "new", "--sink", f"file:{self.path('new')}")
        self.assertEqual({e["id"] for e in read_ndjson(self.path("new"))}, set(self.events()))


class OnPostgres(Older, PgCase):
    LATEST = "6"
    kind = "postgres"

    def table(self, name): return f"outbox.{name}"

    def setUp(self):
        super().setUp()
        self.reset()

    def reset(self):
        self.sql("DROP SCHEMA IF EXISTS outbox CASCADE; DROP TABLE IF EXISTS shop_outbox")
        subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", self.store], check=True, capture_output=True,
                       input=HERE.joinpath("0.1.0.postgres.sql").read_bytes())

    def settled(self):
        """settled waits until the server has noticed that its client is gone."""
        wait_until(lambda: self.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
                                    "pid <> pg_backend_pid()") == [(0,)])

    def test_producers_go_on_while_a_long_transaction_is_waited_for(self):
        long = psycopg2.connect(self.store, application_name="report")
        cursor = long.cursor()
        cursor.execute("SELECT count(*) FROM outbox.event")
        # One that has written, too, and holds what ALTER TABLE wants.
        cursor.execute("INSERT INTO outbox.event (type) VALUES ('long')")
        emitted, took, stop = [0], [], threading.Event()

        def produce():
            with contextlib.closing(psycopg2.connect(self.store)) as db:
                db.autocommit = True
                while not stop.is_set():
                    start = time.monotonic()
                    db.cursor().execute("INSERT INTO outbox.event (type, payload) VALUES ('t', %s)", (str(emitted[0]),))
                    took.append(time.monotonic() - start)
                    emitted[0] += 1
                    time.sleep(0.002)

        before = self.count()
        producers = [threading.Thread(target=produce) for _ in range(2)]
        for thread in producers: thread.start()
        try:
            init = self.spawn(BIN, "init")
            wait_until(lambda: "in use by pid" in init.output() or not init.running(), what=init.output)
            self.assertIn('("report", idle in transaction, ', init.output())
            self.assertIn("nothing is changed yet, trying again for ", init.output())
            tried = emitted[0]
            time.sleep(2)  # some more attempts, during which producers are at work
            wait_until(lambda: emitted[0] > tried + 50, what=lambda: f"{emitted[0] - tried} emitted, while init waits")
            self.assertTrue(init.running(), init.output())
            self.assertEqual(self.version(), "1")
            long.commit()
            init.wait()
        finally:
            stop.set()
            for thread in producers: thread.join()
            long.close()
        self.assertEqual(self.version(), self.LATEST)
        took.sort()
        self.figures(took[-1], emitted[0])
        self.assertLess(took[-5], 2.0, "producers waited")  # a busy machine may be late by itself, but not again and again
        self.assertEqual(self.count(), before + emitted[0] + 1)
        self.whole()

    def figures(self, slowest, emitted):
        with open(int(os.environ.get("OUTBOX_TAP", 2)), "w", closefd=False) as tap:
            print(f"# {emitted} events were emitted meanwhile, the slowest in {slowest * 1000:.0f} ms", file=tap, flush=True)

    def test_it_gives_up_in_time_and_says_so(self):
        long = psycopg2.connect(self.store)
        long.cursor().execute("SELECT count(*) FROM outbox.event")
        said = self.outbox("init", "--wait", "1s", status=AGAIN).stderr
        self.assertIn("a long transaction had the outbox in use all the time; nothing was changed: end it", said)
        self.assertEqual(self.version(), "1")
        long.close()
        self.outbox("init", "--wait", "1m")
        self.assertEqual(self.version(), self.LATEST)

    def test_time_limits_of_the_role_do_not_stop_it(self):
        self.sql(f"ALTER DATABASE {self.dbname} SET statement_timeout = '20ms'")
        self.sql(f"ALTER DATABASE {self.dbname} SET idle_in_transaction_session_timeout = '1s'")
        self.outbox("init")
        self.assertEqual(self.version(), self.LATEST)

    def test_nothing_of_the_old_version_is_left_over(self):
        self.outbox("init")
        self.assertEqual([f for f in self.json("migrate", "validate", status=None)["findings"] if f["level"] == "problem"], [])

    def test_roles_keep_their_parts_and_get_what_is_new(self):
        stores = {}
        for part in "producer", "consumer", "operator":
            stores[part] = self.role()
            name = stores[part].split("user=")[1].split("&")[0]
            self.sql(f"SELECT outbox.allow('{part}', '{name}')")
        self.outbox("init")
        self.outbox("status")  # a dump was restored: that is made right first
        out = self.path("out")
        self.outbox("emit", "t", "--store", stores["producer"])
        self.drain("--consumer", "new", "--sink", f"file:{out}", "--store", stores["consumer"])
        self.assertGreater(len(read_ndjson(out)), len(self.events()) - 5)
        for command in (("status",), ("events", "list"), ("trim", "--dry-run"), ("consumers", "pause", "new")):
            self.outbox(*command, "--store", stores["operator"])


class OnSqlite(Older, Case):
    LATEST = "6"
    kind = "sqlite"

    def table(self, name): return f"outbox_{name}"

    def setUp(self):
        super().setUp()
        self.reset()

    def reset(self):
        for path in self.dir.glob("shop.db*"): path.unlink()
        with contextlib.closing(sqlite3.connect(self.db)) as db:
            db.executescript(HERE.joinpath("0.1.0.sqlite.sql").read_text())
            db.execute("PRAGMA journal_mode = WAL")  # which a dump does not say

    def settled(self):
        pass

    def test_producers_at_work_lose_nothing(self):
        emitted, stop = [0], threading.Event()

        def produce():
            with contextlib.closing(sqlite3.connect(self.db, timeout=60, isolation_level=None)) as db:
                while not stop.is_set():
                    db.execute("INSERT INTO outbox_event (type, payload) VALUES ('t', ?)", (str(emitted[0]),))
                    emitted[0] += 1

        before = self.count()
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            wait_until(lambda: emitted[0] > 20)
            self.outbox("init", "--wait", "1m")
            done = emitted[0]
            wait_until(lambda: emitted[0] > done + 20)
        finally:
            stop.set()
            producer.join()
        self.assertEqual(self.count(), before + emitted[0])
        self.whole()
