"""A relay seen from outside: its metrics, and whether it says that it is alive and ready."""
import http.client
import pathlib
import re
import shutil
import socket
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request

from proxy import Proxy
import servers
from support import ROOT, Case, PgCase, wait_until

UNAVAILABLE, USAGE = 69, 64
SAMPLE = re.compile(r'(\w+)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
TYPES_MAX = 32


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
        """get is the sum of what has these labels; None if nothing has."""
        found = [value for (n, have), value in self.samples.items()
                 if n == name and labels.items() <= dict(have).items()]
        return sum(found) if found else None

    def labels(self, name):
        """labels gives the names of a metric's labels, those of histograms' buckets left out."""
        names = (name, f"{name}_bucket")
        found = {tuple(label for label, _ in have if label != "le") for n, have in self.samples if n in names}
        assert len(found) == 1, (name, found)
        return list(found.pop())


class Outside:
    """What the cases share: a relay that listens at a port of its own."""

    def serve(self, *args, **kw):
        relay = self.relay("--listen", "127.0.0.1:0", *args, **kw)
        relay.url = re.search(r"listening on (http://\S+)", relay.output())[1]
        return relay

    def fetch(self, relay, path, method="GET"):
        """fetch gives (status, text)."""
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
        """wait_ready waits for this status, with a text in which all these patterns are found."""
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
    def test_every_metric_is_documented_and_every_documented_one_is_served(self):
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
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

    def test_promtool_has_nothing_to_say_against_it(self):
        if not shutil.which("promtool"): self.skipTest("promtool is not there; apt-get install prometheus")
        self.emit_many([{"type": type, "payload": 1} for type in ("order.paid", 'a"b\\c{d}=,', "größer", "x" * 255)])
        with self.serve(*self.file_sink()) as relay:
            self.wait_metric(relay, 4, "outbox_dispatched_total")
            page = self.metrics(relay)
        done = subprocess.run(["promtool", "check", "metrics"], input=page.text, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""), page.text)
        self.assertEqual(page.get("outbox_dispatched_total", topic='a\\"b\\\\c{d}=,'), 1)
        self.assertEqual(page.get("outbox_dispatched_total", topic="größer"), 1)
        self.assertEqual(page.get("outbox_dispatched_total", topic="other"), 1, "a name too long for a label")

    def test_numbers_move_with_the_work(self):
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
    """What the contract asks for, on each store."""

    def setUp(self):
        super().setUp()
        self.init()

    def test_depth_and_lag_are_by_topic_and_leave_out_what_the_filter_does(self):
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

    def test_leases_are_counted_as_they_are_renewed(self):
        hold = self.path("hold")
        hold.touch()
        self.emit("a", payload=1)
        sink = f"exec:while [ -e {hold} ]; do sleep 0.02; done"
        with self.serve("--consumer", "mail", "--sink", sink, "--lease", "200ms") as relay:
            wait_until(lambda: self.metrics(relay).get("outbox_lease_renewals_total", kind="database", result="ok") >= 2)
            page = self.metrics(relay)
            self.assertIsNone(page.get("outbox_lease_renewals_total", kind="redis"))
            self.assertEqual((page.get("outbox_in_flight"), page.get("outbox_depth")), (1, 0))
            self.assertGreater(page.get("outbox_lag_seconds", topic="a"), 0, "it is not delivered yet")
            hold.unlink()
            self.wait_metric(relay, 1, "outbox_dispatched_total")

    def test_a_high_water_mark_keeps_what_stands_behind_the_dash(self):
        """Ids that Redis gives within a millisecond differ in that only."""
        redis = servers.Redis().start()
        self.addCleanup(redis.close)
        redis("XADD", "orders", "99999999999999-3", "event", "{}")  # whatever comes now is behind it: -4, -5, -6
        self.emit_many([{"type": "order.paid", "aggregate_type": "o", "aggregate_id": "1", "payload": n} for n in range(3)])
        with self.serve("--consumer", "out", "--sink", redis.url("stream=orders&lease=turn&lease-ttl=1s")) as relay:
            self.wait_metric(relay, 3, "outbox_dispatched_total")
            wait_until(lambda: self.metrics(relay).get("outbox_hwm_sequence", stream="orders") == 6)
            page = self.metrics(relay)
            self.assertEqual(self.outbox("hwm", "orders").stdout, "99999999999999-6\n")
            self.assertIn('outbox_hwm{consumer="out",stream="orders"} 99999999999999\n', page.text)
            self.assertIn('outbox_hwm_sequence{consumer="out",stream="orders"} 6\n', page.text)
            # leases of either kind stand under one name
            self.assertEqual(page.get("outbox_lease_renewals_total", kind="redis", result="acquired"), 1)
            wait_until(lambda: self.metrics(relay).get("outbox_lease_renewals_total", kind="redis", result="ok") >= 1)
            for result in ("ok", "lost", "error"):
                self.assertEqual(page.get("outbox_lease_renewals_total", kind="database", result=result), 0)


