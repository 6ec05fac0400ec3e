"""Apache Kafka for tests: private, in KRaft mode, one broker or several, ended with the process that started them.

    with Kafka() as kafka:
        kafka.create("orders", partitions=3)
        ... kafka://{kafka.hosts}/orders ...
        kafka.read("orders")     # [Message], partition by partition

    with Cluster(3) as kafka: kafka.brokers[0].kill()

Kafka comes from Maven Central through packaging/packages.sh, into a cache outside the tree, and runs on Debian's Java 17.
available() tells whether it is installed. Listeners, all on 127.0.0.1: plain (hosts), plain behind a port on which a test may
place a proxy (proxy_port), SASL with SCRAM and PLAIN (sasl_hosts), TLS (tls_hosts), and SASL over TLS (sasl_tls_hosts)."""
import atexit
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import typing

import servers
from servers import Server, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = re.search(r"<kafka.version>(.*)</kafka.version>", (ROOT / "packaging/kafka/pom.xml").read_text())[1]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "outbox-tests"
JARS = CACHE / f"kafka-{VERSION}"
NODE = CACHE / "kafkajs" / "node_modules"
BIN = pathlib.Path(os.environ.get("OUTBOX_BIN", ROOT / "build" / "outbox")).resolve()
TOOL = BIN.parent / "tests" / "contract" / "kafka_tool"
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
USER, PASSWORD = "relay", "s3cret-of-kafka"
# Settings of a broker with ACLs. Anonymous clients may do everything.
RULES = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
         "allow.everyone.if.no.acl.found": "true", "super.users": "User:ANONYMOUS"}
# A test broker lives for seconds: no slow compiler, no multi-threaded garbage collector.
JAVA = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]


def unavailable():
    """unavailable returns why Kafka is not available here, or None."""
    if not shutil.which("java"): return "Java is missing: install default-jre-headless"
    if not JARS.is_dir(): return f"Apache Kafka {VERSION} is not in {CACHE}: ./test downloads it, if Maven Central can be reached"
    if not TOOL.exists(): return f"{TOOL} is not built: it needs librdkafka-dev"
    return None


