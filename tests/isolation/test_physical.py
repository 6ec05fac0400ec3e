"""A cluster copied as files: a lagging standby that is promoted, recovery to a point in time, pg_upgrade. The events in the new
database are delivered; those lost with the old one are gone, with their data."""
# build: plain
import os
import subprocess
import unittest

import servers
from sessions_postgres import Session
from support import SOAK, Case, wait_until


class Copied(Case):
    postgres = True
    SETTINGS = {"wal_level": "replica"}

    def setUp(self):
        super().setUp()
        self.old = servers.Postgres(self.SETTINGS)
        self.old.start()
        self.addCleanup(self.old.close)
        self.store = self.old.create_database("shop")
        self.outbox("init")
        self.out = self.path("out")

    def copy(self, standby=None, **settings):
        """copy is a server in a copy of the old one's files, not started yet."""
        new = servers.Copy(self.old, settings, standby)
        self.addCleanup(new.close)
        new.dir = servers.make_folder(new.prefix)
        new.prepare()
        return new

    def session(self, url):
        session = Session(url)
        self.addCleanup(session.close)
        return session

    def emit_n(self, url, numbers):
        with self.session(url).db as db, db.cursor() as cursor:
            for n in numbers: cursor.execute("SELECT outbox.emit('t', 'k', '1', %s)", (str(n),))

    def got(self):
        return [event["payload"] for event in self.ndjson(self.out)]

    def start(self):
        return self.relay("--consumer", "c", "--sink", f"file:{self.out}", "--lease", "2s")

    def whole(self, url):
        self.assertEqual(self.session(url).do("SELECT moved, numbers, sequence FROM @._trouble()"), [(None, None, None)])

    def test_consumers_continue_on_a_promoted_lagging_standby(self):
        """The relay knows of events, positions and claims that the new primary has never heard of."""
        new = self.copy("new", hot_standby="on")
        new.start()
        self.store = f"postgres:///shop?host={self.old.dir},{new.dir}&user={servers.USER}&target_session_attrs=read-write"
        with self.start() as relay:
            self.emit_n(self.old.url("shop"), range(10))
            wait_until(lambda: len(self.got()) == 10)
            there = self.session(new.url("shop"))
            settled = "SELECT count(*), (SELECT count(*) FROM @.claim), (SELECT max(delivered) FROM @.lane) FROM @.event"
            wait_until(lambda: there.do(settled) == [(10, 0, 10)])
            there.do("ALTER SYSTEM SET primary_conninfo = ''")
            there.do("SELECT pg_reload_conf()")
            wait_until(lambda: there.do("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])
            self.emit_n(self.old.url("shop"), range(10, 30))
            wait_until(lambda: len(self.got()) == 30)
            self.old.kill()
            there.do("SELECT pg_promote()")
            self.assertEqual(there.do("SELECT count(*) FROM @.event"), [(10,)], "the standby did not lag: the test proves nothing")
            self.emit_n(new.url("shop"), range(100, 120))
            wait_until(lambda: self.got()[-1] == 119, what=lambda: f"{self.got()}\n{relay.output()}")
            self.assertEqual(self.got()[30:], list(range(100, 120)))
        self.whole(new.url("shop"))

    @unittest.skipUnless(SOAK, "runs only in a soak: ./test --soak")
    def test_consumers_continue_after_a_point_in_time_recovery(self):
        archive = self.path("archive")
        archive.mkdir()
        os.chmod(self.dir, 0o755)
        os.chown(archive, servers.NOBODY, servers.NOBODY)
        self.old.settings |= {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
        self.old.restart()
        with self.start() as relay:
            self.emit_n(self.store, range(5))
            wait_until(lambda: len(self.got()) == 5)
            new = self.copy()
            self.emit_n(self.store, range(5, 10))
            wait_until(lambda: len(self.got()) == 10)
            here = self.session(self.store)
            then = here.do("SELECT clock_timestamp()::text")[0][0]
            self.emit_n(self.store, range(10, 30))
            wait_until(lambda: len(self.got()) == 30)
            segment = here.do("SELECT pg_walfile_name(pg_switch_wal())")[0][0]
            wait_until(lambda: (archive / segment).exists())
            self.old.stop("fast")
            signal = new.dir / "data" / "recovery.signal"
            signal.touch()
            os.chown(signal, servers.NOBODY, servers.NOBODY)
            os.rename(self.old.dir / "data", self.old.dir / "former")
            os.rename(new.dir / "data", self.old.dir / "data")
            self.old.settings |= {"restore_command": f"cp {archive}/%f %p", "recovery_target_time": then,
                                  "recovery_target_action": "promote", "archive_mode": "off"}
            self.old.start()
            here = self.session(self.store)
            wait_until(lambda: here.do("SELECT pg_is_in_recovery()") == [(False,)])
            self.assertEqual(here.do("SELECT count(*) FROM @.event"), [(10,)])
            self.emit_n(self.store, range(100, 110))
            wait_until(lambda: self.got()[-1] == 109, what=lambda: f"{self.got()}\n{relay.output()}")
            self.assertLessEqual(set(range(100, 110)), set(self.got()[30:]))
        self.whole(self.store)

    @unittest.skipUnless(SOAK, "runs only in a soak: ./test --soak")
    def test_upgraded_cluster_repeats_only_events_in_flight(self):
        upgrade = servers.postgres_tool("pg_upgrade")
        self.emit_n(self.store, range(5))
        self.emit_n(self.store, range(5, 7))
        new = servers.Postgres(cluster="second")  # created before the old one is stopped, as is usual
        new.start()
        self.addCleanup(new.close)
        new.stop("fast")
        with self.start():
            self.emit_n(self.store, range(7, 20))
            wait_until(lambda: len(self.got()) == 20)
        self.emit_n(self.store, range(20, 25))
        self.session(self.store).claim("c", max_events=2)
        self.old.stop("fast")
        folder = self.path("work")
        folder.mkdir()
        os.chmod(self.dir, 0o755)
        os.chown(folder, servers.NOBODY, servers.NOBODY)
        subprocess.run([*servers.unprivileged("KILL"), upgrade, "-b", str(self.old.bin), "-B", str(new.bin), "-U", servers.USER, "-d",
                        str(self.old.dir / "data"), "-D", str(new.dir / "data"), "-s", str(folder)], cwd=folder, check=True,
                       env=servers.clean_env(), capture_output=True)
        new.start()
        self.store = new.url("shop")
        self.emit_n(self.store, range(100, 103))
        self.drain("--consumer", "c", "--sink", f"file:{self.out}")
        self.assertEqual(self.got()[20:], [*range(20, 25), *range(100, 103)])
        self.whole(self.store)
