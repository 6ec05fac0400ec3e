"""Brokers that accept a connection but send nothing, not even a TLS handshake: the sink is reported down in time, every other
consumer continues, and the relay stops on request."""
# sanitizers: soak
import socket
import threading
import time

from support import Case, wait_until

SINKS = {
    "kafka": "kafka://{at}/t", "kafka-tls": "kafka+ssl://{at}/t",
    "nats": "nats://{at}/s?stream=S", "nats-tls": "nats+tls://{at}/s?stream=S",
    "rabbitmq": "amqp://{at}/%2F/x", "rabbitmq-tls": "amqps://{at}/%2F/x",
    "redis": "redis://{at}?stream=s", "redis-tls": "rediss://{at}?stream=s",
    "sentinel": "redis-sentinel://{at}/m?stream=s", "sentinel-tls": "rediss-sentinel://{at}/m?stream=s",
    "cluster": "redis-cluster://{at}/?stream=s", "cluster-tls": "rediss-cluster://{at}/?stream=s",
}


class Silent:
    """A listener that accepts connections, keeps them, reads everything, and answers nothing; it sends only `hello`."""

    def __init__(self, hello=b""):
        self.hello, self.open, self.lock = hello, 0, threading.Lock()

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.at = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.clients = []
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.clients.append(client)
            threading.Thread(target=self.swallow, args=(client,), daemon=True).start()

    def swallow(self, client):
        self.count(1)
        try:
            client.sendall(self.hello)
            while client.recv(65536): pass
        except OSError:
            pass
        self.count(-1)

    def count(self, step):
        with self.lock: self.open += step

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for client in self.clients: client.close()


class NoAnswer(Case):
    LIMIT = 1  # seconds that a delivery may take
    SPARE = 20  # more than that, for a busy machine

    def setUp(self):
        super().setUp()
        self.init()
        self.out = self.path("out.ndjson")
        self.file = ["--consumer", "file", "--sink", f"file:{self.out}"]

    def silent(self, hello=b""):
        peer = Silent(hello).__enter__()
        self.addCleanup(peer.__exit__)
        return peer

    def wait_delivered(self, relay, n):
        wait_until(lambda: self.out.exists() and len(self.ndjson(self.out)) == n, what=relay.output)

    def assert_stops(self, relay):
        began = time.monotonic()
        relay.stop()
        self.assertLess(time.monotonic() - began, self.LIMIT + self.SPARE)

    def test_silent_broker_is_down_in_time_and_never_blocks_others(self):
        peer = self.silent()
        consumers = [arg for name, url in SINKS.items() for arg in ("--consumer", name, "--sink", url.format(at=peer.at))]
        relay = self.relay("--timeout", f"{self.LIMIT}s", *consumers, *self.file)
        self.emit("a.b")
        began = time.monotonic()
        self.wait_delivered(relay, 1)
        missing = lambda: [name for name in SINKS if f"consumer={name} sink is down" not in relay.output()]
        wait_until(lambda: not missing(), what=lambda: f"{missing()}\n{relay.output()}")
        self.assertLess(time.monotonic() - began, self.LIMIT + self.SPARE)
        self.emit("a.b")
        self.wait_delivered(relay, 2)
        self.assert_stops(relay)

    def test_doctor_names_the_unresponsive_sink(self):
        peer = self.silent()
        args = [arg for name, url in SINKS.items() for arg in ("--consumer", name, "--sink", url.format(at=peer.at))]
        found = self.outbox("doctor", "--connect", "--timeout", "300ms", *args, status=1).stdout
        for name in SINKS: self.assertRegex(found, f'problem +sink +consumer "{name}": .*{peer.at}')

    def test_stalled_nats_handshake_times_out(self):
        """The server greets, demands TLS, and is silent from then on. Every attempt to connect ends, or each would leave a
        thread and a connection."""
        peer = self.silent(b'INFO {"server_id":"x","version":"2.9.10","tls_required":true,"max_payload":1048576}\r\n')
        sink = ["--consumer", "nats", "--sink", f"nats+tls://{peer.at}/s?stream=S"]
        relay = self.relay("--timeout", "300ms", *sink, *self.file)
        self.emit("a.b")
        wait_until(lambda: "consumer=nats sink is down" in relay.output(), what=relay.output)
        wait_until(lambda: len(peer.clients) >= 3 and peer.open == 0, what=lambda: f"{peer.open} of {len(peer.clients)} are open")
        self.emit("a.b")
        self.wait_delivered(relay, 2)
        self.assert_stops(relay)
