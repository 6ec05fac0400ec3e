"""The brokers as the fault suites see them: each is an adapter with one server, on which every test creates a destination.

An adapter states how a relay reports each fault (AWAY, SILENT, ...) and how many repeats a fault may cause: `repeats` returns
that for the events sent so far."""
import json
import re

import broker_kafka
from broker_nats import Nats
from broker_rabbitmq import Rabbit
from broker_redis import Node
from net import Net
from scenario import CLAIMS

OLD, NEW = "geheim-1", "geheim-2"  # passwords


class Broker:
    """(1) make() is called first. (2) got() no longer has the content that a destination had when it was deleted."""

    SILENT = "has not confirmed for {}"  # in what time
    TIMEOUT = "300ms"          # reported by a relay whose broker stalls
    FUSES = (0, 1, 3, 7, 30, 60, 200, 560)  # bytes of answers after which a connection breaks
    CUT_FIRST = False          # whether these bytes include the login
    ZOMBIE = 1                 # in repeats(): what a relay stopped for longer than its lease may repeat
    LOGIN = DELETED = 0        # the same for a login that is withdrawn, and for a destination that is deleted
    GONE = ()                  # a relay's report of such a destination, as patterns
    LOSES_ANSWERS = True       # whether an event is sent again because its answer got lost
    BLAMES_DELETED = False     # whether events use up attempts while their destination is deleted
    CUTS_TO_HEAL = False       # whether connections that lost bytes are abandoned too late for the test to wait
    LARGE_WINDOW = ""          # the option for as many events in flight as there may be

    def __init__(self, server):
        self.server = server.start()

    def close(self):
        self.server.close()

    def network(self):
        """network is a proxy between the broker and clients that use its port."""
        return Net(("127.0.0.1", self.server.port))

    def repeats(self, sent):
        """repeats returns the most repeats after one fault: everything in flight."""
        return sent

    def restore(self):
        """restore undoes what a test changed for all destinations, where tests share a server."""

    def seen(self, relay, faults):
        """seen returns how many of these cuts the relay could not bridge."""
        return faults


class RedisBroker(Broker):
    AWAY, SILENT, FULL, TOO_LARGE = "redis at", "has not answered for {}", "OOM", "proto-max-bulk-len"
    LOGGED_OUT = "WRONGPASS"

    def __init__(self):
        super().__init__(Node({"key-load-delay": 0}))

    def make(self, name):
        return name

    def url(self, name, query="", net=None):
        if net: return f"redis://127.0.0.1:{net.port}?stream={name}&{query}"
        return self.server.url(f"stream={name}&{query}")

    def got(self, name):
        return [(event["payload"], event["event_id"]) for _, event in self.server.entries(name)]

    def is_answer(self, data):
        """is_answer tells whether the bytes hold an answer with ids. Another answer may arrive in the same piece."""
        return re.search(rb"^[$*]", data, re.MULTILINE)

    def let_in(self, name, secret):
        self.server("ACL", "SETUSER", "courier", "on", f">{OLD}", "~*", "+@all")
        secret.write_text(f"{OLD}\n")
        return self.url(name, f"user=courier&password-file={secret}&")

    def lock_out(self):
        self.server("ACL", "SETUSER", "courier", "resetpass", f">{NEW}")
        self.server("CLIENT", "KILL", "USER", "courier")

    def let_in_again(self, secret):
        secret.write_text(f"{NEW}\n")

    def fill(self, name):
        """fill fills up a destination, and returns the URL parameters that make that an outage."""
        self.server("CONFIG", "SET", "maxmemory", 1)
        return ""

    def make_room(self, name):
        self.server("CONFIG", "SET", "maxmemory", 0)

    def limit_size(self, name):
        self.server("CONFIG", "SET", "proto-max-bulk-len", "1mb")

    def delete(self, name):
        self.server("DEL", name)


class NatsBroker(Broker):
    """A stream that remembers an id for `window`, so that nothing is stored twice."""

    AWAY, SILENT, TIMEOUT = "nats at", "has not answered for {}", "500ms"
    FULL, TOO_LARGE = "maximum messages exceeded (10077)", "max_payload is 1048576"
    LOGGED_OUT, GONE = "Authorization Violation", ("sink is down", "no leader, or was deleted")
    FUSES = (0, 1, 7, 40, 100, 350, 900, 2000)
    ZOMBIE, LOSES_ANSWERS, LARGE_WINDOW = 0, False, "window=4096&"
    SECOND = 1_000_000_000
    USERS = "accounts {{ A {{ jetstream: enabled, users: [ {{ user: admin, password: admin }}{} ] }} }}\nno_auth_user: admin\n"
    WITH_US = USERS.format(f", {{ user: relay, password: {OLD} }}")

    def __init__(self, window=120 * SECOND):
        super().__init__(Nats())
        self.window = window

    def make(self, name):
        self.server.stream(name.upper(), subjects=[name], duplicate_window=self.window)
        return name

    def url(self, name, query="", net=None):
        return self.server.url(name, f"stream={name.upper()}&{query}", net and net.port)

    def got(self, name):
        return [(json.loads(m.data), m.headers["id"]) for m in self.server.messages(name.upper())]

    def is_answer(self, data):
        return re.search(rb'\{"stream":"[A-Z0-9]+", ?"seq":\d+\}', data)

    def repeats(self, sent):
        return 0

    def let_in(self, name, secret):
        self.server.kill()
        self.server.config = self.WITH_US
        self.server.start()
        self.make(name)  # the account is another one
        secret.write_text(f"{OLD}\n")
        return self.url(name, f"user=relay&password-file={secret}&")

    def lock_out(self):
        self.server.reload(self.USERS.format(""))

    def let_in_again(self, secret):
        self.server.reload(self.WITH_US)

    def update(self, name, **config):
        self.server.update(name.upper(), subjects=[name], duplicate_window=self.window, discard="new", **config)

    def fill(self, name):
        self.update(name, max_msgs=100)
        return ""

    def make_room(self, name):
        self.update(name, max_msgs=-1)

    def limit_size(self, name):
        pass  # its own limit is a megabyte

    def delete(self, name):
        self.server.delete(name.upper())


