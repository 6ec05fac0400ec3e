"""Several Redis servers: a master with replicas and Sentinels, and a cluster, private and small.

    with Sentinels() as group:
        group.url("stream=s")          # redis-sentinel://...
        group.master().kill()          # a replica becomes the master after a second or two
        group.wait_for_another_master(old)

    with Cluster(3, replicas=1) as cluster:
        cluster.url("stream={type}")   # redis-cluster://...
        cluster.owner("orders").freeze()
"""
import contextlib
import signal
import socket
import time

import servers
from servers import TIMEOUT, free_port

DOWN_AFTER_MS = 1000  # after this time without an answer a server counts as down


def until(predicate, what, timeout=TIMEOUT):
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline: raise RuntimeError(f"not observed within {timeout} s: {what}")
        time.sleep(0.02)
    return value


class Node(servers.Redis):
    """A server that can be frozen, and thawed."""

    password = None
    tls = None  # the folder of certificates: with it the port speaks only TLS

    def prepare(self):
        super().prepare()
        if self.tls: self.settings |= {"port": 0, "tls-port": self.port, **self.certificates()}

    def certificates(self):
        return {"tls-cert-file": f"{self.tls}/server.crt", "tls-key-file": f"{self.tls}/server.key", "tls-ca-cert-file": f"{self.tls}/ca.crt",
                "tls-auth-clients": "no", "tls-replication": "yes"}

    def __call__(self, *args):
        if self.password is None: return super().__call__(*args)
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(TIMEOUT)
            s.connect(str(self.socket))
            parts = [str(a).encode() for a in args]
            for command in ([b"AUTH", self.password.encode()], parts):
                s.sendall(b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in command))
            with s.makefile("rb") as f:
                servers._redis_reply(f)
                return servers._redis_reply(f)

    def end(self, number):
        if self.running(): self.thaw()
        super().end(number)

    def frozen(self):
        with open(f"/proc/{self.popen.pid}/stat") as f: return f.read().rpartition(")")[2].split()[0] == "T"

    def try_ask(self, *args):
        """try_ask returns None if the server is away, stalls, or refuses."""
        try:
            if not self.running() or self.frozen(): return None
            return self(*args)
        except (OSError, RuntimeError):
            return None

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def role(self):
        answer = self.try_ask("ROLE")
        return answer and answer[0]


class Sentinel(Node):
    """A Sentinel that watches a master called `shop`."""

    prefix = "obrs"

    def __init__(self, master, quorum):
        super().__init__()
        self.settings = {}
        self.watched, self.quorum = master, quorum

    def prepare(self):
        super().prepare()
        login = f"requirepass {self.password}\n" if self.password else ""
        port = f"port {self.port}"
        if self.tls: port = "\n".join([f"port 0\ntls-port {self.port}", *(f"{name} {value}" for name, value in self.certificates().items())])
        if self.watched.password: login += f"sentinel auth-pass shop {self.watched.password}\n"
        self.write("sentinel.conf", f"""
{port}
bind 127.0.0.1
unixsocket {self.socket}
dir {self.dir}
sentinel monitor shop 127.0.0.1 {self.watched.port} {self.quorum}
sentinel down-after-milliseconds shop {DOWN_AFTER_MS}
sentinel failover-timeout shop 4000
sentinel parallel-syncs shop 5
{login}""")

    def command(self):
        return [self.PROGRAM, str(self.dir / "sentinel.conf"), "--sentinel"]


class Shared:
    """A mixin: the cases of a class share one Redis, self.redis, which is empty for each."""

    @classmethod
    def setUpClass(cls):
        cls.redis = servers.Redis().start()
        cls.addClassCleanup(cls.redis.close)

    def setUp(self):
        super().setUp()
        self.redis("FLUSHALL")
        self.init()


class Several(servers.Started):
    """Common to Sentinels and clusters: servers that start and end together."""

    def __init__(self):
        self.nodes = []

    def close(self):
        for node in self.nodes: node.close()

    def kill_all(self):
        for node in self.nodes: node.kill()


class Sentinels(Several):
    """A master, its replicas, and Sentinels that promote a replica if the master is down."""

    def __init__(self, replicas=2, sentinels=3, settings=None, password=None, sentinel_password=None, tls=None):
        super().__init__()
        self.tls = tls
        self.password, self.sentinel_password = password, sentinel_password
        self.settings = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1", **(settings or {})}
        self.n_replicas, self.n_sentinels = replicas, sentinels

    def start(self):
        if self.password: self.settings |= {"requirepass": self.password, "masterauth": self.password}
        first = Node(dict(self.settings))
        first.password, first.tls = self.password, self.tls
        first.start()
        self.servers, self.sentinels = [first], []
        self.nodes.append(first)
        for _ in range(self.n_replicas):
            node = Node({**self.settings, "replicaof": f"127.0.0.1 {first.port}"})
            node.password, node.tls = self.password, self.tls
            node.start()
            self.servers.append(node)
            self.nodes.append(node)
        for _ in range(self.n_sentinels):
            sentinel = Sentinel(first, self.n_sentinels // 2 + 1)
            sentinel.password, sentinel.tls = self.sentinel_password, self.tls
            sentinel.start()
            self.sentinels.append(sentinel)
            self.nodes.append(sentinel)
        self.wait_settled()
        return self

    def wait_settled(self):
        """wait_settled waits until every Sentinel knows all the others, and all replicas are in sync."""
        until(lambda: all(len(s.try_ask("SENTINEL", "SENTINELS", "shop") or []) == self.n_sentinels - 1 and
                          len(s.try_ask("SENTINEL", "REPLICAS", "shop") or []) == self.n_replicas for s in self.sentinels),
              "Sentinels know each other")
        until(lambda: f"connected_slaves:{self.n_replicas}" in (self.master()("INFO", "replication")), "replicas are connected")

    def master(self):
        """master returns the server that most Sentinels name and that confirms it."""
        def find():
            names = [tuple(a) for s in self.sentinels if s.running() and (a := s.try_ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "shop"))]
            for node in self.servers:
                if names.count(("127.0.0.1", str(node.port))) > len(self.sentinels) // 2 and node.role() == "master": return node
        return until(find, "there is a master")

    def wait_for_another_master(self, old):
        return until(lambda: (now := self.master()) is not old and now, "another master")

    def url(self, query):
        scheme = "rediss-sentinel" if self.tls else "redis-sentinel"
        return f"{scheme}://" + ",".join(s.address for s in self.sentinels) + f"/shop?{query}"

    def restart_all(self):
        for node in self.nodes: node.start()


