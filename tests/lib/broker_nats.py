"""A private NATS server with JetStream, like those of PostgreSQL and Redis in tests/lib/servers.py: one, or a cluster of them.

    with Nats() as nats:
        nats.stream("ORDERS", subjects=["orders.>"])
        nats.url("orders.{type}", "stream=ORDERS")     # of the sink
        nats.messages("ORDERS")                        # [Message], all of them
    with Cluster(3) as cluster:
        cluster.stream("ORDERS", subjects=["orders.>"], num_replicas=3)
        cluster.leader("ORDERS").kill()

The client here is a few lines of the protocol, so that a test needs no library; the scenarios use third-party clients.
"""
import base64
import contextlib
import json
import os
import signal
import socket
import time
import typing

from servers import Server, free_port

MAX_WAIT = 20


class Message(typing.NamedTuple):
    subject: str
    seq: int
    headers: dict
    data: bytes


class Client:
    """One connection. It answers no pings: it does not live that long."""

    def __init__(self, port, user=None, password=None, patience=MAX_WAIT):
        self.socket = socket.create_connection(("127.0.0.1", port), patience)
        self.file = self.socket.makefile("rb")
        self.info = json.loads(self.file.readline()[5:])
        login = {"user": user, "pass": password} if user else {}
        self.send(f"CONNECT {json.dumps({'verbose': False, 'pedantic': False, 'headers': True, 'no_responders': True, **login})}")
        self.inbox, self.asked = f"_INBOX.{os.urandom(8).hex()}", 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def send(self, line, data=None):
        self.socket.sendall(line.encode() + b"\r\n" + (b"" if data is None else data + b"\r\n"))

    def next(self):
        """next returns (subject, reply, headers, data) of the next message."""
        while line := self.file.readline():
            words = line.decode().split()
            if words[0] == "PING": self.send("PONG")
            if words[0] == "-ERR": raise RuntimeError(line.decode())
            if words[0] not in ("MSG", "HMSG"): continue
            size, head = int(words[-1]), int(words[-2]) if words[0] == "HMSG" else 0
            body = self.file.read(size + 2)[:-2]
            rest = words[3:-1] if words[0] == "MSG" else words[3:-2]
            return words[1], rest[0] if rest else None, parse(body[:head]), body[head:]
        raise ConnectionError("the server has closed the connection")

    def request(self, subject, body=b""):
        """request returns the answer: (headers, data)."""
        self.asked += 1
        inbox = f"{self.inbox}.{self.asked}"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send(f"SUB {inbox} {self.asked}")
        self.send(f"PUB {subject} {inbox} {len(data)}", data)
        while True:
            got, _, headers, answer = self.next()
            if got == inbox: break
        self.send(f"UNSUB {self.asked}")
        return headers, answer

    def api(self, what, body=b""):
        """api sends a request to JetStream and raises an error answer."""
        headers, data = self.request(f"$JS.API.{what}", body)
        if not data: raise LookupError(f"{what}: {headers}")
        answer = json.loads(data)
        if "error" in answer: raise LookupError(f"{what}: {answer['error']}")
        return answer

    def messages(self, stream, first=1):
        """messages returns all of a stream, by a temporary consumer."""
        self.asked += 1
        subject = f"{self.inbox}-{self.asked}"
        self.send(f"SUB {subject} {self.asked}")
        config = {"deliver_policy": "by_start_sequence", "opt_start_seq": first, "ack_policy": "none", "deliver_subject": subject,
                  "replay_policy": "instant", "mem_storage": True, "num_replicas": 1, "inactive_threshold": 2_000_000_000}
        found = []
        sid = self.asked
        self.asked += 1
        inbox = f"{self.inbox}.{self.asked}"
        data = json.dumps({"stream_name": stream, "config": config}).encode()
        self.send(f"SUB {inbox} {self.asked}")
        self.send(f"PUB $JS.API.CONSUMER.CREATE.{stream} {inbox} {len(data)}", data)
        pending = None
        while pending is None or len(found) < pending:
            got, reply, headers, body = self.next()
            if got == inbox:
                answer = json.loads(body)
                if "error" in answer: raise LookupError(f"{stream}: {answer['error']}")
                pending = answer["num_pending"] + answer["delivered"]["consumer_seq"]
            elif reply: found.append(Message(got, int(reply.split(".")[5]), headers, body))
        self.send(f"UNSUB {sid}")
        return found

    def messages_of_leader(self, stream, at_once=200):
        """messages_of_leader returns every message of a stream from its leader. A consumer may read from a replica that is
        behind."""
        last = self.api(f"STREAM.INFO.{stream}")["state"]["last_seq"]
        self.asked += 1
        inbox, found = f"{self.inbox}.{self.asked}", {}
        self.send(f"SUB {inbox}.* {self.asked}")
        for first in range(1, last + 1, at_once):
            asked = range(first, min(first + at_once, last + 1))
            for seq in asked:
                data = json.dumps({"seq": seq}).encode()
                self.send(f"PUB $JS.API.STREAM.MSG.GET.{stream} {inbox}.{seq} {len(data)}", data)
            answered = set()
            while len(answered) < len(asked):
                got, _, _, body = self.next()
                seq, message = int(got.rpartition(".")[2]), json.loads(body or b"{}").get("message")
                answered.add(seq)
                if not message: raise LookupError(f"{stream}: message {seq}: {body}")
                found[seq] = Message(message["subject"], seq, parse(base64.b64decode(message.get("hdrs", ""))),
                                     base64.b64decode(message.get("data", "")))
        self.send(f"UNSUB {self.asked}")
        return [found[seq] for seq in sorted(found)]


