"""An outbox in MariaDB that has moved: restored from a dump or from a copy of the server's files, or on a promoted replica that
lagged. The events in the new database are delivered, from each consumer's position there; events after the copy are repeated or
gone, with their data. And servers that cannot hold an outbox."""
# build: plain
# quick: no
import contextlib
import os
import socket
import struct
import subprocess
import threading
import unittest

import mariadb_server
import servers
from support import Case, MariaCase, wait_until

GALERA = "/usr/lib/galera/libgalera_smm.so"
BACKUP = "/usr/bin/mariadb-backup"
CONFIG, UNAVAILABLE = 78, 69


class Moved(Case):
    """self.server has the outbox; the test's queries go to the server of self.store."""

    SETTINGS = {}

    def setUp(self):
        super().setUp()
        self.server = self.start_server(mariadb_server.MariaDB(self.SETTINGS))
        self.addCleanup(mariadb_server.forget_connections)
        self.addCleanup(self._end_children)
        self.store = self.server.create_database("shop")
        self.out = self.path("out")
        self.sent = 0

    def start_server(self, server):
        self.addCleanup(server.close)
        return server.start()

    def sql(self, statement, *params):
        return mariadb_server.execute(self.store, statement, *params)

    ask = MariaCase.ask

    def send(self, n):
        """send emits n numbers, of three keys."""
        first, self.sent = self.sent, self.sent + n
        self.emit_many([{"type": "t", "aggregate_type": "k", "aggregate_id": str(i % 3), "payload": i} for i in range(first, self.sent)])

    def got(self, name="out"):
        return [event["payload"] for event in self.ndjson(self.path(name))]

    def consumer(self, name="c", *more):
        return ("--consumer", name, "--sink", f"file:{self.path('out' if name == 'c' else name)}", "--lease", "500ms", *more)

    def first(self, name="out"):
        return list(dict.fromkeys(self.got(name)))

    def assert_keys_in_order(self, name="out"):
        for key in range(3):
            numbers = [n for n in self.first(name) if n % 3 == key]
            self.assertEqual(numbers, sorted(numbers))

    def assert_well(self):
        self.assertIn("all is well", self.outbox("doctor", status=None).stdout)


class Replayed(Moved):
    SETTINGS = {**mariadb_server.LOGGED, "server-id": 1, "binlog-format": "MIXED"}

    def test_replayed_statement_log_keeps_event_numbers(self):
        self.init()
        self.sql("CREATE TABLE numbered (n BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB AUTO_INCREMENT = 700")
        emit = "INSERT INTO outbox_event (type, payload) "
        self.sql(f"CREATE TRIGGER tells AFTER INSERT ON numbered FOR EACH ROW {emit} VALUES ('t', NEW.n)")
        with mariadb_server.connect(self.store) as db, db.cursor() as cursor:
            cursor.execute("SET binlog_format = STATEMENT")
            cursor.execute("BEGIN")
            cursor.execute(emit + "VALUES ('t', 0), ('t', 0)")
            cursor.execute("ROLLBACK")  # is not in the log, and has used up numbers
            cursor.execute(emit + "VALUES ('t', 1)")
            cursor.execute(emit + "VALUES ('t', 2), ('t', 3)")
            cursor.execute(emit + "SELECT 't', seq FROM seq_4_to_6")
            cursor.execute("INSERT INTO outbox_event (type, payload, nr) VALUES ('t', 7, 90)")
            cursor.execute("INSERT INTO numbered VALUES (), ()")
        numbers = self.sql("SELECT nr, payload FROM outbox_event ORDER BY nr")
        log = subprocess.run(["mariadb-binlog", "--no-defaults", self.server.dir / "data" / "b.000001"], check=True, capture_output=True).stdout
        self.assertGreater(log.count(b"SET INSERT_ID="), 3)
        other = self.start_server(mariadb_server.MariaDB())
        subprocess.run(["mariadb", "--no-defaults", "-u", "root", "-S", other.socket], check=True, input=log)
        self.store = other.url("shop")
        self.assertEqual(self.sql("SELECT nr, payload FROM outbox_event ORDER BY nr"), numbers)
        self.emit("t", None, 8)
        self.drain(*self.consumer())
        self.assertEqual(self.got(), [1, 2, 3, 4, 5, 6, 7, 700, 701, 8])


