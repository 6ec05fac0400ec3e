"""Webhooks to endpoints that misbehave: each failure has its fate, nothing is lost, keys keep their order."""
# sanitizers: soak
import socket
import threading
import time

from http_endpoint import Endpoint, answer
from scenario import CLAIMS, Numbers
from support import Case, wait_until

QUICK = "base=20ms,cap=50ms,attempts=1000,outage=0s"


class WebhookCase(Case):
    def setUp(self):
        super().setUp()
        self.init()

    def endpoint(self, behave=None):
        endpoint = Endpoint(behave).start()
        self.addCleanup(endpoint.stop)
        return endpoint

    def hook(self, endpoint, *more, retry=QUICK):
        return ["--consumer", "hook", "--sink", endpoint.url, "--retry", retry, *more]

    def number(self, *numbers, key="1"):
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": key, "payload": n} for n in numbers])

    def consumer(self):
        return self.json("consumers", "show", "hook")

    def wait_delivered(self, n, relay=None):
        def delivered():
            rows = self.sql("SELECT delivered FROM outbox_consumer WHERE name = 'hook'")
            return rows and rows[0][0] >= n
        wait_until(delivered, what=lambda: (self.consumer(), relay.output()[-3000:] if relay else ""))

    def attempts(self, seq=1):
        for delivery in self.json("events", "show", seq)["deliveries"]: return delivery["attempts"]

    def believed(self, endpoint):
        """The receiver's knowledge: payloads by the first request of each event that it answered."""
        seen, order = set(), []
        for request in endpoint.requests:
            if request.answered and request.id not in seen: order.append(int(request.body))
            if request.answered: seen.add(request.id)
        return order


class Away(WebhookCase):
    def test_events_wait_for_a_dead_endpoint_without_using_attempts(self):
        endpoint = self.endpoint()
        endpoint.stop()
        self.number(1, 2, 3)
        with self.relay(*self.hook(endpoint)) as relay:
            wait_until(lambda: "sink is down" in relay.output())
            self.assertEqual(self.attempts(), 0)
            self.assertIn("sink is down: http://127.0.0.1", self.consumer()["last_error"])
            endpoint.start()
            self.wait_delivered(3, relay)
            self.assertIn("sink is back", relay.output())
            self.assertEqual(self.believed(endpoint), [1, 2, 3])
            self.assertEqual({r.headers["outbox-attempt"] for r in endpoint.requests}, {"1"})

    def test_connection_closed_between_requests_is_not_a_failure(self):
        endpoint = self.endpoint()
        with self.relay(*self.hook(endpoint)) as relay:
            for n in range(1, 6):
                self.number(n)
                self.wait_delivered(n, relay)
                endpoint.hang_up()
            self.assertNotIn("failed", relay.output())
            self.assertNotIn("down", relay.output())
        self.assertEqual(len(endpoint.requests), 5)

    def test_endpoint_that_closes_after_every_response_works(self):
        endpoint = self.endpoint(lambda request: answer(200, close=True))
        self.number(*range(20))
        self.drain(*self.hook(endpoint))
        self.assertEqual(self.believed(endpoint), list(range(20)))


class Broken(Numbers, WebhookCase):
    """An endpoint or a relay that disappears during a delivery."""

    BATCH = 50

    def start(self):
        return self.relay(*self.hook(self.receiver, "--concurrency", "16", "--lease", "300ms", "--batch", self.BATCH,
                                     "--log-hold", "0s"))

    def got(self):
        """The receiver's knowledge: the requests that it answered."""
        return [(int(request.body), request.id) for request in list(self.receiver.requests) if request.answered]

    def test_endpoint_restarted_under_load_loses_nothing(self):
        """An endpoint that is restarted in the middle of its answers gets everything, in order, with repeats of the same
        events."""
        self.receiver = self.endpoint()
        self.send(600)
        with self.start() as relay:
            for count in (50, 200, 350):
                wait_until(lambda: len(self.receiver.requests) >= count, what=relay.output)
                self.receiver.stop()
                self.receiver.start()
                self.fault("endpoint restarted")
            self.heal(relay)
        self.reckon(bound=16 * 3)  # events in flight
        self.assertEqual(self.consumer()["dead"], 0)

    def test_relay_killed_midway_resends_events_with_the_same_ids(self):
        """An endpoint gets everything, in order, from the relay that takes over, with repeats of the same events."""
        def slow(request):
            time.sleep(0.005)
            return answer()
        self.receiver = self.endpoint(slow)
        self.send(100)
        relay = self.start()
        wait_until(lambda: len(self.receiver.requests) >= 20)
        relay.kill()
        self.fault("relay killed")
        with self.start() as relay:
            self.heal(relay)
            self.wait_let_go()
        self.reckon(bound=CLAIMS * self.BATCH)


