"""The binary with its allocations failing one by one (preload.c over the real thing): it says what went wrong and exits, or
goes on without; it never crashes, hangs, or says that it did what it did not. In an ordinary run every third allocation of its own
fails (of those of a relay that drains, which is started twice for each, one in nine), and a share of its libraries' (SQLite,
libpq, stdio); in a soak each of those. With --quick and under sanitizers (in a soak: they are there for what is left behind), a fifth
of it will do, and memory comes back after one failure."""
# sanitizers: soak
import json
import os
import pathlib
import re
import shutil
import subprocess

import servers
from http_endpoint import Endpoint
from support import BIN, QUICK, SANITIZED, SANITIZER, SOAK, Case, PgCase, clean_env

SHIM = pathlib.Path(BIN).parent / "tests" / "torture" / "liboutbox-fail.so"
BRIEF = (SANITIZED or QUICK) and not SOAK
SHARE = 1 if SOAK else 1499 if BRIEF else 397  # one in so many of the libraries' allocations
OURS = 1 if SOAK else 5 if BRIEF else 3  # and of its own
STATUSES = (0, 1, 64, 65, 69, 75, 78)  # exit statuses in the manual; 70 would be a bug
LIMIT = 30  # seconds until a run counts as hanging


def event(i):
    return {"type": "a.b", "aggregate_type": "k", "aggregate_id": str(i % 2), "payload": {"n": i}}


def timeless(text):
    """timeless removes times and ages from a text, and the blanks around them."""
    return re.sub(r"[ -]+", " ", re.sub(r"\d+(ms|s|m|h|d)?", "0", text))


