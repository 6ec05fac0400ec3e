"""An outbox that is brought up while older programs are at work on it: they settle what they have, and stop with a text that
says why; nothing is lost, and what comes after them delivers nothing again."""
# build: plain
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

import servers
from support import BIN, ROOT, SOAK, Case, PgCase, read_ndjson, wait_until

DATA = 65
HERE = pathlib.Path(__file__).resolve().parent
OLD_COMMIT = "57aba20"  # 0.1.0, before there was a second version


class Bumped:
    """A later version, as far as a relay of today can tell."""

    def set_version(self, number):
        self.sql(f"UPDATE {self.table('meta')} SET value = '{number}' WHERE name = 'schema_version'")

    def stops(self, relay, text):
        self.assertEqual(relay.wait(expect=DATA), DATA)
        self.assertIn(text, relay.output())
        self.assertNotIn("abandoned", relay.output())

    def test_a_relay_stops_in_order_when_the_outbox_was_brought_up_under_it(self):
        self.outbox("init")
        out = self.path("out.ndjson")
        consumer = ("--consumer", "a", "--sink", f"file:{out}", "--batch", "10")
        relay = self.relay(*consumer, "--sweep", "200ms")
        self.emit_many({"type": "t", "payload": n} for n in range(2000))
        wait_until(lambda: len(read_ndjson(out)) > 100, what=relay.output)
        self.set_version(99)
        self.stops(relay, f"this outbox was brought up to version 99; this program knows {self.LATEST}: update it")
        came = [e["payload"] for e in read_ndjson(out)]
        self.set_version(self.LATEST)
        self.drain(*consumer)
        after = [e["payload"] for e in read_ndjson(out)]
        self.assertEqual(after, list(range(2000)), f"lost or repeated; it had {len(came)}")

    def test_an_idle_relay_stops_as_well(self):
        self.outbox("init")
        relay = self.relay("--consumer", "a", "--sink", f"file:{self.path('out')}", "--sweep", "200ms")
        self.set_version(99)
        self.stops(relay, f"this program knows {self.LATEST}: update it")

    def test_a_relay_on_an_outbox_that_went_back_says_what_to_do(self):
        self.outbox("init")
        relay = self.relay("--consumer", "a", "--sink", f"file:{self.path('out')}", "--sweep", "200ms")
        self.set_version(1)
        self.stops(relay, f"this outbox has version 1; this program wants {self.LATEST}: run `outbox migrate up`")


class BumpedSqlite(Bumped, Case):
    LATEST = "6"
    def table(self, name): return f"outbox_{name}"


class BumpedPostgres(Bumped, PgCase):
    LATEST = "6"
    def table(self, name): return f"outbox.{name}"

    def test_a_worker_in_plain_sql_is_told(self):
        self.outbox("init")
        self.sql("SELECT outbox.register('w')")
        self.emit("t")
        epoch = self.sql("SELECT epoch FROM outbox.claim('w', 'x')")[0][0]
        self.set_version(99)
        with self.assertRaisesRegex(Exception, f"brought up to version 99; this program knows {self.LATEST}: update it"):
            self.sql("SELECT * FROM outbox.claim('w', 'y')")
        self.assertEqual(self.sql("SELECT outbox.settle('w', 'x', %s)", epoch), [(True,)])


def older():
    """older is a binary of 0.1.0, built from the history once and kept in the cache; None with a reason where that cannot be."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "outbox-tests" / OLD_COMMIT
    binary = cache / "build" / "outbox"
    if binary.exists(): return str(binary), None
    if subprocess.run(["git", "-C", ROOT, "cat-file", "-e", OLD_COMMIT], capture_output=True).returncode != 0:
        return None, f"no history here: commit {OLD_COMMIT} is not at hand"
    if not SOAK: return None, "0.1.0 is built by ./test --soak, and kept from then on"
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return None, f"0.1.0 cannot be kept: {error}"
    with tempfile.TemporaryDirectory(dir=cache.parent) as tmp:
        tree = subprocess.run(["git", "-C", ROOT, "archive", OLD_COMMIT], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", tmp], input=tree, check=True)
        done = subprocess.run(["scripts/build", "build"], cwd=tmp, env={**os.environ, "BUILD_TARGETS": "outbox"},
                              capture_output=True, text=True)
        if done.returncode != 0: return None, "0.1.0 does not build here: " + done.stderr[-300:]
        (pathlib.Path(tmp) / "kept" / "build").mkdir(parents=True)
        shutil.copy(pathlib.Path(tmp, "build", "outbox"), pathlib.Path(tmp, "kept", "build", "outbox"))
        os.rename(pathlib.Path(tmp, "kept"), cache)
    return str(binary), None


OLDER, NO_OLDER = older()


@unittest.skipUnless(OLDER, NO_OLDER)
class Older:
    """A real relay of 0.1.0 at work, a producer beside it, and init in the middle."""

    def test_a_relay_of_0_1_0_stops_in_order_and_nothing_is_lost(self):
        self.outbox("init", argv0=OLDER)
        out = self.path("out.ndjson")
        consumer = ("--consumer", "a", "--sink", f"file:{out}", "--batch", "10")
        relay = self.spawn(OLDER, "relay", *consumer, "--sweep", "200ms")
        wait_until(lambda: "started" in relay.output(), what=relay.output)
        emit = "".join(json.dumps({"type": "t", "payload": n}) + "\n" for n in range(1000))
        self.outbox("emit", "--ndjson", "-", input=emit, argv0=OLDER)
        wait_until(lambda: len(read_ndjson(out)) > 50, what=relay.output)
        self.outbox("init")
        self.emit_many({"type": "t", "payload": n} for n in range(1000, 1100))
        self.assertNotEqual(relay.wait(expect=None), 0)
        self.assertRegex(relay.output(), r"this outbox was brought up to version [234].*; this program knows 1: update it")
        self.assertNotIn("trying again", relay.output().split("brought up")[-1])
        self.drain(*consumer, "--lease", "1s")
        wait_until(lambda: self.drain(*consumer) and {e["payload"] for e in read_ndjson(out)} == set(range(1100)))
        repeats = len(read_ndjson(out)) - 1100
        self.assertLessEqual(repeats, self.repeats)
        self.assertIn("knows up to 1", self.outbox("status", argv0=OLDER, status=None).stderr)


class OlderSqlite(Older, Case):
    repeats = 40  # what it had in hand: there the settlement and the next claim are one transaction of its own making


class OlderPostgres(Older, PgCase):
    repeats = 0


if __name__ == "__main__":
    unittest.main()