class Limits(WebhookCase):
    def test_connection_that_is_never_accepted_times_out(self):
        # A full queue of one: further requests get no answer.
        with socket.socket() as full, socket.socket() as first, socket.socket() as second:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for sock in (first, second):
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            self.number(1)
            start = time.monotonic()
            with self.relay("--consumer", "hook", "--sink", f"http://127.0.0.1:{full.getsockname()[1]}/",
                            "--webhook-connect-timeout", "200ms") as relay:
                wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
                self.assertLess(time.monotonic() - start, 10)
                self.assertEqual(self.attempts(), 0)
                self.assertRegex(relay.output(), "sink is down: .*Timeout was reached")

    def test_stalled_transfer_times_out(self):
        done = threading.Event()
        self.addCleanup(done.set)

        def stall(request):
            yield b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
            done.wait(60)
        endpoint = self.endpoint(stall)
        self.number(1)
        start = time.monotonic()
        with self.relay(*self.hook(endpoint, "--webhook-idle-timeout", "1s")) as relay:
            wait_until(lambda: "failed, attempt 1" in relay.output(), timeout=20, what=relay.output)
            self.assertGreaterEqual(time.monotonic() - start, 0.9)
            endpoint.behave = lambda request: answer()
            self.wait_delivered(1, relay)

    def test_rate_limit_is_honoured(self):
        endpoint = self.endpoint()
        self.emit_many([{"type": "a", "payload": n} for n in range(60)])
        start = time.monotonic()  # the first request may be noted late, if this process has to wait for the processor
        self.drain(*self.hook(endpoint, "--webhook-rate", "50", "--concurrency", "20"))
        self.assertEqual(len(endpoint.requests), 60)
        self.assertGreaterEqual(endpoint.requests[-1].at - start, 0.98 * (60 - 6) / 50)


