"""Webhooks through the CLI: TLS, HTTP/2, signatures, secrets, and the test receiver `webhook listen`."""
import base64
import contextlib
import datetime
import hashlib
import hmac
import importlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import unittest

import ed25519
import servers
from http_endpoint import Endpoint, answer, certificates, server_context
from support import BIN, TIMEOUT, Case, wait_until

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes....").decode()
OTHER = "whsec_" + base64.b64encode(b"another one of thirty-two bytes.").decode()
SEED = b"a seed of exactly thirty-two byt"
PRIVATE = "whsk_" + base64.b64encode(SEED + ed25519.public(SEED)).decode()
PUBLIC = "whpk_" + base64.b64encode(ed25519.public(SEED)).decode()
# Where ./test puts the official libraries of the specification.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "outbox-tests"


def official_python():
    """official_python returns the official library's class for Python, or None."""
    sys.path.append(str(CACHE / "webhooks" / "python"))
    try:
        return importlib.import_module("standardwebhooks").Webhook
    except ImportError:
        return None
    finally:
        sys.path.pop()


def official_node(code, *args):
    """official_node runs a program with node's official library."""
    env = {**os.environ, "NODE_PATH": str(CACHE / "webhooks" / "node_modules")}
    return subprocess.run(["node", "-e", "const {Webhook} = require('standardwebhooks');" + code, *args], env=env,
                          capture_output=True, text=True, timeout=60)


def node_has_it():
    with contextlib.suppress(FileNotFoundError): return official_node("").returncode == 0
    return False


WEBHOOK = official_python()
NODE = node_has_it()


class WebhookCase(Case):
    def setUp(self):
        super().setUp()
        self.init()
        self.secrets = self.path("secrets")
        self.secrets.write_text(SECRET + "\n")

    def listen(self, *args, **kw):
        """listen starts the receiver on a free port; it returns the receiver and its URL."""
        child = self.spawn(BIN, "webhook", "listen", "--port", "0", *args, **kw)
        found = wait_until(lambda: re.search(r"listening on (\S+)", child.output()) or not child.running(),
                           what=child.output)
        return child, found[1] + "hook"

    def signature(self, request, secret=SECRET):
        key = base64.b64decode(secret[6:])
        text = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
        return "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()


class Sending(WebhookCase):
    def test_event_arrives_as_a_signed_cloudevent(self):
        id = self.emit("order.paid", "order/42", {"total": 99}, "--version", "7", "--header",
                       "traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "--header", "region=eu")
        with Endpoint() as endpoint:
            self.drain("--consumer", "hook", "--sink", endpoint.url + "?a=b&secret=1", "--webhook-secret-file",
                       self.secrets, "--webhook-source", "https://shop.example/orders")
        request, = endpoint.requests
        self.assertEqual((request.method, request.path), ("POST", "/hook?a=b&secret=1"))
        want = {"content-type": "application/json", "webhook-id": id, "ce-id": id, "ce-specversion": "1.0",
                "ce-type": "order.paid", "ce-source": "https://shop.example/orders", "ce-subject": "order/42",
                "ce-aggregateversion": "7", "ce-region": "eu", "outbox-attempt": "1",
                "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
        self.assertEqual({name: request.headers.get(name) for name in want}, want)
        self.assertEqual(json.loads(request.body), {"total": 99})
        self.assertLess(abs(int(request.headers["webhook-timestamp"]) - time.time()), 60)
        self.assertEqual(request.headers["webhook-signature"], self.signature(request))

    def test_each_secret_adds_a_signature(self):
        self.emit("a", payload=1)
        with Endpoint() as endpoint:
            self.drain("--consumer", "hook", "--sink", endpoint.url, "--webhook-secret-env", "HOOK_SECRETS",
                       "--webhook-mode", "structured", env={"HOOK_SECRETS": f"{OTHER} {SECRET}"})
        request, = endpoint.requests
        self.assertEqual(request.headers["webhook-signature"].split(),
                         [self.signature(request, OTHER), self.signature(request)])
        self.assertEqual(json.loads(request.body)["data"], 1)
        self.assertEqual(request.headers["content-type"], "application/cloudevents+json")

    def test_odd_bytes_cannot_inject_headers(self):
        # Control characters in keys are refused at emit; contract/test_sink_http.c sends them all the same.
        self.emit_many([{"type": "a", "aggregate_type": "k\" X-Evil: 1", "aggregate_id": "%0D%0A é\U0001f389", "payload": 1,
                         "headers": {"corr": "x\r\nX-Evil: 2", "X-Evil": "3", "x evil": "4", "webhook-id": "5"}}])
        with Endpoint() as endpoint:
            self.drain("--consumer", "hook", "--sink", endpoint.url)
        request, = endpoint.requests
        self.assertFalse([name for name in request.headers if "evil" in name])
        self.assertEqual(request.headers["ce-subject"], "k%22%20X-Evil:%201/%250D%250A%20%C3%A9%F0%9F%8E%89")
        self.assertEqual(request.headers["ce-corr"], "x%0D%0AX-Evil:%202")
        self.assertNotEqual(request.headers["webhook-id"], "5")
        self.assertEqual(len(endpoint.requests), 1)

    def test_largest_payload_arrives_byte_for_byte(self):
        payload = json.dumps("é" * (500 * 1024), ensure_ascii=False)
        self.outbox("emit", "big", "--payload", "-", input=payload)
        with Endpoint() as endpoint:
            self.drain("--consumer", "hook", "--sink", endpoint.url)
        self.assertEqual(endpoint.requests[0].body, payload.encode())
        self.assertNotIn("expect", endpoint.requests[0].headers)

    def test_keys_keep_their_order_with_hundreds_in_flight(self):
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(n % 40), "payload": n}
                        for n in range(800)])
        with Endpoint() as endpoint:
            self.drain("--consumer", "hook", "--sink", endpoint.url, "--concurrency", "300")
        order = [int(r.body) for r in endpoint.requests]
        self.assertEqual(sorted(order), list(range(800)))
        for key in range(40):
            mine = [n for n in order if n % 40 == key]
            self.assertEqual(mine, sorted(mine))


