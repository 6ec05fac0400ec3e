"""RabbitMQ from end to end, through the CLI: every format as read by third-party clients, topology, receive, secrets."""
# sanitizers: soak
# build: plain
# quick: no
import contextlib
import json
import os
import pathlib
import re
import socket
import struct
import sys
import threading
import time

from broker_rabbitmq import Rabbit
from broker_metrics import BrokerView
from broker_refusals import Refusals
from pages import BROKERS, items, section
from support import Case, on_each_store, wait_until

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "outbox-tests"
FORMATS = ["plain", "cloudevents", "cloudevents-structured", "debezium", "json", "contract"]


def cloudevents_sdk():
    """cloudevents_sdk is the official library's binding to AMQP, and its JSON; None if it is not installed."""
    folder = str(CACHE / "rabbitmq" / "python")
    if folder not in sys.path: sys.path.insert(1, folder)
    try:
        from cloudevents.core.bindings import amqp
        from cloudevents.core.formats.json import JSONFormat
    except ImportError:
        return None
    return amqp, JSONFormat()


class Broker:
    """Common to the cases: one broker for the file, and for each case an exchange and a queue with its name."""

    rabbit = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if Broker.rabbit is None: Broker.rabbit = Rabbit().start()

    def setUp(self):
        super().setUp()
        self.init()
        self.name = f"{type(self).__name__}-{self._testMethodName}"[:80]
        self.rabbit.delete(self.name)
        self.rabbit.declare(self.name, self.name)

    def url(self, query="", **more):
        return self.rabbit.url(self.name, query, **more)

    def send(self, query="", name="out", **more):
        self.drain("--consumer", name, "--sink", self.url(query, **more))


class Shown(Broker, BrokerView, Case):
    def test_status_shows_node_and_unconfirmed_events(self):
        """AMQP does not report which node leads a queue."""
        self.check_view(["--consumer", "out", "--sink", self.url()], self.rabbit.freeze, self.rabbit.thaw, kind="rabbitmq",
                        broker=f"127.0.0.1:{self.rabbit.port}", leader="")


@on_each_store
class Messages(Broker):
    def test_event_arrives_whole_in_properties_and_headers(self):
        event = self.emit("order.paid", "order/7", None, "--payload", '{"a": 1.50}', "--version", "3", "--header", "traceparent=00-ab-cd-01")
        self.send()
        (key, properties, body), = self.rabbit.take(self.name)
        self.assertEqual((key, body), ("order.paid", b'{"a": 1.50}'))
        self.assertEqual((properties.message_id, properties.type, properties.content_type, properties.delivery_mode, properties.app_id),
                         (event, "order.paid", "application/json", 2, "outbox"))
        headers = properties.headers
        self.assertEqual({name: headers[name] for name in ("id", "type", "aggregate_type", "aggregate_id", "key", "version", "traceparent")},
                         {"id": event, "type": "order.paid", "aggregate_type": "order", "aggregate_id": "7", "key": "order/7", "version": "3",
                          "traceparent": "00-ab-cd-01"})

    def test_high_water_mark_is_the_last_event_confirmed(self):
        for i in range(3): self.emit("a", f"k/{i}", i)
        self.send()
        self.assertEqual(self.outbox("hwm", self.name).stdout, "3-0\n")


@on_each_store
class Refused(Broker, Refusals):
    def test_events_refused_for_one_routing_key_are_buried(self):
        self.rabbit.delete(self.name)
        self.rabbit.declare(self.name, self.name, binding="good")
        self.check_refused_among_others(["--consumer", "out", "--sink", self.url()], self.arrivals(), "no queue is bound")

    def test_events_refused_by_the_only_exchange_are_buried(self):
        self.rabbit.delete(self.name)
        self.check_refused_alone(["--consumer", "out", "--sink", self.url("routing-key=k")], "no exchange",
                                 lambda: self.rabbit.declare(self.name, self.name), self.arrivals())

    def arrivals(self):
        """arrivals counts the messages removed from the queue so far."""
        taken = []
        def count():
            taken.extend(self.rabbit.take(self.name))
            return len(taken)
        return count


