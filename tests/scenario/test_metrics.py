"""The metrics and health checks of a relay."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.error
import urllib.request

import psycopg2

from proxy_postgres import Proxy
import servers
from pages import items, section
from support import ROOT, Case, MariaCase, PgCase, on_each_store, wait_until

METRICS = ROOT / "docs" / "metrics.md"

UNAVAILABLE, USAGE = 69, 64
SAMPLE = re.compile(r'(\w+)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
TYPES_MAX = 32

LAST_MOMENT = r"""
#include <string.h>
#include <unistd.h>
/* The end of the process takes a while, and uses the stack again. */
__attribute__((destructor)) static void last_moment(void)
{
    char stack[32768];
    memset(stack, 0x5a, sizeof stack);
    __asm__ volatile("" : : "r"(stack) : "memory");
    usleep(500000);
}
"""


class Page:
    """A page of metrics: types are those of `# TYPE`, samples {(name, ((label, value), ...)): number}."""

    def __init__(self, text):
        self.text, self.types, self.helps, self.samples = text, {}, {}, {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ", 3)
                self.types[name] = kind
            elif line.startswith("# HELP "):
                _, _, name, words = line.split(" ", 3)
                self.helps[name] = words
            else:
                name, labels, value = SAMPLE.fullmatch(line).groups()
                self.samples[name, tuple(LABEL.findall(labels or ""))] = float(value)

    def get(self, name, **labels):
        """get returns the sum of the samples with these labels; None if there are none."""
        found = [value for (n, have), value in self.samples.items()
                 if n == name and labels.items() <= dict(have).items()]
        return sum(found) if found else None

    def labels(self, name):
        """labels returns the names of a metric's labels, except those of histogram buckets."""
        names = (name, f"{name}_bucket")
        found = {tuple(label for label, _ in have if label != "le") for n, have in self.samples if n in names}
        assert len(found) == 1, (name, found)
        return list(found.pop())


