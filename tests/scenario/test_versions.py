"""An outbox whose version changes under a working relay: the relay settles its claims, and stops with a message that states the
reason; no event is lost, and its successor repeats none."""
# build: plain
from support import Case, MariaCase, PgCase, read_ndjson, wait_until

DATA = 65


class Bumped:
    """An outbox that a relay takes for another version."""

    def set_version(self, number):
        self.sql(f"UPDATE {self.meta} SET value = '{number}' WHERE name = 'schema_version'")

    def stops(self, relay, text):
        self.assertEqual(relay.wait(expect=DATA), DATA)
        self.assertIn(text, relay.output())
        self.assertNotIn("abandoned", relay.output())

    def test_relay_stops_gracefully_when_its_outbox_is_upgraded(self):
        self.outbox("init")
        out = self.path("out.ndjson")
        consumer = ("--consumer", "a", "--sink", f"file:{out}", "--batch", "10")
        relay = self.relay(*consumer, "--sweep", "200ms")
        self.emit_many({"type": "t", "payload": n} for n in range(2000))
        wait_until(lambda: len(read_ndjson(out)) > 100, what=relay.output)
        self.set_version(99)
        self.stops(relay, "this outbox was upgraded to version 99; this program knows 1: update it")
        came = [e["payload"] for e in read_ndjson(out)]
        self.set_version(1)
        self.drain(*consumer)
        after = [e["payload"] for e in read_ndjson(out)]
        self.assertEqual(after, list(range(2000)), f"lost or repeated; {len(came)} arrived")

    def test_idle_relay_also_stops_after_an_upgrade(self):
        self.outbox("init")
        relay = self.relay("--consumer", "a", "--sink", f"file:{self.path('out')}", "--sweep", "200ms")
        self.set_version(99)
        self.stops(relay, "this program knows 1: update it")

    def test_relay_on_a_downgraded_outbox_names_the_command(self):
        self.outbox("init")
        relay = self.relay("--consumer", "a", "--sink", f"file:{self.path('out')}", "--sweep", "200ms")
        self.set_version(0)
        self.stops(relay, "this outbox has version 0; this program needs 1: run `outbox migrate up`")


class BumpedSqlite(Bumped, Case):
    meta = "outbox_meta"


class BumpedMariaDB(Bumped, MariaCase):
    meta = "outbox_meta"


class BumpedPostgres(Bumped, PgCase):
    meta = "outbox.meta"

    def test_error_tells_a_plain_sql_worker_about_the_upgrade(self):
        self.outbox("init")
        self.sql("SELECT outbox.register('w')")
        self.emit("t")
        epoch = self.sql("SELECT epoch FROM outbox.claim('w', 'x')")[0][0]
        self.set_version(99)
        with self.assertRaisesRegex(Exception, "upgraded to version 99; this program knows 1: update it"):
            self.sql("SELECT * FROM outbox.claim('w', 'y')")
        self.assertEqual(self.sql("SELECT outbox.settle('w', 'x', %s)", epoch), [(True,)])
