"""A broker is unreachable, and the backlog is far larger than memory: a relay holds a few batches, however long the backlog.
A million events in a soak, fewer otherwise."""
# build: plain
# quick: no
import socket
import time

from scenario import peak, say
from support import SOAK, Case, wait_until

EVENTS = 1_000_000 if SOAK else 30_000
PAYLOAD = "x" * 300
CEILING = 48 << 10  # KiB
SINKS = {
    "kafka": "kafka://127.0.0.1:{port}/t",
    "nats": "nats://127.0.0.1:{port}/s?stream=S",
    "rabbitmq": "amqp://127.0.0.1:{port}/%2F/x",
    "redis": "redis://127.0.0.1:{port}?stream=s",
    "redis-cluster": "redis-cluster://127.0.0.1:{port}/?stream=s.{{type}}",
    "redis-sentinel": "redis-sentinel://127.0.0.1:{port}/m?stream=s",
}


class Behind(Case):
    def setUp(self):
        super().setUp()
        self.init()
        event = "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload)"
        self.sql(f"""WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {EVENTS})
                     {event} SELECT 'a', 'k', i % 1000, '"{PAYLOAD}"' FROM n""")

    def hold(self, port):
        """hold runs relays of all kinds at once in front of an unreachable broker, and returns the most that each has held."""
        args = lambda name: ("--consumer", name, "--sink", SINKS[name].format(port=port), "--batch", 1000, "--timeout", "1s")
        relays = {name: self.relay("--log-level", "debug", *args(name)) for name in SINKS}
        for relay in relays.values(): wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
        time.sleep(2)  # consumers retry meanwhile
        found = {name: peak(relay.pid) for name, relay in relays.items()}
        for relay in relays.values(): relay.stop()
        say(f"# memory with {EVENTS} events behind, KiB: {found}")
        for name, most in found.items(): self.assertLess(most, CEILING, name)

    def test_relay_uses_little_memory_for_an_unreachable_broker(self):
        """No process listens where the broker should be."""
        self.hold(1)

    def test_relay_uses_little_memory_for_a_silent_broker(self):
        """A server that accepts connections and stays silent."""
        with socket.create_server(("127.0.0.1", 0)) as deaf: self.hold(deaf.getsockname()[1])