class Outside:
    """Common to the cases: a relay that listens on a separate port."""

    def serve(self, *args, **kw):
        relay = self.relay("--listen", "127.0.0.1:0", *args, **kw)
        relay.url = re.search(r"listening on (http://\S+)", relay.output())[1]
        return relay

    def fetch(self, relay, path, method="GET"):
        """fetch returns (status, text)."""
        request = urllib.request.Request(relay.url + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer: return answer.status, answer.read().decode()
        except urllib.error.HTTPError as answer:
            with answer: return answer.code, answer.read().decode()

    def metrics(self, relay):
        status, text = self.fetch(relay, "/metrics")
        self.assertEqual(status, 200)
        return Page(text)

    def wait_metric(self, relay, number, name, **labels):
        wait_until(lambda: self.metrics(relay).get(name, **labels) == number,
                   what=lambda: f"{name}{labels}: {self.metrics(relay).get(name, **labels)}\n{relay.output()}")

    def wait_ready(self, relay, status, *patterns):
        """wait_ready waits for this status, with a body that matches all these patterns."""
        def so():
            found, text = self.fetch(relay, "/readyz?verbose")
            return found == status and all(re.search(pattern, text, re.MULTILINE) for pattern in patterns)
        wait_until(so, what=lambda: f"{self.fetch(relay, '/readyz?verbose')}\n{relay.output()}")
        self.assertEqual(self.fetch(relay, "/readyz")[0], status)

    def file_sink(self, name="mail", *more):
        return ["--consumer", name, "--sink", f"file:{self.path(name)}", *more]

    def paused_relay(self, *more):
        self.drain(*self.file_sink("mail", *more))
        self.outbox("consumers", "pause", "mail")


class OutsideCase(Outside, Case):
    def setUp(self):
        super().setUp()
        self.init()


class Measured(OutsideCase):
    def test_metrics_and_their_documentation_agree(self):
        rows = [re.match(r"`(\w+)`, (\w+)((?:,? `\w+`)*)", item).groups() for item in items(section(METRICS, "## Metrics")) if item.startswith("`")]
        documented = {name: (kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows}
        self.emit("order.paid", "order/1", 1)
        redis = servers.Redis().start()
        self.addCleanup(redis.close)
        with self.serve(*self.file_sink(), "--consumer", "redis", "--sink", redis.url("stream=orders&lease=turn")) as relay:
            self.wait_metric(relay, 1, "outbox_dispatched_total", consumer="redis")
            wait_until(lambda: self.metrics(relay).get("outbox_hwm"))  # recorded when the delivery is settled
            page = self.metrics(relay)
            self.assertEqual(page.get("outbox_sink_lease_held", consumer="redis"), 1)
        self.assertEqual({name: (kind, page.labels(name)) for name, kind in page.types.items()}, documented)
        self.assertEqual(set(page.helps), set(page.types))
        self.assertEqual([name for name in page.types if not name.startswith(("outbox_", "process_"))], [])

    def test_promtool_finds_no_problem(self):
        if not shutil.which("promtool"): self.skipTest("promtool is not installed (Debian package prometheus)")
        self.emit_many([{"type": type, "payload": 1} for type in ("order.paid", 'a"b\\c{d}=,', "größer", "x" * 255)])
        with self.serve(*self.file_sink()) as relay:
            self.wait_metric(relay, 4, "outbox_dispatched_total")
            page = self.metrics(relay)
        done = subprocess.run(["promtool", "check", "metrics"], input=page.text, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""), page.text)
        self.assertEqual(page.get("outbox_dispatched_total", topic='a\\"b\\\\c{d}=,'), 1)
        self.assertEqual(page.get("outbox_dispatched_total", topic="größer"), 1)
        self.assertEqual(page.get("outbox_dispatched_total", topic="other"), 1, "a name too long for a label")

    def test_metrics_reflect_each_step_of_a_delivery(self):
        with self.serve(*self.file_sink(), *self.file_sink("search", "--events", "order.*")) as relay:
            before = self.metrics(relay)
            self.assertEqual(before.get("outbox_dispatched_total"), 0)
            self.emit_many([{"type": "order.paid" if n % 3 else "user.made", "payload": n} for n in range(300)])
            self.wait_metric(relay, 300, "outbox_dispatched_total", consumer="mail")
            self.wait_metric(relay, 200, "outbox_dispatched_total", consumer="search")
            page = self.metrics(relay)
        self.assertEqual(page.get("outbox_dispatched_total", consumer="mail", topic="user.made"), 100)
        self.assertIsNone(page.get("outbox_dispatched_total", consumer="search", topic="user.made"))
        for histogram in ("outbox_delivery_seconds", "outbox_sink_call_seconds"):
            self.assertEqual(page.get(f"{histogram}_count", consumer="mail"), 300)
            self.assertEqual(page.get(f"{histogram}_bucket", consumer="mail", le="+Inf"), 300)
            self.assertGreater(page.get(f"{histogram}_sum", consumer="mail"), 0)
            buckets = [value for (name, labels), value in page.samples.items()
                       if name == f"{histogram}_bucket" and ("consumer", "mail") in labels]
            self.assertEqual(buckets, sorted(buckets))
        self.assertGreaterEqual(page.get("outbox_claims_total", consumer="mail"), 1)
        for name in ("outbox_depth", "outbox_lag_seconds", "outbox_in_flight", "outbox_parked", "outbox_dead_letters"):
            self.assertEqual(page.get(name), 0, name)
        self.assertEqual(page.get("outbox_consumer_up", consumer="mail"), 1)
        self.assertEqual(page.get("outbox_build_info", store="sqlite"), 1)
        self.assertLess(abs(page.get("process_start_time_seconds") - time.time()), 120)
        self.assertGreater(page.get("process_resident_memory_bytes"), 1e6)


class OnBothStores(Outside):
    """The metrics that the contract requires, on each store."""

    def setUp(self):
        super().setUp()
        self.init()

    def test_depth_and_lag_by_topic_exclude_filtered_events(self):
        self.paused_relay("--events", "order.*")
        self.emit_many([{"type": "order.paid", "payload": n} for n in range(3)])
        self.emit_many([{"type": "order.made", "payload": n} for n in range(2)])
        self.emit_many([{"type": "user.made", "payload": n} for n in range(7)])
        with self.serve(*self.file_sink("mail", "--events", "order.*")) as relay:
            page = self.metrics(relay)
            self.assertEqual(page.get("outbox_depth", topic="order.paid"), 3)
            self.assertEqual(page.get("outbox_depth", topic="order.made"), 2)
            self.assertEqual(page.get("outbox_depth"), 5)
            self.assertGreaterEqual(page.get("outbox_lag_seconds", topic="order.paid"),
                                    page.get("outbox_lag_seconds", topic="order.made"))
            self.assertGreater(page.get("outbox_lag_seconds", topic="order.made"), 0)
            self.assertEqual(page.get("outbox_consumer_paused"), 1)
            self.outbox("consumers", "resume", "mail")
            self.wait_metric(relay, 0, "outbox_depth")
            self.wait_metric(relay, 0, "outbox_lag_seconds")

    def test_failures_and_burials_are_counted_by_topic_and_reason(self):
        sink = ("exec:case $OUTBOX_TYPE in bad) exit 65;; worse) [ $OUTBOX_ATTEMPT -gt 2 ] || exit 75;; worst) exit 75;;"
                " esac")
        self.emit_many([{"type": type, "payload": 1} for type in ("good", "bad", "bad", "worse", "worst")])
        with self.serve("--consumer", "mail", "--sink", sink, "--retry", "base=1ms,cap=1ms,attempts=4,outage=0s") as relay:
            self.wait_metric(relay, 2, "outbox_dispatched_total")
            self.wait_metric(relay, 3, "outbox_buried_total")
            self.wait_metric(relay, 3, "outbox_dead_letters")
            page = self.metrics(relay)
        self.assertEqual(page.get("outbox_dispatched_total", topic="good"), 1)
        self.assertEqual(page.get("outbox_publish_failures_total", topic="bad", reason="reject"), 2)
        self.assertEqual(page.get("outbox_publish_failures_total", topic="worse", reason="retry"), 2)
        self.assertEqual(page.get("outbox_publish_failures_total", topic="worst", reason="retry"), 4)
        self.assertEqual(page.get("outbox_publish_failures_total"), 8)
        self.assertEqual(page.get("outbox_retries_total"), 5)
        self.assertEqual(page.get("outbox_buried_total", topic="bad", reason="rejected"), 2)
        self.assertEqual(page.get("outbox_buried_total", topic="worst", reason="attempts"), 1)
        self.assertEqual(page.get("outbox_buried_total"), 3)
        reasons = {dict(labels)["reason"] for name, labels in page.samples if name == "outbox_buried_total"}
        self.assertEqual(reasons, {"attempts", "rejected", "outage", "malformed", "crashed"})

    def test_lease_renewals_are_counted(self):
        hold = self.path("hold")
        hold.touch()
        self.emit("a", payload=1)
        sink = f"exec:while [ -e {hold} ]; do sleep 0.02; done"
        with self.serve("--consumer", "mail", "--sink", sink, "--lease", "200ms") as relay:
            wait_until(lambda: self.metrics(relay).get("outbox_lease_renewals_total", kind="database", result="ok") >= 2)
            page = self.metrics(relay)
            self.assertIsNone(page.get("outbox_lease_renewals_total", kind="redis"))
            self.assertEqual((page.get("outbox_in_flight"), page.get("outbox_depth")), (1, 1))
            self.assertGreater(page.get("outbox_lag_seconds", topic="a"), 0, "the event is not delivered yet")
            hold.unlink()
            self.wait_metric(relay, 1, "outbox_dispatched_total")

    def test_high_water_mark_includes_the_part_after_the_dash(self):
        """Ids that Redis assigns within a millisecond differ only in that."""
        redis = servers.Redis().start()
        self.addCleanup(redis.close)
        redis("XADD", "orders", "99999999999999-3", "event", "{}")  # every later event is counted behind it: -4, -5, -6
        self.emit_many([{"type": "order.paid", "aggregate_type": "o", "aggregate_id": "1", "payload": n} for n in range(3)])
        with self.serve("--consumer", "out", "--sink", redis.url("stream=orders&lease=turn&lease-ttl=1s")) as relay:
            self.wait_metric(relay, 3, "outbox_dispatched_total")
            wait_until(lambda: self.metrics(relay).get("outbox_hwm_sequence", stream="orders") == 6)
            page = self.metrics(relay)
            self.assertEqual(self.outbox("hwm", "orders").stdout, "99999999999999-6\n")
            self.assertIn('outbox_hwm{consumer="out",stream="orders"} 99999999999999\n', page.text)
            self.assertIn('outbox_hwm_sequence{consumer="out",stream="orders"} 6\n', page.text)
            # both kinds of lease have one name
            self.assertEqual(page.get("outbox_lease_renewals_total", kind="redis", result="acquired"), 1)
            wait_until(lambda: self.metrics(relay).get("outbox_lease_renewals_total", kind="redis", result="ok") >= 1)
            for result in ("ok", "lost", "error"):
                self.assertEqual(page.get("outbox_lease_renewals_total", kind="database", result=result), 0)


class OnSqlite(OnBothStores, Case):
    pass


class OnPostgres(OnBothStores, PgCase):
    pass


@on_each_store
class Undelivered(Outside):
    """An undelivered event counts, whatever its state: in metrics, status, consumers and doctor."""

    HOURS = 3 * 3600

    def setUp(self):
        super().setUp()
        self.init()

    def emit_old(self, type, key=None):
        """emit_old emits an event three hours ago, with a key as "aggregate/id"."""
        aggregate, _, name = key.partition("/") if key else (None, None, None)
        at = self.time_of(int((time.time() - self.HOURS) * 1000))
        self.ask(f"INSERT INTO @event (type, aggregate_type, aggregate_id, payload, created_at) VALUES (?, ?, ?, '1', {at})",
                 type, aggregate, name)

    def consumer(self):
        return {c["name"]: c for c in self.json("status")["consumers"]}["mail"]

    def findings(self, name, *args):
        """findings returns [(level, text)] that doctor reports about the consumer."""
        return [(f["level"], f["text"]) for f in self.json("doctor", *args, status=None)["findings"]
                if f["name"] == name and '"mail"' in f["text"]]

    def check_all_say(self, relay, depth):
        """check_all_say: metrics by topic, status and consumers agree on how many events there are, and that they are three hours old."""
        page, shown = self.metrics(relay), self.consumer()
        self.assertEqual({t: page.get("outbox_depth", topic=t) for t in depth}, depth)
        self.assertEqual(page.get("outbox_depth"), sum(depth.values()))
        for topic in depth: self.assertAlmostEqual(page.get("outbox_lag_seconds", topic=topic), self.HOURS, delta=300, msg=topic)
        self.assertAlmostEqual(page.get("outbox_overdue_seconds"), self.HOURS, delta=300)
        for one in shown, self.json("consumers", "list")[0], self.json("consumers", "show", "mail"):
            self.assertEqual((one["behind"], one["behind_exact"], one["parked_exact"]), (sum(depth.values()), True, True))
            self.assertAlmostEqual(one["lag_ms"] / 1000, self.HOURS, delta=300)
            self.assertAlmostEqual(one["overdue_ms"] / 1000, self.HOURS, delta=300)
        row = next(line for line in self.outbox("status").stdout.splitlines() if line.startswith("mail")).split()
        self.assertEqual(row[2], str(sum(depth.values())))
        self.assertRegex(row[3], r"^3h")
        self.assertRegex(self.outbox("consumers", "show", "mail").stdout, r"(?m)^lag +3h")
        return shown

    def test_events_held_by_a_hanging_sink_are_counted_by_topic(self):
        hold = self.path("hold")
        hold.touch()
        depth = {"order.paid": 27, "order.made": 27, "user.made": 26}
        for n in range(80): self.emit_old(list(depth)[n % 3], f"a/{n}")
        sink = f"exec:while [ -e {hold} ]; do sleep 0.02; done"
        with self.serve("--consumer", "mail", "--sink", sink, "--batch", "100", "--concurrency", "4", "--lease", "60s") as relay:
            wait_until(lambda: self.metrics(relay).get("outbox_in_flight") >= 40)  # the first batches are small
            shown = self.check_all_say(relay, depth)
            self.assertGreaterEqual(shown["in_flight"], 40)
            self.assertEqual((shown["parked"], shown["state"]), (0, "in-flight"))
            (level, text), = self.findings("consumer")
            self.assertEqual(level, "warning", text)
            self.assertIn('consumer "mail" is behind: 80 events wait, the oldest for 3h', text)
            hold.unlink()
            self.wait_metric(relay, 0, "outbox_depth")
            self.wait_metric(relay, 0, "outbox_lag_seconds")
            self.wait_metric(relay, 0, "outbox_overdue_seconds")
            self.assertEqual((self.consumer()["behind"], self.consumer()["lag_ms"]), (0, 0))

    def test_blocked_key_is_reported(self):
        broken = self.path("broken")
        broken.touch()
        sink = f'exec:[ "$OUTBOX_TYPE" = bad ] && [ -e {broken} ] && exit 75; exit 0'
        self.emit_old("bad", "order/1")
        for n in range(79): self.emit_old("fine" if n % 2 else "good", "order/1")
        for n in range(20): self.emit_old("fine", f"order/{n + 2}")
        with self.serve("--consumer", "mail", "--sink", sink, "--retry", "base=1h,cap=1h,attempts=9,outage=0s") as relay:
            self.wait_metric(relay, 20, "outbox_dispatched_total")
            wait_until(lambda: self.consumer()["parked"] == 80, what=self.consumer)
            shown = self.check_all_say(relay, {"bad": 1, "fine": 39, "good": 40})
            self.assertEqual((shown["in_flight"], shown["state"]), (0, "retrying"))
            first = shown["first_parked"]
            self.assertEqual((first["seq"], first["attempts"], first["due_at"]), (1, 1, shown["next_due"]))
            self.assertIn("exit", first["error"])
            self.assertAlmostEqual(first["overdue_ms"] / 1000, self.HOURS, delta=300)
            self.assertEqual(self.findings("consumer"), [], "the relay is not ready")
            (level, text), = self.findings("blocked")
            self.assertEqual(level, "warning")
            self.assertRegex(text, r'consumer "mail" has not delivered event 1, which is overdue for 3h.*: 1 attempt used, the next at .*; 80 events wait')
            self.assertEqual(self.findings("blocked", "--patience", "4h"), [])
            self.assertEqual(self.findings("consumer", "--patience", "4h"), [("ok", 'consumer "mail" is retrying')])
            broken.unlink()
            self.outbox("events", "retry", "1", "--consumer", "mail")
            self.wait_metric(relay, 100, "outbox_dispatched_total")
            self.wait_metric(relay, 0, "outbox_depth")
            self.wait_metric(relay, 0, "outbox_lag_seconds")
        self.assertEqual([level for level, _ in self.findings("consumer")], ["ok"])

    def park(self, doublings):
        """park creates many events, all of which are parked."""
        maria = isinstance(self, MariaCase)
        for _ in range(doublings): self.ask("INSERT INTO @event (type, payload) SELECT type, payload FROM @event")
        n = self.ask("SELECT count(*) FROM @event")[0][0]
        if maria: wait_until(lambda: self.json("status") and self.ask("SELECT count(*) FROM @order")[0][0] == n)  # a poll assigns them numbers
        self.ask(f"INSERT INTO @parked (consumer, seq, {'`key`' if maria else 'key'}, attempts, due_at, error) "
                 f"SELECT 'mail', e.seq, 0, 1, {self.time_of(int((time.time() + self.HOURS) * 1000))}, 'no' FROM @{'order' if maria else 'event'} e "
                 "WHERE e.seq NOT IN (SELECT p.seq FROM @parked p)")
        return n

    def test_gauge_cost_does_not_depend_on_parked_events(self):
        """On SQLite, MariaDB and PostgreSQL; isolation/test_plans.py counts the pages that PostgreSQL reads."""
        self.drain(*self.file_sink(), "--from", "10000000")  # so that events are parked without waiting behind others
        self.outbox("consumers", "pause", "mail")
        for type in "abcd": self.emit(type)
        with self.serve(*self.file_sink()) as relay:
            def cost(of):
                since = time.monotonic()
                of()
                return time.monotonic() - since
            looks = (lambda: self.metrics(relay)), (lambda: self.json("consumers", "show", "mail"))
            self.park(9)
            few = [min(cost(of) for _ in range(5)) for of in looks]
            n = self.park(6)
            for of, least in zip(looks, few):
                wait_until(lambda: cost(of) < 3 * least + 0.02, what=f"{least} s with a small backlog")  # minimum of several: others use the machine, too
            page, shown = self.metrics(relay), self.consumer()
            for many in page.get("outbox_depth"), page.get("outbox_parked"), shown["behind"], shown["parked"]:
                self.assertAlmostEqual(many, n, delta=n / 100)
            self.assertAlmostEqual(page.get("outbox_depth", topic="c"), n / 4, delta=n / 50)
            self.assertEqual((shown["behind_exact"], shown["parked_exact"], shown["first_parked"]["seq"]), (False, False, 1))

    def test_delayed_event_is_counted_but_not_overdue(self):
        for n in range(3): self.emit("planned", f"order/{n}", n, "--delay", "1h")
        with self.serve(*self.file_sink()) as relay:
            self.wait_metric(relay, 3, "outbox_parked")
            time.sleep(0.05)
            page, shown = self.metrics(relay), self.consumer()
            self.assertEqual(page.get("outbox_depth", topic="planned"), 3)
            self.assertGreater(page.get("outbox_lag_seconds", topic="planned"), 0)
            self.assertEqual(page.get("outbox_overdue_seconds"), 0)
            self.assertEqual((shown["behind"], shown["overdue_ms"], shown["first_parked"]), (3, 0, None))
            self.assertGreater(shown["lag_ms"], 0)
            self.assertEqual(self.findings("consumer", "--patience", "0s"), [("ok", 'consumer "mail" is waiting')])


class Waiting(OutsideCase):
    """Depth and lag of waiting events."""

    def test_types_beyond_the_limit_are_counted_together(self):
        self.paused_relay()
        types = [f"type{n:03}" for n in range(TYPES_MAX + 20)]
        self.emit_many([{"type": type, "payload": 1} for type in types])
        with self.serve(*self.file_sink()) as relay:
            for name in ("outbox_depth", "outbox_dispatched_total"):
                if name == "outbox_dispatched_total":
                    self.outbox("consumers", "resume", "mail")
                    self.wait_metric(relay, len(types), name)
                page = self.metrics(relay)
                rows = [labels for n, labels in page.samples if n == name]
                self.assertEqual(len(rows), TYPES_MAX + 1, name)
                self.assertEqual(page.get(name, topic="other"), 20, name)
                self.assertEqual(page.get(name), len(types), name)

    def test_scrape_cost_does_not_depend_on_the_backlog(self):
        self.paused_relay()
        fill = """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
                  INSERT INTO outbox_event (type, payload) SELECT CASE i % 4 WHEN 0 THEN 'a' ELSE 'b' END, '1' FROM n"""
        with self.serve(*self.file_sink()) as relay:
            def scrape():
                since = time.monotonic()
                self.metrics(relay)
                return time.monotonic() - since
            self.sql(fill, 2000)
            least = min(scrape() for _ in range(5))
            self.sql(fill, 150000)
            page = self.metrics(relay)
            self.assertEqual(page.get("outbox_depth"), 152000)
            self.assertEqual(page.get("outbox_depth", topic="a"), 38000)
            wait_until(lambda: scrape() < 3 * least + 0.02, what=f"{least} s with a small backlog")  # minimum of several, since others use the machine, too


class Ready(OutsideCase):
    def test_relay_is_unready_while_a_consumer_is_stuck(self):
        folder = self.path("later")
        self.emit("a", payload=1)
        with self.serve("--stuck-after", "300ms", *self.file_sink(), "--consumer", "stuck", "--sink",
                        f"file:{folder}/out") as relay:
            self.wait_ready(relay, 503, r"^\[\+\] mail: idle$", r"^\[-\] stuck: no progress for \d+ s: sink is down: could not open .*$",
                            r"^not ready$")
            page = self.metrics(relay)
            self.assertEqual((page.get("outbox_ready"), page.get("outbox_circuit_open", consumer="stuck")), (0, 1))
            self.assertGreater(page.get("outbox_consumer_stalled_seconds", consumer="stuck"), 0.3)
            self.assertEqual(page.get("outbox_consumer_stalled_seconds", consumer="mail"), 0)
            self.assertEqual(self.fetch(relay, "/livez"), (200, "ok\n"), "a relay waiting for a sink stays alive")
            folder.mkdir()
            self.wait_ready(relay, 200, r"^\[\+\] stuck: idle$")
            self.assertEqual(self.metrics(relay).get("outbox_ready"), 1)

    def test_paused_consumer_stays_ready(self):
        self.drain(*self.file_sink())
        self.outbox("consumers", "pause", "mail")
        self.emit("a", payload=1)
        with self.serve("--stuck-after", "100ms", *self.file_sink()) as relay:
            self.wait_metric(relay, 1, "outbox_depth")
            time.sleep(0.3)  # longer than stuck-after
            self.assertEqual(self.fetch(relay, "/readyz?verbose"), (200, "[+] mail: paused\nready\n"))

    def test_relay_is_ready_again_once_a_stuck_consumer_is_paused(self):
        self.emit("a", payload=1)
        with self.serve("--stuck-after", "100ms", "--consumer", "mail", "--sink", f"file:{self.path('no')}/out") as relay:
            self.wait_ready(relay, 503)
            self.outbox("consumers", "pause", "mail")
            self.wait_ready(relay, 200)

    def test_silent_sink_makes_the_relay_unready_but_alive(self):
        hold = self.path("hold")
        hold.touch()
        self.emit("a", payload=1)
        sink = f"exec:while [ -e {hold} ]; do sleep 0.02; done"
        with self.serve("--stuck-after", "200ms", "--timeout", "1h", "--consumer", "mail", "--sink", sink) as relay:
            self.wait_ready(relay, 503, "no answer from the sink")
            self.assertEqual(self.fetch(relay, "/livez")[0], 200, "a delivery may take as long as its timeout")
            hold.unlink()
            self.wait_ready(relay, 200)

    def test_relay_is_not_alive_while_its_store_hangs(self):
        db = sqlite3.connect(self.db, isolation_level=None)
        self.addCleanup(db.close)
        with self.serve("--stuck-after", "300ms", "--busy-timeout", "60s", "--sweep", "100ms",
                        *self.file_sink()) as relay:
            self.emit("a", payload=1)
            self.wait_metric(relay, 1, "outbox_dispatched_total")
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO outbox_event (type, payload) VALUES ('a', '1')")
            wait_until(lambda: self.fetch(relay, "/livez")[0] == 503, what=relay.output)
            self.assertIn("[-] mail: stuck for", self.fetch(relay, "/livez?verbose")[1])
            self.assertEqual(self.fetch(relay, "/readyz")[0], 503)
            db.execute("COMMIT")
            wait_until(lambda: self.fetch(relay, "/livez")[0] == 200, what=relay.output)
            self.wait_metric(relay, 2, "outbox_dispatched_total")


class Served(OutsideCase):
    def test_only_get_and_head_on_known_paths_are_served(self):
        with self.serve(*self.file_sink()) as relay:
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
                self.assertEqual(self.fetch(relay, "/metrics", method)[0], 405, method)
            self.assertEqual(self.fetch(relay, "/metrics", "HEAD"), (200, ""))
            self.assertEqual(self.fetch(relay, "/nothing")[0], 404)
            self.assertEqual(self.fetch(relay, "/metrics/../../etc/passwd")[0], 404)
            self.assertIn("/metrics", self.fetch(relay, "/")[1])

    def raw(self, relay):
        host, port = relay.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)), timeout=30)
        self.addCleanup(connection.close)
        return connection

    def test_slow_and_greedy_clients_do_not_delay_events(self):
        with self.serve(*self.file_sink()) as relay:
            greedy = self.raw(relay)
            greedy.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 7000)
            try:
                greedy.sendall(b"a" * 20000 + b"\r\n\r\n")
                answer = greedy.recv(100)
                self.assertTrue(answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer)
            except ConnectionError:
                pass  # a closed connection is fine, too
            slow = [self.raw(relay) for _ in range(60)]
            for connection in slow:
                try:
                    connection.sendall(b"GET /metrics HTTP/1.1\r\nHo")
                except ConnectionError:
                    pass  # one too many
            for n in range(5):
                self.emit("a", payload=n)
                wait_until(lambda: len(self.ndjson(self.path("mail"))) == n + 1, timeout=5)
            def answers():
                try:
                    return self.fetch(relay, "/livez")[0] == 200
                except (OSError, http.client.HTTPException):
                    return False
            wait_until(answers)  # clients silent for five seconds are disconnected

    def test_externally_reachable_address_causes_a_warning(self):
        warning = "warning --listen 0.0.0.0:0: other machines may reach it, and no token is set"
        with self.relay("--listen", "0.0.0.0:0", *self.file_sink()) as relay: self.assertIn(warning, relay.output())
        with self.serve(*self.file_sink()) as relay: self.assertNotIn("other machines", relay.output())
        with self.relay("--listen", "localhost:0", *self.file_sink()) as relay:
            self.assertNotIn("other machines", relay.output())

    def test_invalid_or_used_address_is_refused(self):
        for address in ("8025", "example.com:8025", "127.0.0.1:", "127.0.0.1:99999", "[::1:80", ":80", ""):
            done = self.outbox("relay", "--listen", address, *self.file_sink(), status=USAGE)
            self.assertIn("is not an address to listen on", done.stderr, address)
        with self.serve(*self.file_sink()) as relay:
            taken = relay.url.removeprefix("http://")
            done = self.outbox("relay", "--listen", taken, *self.file_sink(), status=UNAVAILABLE)
            self.assertIn(f"--listen {taken}: could not listen: Address already in use", done.stderr)

    def test_no_socket_is_opened_without_listen(self):
        with self.relay(*self.file_sink()) as relay:
            self.assertNotIn("listening", relay.output())
            links = [str(path.readlink()) for path in pathlib.Path(f"/proc/{relay.pid}/fd").iterdir()]
            self.assertEqual([link for link in links if link.startswith("socket:")], [])


