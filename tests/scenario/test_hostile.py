"""Hostile fields that bypass every check: values forced into a database or written into a stream by others never become a
variable of a command, a header line or a path."""
import json
import os
import pathlib
import re
import sqlite3
import urllib.request

import servers
from http_endpoint import Endpoint
from support import BIN, Case, wait_until

EVIL = "42\0LD_PRELOAD=/tmp/evil.so"
SECRETS = {"PGPASSWORD": "geheim", "PGUSER": "geheim", "OUTBOX_REDIS_PASSWORD": "geheim", "OUTBOX_LEASE": "20s",
           "HOOK_SECRETS": "geheim", "AWS_SECRET_ACCESS_KEY": "geheim", "LD_LIBRARY_PATH": "/geheim", "LC_TIME": "C", "TZ": "UTC",
           "SHOP_URL": "https://shop.example"}
FACTS = {"OUTBOX_ID", "OUTBOX_SEQ", "OUTBOX_TYPE", "OUTBOX_CREATED_AT", "OUTBOX_CONSUMER", "OUTBOX_ATTEMPT"}
PASSED = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_"}


class Hostile(Case):
    def setUp(self):
        super().setUp()
        self.init()

    def without_checks(self):
        """without_checks removes every CHECK from the table, as anyone with write access to the file can."""
        db = sqlite3.connect(self.db)
        db.execute("PRAGMA writable_schema = ON")
        with db:
            (text,), = db.execute("SELECT sql FROM sqlite_master WHERE name = 'outbox_event'")
            columns = text[:text.index("    CONSTRAINT ")].rstrip().rstrip(",") + "\n)"
            db.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'outbox_event'", (columns,))
        db.close()

    def force(self, **ev):
        db = sqlite3.connect(self.db)
        ev = {"type": "t", "payload": "{}", **ev}
        with db:
            db.execute(f"INSERT INTO outbox_event ({', '.join(ev)}) VALUES ({', '.join('?' for _ in ev)})", list(ev.values()))
        db.close()

    def variables(self, name="env"):
        entries = self.path(name).read_bytes().split(b"\0")
        return dict(entry.decode().split("=", 1) for entry in entries if entry)

    def assertClean(self, env, *more):
        names = {name for name in env if not name.startswith("LC_")}
        self.assertLessEqual(names, PASSED | FACTS | set(more))
        self.assertNotIn("geheim", str(env))


class Files(Hostile):
    def test_null_consumer_settings_do_not_cause_a_crash(self):
        """In a file whose constraints were removed."""
        self.emit("a.b")
        self.drain("--consumer", "c", "--sink", "exec:true")
        db = sqlite3.connect(self.db)
        db.execute("PRAGMA writable_schema = ON")
        with db: db.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE name = 'outbox_consumer'")
        db.close()
        for column in ("events", "predicate", "retry", "ordering", "lanes"):
            before = self.sql(f"SELECT {column} FROM outbox_consumer")[0][0]
            self.sql(f"UPDATE outbox_consumer SET {column} = NULL")
            for command in (["relay", "--drain", "--consumer", "c", "--events", "a.*", "--sink", "exec:true"], ["consumers", "list"], ["status"]):
                done = self.outbox(*command, status=None)
                self.assertGreaterEqual(done.returncode, 0, f"{column}, {command}: {done.stderr}")
            self.sql(f"UPDATE outbox_consumer SET {column} = ?", before)


