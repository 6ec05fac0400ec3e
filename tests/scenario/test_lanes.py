"""Sixteen lanes of a consumer and up to four relays: the work is spread evenly over the running relays within seconds of a
start or stop, and no lane is left without a worker."""
# quick: no
# sanitizers: soak
import collections
import re
import time
import urllib.request

from http_endpoint import Endpoint, answer
from support import PgCase, wait_until

LANES, KEYS, EVENTS = 16, 256, 8000
ENOUGH = 160  # deliveries that are looked at together
SECONDS = 20  # within which the work is spread, on a busy machine; this includes the lease of a killed relay, 2 s


def slowly(request):
    time.sleep(0.02)
    return answer()


class Evenly(PgCase):
    def setUp(self):
        super().setUp()
        self.init()
        self.endpoint = Endpoint(slowly).start()
        self.addCleanup(self.endpoint.stop)
        self.emit_many({"type": "a", "aggregate_type": "k", "aggregate_id": str(i % KEYS), "payload": i} for i in range(EVENTS))
        self.relays = []

    def start(self):
        relay = self.relay("--listen", "127.0.0.1:0", "--consumer", "out", "--lanes", LANES, "--lease", "2s", "--batch", "8",
                           "--concurrency", "2", "--sink", self.endpoint.url)
        relay.url = re.search(r"listening on (http://\S+)", relay.output())[1]
        self.relays.append(relay)

    def delivered(self):
        """delivered returns how many events each relay has delivered so far."""
        counts = []
        for relay in self.relays:
            with urllib.request.urlopen(relay.url + "/metrics", timeout=30) as page: text = page.read().decode()
            counts.append(sum(int(n) for n in re.findall(r"^outbox_dispatched_total\{.*\} (\d+)$", text, re.M)))
        return counts

    def claimed(self, lanes):
        """claimed adds the lanes that each worker has now. A claim may cover several."""
        for owner, members in self.sql("SELECT owner, coalesce(members, 1::bigint << lane) FROM outbox.claim WHERE lane >= 0"):
            lanes[owner].update(lane for lane in range(LANES) if members >> lane & 1)

    def look(self):
        """look returns the relays' shares of the next deliveries, and the lanes that each worker held meanwhile."""
        before, lanes = self.delivered(), collections.defaultdict(set)

        def enough():
            self.claimed(lanes)
            return sum(self.delivered()) - sum(before) >= ENOUGH
        wait_until(enough)
        made = [now - then for now, then in zip(self.delivered(), before)]
        return [n / sum(made) for n in made], list(lanes.values())

    def is_even(self, shares, lanes):
        """is_even: no relay has less than half its share, and together they have all lanes."""
        fair = 1 / len(self.relays)
        return min(shares) >= fair / 2 and len(lanes) == len(self.relays) and len(set().union(*lanes)) == LANES

    def wait_even(self):
        began = time.monotonic()
        while True:
            shares, lanes = self.look()
            took = time.monotonic() - began
            seen = f"{[round(s, 2) for s in shares]} of the work, {[len(l) for l in lanes]} lanes, after {took:.1f} s"
            if self.is_even(shares, lanes): break
            self.assertLess(took, SECONDS, seen)
        print(f"# {len(self.relays)} relays: {seen}")

    def test_lanes_rebalance_soon_after_a_relay_joins_or_leaves(self):
        self.start()
        self.wait_even()
        for _ in range(3): self.start()
        self.wait_even()
        self.relays.pop(0).kill()
        self.wait_even()
        self.relays.pop(0).stop()
        self.wait_even()
        for _ in range(2): self.start()
        self.wait_even()
