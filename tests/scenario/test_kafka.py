"""Kafka from end to end, through the CLI, on a real broker: messages read by third-party clients, partitions, logins, TLS,
missing topics, refused events."""
# build: plain
# quick: no
import json
import os
import pathlib
import re
import subprocess
import unittest

import broker_kafka
from broker_kafka import NODE, PASSWORD, USER
from broker_metrics import BrokerView
from broker_refusals import Refusals
from pages import BROKERS, items, section
from support import Case, PgCase, on_each_store, wait_until

ROOT = broker_kafka.ROOT
HERE = pathlib.Path(__file__).resolve().parent
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def setUpModule():
    if why := broker_kafka.unavailable(): raise unittest.SkipTest(why)
    global kafka
    kafka = broker_kafka.Kafka().start()
    unittest.addModuleCleanup(kafka.close)


class OnKafka:
    """Common to the cases: a separate topic for each."""

    topics = 0

    def setUp(self):
        super().setUp()
        self.init()
        OnKafka.topics += 1
        self.topic = f"t{OnKafka.topics}"

    def url(self, query="", hosts=None, scheme="kafka", path=None):
        return f"{scheme}://{hosts or kafka.hosts}/{path or self.topic}{'?' if query else ''}{query}"

    def to(self, url=None, *more):
        return ["--consumer", "out", "--sink", url or self.url(), *more]

    def emit_keys(self, n, keys=7):
        self.emit_many({"type": "order.placed", "aggregate_type": "order", "aggregate_id": f"k{i % keys}", "payload": {"n": i}}
                       for i in range(n))


class Shown(OnKafka, BrokerView, Case):
    def test_status_shows_leader_and_unconfirmed_events(self):
        kafka.create(self.topic, 3)
        self.check_view(self.to(), kafka.freeze, kafka.thaw, kind="kafka", broker=kafka.hosts, leader=kafka.hosts)


@on_each_store
class Messages(OnKafka):
    def test_event_arrives_with_key_and_headers_and_is_marked(self):
        kafka.create(self.topic, 3)
        event = self.emit("order.placed", "order/42", None, "--payload", '{"total": 9.50}', "--version", 3, "--header",
                          f"traceparent={TRACE}")
        self.drain(*self.to(None, "--receipts"))
        m, = kafka.read(self.topic)
        self.assertEqual((m.key, m.value), ("42", '{"total": 9.50}'))
        self.assertEqual({name: m.headers[name] for name in ("id", "type", "aggregate_type", "aggregate_id", "version", "seq")},
                         {"id": event, "type": "order.placed", "aggregate_type": "order", "aggregate_id": "42", "version": "3",
                          "seq": m.headers["seq"]})
        self.assertEqual((m.headers["traceparent"], m.headers["content-type"]), (TRACE, "application/json"))
        place = f"{self.topic}/{m.partition}"
        self.assertEqual(self.ask("SELECT sink_id FROM @receipt"), [(f"{place}/0",)])
        self.assertIn(place, self.outbox("hwm").stdout)

    def test_keys_keep_their_order_across_partitions(self):
        kafka.create(self.topic, 4)
        self.emit_keys(500)
        self.drain(*self.to())
        got = kafka.read(self.topic)
        self.assertEqual(sorted(m.json["n"] for m in got), list(range(500)))
        self.assertGreater(len({m.partition for m in got}), 1)
        for key in {m.key for m in got}:
            of_key = [m for m in got if m.key == key]
            self.assertEqual(len({m.partition for m in of_key}), 1)
            self.assertEqual([m.json["n"] for m in of_key], sorted(m.json["n"] for m in of_key))


