"""MariaDB servers that die, restart or hand over to a replica, and relays that are killed -9: nothing is lost, order is kept,
and no relay has to be restarted.

# build: plain
# quick: no

The storms take their timing from a seed, printed when one fails: OUTBOX_SEED=N replays it as far as processes allow.
OUTBOX_SOAK=1 runs for minutes, each round with another seed."""
import os
import signal
import time
import uuid

import workload
import mariadb_server
import producer
import small_disk
from flag_table import FlagTable
from net import Net
from scenario import CLAIMS, KEYS, Numbers
from small_disk import HeldDisk
from support import Case, MariaCase, wait_until

UNAVAILABLE = 69


class ServerCase(Case):
    """A Case on a server of its class, with its own database."""

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


class Load(workload.Workload, ServerCase):
    TABLE, FILL, VERSIONS = producer.MARIA_TABLE, producer.MARIA_FILL, "SELECT `key`, version FROM account"

    def rows(self):
        return self.sql("SELECT id, aggregate_id, payload FROM outbox_event")


class Storm(workload.Storms, Load):
    pass


class Crash(workload.ServerCrashes, Load):
    def ways(self):
        return {"server killed": lambda: self.server.stop(signal.SIGKILL), "server stopped": lambda: self.server.stop(signal.SIGTERM)}


class Failover(Load):
    """All clients use one address, which leads to the primary, and to the replica after its promotion, with an account that a
    read-only server refuses."""
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
        """hand_over points the address at the replica, which the test queries from now on."""
        self.replica.promote()
        self.server, self.net.server = self.replica, str(self.replica.socket)
        self.fault_over()

    def reckon(self, crew):
        self.wait_books(30, crew)
        self.dismiss(crew)
        self.heal()
        self.check()

    def test_relays_move_to_the_promoted_replica(self):
        """A primary that dies and a replica that replaces it: events committed on both are delivered, in order, by the same
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

    def test_relays_move_when_the_primary_becomes_read_only(self):
        """A planned switchover in which the primary keeps its connections open: relays leave it when they may no longer write;
        committed events are delivered, in order."""
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


class RolledBack(FlagTable, ServerCase, MariaCase):
    """A server that rolls back the whole transaction where a statement could not get a lock (innodb_rollback_on_timeout)."""

    @classmethod
    def setUpClass(cls):
        cls.server = mariadb_server.MariaDB({"innodb-rollback-on-timeout": "ON"}).start()
        cls.addClassCleanup(cls.server.close)

    def test_row_that_cannot_be_marked_rolls_the_turn_back(self):
        self.sql(self.flagged)
        self.sql("ALTER TABLE outbox ADD INDEX (processed_at)")
        self.put(0, processed="2024-05-02 03:04:05")
        self.outbox("adopt", "outbox", "--mark", "processed_at", "--consumer", "mail")
        self.insert(1, 2)
        state = lambda: (len(self.sql("SELECT 1 FROM outbox_claim")), self.sql("SELECT delivered FROM outbox_consumer"), self.processed())
        other = mariadb_server.connect(self.store).cursor()
        other.execute("BEGIN")
        other.execute("SELECT id FROM outbox WHERE processed_at IS NOT NULL FOR UPDATE")
        with self.relay("--consumer", "mail", "--sink", f"file:{self.path('mail')}", "--log-hold", "0s") as relay:
            wait_until(lambda: "Lock wait timeout" in relay.output(), what=relay.output)
            self.assertEqual(state(), (1, [(0,)], [0]))
            other.execute("ROLLBACK")
            wait_until(lambda: state() == (0, [(2,)], [0, 1, 2]), what=relay.output)
        self.assertEqual([e["payload"]["n"] for e in self.ndjson(self.path("mail"))], [1, 2])


class SmallDisk(HeldDisk, mariadb_server.MariaDB):
    """A server whose database `shop` is on a small disk. Its logs are elsewhere."""

    def prepare(self):
        super().prepare()
        shop = self.dir / "data" / "shop"
        self.run("mkdir", str(shop))
        self.hold(shop)


class DiskFull(Numbers, Case):
    def setUp(self):
        super().setUp()
        if not small_disk.possible(): self.skipTest("this machine does not allow mounting a small file system")
        self.server = SmallDisk().start()
        self.addCleanup(self.server.close)
        self.addCleanup(mariadb_server.forget_connections)
        self.addCleanup(self._end_children)
        self.store = self.server.url("shop")

    def sql(self, statement, *params):
        return mariadb_server.execute(self.store, statement, *params)

    ask = MariaCase.ask

    def start(self):
        return self.relay("--consumer", "out", "--sink", f"file:{self.out}", "--batch", 1, "--lease", "500ms", "--log-hold", "0s")

    def begin(self):
        self.init()
        self.drain("--consumer", "out", "--sink", f"file:{self.out}")
        self.send(200)

    def fill(self):
        """fill fills up the database; refused emits say so. The last one that fits is one of the numbers."""
        self.server.fill()
        while True:
            said = self.outbox("emit", "a", "--key", f"k/{self.sent % KEYS}", "--payload", self.sent, "--header", "pad=" + "x" * 3000, status=None)
            if said.returncode != 0: break
            self.sent += 1
        self.assertEqual(said.returncode, UNAVAILABLE, said.stderr)
        self.assertRegex(said.stderr, "is full; make room, then try again")

    def end(self, relay):
        self.wait_all(relay)
        self.healed()
        self.outbox("emit", "a", "--key", f"k/{self.sent % KEYS}", "--payload", self.sent)
        self.sent += 1
        self.wait_all(relay)
        relay.stop()
        # An unrecorded delivery is repeated.
        self.reckon(CLAIMS * (relay.output().count("trying again") + self.lost_claims("out")))

    def test_emits_fail_clearly_on_a_full_disk_and_lose_nothing(self):
        """A database without room refuses emits and says why; committed events are delivered, in order, at the latest once
        there is room again."""
        self.begin()
        self.fill()
        with self.start() as relay:
            wait_until(lambda: "is full" in relay.output() or not self.missing(), what=relay.output)
            self.server.make_room()
            self.fault("database full")
            self.end(relay)

    def test_relay_recovers_after_a_full_disk(self):
        """A database that repeatedly fills up under a relay: the relay continues, and committed events are delivered, in order,
        with no help but free space."""
        self.begin()
        with self.start() as relay:
            for _ in range(2):
                self.wait_all(relay)
                relay.freeze()
                self.send(60)
                self.fill()
                relay.signal(signal.SIGCONT)
                wait_until(lambda: "is full" in relay.output() or not self.missing(), what=relay.output)
                self.server.make_room()
                self.fault("database full")
            self.end(relay)

    def test_server_aborting_on_a_full_disk_loses_nothing(self):
        """A value that is stored on pages of its own also needs room to be rolled back: without any the server aborts.
        Restarted with room, it has everything committed, and relays continue on their own."""
        self.begin()
        self.fill()
        large = f'"{os.urandom(400000).hex()}"'
        with self.start() as relay:
            self.outbox("emit", "a", "--payload", "-", input=large, status=UNAVAILABLE)
            self.fault("database full")
            self.server.make_room()
            if not self.server.running(): self.server.start()
            self.end(relay)
        self.outbox("emit", "a", "--payload", "-", input=large)
