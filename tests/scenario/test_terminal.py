"""Untrusted text is shown, never interpreted: no control character, no change of direction, nothing invisible and no byte that
is not UTF-8 reaches a terminal or a log, in whatever field of whatever table, file, reply or argument. In JSON such a character
is escaped, so the value is the same."""
# build: plain
import contextlib
import fcntl
import json
import os
import pty
import re
import socket
import sqlite3
import struct
import subprocess
import termios
import unicodedata
import unittest

import servers
from http_endpoint import Endpoint, answer
from support import BIN, TIMEOUT, thorough, wait_until
from test_hostile import Hostile

# One of each kind: C0, DEL, C1, marks and changes of direction, no width, separators of lines, soft hyphen, variation selectors,
# annotations, fillers, private use, noncharacters, tags.
ODD = ("\x01\x07\x08\t\x1b\x7f\x80\x9b\xad\u034f\u061c\u115f\u180e\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e"
       "\u2060\u2066\u2067\u2068\u2069\u206f\u2800\u3164\ue000\ufe0f\ufeff\ufff9\ufffb\uffff\U0001d173\U000e0001\U000e0041\U000e0100\U0010fffd")
EVIL = f"a\n{ODD}z"
PRINTED = "".join(c for c in ODD if c >= "\xad")  # values for an event's fields
IGNORED = {*map(chr, (0x34f, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x2065, 0x2800, 0x3164, 0xffa0)),
           *(chr(c) for a, b in ((0x180b, 0x180f), (0xfe00, 0xfe0f), (0xfff0, 0xfff8), (0xe0000, 0xe0fff), (0xfdd0, 0xfdef)) for c in range(a, b + 1))}


def unfit(c):
    """unfit tells whether a terminal would not show this character literally."""
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") or c in IGNORED or ord(c) & 0xfffe == 0xfffe


UNFIT = frozenset(c for c in map(chr, range(0x110000)) if unfit(c) and c != "\n")


class Terminal(Hostile):
    def shown(self, text, what=""):
        """shown fails on anything that is not shown as itself; bytes that are not UTF-8 are surrogates here."""
        for c in set(text) & UNFIT: self.fail(f"{what}: {c!r} in ...{text[max(0, text.index(c) - 80):text.index(c) + 40]!r}")
        return text

    def both(self, *args, **kw):
        """both runs a command for people and for programs, and returns both outputs."""
        text = self.outbox(*args, status=None, **kw)
        answer = self.outbox(*args, "--json", status=None, **kw)
        for done in (text, answer): self.shown(done.stdout, args), self.shown(done.stderr, args)
        return text.stdout, answer.stdout


