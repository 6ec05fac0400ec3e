"""Webhooks through the CLI: TLS, HTTP/2, signatures, secrets, and the receiver that people try things with."""
import base64
import hashlib
import hmac
import json
import pathlib
import re
import shutil
import time
import unittest

import servers
from endpoint import Endpoint, answer, certificates, server_context
from support import BIN, Case, wait_until

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes....").decode()
OTHER = "whsec_" + base64.b64encode(b"another one of thirty-two bytes.").decode()


class WebhookCase(Case):
    def setUp(self):
        super().setUp()
        self.outbox("init")
        self.secrets = self.path("secrets")
        self.secrets.write_text(SECRET + "\n")

    def listen(self, *args, **kw):
        """listen starts the receiver on a free port; gives it and its URL."""
        child = self.spawn(BIN, "webhook", "listen", "--port", "0", *args, **kw)
        found = wait_until(lambda: re.search(r"listening on (\S+)", child.output()) or not child.running(),
                           what=child.output)
        return child, found[1] + "hook"

    def signature(self, request, secret=SECRET):
        key = base64.b64decode(secret[6:])
        text = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
        return "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()


class Sending(WebhookCase):
    def test_an_event_arrives_as_a_signed_cloudevent(self):
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

    def test_two_secrets_make_two_signatures(self):
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

    def test_the_largest_payload_arrives_byte_for_byte(self):
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


class Encrypted(WebhookCase):
    def test_a_private_authority_is_trusted_only_when_named(self):
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
    def test_http_2_carries_many_over_one_connection(self):
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
        self.assertEqual(peer.output().count("ce-type: a"), 100)
        self.assertEqual(len(set(re.findall(r"\[id=(\d+)\]", peer.output()))), 1)


class Secrets(WebhookCase):
    def test_secrets_show_up_nowhere(self):
        headers = self.path("headers")
        headers.write_text("Authorization: Bearer s3cr3t-t0k3n\n")
        config = self.path("outbox.conf")
        self.emit("a", payload=1)
        # It repeats what it was told, as debug pages do.
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

    def test_a_secret_given_where_it_would_show_is_refused(self):
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
                          (["--webhook-allow", "10.0.0.1/8"], "bits set behind its first 8"),
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
    def test_it_prints_and_verifies_what_a_relay_sends(self):
        child, url = self.listen("--verify", self.secrets)
        id = self.emit("order.paid", "order/42", {"total": 99})
        self.drain("--consumer", "good", "--sink", url, "--webhook-secret-file", self.secrets)
        wait_until(lambda: "genuine" in child.output(), what=child.output)
        self.assertRegex(child.output(), rf"POST /hook order.paid order/42 {id} -> 204, genuine\n  {{\"total\": 99}}")
        self.drain("--consumer", "unsigned", "--sink", url, "--retry", "base=1ms,attempts=1,outage=0s")
        self.assertIn("-> 401, no webhook-signature", child.output())
        self.path("other").write_text(OTHER)
        self.drain("--consumer", "forged", "--sink", url, "--retry", "base=1ms,attempts=1,outage=0s", "--webhook-secret-file",
                   self.path("other"))
        self.assertIn("-> 401, no signature of it was made with a secret of ours", child.output())
        child.stop()

    def test_it_answers_as_told(self):
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

    def test_sign_and_verify_by_hand(self):
        body = b'{"test": 2432232314}'
        self.secrets.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
        common = ["--secret-file", self.secrets, "--id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "--timestamp", "1614265330"]
        said = self.outbox("webhook", "sign", *common, input=body).stdout
        signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="  # as the specification has it
        self.assertEqual(said.splitlines(), ["webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp: 1614265330",
                                             f"webhook-signature: {signature}"])
        verify = ["webhook", "verify", *common, "--signature", signature]
        self.assertIn("too old", self.outbox(*verify, input=body, status=1).stdout)
        self.assertEqual(self.outbox(*verify, "--any-time", input=body).stdout, "genuine\n")
        self.assertIn("not genuine", self.outbox(*verify, "--any-time", input=body + b" ", status=1).stdout)
        secret = self.outbox("webhook", "secret").stdout
        self.assertRegex(secret, r"^whsec_[A-Za-z0-9+/]{43}=\n$")
        self.assertIn("--secret-file", self.outbox("webhook", "sign", "--id", "x", status=64).stderr)

    def test_a_port_in_use_is_said(self):
        child, url = self.listen()
        port = re.search(r":(\d+)/", url)[1]
        said = self.outbox("webhook", "listen", "--port", port, status=69).stderr
        self.assertIn(f"could not listen on 127.0.0.1 port {port}", said)
        child.stop()
