"""When a working broker refuses events because of one stream, topic, subject or queue, the events are at fault: each uses its
attempts and becomes a dead letter, whether or not other events arrive meanwhile."""
import re
import urllib.request

from broker_metrics import BrokerView
from support import wait_until

ATTEMPTS = 8  # of the preset
POLICY = ["--preset", "dispatcher", "--retry", f"base=20ms,cap=100ms,attempts={ATTEMPTS},jitter=none"]


class Refusals(BrokerView):
    """A part of a Case."""

    def refusals(self, relay):
        """refusals returns the number of refusals that the metrics count."""
        with urllib.request.urlopen(relay.url + "/metrics", timeout=30) as answer: text = answer.read().decode()
        return sum(map(int, re.findall(r'^outbox_publish_failures_total\{.*reason="refused".*\} (\d+)$', text, re.M)))

    def buried(self):
        return self.ask("SELECT attempts, error FROM @dead")

    def emit_types(self, *types):
        self.emit_many({"type": type, "aggregate_type": "k", "aggregate_id": str(i), "payload": i} for i, type in enumerate(types))

    def wait_buried(self, relay, n, words):
        """wait_buried waits for n dead letters, and checks that each has used its attempts and that the sink was never down."""
        wait_until(lambda: len(self.buried()) == n, what=relay.output)
        for attempts, error in self.buried():
            self.assertEqual(attempts, ATTEMPTS)
            self.assertIn(words, error)
        self.assertEqual(self.refusals(relay), n * ATTEMPTS)
        self.assertNotIn("sink is down", relay.output())

    def check_refused_among_others(self, args, arrived, words, bad="bad", good="good"):
        """check_refused_among_others: args have a destination by type; `bad` is refused with these words. arrived counts the
        events that arrived elsewhere."""
        with self.serve(*args, *POLICY) as relay:
            self.emit_types(*(good if i % 3 else bad for i in range(30)))
            wait_until(lambda: arrived() == 20, what=relay.output)
            self.wait_buried(relay, 10, words)
            self.emit_types(*[bad] * 5)
            self.wait_buried(relay, 15, words)
            self.emit_types(good)
            wait_until(lambda: arrived() == 21, what=relay.output)

    def check_refused_alone(self, args, words, cure, arrived):
        """check_refused_alone: all events go to one destination, which refuses them. Events sent after the repair arrive."""
        with self.serve(*args, *POLICY) as relay:
            self.emit_types(*["a"] * 30)
            self.wait_buried(relay, 30, words)
            cure()
            self.emit_types(*["a"] * 3)
            wait_until(lambda: arrived() == 3, what=relay.output)
            self.assertEqual(len(self.buried()), 30)
