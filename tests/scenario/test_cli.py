"""The command line: every command, every exit code, every kind of bad input; commands that use a store, on each store."""
import json
import os
import pty
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import time
import unittest

from support import BIN, RESERVED, Case, on_each_store, wait_until

USAGE, DATA, UNAVAILABLE, AGAIN, CONFIG = 64, 65, 69, 75, 78
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
ESCAPE = "\x1b"


class CliCase:
    def refused(self, status, *args, says=(), **kw):
        """refused expects the exit status and one line `outbox: ...` on stderr that holds every text of `says`."""
        done = self.outbox(*args, status=status, **kw)
        self.assertRegex(done.stderr, r"\Aoutbox: [^\n]+\n\Z")
        self.assertEqual(done.stdout, "")
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, done.stderr)
        return done.stderr

    def stored(self):
        """stored returns the number of events, after a look at the database's health."""
        self.assert_sound()
        return self.ask("SELECT count(*) FROM @event")[0][0]

    def keys(self):
        return self.ask("SELECT count(*) FROM @idempotency")[0][0]

    def write(self, name, text):
        path = self.path(name)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def lines(self, n):
        return "".join(json.dumps({"type": "t", "payload": i}) + "\n" for i in range(1, n + 1))

    def on_terminal(self, *args, env=None):
        """on_terminal runs the CLI on a new terminal and returns its output there, and its exit status."""
        try:
            pid, fd = pty.fork()
        except OSError as e:
            self.skipTest(f"no pseudo-terminal available: {e}")
        if pid == 0:
            os.chdir(self.dir)
            os.execve(BIN, [BIN, *map(str, args)], {**self.env({"TERM": "xterm"}), **(env or {})})
        text = b""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if not select.select([fd], [], [], 1)[0]:
                continue
            try:
                part = os.read(fd, 65536)
            except OSError:  # Linux reports a closed terminal this way
                break
            if not part:
                break
            text += part
        os.close(fd)
        return text.decode(errors="backslashreplace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Arguments(CliCase, Case):
    def test_all_three_version_commands_agree(self):
        text = self.outbox("version").stdout
        self.assertRegex(text, r"\Aoutbox \d+\.\d+\.\d+\n\Z")
        self.assertEqual(self.outbox("--version").stdout, text)
        self.assertEqual("outbox " + self.json("version")["version"] + "\n", text)

    def test_help_lists_every_command_and_each_has_help(self):
        overview = self.outbox("help").stdout
        self.assertEqual(self.outbox("--help").stdout, overview)
        for name in "init emit relay consumers status events dead trim config version help".split():
            self.assertRegex(overview, rf"(?m)^  {name}\b")
            text = self.outbox("help", name).stdout
            self.assertIn(f"outbox {name}", text)
            if name != "help":
                self.assertEqual(self.outbox(name, "-h").stdout, text)

    def test_h_flag_anywhere_shows_the_commands_help(self):
        for command, args in ((["emit"], ["order.paid"]), (["emit"], ["order.paid", "--key", "order/1"]),
                              (["dead", "list"], ["--consumer", "mail"]), (["events", "show"], ["relay"]),
                              (["consumers", "set"], ["mail", "--events", "a"])):
            with self.subTest(command=command, args=args):
                self.assertEqual(self.outbox(*command, *args, "-h").stdout, self.outbox(*command, "-h").stdout)

    def test_help_and_version_work_with_broken_settings(self):
        bad = {"OUTBOX_LEASE": "soon", "OUTBOX_CONFIG": "/nowhere", "OUTBOX_STORE": "nonsense", "OUTBOX_JSON": "maybe"}
        for args in (["help"], ["version"], ["emit", "--help"], ["config", "sample"]):
            self.outbox(*args, env=bad)

    def test_errors_for_unknown_names_suggest_the_nearest(self):
        self.refused(USAGE, "emti", says="did you mean emit?")
        self.refused(USAGE, "events", "lits", says="did you mean list?")
        self.refused(USAGE, "emit", "a", "--paylod", "1", says="did you mean --payload?")
        self.refused(USAGE, "relay", "--consumer", "a", "--sinc", "stdout:", says="did you mean --sink?")
        self.refused(USAGE, "events", "list", "--state", "delivred", says="did you mean delivered?")
        self.refused(USAGE, "relay", "--order", "keys", says="did you mean key?")
        self.refused(USAGE, "--color", "alway", "status", says="did you mean always?")
        self.refused(USAGE, "--store", "sqlight:x.db", "status", says=["--store", "sqlite:"])
        self.refused(USAGE, "relay", "--consumer", "a", "--sink", "stdot:", says=["--sink", "stdout:"])

    def test_errors_for_unrelated_names_refer_to_the_help(self):
        self.refused(USAGE, "zzzzzz", says="outbox help")
        self.refused(USAGE, "status", "--zzzzzz", says="outbox help status")
        self.refused(USAGE, "-x", "status", says="-x")

    def test_missing_and_superfluous_arguments_are_refused(self):
        self.refused(USAGE, says="outbox help")
        self.refused(USAGE, "events", says=["list", "show"])
        self.refused(USAGE, "events", "show", says="needs ID")
        self.refused(USAGE, "emit", says="TYPE")
        self.refused(USAGE, "emit", "a", "b", says='"b"')
        self.refused(USAGE, "emit", "a", "--payload", says="--payload needs a value")
        self.refused(USAGE, "dead", "retry", says="--all")
        self.refused(USAGE, "dead", "drop", "7", "--all")
        self.refused(USAGE, "emit", "--ndjson", "--payload", "1", says="--ndjson")

    def test_bad_flag_value_is_a_usage_error_that_names_the_flag(self):
        for flag, value in (("--lease", "3"), ("--lease", "1ms"), ("--lanes", "0"), ("--lanes", "65"),
                            ("--concurrency", "1025"), ("--batch", "10001"), ("--retry", "quick"), ("--from", "now"),
                            ("--where", "a ="), ("--receipts=maybe", None), ("--consumer", "a b")):
            with self.subTest(flag=flag, value=value):
                self.refused(USAGE, "relay", flag, *([value] if value else []), says=flag.split("=")[0])
        self.refused(USAGE, "emit", "a", "--key", "order", says="--key")
        self.refused(USAGE, "emit", "a", "--version", "one", says="--version")
        self.refused(USAGE, "emit", "a", "--header", "novalue", says="--header")
        self.refused(USAGE, "emit", "a", "--header", "a=1", "--header", "a=2", says="twice")
        self.refused(USAGE, "emit", "a", "--delay", "soon", says="--delay")

    def test_global_options_may_precede_or_follow_the_command(self):
        other = f"sqlite:{self.path('other.db')}"
        self.outbox("--store", other, "init")
        self.outbox("status", f"--store={other}")
        self.outbox("-c", self.write("a.conf", "[outbox]\n"), "--store", other, "status")
        self.outbox("status", "--store", other, f"-c{self.path('a.conf')}")
        self.assertFalse(self.db.exists())

    def test_double_dash_ends_the_options(self):
        self.init()
        self.outbox("emit", "--", "--type")
        self.assertEqual(self.json("events", "show", "1")["type"], "--type")

    def test_error_messages_never_contain_control_characters(self):
        self.assertNotIn(ESCAPE, self.refused(USAGE, f"{ESCAPE}[31mred"))

    def test_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([BIN, "version"], stdout=full, stderr=subprocess.PIPE, env=self.env(), timeout=60)
        self.assertEqual(done.returncode, UNAVAILABLE)
        self.assertIn(b"stdout", done.stderr)


@on_each_store
class Init(CliCase):
    def test_init_creates_the_tables_once(self):
        self.assertEqual(self.json("init"), {"store": self.store, "created": True})
        self.assertEqual(self.json("init"), {"store": self.store, "created": False})
        self.assertIn("nothing to do", self.outbox("init").stdout)

    def test_outbox_coexists_with_application_tables(self):
        self.ask("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        self.outbox("init")
        self.outbox("emit", "a")
        self.assertEqual(self.ask("SELECT count(*) FROM orders"), [(0,)])
        self.assertEqual(self.stored(), 1)


@on_each_store
class Emit(CliCase):
    def setUp(self):
        super().setUp()
        self.init()

    def test_emit_prints_the_id_of_the_stored_event(self):
        id = self.outbox("emit", "order.paid", "--key", "order/4/2", "--version", "3", "--payload", '{"total": 9.50}',
                         "--header", "trace=a=b", "--header", 'q="ü"', "--tenant", "acme").stdout.strip()
        self.assertTrue(UUID7.fullmatch(id), id)
        ev = self.json("events", "show", id)
        self.assertEqual((ev["id"], ev["seq"], ev["type"], ev["version"]), (id, 1, "order.paid", 3))
        self.assertEqual((ev["aggregate_type"], ev["aggregate_id"], ev["tenant"]), ("order", "4/2", "acme"))
        self.assertEqual(ev["headers"], {"trace": "a=b", "q": '"ü"'})
        self.assertEqual(self.ask("SELECT CAST(payload AS text) FROM @event"), [('{"total": 9.50}',)])

    def test_failure_to_print_an_id_reports_the_event_as_stored(self):
        for redirect in (">/dev/full", ">&-"):
            done = subprocess.run(["sh", "-c", f'exec "$0" emit a {redirect}', BIN], capture_output=True, text=True,
                                  env=self.env(), cwd=self.dir)
            self.assertEqual(done.returncode, 69, done.stderr)
            self.assertIn("the event is stored, with the id ", done.stderr)
        self.assertEqual(self.ask("SELECT count(*) FROM @event"), [(2,)])

    def test_closed_standard_input_is_an_error(self):
        done = subprocess.run(["sh", "-c", 'exec "$0" emit --ndjson - <&-', BIN], capture_output=True, text=True,
                              env=self.env(), cwd=self.dir)
        self.assertNotEqual(done.returncode, 0, done.stdout)

    def test_payload_comes_from_argument_file_or_stdin(self):
        path = self.write("p.json", '[1,\n 2]')
        self.outbox("emit", "a", "--payload", "[0]")
        self.outbox("emit", "a", "--payload", f"@{path}")
        self.outbox("emit", "a", "--payload", "-", input='{"b":  1}')
        self.outbox("emit", "a")
        self.assertEqual([p for p, in self.ask("SELECT CAST(payload AS text) FROM @event ORDER BY seq")],
                         ["[0]", "[1,\n 2]", '{"b":  1}', "null"])

    def test_same_idempotency_key_stores_one_event_and_is_reported(self):
        first = self.json("emit", "a", "--payload", "1", "--idempotency-key", "k")
        self.assertFalse(first["duplicate"])
        again = self.outbox("emit", "a", "--payload", "1", "--idempotency-key", "k")
        self.assertEqual(again.stdout.strip(), first["id"])
        self.assertIn("no new event", again.stderr)
        self.assertEqual(self.json("emit", "a", "--payload", "1", "--idempotency-key", "k"),
                         {"id": first["id"], "duplicate": True})
        self.refused(DATA, "emit", "a", "--payload", "2", "--idempotency-key", "k", says='"k"')
        self.assertEqual((self.stored(), self.keys()), (1, 1))

    def test_delay_sets_the_earliest_delivery_time(self):
        self.outbox("emit", "a", "--delay", "5m")
        times = f"{self.millis('created_at')}, {self.millis('not_before')}"
        created, not_before = self.ask(f"SELECT {times} FROM @event")[0]
        self.assertAlmostEqual(not_before - created, 300_000, delta=30_000)

    def test_exec_sink_variables_are_not_read_as_options(self):
        env = {f"OUTBOX_{name}": "x/\x01" for name in RESERVED}
        self.outbox("emit", "a", env=env)
        ev = self.json("events", "list", env=env)[0]
        self.assertEqual((ev["type"], ev["aggregate_id"], ev["tenant"], ev["version"]), ("a", None, None, None))


@on_each_store
class Bulk(CliCase):
    def setUp(self):
        super().setUp()
        self.init()

    def test_bulk_emit_reads_stdin_or_a_file_and_prints_the_count(self):
        self.assertEqual(self.outbox("emit", "--ndjson", input=self.lines(3)).stdout, "3 events, 0 duplicates\n")
        self.assertEqual(self.outbox("emit", "--ndjson", "-", input=self.lines(2)).stdout, "2 events, 0 duplicates\n")
        self.assertEqual(self.outbox("emit", "--ndjson", input=self.lines(1)).stdout, "1 event, 0 duplicates\n")
        path = self.write("e.ndjson", self.lines(2500))
        self.assertEqual(self.json("emit", "--ndjson", path), {"events": 2500, "duplicates": 0})
        self.assertEqual(self.stored(), 2506)

    def test_every_key_is_accepted_and_the_payload_kept_verbatim(self):
        line = ('{"type":"a","aggregate_type":"o","aggregate_id":"\\u00fc","version":7,"payload":{ "x" : 1.0 },'
                '"headers":{"h":"v"},"idempotency_key":"k"}')
        done = self.outbox("emit", "--ndjson", input=f"{line}\r\n\n  \n{line}")
        self.assertEqual(done.stdout, "1 event, 1 duplicate\n")
        self.assertEqual(self.ask("SELECT aggregate_id, version, CAST(payload AS text), CAST(headers AS text) "
                                  "FROM @event"),
                         [("ü", 7, '{ "x" : 1.0 }', '{"h":"v"}')])

    def test_bad_line_is_reported_and_its_transaction_rolled_back(self):
        bad = self.write("orders.ndjson", self.lines(1500) + "{broken\n" + self.lines(700))
        self.refused(DATA, "emit", "--ndjson", "orders.ndjson",
                     says=["orders.ndjson:1501: ", "lines 1 to 1000 are stored (1000 events, 0 duplicates)",
                           "nothing from line 1001 on"])
        self.assertEqual(self.stored(), 1000)
        self.refused(DATA, "emit", "--ndjson", bad, "--atomic", says=[":1501: ", "nothing is stored"])
        self.assertEqual(self.stored(), 1000)

    def test_atomic_import_is_one_transaction(self):
        self.outbox("emit", "--ndjson", "--atomic", input=self.lines(2300))
        self.assertEqual(self.stored(), 2300)
        self.refused(DATA, "emit", "--ndjson", input=self.lines(10) + "{}\n", env={"OUTBOX_ATOMIC": "yes"},
                     says=["stdin:11: ", "type"])
        self.assertEqual(self.stored(), 2300)

    def test_each_kind_of_bad_line_is_refused(self):
        for line, says in (('{"type":"a","paylod":1}', "payload"), ('["a"]', "object"), ('{"type":1}', "type"),
                           ('{"type":"a b"}', "white space"), ('{"type":""}', "empty"), ('{"payload":1}', "type"),
                           ('{"type":"a\\u0000"}', "control"), ('{"type":"a"} x', ""), ("\x00", ""),
                           ('{"type":"a","aggregate_id":"1"}', "aggregate"), ('{"type":"a","headers":{"a":1}}', "header"),
                           (b'{"type":"\xff"}', "UTF-8"), ('{"type":"a","payload":"' + "x" * 1100000 + '"}', "limit"),
                           ('{"type":"a","payload":"' + "x" * 1300000 + '"}', "longer")):
            with self.subTest(line=line[:40]):
                line = line if isinstance(line, bytes) else line.encode()
                self.refused(DATA, "emit", "--ndjson", input=b'{"type":"ok"}\n' + line + b"\n",
                             says=["stdin:2: ", says, "nothing is stored"])
                self.assertEqual(self.stored(), 0)

    def test_long_reason_does_not_hide_how_many_were_stored(self):
        self.refused(DATA, "emit", "--ndjson", input=json.dumps({"n" * 5000: 1}) + "\n", says="nothing is stored")

    def test_missing_input_file_is_a_data_error(self):
        self.refused(DATA, "emit", "--ndjson", "none.ndjson", says="none.ndjson")


@on_each_store
class BadInput(CliCase):
    """Each case: a clear error, the right exit code, and no partial write."""

    def setUp(self):
        super().setUp()
        self.init()

    def emit_refused(self, *args, says, **kw):
        self.refused(DATA, "emit", *args, "--idempotency-key", "k", says=says, **kw)
        self.assertEqual((self.stored(), self.keys()), (0, 0))

    def test_payload_that_is_not_json_is_refused(self):
        for payload in ("{", "{'a':1}", "nul", "", "1 2", "[1,]", "NaN"):
            with self.subTest(payload=payload):
                self.emit_refused("a", "--payload", payload, says="payload is not JSON")
        self.emit_refused("a", "--payload", "-", input="", says="payload is not JSON")

    def test_payload_with_invalid_utf8_is_refused(self):
        for raw in (b'"\xff"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xf5\x80\x80\x80"'):
            with self.subTest(raw=raw):
                self.emit_refused("a", "--payload", "-", input=raw, says="UTF-8")

    def test_payload_with_nul_bytes_is_refused(self):
        self.emit_refused("a", "--payload", "-", input=b'"a\0b"', says="payload is not JSON")
        self.emit_refused("a", "--payload", "-", input=b"1\0", says="payload is not JSON")

    def test_payload_over_the_limit_is_refused(self):
        fits, over = '"' + "x" * (2**20 - 2) + '"', '"' + "x" * (2**20 - 1) + '"'
        self.emit_refused("a", "--payload", "-", input=over, says="limit")
        self.emit_refused("a", "--payload", f"@{self.write('p', over)}", says="limit")
        self.emit_refused("a", "--payload", '"12345678"', "--max-payload", "9", says="limit")
        self.emit_refused("a", "--payload", '"12345678"', env={"OUTBOX_MAX_PAYLOAD": "9"}, says="limit")
        self.outbox("emit", "a", "--payload", "-", input=fits)
        self.outbox("emit", "a", "--payload", "-", "--max-payload", "2MiB", input=over)
        self.assertEqual(self.stored(), 2)

    def test_missing_payload_file_is_an_error(self):
        self.emit_refused("a", "--payload", "@none.json", says="none.json")

    def test_empty_or_malformed_types_are_refused(self):
        for type, says in (("", "empty"), ("a b", "white space"), (" a", "white space"), ("a\tb", "control"),
                           ("a\nb", "control"), ("a\x7f", "control"), ("a\u0085", "control"), ("a\u2003b", "white space"),
                           ("x" * 256, "255"), (b"a\xff", "UTF-8")):
            with self.subTest(type=type):
                self.emit_refused(type, says=["type", says])

    def test_keys_with_control_characters_are_refused(self):
        for key in ("order/\n", "order/\x1b[31m", "or\tder/1", "order/\x7f"):
            with self.subTest(key=key):
                self.emit_refused("a", "--key", key, says=["aggregate", "control"])

    def test_keys_may_contain_quotes_and_any_utf8(self):
        keys = ["o/'", 'o/"', "o/ü", "o/日本語", "o/🙂", "o/a b", "o/;DROP TABLE outbox_event;--", "o/%_*?", "o/a/b", "ö/\\"]
        for key in keys:
            self.outbox("emit", "a", "--key", key)
        events = self.json("events", "list")
        self.assertEqual([f"{e['aggregate_type']}/{e['aggregate_id']}" for e in events], keys)
        for key in keys:
            found = self.json("events", "list", "--key", key)
            self.assertEqual([f"{e['aggregate_type']}/{e['aggregate_id']}" for e in found], [key])

    def test_headers_with_invalid_utf8_are_refused(self):
        self.emit_refused("a", "--header", b"a=\xff", says="UTF-8")

    def test_newer_database_is_left_alone(self):
        self.ask("UPDATE @meta SET value = '999' WHERE name = 'schema_version'")
        for command in (["emit", "a"], ["status"], ["init"], ["emit", "--ndjson"]):
            with self.subTest(command=command):
                self.refused(DATA, *command, input='{"type":"a"}\n', says=["999", "newer"])
        self.assertEqual(self.stored(), 0)
        self.assertEqual(self.ask("SELECT value FROM @meta WHERE name = 'schema_version'"), [("999",)])


@on_each_store
class Early(CliCase):
    def test_database_without_an_outbox_is_refused(self):
        self.ask("CREATE TABLE orders (id INTEGER)")
        for command in (["emit", "a"], ["status"], ["events", "list"], ["trim"]):
            with self.subTest(command=command):
                self.refused(DATA, *command, says="outbox init")


class Files(CliCase, Case):
    """Bad files as a store: a clear error, the right exit code, and the file as it was."""

    def setUp(self):
        super().setUp()
        self.init()

    def test_store_in_a_missing_folder_is_unavailable(self):
        self.refused(UNAVAILABLE, "init", "--store", f"sqlite:{self.path('no/such/folder.db')}", says="folder.db")

    def test_text_file_is_refused_as_a_database(self):
        text = "# just notes, long enough to be taken for a database header\n" * 40
        self.write("notes.db", text)
        for command in (["emit", "a"], ["status"], ["init"], ["relay", "--consumer", "c", "--sink", "stdout:"]):
            with self.subTest(command=command):
                self.refused_relay_or_not(DATA, command, "notes.db")
        self.assertEqual(self.path("notes.db").read_text(), text)

    def refused_relay_or_not(self, status, command, name):
        done = self.outbox(*command, "--store", f"sqlite:{self.path(name)}", status=status)
        self.assertIn("outbox: ", done.stderr)
        self.assertIn(name, done.stderr)

    def test_database_without_an_outbox_is_not_modified(self):
        db = sqlite3.connect(self.path("app.db"))
        db.execute("CREATE TABLE orders (id)")
        db.commit()
        db.close()
        before = self.path("app.db").read_bytes()
        for command in (["emit", "a"], ["status"], ["events", "list"], ["trim"]):
            with self.subTest(command=command):
                self.refused(DATA, *command, "--store", f"sqlite:{self.path('app.db')}", says="outbox init")
        self.assertEqual(self.path("app.db").read_bytes(), before)

    def test_missing_file_is_not_created_by_accident(self):
        self.refused(DATA, "emit", "a", "--store", f"sqlite:{self.path('none.db')}", says="outbox init")
        self.assertFalse(self.path("none.db").exists())

    def as_nobody(self, *args, **kw):
        """as_nobody runs the CLI without the rights of root, which ignores permissions."""
        if os.geteuid() != 0:
            return self.outbox(*args, **kw)
        if not shutil.which("setpriv"):
            self.skipTest("root ignores permissions, and setpriv is not installed to become another user")
        binary = self.path("outbox-copy")
        if not binary.exists():
            shutil.copy(BIN, binary)
            binary.chmod(0o755)
        return self.outbox("--reuid=65534", "--regid=65534", "--clear-groups", binary, *args, argv0="setpriv", **kw)

    def test_read_only_file_is_reported_and_stays_unchanged(self):
        self.dir.chmod(0o755)
        self.db.chmod(0o444)
        for args in (["emit", "a"], ["emit", "--ndjson"], ["consumers", "pause", "c"]):
            with self.subTest(args=args):
                done = self.as_nobody(*args, input='{"type":"a"}\n', status=UNAVAILABLE)
                self.assertRegex(done.stderr, r"\Aoutbox: [^\n]*shop\.db[^\n]*writ[^\n]*\n\Z")
        self.assertEqual(self.stored(), 0)

    def test_full_disk_is_reported_and_stores_nothing(self):
        if os.geteuid() != 0:
            self.skipTest("only root can mount a small file system")
        disk = self.path("disk")
        disk.mkdir()
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, text=True)
        if mount.returncode != 0:
            self.skipTest(f"mount failed: {mount.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        self.db = disk / "shop.db"
        self.store = f"sqlite:{self.db}"
        self.init()
        self.outbox("emit", "first")
        line = json.dumps({"type": "t", "payload": "x" * 400}) + "\n"
        told = self.refused(UNAVAILABLE, "emit", "--ndjson", input=line * 20_000, says=["no space left", "make room"])
        stored = re.search(r"\((\d+) events, 0 duplicates\)", told)
        stored = int(stored.group(1)) if stored else 0
        self.assertEqual(self.stored(), 1 + stored)
        self.assertEqual(stored % 1000, 0)
        self.refused(UNAVAILABLE, "emit", "a", "--payload", "-", "--max-payload", "4MiB", "--idempotency-key", "k",
                     input=json.dumps("x" * 3_000_000), says="no space left")
        self.assertEqual((self.stored(), self.keys()), (1 + stored, 0))

    def test_locked_database_is_reported_but_readable(self):
        db = sqlite3.connect(self.db, isolation_level=None)
        self.addCleanup(db.close)
        db.execute("BEGIN IMMEDIATE")
        quick = {"OUTBOX_BUSY_TIMEOUT": "100ms"}
        self.refused(AGAIN, "emit", "a", env=quick, says="locked")
        self.refused(AGAIN, "emit", "--ndjson", input='{"type":"a"}\n', env=quick, says=["locked", "nothing is stored"])
        self.refused(AGAIN, "trim", "--busy-timeout", "100ms", says="locked")
        self.json("status", env=quick)  # readers do not block it
        db.execute("ROLLBACK")
        self.assertEqual(self.stored(), 0)
        self.outbox("emit", "a", env=quick)

    def test_tables_never_show_control_characters(self):
        db = sqlite3.connect(self.db)
        db.execute("PRAGMA ignore_check_constraints = ON")  # an older version accepted them
        with db:
            db.execute("INSERT INTO outbox_event (type, aggregate_type, aggregate_id) VALUES ('t', 'o', ?)",
                       (f"{ESCAPE}]0;pwned\x07\x9b31m",))
        db.close()
        for args in (["events", "list"], ["events", "show", "1"]):
            self.assertNotRegex(self.outbox(*args).stdout, "[\x00-\x09\x0b-\x1f\x7f-\x9f]")
            text, status = self.on_terminal(*args, env={"NO_COLOR": "1"})
            self.assertEqual(status, 0)
            self.assertNotRegex(text, "[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f]")
        self.assertEqual(self.json("events", "show", "1")["aggregate_id"], f"{ESCAPE}]0;pwned\x07\x9b31m")


class Progress(CliCase, Case):
    def test_progress_is_shown_only_on_a_terminal(self):
        self.init()
        text, status = self.on_terminal("emit", "--ndjson", self.write("many.ndjson", self.lines(60_000)))
        self.assertEqual(status, 0)
        self.assertRegex(text, r"\[#+ +\] +\d+%")
        text, status = self.on_terminal("emit", "--ndjson", self.write("one.ndjson", self.lines(1)))
        self.assertRegex(text, r"100%  1 event\b")
        self.assertEqual(self.outbox("emit", "--ndjson", self.write("few.ndjson", self.lines(2000))).stderr, "")


class Settings(CliCase, Case):
    CONF = """
# a comment
[outbox]
store = sqlite:from-file.db
lease = 10s

[consumer search]
sink = stdout:
events = "order.*, a"
[consumer mail]
sink = exec:./mail
lease = 20s
"""

    def config(self, *args, **kw):
        """config returns {(section, name): (value, origin, where)}."""
        rows = self.json("config", "show", *args, **kw)
        return {(r["section"], r["name"]): (r["value"], r["origin"], r["where"]) for r in rows}

    def test_flags_override_variables_which_override_the_file(self):
        conf = self.write("o.conf", self.CONF)
        no_store = {"OUTBOX_STORE": ""}
        got = self.config("-c", conf, env=no_store)
        self.assertEqual(got["outbox", "store"], ("sqlite:from-file.db", "file", f"{conf}:4"))
        self.assertEqual(got["outbox", "busy-timeout"], ("5s", "default", None))
        self.assertEqual(got["consumer search", "lease"], ("10s", "file", f"{conf}:5"))
        self.assertEqual(got["consumer mail", "lease"], ("20s", "file", f"{conf}:12"))
        self.assertEqual(got["consumer search", "events"], ("order.*, a", "file", f"{conf}:9"))
        self.assertEqual(got["consumer search", "batch"], ("1000", "default", None))
        env = {"OUTBOX_LEASE": "2s", "OUTBOX_STORE": "sqlite:e.db", "OUTBOX_CONFIG": str(conf)}
        got = self.config(env=env)
        self.assertEqual(got["outbox", "store"], ("sqlite:e.db", "environment", "OUTBOX_STORE"))
        self.assertEqual(got["consumer mail", "lease"], ("2s", "environment", "OUTBOX_LEASE"))
        got = self.config("--lease", "3s", "--store=sqlite:f.db", env=env)
        self.assertEqual(got["outbox", "store"], ("sqlite:f.db", "flag", "--store"))
        self.assertEqual(got["consumer mail", "lease"], ("3s", "flag", "--lease"))

    def test_options_after_a_consumer_apply_only_to_that_consumer(self):
        got = self.config("--batch", "7", "--lanes=2", "--consumer", "a", "--lanes", "3", "--sink", "stdout:",
                          "--consumer", "b", "--receipts")
        self.assertEqual(got["consumer a", "batch"][0], "7")
        self.assertEqual(got["consumer b", "batch"][0], "7")
        self.assertEqual(got["consumer a", "lanes"][0], "3")
        self.assertEqual(got["consumer b", "lanes"][0], "2")
        self.assertEqual(got["consumer a", "receipts"][0], "no")
        self.assertEqual(got["consumer b", "receipts"][0], "yes")
        self.assertEqual(got["consumer b", "sink"][0], None)

    def test_consumers_in_arguments_inherit_the_files_settings(self):
        got = self.config("-c", self.write("o.conf", self.CONF), "--consumer", "mail", "--batch", "5")
        self.assertEqual({section for section, _ in got}, {"outbox", "consumer mail"})
        self.assertEqual(got["consumer mail", "sink"][0], "exec:./mail")
        self.assertEqual(got["consumer mail", "batch"][0], "5")

    def test_config_check_accepts_a_good_file(self):
        conf = self.write("o.conf", self.CONF)
        self.assertIn("ok, 2 consumers", self.outbox("config", "check", "-c", conf).stdout)

    def test_bad_file_is_refused_with_file_and_line(self):
        for text, says in (("[outbox]\nstor = x\n", ["o.conf:2: ", "did you mean store?"]),
                           ("[outbox]\n\nlease = 3\n", ["o.conf:3: ", "lease", "unit"]),
                           ("[consumer a]\nsink = stdot:\n", ["o.conf:2: ", "stdout:"]),
                           ("[consumer a]\nstore = sqlite:x\n", ["o.conf:2: ", "[outbox]"]),
                           ("[consumr a]\n", ["o.conf:1: ", "[consumer NAME]"]),
                           ("[consumer a]\n[consumer a]\n", ["o.conf:2: ", '"a"']),
                           ("[consumer a b]\n", ["o.conf:1: ", '"a b"']),
                           ("lease = 3s\n", ["o.conf:1: ", "[outbox]"]),
                           ("[outbox]\nnonsense\n", ["o.conf:2: "]),
                           ("[outbox]\nlease = 3s\nlease = 4s\n", ["o.conf:3: ", "twice"]),
                           ("[outbox]\nlease = \0\n", ["o.conf"]),
                           ("[consumer a]\nbatch = 3\n", ['"a"', "sink"]),
                           ("[consumer a]\nsink = stdout:\norder = global\nlanes = 2\n", ['"a"', "global"])):
            with self.subTest(text=text):
                self.write("o.conf", text)
                self.refused(CONFIG, "config", "show", "-c", "o.conf", says=says) if "sink" not in says and "global" not in \
                    says else self.refused(CONFIG, "relay", "-c", "o.conf", says=says)
                said = self.outbox("config", "check", "-c", "o.conf", status=CONFIG).stderr
                for text in says: self.assertIn(text, said)
        self.refused(CONFIG, "status", "-c", "none.conf", says="none.conf")

    def test_error_names_the_bad_variable(self):
        self.refused(CONFIG, "status", env={"OUTBOX_BUSY_TIMEOUT": "long"}, says="OUTBOX_BUSY_TIMEOUT")
        self.refused(CONFIG, "status", env={"OUTBOX_LANES": "many"}, says="OUTBOX_LANES")
        self.refused(CONFIG, "status", env={"OUTBOX_JSON": "maybe"}, says="OUTBOX_JSON")
        self.refused(CONFIG, "status", env={"OUTBOX_STORE": "mysql:x"}, says="OUTBOX_STORE")

    def test_missing_store_error_names_the_three_ways_to_set_it(self):
        self.refused(CONFIG, "status", env={"OUTBOX_STORE": ""}, says=["--store", "OUTBOX_STORE", "[outbox]", "-c"])

    def test_passwords_are_masked(self):
        sink = "exec:curl https://joe:s3cret@host/x?password=s3cret&a=1 http://host/p@th:x"
        got = self.config("--consumer", "a", "--sink", sink)
        self.assertEqual(got["consumer a", "sink"][0],
                         "exec:curl https://joe:***@host/x?password=***&a=1 http://host/p@th:x")
        self.assertNotIn("s3cret", self.outbox("config", "show", "--consumer", "a", "--sink", sink).stdout)


@on_each_store
class Inspect(CliCase):
    """What operators see, with a consumer that delivers and one that rejects everything."""

    def setUp(self):
        super().setUp()
        self.init()
        for i in range(1, 4):
            self.emit("order.paid", f"order/{i}", {"n": i})
        self.emit("user.new", "user/1", {"n": 4})

    def deliver(self, *more):
        self.drain("--consumer", "good", "--sink", f"file:{self.path('out')}", "--consumer", "bad", "--events", "order.*",
                   "--sink", "exec:echo no >&2; exit 65", *more)

    def test_status_describes_an_empty_outbox(self):
        status = self.json("status")
        self.assertEqual((status["store"]["events"], status["store"]["head"], status["consumers"]), (4, 4, []))
        self.assertIn("4 events kept, head 4", self.outbox("status").stdout)

    def test_status_shows_each_consumer(self):
        self.deliver()
        by_name = {c["name"]: c for c in self.json("status")["consumers"]}
        self.assertEqual((by_name["good"]["state"], by_name["good"]["delivered"], by_name["good"]["dead"]), ("idle", 4, 0))
        self.assertEqual((by_name["bad"]["dead"], by_name["bad"]["parked"]), (3, 0))
        text = self.outbox("status").stdout
        self.assertRegex(text, r"(?m)^NAME +STATE +BEHIND +LAG +IN-FLIGHT +DELIVERED +PARKED +DEAD")
        self.assertRegex(text, r"(?m)^bad +idle +0 +- +0 +\d+ +0 +3")
        self.outbox("consumers", "pause", "good")
        self.emit("order.paid")
        by_name = {c["name"]: c for c in self.json("status")["consumers"]}
        self.assertEqual((by_name["good"]["state"], by_name["good"]["behind"]), ("paused", 1))
        self.assertEqual(by_name["bad"]["state"], "behind")

    def test_status_watch_repeats_until_interrupted(self):
        self.deliver()
        watch = self.spawn(BIN, "status", "--watch", "--json", "--interval", "10ms", log="watch")
        seen = wait_until(lambda: [l for l in self.ndjson(self.path("watch")) if l][2:])
        self.assertIn("delivered_per_s", seen[0]["consumers"][0])
        watch.signal(signal.SIGINT)
        watch.wait(0)

    def test_events_list_filters_by_every_field(self):
        self.deliver()
        seqs = lambda *args: [e["seq"] for e in self.json("events", "list", *args)]
        self.assertEqual(seqs(), [1, 2, 3, 4])
        self.assertEqual(seqs("--type", "order.*"), [1, 2, 3])
        self.assertEqual(seqs("--key", "order/2"), [2])
        self.assertEqual(seqs("--newest", "--limit", "2"), [4, 3])
        self.assertEqual(seqs("--after", "2"), [3, 4])
        self.assertEqual(seqs("--state", "expired"), [1, 2, 3])
        self.assertEqual(seqs("--state", "abandoned"), [1, 2, 3])
        self.assertEqual(seqs("--consumer", "good", "--state", "published"), [1, 2, 3, 4])
        self.assertEqual(seqs("--state", "unprocessed"), [])
        self.assertEqual(seqs("--state", "processing"), [])
        self.assertEqual(seqs("--state", "failed"), [])
        limited = self.outbox("events", "list", "--limit", "2")
        self.assertEqual(len(limited.stdout.splitlines()), 3)
        self.assertIn("--after 2", limited.stderr)
        self.assertIn("bad:expired", limited.stdout)
        self.assertIn("good:delivered", limited.stdout)

    def test_events_show_accepts_an_id_or_a_seq(self):
        self.deliver()
        ev = self.json("events", "show", "1")
        self.assertEqual(self.json("events", "show", ev["id"]), ev)
        states = {d["consumer"]: (d["state"], d["attempts"]) for d in ev["deliveries"]}
        self.assertEqual(states, {"good": ("delivered", states["good"][1]), "bad": ("expired", 1)})
        text = self.outbox("events", "show", "1").stdout
        self.assertRegex(text, r'(?m)^payload +\{"n": 1\}$')
        self.assertRegex(text, r"(?m)^bad +expired")
        self.refused(DATA, "events", "show", "99", says='"99"')

    def test_events_and_dead_letters_show_their_idempotency_key(self):
        for how in ((), ("--tenant", "acme")):  # also of a tenant's event, which the platform's inbox identifies by its id
            key = f"key of {how[-1] if how else 'nobody'}"
            event = self.emit("order.paid", None, None, "--idempotency-key", key, *how)
            self.drain("--consumer", "no", "--sink", "exec:exit 65")
            for command in "events", "dead":
                self.assertEqual(self.json(command, "show", event)["idempotency_key"], key)
                self.assertRegex(self.outbox(command, "show", event).stdout, rf"(?m)^idempotency key +{key}$")
        self.assertIsNone(self.json("events", "show", self.emit("order.paid"))["idempotency_key"])

    def test_dead_letters_are_listed_shown_retried_and_dropped(self):
        self.deliver()
        dead = self.json("dead", "list")
        self.assertEqual([(d["consumer"], d["seq"], d["attempts"], d["retrying"]) for d in dead],
                         [("bad", i, 1, False) for i in (1, 2, 3)])
        self.assertIn("no", dead[0]["error"])
        self.assertEqual(self.json("dead", "show", dead[0]["id"])["payload"], {"n": 1})
        self.assertRegex(self.outbox("dead", "show", "1").stdout, r"(?m)^consumer +bad$")
        self.assertEqual(len(self.outbox("dead", "list").stdout.splitlines()), 4)
        self.assertEqual(self.json("dead", "list", "--consumer", "good"), [])
        self.assertEqual(self.outbox("dead", "drop", "3", "--yes").stdout, "1 dead letter dropped: bad 1\n")
        self.assertEqual(self.json("dead", "retry", "--all", "--consumer", "bad")["retried"], 2)
        self.assertEqual([d["retrying"] for d in self.json("dead", "list")], [True, True])
        self.drain("--consumer", "bad", "--sink", f"file:{self.path('late')}", "--events", "order.*")
        self.assertEqual([l["seq"] for l in self.ndjson(self.path("late"))], [1, 2])
        self.assertEqual(self.json("dead", "list"), [])
        self.refused(DATA, "dead", "retry", "3", says='"3"')
        self.refused(DATA, "dead", "drop", "3", "--consumer", "good", says="good")
        self.refused(DATA, "dead", "show", "3", says="dead list")
        self.assertEqual(self.json("dead", "drop", "--all")["dropped"], 0)

    def test_consumers_are_listed_shown_paused_resumed_and_removed(self):
        self.assertEqual(self.json("consumers", "list"), [])
        self.deliver()
        self.assertEqual([c["name"] for c in self.json("consumers", "list")], ["bad", "good"])
        self.assertEqual(len(self.outbox("consumers", "list").stdout.splitlines()), 3)
        shown = self.json("consumers", "show", "bad")
        self.assertEqual((shown["events"], shown["order"], shown["lanes"], shown["retry"]), ("order.*", "key", 1, "patient"))
        self.assertRegex(self.outbox("consumers", "show", "bad").stdout, r"(?m)^dead letters +3$")
        self.outbox("consumers", "pause", "good")
        self.assertTrue(self.json("consumers", "show", "good")["paused"])
        self.outbox("consumers", "resume", "good")
        self.assertFalse(self.json("consumers", "show", "good")["paused"])
        self.refused(DATA, "consumers", "remove", "bad", says="--force")
        self.outbox("consumers", "remove", "bad", "--force", "--yes")
        self.outbox("consumers", "remove", "good", "--yes")
        self.assertEqual(self.json("consumers", "list"), [])
        for sub in ("show", "pause", "resume", "remove"):
            self.refused(DATA, "consumers", sub, "none", says='"none"')

    def test_trim_deletes_unneeded_events_and_names_blockers(self):
        self.deliver()
        self.outbox("consumers", "pause", "good")
        self.emit("order.paid")
        self.assertEqual(self.json("trim")["events"], 0)  # nothing is 168 h old
        would = self.json("trim", "--older-than", "0s", "--dry-run")
        self.assertEqual((would["dry_run"], would["events"], self.stored()), (True, 4, 5))
        did = self.json("trim", "--older-than", "0s", "--yes")
        self.assertEqual((did["events"], did["kept_for_pin"], self.stored()), (4, 1, 1))
        self.assertRegex(did["pin"], "good|bad")
        self.assertIn("deleted 0 events", self.outbox("trim", "--older-than", "0s").stdout)
        self.refused(USAGE, "trim", "--retention", "0s", says="--older-than")

    def test_colours_appear_only_on_terminals_without_no_color(self):
        self.deliver()
        self.assertNotIn(ESCAPE, self.outbox("status").stdout)
        self.assertIn(ESCAPE, self.outbox("status", "--color", "always").stdout)
        self.assertIn(ESCAPE, self.on_terminal("status")[0])
        self.assertNotIn(ESCAPE, self.on_terminal("status", env={"NO_COLOR": "1"})[0])
        self.assertNotIn(ESCAPE, self.on_terminal("status", "--color", "never")[0])

    def test_keys_are_readable_in_any_locale(self):
        self.emit("t", "o/ü")
        for locale in ("C", "POSIX", "C.UTF-8", "nonsense"):
            self.assertIn("o/ü", self.outbox("events", "list", env={"LC_ALL": locale}).stdout)


@on_each_store
class Relay(CliCase):
    def setUp(self):
        super().setUp()
        self.init()

    def test_relay_refuses_an_incomplete_configuration(self):
        self.refused(CONFIG, "relay", says=["--consumer", "[consumer NAME]"])
        self.refused(CONFIG, "relay", "--consumer", "a", says=['"a"', "sink"])
        self.refused(USAGE, "relay", "--consumer", "a", "--sink", "stdout:", "--consumer", "a", says='"a"')
        self.refused(CONFIG, "relay", "--consumer", "a", "--sink", "stdout:", env={"OUTBOX_STORE": ""}, says="--store")

    def test_drain_delivers_everything_and_exits(self):
        ids = [self.emit("a", f"k/{i}", i) for i in range(5)]
        done = self.drain("--consumer", "c", "--sink", "stdout:")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([l["id"] for l in lines], ids)
        self.assertEqual([l["payload"] for l in lines], list(range(5)))
        self.assertEqual({l["consumer"] for l in lines}, {"c"})
        logged = done.stderr.splitlines()
        self.assertRegex(logged[0], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info starting store=\S+ consumers=c$")
        self.assertRegex(logged[-1], r"Z info stopped: every consumer is done$")

    def test_relay_reads_its_consumers_from_the_file(self):
        self.write("r.conf", f"[outbox]\nstore = {self.store}\nretention = 0s\n"
                             "[consumer a]\nsink = file:a.out\nevents = x.*\n"
                             "[consumer b]\nsink = file:b.out\nwhere = n = 2\n")
        self.emit("x.y", None, {"n": 1})
        self.emit("z", None, {"n": 2})
        self.drain("-c", "r.conf", env={"OUTBOX_STORE": ""})
        self.assertEqual([l["type"] for l in self.ndjson(self.path("a.out"))], ["x.y"])
        self.assertEqual([l["type"] for l in self.ndjson(self.path("b.out"))], ["z"])

    def test_sigterm_and_sigint_stop_the_relay_gracefully(self):
        for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT")):
            relay = self.relay("--consumer", "c", "--sink", f"file:{self.path('out')}")
            id = self.emit("a")
            wait_until(lambda: id in [l["id"] for l in self.ndjson(self.path("out"))])
            relay.signal(number)
            relay.wait(0)
            self.assertIn(f"stopped by {name}", relay.output())

    def test_second_signal_stops_the_relay_at_once(self):
        self.emit("a")
        # A delivery that lasts as long as the relay does, and leaves no process behind.
        relay = self.relay("--consumer", "c", "--sink", "exec:touch busy; while kill -0 $PPID; do sleep 0.01; done")
        wait_until(self.path("busy").exists)

        def push():
            relay.signal(signal.SIGTERM)
            return not relay.running()

        wait_until(push)
        relay.wait(128 + signal.SIGTERM)

    def test_log_level_silences_lower_levels(self):
        self.assertEqual(self.drain("--consumer", "c", "--sink", "stdout:", "--log-level", "error").stderr, "")


if __name__ == "__main__":
    unittest.main()