class Strangers(OnKafka, Case):
    """Third-party clients."""

    def test_java_console_consumer_reads_our_messages(self):
        kafka.create(self.topic, 1)
        event = self.emit("order.placed", "order/42", {"total": 99})
        self.emit("note", None, "zoë 漢字")
        self.drain(*self.to())
        out = kafka.java("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", kafka.hosts, "--topic", self.topic,
                         "--from-beginning", "--max-messages", 2, "--timeout-ms", 20000, "--property", "print.headers=true",
                         "--property", "print.key=true")
        first, second = out.splitlines()
        headers, key, value = first.split("\t")
        self.assertEqual((key, json.loads(value)), ("42", {"total": 99}))
        self.assertIn(f"id:{event},type:order.placed", headers)
        self.assertEqual(second.split("\t")[1:], ["null", '"zo\\u00eb \\u6f22\\u5b57"'])

    def test_key_goes_to_the_same_partition_as_from_java(self):
        """murmur2, as Java's: a topic that both write to has one partition for a key."""
        kafka.create(self.topic, 7)
        kafka.create(self.topic + "-java", 7)
        keys = [f"key-{i}" for i in range(40)] + ["ü", "漢字", "a b", "x" * 200]
        self.emit_many({"type": "a", "aggregate_type": "k", "aggregate_id": key, "payload": 1} for key in keys)
        self.drain(*self.to())
        kafka.java("kafka.tools.ConsoleProducer", "--bootstrap-server", kafka.hosts, "--topic", self.topic + "-java",
                   "--property", "parse.key=true", input="".join(f"{key}\t1\n" for key in keys))
        places = lambda topic: {m.key: m.partition for m in kafka.read(topic)}
        ours, javas = places(self.topic), places(self.topic + "-java")
        self.assertEqual(len(ours), len(keys))
        self.assertEqual(ours, javas)
        self.assertGreater(len(set(ours.values())), 4)

    def read_by_node(self, n):
        if not (NODE / "kafkajs").exists(): self.skipTest("the node module kafkajs is not installed")
        done = subprocess.run(["node", HERE / "kafka_reader.js", kafka.hosts, self.topic, str(n)], capture_output=True, text=True,
                              timeout=60, env={**os.environ, "NODE_PATH": str(NODE)})
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_kafkajs_and_the_cloudevents_sdk_understand_both_modes(self):
        kafka.create(self.topic, 5)
        ids = [self.emit("order.placed", f"order/{i}", {"n": i}, "--header", f"traceparent={TRACE}") for i in range(4)]
        self.drain(*self.to(self.url("format=cloudevents&source=/shop")))
        self.drain("--consumer", "whole", "--sink", self.url("format=cloudevents-structured&source=/shop"))
        got = self.read_by_node(8)
        for m in got: self.assertEqual(m["partition"], m["chosen"], m)
        binary = [m["event"] for m in got if m["headers"]["content-type"] == "application/json"]
        whole = [m["event"] for m in got if m["headers"]["content-type"].startswith("application/cloudevents+json")]
        for events in (binary, whole):
            self.assertEqual(sorted(e["id"] for e in events), sorted(ids))
            for e in events:
                self.assertEqual((e["type"], e["source"], e["specversion"]), ("order.placed", "/shop", "1.0"))
                self.assertEqual(e["traceparent"], TRACE)
                self.assertEqual(e["data"] if isinstance(e["data"], dict) else json.loads(e["data"]), {"n": ids.index(e["id"])})

    def test_debezium_format_matches_debeziums_outbox_router(self):
        """Debezium's EventRouter: the topic by the aggregate's type, the key its id, the payload alone, one header: id."""
        kafka.create("outbox.event.order")
        event = self.emit("order.placed", "order/42", {"total": 99}, "--header", f"traceparent={TRACE}")
        self.drain("--consumer", "out", "--sink", f"kafka://{kafka.hosts}/?format=debezium")
        m, = kafka.read("outbox.event.order")
        self.assertEqual((m.key, m.json, m.headers), ("42", {"total": 99}, {"id": event}))

    def test_json_and_contract_formats_use_only_the_value(self):
        kafka.create(self.topic)
        event = self.emit("order.placed", "order/42", {"total": 99}, "--version", 3)
        self.drain("--consumer", "line", "--sink", self.url("format=json"))
        self.drain("--consumer", "contract", "--sink", self.url("format=contract"))
        line, contract = (m.json for m in kafka.read(self.topic))
        self.assertEqual((line["id"], line["payload"], line["version"]), (event, {"total": 99}, 3))
        self.assertEqual(list(contract), ["event_id", "topic", "aggregate_kind", "aggregate_id", "entity_version", "payload",
                                          "stream_id", "committed_at"])
        self.assertEqual((contract["event_id"], contract["stream_id"]), (event, self.topic))


