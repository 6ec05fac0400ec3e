"""A simulated network between a client and a server: bytes pass until a test stops them.

    with Net(("127.0.0.1", port)) as net:  # or a path: a unix socket
        ... a client works through 127.0.0.1:net.port ...
        net.cut()                 # every connection is reset, on both sides
        net.swallow(down=True)    # answers vanish, while connections stay open: also those made from now on
        net.heal()                # new connections work again; a connection that lost bytes never does
        net.fuse(100)             # after 100 more bytes of answers the connection that brings the next one is reset
"""
import os
import socket
import struct
import threading

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing says RST


class Link:
    """A connection and its other half. up and down say whether bytes of that direction vanish."""

    def __init__(self, net, client):
        self.net, self.client = net, client
        self.server = socket.socket(socket.AF_INET if isinstance(net.server, tuple) else socket.AF_UNIX)
        self.up, self.down = net.up, net.down
        self.gone, self.ending = False, threading.Lock()

    def start(self):
        try:
            self.server.connect(self.net.server)
        except OSError:
            return self.reset()
        for run in (self.run_up, self.run_down): threading.Thread(target=run, daemon=True).start()

    def run_up(self):
        self.pump(self.client, self.server, lambda data: b"" if self.up else data)

    def run_down(self):
        self.pump(self.server, self.client, self.pass_down)

    def pass_down(self, data):
        if self.down: return b""
        return self.net.burn(self, data)

    def pump(self, source, to, passed):
        try:
            while data := source.recv(1 << 16): to.sendall(passed(data))
        except OSError:
            pass
        # In a network that drops packets neither side notices that the other closed.
        if not (self.up or self.down): self.close()

    def close(self):
        with self.ending:
            if self.gone: return
            self.gone = True
        for s in (self.client, self.server):
            try:
                s.shutdown(socket.SHUT_RD)  # to wake its reader
            except OSError:
                pass
            s.close()

    def reset(self):
        for s in (self.client, self.server):
            try:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            except OSError:
                pass
        self.close()


class Net:
    def __init__(self, server, port=0):
        self.server = server if isinstance(server, tuple) else os.fspath(server)
        self.port = port       # 0: any that is free
        self.up = self.down = False
        self.links, self.lock = [], threading.Lock()
        self.left = None       # bytes until the fuse blows
        self.drop = None       # a function of an answer's bytes: whether to reset instead of passing it on
        self.blown = 0
        self.made = 0          # connections so far

    def __enter__(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", self.port))
        self.listener.listen(64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for link in self.links: link.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                link = Link(self, client)
                self.links = [old for old in self.links if not old.gone] + [link]
                self.made += 1
            link.start()

    def cut(self):
        with self.lock: links, self.links = self.links, []
        links = [link for link in links if not link.gone]
        for link in links: link.reset()
        return len(links)

    def swallow(self, up=False, down=False):
        with self.lock:
            self.up, self.down = up, down
            for link in self.links: link.up, link.down = link.up or up, link.down or down

    def heal(self):
        with self.lock: self.up = self.down = False

    def fuse(self, n):
        with self.lock: self.left = n

    def burn(self, link, data):
        """burn returns the part of an answer to pass on; the fuse resets the connection in the middle of it."""
        with self.lock:
            if self.drop and self.drop(data): data, self.left, self.drop = b"", 0, None
            if self.left is None: return data
            if self.left >= len(data) > 0:
                self.left -= len(data)
                return data
            data, self.left = data[:self.left], None
            self.blown += 1
        try:
            link.client.sendall(data)
        except OSError:
            pass
        link.reset()
        raise OSError("cut")
