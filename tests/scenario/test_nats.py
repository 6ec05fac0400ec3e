"""NATS JetStream from end to end, through the CLI: stored messages as a third-party client reads them; marks, receipts,
cautions, logins with credentials, and receiving."""
import base64
import json
import os
import pathlib
import re
import subprocess
import time
import unittest

import ed25519
from broker_nats import Nats
from broker_metrics import BrokerView
from broker_refusals import Refusals
from pages import BROKERS, items, section
from support import Case, on_each_store, wait_until

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
NODE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "outbox-tests" / "nats" / "node_modules"


class Own:
    """Common to the cases: one server, on which each case creates and deletes its streams."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.nats = Nats().start()
        cls.addClassCleanup(cls.nats.close)

    def setUp(self):
        super().setUp()
        self.init()
        self.nats.stream("S", subjects=["s.>"])
        self.addCleanup(self.nats.delete, "S")

    def to(self, subject="s.{type}", query="", *more, name="out"):
        return ["--consumer", name, "--sink", self.nats.url(subject, f"stream=S{query}"), *more]


@on_each_store
class Delivered(Own):
    def test_event_arrives_with_its_headers_receipt_and_mark(self):
        event = self.emit("order.paid", "order/7", None, "--payload", '{"a": 1.50}', "--version", "3", "--header", "traceparent=00-ab-cd-01")
        self.drain(*self.to("s.{type}", "", "--receipts"))
        m, = self.nats.messages("S")
        self.assertEqual((m.subject, m.data), ("s.order.paid", b'{"a": 1.50}'))
        want = {"id": event, "type": "order.paid", "aggregate_type": "order", "aggregate_id": "7", "key": "order/7", "version": "3",
                "traceparent": "00-ab-cd-01", "content-type": "application/json", "Nats-Msg-Id": f"{event}:out",
                "Nats-Expected-Stream": "S"}
        self.assertEqual({name: m.headers.get(name) for name in want}, want)
        self.assertEqual(self.outbox("hwm", "S").stdout, "1-0\n")
        self.assertIn('"receipt":"S/1"', self.outbox("events", "show", event, "--json").stdout)

    def test_written_events_can_be_received_and_checked(self):
        self.emit_many({"type": "order.paid", "aggregate_type": "order", "aggregate_id": str(i % 7), "payload": {"n": i}} for i in range(50))
        self.drain(*self.to())
        url = self.nats.url("s.{type}", "stream=S")
        lines = self.json("receive", url, "--count", "50", "--from", "beginning")
        self.assertEqual([json.loads(m["value"])["n"] for m in lines][:3], [0, 1, 2])
        self.assertEqual(self.json("receive", url, "--count", "1", "--from", "50")["position"], "50")
        done = self.outbox("receive", url, "--check", "--consumer", "out", "--idle", "500ms")
        self.assertIn("lost: 0\nout of order: 0\nrepeats: 0\n", done.stdout)

        self.nats.api("STREAM.MSG.DELETE.S", {"seq": 9})
        done = self.outbox("receive", url, "--check", "--consumer", "out", "--idle", "500ms", status=1)
        self.assertIn("lost: 1, the first", done.stdout)


@on_each_store
class Refused(Own, Refusals):
    def test_only_events_refused_by_one_subject_are_buried(self):
        self.check_subject("")

    def test_exclusive_stream_also_buries_only_refused_events(self):
        self.check_subject("&exclusive=on")

    def check_subject(self, query):
        self.nats.delete("S")
        self.nats.stream("S", subjects=["s.good"])
        self.check_refused_among_others(self.to("s.{type}", query), lambda: len(self.nats.messages("S")), "does not include the subject s.bad")

    def test_events_refused_by_the_only_stream_are_buried(self):
        self.nats.delete("S")
        self.check_refused_alone(self.to("s.a"), "has no stream S", lambda: self.nats.stream("S", subjects=["s.a"]),
                                 lambda: len(self.nats.messages("S")))


class Read(Own, Case):
    """By the client that NATS publishes for node, and the SDK of CloudEvents."""

    def by_node(self, n):
        if not (NODE / "nats").exists(): self.skipTest("the node modules nats and cloudevents are not installed")
        done = subprocess.run(["node", HERE / "nats_reader.js", str(self.nats.port), "S", str(n)], capture_output=True, text=True,
                              timeout=60, env={**os.environ, "NODE_PATH": str(NODE)})
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_every_format_arrives_as_documented(self):
        event = self.emit("order.paid", "order/7", None, "--payload", '{"a": 1.50}', "--header", "tag=a b")
        formats = ("plain", "cloudevents", "cloudevents-structured", "debezium", "json", "contract")
        for name in formats: self.drain(*self.to(f"s.{name}", f"&format={name}&source=/shop", name=name))
        got = {m["subject"].removeprefix("s."): m for m in self.by_node(len(formats))}
        self.assertEqual(set(got), set(formats))

        for name in ("plain", "cloudevents", "debezium"): self.assertEqual(got[name]["value"], '{"a": 1.50}')
        self.assertEqual({n: v for n, v in got["debezium"]["headers"].items() if not n.startswith("Nats-")}, {"id": event})
        self.assertEqual(got["plain"]["headers"]["tag"], "a b")
        for name in ("cloudevents", "cloudevents-structured"):
            ce = got[name]["event"]
            self.assertEqual([ce[field] for field in ("specversion", "id", "type", "source", "subject", "datacontenttype", "data")],
                             ["1.0", event, "order.paid", "/shop", "order/7", "application/json", {"a": 1.5}])
        self.assertEqual(json.loads(got["json"]["value"])["id"], event)
        self.assertEqual(json.loads(got["contract"]["value"])["event_id"], event)

    def test_odd_names_and_headers_survive(self):
        self.emit("order.paid", "order/a.b *>", None, "--header", "näme: 1=x\ty", "--header", "Nats-Rollup=all", "--header", "tag= z ")
        self.drain(*self.to("s.{aggregate_id}"))
        m, = self.by_node(1)
        self.assertEqual(m["subject"], "s.a%2Eb%20%2A%3E")
        self.assertEqual(m["headers"]["n%C3%A4me%3A%201"], "x%09y")
        self.assertEqual(m["headers"]["%4Eats-Rollup"], "all")
        self.assertEqual(m["headers"]["tag"], "%20z%20")


class Shown(Own, BrokerView, Case):
    def test_status_shows_server_and_unconfirmed_events(self):
        self.check_view(self.to(), self.nats.freeze, self.nats.thaw, kind="nats", broker=f"127.0.0.1:{self.nats.port}", leader="")


class Settings(Own, Case):
    def test_config_check_connects_and_explains_errors(self):
        for query, words in (("stream=S", None), ("stream=T", "has no stream T"), ("stream=S&user=x", None)):
            with self.subTest(query):
                args = ["config", "check", "--connect", "--consumer", "a", "--sink", self.nats.url("s.a", query)]
                done = self.outbox(*args, status=78 if words else 0)
                self.assertIn(words or "", done.stdout + done.stderr)

    def test_relay_warns_about_a_stream_that_may_lose_events(self):
        self.emit("a")
        done = self.drain(*self.to())
        self.assertIn("consumer=out stream S: one replica", done.stderr)

    def test_world_readable_secret_files_cause_a_warning(self):
        for name in ("password-file", "token-file", "creds-file", "nkey-file"):
            secret = self.path(name)
            secret.write_text("geheim\n")
            secret.chmod(0o644)
            conf = self.path("a.conf")
            conf.write_text(f"[consumer a]\nsink = nats://u@127.0.0.1:1/s?stream=S&{name}={secret}\n")
            conf.chmod(0o600)
            self.assertIn(f"{secret}: any user", self.outbox("status", "-c", conf).stderr)

    def test_documented_answer_table_matches_the_code(self):
        source = (ROOT / "src" / "sink" / "nats.c").read_text()
        rows = re.findall(r'\{(\d+), (?:NULL|"[^"]*"), SINK_(\w+), "(.*?)"\},', source)
        table = [(code.replace("-", "0"), status.upper(), meaning) for code, status, meaning in
                 (re.match(r"(\d{5}|-), (\w+): (.*)$", item).groups() for item in items(section(BROKERS, "### NATS")))]
        self.assertEqual(table, rows)


# ---- credentials, as `nsc` would make them ----

def encode(prefix, data):
    """encode is how NATS writes a key: a prefix, the key and a checksum, in base32."""
    raw, crc = bytes(prefix) + data, 0
    for byte in raw:
        crc ^= byte << 8
        for _ in range(8): crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        crc &= 0xffff
    return base64.b32encode(raw + crc.to_bytes(2, "little")).decode().rstrip("=")


class Key:
    KINDS = {"operator": 14 << 3, "account": 0, "user": 20 << 3}

    def __init__(self, kind):
        self.kind, self.secret, prefix = kind, os.urandom(32), self.KINDS[kind]
        self.public = encode([prefix], ed25519.public(self.secret))
        self.seed = encode([(18 << 3) | (prefix >> 5), (prefix & 31) << 3], self.secret)

    def token(self, subject, **claims):
        """token is a JWT about a subject, signed with this key."""
        part = lambda value: base64.urlsafe_b64encode(value if isinstance(value, bytes) else json.dumps(value).encode()).decode().rstrip("=")
        body = {"jti": os.urandom(8).hex(), "iat": int(time.time()), "iss": self.public, "name": "test", "sub": subject,
                "nats": {"version": 2, **claims}}
        text = part({"typ": "JWT", "alg": "ed25519-nkey"}) + "." + part(body)
        return text + "." + part(ed25519.sign(self.secret, text.encode()))


class Credentials(Case):
    def test_creds_file_logs_in_and_stays_secret(self):
        operator, system, account, user = Key("operator"), Key("account"), Key("account"), Key("user")
        no_limits = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer", "subs", "data", "payload", "conn", "leaf",
                                   "imports", "exports"), -1)
        as_account = operator.token(account.public, type="account", limits={**no_limits, "wildcards": True})
        as_system = operator.token(system.public, type="account", limits={**no_limits, "mem_storage": 0, "disk_storage": 0})
        as_user = account.token(user.public, type="user", subs=-1, data=-1, payload=-1)
        config = (f"operator: {operator.token(operator.public, type='operator')}\nresolver: MEMORY\n"
                  f"system_account: {system.public}\n"
                  f"resolver_preload: {{ {account.public}: {as_account}, {system.public}: {as_system} }}\n")
        creds = self.path("creds")
        creds.write_text(f"-----BEGIN NATS USER JWT-----\n{as_user}\n------END NATS USER JWT------\n\n"
                         f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n")
        creds.chmod(0o600)
        self.init()
        self.emit("a")
        nats = Nats(config)
        nats.ready = lambda: "Server is ready" in nats.log()  # our client has no credentials
        with nats:
            sink = lambda more: ["--consumer", "out", "--sink", nats.url("s", "stream=S&create=on" + more)]
            with self.relay(*sink("")) as relay:
                wait_until(lambda: "Authorization Violation" in relay.output())
            done = self.drain(*sink(f"&creds-file={creds}"))
            self.assertEqual(self.json("status")["consumers"][0]["delivered"], 1, done.stderr)
            self.assertNotIn(user.seed, done.stderr + done.stdout)