class Secured(OnKafka, Case):
    def setUp(self):
        super().setUp()
        kafka.create(self.topic)
        self.emit("a", "k/1", 1)
        self.secret = self.path("password")
        self.secret.write_text(PASSWORD + "\n")
        self.ca = self.path("ca.crt")
        self.ca.write_bytes((kafka.dir / "ca.crt").read_bytes())

    def passes(self, url, **kw):
        done = self.drain(*self.to(url), **kw)
        self.assertEqual([m.value for m in kafka.read(self.topic)], ["1"])
        self.assertNotIn(PASSWORD, done.stderr + done.stdout)

    def test_scram_and_plain_logins_work(self):
        for n, how in enumerate(("sasl=scram-sha-256", "sasl=scram-sha-512", "", "sasl=plain")):
            with self.subTest(how):
                url = self.url(f"password-file={self.secret}&{how}", f"{USER}@{kafka.sasl_hosts}")
                self.drain("--consumer", f"out{n}", "--sink", url)
        self.assertEqual(len(kafka.read(self.topic)), 4)

    def test_tls_accepts_a_private_ca(self):
        self.passes(self.url(f"ca={self.ca}", kafka.tls_hosts, "kafka+ssl"))

    def test_password_from_the_environment_logs_in_over_tls(self):
        url = self.url(f"ca={self.ca}", f"{USER}@{kafka.sasl_tls_hosts}", "kafka+ssl")
        self.passes(url, env={"OUTBOX_KAFKA_PASSWORD": PASSWORD})

    def down(self, url, *words):
        with self.relay(*self.to(url)) as relay:
            wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
            for word in words: self.assertIn(word, relay.output())
            self.assertNotIn(PASSWORD, relay.output())
        self.assertEqual(kafka.read(self.topic), [])

    def test_wrong_password_is_an_outage_until_corrected(self):
        self.secret.write_text("wrong\n")
        url = self.url(f"password-file={self.secret}", f"{USER}@{kafka.sasl_hosts}")
        with self.relay(*self.to(url)) as relay:
            wait_until(lambda: "uthentication" in relay.output(), what=relay.output)
            self.secret.write_text(PASSWORD + "\n")
            wait_until(lambda: kafka.read(self.topic), what=relay.output)

    def test_untrusted_certificate_is_refused(self):
        self.down(self.url("", kafka.tls_hosts, "kafka+ssl"), "certificate")

    def test_config_check_connects_to_the_broker(self):
        config = self.path("outbox.ini")
        config.write_text(f"[outbox]\nstore = {self.store}\n[consumer out]\nsink = {self.url()}\n")
        self.outbox("config", "check", "-c", config, "--connect")
        config.write_text(f"[outbox]\nstore = {self.store}\n[consumer out]\nsink = {self.url(path='nowhere')}\n")
        done = self.outbox("config", "check", "-c", config, "--connect", status=None)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("topic nowhere", done.stdout + done.stderr)
        config.write_text(f"[outbox]\nstore = {self.store}\n[consumer out]\nsink = kafka://127.0.0.1:1/t\n")
        done = self.outbox("config", "check", "-c", config, "--connect", status=None)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("127.0.0.1:1", done.stdout + done.stderr)


class Documented(unittest.TestCase):
    def test_documented_error_table_matches_the_code(self):
        words = {"UNAVAILABLE": "down", "CONSEQUENCE": "with another", "REFUSED": "refused", "TOPIC": "topic", "SETUP": "fatal"}
        source = (ROOT / "src" / "sink" / "kafka_answer.c").read_text()
        shared = dict(re.findall(r'#define (\w+) "([^"]*)"', source))
        rows = re.findall(r"ROW\((\w+), KAFKA_(\w+),\s*(NULL|\w+|\"[^;]*?\")\),", source)
        advice = lambda text: "" if text == "NULL" else shared.get(text) or "".join(re.findall(r'"([^"]*)"', text))
        code = [(name, words[fate], advice(text)) for name, fate, text in rows]
        said = [re.match(r"\*([a-z ]+)\*(?:, (.*))?: (`[^:]*)$", item) for item in items(section(BROKERS, "### Kafka")) if item.startswith("*")]
        page = [(name, group[1], group[2] or "") for group in said for name in re.findall(r"`(\w+)`", group[3])]
        self.assertGreater(len(code), 50)
        self.assertEqual(sorted(code), sorted(page))