class OnSqlite(OnBothStores, Case):
    pass


class OnPostgres(OnBothStores, PgCase):
    pass


class Waiting(OutsideCase):
    """Depth and lag of what waits."""

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

    def test_a_scrape_costs_the_same_whatever_the_backlog(self):
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
            wait_until(lambda: scrape() < 3 * least + 0.02, what=f"{least} s when there was little")  # any, since others are at work, too


class Ready(OutsideCase):
    def test_a_stuck_consumer_makes_it_not_ready_until_it_gets_on(self):
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
            self.assertEqual(self.fetch(relay, "/livez"), (200, "ok\n"), "waiting for a sink is no reason to be restarted")
            folder.mkdir()
            self.wait_ready(relay, 200, r"^\[\+\] stuck: idle$")
            self.assertEqual(self.metrics(relay).get("outbox_ready"), 1)

    def test_a_paused_consumer_stays_ready(self):
        self.drain(*self.file_sink())
        self.outbox("consumers", "pause", "mail")
        self.emit("a", payload=1)
        with self.serve("--stuck-after", "100ms", *self.file_sink()) as relay:
            self.wait_metric(relay, 1, "outbox_depth")
            time.sleep(0.3)  # longer than it would take to be stuck
            self.assertEqual(self.fetch(relay, "/readyz?verbose"), (200, "[+] mail: paused\nready\n"))

    def test_a_stuck_consumer_that_is_paused_is_ready_again(self):
        self.emit("a", payload=1)
        with self.serve("--stuck-after", "100ms", "--consumer", "mail", "--sink", f"file:{self.path('no')}/out") as relay:
            self.wait_ready(relay, 503)
            self.outbox("consumers", "pause", "mail")
            self.wait_ready(relay, 200)

    def test_a_sink_that_does_not_answer_makes_it_not_ready_but_alive_within_its_timeout(self):
        hold = self.path("hold")
        hold.touch()
        self.emit("a", payload=1)
        sink = f"exec:while [ -e {hold} ]; do sleep 0.02; done"
        with self.serve("--stuck-after", "200ms", "--timeout", "1h", "--consumer", "mail", "--sink", sink) as relay:
            self.wait_ready(relay, 503, "no answer from the sink")
            self.assertEqual(self.fetch(relay, "/livez")[0], 200, "a delivery may take as long as its timeout")
            hold.unlink()
            self.wait_ready(relay, 200)

    def test_a_store_that_does_not_let_go_makes_it_not_alive(self):
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
    def test_only_get_and_head_and_only_what_there_is(self):
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

    def test_slow_and_greedy_clients_delay_no_event(self):
        with self.serve(*self.file_sink()) as relay:
            greedy = self.raw(relay)
            greedy.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 7000)
            try:
                greedy.sendall(b"a" * 20000 + b"\r\n\r\n")
                answer = greedy.recv(100)
                self.assertTrue(answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer)
            except ConnectionError:
                pass  # hung up on: just as well
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
            wait_until(answers)  # those that say nothing for five seconds are shown the door

    def test_an_address_that_others_reach_is_warned_of(self):
        warning = "warning --listen 0.0.0.0:0: other machines may reach it, and no token is set"
        with self.relay("--listen", "0.0.0.0:0", *self.file_sink()) as relay: self.assertIn(warning, relay.output())
        with self.serve(*self.file_sink()) as relay: self.assertNotIn("other machines", relay.output())
        with self.relay("--listen", "localhost:0", *self.file_sink()) as relay:
            self.assertNotIn("other machines", relay.output())

    def test_an_address_that_is_none_or_taken_is_refused(self):
        for address in ("8025", "example.com:8025", "127.0.0.1:", "127.0.0.1:99999", "[::1:80", ":80", ""):
            done = self.outbox("relay", "--listen", address, *self.file_sink(), status=USAGE)
            self.assertIn("is not an address to listen on", done.stderr, address)
        with self.serve(*self.file_sink()) as relay:
            taken = relay.url.removeprefix("http://")
            done = self.outbox("relay", "--listen", taken, *self.file_sink(), status=UNAVAILABLE)
            self.assertIn(f"--listen {taken}: could not listen there: Address already in use", done.stderr)

    def test_without_listen_there_is_no_socket(self):
        with self.relay(*self.file_sink()) as relay:
            self.assertNotIn("listening", relay.output())
            links = [str(path.readlink()) for path in pathlib.Path(f"/proc/{relay.pid}/fd").iterdir()]
            self.assertEqual([link for link in links if link.startswith("socket:")], [])


