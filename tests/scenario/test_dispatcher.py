"""preset = dispatcher: a service's outbox into Redis Streams, with the numbers of the document, on both stores."""
import time

import broker_redis
from support import Case, PgCase, wait_until

NUMBERS = {"batch": "50", "poll": "500ms", "retry": "fast,attempts=8", "lease": "30s", "receipts": "yes"}


class Configured:
    def redis_url(self, query):
        return f"redis://127.0.0.1:6379/0?{query}"

    def conf(self, *more):
        """conf is the document's own example: service name, stream-for-event rule, lease key; the table is the store's."""
        sink = self.redis_url("stream=tenant.{type[1]}&lease=lock:outbox:tenant-service")
        self.path("d.conf").write_text("\n".join(
            ["[consumer nodii-tenant-service]", "preset = dispatcher", f"sink = {sink}", *more, ""]))
        return ["-c", "d.conf"]

    def settings(self, *args):
        rows = self.json("config", "show", *args)
        return {r["name"]: r for r in rows if r["section"] in ("outbox", "consumer nodii-tenant-service")}


class Shown(Configured, Case):
    def test_preset_has_documented_values_and_names_its_source(self):
        shown = self.settings(*self.conf())
        for name, value in NUMBERS.items():
            self.assertEqual((shown[name]["value"], shown[name]["origin"], shown[name]["where"]),
                             (value, "preset", "d.conf:2"), name)
        self.assertEqual((shown["drain-deadline"]["value"], shown["drain-deadline"]["origin"]), ("30s", "default"))
        self.assertIn("lease=lock:outbox:tenant-service", shown["sink"]["value"])
        self.assertIn("stream=tenant.{type[1]}", shown["sink"]["value"])
        flags = self.settings("--consumer", "nodii-tenant-service", "--preset", "dispatcher", "--sink", "stdout:")
        self.assertEqual({n: flags[n]["value"] for n in NUMBERS}, NUMBERS)
        self.assertRegex(self.outbox("config", "show", *self.conf()).stdout, r"batch +50 +preset at d\.conf:2")

    def test_explicit_settings_override_the_preset(self):
        args = self.conf("batch = 7", "poll = 2s")
        shown = self.settings(*args, "--lease", "5s")
        self.assertEqual({n: (shown[n]["value"], shown[n]["origin"]) for n in NUMBERS},
                         {"batch": ("7", "file"), "poll": ("2s", "file"), "retry": ("fast,attempts=8", "preset"),
                          "lease": ("5s", "flag"), "receipts": ("yes", "preset")})
        self.path("d.conf").write_text(self.path("d.conf").read_text().replace("[consumer", "[outbox]\nbatch = 9\n[consumer", 1)
                                       .replace("batch = 7\n", ""))
        self.assertEqual(self.settings(*args)["batch"]["value"], "9")
        done = self.outbox("relay", "--consumer", "x", "--preset", "dispatch", "--sink", "stdout:", status=64)
        self.assertIn('--preset: "dispatch" is neither dispatcher nor none', done.stderr)


class Dispatcher(broker_redis.Shared, Configured):
    """Claims about every store. A subclass has the names that differ."""

    def redis_url(self, query):
        return self.redis.url(query)

    def receipts(self):
        """receipts returns {event id: (stream id, seconds since 1970)}."""
        return {str(event): (sink, at) for event, sink, at in self.sql(self.RECEIPTS)}

    def ids(self):
        return [e["id"] for e in self.json("events", "list", "--limit", "1000")]

    def test_each_event_is_dispatched_once_with_time_and_id(self):
        self.emit_many({"type": f"tenant.{'user' if i % 2 else 'role'}.added", "aggregate_type": "u",
                        "aggregate_id": str(i), "payload": i} for i in range(120))
        before = time.time()
        with self.relay(*self.conf(), "--listen", "127.0.0.1:0") as relay:
            wait_until(lambda: len(self.receipts()) == 120, what=relay.output)
            # the lease key of Redis, for 30 s at most and more than half of that, since it is renewed at half
            left = lambda: self.redis("PTTL", "lock:outbox:tenant-service")
            self.assertLessEqual(left(), 30000)
            wait_until(lambda: left() > 14000, what=left)  # a renewal may be late
        after = time.time()
        self.assertIsNone(self.redis("GET", "lock:outbox:tenant-service"))

        sent = {}
        for stream in ("tenant.user", "tenant.role"):
            for entry, envelope in self.redis.entries(stream): sent[envelope["event_id"]] = entry
        recorded = self.receipts()
        self.assertEqual({event: sink for event, (sink, _) in recorded.items()}, sent)
        self.assertEqual(sorted(recorded), sorted(self.ids()))
        for _, at in recorded.values(): self.assertTrue(before - 1 <= at <= after + 1, (before, at, after))
        event = sorted(sent)[0]
        shown, = self.json("events", "show", event)["deliveries"]
        self.assertEqual((shown["state"], shown["receipt"]), ("delivered", sent[event]))
        self.assertRegex(shown["delivered_at"], r"^\d{4}-\d\d-\d\dT.*Z$")
        self.assertRegex(self.outbox("events", "show", event).stdout, rf"DELIVERED +RECEIPT[^\n]*\n.*{shown['delivered_at']} +{sent[event]}")
        # at most 50 at a time: each claim has a separate epoch
        (claims,), = self.sql(self.EPOCHS)
        self.assertGreaterEqual(claims, 3)

        # never claimed again, by any relay, even after a crash
        self.outbox("relay", *self.conf(), "--drain")
        again = self.relay(*self.conf())
        last = self.emit("tenant.user.added", "u/1", 1)
        wait_until(lambda: last in self.receipts())
        again.kill()
        self.redis("DEL", "lock:outbox:tenant-service")
        self.outbox("relay", *self.conf(), "--drain")
        self.assertEqual(self.redis("XLEN", "tenant.user") + self.redis("XLEN", "tenant.role"), 121)
        self.assertEqual(self.sql(self.EPOCHS), [(claims + 1,)])
        self.assertEqual({e: r for e, r in self.receipts().items() if e != last}, recorded)

    def test_claim_lasts_30_seconds_and_holds_50_events(self):
        """The view of other sessions while a delivery hangs."""
        self.emit_many({"type": "t", "payload": i} for i in range(60))
        args = ["--consumer", "c", "--preset", "dispatcher", "--concurrency", "1", "--sink", "exec:cat > got; sleep 60"]
        relay = self.relay(*args, "--drain-deadline", "0s")
        wait_until(lambda: self.path("got").exists(), what=relay.output)
        self.assertEqual(self.sql(self.CLAIM), [(30, 50)])
        relay.stop()


class OnSqlite(Dispatcher, Case):
    RECEIPTS = "SELECT event_id, sink_id, at / 1000.0 FROM outbox_receipt"
    EPOCHS = "SELECT epoch >> 20 FROM outbox_consumer"
    CLAIM = "SELECT lease / 1000, to_seq FROM outbox_claim ORDER BY epoch LIMIT 1"


class OnPostgres(Dispatcher, PgCase):
    RECEIPTS = "SELECT event_id, sink_id, extract(epoch FROM at)::float8 FROM outbox.receipt"
    EPOCHS = "SELECT last_value FROM outbox.epoch"
    CLAIM = ("SELECT extract(epoch FROM lease)::int, to_seq FROM outbox.claim"
             " ORDER BY epoch LIMIT 1")