class Commands(Hostile):
    def test_nul_in_a_row_cannot_set_a_variable(self):
        self.without_checks()
        for field in ("type", "aggregate_id", "aggregate_type", "tenant"):
            key = {} if field in ("type", "tenant") else {"aggregate_type": "order", "aggregate_id": "1"}
            self.force(**{**key, field: EVIL})
            self.force(**{**key, field: "x" + "\0" * 500})
        self.force(id="0197c9a2-5b1e-7c3a-9f00-1234567\0A=b\0")
        self.force(type="sound")
        self.drain("--consumer", "c", "--sink", f"exec:cat /proc/self/environ >>{self.path('env')}; echo >>{self.path('ran')}")
        self.assertEqual(self.path("ran").read_text(), "\n")
        self.assertEqual(self.variables()["OUTBOX_TYPE"], "sound")
        self.assertClean(self.variables())
        dead = self.json("dead", "list")
        self.assertEqual(len(dead), 9)
        for letter in dead: self.assertIn("malformed", letter["error"])

    def test_command_gets_a_clean_environment(self):
        self.emit("t")
        sink = f"exec:cat /proc/self/environ >{self.path('env')}; ls /proc/self/fd >{self.path('fds')}"
        self.drain("--consumer", "c", "--sink", sink, env=SECRETS)
        env = self.variables()
        self.assertClean(env)
        self.assertEqual((env["PATH"], env["TZ"], env["LC_TIME"]), (os.environ["PATH"], "UTC", "C"))
        self.assertEqual(self.path("fds").read_text().split(), ["0", "1", "2", "3"])  # 3 is the folder that ls reads

    def test_exec_env_passes_on_listed_variables(self):
        show = f"exec:cat /proc/self/environ >{self.path('env')}"
        self.path("a.conf").write_text(f"[consumer b]\nsink = {show}\nexec-env = SHOP_URL, NOT_SET\n")
        ways = {"flag": (["--consumer", "a", "--sink", show, "--exec-env", "SHOP_URL,NOT_SET"], {}), "file": (["-c", "a.conf"], {}),
                "environment": (["--consumer", "c", "--sink", show], {"OUTBOX_EXEC_ENV": "SHOP_URL"})}
        self.emit("t")
        for way, (args, env) in ways.items():
            with self.subTest(way):
                self.drain(*args, env={**SECRETS, **env})
                self.assertClean(self.variables(), "SHOP_URL")
                self.assertEqual(self.variables()["SHOP_URL"], SECRETS["SHOP_URL"])

    def test_exec_env_requires_names(self):
        for value, says in (("A=geheim", "names of environment variables"), ("OUTBOX_ID", "set for each event")):
            said = self.outbox("relay", "--consumer", "c", "--sink", "exec:true", "--exec-env", value, status=64).stderr
            self.assertIn(says, said)
            self.assertNotIn("geheim", said)


class Rows(Hostile):
    """Columns with values that no event may have, shown in every possible way."""

    def look(self):
        """look runs every command that reads events; its output for programs is JSON in UTF-8."""
        for args in (["events", "list", "--limit", "100"], ["dead", "list"], ["status"], ["consumers", "list"], ["doctor"]):
            self.outbox(*args, "--json", status=None).stdout.encode()  # no surrogates: it is UTF-8
            self.json(*args, status=None)
            self.outbox(*args, status=None).stdout.encode()

    def test_absurd_times_do_not_cause_an_overflow(self):
        self.without_checks()
        for at in (-2 ** 63, -2 ** 63 + 1, -1, 0, 1, 2 ** 62, 2 ** 63 - 1, 1e300, -1e300):
            self.force(type="t", created_at=at)
            self.force(type="t", not_before=min(at, 0))
        self.look()
        with self.relay("--consumer", "c", "--sink", f"file:{self.path('out')}", "--listen", "127.0.0.1:0") as relay:
            wait_until(lambda: len(self.ndjson(self.path("out"))) == 18, what=relay.output)
            port = re.search(r"listening on http://127\.0\.0\.1:(\d+)", relay.output())[1]
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        self.look()
        self.force(type="t", created_at=-2 ** 63)
        self.drain("--consumer", "d", "--sink", "exec:exit 65")
        self.look()
        self.outbox("trim", "--older-than", "36525d", "--yes")

    def test_invalid_bytes_never_reach_the_output(self):
        self.without_checks()
        bad = b"a\xff\xc3"
        for field in ("id", "type", "tenant", "payload", "headers"): self.force(**{field: bad})
        self.force(payload=b'{"a":"\xff"}')
        self.force(headers=b'{"a":"\xff"}')
        self.force(aggregate_type=bad, aggregate_id=bad)
        self.force(type="sound")
        self.look()
        self.drain("--consumer", "c", "--sink", f"file:{self.path('out')}")
        self.drain("--consumer", "e", "--sink", f"exec:cat >>{self.path('exec')}; printf 'no \\377\\033[2J' >&2; exit 65")
        self.assertEqual([e["type"] for e in self.ndjson(self.path("out"))], ["sound"])
        self.assertEqual([e["type"] for e in self.ndjson(self.path("exec"))], ["sound"])
        self.look()