class Formats(Broker, Case):
    def test_official_sdk_reads_cloudevents(self):
        sdk = cloudevents_sdk()
        if not sdk: self.skipTest("the official CloudEvents library is not installed")
        amqp, form = sdk
        event = self.emit("order.paid", "order/42", None, "--payload", '{"a": 1.50}', "--header", "traceparent=00-ab-cd-01")
        for mode in ("cloudevents", "cloudevents-structured"):
            with self.subTest(mode):
                self.send(f"format={mode}&source=/shop", name=mode)
                (_, properties, body), = self.rabbit.take(self.name)
                message = amqp.AMQPMessage(properties={"content-type": properties.content_type}, application_properties=properties.headers or {},
                                           application_data=body)
                read = amqp.from_amqp(message, form)
                self.assertEqual((read.get_id(), read.get_type(), read.get_source(), read.get_subject(), read.get_data()),
                                 (event, "order.paid", "/shop", "order/42", {"a": 1.5}))

    def test_debezium_consumers_keep_working(self):
        """The output of Debezium's outbox event router: the topic by the kind of aggregate, the payload alone, the id in a
        header."""
        event = self.emit("order.paid", "order/42", None, "--payload", '{"a": 1.50}', "--header", "x=y")
        self.send("format=debezium")
        (key, properties, body), = self.rabbit.take(self.name)
        self.assertEqual((key, properties.headers, body), ("outbox.event.order", {"id": event, "x-delivery-count": 0}, b'{"a": 1.50}'))

    def test_json_format_matches_the_line_of_the_file_sink(self):
        self.emit("order.paid", "order/42", {"a": 1})
        self.send("format=json", name="out")
        (_, _, body), = self.rabbit.take(self.name)
        self.drain("--consumer", "out2", "--sink", f"file:{self.path('lines')}")
        line = self.path("lines")
        with open(line) as f: self.assertEqual({**json.loads(body), "consumer": ""}, {**json.loads(f.read()), "consumer": ""})


class Receiving(Broker, Case):
    def received(self, query, *more, status=0):
        said = self.outbox("receive", self.url(query), "--json", "--idle", "400ms", *more, status=status).stdout
        return [json.loads(line) for line in said.splitlines()]

    def test_every_format_is_read_back_and_stays_in_the_queue(self):
        event = self.emit("order.paid", "order/42", None, "--payload", '{"a": 1.50}', "--header", "trace=x")
        for form in FORMATS:
            with self.subTest(form):
                self.send(f"format={form}", name=form)
                for _ in range(2):
                    got, = self.received(f"queue={self.name}")
                    self.assertEqual((got["format"], got["id"], got["place"]), (form, event, self.name))
                    if form != "debezium": self.assertEqual((got["type"], got["key"]), ("order.paid", "order/42"))
                self.assertEqual(len(self.rabbit.take(self.name)), 1)

    def test_check_compares_messages_with_the_store(self):
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(i % 3), "payload": i} for i in range(300)])
        self.send()
        verdict, = self.received(f"queue={self.name}", "--check", "--consumer", "out")
        self.assertEqual(verdict["received"], 300)
        self.rabbit.take(self.name, many=10)
        verdict, = self.received(f"queue={self.name}", "--check", "--consumer", "out", status=1)
        self.assertEqual(verdict["received"], 290)

    def test_stream_is_read_from_any_position(self):
        stream = self.name + "-stream"
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(i), "payload": i} for i in range(500)])
        query = f"create=on&queue={stream}&queue-type=stream"
        self.send(query)
        got = self.received(query)
        self.assertEqual([int(g["position"]) for g in got], list(range(500)))
        self.assertEqual(len(self.received(query, "--from", "490")), 10)

    def test_receiving_from_an_exchange_is_refused(self):
        said = self.outbox("receive", self.url(), status=78).stderr
        self.assertIn("an exchange stores no messages; add queue=NAME", said)


