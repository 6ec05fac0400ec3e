"""A proxy for MariaDB's protocol that can stop a client at a chosen statement, so that a test decides at which statement of a
transaction the client disappears.

    with Proxy(socket_path) as proxy:
        stop = proxy.at(3, UNSENT)   # the third statement from now on, of any connection
        ... a client of 127.0.0.1:proxy.port does its work ...
        wait_until(stop.done)

No encryption. A statement is one packet with the command COM_QUERY; what a relay asks on its wake-up connection is not counted."""
import contextlib
import socket
import struct
import threading
import urllib.parse

UNSENT = "unsent"      # the server never gets the statement
SENT = "sent"          # the server gets it, and the client disconnects at once
ANSWERED = "answered"  # the server has answered, and no byte of the answer arrives
STALLED = "stalled"    # the server gets it only after the release, and the connection stays open
QUERY = 3


class Stop:
    """The fault at the n-th statement, counting those that contain `part`. text is that statement, once it was sent."""

    def __init__(self, n, when, act=None, part=""):
        self.n, self.when, self.act, self.part = n, when, act, part
        self.hit, self.over, self.text = threading.Event(), threading.Event(), None

    def done(self):
        return self.hit.is_set()

    def let_go(self):
        self.over.set()


class Link:
    def __init__(self, proxy, client):
        self.proxy, self.client = proxy, client
        self.server = socket.socket(socket.AF_UNIX)

    def start(self):
        self.server.connect(self.proxy.path)
        for run in (self.run_up, self.run_down): threading.Thread(target=run, daemon=True).start()

    def run_down(self):
        with contextlib.suppress(OSError):
            while data := self.server.recv(1 << 16):
                if self.proxy.deaf is self: break
                self.client.sendall(data)
        self.close()

    def run_up(self):
        data = b""
        with contextlib.suppress(OSError):
            while more := self.client.recv(1 << 16):
                data += more
                while len(data) >= 4 and len(data) >= (size := 4 + struct.unpack("<I", data[:3] + b"\0")[0]):
                    packet, data = data[:size], data[size:]
                    if not self.pass_on(packet): return self.close()
        self.close()

    def pass_on(self, packet):
        """pass_on returns whether the connection continues."""
        stop = None
        if packet[4:5] == bytes([QUERY]) and packet[3] == 0: stop = self.proxy.next(packet[5:].decode(errors="replace"))
        if not stop:
            self.server.sendall(packet)
            return True
        if stop.when == ANSWERED: self.proxy.deaf = self
        if stop.when in (SENT, ANSWERED): self.server.sendall(packet)
        if stop.when == ANSWERED: self.wait_answered()
        if stop.act: stop.act()
        stop.hit.set()
        if stop.when != STALLED: return False
        stop.over.wait()
        self.server.sendall(packet)
        return True

    def wait_answered(self):
        """wait_answered: the other thread ends when the answer begins."""
        with contextlib.suppress(OSError):
            while self.server.fileno() >= 0 and not self.ended.wait(0.01): pass

    def close(self):
        self.ended.set()
        for s in (self.client, self.server):
            with contextlib.suppress(OSError): s.shutdown(socket.SHUT_RDWR)
            s.close()


class Proxy:
    def __init__(self, path):
        self.path, self.deaf = path, None
        self.lock, self.stops, self.count = threading.Lock(), [], 0
        self.texts = []  # all statements

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        for stop in self.stops: stop.let_go()
        with contextlib.suppress(OSError): self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                link = Link(self, self.listener.accept()[0])
                link.ended = threading.Event()
                link.start()

    def at(self, n, when, act=None, part=""):
        """at stops at the n-th statement from now on among those that contain `part`, in the way `when`; it calls `act`
        then."""
        with self.lock:
            self.stops.append(Stop(n, when, act, part))
            return self.stops[-1]

    def next(self, text):
        if "outbox_wait" in text: return None
        hit = None
        with self.lock:
            self.count += 1
            self.texts.append(text)
            for stop in self.stops:
                if stop.part not in text: continue
                stop.n -= 1
                if stop.n == 0: hit = stop
        if hit: hit.text = text
        return hit


class Proxied:
    """A mixin for a MariaCase: self.far is its store through self.proxy."""

    def setUp(self):
        super().setUp()
        self.init()
        self.proxy = Proxy(socket_of(self.store))
        self.proxy.__enter__()
        self.addCleanup(self.proxy.__exit__)
        self.far = f"mariadb://root@127.0.0.1:{self.proxy.port}/{self.dbname}"


def socket_of(store):
    """socket_of returns the path of the server's socket from a store's URL."""
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(store).query))["socket"]
