"""A SQLite outbox that is replaced, removed, restored or swapped under running relays and producers: nothing in the file at the
path is lost, no process silently continues in a deleted file, and two files are never mixed up (G1, G2, G5)."""
# build: plain
# quick: no
import contextlib
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import time

from support import BIN, Case, is_locked, wait_until


def backup(source, target):
    """backup is SQLite's own way to copy a database that is in use."""
    with contextlib.closing(sqlite3.connect(source)) as a, contextlib.closing(sqlite3.connect(target)) as b:
        a.backup(b)
        b.execute("PRAGMA journal_mode = DELETE")  # one file without a log beside it
    return target


class Moved(Case):
    def setUp(self):
        super().setUp()
        self.home = self.dir / "home"
        self.home.mkdir()
        self.db = self.home / "shop.db"
        self.store = f"sqlite:{self.db}"
        self.out = self.path("out")
        self.outbox("init")

    def start(self, *args):
        return self.relay("--consumer", "c", "--sink", f"file:{self.out}", "--lease", "2s", *args)

    def got(self):
        return [ev["type"] for ev in self.ndjson(self.out)]

    def delivered(self, type, relay):
        wait_until(lambda: type in self.got(), what=lambda: f"{self.got()}\n{relay.output()}")

    def whole(self):
        self.assertEqual(self.sql("PRAGMA integrity_check"), [("ok",)])

    def replaced_by(self, replace, text="was replaced by a copy of the same outbox"):
        """A relay has delivered, idles, and a backup replaces its file: from now on it delivers the events emitted there."""
        with self.start() as relay:
            self.emit("before")
            self.delivered("before", relay)
            copy = backup(self.db, self.path("copy.db"))
            self.emit("forgotten")
            self.delivered("forgotten", relay)
            replace(copy)
            self.emit("after")
            self.delivered("after", relay)
            self.assertIn(text, relay.output())
            types = [type for type, in self.sql("SELECT type FROM outbox_event ORDER BY seq")]
            self.assertEqual(types, ["before", "after"], "content of the old file reached the new one")
            self.whole()
        self.assertEqual(self.got().count("after"), 1)

    def test_relay_follows_a_backup_moved_onto_its_path(self):
        """The old file's write-ahead log is still beside the path: it must not be mistaken for the new one's."""
        self.replaced_by(lambda copy: os.rename(copy, self.db))

    def test_relay_follows_a_backup_copied_and_renamed(self):
        def replace(copy):
            shutil.copy(copy, self.home / "shop.db.new")
            os.rename(self.home / "shop.db.new", self.db)
        self.replaced_by(replace)

    def test_relay_follows_a_file_deleted_and_copied_again(self):
        def replace(copy):
            for name in ("shop.db", "shop.db-wal", "shop.db-shm"): (self.home / name).unlink()
            shutil.copy(copy, self.path("new"))
            os.rename(self.path("new"), self.db)
        self.replaced_by(replace)

    def test_swapped_directory_is_noticed(self):
        def replace(copy):
            new = self.dir / "new"
            new.mkdir()
            os.rename(copy, new / "shop.db")
            os.rename(self.home, self.dir / "old")
            os.rename(new, self.home)
        self.replaced_by(replace)

    def test_retargeted_symlink_is_followed(self):
        real = self.home / "real.db"
        os.rename(self.db, real)
        os.symlink(real, self.db)

        def replace(copy):
            os.rename(copy, self.home / "real2.db")
            os.symlink(self.home / "real2.db", self.home / "link")
            os.rename(self.home / "link", self.db)
        self.replaced_by(replace)
        with contextlib.closing(sqlite3.connect(real)) as db:
            self.assertEqual([t for t, in db.execute("SELECT type FROM outbox_event ORDER BY seq")], ["before", "forgotten"])

    def test_file_moved_aside_keeps_all_committed_events(self):
        """Its log is no longer beside it, so its content must be written to the file first."""
        aside = self.home / "aside.db"

        def replace(copy):
            os.rename(self.db, aside)
            os.rename(copy, self.db)
        self.replaced_by(replace)
        with contextlib.closing(sqlite3.connect(aside)) as db:
            self.assertEqual(db.execute("PRAGMA integrity_check").fetchall(), [("ok",)])
            self.assertEqual([t for t, in db.execute("SELECT type FROM outbox_event ORDER BY seq")], ["before", "forgotten"])

    def test_replacement_outbox_is_recognized_and_gets_the_consumer(self):
        other = self.path("other.db")
        self.outbox("init", env={"OUTBOX_STORE": f"sqlite:{other}"})
        with self.start() as relay:
            self.emit("before")
            self.delivered("before", relay)
            os.rename(other, self.db)
            self.emit("after")
            self.delivered("after", relay)
            self.assertIn("was replaced by another outbox", relay.output())
            self.whole()

    def many(self):
        """A relay of so many consumers that they share a handle."""
        args = [arg for i in range(8) for arg in ("--consumer", f"c{i}", "--sink", f"file:{self.path(f'c{i}')}")]
        return self.relay(*args, "--lease", "2s")

    def delivered_to_all(self, type, relay):
        for i in range(8):
            wait_until(lambda: type in [ev["type"] for ev in self.ndjson(self.path(f"c{i}"))], what=relay.output)

    def test_replacement_outbox_gets_all_consumers_of_the_relay(self):
        other = self.path("other.db")
        self.outbox("init", env={"OUTBOX_STORE": f"sqlite:{other}"})
        with self.many() as relay:
            self.emit("before")
            self.delivered_to_all("before", relay)
            os.rename(other, self.db)
            self.emit("after")
            self.delivered_to_all("after", relay)
            self.assertIn("was replaced by another outbox", relay.output())
            self.whole()

    def test_other_outbox_restored_in_place_gets_all_consumers(self):
        other = self.path("other.db")
        self.outbox("init", env={"OUTBOX_STORE": f"sqlite:{other}"})
        self.outbox("emit", "waits", env={"OUTBOX_STORE": f"sqlite:{other}"})
        with self.many() as relay:
            self.emit("before")
            self.delivered_to_all("before", relay)
            with contextlib.closing(sqlite3.connect(other)) as a, contextlib.closing(sqlite3.connect(self.db)) as b:
                a.backup(b)
            self.delivered_to_all("waits", relay)
            self.assertIn("this file now holds another outbox", relay.output())

    def test_restarted_numbers_are_repaired_for_all_consumers(self):
        with self.many() as relay:
            for type in ("a", "b"): self.emit(type)
            self.delivered_to_all("b", relay)
            wait_until(lambda: not self.sql("SELECT 1 FROM outbox_claim"))
            self.alter_events("DELETE FROM outbox_event", "DELETE FROM sqlite_sequence", "INSERT INTO outbox_event (type) VALUES ('anew')")
            self.delivered_to_all("anew", relay)
            self.assertIn("event numbers restarted", relay.output())

    def test_relay_waits_for_a_missing_file_and_never_recreates_it(self):
        with self.start() as relay:
            self.emit("before")
            self.delivered("before", relay)
            os.rename(self.db, self.path("away"))
            wait_until(lambda: "deleted or moved away" in relay.output(), what=relay.output)
            self.assertFalse(self.db.exists())
            self.assertIn("no such file", self.outbox("emit", "x", status=None).stderr)
            os.rename(self.path("away"), self.db)
            self.emit("after")
            self.delivered("after", relay)
            self.assertFalse((self.got()).count("before") > 1)
            self.whole()

    def test_relay_reports_a_file_without_an_outbox_and_waits(self):
        with self.start() as relay:
            self.emit("before")
            self.delivered("before", relay)
            with contextlib.closing(sqlite3.connect(self.path("empty.db"))) as db:
                db.execute("CREATE TABLE orders (n)")
            os.rename(self.path("empty.db"), self.db)
            wait_until(lambda: "no outbox in this database" in relay.output(), what=relay.output)
            self.assertTrue(relay.running())
            self.outbox("init")
            self.emit("after")
            self.delivered("after", relay)
            self.whole()

    def test_events_in_flight_survive_the_replacement_of_the_file(self):
        """The copy has two events that were being delivered from the old file: they are delivered from it as well."""
        gate = self.path("gate")
        sink = f"exec:while test -e {gate}; do sleep 0.02; done; echo $OUTBOX_TYPE >> {self.out}"
        gate.touch()
        with self.relay("--consumer", "c", "--sink", sink, "--lease", "1s", "--log-hold", "0s") as relay:
            self.emit("one", "k/1")
            self.emit("two", "k/1")
            copy = backup(self.db, self.path("copy.db"))
            with contextlib.closing(sqlite3.connect(copy)) as db, db:
                db.execute("DELETE FROM outbox_claim")  # as if copied before the events were claimed
                db.execute("UPDATE outbox_lane SET position = 0")
                db.execute("UPDATE outbox_consumer SET epoch = 0")
            os.rename(copy, self.db)
            wait_until(lambda: "was replaced" in relay.output(), what=relay.output)
            gate.unlink()
            lines = lambda: self.out.read_text().split() if self.out.exists() else []
            settled = lambda: self.sql("SELECT (SELECT count(*) FROM outbox_claim) + (SELECT count(*) FROM outbox_parked), "
                                       "position FROM outbox_lane") == [(0, 2)]
            wait_until(settled, what=lambda: f"{lines()}\n{relay.output()}")
            self.assertGreaterEqual(lines().count("one"), 1)
            self.assertGreaterEqual(lines().count("two"), 1)
            self.whole()

    def test_long_emit_does_not_continue_in_a_deleted_file(self):
        child = subprocess.Popen([BIN, "emit", "--ndjson", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=self.env())
        self.addCleanup(child.kill)
        line = b'{"type":"first"}\n'
        child.stdin.write(line)
        child.stdin.flush()
        copy = self.path("copy.db")
        self.outbox("init", env={"OUTBOX_STORE": f"sqlite:{copy}"})
        opened = pathlib.Path(f"/proc/{child.pid}/fd")
        wait_until(lambda: any(os.path.realpath(fd) == str(self.db) for fd in opened.iterdir()))
        os.rename(copy, self.db)
        try:
            child.stdin.write(line * 5000)
        except BrokenPipeError: pass
        out, err = child.communicate()
        stored = self.sql("SELECT count(*) FROM outbox_event")[0][0]
        if child.returncode == 0: self.assertEqual(stored, 5001)
        else: self.assertIn(b"was replaced", err)

    def test_new_file_is_not_opened_while_the_old_one_is_in_use(self):
        """A process unrelated to us has the old file open. Opening the new file now would attach the old file's log: we refuse,
        name the process, and continue as soon as it has ended."""
        with contextlib.closing(sqlite3.connect(self.db)) as db, db:
            db.execute("INSERT INTO outbox_event (type) VALUES ('former')")
        copy = backup(self.db, self.path("copy.db"))
        code = ("import sqlite3,sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
                "db.execute(\"INSERT INTO outbox_event (type) VALUES ('stranger')\"); print('ready', flush=True); "
                "sys.stdin.read()")
        stranger = subprocess.Popen(["python3", "-c", code, self.db], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(stranger.kill)
        stranger.stdout.readline()
        os.rename(copy, self.db)
        refused = self.outbox("emit", "after", status=None)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(f"process {stranger.pid} still uses the previous file at this path", refused.stderr)
        self.assertIn("-wal", refused.stderr)
        stranger.send_signal(signal.SIGKILL)
        stranger.communicate()
        for name in ("shop.db-wal", "shop.db-shm"): (self.home / name).unlink()
        self.emit("after")
        self.assertEqual(self.sql("SELECT type FROM outbox_event ORDER BY seq"), [("former",), ("after",)])
        self.whole()

    def test_every_relay_and_its_metrics_follow_the_new_file(self):
        """Two relays with two consumers each; all switch to the new file and deliver every later event once."""
        args = []
        for name in ("a", "b"): args += ["--consumer", name, "--sink", f"file:{self.path(name)}"]
        relays = [self.relay(*args, "--lease", "2s") for _ in range(2)]
        self.emit("before")
        wait_until(lambda: all(self.ndjson(self.path(n)) for n in ("a", "b")))
        copy = backup(self.db, self.path("copy.db"))
        os.rename(copy, self.db)
        ids = [self.emit("after", f"k/{n}") for n in range(20)]
        for name in ("a", "b"):
            got = lambda: [ev["id"] for ev in self.ndjson(self.path(name)) if ev["type"] == "after"]
            wait_until(lambda: len(got()) >= 20, what=lambda: "\n".join(r.output() for r in relays))
            self.assertEqual(sorted(got()), sorted(ids))
        self.whole()
        for relay in relays: relay.stop()

    def test_relay_reports_a_restore_in_place_and_continues(self):
        """`.restore` writes the copy into the file that every process has open: no process has to reopen it."""
        with self.start() as relay:
            self.emit("before")
            self.delivered("before", relay)
            copy = backup(self.db, self.path("copy.db"))
            self.emit("forgotten")
            self.delivered("forgotten", relay)
            with contextlib.closing(sqlite3.connect(copy)) as a, contextlib.closing(sqlite3.connect(self.db)) as b:
                a.backup(b)
            self.emit("after")
            self.delivered("after", relay)
            self.assertIn("an older copy of this outbox was restored into the file", relay.output())
            self.whole()

    def test_restarted_sequence_is_reported_and_loses_nothing(self):
        """Test fixtures and some ORMs empty the table and its sequence: later events get numbers that consumers have passed."""
        empty = "DELETE FROM outbox_event", "DELETE FROM sqlite_sequence"
        with self.start() as relay:
            for n in range(5): self.emit(f"before{n}")
            self.delivered("before4", relay)
            self.alter_events(*empty)
            self.emit("after")
            self.delivered("after", relay)
            self.assertIn("event numbers restarted", relay.output())
        self.alter_events(*empty)
        for n in range(20): self.emit(f"later{n}")  # as many as to pass the position, with no worker polling
        self.assertIn("restarted below those that consumers have received", self.outbox("doctor", status=None).stdout)
        self.drain("--consumer", "c", "--sink", f"file:{self.out}")
        self.assertEqual([t for t in self.got() if t.startswith("later")], [f"later{n}" for n in range(20)])
        self.assertIn("event numbers had restarted", self.outbox("doctor", status=None).stdout)

    def log_deleted(self, *suffixes, quiet=False):
        """The log or its index is deleted under a relay: it reports that and exits, and nothing that was committed is lost."""
        types = ["before", "second", "third"] if quiet else ["before"]
        with contextlib.closing(sqlite3.connect(self.db, isolation_level=None)) as other:  # keeps the log from being emptied
            relay = self.start()
            self.emit("before")
            self.delivered("before", relay)
            if quiet: wait_until(lambda: time.time() > os.stat(self.home).st_ctime + 0.3)
            for type in types[1:]:
                self.emit(type)
                self.delivered(type, relay)
            other.execute("SELECT 1 FROM outbox_event").fetchall()
            for suffix in suffixes: pathlib.Path(f"{self.db}{suffix}").unlink()
            wait_until(lambda: not relay.running(), what=relay.output)
            self.assertIn("was deleted while in use", relay.output())
            self.assertNotEqual(relay.popen.returncode, 0)
        pathlib.Path(f"{self.db}-wal").unlink(missing_ok=True)
        pathlib.Path(f"{self.db}-shm").unlink(missing_ok=True)
        if len(suffixes) == 2: self.assertEqual(self.sql("SELECT type FROM outbox_event"), [(type,) for type in types])
        self.emit("after")
        self.drain("--consumer", "c", "--sink", f"file:{self.out}")
        self.assertIn("after", self.got())
        self.whole()

    def test_deleted_wal_stops_the_relay_with_a_message(self):
        self.log_deleted("-wal", "-shm")

    def test_deleted_log_index_stops_the_relay_with_a_message(self):
        self.log_deleted("-shm")

    def test_log_deleted_while_idle_stops_the_relay_with_a_message(self):
        """Once a folder has been unchanged for long enough, a process checks the folder instead of its files."""
        self.log_deleted("-wal", "-shm", quiet=True)

    def test_consumer_with_missing_rows_is_reported_and_recreated(self):
        self.emit("one")
        self.drain("--consumer", "c", "--sink", f"file:{self.out}")
        self.sql("DELETE FROM outbox_lane")
        with self.start() as relay:
            wait_until(lambda: 'consumer "c" has lost its position' in relay.output(), what=relay.output)
            self.assertIn('consumer "c" has lost its position', self.outbox("doctor", status=None).stdout)
            self.outbox("trim", "--older-than", "0s", "--yes")
            self.assertEqual(self.sql("SELECT count(*) FROM outbox_event"), [(1,)], "events that the consumer may need were trimmed")
        self.outbox("consumers", "remove", "c", "--yes")
        self.drain("--consumer", "c", "--sink", f"file:{self.out}")
        self.assertEqual(self.got(), ["one", "one"])

    def test_file_with_two_names_is_reported(self):
        os.link(self.db, self.home / "other.db")
        self.assertIn("more than one name", self.outbox("doctor", status=None).stdout)

    def test_transaction_across_a_file_change_is_discarded(self):
        child = subprocess.Popen([BIN, "emit", "--ndjson", "-", "--atomic"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=self.env())
        self.addCleanup(child.kill)
        child.stdin.write(b'{"type":"first"}\n' * 2000)
        child.stdin.flush()
        copy = backup(self.db, self.path("copy.db"))
        wait_until(lambda: is_locked(self.db))
        os.rename(copy, self.db)
        _, err = child.communicate()
        self.assertNotEqual(child.returncode, 0, "a commit into the deleted file was reported as a success")
        self.assertIn(b"was replaced", err)
        for name in ("shop.db-wal", "shop.db-shm"): (self.home / name).unlink(missing_ok=True)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_event"), [(0,)])

    def test_relay_reports_and_uses_an_outbox_restored_in_place(self):
        """Its consumer of the same name has claimed more often, so by its epochs it is not older."""
        other = self.path("other.db")
        store = {"OUTBOX_STORE": f"sqlite:{other}"}
        self.outbox("init", env=store)
        for n in range(4):
            self.outbox("emit", "there", env=store)
            self.drain("--consumer", "c", "--sink", f"file:{self.path('there')}", env=store)
        self.outbox("emit", "waits", env=store)
        with self.start() as relay:
            self.emit("before")
            self.delivered("before", relay)
            with contextlib.closing(sqlite3.connect(other)) as a, contextlib.closing(sqlite3.connect(self.db)) as b:
                a.backup(b)
            self.delivered("waits", relay)
            self.assertIn("this file now holds another outbox", relay.output())
