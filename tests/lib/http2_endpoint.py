"""An HTTP/2 endpoint that sends GOAWAY when a test wants it. It reads bodies alone and skips headers.

    with Http2(tls=server_context(certificate, key), limit=5) as endpoint:  # it sends GOAWAY after five requests on a
        connection ... a relay delivers to endpoint.url; without TLS it needs webhook-http = 2 ... endpoint.bodies
        # of the requests that were answered, in order
"""
import contextlib
import socket
import struct
import threading

import servers

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
NO_ERROR, REFUSED_STREAM = 0, 7
STATUS_204 = b"\x89"  # the ninth of the names and values that both sides know


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


class Http2:
    """(1) bodies are in the order in which they were answered. (2) limit: how many requests of a connection are answered before
    GOAWAY, which names the last of them; None: all. (3) refuse: a stream opened with or after the GOAWAY is reset as refused;
    otherwise it gets no answer. The connection is closed as soon as nothing is left to answer."""

    def __init__(self, tls=None, limit=None, refuse=False):
        self.tls, self.limit, self.refuse = tls, limit, refuse
        if tls: tls.set_alpn_protocols(["h2"])
        self.bodies, self.refused, self.goaways, self.connections = [], 0, 0, 0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/hook"

    def __enter__(self):
        self.port = servers.free_port()
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        self.connections += 1
        with contextlib.suppress(OSError, EOFError), sock if not self.tls else self.tls.wrap_socket(sock, server_side=True) as sock:
            stream = sock.makefile("rb")
            if self.read(stream, len(PREFACE)) != PREFACE: return
            sock.sendall(frame(SETTINGS, 0, 0))
            Connection(self, sock, stream).run()

    @staticmethod
    def read(stream, n):
        data = stream.read(n)
        if len(data) < n: raise EOFError
        return data


class Connection:
    def __init__(self, endpoint, sock, stream):
        self.endpoint, self.sock, self.stream = endpoint, sock, stream
        self.parts, self.answered, self.last, self.gone = {}, 0, 0, False

    def run(self):
        """run answers requests until GOAWAY; then it keeps reading for a moment, so that no reset cuts off requests under
        way."""
        while True:
            head = Http2.read(self.stream, 9)
            size, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:], "big")
            payload = Http2.read(self.stream, size)
            if kind == SETTINGS and not flags & ACK: self.sock.sendall(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK: self.sock.sendall(frame(PING, ACK, 0, payload))
            elif kind == HEADERS: self.parts[stream] = b""
            elif kind == DATA: self.take(stream, payload)
            if kind in (DATA, HEADERS) and flags & END_STREAM: self.whole(stream)

    def take(self, stream, payload):
        self.parts[stream] += payload
        if not payload: return
        for which in (0, stream): self.sock.sendall(frame(WINDOW_UPDATE, 0, which, struct.pack(">I", len(payload))))

    def whole(self, stream):
        """whole answers a request unless it arrived past the limit. Requests below the last one that GOAWAY names were promised
        an answer."""
        endpoint = self.endpoint
        if endpoint.limit is not None and self.answered >= endpoint.limit and stream > self.last: return self.turn_away(stream)
        with endpoint.lock: endpoint.bodies.append(self.parts[stream])
        self.answered += 1
        if not self.gone: self.last = max(self.last, stream)
        self.sock.sendall(frame(HEADERS, END_STREAM | END_HEADERS, stream, STATUS_204))

    def turn_away(self, stream):
        endpoint = self.endpoint
        endpoint.refused += 1
        if not self.gone:
            self.gone = True
            endpoint.goaways += 1
            self.sock.sendall(frame(GOAWAY, 0, 0, struct.pack(">II", self.last, NO_ERROR)))
            if not endpoint.refuse: self.sock.settimeout(0.2)
        if endpoint.refuse: self.sock.sendall(frame(RST_STREAM, 0, stream, struct.pack(">I", REFUSED_STREAM)))
