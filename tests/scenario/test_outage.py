"""An outage of a sink, in any form, buries nothing; an event that fails while others succeed does become a dead letter."""
# build: plain
# quick: no
import collections
import json

from http_endpoint import Endpoint, answer
from support import Case, PgCase, wait_until

EVENTS = 60
POLICY = "base=10ms,cap=50ms,attempts=3"  # used up long before the outage is over
ORDERS = ("none", "key", "global")


class Faces:
    """Consumers of every order, to endpoints and commands that fail in every way while self.out exists."""

    FACES = {"500": answer(500), "502": answer(502), "504": answer(504), "404": answer(404), "401": answer(401),
             "408": answer(408), "closed": None}

    def setUp(self):
        super().setUp()
        self.init()
        self.out = self.path("out")
        self.endpoints = {}

    def consumer(self, name, sink, *more):
        return ["--consumer", name, "--sink", sink, "--retry", POLICY, *more]

    def endpoint(self, name, said):
        endpoint = Endpoint(lambda request: said if self.out.exists() else answer()).start()
        self.addCleanup(endpoint.stop)
        self.endpoints[name] = endpoint
        return endpoint.url

    def consumers(self):
        args = []
        for face, said in self.FACES.items():
            order = ORDERS[len(self.endpoints) % len(ORDERS)]
            name = f"http-{face}-{order}"
            args += self.consumer(name, self.endpoint(name, said), "--order", order)
        name = "http-one-key"
        args += self.consumer(name, self.endpoint(name, answer(502)), "--events", "one.*")
        for order in ORDERS:
            command = f"[ ! -e {self.out} ] || exit 1; echo $OUTBOX_ID >>{self.path(f'exec-{order}')}"
            args += self.consumer(f"exec-{order}", f"exec:{command}", "--order", order)
        return args

    def shown(self):
        return {c["name"]: c for c in self.json("consumers", "list")}

    def all_down(self, relay):
        said = relay.output()
        return all(f"consumer={name} sink is down: " in said for name in self.shown())

    def emit_all(self):
        self.emit_many({"type": "one.e" if n % 3 == 0 else "many.e", "aggregate_type": "k",
                        "aggregate_id": "one" if n % 3 == 0 else f"{n}", "payload": {"n": n}} for n in range(EVENTS))

    def test_outage_of_any_kind_buries_nothing_and_is_reported(self):
        self.out.touch()
        self.emit_all()
        with self.relay(*self.consumers()) as relay:
            wait_until(lambda: self.all_down(relay), what=relay.output)
            for name, c in self.shown().items(): self.assertEqual((c["dead"], c["delivered"]), (0, 0), name)
            self.out.unlink()
            want = lambda name: EVENTS // 3 if name == "http-one-key" else EVENTS
            late = lambda: {n: c["delivered"] for n, c in self.shown().items() if c["delivered"] != want(n)}
            wait_until(lambda: not late(), what=lambda: f"{late()}\n{relay.output()}")
            wrong = lambda: {n: c for n, c in self.shown().items() if (c["dead"], c["parked"], c["last_error"]) != (0, 0, None)}
            wait_until(lambda: not wrong(), what=wrong)
            self.assertIn("sink is back", relay.output())

    def test_outage_between_deliveries_buries_nothing(self):
        with self.relay(*self.consumers()) as relay:
            self.emit_all()
            wait_until(lambda: all(c["delivered"] for c in self.shown().values()))
            self.out.touch()
            self.emit_all()
            wait_until(lambda: self.all_down(relay), what=relay.output)
            self.out.unlink()
            want = lambda name: 2 * EVENTS // 3 if name == "http-one-key" else 2 * EVENTS
            wait_until(lambda: all(c["delivered"] == want(n) for n, c in self.shown().items()))
            self.assertEqual({c["dead"] for c in self.shown().values()}, {0})

    def test_event_failing_among_others_gets_five_attempts(self):
        self.emit_many({"type": "t", "aggregate_type": "k", "aggregate_id": str(n), "payload": {"n": n}} for n in range(20))
        tries = collections.Counter()

        def behave(request):
            n = json.loads(request.body)["n"]
            tries[n] += 1
            return answer(500 if n == 7 else 204)
        with Endpoint(behave) as endpoint:
            # All are sent at once: events sent a second after the failing one would prove nothing against it.
            self.drain("--consumer", "hook", "--sink", endpoint.url, "--retry", "fast,base=10ms,cap=50ms", "--concurrency", "20")
        [dead] = self.json("dead", "list")
        self.assertEqual((dead["attempts"], tries[7], sum(tries.values())), (5, 5, 24))


class OnSqlite(Faces, Case):
    pass


class OnPostgres(Faces, PgCase):
    pass
