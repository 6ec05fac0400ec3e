# build: plain
"""A relay that is restarted after a kill serves all its consumers at once, whatever their endpoints do (G7), and the events in
flight are not blamed (G9: only an event that can kill its worker is ever suspected of it)."""
import collections
import os
import threading
import time

from http_endpoint import Endpoint, answer
from support import Case, MariaCase, PgCase, wait_until

SLACK = 10  # seconds until every consumer is served: a third of the lease. On a quiet machine it takes 0.3 to 2


class Restart:
    consumers, events = (400, 2) if os.environ.get("OUTBOX_SOAK") else (40, 20)  # the endpoint, in Python, answers some thousand a second

    def relay_args(self):
        """relay_args returns a relay that has a consumer for each path of the endpoint."""
        args = []
        for n in range(self.consumers):
            args += ["--consumer", f"c{n}", "--sink", f"{self.endpoint.url}/c{n}"]
        return args

    def counts(self):
        """counts returns how many events each consumer was served."""
        served = {(r.path, r.id) for r in list(self.endpoint.requests) if r.answered}
        by_path = collections.Counter(path for path, _ in served)
        return [by_path[f"/hook/c{n}"] for n in range(self.consumers)]

    def begin(self):
        """begin starts a relay, lets every consumer have events in flight, and kills it."""
        self.stuck = threading.Event()  # while it is not set, every endpoint accepts requests and does not answer
        self.hangs = {"/hook/c0"}  # these never do
        self.endpoint = Endpoint(self.behave).start()
        self.addCleanup(self.endpoint.stop)
        self.addCleanup(self.stuck.set)
        self.init()
        self.emit_many([{"type": "t", "aggregate_type": "k", "aggregate_id": str(n)} for n in range(self.events)])
        relay = self.relay(*self.relay_args())
        wait_until(lambda: len({r.path for r in self.endpoint.requests}) == self.consumers, timeout=60, what=relay.output)
        relay.kill()
        self.endpoint.hang_up()
        self.endpoint.requests.clear()

    def behave(self, request):
        if request.path in self.hangs:
            self.stuck_for_good.wait()
            return None
        self.stuck.wait()
        return answer()

    def setUp(self):
        super().setUp()
        self.stuck_for_good = threading.Event()
        self.addCleanup(self.stuck_for_good.set)

    def say(self, text):
        os.write(int(os.environ.get("OUTBOX_TAP", 1)), f"# restart: {self.id()}: {text}\n".encode())

    def test_bad_endpoint_after_a_kill_does_not_delay_others(self):
        self.begin()
        self.stuck.set()
        began = time.monotonic()
        with self.relay(*self.relay_args()) as relay:
            self.emit_many([{"type": "t", "aggregate_type": "k", "aggregate_id": f"new{n}"} for n in range(self.events)])
            wait_until(lambda: all(self.counts()[1:]), timeout=SLACK, what=relay.output)
            first = time.monotonic() - began
            wait_until(lambda: all(n == 2 * self.events for n in self.counts()[1:]), timeout=30, what=lambda: (self.counts(), relay.output()))
            self.say(f"all {self.consumers} have something after {first:.2f} s, all of it after {time.monotonic() - began:.2f} s")
            self.assertEqual(self.counts()[0], 0)
            self.stuck_for_good.set()
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])

    def test_external_kills_never_bury_events(self):
        """`retry = fast` has five attempts; seven kills while the endpoint holds the request use none of them."""
        self.consumers, self.events = 1, 3
        self.begin()
        self.hangs = set()
        for _ in range(6):
            relay = self.relay(*self.relay_args(), "--retry", "fast")
            wait_until(lambda: self.endpoint.requests, timeout=90, what=relay.output)
            relay.kill()
            self.endpoint.hang_up()
            self.endpoint.requests.clear()
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])
        self.assertEqual(self.ask("SELECT max(attempts) FROM @parked"), [(0,)])
        self.stuck.set()
        with self.relay(*self.relay_args(), "--retry", "fast") as relay:
            wait_until(lambda: self.counts() == [3], timeout=90, what=relay.output)


class RestartOnSqlite(Restart, Case):
    pass


class RestartOnPostgres(Restart, PgCase):
    pass


class RestartOnMariadb(Restart, MariaCase):
    consumers, events = 40, 20  # each has a separate connection there, and the server allows 151