class Asymmetric(WebhookCase):
    """v1a. The official libraries know only v1, so a separate implementation checks ed25519, tests/lib/ed25519.py; the vector
    of another implementation is in unit/test_signature.c."""

    def sent(self, text):
        """sent returns the requests an endpoint gets, signed with these keys."""
        self.secrets.write_text(text)
        self.emit("order.paid", "order/42", {"total": 99, "é": "ü"})
        with Endpoint() as endpoint:
            self.drain("--consumer", "hook", "--sink", endpoint.url, "--webhook-secret-file", self.secrets)
        request, = endpoint.requests
        return request

    def content(self, request):
        return f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body

    def check(self, request, keys, status=0):
        self.path("keys").write_text(keys)
        return self.outbox("webhook", "verify", "--secret-file", self.path("keys"), "--id", request.headers["webhook-id"], "--timestamp",
                           request.headers["webhook-timestamp"], "--signature", request.headers["webhook-signature"],
                           input=request.body, status=status).stdout

    def test_private_key_and_secret_both_sign(self):
        request = self.sent(f"{SECRET}\n# the pair\n{PRIVATE}\n")
        first, second = request.headers["webhook-signature"].split(" ")
        self.assertEqual(first, self.signature(request))
        self.assertTrue(second.startswith("v1a,"))
        signature = base64.b64decode(second[4:])
        self.assertTrue(ed25519.verify(ed25519.public(SEED), self.content(request), signature))
        self.assertFalse(ed25519.verify(ed25519.public(SEED), self.content(request) + b" ", signature))
        for keys in (PUBLIC, PRIVATE, SECRET, f"{OTHER}\n{PUBLIC}"): self.assertEqual(self.check(request, keys), "genuine\n")
        request.body += b" "
        for keys in (PUBLIC, SECRET): self.assertIn("not genuine", self.check(request, keys, status=1))

    def test_signatures_of_other_libraries_are_accepted(self):
        body, now = b'{"n":1}', int(time.time())
        signature = ed25519.sign(SEED, f"msg_1.{now}.".encode() + body)
        args = ["webhook", "verify", "--secret-env", "KEYS", "--id", "msg_1", "--timestamp", now, "--signature",
                "v1,AAAA v1a," + base64.b64encode(signature).decode()]
        self.assertEqual(self.outbox(*args, input=body, env={"KEYS": PUBLIC}).stdout, "genuine\n")
        self.assertIn("not genuine", self.outbox(*args, input=body, env={"KEYS": SECRET}, status=1).stdout)
        other = "whpk_" + base64.b64encode(ed25519.public(SEED[::-1])).decode()
        self.assertIn("not genuine", self.outbox(*args, input=body, env={"KEYS": other}, status=1).stdout)

    def test_key_pairs_are_rotated_without_a_gap(self):
        fresh = self.outbox("webhook", "secret", "--asymmetric").stdout
        private, comment = fresh.splitlines()
        self.assertRegex(private, r"^whsk_[A-Za-z0-9+/]{86}==$")
        public = comment.removeprefix("# for receivers: ")
        self.assertRegex(public, r"^whpk_[A-Za-z0-9+/]{43}=$")
        seed, half = base64.b64decode(private[5:])[:32], base64.b64decode(private[5:])[32:]
        self.assertEqual((ed25519.public(seed), base64.b64encode(half).decode()), (half, public[5:]))
        request = self.sent(fresh + PRIVATE)
        for keys in (public, PUBLIC): self.assertEqual(self.check(request, keys), "genuine\n")
        said = self.outbox("webhook", "public", "--secret-file", self.secrets).stdout
        self.assertEqual(said.split(), [public, PUBLIC])
        self.assertNotEqual(fresh, self.outbox("webhook", "secret", "--asymmetric").stdout)

    def test_unusable_keys_are_refused_and_not_echoed(self):
        bad = "whsk_" + base64.b64encode(SEED + SEED).decode()
        for key, why in ((PUBLIC, "is a public key, which cannot sign"), (bad, "is not whsk_ and base64 of an ed25519 private key")):
            self.secrets.write_text(f"{SECRET}\n{key}\n")
            done = self.outbox("relay", "--consumer", "h", "--sink", "https://example.com/", "--webhook-secret-file", self.secrets,
                               status=None)
            self.assertIn(f"secret 2 {why}", done.stderr)
            self.assertNotIn(key[5:20], done.stderr)
        said = self.outbox("relay", "--consumer", "h", "--sink", "https://example.com/", "--webhook-secret-env", "whsk_abc", status=64)
        self.assertIn("the name of an environment variable", said.stderr)

    @unittest.skipUnless(WEBHOOK, "the Python module standardwebhooks is not installed; ./test prints why")
    def test_signatures_agree_with_the_official_python_library(self):
        request = self.sent(f"{PRIVATE}\n{OTHER}\n{SECRET}\n")
        headers = {name: request.headers[name] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
        for secret in (SECRET, OTHER):
            self.assertEqual(WEBHOOK(secret).verify(request.body, headers), {"total": 99, "é": "ü"})
        with self.assertRaises(Exception): WEBHOOK(SECRET).verify(request.body + b" ", headers)
        with self.assertRaises(Exception): WEBHOOK("whsec_" + "A" * 32).verify(request.body, headers)
        now = datetime.datetime.now(tz=datetime.timezone.utc)
        request.headers.update({"webhook-id": "msg_theirs", "webhook-timestamp": str(int(now.timestamp()))})
        request.headers["webhook-signature"] = WEBHOOK(SECRET).sign("msg_theirs", now, request.body.decode())
        self.assertEqual(self.check(request, SECRET), "genuine\n")
        self.assertIn("not genuine", self.check(request, OTHER, status=1))

    @unittest.skipUnless(NODE, "the node module standardwebhooks is not installed; ./test prints why")
    def test_signatures_agree_with_the_official_node_library(self):
        request = self.sent(f"{PRIVATE}\n{OTHER}\n{SECRET}\n")
        headers = {name: request.headers[name] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
        code = """const [secret, body, headers] = process.argv.slice(1);
                  console.log(JSON.stringify(new Webhook(secret).verify(body, JSON.parse(headers))))"""
        for secret in (SECRET, OTHER):
            done = official_node(code, secret, request.body.decode(), json.dumps(headers))
            self.assertEqual((done.returncode, json.loads(done.stdout or "null")), (0, {"total": 99, "é": "ü"}), done.stderr)
        self.assertNotEqual(official_node(code, SECRET, request.body.decode() + " ", json.dumps(headers)).returncode, 0)
        now = int(time.time())
        code = """const [secret, at, body] = process.argv.slice(1);
                  console.log(new Webhook(secret).sign("msg_theirs", new Date(at * 1000), body))"""
        signed = official_node(code, SECRET, str(now), request.body.decode()).stdout.strip()
        request.headers.update({"webhook-id": "msg_theirs", "webhook-timestamp": str(now), "webhook-signature": signed})
        self.assertEqual(self.check(request, SECRET), "genuine\n")
        self.assertIn("not genuine", self.check(request, OTHER, status=1))


class Encrypted(WebhookCase):
    def test_private_authority_is_trusted_only_when_named(self):
        authority, certificate, key = certificates(self.dir)
        self.emit("a", payload=1)
        with Endpoint(tls=server_context(certificate, key)) as endpoint:
            with self.relay("--consumer", "hook", "--sink", endpoint.url) as relay:
                wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
                self.assertIn("certificate", relay.output())
            self.assertEqual(endpoint.requests, [])
            self.drain("--consumer", "hook", "--sink", endpoint.url, "--webhook-ca-file", authority)
            self.assertEqual(len(endpoint.requests), 1)

    @unittest.skipUnless(shutil.which("nghttpd"), "nghttpd (nghttp2-server) is not installed")
    def test_http_2_carries_many_events_over_one_connection(self):
        authority, certificate, key = certificates(self.dir)
        for path in (self.dir, certificate, key): path.chmod(0o755)
        (self.dir / "hook").write_text("ok")
        port = servers.free_port()
        peer = self.spawn(*servers.unprivileged("TERM"), "nghttpd", "-v", "-a", "127.0.0.1", "-d", self.dir,
                          port, key, certificate)
        wait_until(lambda: "listen" in peer.output().lower(), what=peer.output)
        self.emit_many([{"type": "a", "payload": n} for n in range(100)])
        self.drain("--consumer", "hook", "--sink", f"https://localhost:{port}/hook", "--webhook-ca-file", authority,
                   "--concurrency", "50", "--order", "none")
        wait_until(lambda: peer.output().count("ce-type: a") >= 100, what=peer.output)
        self.assertEqual(peer.output().count("ce-type: a"), 100)
        self.assertEqual(len(set(re.findall(r"\[id=(\d+)\]", peer.output()))), 1)


class Secrets(WebhookCase):
    def test_no_secret_is_shown(self):
        headers = self.path("headers")
        headers.write_text("Authorization: Bearer s3cr3t-t0k3n\n")
        config = self.path("outbox.conf")
        self.emit("a", payload=1)
        # The endpoint repeats its input, as debug pages do.
        with Endpoint(lambda r: answer(500, body=r.headers["authorization"].encode())) as endpoint:
            config.write_text(f"[consumer hook]\nsink = {endpoint.url}?token=t0ken-in-url\n"
                              f"webhook-secret-file = {self.secrets}\nwebhook-secret-env = HOOK_SECRETS\n"
                              f"webhook-header-file = {headers}\nwebhook-proxy = env\nretry = base=1ms,attempts=2,outage=0s\n")
            env = {"HOOK_SECRETS": OTHER}
            with self.relay("-c", config, "--log-level", "debug", env=env) as relay:
                argv = pathlib.Path(f"/proc/{relay.pid}/cmdline").read_text()
                wait_until(lambda: "dead letter" in relay.output(), what=relay.output)
            endpoint.stop()
            self.emit("a", payload=1)
            with self.relay("-c", config, "--log-level", "debug", env=env) as away:
                wait_until(lambda: "sink is down" in away.output(), what=away.output)
        said = [argv, relay.output(), away.output(), self.outbox("config", "show", "-c", config, env=env).stdout,
                self.outbox("config", "show", "--json", "-c", config, env=env).stdout, self.outbox("status").stdout,
                self.outbox("dead", "list", "--json").stdout, self.outbox("consumers", "show", "hook").stdout]
        self.assertEqual(endpoint.requests[0].headers["authorization"], "Bearer s3cr3t-t0k3n")
        self.assertEqual(len(endpoint.requests[0].headers["webhook-signature"].split()), 2)
        for text in said:
            for secret in ("s3cr3t-t0k3n", "t0ken-in-url", SECRET[6:20], OTHER[6:20]): self.assertNotIn(secret, text)

    def test_secret_given_in_a_visible_place_is_refused(self):
        for args in (["--webhook-secret-env", SECRET], ["--webhook-secret-env", "no-name"]):
            said = self.outbox("relay", "--consumer", "hook", "--sink", "https://example.com/", *args, status=64).stderr
            self.assertIn("the name of an environment variable", said)
            self.assertNotIn(SECRET[6:], said)
        said = self.outbox("relay", "--consumer", "hook", "--sink", "https://u:s3cr3t@example.com/", status=None).stderr
        self.assertIn("webhook-header-file", said)
        self.assertNotIn("s3cr3t", said)

    def test_bad_settings_are_refused_before_anything_is_sent(self):
        for args, why in ((["--webhook-mode", "batch"], "\"batch\" is not binary or structured"),
                          (["--webhook-http", "3"], "\"3\" is not auto, 1.1 or 2"),
                          (["--webhook-client-errors", "ignore"], "\"ignore\" is not retry or reject"),
                          (["--webhook-allow", "10.0.0.1/8"], "bits set after the first 8"),
                          (["--webhook-rate", "-1"], "-1"),
                          (["--webhook-source", "a b"], "character 2"),
                          (["--webhook-proxy", "proxy:3128"], "http://HOST:PORT")):
            said = self.outbox("config", "check", "--consumer", "h", "--sink", "https://example.com/", *args, status=64)
            self.assertIn(why, said.stderr)
        for args, why in ((["--webhook-secret-file", "missing"], "missing: could not read the secrets"),
                          (["--webhook-ca-file", "missing"], "missing: could not read the certificates")):
            said = self.outbox("relay", "--consumer", "h", "--sink", "https://example.com/", *args, status=None)
            self.assertIn(why, said.stderr)


class Listening(WebhookCase):
    def test_listen_prints_and_verifies_relay_requests(self):
        child, url = self.listen("--verify", self.secrets)
        id = self.emit("order.paid", "order/42", {"total": 99})
        self.drain("--consumer", "good", "--sink", url, "--webhook-secret-file", self.secrets)
        wait_until(lambda: "genuine" in child.output(), what=child.output)
        self.assertRegex(child.output(), rf"POST /hook order.paid order/42 {id} -> 204, genuine\n  {{\"total\": 99}}")
        self.drain("--consumer", "unsigned", "--sink", url, "--retry", "base=1ms,attempts=1,outage=0s")
        wait_until(lambda: "-> 401, no webhook-signature" in child.output(), what=child.output)
        self.path("other").write_text(OTHER)
        self.drain("--consumer", "forged", "--sink", url, "--retry", "base=1ms,attempts=1,outage=0s", "--webhook-secret-file",
                   self.path("other"))
        wait_until(lambda: "-> 401, no signature was created with one of our secrets" in child.output(), what=child.output)
        child.stop()

    def test_listen_answers_as_configured(self):
        child, url = self.listen("--json", "--status", "503", "--retry-after", "1", "--delay", "300ms", "--count", "1")
        self.emit("a", payload={"é": "\u0007"})
        start = time.monotonic()
        with self.relay("--consumer", "hook", "--sink", url) as relay:
            wait_until(lambda: "HTTP 503" in relay.output(), what=relay.output)
            self.assertGreaterEqual(time.monotonic() - start, 0.3)
            child.wait(0)
        line = json.loads(child.output().splitlines()[1])
        self.assertEqual((line["request"], line["status"], line["headers"]["ce-type"]), ("POST /hook", 503, "a"))
        self.assertEqual(json.loads(line["body"]), {"é": "\u0007"})

    def post(self, url, *headers, body=b"{}", length=None):
        """post sends exactly these bytes and returns the status; 0 if the connection was closed."""
        connection = self.dial(url)
        head = ["POST /hook HTTP/1.1", "Host: localhost", f"Content-Length: {len(body) if length is None else length}", *headers, "", ""]
        with contextlib.suppress(ConnectionError):
            connection.sendall("\r\n".join(head).encode() + body)
            return self.status(connection)
        return 0

    def dial(self, url):
        connection = socket.create_connection(("127.0.0.1", int(re.search(r":(\d+)/", url)[1])), timeout=30)
        self.addCleanup(connection.close)
        return connection

    def status(self, connection):
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(65536)
            return int(answer.split()[1]) if answer else 0
        return 0

    def signed(self, id="msg_1", at=None, body=b"{}", secret=SECRET):
        at = str(int(time.time()) if at is None else at)
        made = hmac.new(base64.b64decode(secret[6:]), f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
        return [f"webhook-id: {id}", f"webhook-timestamp: {at}", "webhook-signature: v1," + base64.b64encode(made).decode()]

    def test_timestamp_must_be_whole_seconds_within_five_minutes(self):
        child, url = self.listen("--verify", self.secrets)
        now = int(time.time())
        self.assertEqual(self.post(url, *self.signed()), 204)
        for at in (f"{now}xyz", f"{now} 1", f"+{now}", f"0{now}", f"{now}.0", f"{now}e0", "", "-1", "0", "9" * 30, hex(now)):
            self.assertEqual(self.post(url, *self.signed("msg_2", at)), 401, at)
        self.assertIn("webhook-timestamp is not a number of seconds", child.output())
        for at in (now - 330, now + 330): self.assertEqual(self.post(url, *self.signed("msg_3", at)), 401)
        for at in (now - 270, now + 270): self.assertEqual(self.post(url, *self.signed(f"msg_{at}", at)), 204)
        child.stop()

    def test_replay_is_refused_and_a_repeat_is_reported(self):
        child, url = self.listen("--verify", self.secrets)
        now = int(time.time())
        self.assertEqual([self.post(url, *self.signed("a", now - 9)) for _ in range(3)], [204, 409, 409])
        self.assertEqual(self.post(url, *self.signed("b", now - 9)), 204)
        self.assertEqual([self.post(url, *self.signed("a", now - 5)) for _ in range(2)], [204, 409])
        self.assertEqual(self.post(url, *self.signed("a", now - 9)), 409)
        self.assertIn("-> 204, genuine, but a repeat", child.output())
        self.assertIn("-> 409, a replay", child.output())
        child.stop()
        # An unaccepted message is not remembered: the sender must be able to try again.
        child, url = self.listen("--verify", self.secrets, "--status", "503")
        self.assertEqual([self.post(url, *self.signed("a", now)) for _ in range(2)], [503, 503])
        child.stop()

    def test_duplicate_headers_fail_verification(self):
        child, url = self.listen("--verify", self.secrets)
        good, other = self.signed("a"), self.signed("a", secret=OTHER)
        for more in ("webhook-id: b", "Webhook-Id: a", "webhook-timestamp: 1", f"WEBHOOK-TIMESTAMP: {int(time.time())}"):
            self.assertEqual(self.post(url, *good, more), 401, more)
        self.assertEqual(self.post(url, *other), 401)
        self.assertEqual(self.post(url, *other, *[good[2]] * 2), 204, "one valid signature is enough")
        self.assertEqual(self.post(url, *self.signed("a" * 2000)), 401)
        self.assertEqual(self.post(url, good[0], good[2]), 401)
        flood = "webhook-signature: " + " ".join("v1," + "A" * 43 + "=" for _ in range(200))
        self.assertEqual(self.post(url, *good[:2], flood), 401)
        child.stop()

    def test_binary_body_is_fast_and_never_reaches_a_terminal(self):
        child, url = self.listen()
        self.assertEqual(self.post(url, body=b"\xff" * (4 << 20)), 204)
        with self.dial(url) as sender:
            sender.sendall(b"POST /hook HTTP/1.1\r\nHost: localhost\r\nce-type: \xc2\x9b2J\xff\r\nContent-Length: 14\r\n\r\n"
                           b"\x1b\xc2\x9b\xe2\x80\xae\xc3\xa9\xff well")
            sender.settimeout(60)
            self.assertIn(b" 204 ", sender.recv(1000))
        said = child.log.read_bytes()
        self.assertIn(" \\u009b2J\\xff -> 204\n  ??\u00e9? well\n".encode(), said)
        self.assertFalse(re.search(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80\xae|\xff", said))
        child.stop()
        child, url = self.listen("--json")
        with self.dial(url) as sender:
            sender.sendall(b"POST /hook HTTP/1.1\r\nHost: localhost\r\nX-\xff\"\\: \xff\r\nContent-Length: 1\r\n\r\n\xff")
            sender.settimeout(60)
            self.assertIn(b" 204 ", sender.recv(1000))
        document = json.loads(child.output().splitlines()[-1])
        self.assertEqual((document["body"], document["headers"]['X-?"\\']), (None, None))
        child.stop()

    def test_unfinished_uploads_are_bounded_and_dropped(self):
        child, url = self.listen("--max-body", "1MiB", "--request-timeout", "2s", "--verify", self.secrets)
        self.assertEqual(self.post(url, body=b"", length=1024 * 1024 + 1), 413, "refused before it is sent")
        head = b"POST /hook HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        piece = b"f0000\r\n" + b"x" * 0xf0000 + b"\r\n"
        greedy = self.dial(url)
        greedy.sendall(head + piece + piece + b"0\r\n\r\n")
        self.assertEqual(self.status(greedy), 413)
        # Uploads in progress are at most twice the largest: once it has read two of these there is no room for another.
        held = []
        def is_full():
            held.append(self.dial(url))
            held[-1].sendall(head + piece)
            time.sleep(0.05)  # so that it is read, and not together with the next
            more = self.dial(url)
            more.sendall(head + piece + b"0\r\n\r\n")
            return self.status(more) == 503
        wait_until(is_full, what="one upload too many")
        self.assertEqual({self.status(connection) for connection in held}, {0}, "their time limit has passed")
        self.assertEqual(self.post(url, *self.signed()), 204)
        child.stop()

    def test_half_closed_connection_is_dropped_at_once(self):
        """Connections closed at one end, in the middle of a request or behind it, do not keep their place until the timeout;
        one that waits for an answer gets it first."""
        child, url = self.listen("--delay", "20ms")
        post = b"POST /hook HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n"
        for said, statuses in ((b"POST / HT", []), (post, []), (post + b"ab", []), (post + b"abcde", [204]), (2 * (post + b"abcde"), [204, 204])):
            for _ in range(5):
                connection = self.dial(url)
                connection.settimeout(TIMEOUT)
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                answer = b""
                while more := connection.recv(65536): answer += more
                self.assertEqual([int(line.split()[1]) for line in answer.splitlines() if line.startswith(b"HTTP/")], statuses, said)
                connection.close()
        self.assertEqual(self.post(url), 204)
        child.stop()

    def test_public_keys_verify_requests_of_a_relay(self):
        self.path("public").write_text(PUBLIC)
        self.secrets.write_text(PRIVATE)
        child, url = self.listen("--verify", self.path("public"))
        self.emit("a", payload=1)
        self.drain("--consumer", "good", "--sink", url, "--webhook-secret-file", self.secrets)
        self.assertIn("-> 204, genuine\n", child.output())
        child.stop()

    def test_commands_sign_and_verify_as_the_specification_does(self):
        body = b'{"test": 2432232314}'
        self.secrets.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
        common = ["--secret-file", self.secrets, "--id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "--timestamp", "1614265330"]
        said = self.outbox("webhook", "sign", *common, input=body).stdout
        signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="  # as the specification defines it
        self.assertEqual(said.splitlines(), ["webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp: 1614265330",
                                             f"webhook-signature: {signature}"])
        verify = ["webhook", "verify", *common, "--signature", signature]
        self.assertIn("more than 5 minutes old", self.outbox(*verify, input=body, status=1).stdout)
        self.assertEqual(self.outbox(*verify, "--any-time", input=body).stdout, "genuine\n")
        self.assertIn("not genuine", self.outbox(*verify, "--any-time", input=body + b" ", status=1).stdout)
        secret = self.outbox("webhook", "secret").stdout
        self.assertRegex(secret, r"^whsec_[A-Za-z0-9+/]{43}=\n$")
        self.assertIn("--secret-file", self.outbox("webhook", "sign", "--id", "x", status=64).stderr)

    def test_port_in_use_is_reported(self):
        child, url = self.listen()
        port = re.search(r":(\d+)/", url)[1]
        said = self.outbox("webhook", "listen", "--port", port, status=69).stderr
        self.assertIn(f"could not listen on 127.0.0.1 port {port}", said)
        child.stop()