class Torture:
    """What both stores share."""

    SAYS_SO = ("doctor", "migrate")  # one reports it as a finding, the other as a shorter name

    def run_failing(self, args, at, whose="all", lasting=False, input=b""):
        """run_failing returns (process, number of allocations, whether one failed)."""
        report = self.path("report")
        report.unlink(missing_ok=True)
        env = {"LD_PRELOAD": str(SHIM), "FAIL_AT": str(at), "FAIL_WHOSE": whose, "FAIL_REPORT": str(report),
               "OUTBOX_STORE": self.store, **({"FAIL_LASTING": "1"} if lasting else {})}
        if SANITIZED:
            # The shim precedes the sanitizer on purpose, and passes everything on to it.
            env["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0:allocator_may_return_null=1"
        done = subprocess.run([BIN, *map(str, args)], input=input, capture_output=True, cwd=self.dir, env=clean_env(env),
                              timeout=LIMIT)
        calls, hit = map(int, report.read_text().split()) if report.exists() else (0, 0)
        return done, calls, bool(hit)

    def check_run(self, done, where):
        said = done.stderr.decode(errors="replace")
        self.assertFalse(any(mark in said for mark in SANITIZER), f"{where}\n{said}")
        self.assertIn(done.returncode, STATUSES, f"{where}\n{said}")
        if done.returncode > 1: self.assertRegex(said, r"\w", f"{where}: exit status {done.returncode} without a message")
        self.assertNotRegex(said, r"\(null\)", where)

    def torture(self, *args, input=b"", prepare=None, check=None, lasting=True, slow=1):
        """torture runs a command once per failing allocation. check(process, where) examines each. slow: outside of a soak, one
        in so many of them."""
        slow = 1 if SOAK else slow
        if prepare: prepare()
        done, ours, _ = self.run_failing(args, 0, "ours", input=input)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        if prepare: prepare()
        every = self.run_failing(args, 0, input=input)[1]
        self.assertGreater(every, ours)
        rounds = 0
        for mode in (False, True) if lasting and not BRIEF else (False,):
            for whose, numbers in ("ours", range(1, ours + 1, OURS * slow)), ("all", range(1, every + 1, SHARE * slow)):
                for at in numbers:
                    where = f"outbox {' '.join(map(str, args))}: allocation {at} ({whose}{', and all after it' * mode})"
                    if prepare: prepare()
                    done, _, _ = self.run_failing(args, at, whose, mode, input)
                    self.check_run(done, where)
                    if check: check(done, where)
                    rounds += 1
        print(f"outbox {' '.join(map(str, args))}: {ours} allocations of its own, {every} with its libraries'; "
              f"{rounds} runs")

    def events(self):
        return self.sql(self.COUNT_EVENTS)[0][0]

    def test_read_only_commands_survive_failed_allocations(self):
        self.init()
        self.emit_many([event(i) for i in range(5)])
        self.outbox("relay", "--drain", "--consumer", "c", "--sink", "exec:false", "--retry", "attempts=1,base=1ms,outage=0s",
                    status=None)
        self.assertEqual(self.sql(self.COUNT_DEAD)[0][0], 5)
        for args in self.LOOKING:
            whole = timeless(self.outbox(*args, status=None).stdout)

            def complete(done, where):
                """Incomplete output must not look complete. libsmartcols may leave out a column's name."""
                if done.returncode not in (0, 1) or args[0] in self.SAYS_SO: return
                if "(ours" in where: self.assertEqual(timeless(done.stdout.decode()), whole, where)
                else: self.assertEqual(done.stdout.count(b"\n"), whole.count("\n"), where)
            with self.subTest(args=args):
                self.torture(*args, check=complete)

    def test_emit_survives_failed_allocations(self):
        self.init()
        before = self.events()
        seen = {"events": before}

        def check(done, where):
            now = self.events()
            ids = re.findall(rb"[0-9a-f]{8}-[0-9a-f-]{27}", done.stdout)
            if done.returncode == 0: self.assertEqual(now - seen["events"], 1, f"{where}\n{done.stderr}")
            else: self.assertLessEqual(now - seen["events"], 1, where)
            if ids: self.assertEqual(now - seen["events"], 1, f"{where}: printed the id of a missing event")
            seen["events"] = now

        seen["events"] = before + 2  # torture counts the allocations first, in two runs
        self.torture("emit", "a.b", "--key", "k/1", "--payload", '{"n":1}', "--header", "h=1", check=check)

    def test_bulk_emit_survives_failed_allocations(self):
        self.init()
        lines = "".join(json.dumps(event(i)) + "\n" for i in range(3)).encode()
        seen = {"events": self.events() + 6}

        def check(done, where):
            now = self.events()
            if done.returncode == 0: self.assertEqual(now - seen["events"], 3, f"{where}\n{done.stderr}")
            seen["events"] = now

        self.torture("emit", "--ndjson", "-", input=lines, check=check)

    def drain_to(self, sink, clear, arrived):
        """However a relay ends, the next one delivers the rest; nothing is a dead letter. clear empties the sink's destination,
        arrived returns the payloads there."""
        self.init()
        args = ["relay", "--drain", "--consumer", "c", "--sink", sink, "--lease", "100ms"]

        def prepare():
            clear()
            self.emit_many([event(i) for i in range(6)])

        def check(done, where):
            self.drain(*args[2:])
            got = [payload["n"] for payload in arrived()]
            self.assertEqual(sorted(set(got)), [0, 1, 2, 3, 4, 5], where)
            for key in 0, 1:
                first = list(dict.fromkeys(n for n in got if n % 2 == key))
                self.assertEqual(first, sorted(first), where)
            self.assertEqual(self.sql(self.COUNT_DEAD)[0][0], 0, where)

        # If memory never returns, a relay keeps trying, which is allowed.
        self.torture(*args, prepare=prepare, check=check, lasting=False, slow=3)

    def test_drain_survives_failed_allocations(self):
        out = self.path("out.ndjson")
        self.drain_to(f"file:{out}", lambda: out.unlink(missing_ok=True), lambda: [e["payload"] for e in self.ndjson(out)])


class Sqlite(Torture, Case):
    COUNT_EVENTS = "SELECT count(*) FROM outbox_event"
    COUNT_DEAD = "SELECT count(*) FROM outbox_dead"
    LOOKING = (["status"], ["status", "--json"], ["events", "list"], ["events", "list", "--json"], ["events", "show", "1"],
               ["dead", "list"], ["dead", "show", "1"], ["consumers", "list"], ["doctor"], ["migrate", "status"],
               ["migrate", "gen"], ["config", "show"], ["config", "sample"], ["trim", "--dry-run"], ["help", "relay"])

    def test_drain_to_redis_survives_failed_allocations(self):
        with servers.Redis() as redis:
            self.drain_to(redis.url("stream=s"), lambda: redis("FLUSHALL"), lambda: [e["payload"] for _, e in redis.entries("s")])

    def test_drain_to_a_webhook_survives_failed_allocations(self):
        with Endpoint() as endpoint:
            self.drain_to(endpoint.url, endpoint.requests.clear, lambda: [json.loads(r.body) for r in endpoint.requests])

    def test_init_survives_failed_allocations(self):
        def prepare():
            for end in "", "-wal", "-shm", "-journal":
                pathlib.Path(f"{self.db}{end}").unlink(missing_ok=True)

        def check(done, where):
            """A second attempt finds nothing half-made."""
            self.outbox("init")
            self.outbox("emit", "a.b")
        self.torture("init", prepare=prepare, check=check, slow=3)

    def test_config_file_parsing_survives_failed_allocations(self):
        self.init()
        config = self.path("outbox.conf")
        config.write_text(f'[outbox]\nstore = {self.store}\n\n[consumer mail]\nsink = file:x\nlease = 2s\nevents = a.*\n'
                          'where = n = 1\n\n[consumer search]\nsink = stdout:\nretry = base=1s,attempts=3,outage=0s\n')
        whole = self.outbox("-c", config, "config", "show").stdout

        def check(done, where):
            if done.returncode == 0: self.assertEqual(done.stdout.decode(), whole, where)
        self.torture("-c", config, "config", "show", check=check)
        self.torture("-c", config, "config", "check")


class Postgres(Torture, PgCase):
    COUNT_EVENTS = "SELECT count(*) FROM outbox.event"
    COUNT_DEAD = "SELECT count(*) FROM outbox.dead"
    LOOKING = (["status"], ["events", "list"], ["dead", "list"], ["migrate", "status"])


if not shutil.which("true") or not SHIM.exists():
    raise RuntimeError(f"{SHIM} is missing: build everything first")
