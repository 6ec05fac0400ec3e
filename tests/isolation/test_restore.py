"""An outbox that was dumped in one cluster and restored in another, where transaction numbers start over."""
# build: plain
# quick: no
import subprocess

import psycopg2

import servers
from support import PgCase, wait_until


def run_sql(url, *statements):
    db = psycopg2.connect(url)
    db.autocommit = True
    with db.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        rows = cursor.fetchall() if cursor.description else []
    db.close()
    return rows


class Restored(PgCase):
    """Each test has an outbox in the run's server (old) and restores it into a private server (new)."""

    def setUp(self):
        super().setUp()
        self.new = servers.Postgres(cluster="second")
        self.new.start()
        self.addCleanup(self.new.close)
        self.new.create_database("there")
        self.init()

    def burn(self, url, n):
        """burn uses up transaction numbers."""
        run_sql(url, f"DO $$ BEGIN FOR i IN 1..{n} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")

    def move(self):
        dump, psql = self.path("dump.sql"), servers.postgres_tool("psql")
        with open(dump, "wb") as out:
            subprocess.run([servers.postgres_tool("pg_dump"), "--schema=outbox", "--no-owner", self.store], check=True, stdout=out)
        self.store = self.new.url("there")
        done = subprocess.run([psql, "-q", "-X", "-v", "ON_ERROR_STOP=1", "-f", str(dump), self.store], capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def there(self, *statements):
        return run_sql(self.store, *statements)

    def fill(self):
        """fill leaves events in every state: 0-9 delivered, 10-14 in a claim, 15 parked, 16-29 not claimed."""
        for i in range(30):
            self.sql("SELECT outbox.emit('t', 'k', %s, %s)", str(i % 7), f'{{"n":{i}}}')
        self.sql("SELECT outbox.register('c')")
        epoch = self.sql("SELECT max(epoch) FROM outbox.claim('c', 'w', 10)")[0][0]
        self.sql("SELECT outbox.settle('c', 'w', %s)", epoch)
        self.sql("SELECT count(*) FROM outbox.claim('c', 'w', 5, 3600000)")

    def numbers(self, out):
        return [event["payload"]["n"] for event in self.ndjson(out)]

    def drain_there(self):
        out = self.path("out.ndjson")
        self.drain("--consumer", "c", "--sink", f"file:{out}")
        return self.numbers(out)

    def test_restore_to_lower_numbers_delivers_undelivered_events(self):
        self.burn(self.store, 3000)
        self.fill()
        self.move()
        before = self.there("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint < (SELECT min(xid)::text::bigint "
                            "FROM outbox.event)")
        self.assertEqual(before, [(True,)], "the restored cluster is already ahead: the test proves nothing")
        got = self.drain_there()
        self.assertEqual(sorted(got), list(range(10, 30)))
        for key in range(7):
            of_key = [n for n in got if n % 7 == key]
            self.assertEqual(of_key, sorted(of_key))

    def test_restore_to_higher_numbers_delivers_undelivered_events(self):
        self.burn(self.new.url("there"), 5000)
        self.fill()
        self.move()
        self.assertEqual(sorted(self.drain_there()), list(range(10, 30)))

    def test_events_in_the_target_are_delivered_and_reported(self):
        self.burn(self.store, 3000)
        self.fill()
        self.move()
        self.there("SELECT outbox.emit('t', 'k', '1', '{\"n\":100}')")
        got = self.drain_there()
        self.assertEqual(sorted(got), [*range(10, 30), 100])
        self.assertLess(got.index(29), len(got))
        self.there("SELECT outbox.emit('t', 'k', '1', '{\"n\":101}')")
        self.assertEqual(self.drain_there()[-1], 101)
        meta = dict(self.there("SELECT name, value FROM outbox.meta"))
        self.assertIn("rebaselined_at", meta)
        self.assertNotEqual(meta["rebaselined_from"], meta["system_identifier"])
        self.assertEqual(self.there("SELECT moved IS NOT NULL FROM outbox._trouble()"), [(False,)])

    def test_consumer_starting_at_the_beginning_gets_everything(self):
        self.burn(self.store, 3000)
        self.fill()
        self.move()
        out = self.path("all.ndjson")
        self.drain("--consumer", "fresh", "--sink", f"file:{out}")
        self.assertEqual(sorted(self.numbers(out)), list(range(30)))

    def test_concurrent_relays_repair_a_restore_once(self):
        self.burn(self.store, 3000)
        self.fill()
        self.move()
        relays = [self.relay("--consumer", "c", "--sink", f"file:{self.path(f'r{i}.ndjson')}", wait=False) for i in range(3)]
        wait_until(lambda: sum(len(self.numbers(self.path(f"r{i}.ndjson"))) for i in range(3)) >= 20)
        for relay in relays: relay.stop()
        got = sum((self.numbers(self.path(f"r{i}.ndjson")) for i in range(3)), [])
        self.assertEqual(sorted(set(got)), list(range(10, 30)))

    def test_outbox_that_was_not_moved_is_not_repaired(self):
        self.fill()
        self.outbox("status")
        self.assertEqual(self.sql("SELECT moved IS NOT NULL FROM outbox._trouble()"), [(False,)])
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.meta WHERE name LIKE 'rebaselined%%'"), [(0,)])
