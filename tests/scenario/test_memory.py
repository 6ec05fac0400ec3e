"""The memory of a relay does not grow with its consumers: they share the budget for events in flight, and each makes
progress."""
# build: plain
# quick: no
import re
import threading
import unittest
import urllib.request

from many_consumers import ManyConsumers
from http_endpoint import Endpoint, answer
from support import Case, MariaCase, PgCase, wait_until

CONSUMERS = 12
EVENTS = 8
EVENT = 500_000  # bytes; four batches of a consumer could hold all of its events
LIMIT = 8 * 1024 * 1024
BLOCKS = 2  # a block of memory may be twice as large as its content


class Memory(ManyConsumers):
    def metric(self, relay, name):
        url = re.search(r"listening on (http://\S+)", relay.output())[1]
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page: text = page.read().decode()
        return sum(int(number) for number in re.findall(rf"^{name}(?:{{.*}})? (\d+)$", text, re.MULTILINE))

    def fill(self):
        self.emit_many([{"type": f"t{n}", "aggregate_type": "a", "aggregate_id": str(n), "payload": "x" * EVENT} for n in range(EVENTS)])

    def serve_all(self, url, *args):
        lines = ["[outbox]", "concurrency = 16"]
        for i in range(CONSUMERS): lines += [f"[consumer c{i}]", f"sink = {url}/c{i}"]
        config = self.path("memory.conf")
        config.write_text("\n".join(lines) + "\n")
        return self.relay("--config", config, "--timeout", "120s", "--listen", "127.0.0.1:0", *args)

    def test_consumers_share_memory_and_none_starves(self):
        """No request is answered until every consumer has one. Then all is delivered."""
        self.fill()
        go = threading.Event()
        def hold(request):
            go.wait(120)
            return answer()
        came = lambda: {request.path.rsplit("/", 1)[1] for request in list(endpoint.requests)}
        with Endpoint(hold) as endpoint, self.serve_all(endpoint.url, "--memory", str(LIMIT)) as relay:
            wait_until(lambda: len(came()) == CONSUMERS, what=lambda: (came(), relay.output()))
            go.set()
            wait_until(lambda: self.metric(relay, "outbox_dispatched_total") == EVENTS * CONSUMERS, what=relay.output)
            wait_until(lambda: self.metric(relay, "outbox_in_flight") == 0, what=relay.output)
            peak, limit = (self.metric(relay, f"outbox_memory_{what}_bytes") for what in ("peak", "limit"))
            self.assertLessEqual(self.metric(relay, "outbox_memory_held_bytes"), LIMIT)
        self.assertEqual(limit, LIMIT)
        self.assertGreater(peak, LIMIT / 2)
        self.assertLess(peak, LIMIT + CONSUMERS * BLOCKS * EVENT)  # without a limit they held 40 MB and more

    def test_event_larger_than_the_memory_budget_is_delivered(self):
        self.outbox("emit", "big", "--max-payload", "4MiB", "--payload", "-", input='"' + "x" * 3_000_000 + '"')
        with self.many(6, "--memory", "1MiB") as relay:
            self.wait_for(6, ["big"], relay)


class OnSqlite(Memory, Case): pass
class OnPostgres(Memory, PgCase): pass
class OnMariaDB(Memory, MariaCase): pass


if __name__ == "__main__":
    unittest.main()