class Running(Broker, Case):
    def test_no_secret_is_shown(self):
        self.rabbit.eval('rabbit_auth_backend_internal:add_user(<<"keeper">>, <<"s3cr3t-word">>, <<"t">>), '
                         'rabbit_auth_backend_internal:set_permissions(<<"keeper">>, <<"/">>, <<"">>, <<".*">>, <<"">>, <<"t">>).')
        self.emit("a", "k/1", 1)
        relay = self.relay("--log-level", "debug", "--consumer", "out", "--sink", self.url(user="keeper@"),
                           env={"OUTBOX_RABBITMQ_PASSWORD": "s3cr3t-word"})
        wait_until(lambda: self.rabbit.take(self.name), what=relay.output)
        self.assertNotIn("s3cr3t", pathlib.Path(f"/proc/{relay.pid}/cmdline").read_text())
        relay.stop()
        self.assertNotIn("s3cr3t", relay.output())

    def test_config_check_connects_and_names_missing_objects(self):
        said = self.outbox("config", "check", "--connect", "--consumer", "out", "--sink", self.rabbit.url("nothing-here"), status=None)
        self.assertIn("no exchange 'nothing-here'", said.stdout + said.stderr)
        said = self.outbox("config", "check", "--connect", "--consumer", "out", "--sink", self.url())
        self.assertNotIn("no exchange", said.stdout + said.stderr)

    def test_memory_is_bounded_while_the_broker_is_down(self):
        """With the broker down and a large backlog, nothing is read ahead."""
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(i), "payload": "x" * 400} for i in range(20000)])
        relay = self.relay("--consumer", "out", "--sink", "amqp://127.0.0.1:1/%2F/x")
        wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
        status = pathlib.Path(f"/proc/{relay.pid}/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0])
        self.assertLess(peak, 48 << 10)


class Impostor:
    """A listener on one of our ports that sends the same to each client, repeatedly if it is endless."""

    def __init__(self, said, endless=False):
        self.said, self.endless = said, endless

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, contextlib.suppress(OSError):
            client.sendall(self.said)
            while self.endless:
                client.sendall(self.said * 1000)
                time.sleep(0.05)
            client.recv(1)
            client.recv(1 << 16)
            time.sleep(60)


class Hostile(Case):
    def test_hostile_broker_uses_bounded_resources(self):
        """Whatever an unknown server sends, the relay treats it as a broker that is down, and uses little memory."""
        heartbeat = struct.pack(">BHI", 8, 0, 0) + b"\xce"
        says = {"text": (b"SSH-2.0-OpenSSH_9.2\r\n", False, "does not speak AMQP"),
                "another version": (b"AMQP\x01\x01\x00\x0a", False, "a version of AMQP other than"),
                "a huge frame": (struct.pack(">BHI", 1, 0, 1 << 31), False, "bytes; the negotiated limit is 4096"),
                "a frame without an end": (struct.pack(">BHI", 8, 0, 0) + b"x", False, "a frame without an end"),
                "a method nobody knows": (struct.pack(">BHIHH", 1, 0, 4, 99, 99) + b"\xce", False, "an unexpected method"),
                "a channel too early": (struct.pack(">BHIHHI", 1, 1, 8, 20, 11, 0) + b"\xce", False, "a channel before the login"),
                "heartbeats for ever": (heartbeat, True, "login timed out after 10 s")}
        self.init()
        self.emit("a", "k/1", 1)
        for what, (said, endless, words) in says.items():
            with self.subTest(what), Impostor(said, endless) as impostor:
                with self.relay("--consumer", "out", "--sink", f"amqp://127.0.0.1:{impostor.port}/%2F/x") as relay:
                    wait_until(lambda: "sink is down" in relay.output() and words in relay.output(), what=relay.output)
                    status = pathlib.Path(f"/proc/{relay.pid}/status").read_text()
                    self.assertLess(int(status.split("VmHWM:")[1].split()[0]), 48 << 10)


class Documentation(Case):
    def test_page_documents_every_answer(self):
        """docs/brokers.md repeats the table of src/sink/rabbitmq_answer.c, row by row."""
        root = pathlib.Path(__file__).parents[2]
        rows = re.findall(r'\{(REPLY_\w+), (\w+), (?:NULL|ABSENT|"[^"]*"), SINK_(\w+), \w+,\s+"([^"]+)"\}', (root / "src/sink/rabbitmq_answer.c").read_text())
        self.assertEqual(len(rows), 17)
        page = [re.sub(r"`", "", item) for item in items(section(BROKERS, "### RabbitMQ"))]
        for _, _, status, meaning in rows:
            self.assertTrue([item for item in page if f": {meaning}: {status.lower()}" in item], (status, meaning))
