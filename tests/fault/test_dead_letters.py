"""A hundred thousand dead letters in a soak, ten thousand otherwise, as after a night with a wrong deployment: every operation
stays quick and needs no more memory than with a few."""
# build: plain
# quick: no
import contextlib
import json
import os
import time
import urllib.request

import servers
from scenario import peak
from support import BIN, SOAK, PgCase

DEAD = 100_000 if SOAK else 10_000
WAITING = 20_000
KEYS = 1000
BATCH = 5000
QUICK = 60  # seconds, on a busy machine; an idle one needs a tenth at most
CEILING = 32 << 10  # KiB that a command has at most


class ManyDead(PgCase):
    def setUp(self):
        super().setUp()
        self.init()
        self.sql("SELECT outbox.register('mail')")
        self.figures = {}
        self.addCleanup(lambda: os.write(int(os.environ.get("OUTBOX_TAP", 1)), f"# took: {json.dumps(self.figures)}\n".encode()))

    def bury(self, n):
        """bury creates n events that the consumer `mail` buries."""
        self.sql("INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload) SELECT 'order.' || i %% 7, 'order', i %% %s, "
                 "jsonb_build_object('n', i, 'text', repeat('x', 300)) FROM generate_series(1, %s) i", KEYS, n)
        while True:
            rows = self.sql("SELECT epoch, seq FROM outbox.claim('mail', 'w', %s)", BATCH)
            if not rows: break
            outcomes = json.dumps([{"seq": seq, "kind": "dead", "error": "HTTP 410 from http://127.0.0.1:1/"} for _, seq in rows])
            self.sql("SELECT outbox.settle('mail', 'w', %s, %s)", rows[0][0], outcomes)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.dead"), [(n,)])

    def did(self, name, *args):
        """did runs a command, records its time and memory, and returns its output."""
        child = self.spawn(BIN, *args)
        start, memory = time.monotonic(), 0
        while child.running():
            with contextlib.suppress(OSError, StopIteration): memory = peak(child.pid)
            time.sleep(0.002)
        took = time.monotonic() - start
        self.figures[name] = {"s": round(took, 2), "KiB": memory}
        self.assertIn(child.wait(expect=None), (0, 1), child.output()[-2000:])
        self.assertLess(memory, CEILING, f"{name}: KiB of memory")
        self.assertLess(took, QUICK, f"{name}: seconds")
        return child.output()

    def test_cost_of_commands_on_many_dead_letters_is_bounded(self):
        self.bury(DEAD)
        self.assertIn(str(DEAD), self.did("status", "status").replace(",", ""))
        self.did("doctor", "doctor")
        self.did("events list", "events", "list", "--state", "abandoned", "--limit", 50)
        self.assertEqual(self.did("dead list --limit 50", "dead", "list", "--limit", 50, "--json").count('"seq"'), 50)
        self.assertEqual(self.did("dead list --json", "dead", "list", "--json").count('"seq"'), DEAD)
        table = self.did("dead list", "dead", "list").splitlines()
        self.assertEqual((len(table), sum("ATTEMPTS" in line for line in table)), (DEAD + 1, 1), "lines, including headings")
        self.assertEqual(len({line.index("HTTP 410") for line in table[-1000:]}), 1, "the columns of a page are aligned")
        self.did("dead retry --dry-run", "dead", "retry", "--all", "--dry-run")
        some, = self.sql("SELECT count(*) FROM outbox.dead WHERE type = 'order.3'")[0]
        self.did("dead retry --type", "dead", "retry", "--all", "--type", "order.3")
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.parked"), [(some,)])
        self.did("trim", "trim", "--older-than", "0s", "--yes")
        self.scrape()
        self.did("dead retry --all", "dead", "retry", "--all")
        self.deliver(DEAD)
        self.did("trim of all", "trim", "--older-than", "0s", "--yes")

    def test_cost_of_dropping_many_dead_letters_is_bounded(self):
        self.bury(DEAD)
        self.did("dead drop --type", "dead", "drop", "--all", "--type", "order.3", "--yes")
        self.did("dead drop --all", "dead", "drop", "--all", "--yes")
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.dead"), [(0,)])
        self.did("status", "status")
        self.did("trim of all", "trim", "--older-than", "0s", "--yes")

    def test_oldest_needed_event_is_found_without_a_scan(self):
        """status, metrics and each step of a trim look up the first event that waits."""
        self.sql("INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload) SELECT 't', 'order', i, '1' FROM "
                 "generate_series(1, %s) i", WAITING)
        while rows := self.sql("SELECT epoch, seq FROM outbox.claim('mail', 'w', %s)", BATCH):
            outcomes = [{"seq": seq, "kind": "retry", "attempts": 1, "delay_ms": 3600000, "error": "HTTP 503"} for _, seq in rows]
            self.sql("SELECT outbox.settle('mail', 'w', %s, %s)", rows[0][0], json.dumps(outcomes))
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.parked"), [(WAITING,)])
        self.assertEqual(self.sql("SELECT floor, pin FROM outbox._floors()"), [(0, "parked")])
        plan = self.sql("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM outbox._floors()")[0][0][0]["Plan"]
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        self.assertLess(pages, 300, f"pages read for {WAITING} waiting events")

    def scrape(self):
        """scrape reads a relay's metrics while it is at work."""
        port = servers.free_port()
        with self.relay("--consumer", "other", "--sink", f"file:{self.path('other')}", "--from", "end", "--listen", f"127.0.0.1:{port}") as relay:
            for name in ("metrics, first", "metrics"):
                start = time.monotonic()
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer: text = answer.read().decode()
                self.figures[name] = {"s": round(time.monotonic() - start, 2)}
            self.assertIn("outbox_dead", text)
            self.assertTrue(relay.running())

    def deliver(self, n):
        """deliver runs a relay on the retried letters: each arrives once, and each key in order."""
        out = self.path("out")
        start = time.monotonic()
        self.drain("--consumer", "mail", "--sink", f"file:{out}", timeout=300)
        self.figures["delivered again"] = {"s": round(time.monotonic() - start, 2)}
        got = [(ev["aggregate_id"], ev["seq"]) for ev in self.ndjson(out)]
        self.assertEqual(len(got), n)
        last = {}
        for key, seq in got:
            self.assertLess(last.get(key, 0), seq, key)
            last[key] = seq