class Answers(WebhookCase):
    def failing_first(self, *misbehaved):
        """An endpoint that misbehaves these ways, one request each, and then is good."""
        left = list(misbehaved)
        return self.endpoint(lambda request: left.pop(0)(request) if left else answer())

    def test_late_response_counts_as_a_failed_attempt(self):
        done = threading.Event()
        self.addCleanup(done.set)

        def hang(request):
            done.wait(60)
            return None

        def drip(request):
            for byte in answer(200, body=b"x" * 1000):
                time.sleep(0.05)
                yield bytes([byte])
        endpoint = self.failing_first(hang, drip)
        self.number(1, 2)
        with self.relay(*self.hook(endpoint, "--timeout", "300ms")) as relay: self.wait_delivered(2, relay)
        self.assertGreaterEqual(relay.output().count("no complete response within 300ms"), 2)
        attempts = sorted(int(r.headers["outbox-attempt"]) for r in endpoint.requests if r.body == b"1")
        self.assertEqual(attempts, [*range(1, len(attempts) + 1)])

    def test_every_failure_counts_as_an_attempt_and_is_retried(self):
        ways = {
            "empty reply": lambda request: None,
            "HTTP 500: oh no": lambda request: answer(500, body=b"oh no"),
            "HTTP 404": lambda request: answer(404),
            "transfer closed": lambda request: iter_once(answer(200, {"Content-Length": "100"}, b"half")),
            "HTTP 302; redirects are not followed": lambda request: answer(302, {"Location": "http://10.0.0.1/"}),
            "HTTP/0.9": lambda request: iter_once(b"what?\r\n\r\n"),
        }

        def iter_once(data):
            yield data
            raise OSError("and hangs up")
        endpoint = self.failing_first(*ways.values())
        self.number(1, 2)
        with self.relay(*self.hook(endpoint)) as relay: self.wait_delivered(2, relay)
        log = relay.output()
        for said in ways: self.assertIn(said, log)
        self.assertEqual(log.count("failed, attempt"), len(ways))
        first = [r for r in endpoint.requests if r.body == b"1"]
        self.assertEqual(len({r.id for r in first}), 1)
        self.assertEqual([r.headers["outbox-attempt"] for r in first], [str(n + 1) for n in range(len(ways) + 1)])
        self.assertEqual([r.body for r in endpoint.requests][-2:], [b"1", b"2"])

    def test_4xx_makes_a_dead_letter_at_once_if_configured(self):
        endpoint = self.endpoint(lambda request: answer(422, body=b"bad total") if request.body == b"1" else answer())
        self.number(1, key="a")
        self.number(2, key="b")
        self.drain(*self.hook(endpoint, "--webhook-client-errors", "reject"))
        self.assertEqual(len(endpoint.requests), 2)
        self.assertIn("HTTP 422: bad total", self.outbox("dead", "list", "--consumer", "hook", "--json").stdout)
        self.assertEqual(self.consumer()["dead"], 1)

    def test_retry_after_is_honoured_without_using_attempts(self):
        endpoint = self.failing_first(lambda request: answer(429, {"Retry-After": "1"}),
                                      lambda request: answer(503, {"Retry-After": "1"}))
        self.number(1, 2)
        with self.relay(*self.hook(endpoint)) as relay: self.wait_delivered(2, relay)
        first, second, third, _ = endpoint.requests
        self.assertGreaterEqual(second.at - first.at, 0.99)
        self.assertGreaterEqual(third.at - second.at, 0.99)
        self.assertEqual({r.headers["outbox-attempt"] for r in endpoint.requests}, {"1"})
        self.assertIn("HTTP 429", relay.output())

    def test_410_pauses_the_consumer_and_is_reported(self):
        gone = {"is": True}
        endpoint = self.endpoint(lambda request: answer(410 if gone["is"] else 204))
        for key in range(50): self.number(key, key=str(key))
        with self.relay(*self.hook(endpoint, "--concurrency", "4")) as relay:
            wait_until(lambda: "paused: http://127.0.0.1" in relay.output(), what=relay.output)
            wait_until(lambda: self.consumer()["state"] == "paused" and self.consumer()["in_flight"] == 0,
                       what=lambda: (self.consumer(), relay.output()))
            self.assertIn("HTTP 410", self.consumer()["last_error"])
            asked = len(endpoint.requests)
            self.assertLess(asked, 20)
            self.number(99, key="late")
            gone["is"] = False
            self.assertEqual(len(endpoint.requests), asked)
            self.outbox("consumers", "resume", "hook")
            self.wait_delivered(51, relay)
            wait_until(lambda: not self.consumer()["last_error"], what=self.consumer)
        self.assertEqual(sorted(int(r.body) for r in endpoint.requests[asked:]), [*range(50), 99])
        self.assertEqual(relay.output().count("paused:"), 1)
        self.assertEqual({r.headers["outbox-attempt"] for r in endpoint.requests}, {"1"})

    def test_redirect_is_not_followed(self):
        inside = self.endpoint()
        endpoint = self.failing_first(lambda request: answer(307, {"Location": inside.url}),
                                      lambda request: answer(301, {"Location": "http://169.254.169.254/latest"}))
        self.number(1)
        self.drain(*self.hook(endpoint))
        self.assertEqual((inside.connections, len(endpoint.requests)), (0, 3))

    def test_endless_response_is_truncated_in_constant_memory(self):
        def endless(request):
            yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            while True: yield b"10000\r\n" + b"x" * 65536 + b"\r\n"
        endpoint = self.endpoint(endless)
        self.number(*range(30))
        with self.relay(*self.hook(endpoint)) as relay:
            self.wait_delivered(30, relay)
            self.assertNotIn("xxxx", relay.output())
        self.assertEqual([int(r.body) for r in endpoint.requests], list(range(30)))

    def test_name_resolving_to_an_internal_address_is_refused(self):
        inside = self.endpoint()
        url = inside.url.replace("127.0.0.1", "internal.localhost")
        self.number(1)
        with self.relay("--consumer", "hook", "--sink", url) as relay:
            wait_until(lambda: "will not connect to" in relay.output(), what=relay.output)
            self.assertEqual((inside.connections, self.attempts()), (0, 0))
        self.drain("--consumer", "hook", "--sink", url, "--webhook-allow", "127.0.0.0/8,::1")
        self.assertEqual(len(inside.requests), 1)

    def test_one_dead_endpoint_does_not_delay_the_other_nine(self):
        endpoints = [self.endpoint() for _ in range(10)]
        endpoints[3].stop()
        args = []
        for i, endpoint in enumerate(endpoints): args += ["--consumer", f"c{i}", "--sink", endpoint.url]
        with self.relay(*args) as relay:
            self.number(*range(200))
            others = [e for i, e in enumerate(endpoints) if i != 3]
            wait_until(lambda: all(len(e.requests) == 200 for e in others), what=relay.output)
            self.assertTrue(all(self.believed(e) == list(range(200)) for e in others))
