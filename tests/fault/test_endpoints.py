"""Endpoints that change while a relay delivers to them: certificates that are renewed, replaced or expire, and HTTP/2
connections closed by GOAWAY. Nothing is lost, keys keep their order, and no attempt is counted unless an event is at fault."""
# build: plain
# quick: no
from checker import COMMITTED, Fact
from http_endpoint import Endpoint, certificates, server_context
from http2_endpoint import Http2
from scenario import Numbers
from support import SOAK, Case, wait_until

QUICK = "base=20ms,cap=50ms,attempts=5,outage=0s"


class Delivered(Numbers, Case):
    """A relay with one webhook, none of whose events may be blamed."""

    CONCURRENCY = 16

    def setUp(self):
        super().setUp()
        self.init()

    def start(self, url, *more):
        return self.relay("--consumer", "out", "--sink", url, "--retry", QUICK, "--concurrency", self.CONCURRENCY, "--log-hold", "0s", *more)

    def blameless(self, relay):
        self.assertNotIn("failed, attempt", relay.output())
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])


class Certificates(Delivered):
    """An endpoint over TLS whose certificate is another one from one connection to the next."""

    def setUp(self):
        super().setUp()
        self.authority, first, key = self.made("first")
        self.receiver = Endpoint(tls=server_context(first, key)).start()
        self.addCleanup(self.receiver.stop)

    def made(self, name, **how):
        folder = self.path(name)
        folder.mkdir()
        return certificates(folder, **how)

    def got(self):
        return [(int(request.body), request.id) for request in list(self.receiver.requests) if request.answered]

    def change(self, certificate, key):
        """change applies to new connections; open ones are closed, as by a server that restarts."""
        self.receiver.tls = server_context(certificate, key)
        self.receiver.hang_up()

    def relay_to(self):
        return self.start(self.receiver.url, "--webhook-ca-file", self.authority)

    def refused(self, relay, words):
        """refused: events sent now wait, because the sink is down for this reason."""
        said = relay.output().count("sink is down")
        self.send(50)
        wait_until(lambda: relay.output().count("sink is down") > said, what=relay.output)
        self.assertRegex(relay.output().rpartition("sink is down")[2], words)
        self.assertTrue(self.missing())

    def test_certificate_renewal_does_not_disturb_deliveries(self):
        """A certificate that is renewed by the same authority under load changes nothing."""
        with self.relay_to() as relay:
            for n in range(20 if SOAK else 4):
                self.send(60)
                _, certificate, key = self.made(f"renewed-{n}", authority=self.path("first"))
                self.change(certificate, key)
                self.fault("certificate renewed")
                self.heal(relay)
        self.assertNotIn("certificate", relay.output())
        self.reckon(bound=self.CONCURRENCY * self.faults["certificate renewed"])
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    def test_untrusted_certificate_takes_the_sink_down(self):
        """A certificate that has expired, or is from another authority, makes the sink down: no event is sent, none is blamed,
        and all are delivered, in order, once the certificate is valid."""
        good = self.path("first") / "end.pem", self.path("first") / "end.key"
        bad = {"of a stranger": self.made("stranger")[1:], "that has run out": self.made("old", authority=self.path("first"), days=-1)[1:]}
        words = {"of a stranger": "certificate", "that has run out": "certificate has expired"}
        with self.relay_to() as relay:
            for what, which in bad.items():
                self.send(60)
                self.wait_all(relay)
                self.wait_let_go()
                requests = len(self.receiver.requests)
                self.change(*which)
                self.refused(relay, words[what])
                self.assertEqual(len(self.receiver.requests), requests, "an untrusted endpoint received an event")
                self.change(*good)
                self.fault(f"certificate {what}")
                self.heal(relay)
            self.blameless(relay)
        self.reckon(bound=0)


class Goodbyes(Delivered):
    """An endpoint over HTTP/2 that ends each connection with GOAWAY while requests are under way."""

    COUNT = 3000 if SOAK else 400
    keyless = False

    def got(self):
        return [(int(body), int(body)) for body in list(self.receiver.bodies)]

    def stored(self):
        return [(n, n) for n, _ in super().stored()]

    def send(self, n):
        """send emits events without keys: none waits for another."""
        if not self.keyless: return super().send(n)
        self.emit_many([{"type": "a", "payload": i} for i in range(n)])
        self.sent = n

    def goodbye(self, **how):
        authority, certificate, key = certificates(self.dir)
        self.keyless = True
        with Http2(tls=server_context(certificate, key), **how) as self.receiver, \
                self.start(self.receiver.url, "--webhook-ca-file", authority) as relay:
            self.send(self.COUNT)
            self.wait_all(relay)
            self.fault("GOAWAY", self.receiver.goaways)
            self.healed()
            self.blameless(relay)
            self.wait_let_go()
        self.assertGreater(self.receiver.refused, 0, "no request was in flight")
        c = self.checker(dict.fromkeys(range(self.sent), COMMITTED), [(n, Fact(None, n, n)) for n in range(self.sent)])
        c.consumer("out", self.got())
        c.verdict()

    def test_events_are_sent_over_http_2_without_tls(self):
        """An endpoint that speaks HTTP/2 without TLS gets everything, in order."""
        with Http2() as self.receiver, self.start(self.receiver.url, "--webhook-http", "2") as relay:
            self.send(self.COUNT)
            self.wait_all(relay)
            self.blameless(relay)
        self.reckon(bound=0)

    def test_goaway_requests_are_resent_but_not_counted_as_attempts(self):
        """GOAWAY names the last accepted request; later ones are sent again, over another connection."""
        self.goodbye(limit=30)

    def test_refused_streams_are_resent_but_not_counted_as_attempts(self):
        """The same holds if each later request is refused as well."""
        self.goodbye(limit=30, refuse=True)
