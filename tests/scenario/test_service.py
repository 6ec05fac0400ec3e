"""A relay as a service: SIGHUP, notifications to the service manager and its watchdog, logs, the systemd unit."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.error
import urllib.request

import servers
from support import BIN, ROOT, Case, wait_until

DATA, UNAVAILABLE, AGAIN, CONFIG = 65, 69, 75, 78


class ServiceCase(Case):
    def setUp(self):
        super().setUp()
        self.init()
        self.conf = self.path("outbox.conf")

    def configure(self, *consumers, **outbox):
        """configure writes the config file: consumers are (name, {option: value})."""
        lines = ["[outbox]", f"store = {self.store}", *(f"{k.replace('_', '-')} = {v}" for k, v in outbox.items())]
        for name, options in consumers:
            lines += [f"[consumer {name}]", *(f"{k.replace('_', '-')} = {v}" for k, v in options.items())]
        self.conf.write_text("\n".join(lines) + "\n")

    def file_sink(self, name, **options):
        return name, {"sink": f"file:{self.path(name)}", **options}

    def reload(self, relay, expect="reloaded the config"):
        """reload sends SIGHUP and waits until the log confirms it."""
        before = relay.output().count(expect)
        relay.signal(signal.SIGHUP)
        wait_until(lambda: relay.output().count(expect) > before, what=relay.output)

    def numbers(self, name):
        return [ev["payload"] for ev in self.ndjson(self.path(name))]

    def wait_numbers(self, name, expected, relay):
        wait_until(lambda: len(self.numbers(name)) >= len(expected), what=lambda: (self.numbers(name), relay.output()))
        self.assertEqual(self.numbers(name), expected)


class Reloading(ServiceCase):
    def test_changing_consumers_under_load_loses_nothing(self):
        total, rounds = 4000, 8
        self.configure(self.file_sink("a"), self.file_sink("b"))

        def load():
            db = sqlite3.connect(self.db, timeout=60, isolation_level=None)
            for n in range(0, total, 20):
                db.execute("BEGIN IMMEDIATE")
                db.executemany("INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) VALUES (?, ?, ?, ?)",
                               [("t", "k", str(i % 5), str(i)) for i in range(n, n + 20)])
                db.execute("COMMIT")
                time.sleep(0.005)
            db.close()

        producer = threading.Thread(target=load)
        with self.relay("-c", self.conf, "--batch", 50) as relay:
            producer.start()
            for n in range(rounds):
                if n % 2: self.configure(self.file_sink("a"), self.file_sink("b"))
                else: self.configure(self.file_sink("a"), self.file_sink("c"))
                self.reload(relay)
            producer.join()
            self.configure(self.file_sink("a"), self.file_sink("b"), self.file_sink("c"))
            self.reload(relay)
            for name in "abc": self.wait_numbers(name, [*range(total)], relay)
        self.assertEqual(relay.output().count("started: new in the config"), rounds + 1)
        self.assertEqual(relay.output().count("stopped: no longer in the config"), rounds)
        self.assertNotIn("consumer=a ", relay.output(), "the unchanged consumer was affected")

    def test_unchanged_consumer_keeps_its_events_in_flight(self):
        hold, runs = self.path("hold"), self.path("runs")
        hold.touch()
        slow = "slow", {"sink": f"exec:echo $OUTBOX_ATTEMPT >>{runs}; while [ -e {hold} ]; do sleep 0.02; done"}
        self.emit("t", payload=1)
        self.configure(slow)
        with self.relay("-c", self.conf) as relay:
            wait_until(runs.exists, what=relay.output)
            (owner, epoch), = self.sql("SELECT owner, epoch FROM outbox_claim")
            self.configure(slow, self.file_sink("quick"))
            self.reload(relay)
            self.wait_numbers("quick", [1], relay)
            self.assertEqual(self.sql("SELECT owner, epoch FROM outbox_claim WHERE consumer = 'slow'"), [(owner, epoch)])
            hold.unlink()
            wait_until(lambda: not self.sql("SELECT 1 FROM outbox_claim"))
        self.assertEqual(runs.read_text(), "1\n")

    def test_changed_consumer_continues_with_new_settings(self):
        self.configure(self.file_sink("a"))
        with self.relay("-c", self.conf) as relay:
            self.emit("t", payload=1)
            self.wait_numbers("a", [1], relay)
            self.configure(("a", {"sink": f"file:{self.path('other')}"}))
            self.reload(relay)
            self.assertIn("consumer=a restarted with new settings", relay.output())
            self.emit("t", payload=2)
            self.wait_numbers("other", [2], relay)
        self.assertEqual(self.numbers("a"), [1])

    def test_rejected_settings_leave_a_consumer_unchanged(self):
        broken = self.path("broken")
        broken.touch()
        sink = f"exec:[ ! -e {broken} ] || exit 75; cat >>{self.path('a')}"
        options = {"sink": sink, "retry": "base=50ms,cap=50ms,attempts=1000,outage=0s"}
        self.configure(("a", options))
        self.emit("t", payload=1)
        with self.relay("-c", self.conf) as relay:
            wait_until(lambda: self.sql("SELECT 1 FROM outbox_parked"), what=relay.output)
            self.configure(("a", {**options, "lanes": 4}))
            self.reload(relay)
            self.assertRegex(relay.output(), r'consumer=a could not apply the new settings: .*"a" still has undelivered '
                             "events.*; keeping the old ones")
            broken.unlink()
            self.wait_numbers("a", [1], relay)
            self.reload(relay)  # now it has finished
            self.assertIn("consumer=a restarted with new settings", relay.output())
        self.assertEqual(self.sql("SELECT lanes FROM outbox_consumer"), [(4,)])

    def test_invalid_config_changes_nothing(self):
        self.configure(self.file_sink("a"))
        with self.relay("-c", self.conf) as relay:
            for text, why in (("[outbox]\nlaese = 3s\n", r"outbox\.conf:2: .*did you mean lease"),
                              ("[outbox]\n", "no consumers to run"), ("[consumer x]\n", 'consumer "x" has no sink')):
                self.conf.write_text(text)
                before = len(re.findall("could not reload the config", relay.output()))
                relay.signal(signal.SIGHUP)
                wait_until(lambda: relay.output().count("could not reload the config") > before, what=relay.output)
                self.assertRegex(relay.output(), f"error could not reload the config: .*{why}")
            self.conf.unlink()
            relay.signal(signal.SIGHUP)
            wait_until(lambda: "could not read the config file" in relay.output(), what=relay.output)
            self.emit("t", payload=1)
            self.wait_numbers("a", [1], relay)

    def test_reload_reports_fixed_settings_and_changes_log_level(self):
        self.configure(self.file_sink("a"), log_level="error")
        with self.relay("-c", self.conf, wait=False) as relay:
            wait_until(lambda: self.sql("SELECT 1 FROM outbox_consumer"), what=relay.output)
            self.configure(self.file_sink("a"), log_level="info", sweep="17s", listen="127.0.0.1:0")
            wait_until(lambda: relay.signal(signal.SIGHUP) or "reloaded the config" in relay.output(), what=relay.output)
            for name in ("sweep", "listen"):
                self.assertIn(f"warning {name} cannot change while a relay runs", relay.output())
            for name in ("store", "log-level", "lease"):
                self.assertNotIn(f"warning {name} cannot", relay.output())

    def test_without_a_config_file_sighup_stops_gracefully(self):
        relay = self.relay("--consumer", "a", "--sink", f"file:{self.path('a')}")
        relay.signal(signal.SIGHUP)
        relay.wait()
        self.assertIn("stopped by SIGHUP", relay.output())

    def test_failed_consumer_is_restarted(self):
        self.configure(self.file_sink("a"), self.file_sink("b"))
        with self.relay("-c", self.conf) as relay:
            self.emit("t", payload=1)
            for name in "ab": self.wait_numbers(name, [1], relay)
            self.outbox("consumers", "remove", "b", "--force", "--yes")
            self.emit("t", payload=2)
            self.wait_numbers("a", [1, 2], relay)
            wait_until(lambda: "error consumer=b stopping" in relay.output(), what=relay.output)
            self.reload(relay)
            self.wait_numbers("b", [1, 1, 2], relay)  # a new consumer starts at the beginning

    def test_reloads_are_counted(self):
        self.configure(self.file_sink("a"))
        with self.relay("-c", self.conf, "--listen", "127.0.0.1:0") as relay:
            url = re.search(r"listening on (http://\S+)", relay.output())[1]
            self.reload(relay)
            self.conf.write_text("[outbox\n")
            self.reload(relay, "could not reload the config")
            def counted():
                page = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
                return [int(n) for n in re.findall(r"^outbox_config_reloads_total\{.*\} (\d+)$", page, re.MULTILINE)]
            wait_until(lambda: counted() == [1, 1], what=counted)


class Manager:
    """A service manager's socket, and the messages sent to it."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(30)
        self.said = []

    def hear(self, until, timeout=30):
        """hear receives messages until one has such a line, and returns it."""
        deadline = time.monotonic() + timeout
        while True:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            message = self.socket.recv(65536).decode()
            self.said.append(message)
            if until in message.split("\n"): return message

    def hush(self):
        """hush discards received messages."""
        self.socket.setblocking(False)
        try:
            while True: self.socket.recv(65536)
        except BlockingIOError:
            pass

    def hungry(self, seconds):
        """hungry tells whether the watchdog is not fed for that long from now on."""
        self.hush()
        try:
            self.hear("WATCHDOG=1", seconds)
        except TimeoutError:
            return True
        return False


