"""MariaDB's peculiarities, one at a time: unhandled, each would lose an event, change it, or stop every worker."""
# build: plain
# quick: no
import contextlib
import itertools
import os
import subprocess
import threading
import time

import pymysql

import mariadb_server
from support import BIN, MariaCase, wait_until

CONFIG, UNAVAILABLE = 78, 69


class Traps(MariaCase):
    def setUp(self):
        super().setUp()
        self.init()
        self.out = self.path("out")
        self.consumer = ("--consumer", "c", "--sink", f"file:{self.out}")

    def ids(self):
        return [line["id"] for line in self.ndjson(self.out)]

    def refused(self, db, why, statement, *params):
        with db.cursor() as cursor, self.assertRaisesRegex(pymysql.err.MySQLError, why): cursor.execute(statement, params or None)

    # ---- values are stored as given ----

    def test_keys_differing_in_case_accents_or_spaces_are_distinct(self):
        keys = ["a", "a ", "A", "\u00e4", "a\u0308", "\u00df", "ss", " a"]
        for key in keys:
            self.sql("INSERT INTO outbox_event (type, aggregate_type, aggregate_id, idempotency_key) VALUES (%s, 't', %s, %s)", "x", key, key)
        self.drain(*self.consumer)
        self.assertEqual([line["aggregate_id"] for line in self.ndjson(self.out)], keys)
        for consumer in ("mail", "Mail"): self.drain("--consumer", consumer, "--sink", f"file:{self.path(consumer)}")
        self.assertEqual([len(self.ndjson(self.path(name))) for name in ("mail", "Mail")], [len(keys)] * 2)

    def test_session_without_strict_mode_never_alters_a_value(self):
        db = self.connect()
        db.cursor().execute("SET SESSION sql_mode = ''")
        self.refused(db, "type: 1 to 255 bytes", "INSERT INTO outbox_event (type) VALUES (%s)", "x" * 300)
        self.refused(db, "not strict.*Incorrect string", "INSERT INTO outbox_event (type) VALUES (X'61ff62')")
        self.refused(db, "not strict", "INSERT INTO outbox_event (type, version) VALUES ('x', '12 apples')")
        self.refused(db, "not strict", "INSERT INTO outbox_event (type, version) VALUES ('x', 99999999999999999999)")
        self.refused(db, "JSON", "INSERT INTO outbox_event (type, payload) VALUES ('x', X'7bff7d')")
        self.refused(db, "type", "INSERT INTO outbox_event (type) VALUES ('x'), (NULL)")
        with db.cursor() as cursor: cursor.execute("INSERT INTO outbox_event (type) VALUES ('fine')")
        self.assertEqual(self.sql("SELECT type FROM outbox_event"), [("fine",)])
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_fresh"), [(1,)])

    def test_no_session_setting_changes_a_stored_value(self):
        """For every column, a value that does not fit, by every way to emit, under every setting that makes the server lenient:
        refused, or stored as given."""
        uuid = "01890a5d-ac96-774b-bcce-b302099a8057"
        bad = {"id": [f"'{uuid}x'", "'no'"], "type": [f"'{'x' * 300}'", "X'61ff62'", "NULL"], "aggregate_id": [f"'{'x' * 1030}'", "X'61ff62'"],
               "version": ["'12 apples'", "1e30", "''", "'x'", "18446744073709551615", "DATE_ADD('9999-12-31', INTERVAL 9 DAY)"],
               "payload": ["X'2261ff6222'", "NULL", "'no json'"], "headers": ["X'7b2261223a22ff227d'", "REPEAT('x', 1 << 30)"],
               "tenant": [f"'{'x' * 1030}'", "X'61ff62'", "CONVERT('\u2603' USING latin1)"], "not_before": ["'2030-01-01'", "1e30"],
               "created_at": ["'2030-01-01'", "NULL", "1e30", "''"], "idempotency_key": [f"'{'x' * 1030}'", "X'61ff62'"]}
        good_values = {"type": "'t'", "aggregate_id": "'b'"}
        sessions = ["sql_mode = ''", "sql_mode = '', max_error_count = 0", "sql_mode = '', max_error_count = 1", "max_error_count = 0",
                    "check_constraint_checks = 0", "sql_mode = '', check_constraint_checks = 0", "sql_mode = '', sql_notes = 0",
                    "sql_mode = '', check_constraint_checks = 0, max_error_count = 0"]
        for session in sessions:
            cursor = self.connect().cursor()
            cursor.execute(f"SET SESSION {session}")
            for column, value in ((column, value) for column in bad for value in bad[column]):
                row = {"type": "'t'", "aggregate_type": "'a'", "aggregate_id": "'b'", column: value}
                good = {**row, column: good_values.get(column, "DEFAULT")}
                for insert, rows in itertools.product(("INSERT INTO", "INSERT IGNORE INTO", "REPLACE INTO"), ([row], [good, row])):
                    values = ", ".join(f"({', '.join(one.values())})" for one in rows)
                    with contextlib.suppress(pymysql.err.MySQLError): cursor.execute(f"{insert} outbox_event ({', '.join(row)}) VALUES {values}")
                    kept = self.sql("SELECT type, aggregate_id, version, payload, headers, tenant, not_before, idempotency_key FROM outbox_event")
                    self.assertIn(kept, ([], [("t", "b", None, "null", None, None, None, None)]), (session, insert, column, value))
                    self.alter_events("DELETE FROM outbox_event")
            for call in ("outbox_emit('t', 'a', X'61ff62', '1')", "outbox_emit('t', 'a', 'b', X'2261ff6222')",
                         "outbox_emit_once('t', X'61ff62', 'b', '1', 'k', @a, @b)", f"outbox_emit('{'x' * 300}', 'a', 'b', '1')"):
                with self.assertRaises(pymysql.err.MySQLError, msg=(session, call)): cursor.execute(f"CALL {call}")
                self.assertEqual(self.sql("SELECT count(*) FROM outbox_event"), [(0,)], (session, call))

    def test_values_that_cannot_be_checked_are_refused_with_advice(self):
        db = self.connect()
        many = "INSERT IGNORE INTO outbox_event (type, idempotency_key, version) VALUES ('a', '1', 1), ('a', '1', 1), ('a', '2', {})"
        for setting, statement, why in (
                ("max_error_count = 0", "INSERT INTO outbox_event (type) VALUES ('a')", "max_error_count"),
                ("max_error_count = 1", many.format(2), "max_error_count"),
                ("max_error_count = 3", many.format("'x'"), "Incorrect integer"),
                ("check_constraint_checks = 0", "INSERT INTO outbox_event (type) VALUES ('a')", "check_constraint_checks")):
            db.cursor().execute(f"SET SESSION {setting}")
            self.refused(db, why, statement)
        db.cursor().execute("SET SESSION max_error_count = 2, check_constraint_checks = 1")
        db.cursor().execute(many.format(2))
        self.assertEqual(self.sql("SELECT version FROM outbox_event ORDER BY nr"), [(1,), (2,)])

    def test_emit_stores_every_character_in_any_character_set(self):
        self.assertEqual(self.sql("SELECT @@character_set_database"), [("latin1",)])
        for mode in ("''", "'STRICT_TRANS_TABLES'"):
            cursor = self.connect().cursor()
            cursor.execute(f"SET SESSION sql_mode = {mode}")
            cursor.execute("CALL outbox_emit('t.\u2603', '\U0001F600', '\u2603', '\"\u2603\"')")
            cursor.execute(f"CALL outbox_emit_once('t.\u2603', '\U0001F600', '\u2603', '\"\u2603\"', CONCAT('\u2603', {mode}), @a, @b)")
        self.assertEqual(set(self.sql("SELECT type, aggregate_type, aggregate_id, payload FROM outbox_event")),
                         {("t.\u2603", "\U0001F600", "\u2603", '"\u2603"')})

    def test_text_from_a_latin1_producer_is_converted(self):
        user, name, path = mariadb_server.ADDRESS.match(self.store).groups()
        db = pymysql.connect(unix_socket=path, user=user, database=name, charset="latin1", autocommit=True)
        with contextlib.closing(db), db.cursor() as cursor:
            cursor.execute("INSERT INTO outbox_event (type, payload) VALUES ('gr\u00fc\u00dfe', '\"\u00e4\"')")
        self.drain(*self.consumer)
        self.assertEqual([(e["type"], e["payload"]) for e in self.ndjson(self.out)], [("gr\u00fc\u00dfe", "\u00e4")])

    def test_event_larger_than_a_packet_is_refused_with_advice(self):
        with mariadb_server.MariaDB({"max-allowed-packet": "1M"}) as server:
            self.store = server.create_database("small")
            self.init()
            big = self.path("big")
            big.write_text('"' + "x" * 3000000 + '"')
            said = self.outbox("emit", "a", "--payload", f"@{big}", "--max-payload", "8MiB", status=None)
            self.assertNotEqual(said.returncode, 0)
            self.assertIn("max_allowed_packet", said.stderr)
            self.emit("b")
            self.drain(*self.consumer)
            self.assertEqual(len(self.ids()), 1)
            mariadb_server.forget_connections()
        self.store = None

    # ---- transactions ----

    def test_without_autocommit_event_and_data_commit_together(self):
        self.sql("CREATE TABLE account (id INT PRIMARY KEY) ENGINE = InnoDB")
        db = self.connect()
        db.autocommit(False)
        with db.cursor() as cursor:
            cursor.execute("INSERT INTO account VALUES (1)")
            cursor.execute("INSERT INTO outbox_event (type) VALUES ('one')")
        db.rollback()
        with db.cursor() as cursor:
            cursor.execute("INSERT INTO account VALUES (2)")
            cursor.execute("CALL outbox_emit('two', NULL, NULL, NULL)")
        self.drain(*self.consumer)
        self.assertEqual(self.ids(), [])
        db.commit()
        self.drain(*self.consumer)
        self.assertEqual([line["type"] for line in self.ndjson(self.out)], ["two"])
        self.assertEqual(self.sql("SELECT id FROM account"), [(2,)])

    def test_key_committed_after_the_snapshot_is_found(self):
        db = self.connect()
        with db.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            first = self.json("emit", "a", "--idempotency-key", "k")["id"]
            cursor.execute("SELECT count(*) FROM outbox_event")
            self.assertEqual(cursor.fetchone(), (0,))
            cursor.execute("CALL outbox_emit_once('a', NULL, NULL, NULL, 'k', @id, @again)")
            cursor.execute("SELECT @id, @again")
            self.assertEqual(cursor.fetchone(), (first, 1))
            cursor.execute("COMMIT")
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_event"), [(1,)])

    def test_relay_waits_for_a_locked_consumer_row_and_recovers(self):
        # 1205 undoes only the statement: earlier changes of the turn have to be rolled back explicitly.
        self.emit("a")
        holder = self.connect()
        with self.relay(*self.consumer, "--busy-timeout", "1s") as relay:
            wait_until(lambda: self.ids() and self.sql("SELECT count(*) FROM outbox_claim") == [(0,)], what=relay.output)
            holder.begin()
            with holder.cursor() as cursor: cursor.execute("SELECT * FROM outbox_consumer FOR UPDATE")
            self.emit("b")
            wait_until(lambda: "Lock wait timeout" in relay.output(), what=relay.output)
            self.assertEqual(self.sql("SELECT count(*) FROM outbox_claim"), [(0,)])
            holder.rollback()
            wait_until(lambda: len(self.ids()) == 2, what=relay.output)

    def test_deadlocks_are_retried_and_lose_nothing(self):
        """Another session takes the locks of a turn in another order."""
        stop = threading.Event()

        def get_in_the_way():
            db = mariadb_server.connect(self.store)
            with contextlib.closing(db), db.cursor() as cursor:
                while not stop.is_set():
                    with contextlib.suppress(pymysql.err.OperationalError):
                        cursor.execute("BEGIN")
                        cursor.execute("SELECT * FROM outbox_claim FOR UPDATE")
                        cursor.execute("SELECT * FROM outbox_lane FOR UPDATE")
                        time.sleep(0.002)
                        cursor.execute("SELECT * FROM outbox_consumer FOR UPDATE")
                    cursor.execute("ROLLBACK")
                    time.sleep(0.01)

        thread = threading.Thread(target=get_in_the_way)
        with self.relay(*self.consumer):
            thread.start()
            for i in range(30): self.emit("a", f"k/{i % 3}", i)
            stop.set()
            thread.join()
            wait_until(lambda: len(self.ids()) >= 30)
        self.assertEqual(sorted(set(line["payload"] for line in self.ndjson(self.out))), list(range(30)))

    # ---- servers that are not as they should be ----

    def test_non_transactional_engine_is_never_used(self):
        with mariadb_server.MariaDB({"default-storage-engine": "MyISAM", "sql-mode": "", "init-connect": "SET autocommit = 0"}) as server:
            self.store = server.create_database("old")
            self.init()
            engines = mariadb_server.execute(self.store, "SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = 'old' AND "
                                                         "table_type = 'BASE TABLE'")
            self.assertEqual(engines, [("InnoDB",)])
            self.emit("a")
            self.drain(*self.consumer)
            self.assertEqual(len(self.ids()), 1)
            self.alter_events("DELETE FROM outbox_event", "DROP TABLE outbox_guard")
            mariadb_server.execute(self.store, "ALTER TABLE outbox_event DROP KEY idempotency_key, ENGINE = MyISAM")
            said = self.outbox("doctor", status=None).stdout
            self.assertRegex(said, "outbox_event.*MyISAM")
            mariadb_server.forget_connections()
        self.store = None

    def test_statement_based_binlog_is_refused_with_advice(self):
        with mariadb_server.MariaDB({"log-bin": "b", "server-id": 1, "binlog-format": "STATEMENT"}) as server:
            self.store = server.create_database("logged")
            said = self.outbox("init", status=None)
            self.assertNotEqual(said.returncode, 0)
            self.assertRegex(said.stderr, "binlog_format.*ROW or MIXED")
            mariadb_server.execute(server.url(""), "SET GLOBAL binlog_format = 'MIXED'")
            self.init()
            self.emit("a")
            self.drain(*self.consumer)
            self.assertEqual(len(self.ids()), 1)
            mariadb_server.forget_connections()
        self.store = None

    def test_auto_increment_step_changes_nothing(self):
        db = self.connect()
        with db.cursor() as cursor:
            cursor.execute("SET SESSION auto_increment_increment = 7, auto_increment_offset = 3")
            for i in range(5): cursor.execute("INSERT INTO outbox_event (type, aggregate_type, aggregate_id) VALUES (%s, 'k', '1')", (f"t{i}",))
        self.emit("last", "k/1")
        self.drain(*self.consumer)
        self.assertEqual([line["type"] for line in self.ndjson(self.out)], ["t0", "t1", "t2", "t3", "t4", "last"])
        self.assertEqual([line["seq"] for line in self.ndjson(self.out)], [1, 2, 3, 4, 5, 6])

    def test_relay_waits_while_a_read_only_server_stays_readable(self):
        with mariadb_server.MariaDB() as server:
            self.store = server.create_database("replica")
            mariadb_server.execute(server.url(""), "CREATE USER worker@localhost")
            mariadb_server.execute(server.url(""), "GRANT ALL ON replica.* TO worker@localhost")
            self.init()
            owner, self.store = self.store, self.store.replace("root@", "worker@")
            with self.relay(*self.consumer) as relay:
                mariadb_server.execute(server.url(""), "SET GLOBAL read_only = 1")
                self.assertRegex(self.outbox("doctor", status=None).stdout, "problem.*read-only")
                said = self.outbox("emit", "b", status=None)
                self.assertNotEqual(said.returncode, 0)
                self.assertRegex(said.stderr, "read-only.*replica")
                self.emit("a", None, None, "--store", owner)  # as replication does, on any server
                wait_until(lambda: "read-only" in relay.output(), what=relay.output)
                self.assertIn("0 events kept", self.outbox("status").stdout)  # it has no number yet and cannot get any
                early = self.relay("--consumer", "new", "--sink", f"file:{self.path('new')}", wait=False)
                wait_until(lambda: "waiting for the store" in early.output(), what=early.output)
                mariadb_server.execute(server.url(""), "SET GLOBAL read_only = 0")
                wait_until(lambda: len(self.ids()) == 1, what=relay.output)
                wait_until(lambda: len(self.ndjson(self.path("new"))) == 1, what=early.output)
                early.stop()
            mariadb_server.forget_connections()
        self.store = None

    # ---- connections ----

    def test_killed_connections_lose_and_reorder_nothing(self):
        with self.relay(*self.consumer) as relay:
            for i in range(60):
                self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(n % 3), "payload": i * 5 + n} for n in range(5)])
                victims = self.sql("SELECT id FROM information_schema.processlist WHERE db = %s AND id <> CONNECTION_ID()", self.dbname)
                for victim, in victims:
                    with contextlib.suppress(pymysql.err.MySQLError): self.sql(f"KILL {victim}")
            wait_until(lambda: {line["payload"] for line in self.ndjson(self.out)} >= set(range(300)), what=relay.output)
        last = {}
        seen = set()
        for line in self.ndjson(self.out):
            if line["payload"] in seen: continue
            seen.add(line["payload"])
            self.assertGreater(line["payload"], last.get(line["aggregate_id"], -1))
            last[line["aggregate_id"]] = line["payload"]

    def test_work_continues_once_a_killed_server_restarts(self):
        with mariadb_server.MariaDB({"innodb-flush-log-at-trx-commit": 1}) as server:
            self.store = server.create_database("shop")
            self.init()
            with self.relay(*self.consumer) as relay:
                for i in range(3):
                    for n in range(10): self.emit("a", "k/1", i * 10 + n)
                    server.restart()
                wait_until(lambda: {line["payload"] for line in self.ndjson(self.out)} == set(range(30)), what=relay.output)
            mariadb_server.forget_connections()
        self.store = None

    def test_changing_a_relays_clock_has_no_effect(self):
        """Leases and retries go by the server's clock: a relay whose own clock is a day ahead steals no claim."""
        self.emit("a", "k/1")
        slow = self.relay("--consumer", "c", "--sink", f"exec:sleep 3; cat >> {self.out}; echo >> {self.path('times')}", "--lease", "10s")
        wait_until(lambda: self.sql("SELECT count(*) FROM outbox_claim") == [(1,)], what=slow.output)
        done = subprocess.run(["faketime", "-f", "+1d", BIN, "relay", *self.consumer, "--drain"], env=self.env(), capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_parked"), [(0,)])
        slow.stop()
        self.assertEqual(len(self.ids()), 1)

    def test_passwords_are_read_safely_and_never_shown(self):
        self.sql("CREATE OR REPLACE USER keeper@localhost IDENTIFIED BY 'open sesame'")
        self.addCleanup(mariadb_server.execute, self.server_url, "DROP USER keeper@localhost")
        self.sql(f"GRANT ALL ON {self.dbname}.* TO keeper@localhost")
        secret = self.path("secret")
        secret.write_text("open sesame\n")
        os.chmod(secret, 0o600)
        store = self.store.replace("root@", "keeper@")
        said = self.outbox("status", "--store", store, status=None)
        self.assertIn("Access denied", said.stderr)
        self.outbox("status", "--store", f"{store}&password-file={secret}")
        for name in ("OUTBOX_MARIADB_PASSWORD", "MYSQL_PWD"):
            self.assertEqual(self.outbox("status", "--store", store, env={name: "open sesame"}).returncode, 0)
        self.path(".my.cnf").write_text("[client]\npassword = open sesame\n")
        self.outbox("status", "--store", store, env={"HOME": str(self.dir)})
        wrong = self.outbox("status", "--store", store.replace("keeper@", "keeper:open%20barley@"), status=None)
        self.assertNotIn("barley", wrong.stderr + wrong.stdout)

    def test_certificate_is_verified_unless_the_url_disables_it(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost", "-keyout", self.path("key.pem"), "-out", self.path("cert.pem")], check=True,
                       capture_output=True)
        os.chmod(self.dir, 0o755)
        os.chmod(self.path("key.pem"), 0o644)
        settings = {"ssl-cert": self.path("cert.pem"), "ssl-key": self.path("key.pem")}
        with mariadb_server.MariaDB(settings, port=True) as server:
            server.create_database("shop")
            mariadb_server.execute(server.url(""), "CREATE USER far@'127.0.0.1' IDENTIFIED BY 'p' REQUIRE SSL")
            mariadb_server.execute(server.url(""), "GRANT ALL ON shop.* TO far@'127.0.0.1'")
            env = {"OUTBOX_MARIADB_PASSWORD": "p"}
            self.store = f"mariadb://far@127.0.0.1:{server.port}/shop"
            self.assertIn("Access denied", self.outbox("init", status=None, env=env).stderr)  # loopback needs no TLS, and is refused
            self.outbox("init", "--store", self.store + "?tls=on", env=env)
            refused = self.outbox("status", "--store", self.store + "?tls=verify", status=None, env=env)
            self.assertNotEqual(refused.returncode, 0)
            self.assertRegex(refused.stderr, "(?i)certificate|ssl|tls")
            other = self.outbox("status", "--store", f"{self.store}?tls-ca={self.path('cert.pem')}", status=None, env=env)
            self.assertNotEqual(other.returncode, 0, "127.0.0.1 is not the name in the certificate")
            named = f"mariadb://far@localhost:{server.port}/shop?tls-ca={self.path('cert.pem')}"
            mariadb_server.execute(server.url(""), "CREATE USER far@localhost IDENTIFIED BY 'p' REQUIRE SSL")
            mariadb_server.execute(server.url(""), "GRANT ALL ON shop.* TO far@localhost")
            self.outbox("status", "--store", named, env=env)
            mariadb_server.forget_connections()
        self.store = None
