"""A private RabbitMQ, like the servers of PostgreSQL and Redis in tests/lib/servers.py: one node, or a cluster of them.

    with Rabbit() as rabbit:
        rabbit.url("orders", "create=on&queue=q")     # of the sink
        with rabbit.channel() as ch: ch.basic_get("q") # pika, from Debian's python3-pika
        rabbit.eval("rabbit_maintenance:drain().")     # Erlang, on the node

As a program, for tests in C, it starts a node, prints `PORT TLS-PORT FOLDER`, and then answers each line it reads, `eval
ERLANG`, `kill`, `start` or `connections`, with one line. It ends with its input.
"""
import atexit
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from servers import TIMEOUT, Server, clean_env, free_port, make_folder, unprivileged

PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"
# One scheduler that never spins: a node costs about four seconds of processor time to start, and little after that.
ERLANG = "+S 1:1 +SDcpu 1:1 +SDio 2 +A 2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"


class Epmd:
    """The port mapper by which nodes find each other. Erlang would start a daemon that never ends."""

    def __init__(self):
        self.port = free_port()
        self.popen = subprocess.Popen([*unprivileged("KILL"), "epmd", "-port", str(self.port), "-address", "127.0.0.1"], cwd="/",
                                      env=clean_env(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def close(self):
        self.popen.kill()
        self.popen.wait()


class Rabbit(Server):
    """A node. Durable objects survive kill() and start()."""

    prefix, death = "obmq", "KILL"

    def __init__(self, name="a", settings=None, epmd=None, cookie=None):
        super().__init__()
        self.name, self.settings, self.epmd, self.own_epmd = f"{name}@localhost", settings or {}, epmd, epmd is None
        self.launched = None
        self.cookie = cookie or os.urandom(10).hex().upper()

    def prepare(self):
        self.port, self.tls_port, self.dist_port = free_port(), free_port(), free_port()
        if self.own_epmd: self.epmd = Epmd()
        make_certificates(self.dir)
        settings = {"listeners.tcp.1": f"127.0.0.1:{self.port}", "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
                    "ssl_options.cacertfile": self.dir / "ca.crt", "ssl_options.certfile": self.dir / "server.crt",
                    "ssl_options.keyfile": self.dir / "server.key", "ssl_options.verify": "verify_peer",
                    "ssl_options.fail_if_no_peer_cert": "false", "ssl_cert_login_from": "common_name",
                    "auth_mechanisms.1": "PLAIN", "auth_mechanisms.2": "EXTERNAL", "log.file.level": "warning", "log.console": "false",
                    "disk_free_limit.absolute": "1MB", "raft.wal_max_size_bytes": 16000000, **self.settings}
        self.write("rabbitmq.conf", "".join(f"{name} = {value}\n" for name, value in settings.items()))
        self.write("plugins", "[rabbitmq_auth_mechanism_ssl].\n")
        self.write(".erlang.cookie", self.cookie).chmod(0o400)

    def environment(self):
        d = self.dir
        return {"HOME": d, "ERL_EPMD_PORT": self.epmd.port, "ERL_EPMD_ADDRESS": "127.0.0.1", "RABBITMQ_NODENAME": self.name,
                "RABBITMQ_MNESIA_BASE": d / "mnesia", "RABBITMQ_LOG_BASE": d / "logs", "RABBITMQ_LOGS": d / "logs/rabbit.log",
                "RABBITMQ_CONFIG_FILE": d / "rabbitmq.conf", "RABBITMQ_ENABLED_PLUGINS_FILE": d / "plugins",
                "RABBITMQ_GENERATED_CONFIG_DIR": d / "generated", "RABBITMQ_FEATURE_FLAGS_FILE": d / "flags",
                "RABBITMQ_PID_FILE": d / "pid", "RABBITMQ_DIST_PORT": self.dist_port, "RABBITMQ_CONF_ENV_FILE": "/dev/null",
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG, "RUNNING_UNDER_SYSTEMD": "1"}

    def command(self):
        return ["env", *(f"{name}={value}" for name, value in self.environment().items()), PROGRAM]

    def launch(self):
        """launch starts the node, without waiting for it; start() does that."""
        if self.dir is None:
            atexit.register(self.close)
            self.dir = make_folder(self.prefix)
            self.prepare()
        with open(self.dir / "log", "ab") as log:
            self.launched = subprocess.Popen([*unprivileged(self.death), *self.command()], cwd="/", env=clean_env(),
                                             stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def start(self):
        """start is more patient than for other servers: with a twentieth of the machine a node needs over a minute."""
        if not self.launched: self.launch()
        self.popen, self.launched = self.launched, None
        deadline = time.monotonic() + 4 * TIMEOUT
        while not self.ready():
            if self.popen.poll() is not None or time.monotonic() > deadline: raise RuntimeError(f"Rabbit did not start\n{self.log()}")
        return self

    def ready(self):
        """ready queries a few times a second at most: a node needs seconds to start, and every query delays it."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            time.sleep(0.1)
            return False

    def stop(self):
        self.kill()  # confirmed messages are on disk, and a node takes seconds to shut down
        if self.dir is None: return

    def close(self):
        super().close()
        if self.own_epmd and self.epmd:
            self.epmd.close()
            self.epmd = None

    def cpu(self):
        """cpu is how many seconds of processor time the node has used."""
        fields = pathlib.Path(f"/proc/{self.popen.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def eval(self, erlang):
        """eval evaluates Erlang expressions on the node, each ended by a full stop, and returns the last value as text."""
        done = subprocess.run([*unprivileged("KILL"), "erl_call", "-sname", self.name, "-c", self.cookie, "-e"], input=erlang + "\n", text=True,
                              cwd="/", env={**clean_env(), "HOME": str(self.dir), "ERL_EPMD_PORT": str(self.epmd.port)}, capture_output=True)
        if done.returncode or not done.stdout.startswith("{ok, "): raise RuntimeError(f"{erlang}: {done.stdout}{done.stderr}")
        return done.stdout[5:].rstrip()[:-1]

    def connections(self):
        """connections returns the names that clients have chosen for their connections."""
        return self.eval("[proplists:get_value(client_properties, I) || I <- rabbit_networking:connection_info_all([client_properties])].")

    def alarm(self, on=True):
        """alarm does what `rabbitmqctl set_vm_memory_high_watermark` does: close to zero, the broker blocks publishers."""
        self.eval(f"vm_memory_monitor:set_vm_memory_high_watermark({'0.0000001' if on else '0.6'}), vm_memory_monitor ! update.")

    def disk_alarm(self, on=True):
        """disk_alarm does what `rabbitmqctl set_disk_free_limit` does: the limit exceeds the size of any disk."""
        limit = 1 << 60 if on else 1 << 20
        self.eval(f"rabbit_disk_monitor:set_disk_free_limit({limit}).")

    def url(self, exchange, query="", scheme="amqp", vhost="%2F", user=""):
        port = self.tls_port if scheme == "amqps" else self.port
        return f"{scheme}://{user}127.0.0.1:{port}/{vhost}/{exchange}?{query}"

    @contextlib.contextmanager
    def channel(self):
        """channel returns a pika channel with confirms off, on a separate connection."""
        import pika
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0, socket_timeout=20))
        try:
            yield connection.channel()
        finally:
            with contextlib.suppress(Exception): connection.close()

    def declare(self, exchange="orders", queue="q", kind="topic", binding="#", **arguments):
        """declare creates an exchange and a quorum queue bound to it; arguments are the queue's, with _ for -."""
        arguments = {"x-queue-type": "quorum", **{name.replace("_", "-"): value for name, value in arguments.items()}}
        with self.channel() as ch:
            ch.exchange_declare(exchange, kind, durable=True)
            ch.queue_declare(queue, durable=True, arguments={k: v for k, v in arguments.items() if v is not None})
            ch.queue_bind(queue, exchange, binding)

    def take(self, queue="q", many=None):
        """take removes every message from a queue, or a given number: [(routing key, properties, body)]."""
        got = []
        with self.channel() as ch:
            while many is None or len(got) < many:
                method, properties, body = ch.basic_get(queue, auto_ack=True)
                if method is None: break
                got.append((method.routing_key, properties, body))
        return got

    def delete(self, *names):
        """delete deletes queues and exchanges of these names."""
        with self.channel() as ch:
            for name in names:
                ch.queue_delete(name)
                ch.exchange_delete(name)


class Cluster:
    """Nodes that have joined the first."""

    def __init__(self, many=3):
        self.nodes, self.epmd = [], None
        self.many = many

    def __enter__(self):
        self.epmd = Epmd()
        first = Rabbit("n0", epmd=self.epmd)
        self.nodes = [first, *(Rabbit(f"n{i}", epmd=self.epmd, cookie=first.cookie) for i in range(1, self.many))]
        names = {f"cluster_formation.classic_config.nodes.{i + 1}": n.name for i, n in enumerate(self.nodes)}
        for node in self.nodes:
            node.settings = {"cluster_formation.peer_discovery_backend": "classic_config", **names}
            node.start()
        return self

    def __exit__(self, *_):
        for node in self.nodes: node.close()
        self.epmd.close()

    def kill_all(self):
        """kill_all kills all nodes at once, so that no node sees another disappear. Nodes that saw each other disappear in
        different orders may report a partition after the restart and elect no queue leaders."""
        for node in self.nodes: node.freeze()
        for node in self.nodes: node.kill()

    def start_all(self):
        """start_all starts all nodes at once: a node that did not stop last waits for the others."""
        for node in self.nodes: node.launch()
        for node in self.nodes: node.start()

    def url(self, exchange, query=""):
        hosts = ",".join(f"127.0.0.1:{n.port}" for n in self.nodes)
        return f"amqp://{hosts}/%2F/{exchange}?{query}"


def make_certificates(folder):
    """make_certificates creates a CA, a server certificate for 127.0.0.1, and a certificate of a client called `courier`."""
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    subprocess.run(["sh", "-ec", f"""cd {folder}
        openssl req -x509 {key} -days 2 -subj /CN=test-ca -keyout ca.key -out ca.crt
        for who in server courier; do
            name=$who; [ $who = courier ] || name=127.0.0.1
            openssl req {key} -subj /CN=$name -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout $who.key -out $who.csr
            openssl x509 -req -in $who.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copy -out $who.crt
        done
        chmod 644 *.key"""], check=True, capture_output=True)


def serve():
    with Rabbit() as rabbit:
        print(rabbit.port, rabbit.tls_port, rabbit.dir, flush=True)
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "eval": said = rabbit.eval(rest).replace("\n", " ")
            elif word == "kill": said = rabbit.kill()
            elif word == "start": said = rabbit.start() and "started"
            elif word == "pause": said = rabbit.freeze()
            elif word == "cont": said = rabbit.thaw()
            elif word == "alarm": said = rabbit.alarm(rest == "on")
            else: said = f"unknown: {word}"
            print(said, flush=True)


if __name__ == "__main__": serve()