class Notifying(ServiceCase):
    def manage(self, *args, address=None, watchdog=None):
        address = address or str(self.path("notify"))
        manager = Manager(address.replace("@", "\0", 1))
        self.addCleanup(manager.socket.close)
        env = {"NOTIFY_SOCKET": address}
        if watchdog: env["WATCHDOG_USEC"] = str(int(watchdog * 1e6))
        return manager, self.relay(*args, env=env)

    def test_service_manager_is_notified_of_start_reload_and_stop(self):
        self.configure(self.file_sink("a"))
        for address in (None, f"@outbox-test-{os.getpid()}"):
            manager, relay = self.manage("-c", self.conf, address=address)
            self.assertIn("STATUS=consumers: 1", manager.hear("READY=1"))
            relay.signal(signal.SIGHUP)
            self.assertRegex(manager.hear("RELOADING=1"), r"(?m)^MONOTONIC_USEC=\d+$")
            manager.hear("READY=1")
            relay.signal(signal.SIGTERM)
            manager.hear("STOPPING=1")
            relay.wait()
            self.assertFalse(any("WATCHDOG" in message for message in manager.said))

    def test_notify_socket_is_not_passed_to_commands(self):
        seen = self.path("seen")
        self.emit("t", payload=1)
        manager, relay = self.manage("--consumer", "a", "--sink", f"exec:env >{seen}.new; mv {seen}.new {seen}", watchdog=10)
        wait_until(seen.exists, what=relay.output)
        relay.stop()
        self.assertNotRegex(seen.read_text(), "NOTIFY_SOCKET|WATCHDOG")
        manager.hear("STOPPING=1")

    def test_watchdog_is_fed_while_idle_or_while_a_sink_is_down(self):
        folder = self.path("later")
        manager, relay = self.manage("--consumer", "a", "--sink", f"file:{folder}/out", "--stuck-after", "100ms",
                                     watchdog=0.2)
        for _ in range(3): manager.hear("WATCHDOG=1", 10)
        self.emit("t", payload=1)
        wait_until(lambda: "sink is down" in relay.output())
        while "sink is down" not in manager.socket.recv(65536).decode(): continue  # the STATUS
        for _ in range(3): manager.hear("WATCHDOG=1", 10)
        folder.mkdir()
        manager.hear("STATUS=all consumers are working", 40)
        relay.stop()

    def test_watchdog_is_not_fed_while_a_loop_hangs(self):
        db = sqlite3.connect(self.db, isolation_level=None)
        self.addCleanup(db.close)
        manager, relay = self.manage("--consumer", "a", "--sink", f"file:{self.path('a')}", "--busy-timeout", "60s",
                                     "--sweep", "50ms", "--stuck-after", "200ms", watchdog=0.2)
        manager.hear("WATCHDOG=1")
        db.execute("BEGIN IMMEDIATE")
        while "stuck for" not in manager.socket.recv(65536).decode(): continue  # the STATUS
        wait_until(lambda: manager.hungry(1))  # time for five meals
        db.execute("COMMIT")
        manager.hear("WATCHDOG=1", 10)
        relay.stop()