class OfPostgres(Outside, PgCase):
    def setUp(self):
        super().setUp()
        self.init()

    def rests(self, proxy):
        """rests tells whether no query was sent for a while, so the poll after taking the lock is over."""
        before = proxy.asked
        time.sleep(0.3)
        return proxy.asked == before

    def test_idle_relay_sends_queries_only_when_scraped(self):
        with Proxy(self.store) as proxy, self.serve("--store", proxy.url, "--sweep", "1h", *self.file_sink()) as relay:
            self.emit("a", payload=1)
            self.wait_metric(relay, 1, "outbox_dispatched_total")
            # It sleeps once it holds the wake-up lock, has polled once more, and has settled what it delivered.
            wait_until(lambda: self.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'"
                                        " AND (classid::bigint << 32 | objid::bigint) = outbox._wakeup_key()"
                                        " AND NOT EXISTS (SELECT 1 FROM outbox.claim)"),
                       what=lambda: [(link.request.before, link.request.text) for link in proxy.links])
            wait_until(lambda: self.rests(proxy))
            for path in ("/livez", "/readyz", "/readyz?verbose"): self.assertEqual(self.fetch(relay, path)[0], 200)
            before = proxy.asked
            time.sleep(5)  # the time without any query
            for path in ("/livez", "/readyz", "/readyz?verbose"): self.assertEqual(self.fetch(relay, path)[0], 200)
            self.assertEqual(proxy.asked - before, 0)
            self.metrics(relay)
            self.assertLessEqual(proxy.asked - before, 3, "one consumer: its state and its types; and the high-water marks")

    def test_metrics_match_the_database(self):
        self.drain(*self.file_sink())
        self.outbox("consumers", "pause", "mail")
        self.emit_many([{"type": f"t{n % 2}", "payload": n} for n in range(30)])
        with self.serve(*self.file_sink()) as relay:
            page = self.metrics(relay)
            self.assertEqual((page.get("outbox_depth", topic="t0"), page.get("outbox_depth")), (15, 30))
            self.assertGreater(page.get("outbox_lag_seconds", topic="t1"), 0)
            self.assertEqual(page.get("outbox_build_info", store="postgres"), 1)
            self.outbox("consumers", "resume", "mail")
            self.wait_metric(relay, 30, "outbox_dispatched_total")
            self.wait_metric(relay, 0, "outbox_depth")

    def test_relay_ends_cleanly_while_a_scrape_waits_for_the_store(self):
        """It does not wait for the scrape, so its server answers until the process has ended."""
        source, lib = self.path("last.c"), self.path("last.so")
        pathlib.Path(source).write_text(LAST_MOMENT)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", lib, source], check=True)
        stop = threading.Event()

        def ask(path):
            while not stop.is_set():
                with contextlib.suppress(OSError, http.client.HTTPException): self.fetch(relay, path)
        with contextlib.closing(psycopg2.connect(self.store)) as db, db.cursor() as cursor, \
             self.serve(*self.file_sink(), env={"LD_PRELOAD": str(lib), "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}) as relay:
            cursor.execute("LOCK TABLE outbox.mark IN ACCESS EXCLUSIVE MODE")
            clients = [threading.Thread(target=ask, args=(path,)) for path in ("/metrics", *["/livez?verbose"] * 4)]
            for client in clients: client.start()
            try:
                wait_until(lambda: self.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"))
                relay.stop()
            finally:
                stop.set()
                for client in clients: client.join()

    def test_metrics_health_and_log_never_show_a_password(self):
        secret = "hunter2-and-more"
        with Proxy(self.store) as proxy:
            store = f"{proxy.url}&password={secret}"
            with self.serve("--store", store, "--stuck-after", "100ms", "--log-level", "debug", *self.file_sink(),
                            env={"OUTBOX_LEASE": "1s"}) as relay:
                self.emit("a", payload=1)
                self.wait_metric(relay, 1, "outbox_dispatched_total")
                seen = [self.fetch(relay, path)[1] for path in ("/", "/metrics", "/livez?verbose", "/readyz?verbose")]
                self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
                         "datname = current_database()")
                wait_until(lambda: "store:" in relay.output() or "could not" in relay.output(), what=relay.output)
                seen += [self.fetch(relay, path)[1] for path in ("/metrics", "/readyz?verbose")]
            self.assertNotIn(secret, "".join(seen))
            self.assertNotIn(secret, relay.output())


# The input that fires each alert, after how many minutes, with its labels and summary; and similar input that must not fire it.
# In values, a+bxn is a, followed by n samples, each b higher.
ALERTS = {
    "OutboxRelayGone": ({'up{job="outbox",instance="a"}': "0x9"}, 3, {"job": "outbox", "instance": "a"}, "no relay answers at a",
                        {'up{job="outbox",instance="a"}': "0 0 1x9"}),
    "OutboxNotReady": ({'outbox_ready{instance="a"}': "0x9"}, 3, {"instance": "a"},
                       "curl -s http://a/readyz?verbose says which consumer, and why", {'outbox_ready{instance="a"}': "0 1 0 1 0 1"}),
    "OutboxLag": ({'outbox_overdue_seconds{consumer="c"}': "400x20", 'outbox_consumer_paused{consumer="c"}': "0x20"}, 6,
                  {"consumer": "c"}, "events of c wait for 6m 40s",
                  {'outbox_lag_seconds{consumer="c",topic="t"}': "400x20", 'outbox_consumer_paused{consumer="c"}': "1x20"}),
    "OutboxDeadLetters": ({'outbox_buried_total{consumer="c",topic="t",reason="rejected"}': "_x5 1x9"}, 7,
                          {"consumer": "c", "topic": "t", "reason": "rejected"}, "outbox dead list --consumer c: t, rejected",
                          {'outbox_buried_total{consumer="c",topic="t",reason="rejected"}': "0x30"}),
    "OutboxBacklogGrows": ({'outbox_depth{consumer="c",topic="t"}': "20000+10x60"}, 50, {"consumer": "c"},
                           "events for c arrive faster than it delivers them", {'outbox_depth{consumer="c",topic="t"}': "20000-10x60"}),
    "OutboxFailing": ({'outbox_publish_failures_total{consumer="c",reason="retry"}': "0+20x30", 'outbox_dispatched_total{consumer="c"}': "0+100x30"}, 15,
                      {"consumer": "c"}, "more than a tenth of the deliveries of c fail",
                      {'outbox_publish_failures_total{consumer="c",reason="retry"}': "0+5x30", 'outbox_dispatched_total{consumer="c"}': "0+100x30"}),
    "OutboxPausedForLong": ({'outbox_consumer_paused{consumer="c"}': "1x1500"}, 1450, {"consumer": "c"},
                            "a paused consumer keeps every event it has not seen", {'outbox_consumer_paused{consumer="c"}': "1x1400 0x100"}),
    "OutboxWorkersVanish": ({'outbox_taken_over_total{consumer="c"}': "0x5 3x20"}, 10, {"consumer": "c"},
                            "a relay of c died or stalled with events in flight", {'outbox_taken_over_total{consumer="c"}': "3x30"}),
    "OutboxBrokerSilent": ({'outbox_sink_confirm_lag_seconds{consumer="c"}': "20x5"}, 3, {"consumer": "c"},
                           "the broker does not confirm: outbox_sink_broker_info names it",
                           {'outbox_sink_confirm_lag_seconds{consumer="c"}': "0 20 0 20 0x30"}),
    "OutboxSlow": ({'outbox_delivery_seconds_bucket{consumer="c",le="10"}': "0+50x30", 'outbox_delivery_seconds_bucket{consumer="c",le="60"}': "0+100x30",
                    'outbox_delivery_seconds_bucket{consumer="c",le="+Inf"}': "0+100x30"}, 15, {"consumer": "c"},
                   "a hundredth of the events of c takes longer than 59s",
                   {'outbox_delivery_seconds_bucket{consumer="c",le="10"}': "0+100x30", 'outbox_delivery_seconds_bucket{consumer="c",le="+Inf"}': "0+100x30"}),
    "OutboxTokenGuessed": ({'outbox_http_refused_total{status="401"}': "0+5x20"}, 10, {"status": "401"},
                           "requests without the token, or with a wrong one", {'outbox_http_refused_total{status="401"}': "0+1x20"}),
    "OutboxReloadFailed": ({'outbox_config_reloads_total{result="error",instance="a"}': "0x5 1x20"}, 10, {"result": "error", "instance": "a"},
                           "the relay at a runs with its earlier settings; its log says why",
                           {'outbox_config_reloads_total{result="error",instance="a"}': "1x20"}),
}
PAGES = {"OutboxRelayGone", "OutboxNotReady", "OutboxLag", "OutboxDeadLetters"}  # events are not delivered, or were buried


class Documented(Case):
    RULES = ROOT / "packaging" / "outbox-alerts.yml"

    def test_alerts_use_metrics_that_exist_and_are_documented(self):
        text, rules = METRICS.read_text(), self.RULES.read_text()
        known = set(re.findall(r"^\* `(\w+)`, \w+", text, re.MULTILINE))
        used = {re.sub("_bucket$", "", name) for name in re.findall(r"\boutbox_\w+", rules)}
        self.assertEqual(used - known, set())
        tiers = dict(zip(re.findall(r"alert: (\w+)", rules), re.findall(r"labels: {severity: (\w+)}", rules)))
        self.assertEqual(tiers, {name: "page" if name in PAGES else "ticket" for name in ALERTS})
        self.assertEqual(tiers, dict(re.findall(r"^\* (Outbox\w+) \((\w+)\): ", text, re.MULTILINE)))

    def promtool(self, *args):
        if not shutil.which("promtool"): self.skipTest("promtool is not installed (Debian package prometheus)")
        done = subprocess.run(["promtool", *args], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_alerts_fire_when_they_should_and_not_before(self):
        self.promtool("check", "rules", self.RULES)
        tests = []
        for name, (fires, minutes, labels, summary, quiet) in ALERTS.items():
            tier = "page" if name in PAGES else "ticket"
            alert = {"exp_labels": {**labels, "severity": tier}, "exp_annotations": {"summary": summary}}
            for series, expected in ((fires, [alert]), (quiet, [])):
                times = [minutes] if expected else range(0, minutes + 20)
                tests.append({"name": name, "interval": "1m", "input_series": [{"series": one, "values": values} for one, values in series.items()],
                              "alert_rule_test": [{"eval_time": f"{at}m", "alertname": name, "exp_alerts": expected} for at in times]})
        self.path("tests.yml").write_text(json.dumps({"rule_files": [str(self.RULES)], "evaluation_interval": "1m", "tests": tests}))
        self.promtool("test", "rules", self.path("tests.yml"))