class Events(Terminal):
    EVENT = {"type": "a.b", "aggregate_type": f"t{PRINTED}", "aggregate_id": f"i{PRINTED}", "tenant": f"n{PRINTED}",
             "idempotency_key": f"k{PRINTED}", "payload": {ODD: [EVIL, {"b": ODD}]}, "headers": {f"h{PRINTED}": f"v{PRINTED}"}}

    def put(self):
        """put emits an event with odd characters in each field, as bytes of JSON, and not as escapes."""
        plain = {**self.EVENT, "payload": 0}
        line = json.dumps(plain, ensure_ascii=False)[:-1]
        payload = json.dumps(self.EVENT["payload"], ensure_ascii=False).replace(": ", ":\t")
        self.outbox("emit", "--ndjson", "-", input=line.replace('"payload": 0', f'"payload": {payload}') + "}\n")

    def same(self, got):
        for name, value in self.EVENT.items(): self.assertEqual(got[name], value, name)

    def test_each_field_is_shown_as_text_and_kept_as_json(self):
        self.put()
        text, answer = self.both("events", "list")
        self.same(json.loads(answer)[0])
        self.assertIn(r"\u202e", text)
        self.assertEqual(len(text.splitlines()), 2)
        text, answer = self.both("events", "show", "1")
        self.same(json.loads(answer))
        payload = re.search(r"^payload +(.*)$", text, re.M)[1]
        self.assertEqual(json.loads(payload), self.EVENT["payload"])  # JSON that is shown is JSON
        self.drain("--consumer", "c", "--sink", f"exec:printf '%s' '{EVIL}' >&2; exit 65")
        _, answer = self.both("dead", "list")
        self.same(json.loads(answer)[0])
        _, answer = self.both("dead", "show", "1")
        self.same(json.loads(answer))

    def test_every_character_is_shown_or_escaped(self):
        some = [chr(c) for c in range(0x20, 0x110000) if not 0xd800 <= c < 0xe000]
        for at in range(0, len(some), 150000):
            part = "".join(some[at:at + 150000])
            self.outbox("emit", "t", "--payload", "-", input=json.dumps(part, ensure_ascii=False))
            text = self.shown(self.outbox("events", "show", str(at // 150000 + 1)).stdout)
            payload = re.search(r"^payload +(.*)$", text, re.M)[1]
            self.assertEqual(json.loads(payload), part)
            known = {c for c in part if unicodedata.category(c)[0] in "LNPS" and not unfit(c)}
            self.assertEqual(known - set(payload), set())  # readable text is unchanged

    def test_log_never_shows_control_characters(self):
        """As text, and as JSON, whose message can be decoded and shown; an event's own fields keep their values."""
        self.put()
        sink = ["--consumer", "c", "--sink", f"exec:printf '%s' '{EVIL}' >&2; exit 65"]
        self.shown(self.drain(*sink).stderr)
        self.outbox("dead", "retry", "1")
        log = self.shown(self.drain(*sink, env={"OUTBOX_LOG_FORMAT": "json"}).stderr)
        lines = [json.loads(line) for line in log.splitlines()]
        for line in lines: self.shown(line["message"])
        about = [line for line in lines if "key" in line]
        self.assertTrue(about, log)
        self.assertTrue(all(line["key"] == f"t{PRINTED}/i{PRINTED}" for line in about), log)

    def test_80_columns_truncate_the_id_but_never_type_or_key(self):
        self.init()
        id = self.outbox("emit", "invoice.paid", "--key", "invoice/4711").stdout.strip()
        head, row = self.tty("events", "list", width=80).splitlines()
        self.assertLessEqual(len(row), 80)
        self.assertIn("invoice.paid", row)
        self.assertIn("invoice/4711", row)
        self.assertNotIn(id, row)
        self.assertIn(id[:8], row)
        self.assertIn(id, self.tty("events", "list", width=200))

    def tty(self, *args, width=0):
        """tty returns a command's output to a terminal of that many columns; 0: unknown width."""
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        child = subprocess.Popen([BIN, *args], stdin=subprocess.DEVNULL, stdout=inner, stderr=subprocess.DEVNULL, cwd=self.dir,
                                 env=self.env({"NO_COLOR": "1"}))
        os.close(inner)
        data = b""
        while True:
            try:
                piece = os.read(outer, 65536)
            except OSError: break
            if not piece: break
            data += piece
        os.close(outer)
        self.assertEqual(child.wait(TIMEOUT), 0, data)
        return data.decode().replace("\r\n", "\n")

    def test_stdout_sink_escapes_only_for_a_terminal(self):
        self.put()
        seen = self.shown(self.tty("relay", "--drain", "--consumer", "c", "--sink", "stdout:").replace("\t", " "))
        self.assertEqual(json.loads(seen)["payload"], self.EVENT["payload"])
        piped = self.drain("--consumer", "d", "--sink", "stdout:").stdout
        self.assertIn("\u202e", piped)
        self.assertEqual(json.loads(piped), {**json.loads(seen), "consumer": "d"})

    def test_tables_on_a_terminal_never_show_control_characters(self):
        self.put()
        for args in (["events", "list"], ["events", "show", "1"], ["status"]): self.shown(self.tty(*args), args)


@thorough("each column of each table, by ten commands")
class Tables(Terminal):
    LOOKS = (["events", "list"], ["events", "show", "1"], ["dead", "list"], ["dead", "show", "2"], ["status"], ["consumers", "show", "c"],
             ["consumers", "history", "c"], ["hwm"], ["trim", "--dry-run"], ["doctor"])

    def test_no_column_reaches_a_terminal_unescaped(self):
        """An attacker with write access to the file puts it into each column in turn."""
        for _ in range(4): self.emit("t", "a/1", {"a": 1}, "--header", "h=v", "--idempotency-key", os.urandom(4).hex(), "--tenant", "n")
        self.drain("--consumer", "c", "--sink", 'exec:[ "$OUTBOX_SEQ" != 2 ] || exit 65', "--receipts", "--order", "none")
        self.outbox("consumers", "set", "c", "--events", "t, u", status=None)
        now = "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
        self.sql("INSERT INTO outbox_mark (stream, consumer, hi, lo, at) VALUES ('s', 'c', 1, 1, 1)")
        self.sql(f"INSERT INTO outbox_parked (consumer, seq, key, attempts, due_at, error, failed_at) VALUES ('c', 3, 1, 1, {now} + 60000, 'e', {now})")
        self.sql("UPDATE outbox_consumer SET report = 'r', report_at = 1")
        columns = [(table, column) for table, in self.sql("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'outbox%'")
                   for _, column, kind, *_ in self.sql(f"PRAGMA table_info({table})") if kind == "TEXT" and table != "outbox_meta"]
        pristine = self.path("pristine.db")
        self.copy(self.db, pristine)
        seen = 0
        for table, column in columns:
            for evil in (EVIL, EVIL.encode() + b"\xff\xfe\xc3("):
                with self.subTest(table=table, column=column):
                    self.copy(pristine, self.db)
                    self.spoil(table, column, evil)
                    for args in self.LOOKS: seen += sum("202e" in text for text in self.both(*args))
        self.assertGreater(seen, 100)  # the row was listed

    def copy(self, source, target):
        with contextlib.closing(sqlite3.connect(source)) as db, contextlib.closing(sqlite3.connect(target)) as to: db.backup(to)

    def spoil(self, table, column, evil):
        with contextlib.closing(sqlite3.connect(self.db)) as db, db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            for name, in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall(): db.execute(f"DROP TRIGGER {name}")
            db.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (evil,))


class Outside(Terminal):
    """Arguments, file names, settings, and messages of servers, streams and senders."""

    def test_arguments_and_file_names_are_escaped(self):
        named = f"x{EVIL}"
        for args in (["events", "show", named], ["dead", "show", named], ["consumers", "show", named], ["events", "list", "--state", named],
                     ["hwm", named], [named], ["status", named], ["events", "retry", named], ["dead", "drop", named, "--yes"],
                     ["consumers", "remove", named, "--yes"], ["grant", "producer", named], ["adopt", named], ["config", "check", "-c", named],
                     ["trim", "--older-than", named], ["receive", named], ["migrate", "gen", "--out-dir", self.path("made" + EVIL)]):
            self.both(*args)
        store = f"sqlite:{self.path('a' + EVIL + '.db')}"
        for args in (["init"], ["migrate", "status"], ["migrate", "up"], ["status"], ["doctor"]):
            text, _ = self.both(*args, env={"OUTBOX_STORE": store})
            self.assertIn(r"\u000a", text)
        self.shown(self.outbox("webhook", "sign", "--id", named, "--secret", "whsec_" + "A" * 32, input="x", status=None).stdout)

    def test_settings_are_escaped(self):
        path = self.path("a\u202eb.conf")
        path.write_text(f"[outbox]\nstore = {self.store}\n[consumer c]\nsink = exec:echo {PRINTED}\nevents = {PRINTED}\nwhere = a = \"{PRINTED}\"\n")
        for args in (["show"], ["check"]): self.both("config", *args, "-c", path)
        shown = json.loads(self.outbox("config", "show", "-c", path, "--json").stdout)
        self.assertIn(f"exec:echo {PRINTED}", [one["value"] for one in shown])
        path.write_text(f"[outbox]\nstore = {self.store}\n[consumer c]\nsink = exec:true\n")
        text, _ = self.both("config", "check", "-c", path)
        self.assertIn(r"a\u202eb.conf: ok", text)
        self.shown(self.outbox("relay", "--drain", "-c", path).stderr)

    def test_sql_with_an_unprintable_name_goes_only_to_files(self):
        store = {"OUTBOX_STORE": "postgres:///x?schema=a%E2%80%AEb"}
        said = self.outbox("migrate", "gen", env=store, status=None)
        self.assertIn("--out-dir", self.shown(said.stderr), said.stdout[:200])
        self.shown(said.stdout)

    def test_webhook_responses_are_escaped(self):
        with Endpoint(lambda request: answer(500, {"Content-Type": "text/plain", "X-Odd": "\x7f"}, EVIL.encode() + b"\xff")) as endpoint:
            self.emit("t")
            relay = self.relay("--consumer", "c", "--sink", endpoint.url, "--retry", "base=1h,cap=1h,attempts=9")
            wait_until(lambda: self.json("status")["consumers"][0]["last_error"], what=relay.output)
            for args in (["status"], ["consumers", "list"], ["consumers", "show", "c"], ["events", "show", "1"], ["doctor"]): self.both(*args)
            relay.stop()
            self.shown(relay.output())

    def test_requests_to_webhook_listen_are_escaped(self):
        for how in ([], ["--json"]):
            child = self.spawn(BIN, "webhook", "listen", "--port", "0", *how)
            port = wait_until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/", child.output()), what=child.output)[1]
            with socket.create_connection(("127.0.0.1", int(port))) as peer:
                body = EVIL.encode() + b"\xff"
                odd = "".join(c for c in ODD if c >= "\xad").encode()
                peer.sendall(b"POST /%s HTTP/1.1\r\nHost: x\r\nce-type: %s\r\nx-%s: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
                             % (odd, odd, odd, odd, len(body), body))
                while peer.recv(4096): pass
            wait_until(lambda: len(child.output().splitlines()) > 1, what=child.output)
            child.stop(expect=None)
            self.shown(child.log.read_bytes().decode(errors="surrogateescape"))

    def test_stream_entries_are_escaped(self):
        redis = servers.Redis().start()
        self.addCleanup(redis.close)
        event = {"event_id": "0197c9a2-5b1e-7c3a-9f00-1234567890ab", "topic": f"t{PRINTED}", "aggregate_kind": ODD, "aggregate_id": EVIL, "payload": EVIL}
        for value in (json.dumps(event, ensure_ascii=False), json.dumps(event), EVIL): redis("XADD", "s", "*", "event", value, f"f{EVIL}", EVIL)
        text, answer = self.both("receive", redis.url("stream=s"), "--idle", "300ms")
        self.assertEqual(len(text.splitlines()), 3)
        self.assertIn(EVIL, [json.loads(line)["value"] for line in answer.splitlines()])
        for env in ({}, {"OUTBOX_LOG_FORMAT": "json"}):
            said = self.outbox("consume", redis.url("stream=s"), "--group", f"g{len(env)}", "--drain", "--exec", f"printf '%s' '{EVIL}' >&2; exit 65",
                               env=env, status=None)
            self.shown(said.stdout + said.stderr)


if __name__ == "__main__":
    unittest.main()
