"""MariaDB servers that die, come back or hand over to a replica, and relays that are killed -9: nothing lost, order kept, and nobody
has to start a relay again.

# build: plain
# quick: no

The storms take their timing from a seed, printed when one fails: OUTBOX_SEED=N plays it again, as far as processes can
be played again. OUTBOX_SOAK=1 goes on for minutes, each round with another seed."""
import signal
import time
import uuid

import crowd
import mariadb_server
import producer
from crowd import STORM
from support import Case, MariaCase, wait_until


class ServerCase(Case):
    """A Case on a server of its class's own, with a database of its own."""

    @classmethod
    def setUpClass(cls):
        cls.server = mariadb_server.MariaDB().start()
        cls.addClassCleanup(cls.server.close)

    def setUp(self):
        super().setUp()
        self.dbname = f"t_{uuid.uuid4().hex[:12]}"
        self.store = self.server.create_database(self.dbname)
        self.addCleanup(mariadb_server.forget_connections)

    def sql(self, statement, *params):
        return mariadb_server.execute(self.server.url(self.dbname), statement, *params)

    ask = MariaCase.ask


class Crowd(crowd.Crowd, ServerCase):
    TABLE, FILL, VERSIONS = producer.MARIA_TABLE, producer.MARIA_FILL, "SELECT `key`, version FROM account"

    def rows(self):
        return self.sql("SELECT id, aggregate_id, payload FROM outbox_event")


class Storm(crowd.Storms, Crowd):
    pass


class Crash(Crowd):
    """The server ends without a word and comes back; nobody else is started again."""
    lease = "1s"  # what is in flight takes longer on a server that has just come back and is busy with others

    def crashes(self, seconds):
        self.begin(2)
        crew = self.crew(2, 2)
        end = time.monotonic() + seconds
        ways = {"server killed": signal.SIGKILL, "server stopped": signal.SIGTERM}
        for n in range(1 << 20):
            before = sum(self.versions().values())
            time.sleep(self.random.uniform(0.2, 0.6))
            wait_until(lambda: sum(self.versions().values()) > before)
            kind = list(ways)[n % 2]
            self.server.stop(ways[kind])
            time.sleep(self.random.uniform(0, 0.3))
            self.server.start()
            self.fault(kind)
            if time.monotonic() > end and n >= 1: break
        self.wait_books(20, crew)
        self.dismiss(crew)
        self.heal()
        self.check()

    def test_a_server_that_dies_under_load_and_comes_back_loses_nothing(self):
        """A server that ends without a word, or orderly, and comes back: what was committed is delivered, in order, and nobody
        has to start a relay again."""
        self.rounds(self.crashes, STORM)
