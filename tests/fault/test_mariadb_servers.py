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
from net import Net
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
    def test_a_storm_of_kills_loses_invents_and_reorders_nothing(self):
        """Whoever is killed or stopped whenever: what was committed is delivered, in order, and nothing else is."""
        self.rounds(lambda seconds: self.storm(1, seconds), STORM)

    def test_a_storm_of_kills_loses_invents_and_reorders_nothing_with_lanes(self):
        """Whoever is killed or stopped whenever: what was committed is delivered, in order, also in several lanes."""
        self.rounds(lambda seconds: self.storm(4, seconds), STORM)

    def test_a_storm_of_kills_loses_invents_and_reorders_nothing_where_relays_share_many_lanes(self):
        """Whoever is killed or stopped whenever: lanes that relays join, split and take over lose and reorder nothing."""
        self.rounds(lambda seconds: self.storm(16, seconds, relays=3), STORM)


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


class Failover(Crowd):
    """Everybody goes to one address, which leads to the primary, and to the replica after its promotion; by an account that a server
    which is read-only refuses."""
    lease = "1s"

    @classmethod
    def setUpClass(cls):
        pass

    def setUp(self):
        self.primary = self.server = mariadb_server.Primary().start()
        super().setUp()
        self.addCleanup(self.primary.close)
        self.replica = mariadb_server.Replica(self.primary).start()
        self.addCleanup(self.replica.close)
        self.replica.follow()
        mariadb_server.execute(self.primary.url(""), "CREATE USER app@localhost")
        mariadb_server.execute(self.primary.url(""), f"GRANT ALL ON {self.dbname}.* TO app@localhost")
        self.net = Net(self.primary.socket)
        self.net.__enter__()
        self.addCleanup(self.net.__exit__)
        self.addCleanup(self._end_children)
        wait_until(self.semi_synchronous)
        self.init()
        self.store = f"mariadb://app@127.0.0.1:{self.net.port}/{self.dbname}"

    def semi_synchronous(self):
        return mariadb_server.execute(self.primary.url(""), "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'")[0][1] == "1"

    def begin(self, lanes):
        near, self.store = self.store, self.primary.url(self.dbname)
        super().begin(lanes)
        self.store = near

    def hand_over(self):
        """hand_over: the address leads to the replica, which is the one that the test asks from now on."""
        self.replica.promote()
        self.server, self.net.server = self.replica, str(self.replica.socket)
        self.fault_over()

    def reckon(self, crew):
        self.wait_books(30, crew)
        self.dismiss(crew)
        self.heal()
        self.check()

    def test_relays_follow_to_the_replica_that_takes_over(self):
        """A primary that dies and a replica that takes over: what was committed on both is delivered, in order, by the same
        relays."""
        self.rounds(self.failover, 0)

    def failover(self, _):
        self.begin(1)
        crew = self.crew(2, 2)
        self.wait_books(30, crew)
        self.primary.kill()
        self.fault("primary killed")
        wait_until(self.replica.applied)
        self.hand_over()
        self.reckon(crew)

    def test_relays_follow_when_the_primary_becomes_read_only_and_lives_on(self):
        """A primary that hands over in good order and keeps its connections open: relays leave it when they may not write any more;
        what was committed is delivered, in order."""
        self.rounds(self.switchover, 0)

    def switchover(self, _):
        self.begin(1)
        crew = self.crew(2, 2)
        self.wait_books(30, crew)
        mariadb_server.execute(self.primary.url(""), "SET GLOBAL read_only = 1")
        self.fault("primary read-only")
        wait_until(self.replica.caught_up)
        self.hand_over()
        self.reckon(crew)
