"""Resources that run out: room on the disk, for an SQLite database and for the file sink, and memory. The error is clear,
nothing is lost, and work continues once there is room again. The disk of a PostgreSQL server is in test_postgres_servers.py.

# build: plain
# quick: no
"""
import ctypes
import json
import os
import pathlib
import re
import resource
import signal
import subprocess

from checker import COMMITTED, Fact, whole_lines
from scenario import CLAIMS, KEYS, Numbers, Scenario
from support import BIN, SOAK, Case, MariaCase, PgCase, wait_until

BATCH = 20
MIB = 1 << 20
NEWNS, NEWUSER, PRIVATE = 0x20000, 0x10000000, 0x44000  # of unshare(2); of mount(2): MS_REC | MS_PRIVATE
UNAVAILABLE = 69


def small_disks():
    """small_disks allows this process to mount file systems that only it and its children see; it returns False if it may not.
    Each test file is a separate process."""
    libc, uid, gid = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if libc.unshare(NEWNS) != 0:
        if libc.unshare(NEWUSER | NEWNS) != 0: return False
        pathlib.Path("/proc/self/setgroups").write_text("deny")
        pathlib.Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        pathlib.Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    return libc.mount(b"none", b"/", None, PRIVATE, None) == 0


class Space(Numbers, Case):
    """A disk of a few megabytes at self.small."""

    MEGABYTES = 3

    @classmethod
    def setUpClass(cls):
        if not hasattr(Space, "possible"): Space.possible = small_disks()

    def setUp(self):
        super().setUp()
        self.small = self.path("small")
        self.small.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self.MEGABYTES}m", "none", str(self.small)]
        if not self.possible or subprocess.run(mount, capture_output=True).returncode != 0:
            self.skipTest("this machine does not allow mounting a small file system")
        self.addCleanup(subprocess.run, ["umount", "-l", str(self.small)])
        self.addCleanup(self._end_children)

    def fill(self):
        """fill uses up all the room."""
        with open(self.small / "ballast", "wb") as f:
            for size in (1 << 16, 1):
                try:
                    while True: os.write(f.fileno(), b"x" * size)
                except OSError:
                    pass

    def start(self, *more):
        return self.relay("--consumer", "out", "--sink", f"file:{self.out}", "--batch", BATCH, "--lease", "500ms", "--log-hold",
                          "0s", *more)

    def bound(self):
        return (CLAIMS * self.faults.get("disk full", 0) + self.lost_claims("out")) * BATCH

    def test_emits_fail_on_a_full_disk_and_nothing_is_lost(self):
        """An SQLite database without room refuses emits and says why; committed events are delivered, in order, once there is
        room again, by the same relay."""
        self.db = self.small / "shop.db"
        self.store = f"sqlite:{self.db}"
        self.init()
        with self.start() as relay:
            for _ in range(20 if SOAK else 3):
                self.wait_all(relay)
                relay.freeze(self.db)
                self.send(60)
                self.fill()
                relay.signal(signal.SIGCONT)
                # Its writes may find room in the write-ahead log.
                wait_until(lambda: "no space left" in relay.output() or not self.missing(), what=relay.output)
                said = self.outbox("emit", "a", "--payload", "-", input=json.dumps("x" * 200000), status=UNAVAILABLE).stderr
                self.assertIn("no space left on the device", said)
                self.assertIn("make room", said)
                sent = self.sent  # events that still fit are stored whole
                while self.outbox("emit", "a", "--key", f"k/{self.sent % KEYS}", "--payload", self.sent, status=None
                                  ).returncode == 0 and self.sent < sent + 50: self.sent += 1
                (self.small / "ballast").unlink()
                self.fault("disk full")
                self.send(20)
                self.heal(relay)
        self.reckon(self.bound())
        self.assertEqual(self.sql("PRAGMA integrity_check"), [("ok",)])

    def test_full_disk_takes_the_file_sink_down(self):
        """A file sink without room is down, and says why; once there is room again every line is whole and in order, none is
        lost, and no attempt is counted."""
        self.out = self.small / "out"
        self.init()
        with self.start() as relay:
            for n in range(20 if SOAK else 3):
                self.send(60)
                self.wait_all(relay)
                self.fill()
                self.send(100)
                wait_until(lambda: relay.output().count("No space left on device") > n, what=relay.output)
                (self.small / "ballast").unlink()
                self.fault("disk full")
                self.heal(relay)
        self.assertIn("sink is down", relay.output())
        self.assertNotIn("failed, attempt", relay.output())
        self.assertTrue(self.out.read_bytes().endswith(b"\n"))
        self.reckon(self.bound())