def parse(head):
    """parse reads headers. The first line may have a status."""
    lines = head.decode().split("\r\n")
    headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    status = lines[0].split()[1:2]
    return {**headers, **({"status": status[0]} if status else {})}


class Nats(Server):
    """A server. Its files survive kill() and start()."""

    prefix, death = "obnt", "KILL"

    def __init__(self, config="", name="n1", login=()):
        super().__init__()
        self.config, self.name, self.login = config, name, login
        self.cluster, self.patience = "", MAX_WAIT

    def prepare(self):
        self.port = free_port()

    def command(self):
        self.write("conf", f'server_name: {self.name}\nhost: 127.0.0.1\nport: {self.port}\n'
                           f'jetstream {{ store_dir: "{self.dir}/js", max_file_store: 2GB, max_memory_store: 64MB }}\n'
                           f"{self.cluster}\n{self.config}\n")
        return ["nats-server", "-c", str(self.dir / "conf")]

    def ready(self):
        try:
            with self.client() as c: return bool(self.cluster or c.api("INFO"))
        except (OSError, LookupError, ValueError):
            return False

    def stop(self):
        self.kill()

    def reload(self, config):
        self.config = config
        before = self.log().count("Reloaded server configuration")
        self.command()
        self.popen.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + MAX_WAIT
        while self.log().count("Reloaded server configuration") == before:
            if time.monotonic() > deadline: raise RuntimeError(self.log())
            time.sleep(0.01)

    def client(self):
        return Client(self.port, *self.login, patience=self.patience)

    def api(self, what, body=b""):
        with self.client() as c: return c.api(what, body)

    def stream(self, name, **config):
        """stream creates a stream, which must not exist."""
        return self.api(f"STREAM.CREATE.{name}", {"name": name, **config})

    def update(self, name, **config):
        return self.api(f"STREAM.UPDATE.{name}", {"name": name, **config})

    def delete(self, name):
        return self.api(f"STREAM.DELETE.{name}")

    def info(self, name):
        return self.api(f"STREAM.INFO.{name}")

    def messages(self, name):
        with self.client() as c: return c.messages(name)

    def url(self, subject, query, port=None):
        return f"nats://127.0.0.1:{port or self.port}/{subject}?{query}"


class Cluster:
    """Servers that know each other. Each has its own folder and ports."""

    def __init__(self, n):
        self.nodes = [Nats(name=f"n{i + 1}") for i in range(n)]

    def __enter__(self):
        self.routes = [free_port() for _ in self.nodes]
        try:
            for node, port in zip(self.nodes, self.routes):
                routes = ", ".join(f"nats://127.0.0.1:{other}" for other in self.routes if other != port)
                node.cluster = f"cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}] }}"
                node.patience = 1  # requests to a stream without a leader get no answer
                node.start()
            self.wait_leader()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for node in self.nodes: node.close()

    def running(self):
        return [node for node in self.nodes if node.running()]

    def api(self, what, body=b"", wait=MAX_WAIT):
        """api asks any server that answers: after a kill a new leader takes a moment."""
        deadline = time.monotonic() + wait
        while True:
            for node in self.running():
                with contextlib.suppress(OSError, LookupError, ConnectionError, ValueError):
                    return node.api(what, body)
            if time.monotonic() > deadline: raise RuntimeError(f"no server answers {what}")
            time.sleep(0.05)

    def wait_leader(self):
        """wait_leader waits until a stream can be replicated on all servers."""
        self.api("STREAM.CREATE.probe", {"name": "probe", "subjects": ["probe"], "num_replicas": len(self.nodes)})
        self.api("STREAM.DELETE.probe")

    def stream(self, name, **config):
        return self.api(f"STREAM.CREATE.{name}", {"name": name, **config})

    def leader(self, stream):
        name = self.api(f"STREAM.INFO.{stream}")["cluster"].get("leader")
        return next((node for node in self.nodes if node.name == name), None)

    def messages(self, stream, of_leader=False, wait=MAX_WAIT):
        """messages returns every message of a stream; with of_leader from its leader, else from any replica, which may be
        behind."""
        deadline = time.monotonic() + wait
        while True:
            for node in self.running():
                with contextlib.suppress(OSError, LookupError, ConnectionError, ValueError), node.client() as c:
                    return c.messages_of_leader(stream) if of_leader else c.messages(stream)
            if time.monotonic() > deadline: raise RuntimeError(f"no server returns the messages of {stream}")
            time.sleep(0.05)

    def url(self, subject, query):
        return f"nats://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}/{subject}?{query}"