def home():
    """home returns the folder of the jars, readable by the servers' user, with an archive of their classes, which halves a
    broker's start-up time."""
    if os.geteuid() != 0: place = JARS
    else: place = pathlib.Path("/var/tmp") / f"outbox-tests-{os.geteuid()}" / JARS.name
    place.parent.mkdir(mode=0o755, exist_ok=True)
    if place.parent.stat().st_uid != os.geteuid(): raise RuntimeError(f"{place.parent} belongs to another user")
    with open(place.parent / "kafka.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            draft = pathlib.Path(tempfile.mkdtemp(dir=place.parent))
            for jar in JARS.glob("*.jar"): shutil.copy2(jar, draft)
            draft.chmod(0o755)
            draft.rename(place)
        if not (place / "classes.jsa").exists(): archive(place)
    return place


def archive(place):
    """archive starts and stops a broker once and keeps the archive of the classes it used."""
    broker = Kafka(place=place)
    try:
        broker.archive = True
        broker.start()
        broker.create("t")
        broker.end(signal.SIGTERM)
        made = broker.dir / "classes.jsa"
        if made.exists():
            draft = place / "classes.draft"
            shutil.copyfile(made, draft)
            draft.chmod(0o644)
            draft.rename(place / "classes.jsa")
    finally:
        broker.close()


class Message(typing.NamedTuple):
    partition: int
    offset: int
    key: typing.Optional[str]
    value: str
    headers: dict

    @property
    def json(self):
        return json.loads(self.value)


class Topics:
    """Operations on topics, through self.hosts."""

    def tool(self, *args):
        done = subprocess.run([TOOL, self.hosts, *map(str, args)], capture_output=True, text=True, timeout=90)
        if done.returncode: raise RuntimeError(f"kafka_tool {args}: {done.stderr}")
        return done.stdout

    def create(self, topic, partitions=1, replicas=1, **settings):
        pairs = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
        self.tool("create", topic, partitions, replicas, *pairs)
        return topic

    def delete(self, topic):
        self.tool("delete", topic)

    def configure(self, topic, **settings):
        self.tool("config", topic, *(f"{name.replace('_', '.')}={value}" for name, value in settings.items()))

    def deny(self, topic, user=USER):
        """deny revokes a user's right to write until permit; the broker must have RULES."""
        self.tool("deny", topic, user)

    def permit(self, topic, user=USER):
        self.tool("permit", topic, user)

    def set_for(self, kind, name, add=None, remove=None):
        """set_for sets or removes a setting of users or clients: quotas and credentials."""
        change = ["--add-config", add] if add else ["--delete-config", remove]
        self.java("kafka.admin.ConfigCommand", "--bootstrap-server", self.hosts, "--alter", "--entity-type", kind, "--entity-name",
                  name, *change)

    def read(self, topic, committed=False):
        lines = self.tool("read", topic, *(["committed"] if committed else [])).splitlines()
        found = (json.loads(line) for line in lines)
        return sorted(Message(m["partition"], m["offset"], m["key"], m["value"], dict(m["headers"])) for m in found)

    def java(self, main, *args, input=None, timeout=120):
        """java runs one of Kafka's own tools."""
        argv = ["java", "-Xmx128m", *JAVA, "-cp", f"{JARS}/*", main, *map(str, args)]
        done = subprocess.run(argv, capture_output=True, text=True, input=input, timeout=timeout)
        if done.returncode: raise RuntimeError(f"{main}: {done.stdout}{done.stderr}")
        return done.stdout


class Kafka(Server, Topics):
    """One broker that is its own controller; or, with `voters` ({node: port of its controller}), one of several."""

    prefix, death = "obkf", "KILL"
    archive = one_of_several = False

    def __init__(self, settings=None, node=1, voters=None, place=None):
        super().__init__()
        self.extra, self.node, self.place = settings or {}, node, place
        self.port, self.inner_port, self.proxy_port = free_port(), free_port(), free_port()
        self.sasl_port, self.tls_port, self.sasl_tls_port = free_port(), free_port(), free_port()
        self.voters = voters or {node: free_port()}
        at = lambda port: f"127.0.0.1:{port}"
        self.hosts, self.proxy_hosts = at(self.port), at(self.proxy_port)
        self.sasl_hosts, self.tls_hosts, self.sasl_tls_hosts = at(self.sasl_port), at(self.tls_port), at(self.sasl_tls_port)

    def prepare(self):
        self.jars = self.place or home()
        self.make_certificates()
        listeners = {"PLAIN": self.port, "INNER": self.inner_port, "SASL": self.sasl_port, "TLS": self.tls_port,
                     "SASLTLS": self.sasl_tls_port, "CONTROLLER": self.voters[self.node]}
        advertised = {**listeners, "INNER": self.proxy_port}
        few = min(3, len(self.voters))
        login = "org.apache.kafka.common.security"
        plain = f'{login}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        scram = f"{login}.scram.ScramLoginModule required;"
        settings = {
            "process.roles": "broker,controller", "node.id": self.node, "log.dirs": self.dir / "data",
            "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.voters.items()),
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
            "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in advertised.items()
                                             if name != "CONTROLLER"),
            "listener.security.protocol.map":
                "PLAIN:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,SASLTLS:SASL_SSL",
            "controller.listener.names": "CONTROLLER", "inter.broker.listener.name": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            **{f"listener.name.{name}.plain.sasl.jaas.config": plain for name in ("sasl", "sasltls")},
            **{f"listener.name.{name}.scram-sha-{n}.sasl.jaas.config": scram for name in ("sasl", "sasltls") for n in (256, 512)},
            "ssl.keystore.type": "PEM", "ssl.keystore.location": self.dir / "server.pem",
            "ssl.truststore.type": "PEM", "ssl.truststore.location": self.dir / "ca.crt",
            "offsets.topic.replication.factor": few, "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": few, "transaction.state.log.min.isr": max(1, few - 1),
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": few, "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": "false", "num.network.threads": 1,
            "num.io.threads": 2, "background.threads": 2, "log.cleaner.enable": "false",
            "broker.heartbeat.interval.ms": 500, "broker.session.timeout.ms": 3000, "controller.quorum.election.timeout.ms": 500,
            "controller.quorum.fetch.timeout.ms": 1500, "replica.lag.time.max.ms": 3000, **self.extra}
        self.write("server.properties", "".join(f"{name}={value}\n" for name, value in settings.items()))
        scrams = [f"--add-scram=SCRAM-SHA-{n}=[name={USER},password={PASSWORD}]" for n in (256, 512)]
        self.run(*self.java_command("kafka.tools.StorageTool"), "format", "-t", CLUSTER_ID, "-c",
                 str(self.dir / "server.properties"), *scrams)

    def make_certificates(self):
        """make_certificates: a CA (ca.crt), the broker's key and certificate (server.pem) for 127.0.0.1."""
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        at = lambda name: str(self.dir / name)
        self.run("openssl", "req", "-x509", *key, "-days", "2", "-subj", "/CN=test-ca", "-keyout", at("ca.key"), "-out", at("ca.crt"))
        self.run("openssl", "req", *key, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
                 at("server.key"), "-out", at("s.csr"))
        self.run("openssl", "x509", "-req", "-in", at("s.csr"), "-CA", at("ca.crt"), "-CAkey", at("ca.key"), "-CAcreateserial",
                 "-days", "2", "-copy_extensions", "copy", "-out", at("server.crt"))
        parts = [(self.dir / name).read_text() for name in ("server.key", "server.crt", "ca.crt")]
        self.write("server.pem", "".join(parts))
        (self.dir / "ca.crt").chmod(0o644)

    def java_command(self, main):
        archive = self.jars / "classes.jsa"
        share = [f"-XX:ArchiveClassesAtExit={self.dir}/classes.jsa"] if self.archive and main == "kafka.Kafka" else []
        if archive.exists(): share = [f"-XX:SharedArchiveFile={archive}"]
        path = ":".join(sorted(str(jar) for jar in self.jars.glob("*.jar")))
        return ["java", "-Xmx256m", *JAVA, *share, "-cp", path, main]

    def command(self):
        return [*self.java_command("kafka.Kafka"), str(self.dir / "server.properties")]

    def ready(self):
        """ready tells whether the broker accepts requests. One of a cluster does not wait for itself: it is not ready before the
        others."""
        return self.one_of_several or self.takes_requests()

    def takes_requests(self):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        self.end(signal.SIGKILL)  # a clean stop takes seconds

    def restart(self):
        self.kill()
        return self.start()

    def fill_disk(self, room=0):
        """fill_disk lets no file of the broker grow more than `room` bytes beyond its largest segment; the write fails with
        EFBIG, which the broker treats like a full disk. A small file system or quotas would need root, or a kernel that lets
        users mount."""
        largest = max((path.stat().st_size for path in (self.dir / "data").glob("*/*.log")), default=0)
        self.run("prlimit", f"--pid={self.popen.pid}", f"--fsize={largest + room}:")


class Cluster(servers.Started, Topics):
    """Several brokers, each a controller, too."""

    def __init__(self, n=3, settings=None):
        voters = {node: free_port() for node in range(1, n + 1)}
        self.brokers = [Kafka(settings, node, voters) for node in voters]
        home()
        for broker in self.brokers: broker.one_of_several = True

    @property
    def hosts(self):
        return ",".join(broker.hosts for broker in self.brokers)

    def start(self):
        atexit.register(self.close)
        for broker in self.brokers: broker.start()
        self.wait()
        return self

    def wait(self, brokers=None):
        """wait waits until all brokers accept requests."""
        deadline = time.monotonic() + servers.TIMEOUT
        for broker in brokers or self.brokers:
            while not broker.takes_requests():
                if not broker.running() or time.monotonic() > deadline: raise RuntimeError(f"no broker\n{broker.log()}")
                time.sleep(0.05)

    def close(self):
        atexit.unregister(self.close)
        for broker in self.brokers: broker.close()