class Received(OnKafka, Case):
    """outbox receive, on all that this sink writes."""

    def test_receive_prints_and_checks_every_format(self):
        for n, form in enumerate(("plain", "cloudevents", "cloudevents-structured", "debezium", "json", "contract")):
            with self.subTest(form):
                topic = kafka.create(f"{self.topic}-{form}", 3)
                if n == 0: self.emit_keys(200)
                self.drain("--consumer", form, "--sink", self.url(f"format={form}", path=topic))
                done = self.outbox("receive", self.url(path=topic), "--check", "--idle", "1s", "--consumer", form)
                self.assertIn("200", done.stdout)
        lines = self.outbox("receive", self.url(path=f"{self.topic}-plain"), "--count", 200, "--json").stdout.splitlines()
        self.assertEqual(len(lines), 200)
        self.assertIn(f"{self.topic}-plain/", lines[0])

    def test_check_finds_missing_and_duplicate_events(self):
        kafka.create(self.topic)
        self.emit_keys(20)
        self.drain(*self.to())
        self.drain("--consumer", "other", "--sink", self.url())  # every event again
        self.assertIn("repeats: 20\n", self.outbox("receive", self.url(), "--check", "--idle", "1s").stdout)
        self.emit_keys(5)
        kafka.create(self.topic + "-few")
        done = self.outbox("receive", self.url(path=self.topic + "-few"), "--check", "--idle", "1s", status=None)
        self.assertNotEqual(done.returncode, 0)

    def test_receive_follows_a_template_and_new_topics(self):
        kafka.create(f"{self.topic}.a")
        self.emit(f"{self.topic}.a", "k/1", 1)
        self.emit(f"{self.topic}.b", "k/2", 2)
        kafka.create(f"{self.topic}.b")
        self.drain(*self.to(self.url(path="{type}")))
        out = self.outbox("receive", self.url(path=f"{self.topic}.{{type[1]}}"), "--count", 2, "--json").stdout
        self.assertIn(f"{self.topic}.a/0", out)
        self.assertIn(f"{self.topic}.b/0", out)


@on_each_store
class Refused(OnKafka, Refusals):
    def test_only_events_refused_by_one_topic_are_buried(self):
        good = kafka.create(f"{self.topic}.good")
        self.check_refused_among_others(self.to(self.url(path="{type}")), lambda: len(kafka.read(good)), "UNKNOWN_TOPIC",
                                        f"{self.topic}.bad", good)

    def test_events_refused_by_the_only_topic_are_buried(self):
        self.check_refused_alone(self.to(), "UNKNOWN_TOPIC", lambda: kafka.create(self.topic), lambda: len(kafka.read(self.topic)))


class TopicsAndSizes(OnKafka, Case):
    def test_events_are_refused_until_the_topic_is_created(self):
        self.emit_keys(10)
        with self.relay(*self.to()) as relay:
            wait_until(lambda: "create=on" in relay.output(), what=relay.output)
            kafka.create(self.topic)
            wait_until(lambda: len(kafka.read(self.topic)) == 10, what=relay.output)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    def test_create_option_creates_the_topic(self):
        self.emit_keys(10)
        self.drain(*self.to(self.url("create=on&partitions=3&replicas=1")))
        self.assertEqual(len(kafka.read(self.topic)), 10)
        self.assertGreater(len({m.partition for m in kafka.read(self.topic)}), 1)

    def test_missing_topic_of_a_template_blocks_only_its_events(self):
        kafka.create(f"{self.topic}.good")
        self.emit_many({"type": f"{self.topic}.{'bad' if i % 3 == 0 else 'good'}", "aggregate_type": "k", "aggregate_id": str(i),
                        "payload": {"n": i}} for i in range(30))
        with self.relay(*self.to(self.url(path="{type}"))) as relay:
            wait_until(lambda: len(kafka.read(f"{self.topic}.good")) == 20, what=relay.output)
            wait_until(lambda: "failed, attempt 1 of 32" in relay.output(), what=relay.output)
            self.assertNotIn("sink is down", relay.output())
            kafka.create(f"{self.topic}.bad")
            wait_until(lambda: len(kafka.read(f"{self.topic}.bad")) == 10, what=relay.output)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(0,)])

    def test_only_the_oversized_event_is_buried(self):
        kafka.create(self.topic, max_message_bytes=50000)
        for i in range(3):
            self.emit_keys(100)
            self.emit("large", "order/k1", "x" * 100000)
        self.emit_keys(100)
        done = self.drain(*self.to())
        self.assertEqual(len(kafka.read(self.topic)), 400)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(3,)])
        self.assertIn("MSG_SIZE_TOO_LARGE", done.stderr)
        self.assertNotIn("sink is down", done.stderr)

    def test_only_the_keyless_event_on_a_compacted_topic_is_buried(self):
        kafka.create(self.topic, cleanup_policy="compact")
        self.emit_keys(20)
        self.emit("note", None, 1)
        self.emit_keys(20)
        done = self.drain(*self.to())
        self.assertEqual(len(kafka.read(self.topic)), 40)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_dead"), [(1,)])
        self.assertIn("INVALID_RECORD", done.stderr)

    def test_topic_that_may_lose_events_causes_a_warning(self):
        kafka.create(self.topic, unclean_leader_election_enable="true")
        self.emit_keys(1)
        with self.relay(*self.to()) as relay:
            wait_until(lambda: kafka.read(self.topic), what=relay.output)
            self.emit_keys(1)  # the topic check happens beside the first events
            wait_until(lambda: "unclean.leader.election.enable=true" in relay.output() or self.emit_keys(1), what=relay.output)