class Cluster(Several):
    """Masters that share the slots, and replicas that can replace them."""

    def __init__(self, masters=3, replicas=1, settings=None):
        super().__init__()
        self.n_masters, self.n_replicas = masters, replicas
        self.settings = {"cluster-enabled": "yes", "cluster-node-timeout": DOWN_AFTER_MS, "cluster-replica-validity-factor": "0",
                         "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1", "cluster-migration-barrier": "100",
                         "cluster-require-full-coverage": "no", **(settings or {})}

    def start(self):
        for _ in range(self.n_masters * (1 + self.n_replicas)):
            self.nodes.append(Node({**self.settings, "cluster-port": free_port()}).start())
        masters, replicas = self.nodes[:self.n_masters], self.nodes[self.n_masters:]
        for i, node in enumerate(masters):
            node("CLUSTER", "ADDSLOTSRANGE", i * 16384 // len(masters), (i + 1) * 16384 // len(masters) - 1)
        for i, node in enumerate(self.nodes, 1): node("CLUSTER", "SET-CONFIG-EPOCH", i)
        for node in self.nodes[1:]: self.nodes[0]("CLUSTER", "MEET", "127.0.0.1", node.port, node.settings["cluster-port"])
        until(lambda: all(f"cluster_known_nodes:{len(self.nodes)}" in node("CLUSTER", "INFO") for node in self.nodes), "nodes know each other")
        for i, node in enumerate(replicas):
            master = masters[i % len(masters)]("CLUSTER", "MYID")
            until(lambda: self.replicate(node, master), "the replica knows its master")
        self.wait_settled()
        return self

    @staticmethod
    def replicate(node, master):
        try:
            return node("CLUSTER", "REPLICATE", master) == "OK"
        except RuntimeError:
            return False

    def wait_settled(self):
        until(lambda: all("cluster_state:ok" in (node.try_ask("CLUSTER", "INFO") or "") for node in self.nodes), "the cluster is up")
        until(lambda: all(node.role() == "master" or "master_link_status:up" in node("INFO", "replication") for node in self.nodes),
              "replicas are in sync")
        until(lambda: sum(len(r) > 2 + self.n_replicas for r in self.nodes[0]("CLUSTER", "SLOTS")) >= self.n_masters
              or self.n_replicas == 0, "replicas are known")

    def at(self, port):
        return next(node for node in self.nodes if node.port == int(port))

    def slots(self):
        """slots returns [(first, last, node)], as any server that answers reports them."""
        for node in self.nodes:
            if answer := node.try_ask("CLUSTER", "SLOTS"):
                return [(first, last, self.at(where[1])) for first, last, where, *_ in answer]
        raise RuntimeError("no server answers")

    def slot(self, key):
        return next(node for node in self.nodes if node.running() and not node.frozen())("CLUSTER", "KEYSLOT", key)

    def owner(self, key):
        slot = self.slot(key)
        return next(node for first, last, node in self.slots() if first <= slot <= last)

    def masters(self):
        return list({id(node): node for _, _, node in self.slots()}.values())

    def entries(self, stream):
        """entries returns [(id, [name, value, ...])] of a stream, on any server."""
        return self.owner(stream)("XRANGE", stream, "-", "+")

    def streams(self):
        """streams returns the names of all streams."""
        return sorted(key for node in self.masters() for key in node("KEYS", "*") if node("TYPE", key) == "stream")

    def migrate(self, slot, to):
        """migrate moves a slot with its keys, as redis-cli does."""
        source = next(node for first, last, node in self.slots() if first <= slot <= last)
        if source is to: return
        ids = source("CLUSTER", "MYID"), to("CLUSTER", "MYID")
        to("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        source("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        while keys := source("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        for node in (to, source, *[n for n in self.masters() if n not in (to, source)]):
            node("CLUSTER", "SETSLOT", slot, "NODE", ids[1])

    def url(self, query, seeds=2):
        return "redis-cluster://" + ",".join(node.address for node in self.nodes[:seeds]) + f"/?{query}"

    def restart_all(self):
        for node in self.nodes: node.start()
        self.wait_settled()
