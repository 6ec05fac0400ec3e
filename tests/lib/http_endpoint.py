"""An HTTP endpoint with misbehaviour that a test chooses. Real sockets, on a separate loopback port.

    with Endpoint(lambda request: answer(503, {"Retry-After": "1"})) as endpoint:
        ... a relay delivers to endpoint.url ...
        endpoint.requests[0].headers["webhook-id"]

`behave` receives each whole request and returns the bytes to send (answer() makes them), None to close the connection without an answer,
or a generator of bytes to send one after the other. It may be changed at any time.
"""
import pathlib
import socket
import ssl
import subprocess
import threading
import time

import servers


def answer(status=204, headers=None, body=b"", close=False):
    lines = [f"HTTP/1.1 {status} Whatever"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if not any(name.lower() in ("content-length", "transfer-encoding") for name in headers or {}):
        if status != 204: lines.append(f"Content-Length: {len(body)}")
    if close: lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Request:
    def __init__(self, head, body):
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.path, _ = first.split(" ", 2)
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.body, self.at, self.answered = body, time.monotonic(), False
        self.id = self.headers.get("webhook-id")


class Endpoint:
    """(1) requests are in order of arrival; `answered` of each tells whether its whole answer was sent."""

    def __init__(self, behave=None, tls=None):
        self.behave = behave or (lambda request: answer())
        self.tls = tls
        self.requests, self.connections = [], 0
        self.port, self.listener = 0, None
        self.lock, self.open = threading.Lock(), set()

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/hook"

    def start(self):
        self.port = self.port or servers.free_port()
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", self.port))
        self.listener.listen(256)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()
        return self

    def stop(self):
        """stop closes the port and every connection at once."""
        if self.listener:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
        self.listener = None
        self.hang_up()

    def hang_up(self):
        with self.lock: connections = list(self.open)
        for sock in connections:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def _accept(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        try:
            if self.tls: sock = self.tls.wrap_socket(sock, server_side=True)
            with self.lock:
                self.open.add(sock)
                self.connections += 1
            data = b""
            while (found := self._read(sock, data)) is not None:
                request, data = found
                if not self._reply(sock, request): break
        except (OSError, ssl.SSLError):
            pass
        finally:
            with self.lock: self.open.discard(sock)
            sock.close()

    def _read(self, sock, data):
        while b"\r\n\r\n" not in data:
            more = sock.recv(65536)
            if not more: return None
            data += more
        head, _, data = data.partition(b"\r\n\r\n")
        size = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length: "): size = int(line[16:])
        while len(data) < size:
            more = sock.recv(65536)
            if not more: return None
            data += more
        request = Request(head, data[:size])
        with self.lock: self.requests.append(request)
        return request, data[size:]

    def _reply(self, sock, request):
        said = self.behave(request)
        if said is None: return False
        for part in [said] if isinstance(said, bytes) else said: sock.sendall(part)
        request.answered = True
        return True


def certificates(folder, authority=None, days=2):
    """certificates creates a certificate authority, or reuses the one in another folder, and a certificate signed by it for
    127.0.0.1 and localhost, valid for so many days; -1: expired. It returns the paths (authority, certificate, key)."""
    folder = pathlib.Path(folder)
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]

    def run(*argv):
        subprocess.run([str(a) for a in argv], check=True, capture_output=True)
    if authority is None:
        authority = folder
        run(*new, "-x509", "-days", 2, "-subj", "/CN=test authority", "-keyout", folder / "ca.key", "-out", folder / "ca.pem")
    run(*new, "-subj", "/CN=endpoint", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
        "-keyout", folder / "end.key", "-out", folder / "end.csr")
    run("openssl", "x509", "-req", "-in", folder / "end.csr", "-CA", authority / "ca.pem", "-CAkey", authority / "ca.key",
        "-CAcreateserial", "-days", days, "-copy_extensions", "copy", "-out", folder / "end.pem")
    return authority / "ca.pem", folder / "end.pem", folder / "end.key"


def server_context(certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