class OfPostgres(Outside, PgCase):
    def setUp(self):
        super().setUp()
        self.init()

    def rests(self, proxy):
        """rests says whether nothing was asked for a while: the look after the lock was taken is over."""
        before = proxy.asked
        time.sleep(0.3)
        return proxy.asked == before

    def test_an_idle_relay_asks_nothing_unless_it_is_scraped(self):
        with Proxy(self.store) as proxy, self.serve("--store", proxy.url, "--sweep", "1h", *self.file_sink()) as relay:
            self.emit("a", payload=1)
            self.wait_metric(relay, 1, "outbox_dispatched_total")
            # It sleeps once it holds the bell's lock, has looked once more, and has settled what it delivered.
            wait_until(lambda: self.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'"
                                        " AND (classid::bigint << 32 | objid::bigint) = outbox._bell_key()"
                                        " AND NOT EXISTS (SELECT 1 FROM outbox.claim)"),
                       what=lambda: [(link.request.before, link.request.text) for link in proxy.links])
            wait_until(lambda: self.rests(proxy))
            for path in ("/livez", "/readyz", "/readyz?verbose"): self.assertEqual(self.fetch(relay, path)[0], 200)
            before = proxy.asked
            time.sleep(5)  # the time in which nothing may happen
            for path in ("/livez", "/readyz", "/readyz?verbose"): self.assertEqual(self.fetch(relay, path)[0], 200)
            self.assertEqual(proxy.asked - before, 0)
            self.metrics(relay)
            self.assertLessEqual(proxy.asked - before, 3, "one consumer: its state and its types; and the high-water marks")

    def test_numbers_are_those_of_the_database(self):
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

    def test_no_password_is_in_metrics_health_or_log(self):
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


class Documented(Case):
    def test_alarms_in_the_documents_are_sound(self):
        text = (ROOT / "docs" / "metrics.md").read_text()
        rules, = [block for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if "alert:" in block]
        known = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
        used = {re.sub("_bucket$", "", name) for name in re.findall(r"\boutbox_\w+", rules)}
        self.assertEqual(used - known, set())
        if not shutil.which("promtool"): self.skipTest("promtool is not there; apt-get install prometheus")
        self.path("rules.yml").write_text(rules)
        done = subprocess.run(["promtool", "check", "rules", self.path("rules.yml")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
