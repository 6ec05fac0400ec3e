"""PgBouncer in transaction mode between all clients and the server, while all of them are killed: the pooler, relays,
producers, server backends; and an operator's actions on a pool."""
# build: plain
# quick: no
import contextlib
import os
import signal
import time

import psycopg2
import servers
from workload import STORM
from on_server import Load
from support import wait_until

HEAL = 30  # seconds from the end of a fault until relays deliver again


class Pooled(Load):
    """All clients go through a pooler with fewer connections than clients; the test connects directly."""

    lease = "1s"
    POOL = 6

    def sql(self, statement, *params):
        return servers.execute(self.server.url(self.dbname), statement, *params)

    def open(self, **settings):
        self.pooler = servers.PgBouncer(self.server, {"default_pool_size": self.POOL, "server_login_retry": 1, **settings}).start()
        self.addCleanup(self.pooler.close)
        self.addCleanup(self._end_children)
        self.store = self.pooler.url(self.dbname)

    def console(self, *commands):
        """console runs an operator's command on the pooler."""
        with contextlib.closing(psycopg2.connect(self.pooler.url("pgbouncer"))) as db:
            db.autocommit = True
            with db.cursor() as cursor:
                for command in commands: cursor.execute(command)

    # ---- the faults; `crew` may change ----

    def pooler_killed(self, crew):
        self.pooler.kill()
        time.sleep(self.random.uniform(0, 0.3))
        self.pooler.start()
        self.vanished += 2

    def relay_killed(self, crew):
        place = self.random.choice([place for place in sorted(crew) if place[0] == "relay"])
        self.kill(place, crew[place])
        crew[place] = self.start("relay")

    def producer_killed(self, crew):
        place = self.random.choice([place for place in sorted(crew) if place[0] == "producer"])
        self.kill(place, crew[place])
        crew[place] = self.start("producer")

    def backends(self):
        return [pid for pid, in self.sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND "
                                         "pid <> pg_backend_pid() AND backend_type = 'client backend'")]

    def backends_ended(self, crew):
        for pid in self.backends():
            if self.random.random() < 0.5: self.sql("SELECT pg_terminate_backend(%s)", pid)
        self.vanished += 2

    def backend_killed(self, crew):
        """The server treats it as its own crash, ends all others and recovers."""
        pids = wait_until(self.backends)
        os.kill(self.random.choice(pids), signal.SIGKILL)

        def back():
            with contextlib.suppress(psycopg2.Error): return self.sql("SELECT 1")
        wait_until(back)
        self.vanished += 2

    def pool_reconnected(self, crew):
        """Each connection to the server is replaced when its transaction is over."""
        self.console("RECONNECT")

    def pool_paused(self, crew):
        """PAUSE returns once no session is in a transaction; then all wait for longer than a lease."""
        self.console("PAUSE")
        time.sleep(self.random.uniform(0.5, 1.5))
        self.console("RESUME")
        self.vanished += 2  # claims held meanwhile have expired

    def pool_dropped(self, crew):
        """KILL closes every connection at once."""
        self.console(f"KILL {self.dbname}", f"RESUME {self.dbname}")
        self.vanished += 2

    def pooled(self, seconds):
        self.begin(2)
        self.open()
        crew = self.crew(3, 2)
        self.wait_books(10, crew)
        ways = [self.pooler_killed, self.relay_killed, self.backend_killed, self.pool_paused, self.pool_dropped, self.pool_reconnected,
                self.backends_ended, self.producer_killed]
        end = time.monotonic() + seconds
        for n in range(1 << 20):
            if n >= len(ways) and time.monotonic() > end: break
            way = ways[n] if n < len(ways) else self.random.choice(ways)
            way(crew)
            if way in (self.relay_killed, self.producer_killed): self.fault_over()  # counted by kill
            else: self.fault(way.__name__.replace("_", " "))
            self.wait_books(10, crew)
            self.healed()
            self.assertLess(self.heals[-1], HEAL, "".join(p.output()[-2000:] for p in crew.values()))
        self.dismiss(crew)
        self.heal()
        self.check()

    def test_kills_behind_a_transaction_pooler_lose_nothing(self):
        """A PgBouncer in transaction mode, relays, producers and backends that are killed, a pool that is paused, dropped and
        reconnected: committed events are delivered, in order, within 30 s of each fault."""
        self.rounds(self.pooled, STORM, 60)