class RabbitmqBroker(Broker):
    """An exchange and a queue, which got() empties. The node serves all tests of a file.

    The queue is a classic one: RabbitMQ 3.10 may lose all of a quorum queue's log if a node that is alone is killed moments
    after its creation, and then never gets a leader. Quorum queues are for tests that do not kill."""

    AWAY, FULL, TOO_LARGE = "rabbitmq at", "basic.nack", "larger than configured max size"
    LOGGED_OUT, GONE = "refused the login", ("no queue is bound",)
    FUSES, CUT_FIRST = (3, 100, 480, 530, 560, 600, 700), True
    LOGIN, BLAMES_DELETED = 1, True

    def __init__(self):
        super().__init__(Rabbit())
        self.taken = {}

    def make(self, name, **arguments):
        self.server.delete(name)
        self.server.declare(name, name, **{"x_queue_type": "classic", **arguments})
        self.taken.setdefault(name, [])
        return name

    def url(self, name, query="", net=None):
        return f"amqp://127.0.0.1:{net.port if net else self.server.port}/%2F/{name}?{query}"

    def got(self, name):
        self.taken[name] += [(json.loads(body), properties.message_id) for _, properties, body in self.server.take(name)]
        return self.taken[name]

    def is_answer(self, data):
        return b"\x00\x3c\x00\x50" in data  # basic.ack: it has been stored

    def let_in(self, name, secret):
        self.server.eval(f'rabbit_auth_backend_internal:add_user(<<"courier">>, <<"{OLD}">>, <<"t">>), '
                         'rabbit_auth_backend_internal:set_permissions(<<"courier">>, <<"/">>, <<"">>, <<".*">>, <<"">>, <<"t">>).')
        secret.write_text(f"{OLD}\n")
        return self.url(name, f"user=courier&password-file={secret}&")

    def lock_out(self):
        self.server.eval(f'rabbit_auth_backend_internal:change_password(<<"courier">>, <<"{NEW}">>, <<"t">>), '
                         '[rabbit_networking:close_connection(C, "t") || C <- rabbit_networking:connections()].')

    def let_in_again(self, secret):
        secret.write_text(f"{NEW}\n")

    def fill(self, name):
        self.make(name, x_queue_type="quorum", x_max_length=20, x_overflow="reject-publish")
        return "routing-key=k&"  # all events take the same route

    def make_room(self, name):
        pass  # got() does

    def limit_size(self, name):
        self.server.eval("application:set_env(rabbit, max_message_size, 100000).")

    def restore(self):
        self.server.eval("application:set_env(rabbit, max_message_size, 134217728).")

    def delete(self, name):
        with self.server.channel() as ch: ch.queue_delete(name)
        self.taken[name] = []


class Detour(Net):
    """A network in front of a broker's listener that announces this address."""

    def __init__(self, broker):
        super().__init__(("127.0.0.1", broker.inner_port), broker.proxy_port)


class KafkaBroker(Broker):
    """A topic with three partitions. All tests of a file share the broker. The producer is idempotent: it sends unconfirmed
    messages again, and the broker recognises them. Messages ended by our own time limit, or by a second without any broker, may
    be repeated."""

    AWAY, TIMEOUT, TOO_LARGE, LOGGED_OUT = "kafka at", "2s", "too large", "uthentication"
    FUSES = (0, 1, 3, 7, 30, 60, 200)
    ZOMBIE, DELETED, BLAMES_DELETED, CUTS_TO_HEAL = 2, 1, True, True
    PARTITIONS, BATCH = 3, 100
    # A login lasts for a moment, as with expiring tokens or passwords; quotas apply after two seconds.
    SETTINGS = {**broker_kafka.RULES, "connections.max.reauth.ms": 2000, "quota.window.num": 2}

    def __init__(self, settings=SETTINGS):
        super().__init__(broker_kafka.Kafka(settings))

    def make(self, name):
        self.GONE = (rf"failed, attempt 1 of .*topic {name}: ",)
        return self.server.create(name, self.PARTITIONS)

    def url(self, name, query="", net=None):
        return f"kafka://{self.server.proxy_hosts if net else self.server.hosts}/{name}?{query}"

    def network(self):
        return Detour(self.server)

    def got(self, name):
        try:
            return [(m.json, m.headers["id"]) for m in self.server.read(name)]
        except RuntimeError:  # it is away
            return []

    def repeats(self, sent):
        return CLAIMS * self.BATCH

    def seen(self, relay, faults):
        return relay.output().count("sink is down")

    def let_in(self, name, secret):
        secret.write_text(broker_kafka.PASSWORD + "\n")
        return f"kafka://{broker_kafka.USER}@{self.server.sasl_hosts}/{name}?password-file={secret}&"

    def lock_out(self):
        self.server.set_for("users", broker_kafka.USER, add=f"SCRAM-SHA-512=[password={NEW}]")

    def let_in_again(self, secret):
        secret.write_text(f"{NEW}\n")

    def restore(self):
        self.server.set_for("users", broker_kafka.USER, add=f"SCRAM-SHA-512=[password={broker_kafka.PASSWORD}]")

    def limit_size(self, name):
        self.server.configure(name, max_message_bytes=100000)

    def delete(self, name):
        self.server.delete(name)
