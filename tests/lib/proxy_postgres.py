"""A proxy for PostgreSQL's protocol that can cut a connection at a chosen message, so that a test decides what a client learns
of the server's work.

    with Proxy(url) as proxy:
        cut = proxy.cut(lambda request: "turn(" in request.text, ANSWERED)
        ... a client of proxy.url does its work ...
        wait_until(cut.done)

Unix sockets on both sides, no encryption. A request is what a client sends up to its Sync (or one simple query).
"""
import pathlib
import select
import shutil
import socket
import struct
import tempfile
import threading
import urllib.parse

UNSENT = "unsent"      # the server never gets the request
SENT = "sent"          # the server gets it, and the client disconnects at once: it may commit or not
ANSWERED = "answered"  # the server has answered in full, and no byte of the answer arrives
TORN = "torn"          # half of the answer arrives
UNREADY = "unready"    # all of the answer arrives except its last message, which confirms the commit
UNCOMMITTED = "uncommitted"  # the same without the confirmation of the commit


class Request:
    """text is the statement; params are its parameters as they were sent, None for NULL; before is the preceding statement on
    the same connection."""

    def __init__(self, text="", params=()):
        self.text, self.params, self.before = text, list(params), ""


class Rule:
    """The fault for the first request that matches; done() tells whether it happened."""

    def __init__(self, match, act):
        self.match, self.act = match, act
        self.hit = threading.Event()

    def done(self):
        return self.hit.is_set()


def messages(data):
    """messages splits the bytes received into whole messages and the rest: ([(type, message)], rest)."""
    found = []
    while len(data) >= 5:
        size = 1 + struct.unpack("!I", data[1:5])[0]
        if len(data) < size: break
        found.append((data[:1], data[:size]))
        data = data[size:]
    return found, data


def text_at(message, at):
    end = message.index(b"\0", at)
    return message[at:end].decode(errors="replace"), end + 1


def bound(message):
    """bound returns the name and the parameters of a Bind message."""
    _, at = text_at(message, 5)
    name, at = text_at(message, at)
    formats, = struct.unpack_from("!H", message, at)
    at += 2 + 2 * formats
    count, = struct.unpack_from("!H", message, at)
    at += 2
    params = []
    for _ in range(count):
        size, = struct.unpack_from("!i", message, at)
        at += 4
        params.append(None if size < 0 else message[at:at + size])
        at += max(size, 0)
    return name, params


class Link(threading.Thread):
    """One client and its connection to the server."""

    def __init__(self, proxy, client):
        super().__init__(daemon=True)
        self.proxy, self.client = proxy, client
        self.server = socket.socket(socket.AF_UNIX)
        self.texts = {}
        self.request = Request()

    def run(self):
        try:
            self.server.connect(self.proxy.server_path)
            self.client.sendall(self.greet())
            while self.turn(): pass
        except OSError:
            pass
        finally:
            self.close()

    def close(self):
        for s in (self.client, self.server):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()

    def greet(self):
        """greet passes on the first message, which has no type, and returns the answer."""
        data = self.client.recv(65536)
        self.server.sendall(data)
        if data[4:8] == struct.pack("!I", 80877102): return b""  # a cancel request gets no answer
        return self.read(self.server, (b"Z", b"E"))

    def read(self, s, ends):
        """read returns everything up to a message of one of these types."""
        data = b""
        while True:
            if any(kind in ends for kind, _ in messages(data)[0]): return data
            more = s.recv(65536)
            if not more: raise OSError("closed")
            data += more

    def answer(self):
        return self.read(self.server, (b"Z",))

    def note(self, sent):
        before = self.request.text
        for kind, message in messages(sent)[0]:
            if kind == b"Q":
                self.request = Request(text_at(message, 5)[0])
            elif kind == b"P":
                name, at = text_at(message, 5)
                self.texts[name] = text_at(message, at)[0]
                self.request = Request("prepare " + self.texts[name])
            elif kind == b"B":
                name, params = bound(message)
                self.request = Request(self.texts.get(name, ""), params)
        self.request.before = before

    def turn(self):
        """turn passes on one request and its answer, or an unsolicited message of the server."""
        ready, _, _ = select.select([self.client, self.server], [], [])
        if self.client not in ready:
            data = self.server.recv(65536)
            self.client.sendall(data)
            return bool(data)
        sent = self.read(self.client, (b"S", b"Q", b"X"))
        self.note(sent)
        rule = self.proxy.rule_for(self.request)
        if rule: return rule.act(self, sent)
        self.server.sendall(sent)
        if sent[:1] == b"X": return False
        return self.pass_answer()

    def flush(self, sent):
        """flush makes the server run the request and answer; a Flush replaces the Sync that would commit."""
        assert sent[-5:] == b"S\0\0\0\4", "not an extended-protocol request"
        self.server.sendall(sent[:-5] + b"H\0\0\0\4")
        self.client.sendall(self.read(self.server, (b"C", b"E")))
        return False

    def pass_answer(self):
        """pass_answer passes on messages until the server is ready; large answers as they arrive."""
        rest = b""
        while True:
            data = self.server.recv(65536)
            if not data: return False
            self.client.sendall(data)
            found, rest = messages(rest + data)
            if any(kind == b"Z" for kind, _ in found): return True


class Proxy:
    """In front of the server of a URL that names a unix socket's folder; self.url is the same URL through the proxy. Rules are
    tried in the order in which they were added, once each."""

    def __init__(self, url):
        self.parts = urllib.parse.urlsplit(url)
        self.query = dict(urllib.parse.parse_qsl(self.parts.query))
        self.server_path = f"{self.query['host']}/.s.PGSQL.{self.query.get('port', 5432)}"
        self.rules, self.links = [], []
        self.lock = threading.Lock()
        self.asked = 0  # requests seen so far

    def __enter__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="obpx"))
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.dir / f".s.PGSQL.{self.query.get('port', 5432)}"))
        self.listener.listen()
        query = urllib.parse.urlencode({**self.query, "host": str(self.dir)}, safe="/")
        self.url = f"postgres://{self.parts.path}?{query}"
        self.accepting = threading.Thread(target=self.accept, daemon=True)
        self.accepting.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.accepting.join()
        for link in self.links: link.close()
        for link in self.links: link.join()
        shutil.rmtree(self.dir, ignore_errors=True)

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            link = Link(self, client)
            self.links.append(link)
            link.start()

    def rule_for(self, request):
        with self.lock:
            self.asked += 1
            for rule in self.rules:
                if not rule.done() and rule.match(request):
                    rule.hit.set()
                    return rule
        return None

    def add(self, match, act):
        rule = Rule(match, act)
        with self.lock:
            self.rules.append(rule)
        return rule

    def cut(self, match, when):
        """cut ends the connection of the first request that matches, at one of the moments above."""
        def act(link, sent):
            if when == UNSENT: return False
            if when == UNCOMMITTED: return link.flush(sent)
            link.server.sendall(sent)
            if when == SENT: return False
            answer = link.answer()
            if when == TORN: link.client.sendall(answer[:len(answer) // 2])
            if when == UNREADY: link.client.sendall(answer[:-6])
            return False
        return self.add(match, act)

    def hold(self, match, meanwhile):
        """hold keeps the answer back while `meanwhile` runs, and until a notification has arrived; both are passed on at
        once."""
        def act(link, sent):
            link.server.sendall(sent)
            answer = link.answer()
            meanwhile()
            answer += link.read(link.server, (b"A",))
            link.client.sendall(answer)
            return True
        return self.add(match, act)