class Restored(Moved):
    def prepare(self):
        """prepare creates one consumer that got 10 of 20, with a claim of a killed relay, and one that got none."""
        self.init()
        self.drain(*self.consumer("idle", "--events", "none.*"))
        self.send(10)
        self.drain(*self.consumer())
        self.assertEqual(self.got(), list(range(10)))
        self.send(10)
        holder = self.relay("--consumer", "c", "--sink", "exec:sleep 60", "--batch", 4, "--lease", "500ms")
        wait_until(lambda: self.sql("SELECT 1 FROM outbox_claim"))
        holder.kill()

    def dump(self):
        argv = ["/usr/bin/mariadb-dump", "--no-defaults", f"--socket={self.server.socket}", "--user=root", "--single-transaction", "--routines",
                "--triggers", "shop"]
        return subprocess.run(argv, check=True, capture_output=True).stdout

    def load(self, server, dump):
        url = server.create_database("shop")
        argv = ["/usr/bin/mariadb", "--no-defaults", f"--socket={server.socket}", "--user=root", "shop"]
        subprocess.run(argv, check=True, input=dump, capture_output=True)
        return url

    def go_on(self):
        """go_on: events unsettled at the time of the copy are delivered now, and no settled ones."""
        before = self.got()
        self.assert_well()
        self.send(5)
        self.drain(*self.consumer())
        self.assertEqual(sorted(self.got()[len(before):]), list(range(10, 20)) + list(range(self.sent - 5, self.sent)))
        self.drain("--consumer", "new", "--sink", f"file:{self.path('new')}")
        self.assertEqual(sorted(self.got("new")), list(range(20)) + list(range(self.sent - 5, self.sent)))
        self.assert_keys_in_order("new")
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_claim"), [(0,)])

    def test_each_consumer_continues_from_a_restored_dump(self):
        self.prepare()
        dump = self.dump()
        other = self.start_server(mariadb_server.MariaDB())
        self.store = self.load(other, dump)
        self.go_on()
        self.assert_keys_in_order()

    def test_deliveries_after_the_dump_are_repeated_and_none_lost(self):
        self.prepare()
        dump = self.dump()
        self.drain(*self.consumer())
        self.assertEqual(sorted(self.got()), list(range(20)))
        self.store = self.load(self.start_server(mariadb_server.MariaDB()), dump)
        self.go_on()

    def test_dump_loaded_over_the_outbox_restores_its_old_state(self):
        """Its tables are dropped and recreated; a relay stopped meanwhile had an epoch and a position from after the dump."""
        self.prepare()
        self.drain(*self.consumer())
        dump = self.dump()
        self.send(6)
        self.drain(*self.consumer())
        self.assertEqual(len(set(self.got())), 26)
        argv = ["/usr/bin/mariadb", "--no-defaults", f"--socket={self.server.socket}", "--user=root", "shop"]
        subprocess.run(argv, check=True, input=dump, capture_output=True)
        self.assert_well()
        self.send(6)
        self.drain(*self.consumer())
        self.assertEqual(self.got()[26:], list(range(26, 32)))

    @unittest.skipUnless(os.path.exists(BACKUP), "mariadb-backup is not installed (Debian package mariadb-backup)")
    def test_every_consumer_continues_from_copied_data_files(self):
        self.prepare()
        other = mariadb_server.MariaDB()
        other.dir = servers.make_folder(other.prefix)
        other.socket = other.dir / "s"
        self.addCleanup(other.close)
        copy = other.dir / "data"
        argv = [BACKUP, "--no-defaults"]
        other.run(*argv, "--backup", f"--target-dir={copy}", f"--datadir={self.server.dir / 'data'}", f"--socket={self.server.socket}", "--user=root",
                  "--innodb-log-file-size=16M")
        other.run(*argv, "--prepare", f"--target-dir={copy}")
        other.start()
        self.store = other.url("shop")
        self.go_on()

    def test_doctor_finds_and_init_repairs_a_missing_trigger_owner(self):
        """A trigger runs as its creator. Where that account is missing, each INSERT fails: doctor says so, and init repairs
        it."""
        mariadb_server.execute(self.server.url(""), "CREATE USER founder@localhost")
        mariadb_server.execute(self.server.url(""), "GRANT ALL ON shop.* TO founder@localhost")
        self.store = self.store.replace("root@", "founder@")
        self.init()
        self.send(3)
        dump = self.dump()
        self.store = self.load(self.start_server(mariadb_server.MariaDB()), dump)
        said = self.outbox("emit", "t", status=None)
        self.assertNotEqual(said.returncode, 0)
        self.assertRegex(said.stderr, "definer.*does not exist")
        self.assertRegex(self.outbox("doctor", status=None).stdout, r"problem.*founder@localhost.*outbox init")
        self.outbox("init")
        self.assert_well()
        self.send(3)
        self.drain(*self.consumer())
        self.assertEqual(self.got(), list(range(6)))


    def test_init_recreates_an_adoption_trigger_without_an_owner(self):
        """With its former columns and mark."""
        sql = lambda text: mariadb_server.execute(self.store, text)
        self.init()
        sql("CREATE USER founder@localhost")
        sql("GRANT ALL ON *.* TO founder@localhost")
        sql("CREATE TABLE `it's` (nr INT PRIMARY KEY, event_type TEXT, payload TEXT, done DATE)")
        self.outbox("adopt", "`it's`", "--column", "id=nr", "--column", "processed_at=done", "--column", "aggregate_type='order'", "--column",
                    "aggregate_id=nr", "--mark", "done", "--consumer", "mail", "--store", self.store.replace("root@", "founder@"))
        body = "SELECT action_statement FROM information_schema.triggers WHERE event_object_table = 'it''s'"
        before = sql(body)
        sql("DROP USER founder@localhost")
        insert = "INSERT INTO `it's` VALUES (7, 'a', '1', NULL)"
        with self.assertRaisesRegex(Exception, "definer.*does not exist"): sql(insert)
        self.assertRegex(self.outbox("doctor", status=None).stdout, r"problem.*outbox_adopted_it's.*founder@localhost")
        self.outbox("init")
        self.assertNotIn("founder", self.outbox("doctor", status=None).stdout)
        self.assertEqual(sql(body), before)
        sql(insert)
        self.drain("--consumer", "mail", "--sink", f"file:{self.path('mail')}")
        self.assertEqual([(e["aggregate_type"], e["aggregate_id"]) for e in self.ndjson(self.path("mail"))], [("order", "7")])
        self.assertEqual(sql("SELECT count(*) FROM `it's` WHERE done IS NOT NULL"), [(1,)])