class Memory(Scenario):
    """Events of up to a megabyte, and a relay that may not have much memory."""

    ENOUGH, TOO_LITTLE = 128 * MIB, 40 * MIB  # address space: the libraries alone need 30
    COUNT, TRIES = (120, 8) if SOAK else (40, 6)

    def setUp(self):
        super().setUp()
        self.out = self.path("out")
        self.init()
        self.bodies = {n: json.dumps(f"{n} " + "x" * (MIB - 20 if n % 2 else n * 1000)) for n in range(self.COUNT)}
        lines = "".join(f'{{"type":"a","aggregate_type":"k","aggregate_id":"{n % KEYS}","payload":{body}}}\n'
                        for n, body in self.bodies.items())
        self.outbox("emit", "--ndjson", "-", input=lines)

    def limited(self, limit):
        # With an arena for each thread, memory that malloc reserves and never uses would count.
        return self.spawn("env", "MALLOC_ARENA_MAX=1", "prlimit", f"--as={limit}:", BIN, "relay", "--consumer", "out", "--sink", f"file:{self.out}",
                          "--lease", "1s", "--log-hold", "0s", "--retry", "base=100ms,cap=1s,attempts=6,outage=0s", log=f"relay-{len(self.children)}.log")

    def got(self):
        """got returns the number and the bytes of each event."""
        return [(int(raw[1:].split(" ", 1)[0]), raw) for _, raw in whole_lines(self.out)]

    def wait_all(self, relay):
        lines = lambda: self.out.exists() and self.out.read_bytes().count(b"\n") >= self.COUNT
        wait_until(lines, what=lambda: relay.output()[-3000:])
        wait_until(lambda: len(set(self.got())) == self.COUNT, what=lambda: relay.output()[-3000:])

    def check(self, bound):
        c = self.checker(dict.fromkeys(self.bodies, COMMITTED),
                         [(n, Fact(n % KEYS, n, body)) for n, body in self.bodies.items()])
        c.consumer("out", self.got(), bound=bound)
        self.check_left(c)
        c.verdict()

    def test_large_events_need_little_memory(self):
        """A relay delivers events of a megabyte within 128 MiB of address space."""
        self.fault("memory limited")
        relay = self.limited(self.ENOUGH)
        self.wait_all(relay)
        self.healed()
        relay.stop()
        self.assertNotIn("out of memory", relay.output())
        self.check(bound=0)

    def test_relay_out_of_memory_says_so_and_recovers(self):
        """A relay with too little memory reports that and retries, or ends; nothing is lost, and with more memory everything is
        delivered, in order."""
        relay = self.limited(self.TOO_LITTLE)
        said = lambda: len(re.findall("out of memory|cannot allocate memory", relay.output()))
        wait_until(lambda: said() > self.TRIES or not relay.running(), what=relay.output)
        self.assertGreater(said(), 0, relay.output())
        if relay.running(): resource.prlimit(relay.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else: relay = self.limited(self.ENOUGH)
        self.fault("too little memory")
        self.wait_all(relay)
        self.healed()
        relay.stop()
        self.check(bound=CLAIMS * self.COUNT)


class MemoryOnSqlite(Memory, Case):
    pass


class MemoryOnPostgres(Memory, PgCase):
    PREFIX = "outbox."


class MemoryOnMariadb(Memory, MariaCase):
    pass