class Early(Case):
    """A relay that starts before its server."""

    def setUp(self):
        super().setUp()
        self.server = servers.Postgres().start()
        self.addCleanup(self.server.close)
        self.store = self.server.create_database("shop")
        self.init()
        self.emit("a", "k/1", 1)
        self.server.stop()

    def early(self, *args, **kw):
        relay = self.relay("--consumer", "c", "--sink", f"file:{self.path('out')}", *args, wait=False, **kw)
        wait_until(lambda: "waiting for the store" in relay.output(), what=relay.output)
        return relay

    def test_relay_waits_for_the_server_and_then_works(self):
        relay = self.early()
        self.server.start()
        wait_until(lambda: self.ndjson(self.path("out")), what=relay.output)
        relay.stop()

    def test_waiting_relay_is_alive_and_explains_why_it_is_unready(self):
        def fetch(path):
            try:
                with urllib.request.urlopen(url + path, timeout=10) as answer: return answer.status, answer.read().decode()
            except urllib.error.HTTPError as e:
                with e: return e.code, e.read().decode()

        relay = self.early("--listen", "127.0.0.1:0")
        url = re.search(r"listening on (http://\S+)", relay.output())[1]
        self.assertEqual(fetch("/livez"), (200, "ok\n"))
        self.assertEqual(fetch("/readyz")[0], 503)
        self.assertRegex(fetch("/readyz?verbose")[1], r"\[-\] waiting for the store: .*\nnot ready\n")
        status, page = fetch("/metrics")
        self.assertEqual(status, 200)
        self.assertRegex(page, r"(?m)^outbox_ready 0$")
        self.server.start()
        wait_until(lambda: fetch("/readyz")[0] == 200, what=lambda: (fetch("/readyz?verbose"), relay.output()))
        wait_until(lambda: self.ndjson(self.path("out")), what=relay.output)
        self.assertEqual(fetch("/livez")[0], 200)
        relay.stop()

    def test_waiting_relay_stops_at_once(self):
        relay = self.early()
        relay.stop(timeout=4)
        self.assertIn("stopped by SIGTERM", relay.output())

    def test_draining_relay_fails_at_once(self):
        said = self.drain("--consumer", "c", "--sink", "stdout:", status=UNAVAILABLE).stderr
        self.assertIn(str(self.server.dir), said)