class Lagging(Moved):
    def setUp(self):
        super().setUp()
        self.primary = self.start_server(mariadb_server.Primary({"rpl-semi-sync-master-enabled": "OFF"}))
        self.replica = self.start_server(mariadb_server.Replica(self.primary)).follow()
        self.store = self.primary.create_database("shop")
        self.init()

    def test_consumers_continue_on_a_promoted_lagging_replica(self):
        """The relay knows of events, positions and claims that the new primary has never heard of."""
        self.send(10)
        self.drain(*self.consumer())
        wait_until(self.replica.caught_up)
        mariadb_server.execute(self.replica.url(""), "STOP SLAVE")
        self.send(10)
        self.drain(*self.consumer())
        self.assertEqual(self.got(), list(range(20)))
        self.primary.kill()
        self.replica.promote()
        self.store = self.replica.url("shop")
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_event"), [(10,)], "the replica did not lag: the test proves nothing")
        self.assert_well()
        self.send(10)
        self.drain(*self.consumer())
        self.assertEqual(self.got(), list(range(30)))

    def test_replica_is_readable_and_explains_refused_writes(self):
        mariadb_server.execute(self.primary.url(""), "CREATE USER app@localhost")
        mariadb_server.execute(self.primary.url(""), "GRANT ALL ON shop.* TO app@localhost")
        id = self.emit("a", "k/1", 1)
        self.drain(*self.consumer())
        wait_until(self.replica.caught_up)
        there = self.replica.url("shop").replace("root@", "app@")
        self.assertIn(id, self.outbox("events", "list", "--store", there).stdout)
        self.assertIn("1 event kept", self.outbox("status", "--store", there).stdout)
        said = self.outbox("emit", "a", "--store", there, status=None)
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("use the primary", said.stderr)
        self.assertRegex(self.outbox("doctor", "--store", there, status=None).stdout, "problem.*read-only")


class Galera(mariadb_server.MariaDB):
    """A cluster of one node."""

    def command(self):
        port = servers.free_port()
        return [*super().command(), "--wsrep-on=ON", f"--wsrep-provider={GALERA}", "--wsrep-cluster-address=gcomm://", "--binlog-format=ROW",
                f"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{port}", "--wsrep-node-address=127.0.0.1", "--innodb-autoinc-lock-mode=2"]


class MySQL(threading.Thread):
    """A server that claims to be MySQL 8, accepts every login, and knows no statement."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self):
        with contextlib.suppress(OSError):
            while True: self.serve(self.listener.accept()[0])

    def serve(self, client):
        send = lambda number, body: client.sendall(struct.pack("<I", len(body))[:3] + bytes([number]) + body)
        with client, contextlib.suppress(OSError):
            # version, connection, salt, capabilities, character set, status, ..., plugin
            send(0, b"\x0a8.0.36\0" + struct.pack("<I", 7) + b"12345678\0" + struct.pack("<HBHHB", 0xf7ff, 45, 2, 0x000f, 21) + bytes(10)
                 + b"123456789012\0" + b"mysql_native_password\0")
            client.recv(1 << 16)
            send(2, b"\0\0\0\2\0\0\0")
            while client.recv(1 << 16): send(1, b"\xff" + struct.pack("<H", 1193) + b"#HY000Unknown system variable")


class Refused(Case):
    def test_mysql_is_refused_with_the_reason(self):
        server = MySQL()
        self.addCleanup(server.listener.close)
        server.start()
        said = self.outbox("init", "--store", f"mariadb://root@127.0.0.1:{server.port}/shop", status=CONFIG).stderr
        self.assertRegex(said, "this server is 8.0.36; an outbox needs MariaDB 10.6 or later; MySQL has neither INSERT ... RETURNING nor")

    @unittest.skipUnless(os.path.exists(GALERA), "Galera is not installed (Debian package galera-4)")
    def test_galera_cluster_is_refused_with_the_reason(self):
        with Galera() as server:
            wait_until(lambda: mariadb_server.execute(server.url(""), "SHOW STATUS LIKE 'wsrep_ready'")[0][1] == "ON")
            store = server.create_database("shop")
            said = self.outbox("init", "--store", store, status=CONFIG)
            self.assertRegex(said.stderr, "Galera.*order")
            self.assertEqual(mariadb_server.execute(store, "SHOW TABLES"), [])
            mariadb_server.forget_connections()
