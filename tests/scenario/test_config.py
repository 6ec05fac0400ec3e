"""config check reports what a relay would, and all errors at once; consumers from the environment alone."""
import os
import re
import subprocess
import sys

import servers
from support import BIN, Case, wait_until

USAGE, CONFIG = 64, 78


class ConfigCase(Case):
    def setUp(self):
        super().setUp()
        self.init()

    def write(self, name, text, mode=0o600):
        path = self.path(name)
        path.write_text(text)
        path.chmod(mode)
        return path

    def problems(self, *args, **kw):
        """problems returns the output of config check, as (where, text)."""
        got = self.json("config", "check", *args, status=CONFIG, **kw)
        self.assertFalse(got["ok"])
        return [(p["where"], p["text"]) for p in got["problems"]]


class Check(ConfigCase):
    def test_every_error_is_listed_with_file_and_line(self):
        self.write("o.conf", """stray = 1
[outbox]
stor = sqlite:x
lease = 3
nonsense
[bad
sink = file:x
[consumr q]
sink = file:x
[consumer a]
sink = redis://127.0.0.1/0
lanes = many
[consumer b]
sink = redis://:secret@127.0.0.1/0?stream=x
[consumer c]
sink = https://10.1.2.3/x
webhook-secret-file = none
webhook-ca-file = neither
[consumer d]
order = global
lanes = 3
[consumer a]
batch = 3
[consumer e]
sink = https://example.com/
webhook-header-file = nor-this
webhook-ca-file = neither
""")
        expected = [(1, "is outside any section"), (3, "did you mean store"), (4, "no unit"), (5, "name = value"),
                    (6, "write a section as"), (8, "unknown section"), (12, "lanes"), (22, '"a" is already'), (11, "names no stream"),
                    (14, "password"), (16, "private address"), (17, "could not read"), (18, "could not read"),
                    (21, "one lane"), (19, "has no sink"), (26, "could not read"), (27, "could not read")]
        got = self.problems("-c", "o.conf")
        self.assertEqual([where for where, _ in got], [f"o.conf:{line}" for line, _ in expected])
        for (_, text), (_, says) in zip(got, expected): self.assertIn(says, text)
        said = self.outbox("config", "check", "-c", "o.conf", status=CONFIG)
        self.assertEqual(said.stdout, "")
        self.assertEqual([line.split(":")[2] for line in said.stderr.splitlines()[:len(expected)]],
                         [str(line) for line, _ in expected])
        self.assertNotIn("secret@", said.stderr)

    def test_config_check_gives_the_same_errors_as_a_relay(self):
        secret = self.write("secrets", "this is no secret\n")
        for options in ({"sink": "redis://127.0.0.1/0"}, {"sink": "redis://:pw@127.0.0.1/0?stream=s"},
                        {"sink": "redis://127.0.0.1/0?stream=s&password-file=none"},
                        {"sink": "redis://127.0.0.1/0?stream={nonsense}"}, {"sink": "redis://127.0.0.1/0?steam=s"},
                        {"sink": "https://10.0.0.1/"}, {"sink": "https://u:p@example.com/"},
                        {"sink": "https://example.com/", "webhook-secret-file": "none"},
                        {"sink": "https://example.com/", "webhook-secret-file": secret},
                        {"sink": "https://example.com/", "webhook-secret-env": "NOT_SET"},
                        {"sink": "https://example.com/", "webhook-header-file": secret},
                        {"sink": "https://example.com/", "webhook-ca-file": "none"},
                        {"sink": "file:"}, {"sink": "file:/tmp"}, {"sink": "exec:"},
                        {"sink": "file:x", "order": "global", "lanes": "2"}, {"events": "a.*"}):
            with self.subTest(options=options):
                self.write("o.conf", "[consumer c]\n" + "".join(f"{k} = {v}\n" for k, v in options.items()))
                relay = self.outbox("relay", "--drain", "-c", "o.conf", status=None)
                check = self.outbox("config", "check", "-c", "o.conf", status=None)
                self.assertEqual(check.returncode, relay.returncode, relay.stderr + check.stderr)
                self.assertEqual(relay.returncode, CONFIG)
                self.assertIn(check.stderr.splitlines()[0], relay.stderr)
                self.assertRegex(check.stderr, r"outbox: o\.conf:\d+: ")
        self.assertEqual(self.json("consumers", "list"), [])

    def test_every_error_in_a_url_is_listed(self):
        for sink, expected in (
                ("redis://u:pw@127.0.0.1:70000/x?maxlen=0&replicas=99&bogus=1&stream={nonsense}",
                 ("password", "port", "database number", "maxlen", "replicas", "bogus", "nonsense")),
                ("redis://127.0.0.1/0?maxlen=1&maxage=1s&lease=", ("lease", "names no stream", "maxlen or maxage")),
                ("rediss://127.0.0.1/0?stream=s&cert=none&lease-ttl=0s", ("lease-ttl", "cert and key")),
                ("unix:/tmp/r?stream={&replicas=x", ("replicas", "{")),
                ("https://u:p@10.0.0.1/", ("password", "private address"))):
            with self.subTest(sink=sink):
                self.write("o.conf", f"[consumer c]\nsink = {sink}\n")
                got = self.problems("-c", "o.conf")
                self.assertEqual({where for where, _ in got}, {"o.conf:2"})
                self.assertEqual(len(got), len(expected), got)
                for says in expected: self.assertTrue(any(says in text for _, text in got), (says, got))

    def test_internal_addresses_are_refused_in_any_notation(self):
        for host in ("10.0.0.1.", "0x0a.1", "012.0.0.1", "167772161", "10.1.", "[::ffff:10.0.0.1]", "%31%30.0.0.1", "１０.0.0.1", "⑩.0.0.1",
                     "10。0。0。1", "１０.0.0.1."):
            with self.subTest(host=host):
                self.write("o.conf", f"[consumer c]\nsink = https://{host}/hook\n")
                (_, text), = self.problems("-c", "o.conf")
                self.assertRegex(text, r"this is a private address; to allow it, set webhook-allow = (::ffff:)?10\.0\.0\.1$")

    def test_invalid_store_url_is_refused_by_check_and_relay(self):
        for store in ("sqlite:", "postgres://h:99999/db", "postgres://h/db?sslmode=bogus", "postgres://h/db?port=1,2",
                      "postgres://h/db?target_session_attrs=x", "postgres://h/db?bogus=1", "postgres://h/db?schema=pg_x"):
            with self.subTest(store=store):
                self.write("o.conf", f"[outbox]\nstore = {store}\n[consumer c]\nsink = file:x\n")
                env = {"OUTBOX_STORE": ""}
                check = self.outbox("config", "check", "-c", "o.conf", status=CONFIG, env=env).stderr
                relay = self.outbox("relay", "-c", "o.conf", status=CONFIG, env=env).stderr
                self.assertIn(relay.splitlines()[-1].removeprefix("outbox: "), check)

    def test_errors_also_name_flags_variables_and_missing_settings(self):
        self.assertEqual(self.problems("--consumer", "a", "--sink", "exec:")[0][0], "--sink")
        got = self.problems(env={"OUTBOX_LEASE": "soon", "OUTBOX_LANES": "many", "OUTBOX_STORE": ""})
        self.assertEqual([where for where, _ in got][:2], ["OUTBOX_LANES", "OUTBOX_LEASE"] if got[0][0] == "OUTBOX_LANES"
                         else ["OUTBOX_LEASE", "OUTBOX_LANES"])
        self.assertTrue(any("no consumers" in text for _, text in got))
        self.assertTrue(any(re.search("store", text) for _, text in got))
        (_, text), *_ = self.problems("-c", "no-such-file")
        self.assertIn("no-such-file", text)
        self.write("empty.conf", "")
        self.assertIn("no consumers to run", self.problems("-c", "empty.conf")[0][1])
        if os.geteuid() != 0:
            self.write("closed.conf", "", 0)
            self.assertIn("closed.conf", self.problems("-c", "closed.conf")[0][1])

    def test_rest_of_an_unescaped_password_is_never_shown(self):
        for store in "mariadb://u:12/x?hunter2=z@h/db", "mariadb://u:12/x?tls=hunter2@h/db", "postgres://u:12/x?hunter2=z@h/db":
            said = self.outbox("status", env={"OUTBOX_STORE": store}, status=None).stderr
            self.assertIn("cannot be understood", said)
            self.assertNotIn("hunter2", said)

    def test_world_readable_secrets_cause_a_warning(self):
        secret = self.write("secrets", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", 0o644)
        args = "--consumer", "a", "--sink", "https://example.com/", "--webhook-secret-file", secret
        got = self.json("config", "check", *args)
        self.assertTrue(got["ok"])
        self.assertIn("any user of this machine", got["warnings"][0]["text"])
        secret.chmod(0o640)
        self.assertEqual(self.json("config", "check", *args)["warnings"], [])

    def test_connect_checks_store_and_sinks_and_leaves_no_trace(self):
        port = servers.free_port()
        sinks = {"a": f"file:{self.path('no')}/x", "b": f"redis://127.0.0.1:{port}/0?stream=s", "c": f"http://127.0.0.1:{port}/",
                 "d": "exec:true", "e": f"file:{self.path('new')}"}
        args = [word for name, url in sinks.items() for word in ("--consumer", name, "--sink", url)]
        self.assertTrue(self.json("config", "check", *args)["ok"])
        got = self.problems("--connect", *args)
        self.assertEqual([re.match('consumer "(.)"', text)[1] for _, text in got], ["a", "b", "c"])
        (where, text), = self.problems("--connect", "--consumer", "d", "--sink", "exec:true",
                                       env={"OUTBOX_STORE": f"sqlite:{self.path('none.db')}"})
        self.assertEqual(where, "OUTBOX_STORE")
        self.assertFalse(self.path("new").exists() or self.path("none.db").exists())
        self.assertEqual(self.json("consumers", "list"), [])
        said = self.outbox("config", "check", "--connect", "--consumer", "e", "--sink", f"file:{self.path('new')}").stdout
        self.assertIn("ok, 1 consumer", said)

    def test_reload_with_an_unusable_sink_is_refused_entirely(self):
        good = f"[outbox]\nstore = {self.store}\n[consumer a]\nsink = file:{self.path('out')}\n"
        self.write("o.conf", good)
        with self.relay("-c", "o.conf") as relay:
            self.write("o.conf", good + "[consumer b]\nsink = redis://127.0.0.1/0\n")
            relay.signal(1)
            wait_until(lambda: "could not reload the config: o.conf:6: " in relay.output(), what=relay.output)
            self.emit("t")
            wait_until(lambda: self.ndjson(self.path("out")), what=relay.output)


class Environment(ConfigCase):
    def show(self, *args, **env):
        rows = self.json("config", "show", *args, env=env)
        return {(r["section"], r["name"]): (r["value"], r["where"]) for r in rows}

    def test_environment_alone_can_define_consumers(self):
        env = {"OUTBOX_CONSUMERS": "search, mail-eu.x", "OUTBOX_CONSUMER_SEARCH_SINK": f"file:{self.path('search')}",
               "OUTBOX_CONSUMER_MAIL_EU_X_SINK": f"file:{self.path('mail')}", "OUTBOX_CONSUMER_MAIL_EU_X_EVENTS": "b.*"}
        self.emit("a.1")
        self.emit("b.1")
        self.drain(env=env)
        self.assertEqual([ev["type"] for ev in self.ndjson(self.path("search"))], ["a.1", "b.1"])
        self.assertEqual([ev["type"] for ev in self.ndjson(self.path("mail"))], ["b.1"])
        self.assertTrue(self.json("config", "check", env=env)["ok"])

    def test_first_of_two_variables_with_one_name_counts(self):
        """As for getenv. Only execve itself can pass both."""
        code = ("import ctypes, sys; list_of = lambda texts: (ctypes.c_char_p * (len(texts) + 1))(*map(str.encode, texts), None); "
                "ctypes.CDLL(None).execve(sys.argv[1].encode(), list_of(sys.argv[1:4]), list_of(sys.argv[4:]))")
        done = subprocess.run([sys.executable, "-c", code, BIN, "config", "show", f"OUTBOX_STORE={self.store}", "OUTBOX_LEASE=7s", "OUTBOX_LEASE=9s"],
                              capture_output=True, text=True, check=True)
        self.assertEqual(re.findall(r"lease +(\S+) +OUTBOX_LEASE", done.stdout), ["7s"], done.stderr)

    def test_flags_override_the_environment_and_the_file(self):
        self.write("o.conf", "[outbox]\nbatch = 1\n[consumer a]\nsink = file:x\nbatch = 2\nlease = 7s\n[consumer b]\nsink = file:y\n")
        env = {"OUTBOX_CONSUMER_A_BATCH": "3", "OUTBOX_BATCH": "4"}
        got = self.show("-c", "o.conf", **env)
        self.assertEqual(got["consumer a", "batch"], ("3", "OUTBOX_CONSUMER_A_BATCH"))
        self.assertEqual(got["consumer a", "lease"], ("7s", "o.conf:6"))
        self.assertEqual(got["consumer b", "batch"], ("4", "OUTBOX_BATCH"))
        self.assertEqual(self.show("-c", "o.conf", "--batch", 5, **env)["consumer a", "batch"], ("5", "--batch"))
        some = self.show("-c", "o.conf", OUTBOX_CONSUMERS="b", **env)
        self.assertEqual({section for section, _ in some}, {"outbox", "consumer b"})
        flags = self.show("-c", "o.conf", "--consumer", "z", OUTBOX_CONSUMERS="b")
        self.assertEqual({section for section, _ in flags}, {"outbox", "consumer z"})

    def test_unknown_or_ambiguous_variables_are_refused(self):
        base = {"OUTBOX_CONSUMERS": "search,mail-eu", "OUTBOX_CONSUMER_SEARCH_SINK": "file:x", "OUTBOX_CONSUMER_MAIL_EU_SINK": "file:y"}
        for more, where, says in (
                ({"OUTBOX_CONSUMER_SAERCH_EVENTS": "a.*"}, "OUTBOX_CONSUMER_SAERCH_EVENTS", "OUTBOX_CONSUMER_SEARCH_EVENTS?"),
                ({"OUTBOX_CONSUMER_SEARCH_EVENT": "a.*"}, "OUTBOX_CONSUMER_SEARCH_EVENT", "OUTBOX_CONSUMER_SEARCH_EVENTS?"),
                ({"OUTBOX_CONSUMERS": "search,mail-eu,mail.eu"}, "OUTBOX_CONSUMER_MAIL_EU_SINK", '"mail-eu" or "mail.eu"'),
                ({"OUTBOX_CONSUMERS": "search,mail-eu,search"}, "OUTBOX_CONSUMERS", "already"),
                ({"OUTBOX_CONSUMERS": "search,,mail-eu"}, "OUTBOX_CONSUMERS", "missing"),
                ({"OUTBOX_CONSUMERS": "search,mail-eu,m m"}, "OUTBOX_CONSUMERS", "character"),
                ({"OUTBOX_CONSUMER_SEARCH_LANES": "many"}, "OUTBOX_CONSUMER_SEARCH_LANES", "whole number")):
            with self.subTest(more=more):
                said = self.outbox("relay", "--drain", env={**base, **more}, status=CONFIG).stderr
                self.assertIn(f"outbox: {where}: ", said)
                self.assertIn(says, said)
                self.assertIn(where, [w for w, _ in self.problems(env={**base, **more})])

    def test_misspelled_variable_is_refused(self):
        self.init()
        for name, meant in (("LAESE", "LEASE"), ("LEAS", "LEASE"), ("LEASEE", "LEASE"), ("LEESE", "LEASE"), ("DRAIN_DEADLIN", "DRAIN_DEADLINE"),
                            ("LIMITS", "LIMIT"), ("STORES", "STORE")):
            done = self.outbox("status", status=78, env={f"OUTBOX_{name}": "1"})
            self.assertIn(f"OUTBOX_{name}: there is no such setting; did you mean OUTBOX_{meant}?", done.stderr)
            self.assertIn(f"OUTBOX_{meant}?", self.outbox("config", "check", status=78, env={f"OUTBOX_{name}": "1"}).stderr)
        for name in ("LAESE", "WORKER", "TOPIC", "HOST", "SINKS", "SEED", "TEST_PG", "PORT", "TYPE", "CONSUMER", "REDIS_PASSWORD"):
            self.outbox("status", env={f"OUTBOX_{name}": "" if name == "LAESE" else "1"})

    def test_unrelated_variables_are_ignored(self):
        self.outbox("status", env={"OUTBOX_CONSUMER_SEARCH_EVENTS": "a.*"})  # a relay's business
        self.drain("--consumer", "a", "--sink", f"file:{self.path('out')}",
                   env={"OUTBOX_CONSUMER_X_SERVICE_HOST": "10.0.0.1", "OUTBOX_CONSUMER_X_PORT": "tcp://10.0.0.1:80",
                        "OUTBOX_CONSUMER_X_PORT_80_TCP_ADDR": "10.0.0.1", "OUTBOX_CONSUMER_A_EVENTS": ""})

    def test_command_never_sees_settings_of_the_relay(self):
        self.emit("t")
        self.drain(env={"OUTBOX_CONSUMERS": "a", "OUTBOX_CONSUMER_A_SINK": f"exec:env >{self.path('env')}",
                        "OUTBOX_LEASE": "20s", "OUTBOX_REDIS_PASSWORD": "geheim"})
        names = {line.partition("=")[0] for line in self.path("env").read_text().splitlines() if line.startswith("OUTBOX_")}
        self.assertEqual(names, {"OUTBOX_ID", "OUTBOX_SEQ", "OUTBOX_TYPE", "OUTBOX_CREATED_AT",
                                 "OUTBOX_CONSUMER", "OUTBOX_ATTEMPT"})