class Locked(Case):
    """A relay that starts while another process has locked its store waits, reports that, and then works."""

    def test_relay_waits_for_the_store_lock(self):
        self.init()
        self.emit("a", "k/1", 1)
        with contextlib.closing(sqlite3.connect(self.db, isolation_level=None)) as stranger:
            stranger.execute("BEGIN IMMEDIATE")
            relay = self.relay("--consumer", "c", "--sink", f"file:{self.path('out')}", "--busy-timeout", "100ms", wait=False)
            wait_until(lambda: "waiting for the store" in relay.output(), what=relay.output)
            self.assertRegex(relay.output(), "waiting for the store: [^\n]*locked by another process")
            said = self.drain("--consumer", "c", "--sink", "stdout:", "--busy-timeout", "100ms", status=AGAIN).stderr
            self.assertIn("locked by another process", said)
            self.assertTrue(relay.running())
        wait_until(lambda: self.ndjson(self.path("out")), what=relay.output)
        relay.stop()


class ReadOnly(Case):
    def test_relay_waits_for_write_permission(self):
        """As an unprivileged user, since root may write anything."""
        if os.geteuid() != 0 or not shutil.which("setpriv"): self.skipTest("needs root and setpriv to become another user")
        self.init()
        self.emit("a", "k/1", 1)
        binary = shutil.copy(BIN, self.path("outbox-copy"))
        for path, mode in ((self.dir, 0o777), (binary, 0o755), (self.db, 0o444)): os.chmod(path, mode)
        relay = self.spawn("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", binary, "relay", "--store", self.store,
                           "--consumer", "c", "--sink", f"file:{self.path('out')}")
        wait_until(lambda: "waiting for the store" in relay.output(), what=relay.output)
        self.assertRegex(relay.output(), "waiting for the store: [^\n]*(readonly|read-only)")
        self.db.chmod(0o666)
        wait_until(lambda: self.ndjson(self.path("out")), what=relay.output)
        relay.stop()