class Streams(Hostile):
    @classmethod
    def setUpClass(cls):
        cls.redis = servers.Redis().start()
        cls.addClassCleanup(cls.redis.close)

    def add(self, **fields):
        event = {"event_id": "0197c9a2-5b1e-7c3a-9f00-1234567890ab", "topic": "t", "payload": {}, **fields}
        self.redis("XADD", "s", "*", "event", json.dumps(event))

    def consume(self, *args, group="g"):
        env = {name: value for name, value in SECRETS.items() if name != "OUTBOX_REDIS_PASSWORD"}  # this Redis requires no password
        return self.outbox("consume", self.redis.url("stream=s"), "--group", group, "--drain", *args, env=env)

    def test_foreign_entry_cannot_set_a_variable(self):
        self.redis("FLUSHALL")
        odd = [{"topic": EVIL}, {"aggregate_kind": EVIL}, {"aggregate_id": EVIL}, {"aggregate_id": "\0" * 5000},
               {"event_id": EVIL}, {"event_id": "0197c9a2-5b1e-7c3a-9f00-1234567\r\nA:b"}, {"topic": "a\nb"}]
        for fields in odd: self.add(**fields)
        self.add(topic="sound")
        said = self.consume("--exec", f"cat /proc/self/environ >>{self.path('env')}; echo >>{self.path('ran')}").stderr
        self.assertIn(f"1 handled, 0 failed attempts, 0 taken over, {len(odd)} skipped", said)
        self.assertEqual(self.path("ran").read_text(), "\n")
        self.assertEqual(self.variables()["OUTBOX_TYPE"], "sound")
        self.assertClean(self.variables())

    def test_commands_of_consume_get_a_clean_environment(self):
        self.redis("FLUSHALL")
        self.add()
        show = f"cat /proc/self/environ >{self.path('env')}"
        shot = f"cat /proc/self/environ >{self.path('snapshot')}; ls /proc/self/fd >{self.path('fds')}"
        self.consume("--exec", show, "--exec-env", "SHOP_URL")
        self.consume("--exec", show, "--snapshot", shot, "--exec-env", "SHOP_URL", group="h")
        for name in ("env", "snapshot"):
            self.assertClean(self.variables(name), "SHOP_URL", "OUTBOX_STREAM", "OUTBOX_HWM")
            self.assertEqual(self.variables(name)["SHOP_URL"], SECRETS["SHOP_URL"])
        self.assertEqual(self.variables("snapshot")["OUTBOX_STREAM"], "s")
        self.assertEqual(self.path("fds").read_text().split(), ["0", "1", "2", "3"])


class Webhooks(Hostile):
    def test_no_field_can_split_a_request(self):
        self.without_checks()
        crlf = "0197c9a2-5b1e-7c3a-9f00-1\r\nX-Evil: 1"
        self.assertEqual(len(crlf), 36)
        for fields in ({"id": crlf}, {"id": "x\r\n\r\nPOST /evil HTTP/1.1"}, {"type": "a\r\nX-Evil: 1"}, {"tenant": "a\nX-Evil: 1"},
                       {"aggregate_type": "order", "aggregate_id": "1\r\nX-Evil: 1"}, {"tenant": "a\x85b"}, {"tenant": "a\x7f"}):
            self.force(**fields)
        self.force(type="sound", headers=json.dumps({"corr": "x\r\nX-Evil: 2", "traceparent": "00\r\nX-Evil: 1",
                                                     "tracestate": "a\r\nX-Evil: 1", "a\r\nX-Evil": "1", "b\0": "1"}))
        with Endpoint() as endpoint:
            self.drain("--consumer", "hook", "--sink", endpoint.url)
        request, = endpoint.requests
        self.assertEqual(request.headers["ce-type"], "sound")
        self.assertFalse([name for name in request.headers if "evil" in name])
        self.assertEqual(request.headers["ce-corr"], "x%0D%0AX-Evil:%202")

    def test_thousands_of_headers_do_not_block_delivery(self):
        self.without_checks()
        for name in ("Upper%d", "lower%d", "same"):
            self.force(headers="{" + ",".join(f'"{name % i if "%" in name else name}":"v"' for i in range(20000)) + "}")
        self.force(type="sound")
        with Endpoint() as endpoint, self.relay("--consumer", "hook", "--sink", endpoint.url) as relay:
            wait_until(lambda: any(r.headers["ce-type"] == "sound" for r in endpoint.requests), what=relay.output)
            fields = pathlib.Path(f"/proc/{relay.pid}/stat").read_text().rpartition(")")[2].split()
            seconds = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")  # that it has computed
            self.assertLess(seconds, 5)
        self.assertIn("too many headers; a request may have 64", str(self.json("dead", "list")))
