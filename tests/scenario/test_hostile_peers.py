"""Hostile endpoints and Redis servers: whatever they answer, a relay uses bounded memory, serves its other consumers, and stops
on request; secrets that they echo are neither shown nor kept."""
# build: plain
import pathlib
import re
import socket
import threading
import unittest

from support import BIN, Case, wait_until

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LINE = b"X-Filler: " + b"a" * 1000 + b"\r\n"
ENOUGH = 64 << 20  # bytes: a reader that accepts so many has no lower limit
PASSWORD = "correct-horse-battery-staple"


class Peer:
    """A listener on a loopback port. On a request it sends `first`, then `more` repeatedly, until the client has read for too
    long. Further requests on a connection get `later`."""

    def __init__(self, first=b"", more=b"", later=None):
        self.first, self.more, self.later = first, more, first if later is None else later
        self.asked = self.left = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection:
            answer = self.first
            try:
                while connection.recv(65536):
                    self.asked += 1
                    connection.sendall(answer)
                    for _ in range(ENOUGH // len(self.more) if self.more else 0): connection.sendall(self.more)
                    answer = self.later
            except OSError:
                pass
            self.left += 1

    def close(self):
        self.listener.close()


ENDPOINTS = {
    "headers": Peer(OK, LINE * 50),
    "one-header": Peer(OK + b"X-Filler: ", b"a" * 65536),
    "early-hints": Peer(b"", b"HTTP/1.1 103 Early Hints\r\n" + LINE + b"\r\n"),
    "continue": Peer(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "chunks": Peer(CHUNKED, b"400\r\n" + b"a" * 1024 + b"\r\n"),
    "extension": Peer(CHUNKED + b"1;", b"a" * 65536),
    "trailers": Peer(CHUNKED + b"0\r\n", LINE * 50),
    "chunk-size": Peer(CHUNKED + b"F" * 40 + b"\r\n"),
    "length": Peer(OK + b"Content-Length: -1\r\n\r\n"),
    "upgrade": Peer(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"),
    "location": Peer(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"),
    "retry-after": Peer(b"HTTP/1.1 503 No\r\nRetry-After: 99999999999999999999999\r\nContent-Length: 0\r\n\r\n"),
    "retry-never": Peer(b"HTTP/1.1 429 No\r\nRetry-After: -1e308\r\nContent-Length: 0\r\n\r\n"),
    "old": Peer(b"hello"),
    "silent": Peer(),
}
SERVERS = {
    "nested": Peer(b"*1\r\n" * 200000),
    "lists": Peer(b"*1048576\r\n" * 1000),
    "bulk": Peer(b"$2147483647\r\n", b"a" * 65536),
    "line": Peer(b"+", b"a" * 65536),
    "replies": Peer(b"", b"+OK\r\n" * 1000),
    "push": Peer(b">2\r\n+invalidate\r\n*1\r\n+x\r\n"),
    "integer": Peer(b":99999999999999999999999\r\n"),
    "nil": Peer(b"$-1\r\n*-1\r\n*0\r\n"),
    "moved": Peer(b"-MOVED 1 127.0.0.1:1\r\n"),
    "escapes": Peer(b"-LOADING \x1b[2J\xc2\x9b31m\xe2\x80\xae\r\n"),
}


def tearDownModule():
    for peer in (*ENDPOINTS.values(), *SERVERS.values()): peer.close()


class Peers(Case):
    def setUp(self):
        super().setUp()
        self.init()

    def peak(self, process):
        """peak is the most memory that a process ever had, in MiB."""
        return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{process.pid}/status").read_text())[1]) // 1024

    def relay_to(self, peers, url):
        healthy = self.path("healthy.ndjson")
        sinks = "".join(f"[consumer {name}]\nsink = {url.format(peer.port)}\ntimeout = 2s\n" for name, peer in peers.items())
        config = self.path("outbox.conf")
        config.write_text(f"[outbox]\nstore = {self.store}\ndrain-deadline = 100ms\n{sinks}[consumer healthy]\nsink = file:{healthy}\n")
        self.emit("t.e")
        relay = self.spawn(BIN, "relay", "-c", config)
        wait_until(lambda: all(peer.asked for peer in peers.values()), what=lambda: {n: p.asked for n, p in peers.items()})
        for _ in range(3): self.emit("t.e")
        wait_until(lambda: len(self.ndjson(healthy)) == 4, what=relay.output)
        # Each ended the endless answer: by a limit of size or of time.
        wait_until(lambda: all(peer.left for peer in peers.values() if peer.more), what=lambda: {n: p.left for n, p in peers.items()})
        self.assertTrue(relay.running(), relay.output())
        self.assertLess(self.peak(relay), 120)
        relay.stop()
        self.assertFalse(set("\x1b\x9b\u202e") & set(relay.output()))
        return relay.output()

    def test_hostile_endpoint_uses_bounded_resources(self):
        said = self.relay_to(ENDPOINTS, "http://127.0.0.1:{}/hook")
        self.assertIn("more than 256 KiB of headers in a response", said)

    def test_hostile_redis_uses_bounded_resources(self):
        self.relay_to(SERVERS, "redis://127.0.0.1:{}?stream=s")

    def test_reader_of_a_hostile_redis_uses_bounded_resources(self):
        """Before the login succeeds, a server may send only short replies."""
        for name in ("bulk", "lists", "nested", "escapes"):
            peer = SERVERS[name]
            asked = peer.asked
            reader = self.spawn(BIN, "consume", f"redis://127.0.0.1:{peer.port}?stream=s", "-g", "g", "--exec", "true", log=self.path(name))
            wait_until(lambda: peer.asked > asked + 1, what=reader.output)
            self.assertLess(self.peak(reader), 50, name)
            reader.stop()
            self.assertFalse(set("\x1b\x9b\u202e") & set(reader.output()))

    def test_password_echoed_by_redis_is_not_shown_or_kept(self):
        """Like a server on which AUTH was renamed, it quotes the unknown command with its arguments."""
        env = {"OUTBOX_REDIS_PASSWORD": PASSWORD}
        unknown = f"-ERR unknown command `AUTH`, with args beginning with: `{PASSWORD}`, \r\n".encode()
        for name, peer in {"greeting": Peer(unknown), "later": Peer(b"+OK\r\n+OK\r\n", later=unknown[:80] + b"\r\n")}.items():
            self.addCleanup(peer.close)
            url = f"redis://127.0.0.1:{peer.port}?stream=s"
            self.emit("t.e")
            relay = self.spawn(BIN, "relay", "--consumer", name, "--sink", url, "--drain-deadline", "100ms", env=env, log=self.path(name))
            reader = self.spawn(BIN, "consume", url, "-g", "g", "--exec", "true", env=env, log=self.path(name + "-reader"))
            for child in (relay, reader):
                wait_until(lambda: "repeats our password" in child.output(), what=child.output)
                child.stop()
                self.assertNotIn(PASSWORD[:16], child.output())
            self.assertNotIn(PASSWORD[:16].encode(), pathlib.Path(self.db).read_bytes())


if __name__ == "__main__":
    unittest.main()