class Logging(ServiceCase):
    def test_every_json_line_parses(self):
        failing = ["--consumer", "bad", "--sink", """exec:printf 'q"uote \\\\ \\377 \\303\\274 \\033[31m' >&2; exit 65"""]
        self.emit("t", payload=1)
        with self.relay("--log-format", "json", *failing) as relay:
            wait_until(lambda: "dead letter" in relay.output(), what=relay.output)
        lines = [json.loads(line) for line in relay.output().splitlines()]
        self.assertGreater(len(lines), 3)
        for line in lines:
            self.assertLessEqual({"time", "level", "message"}, set(line))
            self.assertIn(line["level"], ("debug", "info", "warning", "error"))
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        letter, = [line for line in lines if "dead letter" in line["message"]]
        self.assertEqual((letter["consumer"], letter["level"]), ("bad", "error"))
        self.assertIn('q"uote \\', letter["message"])

    def test_log_lines_about_an_event_contain_its_fields(self):
        event = self.emit("order.paid", "order/42", {"n": 1})
        sink = ["--consumer", "bad", "--sink", "exec:exit 1", "--retry", "base=1ms,cap=1ms,attempts=2,outage=0s"]
        with self.relay("--log-format", "json", *sink) as relay:
            wait_until(lambda: "dead letter" in relay.output(), what=relay.output)
        lines = [json.loads(line) for line in relay.output().splitlines()]
        fields = [(line["event_id"], line["type"], line["key"], line["attempt"]) for line in lines if "event_id" in line]
        self.assertEqual(fields, [(event, "order.paid", "order/42", 1), (event, "order.paid", "order/42", 2)])

    def test_last_error_is_also_json(self):
        done = self.outbox("relay", "--log-format", "json", status=CONFIG)
        line = json.loads(done.stderr)
        self.assertEqual(line["level"], "error")
        self.assertIn("no consumers to run", line["message"])

    def failing(self, events, *args):
        """failing rejects that many events and returns the log lines about them: (shown, counted)."""
        self.emit_many([{"type": "t", "payload": n} for n in range(events)])
        with self.relay("--consumer", "bad", "--sink", "exec:exit 65", "--concurrency", 16, *args) as relay:
            wait_until(lambda: self.sql("SELECT count(*) FROM outbox_dead")[0][0] == events, what=relay.output)
            if "0s" not in args: wait_until(lambda: self.told(relay)[1] + self.told(relay)[0] >= events, what=relay.output)
        return self.told(relay)

    def told(self, relay):
        lines = [line for line in relay.output().splitlines() if "is a dead letter" in line]
        repeats = [int(n) for n in re.findall(r"\.\.\. repeated (\d+) times? in \d+ s$", "\n".join(lines), re.MULTILINE)]
        return len(lines) - len(repeats), sum(repeats)

    def test_repeated_lines_are_counted_not_shown_after_the_tenth(self):
        shown, counted = self.failing(60, "--log-hold", "3s")
        self.assertEqual(shown + counted, 60)
        self.assertGreaterEqual(shown, 10)
        self.assertGreater(counted, 0)

    def test_suppressed_lines_are_reported_by_the_end(self):
        self.emit_many([{"type": "t", "payload": n} for n in range(30)])
        done = self.drain("--consumer", "bad", "--sink", "exec:exit 65", "--log-hold", "1h")
        self.assertRegex(done.stderr, r"is a dead letter after 1 attempt: .* \.\.\. repeated 20 times in \d+ s\n")

    def test_suppression_can_be_disabled(self):
        self.assertEqual(self.failing(40, "--log-hold", "0s"), (40, 0))


class Unit(Case):
    def unit(self):
        """unit is the file as installed, with the binary under test."""
        text = (ROOT / "packaging" / "outbox.service.in").read_text().replace("@bindir@", str(pathlib.Path(BIN).parent))
        path = self.path("outbox.service")
        path.write_text(text)
        return path

    def analyze(self, *args):
        if not shutil.which("systemd-analyze"): self.skipTest("systemd-analyze is not installed (Debian package systemd)")
        done = subprocess.run(["systemd-analyze", *args, self.unit()], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_systemd_accepts_the_unit(self):
        self.assertEqual(self.analyze("verify", "--man=no"), (0, ""))

    def test_unit_is_well_sandboxed(self):
        status, said = self.analyze("security", "--offline=true", "--no-pager", "--threshold=12")
        self.assertEqual(status, 0, said)

    def test_unit_protects_its_secrets(self):
        text = self.unit().read_text()
        for line in ("DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "LimitCORE=0", "KeyringMode=private", "UMask=0077",
                     "CapabilityBoundingSet=", "RuntimeDirectory=outbox"):
            self.assertIn(f"\n{line}\n", text)

    def test_unit_matches_the_relays_watchdog_and_reload(self):
        text = self.unit().read_text()
        for line in ("Type=notify", "ExecReload=/bin/kill -HUP $MAINPID", "WatchdogSec=60s"): self.assertIn(f"\n{line}\n", text)
