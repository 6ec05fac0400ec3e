"""outbox receive: what a sink has written is shown in every format, and checked against the store."""
import json

import broker_redis
from support import on_each_store

FORMATS = ["plain", "cloudevents", "cloudevents-structured", "debezium", "json", "contract"]


@on_each_store
class Receiving(broker_redis.Shared):
    def received(self, query, *more, status=0):
        said = self.outbox("receive", self.redis.url(query), "--json", "--idle", "300ms", *more, status=status).stdout
        return [json.loads(line) for line in said.splitlines()]

    def check(self, query, *more, status=0):
        verdict, = self.received(query, "--check", *more, status=status)
        return verdict

    def send(self, query, name="out"):
        self.drain("--consumer", name, "--sink", self.redis.url(query))

    def test_every_format_is_read_back(self):
        event = self.emit("order.paid", "order/42", None, "--payload", '{"a": 1.50}', "--header", "trace=x")
        for form in FORMATS:
            with self.subTest(form):
                self.send(f"stream={form}&format={form}", name=form)
                got, = self.received(f"stream={form}&format={form}")
                self.assertEqual((got["format"], got["id"], got["place"]), (form, event, form))
                if form != "debezium": self.assertEqual((got["type"], got["key"]), ("order.paid", "order/42"))
                self.assertIn('{"a": 1.50', got["value"])

    def test_all_streams_of_a_template_are_read(self):
        for kind in "abc": self.emit(f"order.{kind}", f"order/{kind}")
        self.send("stream=x.{type[1]}")
        self.redis("XADD", "y.a", "*", "event", "{}")
        self.assertEqual(sorted(m["place"] for m in self.received("stream=x.{type[1]}")), ["x.a", "x.b", "x.c"])

    def test_from_and_count_limit_the_output(self):
        for i in range(5): self.emit("t", f"k/{i}")
        self.send("stream=s")
        every = self.received("stream=s")
        self.assertEqual(len(every), 5)
        self.assertEqual(self.received("stream=s", "--count", "2"), every[:2])
        self.assertEqual(self.received("stream=s", "--from", every[1]["position"]), every[2:])
        self.assertEqual(self.received("stream=s", "--from", "end"), [])
        self.outbox("receive", self.redis.url("stream=s"), "--from", "tuesday", status=78)

    def test_human_output_has_no_control_characters(self):
        self.redis("XADD", "s", "*", "value", "\x1b[2Jx\n", "id", "no")
        said = self.outbox("receive", self.redis.url("stream=s"), "--idle", "200ms").stdout
        self.assertEqual(said.count("\n"), 1)
        self.assertNotIn("\x1b", said)

    def test_check_finds_every_event_and_counts_repeats(self):
        self.emit_many({"type": "t", "aggregate_type": "k", "aggregate_id": str(i % 7)} for i in range(200))
        self.send("stream=s")
        verdict = self.check("stream=s", "--consumer", "out")
        self.assertEqual({name: verdict[name] for name in ("events", "expected", "lost", "misordered", "repeats", "unknown")},
                         {"events": 200, "expected": 200, "lost": 0, "misordered": 0, "repeats": 0, "unknown": 0})
        first = self.redis("XRANGE", "s", "-", "+", "COUNT", "1")[0][1]
        self.redis("XADD", "s", "*", *first)
        self.assertEqual(self.check("stream=s")["repeats"], 1)

    def test_check_finds_lost_events(self):
        lost = self.emit("t", "k/1")
        self.emit("t", "k/1")
        self.send("stream=s")
        self.redis("XDEL", "s", self.redis("XRANGE", "s", "-", "+")[0][0])
        verdict = self.check("stream=s", status=1)
        self.assertEqual((verdict["lost"], verdict["first_lost"]), (1, lost))

    def test_check_finds_reordered_and_unknown_events(self):
        events = [self.emit("t", "k/1") for _ in range(3)]
        self.send("stream=s")
        entries = self.redis("XRANGE", "s", "-", "+")
        self.redis("DEL", "s")
        for i in (0, 2, 1): self.redis("XADD", "s", "*", *entries[i][1])
        self.redis("XADD", "s", "*", "something", "else")
        self.redis("XADD", "s", "*", "event", json.dumps({"event_id": "01890a5d-ac96-774b-bcce-b302099a8057"}))
        verdict = self.check("stream=s", status=1)
        self.assertEqual((verdict["misordered"], verdict["first_misordered"]), (1, events[2]))
        self.assertEqual((verdict["strange"], verdict["unknown"]), (1, 1))

    def test_sink_without_a_receiver_is_refused(self):
        self.assertIn("redis:", self.outbox("receive", "file:x", status=78).stderr)
