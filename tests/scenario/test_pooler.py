"""Everything through PgBouncer in transaction mode, where sessions are shared: no LISTEN, no prepared names, no
session locks, no settings. The relay polls instead of being woken."""
# build: plain
# quick: no
import time

import psycopg2
import servers
from support import TIMEOUT, Case, wait_until

POLL = 0.5  # seconds
SOON = 30
CONFIG = 78


class Pooler(Case):
    """A Case whose store is a database behind a pooler with few connections to share; self.direct goes past it."""

    POOL = 2

    @classmethod
    def setUpClass(cls):
        cls.server = servers.Postgres({"jit": "on"}).start()  # so that a lost connection is noticed
        cls.addClassCleanup(cls.server.close)
        cls.pooler = servers.PgBouncer(cls.server, {"default_pool_size": cls.POOL}).start()
        cls.addClassCleanup(cls.pooler.close)

    def setUp(self):
        super().setUp()
        name = f"t_{self._testMethodName[-40:]}"
        self.direct = self.server.create_database(name)
        self.store = self.pooler.url(name)
        self.dbname, self.out = name, self.path("out")
        self.init()

    def sql(self, statement, *params):
        return servers.execute(self.direct, statement, *params)

    def mail(self, *more):
        return self.relay("--consumer", "mail", "--sink", f"file:{self.out}", *more)

    def got(self):
        return [ev["payload"] for ev in self.ndjson(self.out)]

    def numbers(self, first, last):
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(n % 3), "payload": n}
                        for n in range(first, last)])

    def wait_for(self, n, *relays, timeout=TIMEOUT):
        wait_until(lambda: len(set(self.got())) == n, timeout, lambda: (self.got(), [r.output() for r in relays]))

    def backends(self):
        return {pid for pid, in self.sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND "
                                         "pid <> pg_backend_pid() AND backend_type = 'client backend'")}

    def check_sessions(self):
        """check_sessions looks into every connection of the pool for leftovers."""
        locks = self.sql("SELECT pid, mode FROM pg_locks l, pg_database d WHERE d.oid = l.database AND d.datname = "
                         "current_database() AND l.locktype = 'advisory'")
        self.assertEqual(locks, [], "advisory locks")
        seen, deadline = set(), time.monotonic() + TIMEOUT
        # Queried each time: our own connection, past the pool, may be about to close.
        while not seen >= (pool := self.backends()) and time.monotonic() < deadline:
            # A separate transaction each, all held open at once, so that each gets a separate connection.
            links = [psycopg2.connect(self.store) for _ in range(min(len(pool), self.POOL))]
            for link in links:
                with link.cursor() as cursor:
                    cursor.execute("SELECT pg_backend_pid(), (SELECT count(*) FROM pg_prepared_statements), (SELECT "
                                   "count(*) FROM pg_listening_channels()), current_setting('enable_seqscan'), "
                                   "current_setting('jit'), current_setting('default_transaction_isolation')")
                    pid, *rest = cursor.fetchone()
                    self.assertEqual(rest, [0, 0, "on", "on", "read committed"])
                    seen.add(pid)
            for link in links: link.close()
        self.assertGreaterEqual(seen, pool)

    def test_everything_works_through_a_pooler_without_leaks(self):
        self.emit("a", "k/0", 0, "--idempotency-key", "once")
        self.emit("a", "k/0", 0, "--idempotency-key", "once")
        with self.mail("--batch", 10) as relay:
            self.numbers(1, 100)
            self.wait_for(100, relay)
            state = self.json("status")
            self.assertEqual([c["name"] for c in state["consumers"]], ["mail"])
            self.outbox("consumers", "pause", "mail")
            self.outbox("consumers", "resume", "mail")
            self.numbers(100, 110)
            self.wait_for(110, relay)
        for key in range(3):
            mine = [n for n in self.got() if n % 3 == key]
            self.assertEqual(mine, sorted(mine))
        self.drain("--consumer", "never", "--sink", "exec:exit 65")
        self.assertEqual(len(self.json("dead", "list")), 110)
        self.outbox("dead", "retry", "--all", "--consumer", "never")
        self.drain("--consumer", "never", "--sink", f"file:{self.path('second')}")
        self.assertEqual(len(self.ndjson(self.path("second"))), 110)
        self.outbox("events", "list")
        self.outbox("trim")
        self.check_sessions()

    def test_event_behind_a_pooler_arrives_at_the_next_poll(self):
        with self.mail() as relay:
            self.numbers(0, 1)
            self.wait_for(1, relay)
            took = []
            for n in range(1, 5):
                start = time.monotonic()
                self.sql("SELECT outbox.emit('a', 'k', '1', %s)", str(n))
                self.wait_for(n + 1, relay, timeout=SOON)
                took.append(time.monotonic() - start)
            self.assertLess(min(took), 2 * POLL, took)
            self.assertEqual(self.sql("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'"), [])
        self.check_sessions()

    def test_relays_share_a_pool_that_has_fewer_connections(self):
        relays = [self.mail("--batch", 5) for _ in range(2 * self.POOL)]
        self.numbers(0, 60)
        self.wait_for(60, *relays)
        for relay in relays: relay.stop()
        self.check_sessions()

    def test_relay_reconnects_to_a_restarted_pooler(self):
        with self.mail() as relay:
            self.numbers(0, 5)
            self.wait_for(5, relay)
            self.pooler.stop()
            self.pooler.start()
            self.numbers(5, 10)
            self.wait_for(10, relay)

    def test_unusable_isolation_level_is_reported(self):
        """Past a pooler the relay sets its own; here a session's settings would leak to other clients."""
        self.sql(f'ALTER DATABASE "{self.dbname}" SET default_transaction_isolation = serializable')
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND "
                 "pid <> pg_backend_pid()")
        said = self.outbox("relay", "--consumer", "mail", "--sink", "stdout:", status=CONFIG).stderr
        self.assertIn("requires READ COMMITTED, not SERIALIZABLE", said)
        self.assertIn("default_transaction_isolation", said)
