"""Rights on MariaDB: an account gets one or several parts of the outbox, and no others."""
# build: plain
import re
import uuid

import mariadb_server
import pymysql
from support import MariaCase, wait_until

DATA, UNAVAILABLE = 65, 69
REFUSED = {1044, 1142, 1143, 1227, 1370}  # by database, table, column, privilege and routine
PRODUCER, CONSUMER, OPERATOR = "producer", "consumer", "operator"

# Operations, and the roles allowed to run them.
RULES = [
    ("INSERT INTO outbox_event (type, payload) VALUES ('a', '1')", {PRODUCER}),
    ("INSERT INTO outbox_event (type, id) VALUES ('a', '01a1e144-ba7a-7541-824e-a17ad541ace3') RETURNING id", {PRODUCER}),
    ("INSERT INTO outbox_event (type, nr) VALUES ('a', 18446744073709551615)", set()),
    ("INSERT INTO outbox_event (type, nr) VALUES ('a', 1000)", set()),
    ("INSERT INTO outbox_event VALUES (1000, uuid(), 'a', NULL, NULL, NULL, '1', NULL, NULL, NULL, 0, NULL)", set()),
    ("INSERT INTO outbox_event (type, created_at) VALUES ('a', 253402300799999)", set()),
    ("INSERT INTO outbox_event (type, idempotency_key) VALUES ('a', 'known') ON DUPLICATE KEY UPDATE type = 'b'", set()),
    ("CALL outbox_emit('a', 'k', '1', '1')", {PRODUCER}),
    ("CALL outbox_emit_once('a', 'k', '1', '1', 'new', @id, @duplicate)", {PRODUCER}),
    ("UPDATE outbox_event SET payload = '2'", set()),
    ("DELETE FROM outbox_event WHERE nr = 0", {CONSUMER, OPERATOR}),  # a relay trims
    ("TRUNCATE outbox_event", set()),
    ("ALTER TABLE outbox_event AUTO_INCREMENT = 1000", set()),
    ("DROP TRIGGER outbox_event_inserted", set()),
    ("CREATE TRIGGER mine BEFORE INSERT ON outbox_event FOR EACH ROW SET NEW.type = 'b'", set()),
    ("CREATE TEMPORARY TABLE outbox_fresh (nr INT)", set()),
    ("LOCK TABLES outbox_event WRITE", set()),
    ("SELECT * FROM outbox_event", {PRODUCER, CONSUMER, OPERATOR}),
    ("SELECT * FROM outbox_fresh", {CONSUMER, OPERATOR}),
    ("INSERT INTO outbox_fresh (nr) VALUES (77)", {CONSUMER, OPERATOR}),
    ("UPDATE outbox_sequencer SET news = news + 1", {CONSUMER, OPERATOR}),
    ("UPDATE outbox_consumer SET paused = 1", {CONSUMER, OPERATOR}),
    ("DELETE FROM outbox_dead", {CONSUMER, OPERATOR}),
    ("SELECT * FROM outbox_delivery", {CONSUMER, OPERATOR}),
    ("SELECT * FROM outbox_find_published", {CONSUMER, OPERATOR}),
    ("SELECT * FROM outbox_listeners", {CONSUMER, OPERATOR}),
    ("SELECT * FROM outbox_idempotency", {CONSUMER, OPERATOR}),
    ("CALL outbox_handle_once('mail', 'key', @first)", {CONSUMER}),
    ("CALL outbox_wait(0, 0, 1, 0)", {CONSUMER}),
    ("SELECT value FROM outbox_meta", {PRODUCER, CONSUMER, OPERATOR}),
    ("UPDATE outbox_meta SET value = '0'", {OPERATOR}),
]


CHOSEN = 2**64 - 2  # the number of one event, after which none is left for others
TOO_HIGH = r"\(1264, 'outbox_event: not stored: insert_id is above 4611686018427387904"
NUMBERED = "INSERT INTO outbox_event (type, payload) "
# Ways to emit in a session that has set insert_id, or sets it on the way by pick(). @n: the number.
WAYS = {
    "a row": ("SET insert_id = @n", NUMBERED + "VALUES ('t', 1)"),
    "rows": ("SET insert_id = @n", NUMBERED + "VALUES ('t', 1), ('t', 2), ('t', 3)"),
    "SELECT": ("SET insert_id = @n", NUMBERED + "SELECT 't', 1 UNION ALL SELECT 't', 2"),
    "IGNORE": ("SET insert_id = @n", "INSERT IGNORE" + NUMBERED.removeprefix("INSERT") + "VALUES ('t', 1), ('t', 2)"),
    "not strict": ("SET sql_mode = '', insert_id = @n", NUMBERED + "VALUES ('t', 1)"),
    "RETURNING": ("SET insert_id = @n", NUMBERED + "VALUES ('t', 1) RETURNING id"),
    "CALL": ("SET insert_id = @n", "CALL outbox_emit('t', NULL, NULL, '1')"),
    "LOAD": ("SET insert_id = @n", "LOAD DATA LOCAL INFILE '{rows}' INTO TABLE outbox_event (payload) SET type = 't'"),
    "trigger": ("SET insert_id = @n", "INSERT INTO shop VALUES (1)"),
    "trigger of a table with numbers": ("SET insert_id = @n", "INSERT INTO numbered () VALUES ()"),
    "function in the first row": ("DO 0", NUMBERED + "VALUES ('t', pick(@n)), ('t', 2)"),
    "function in a later row": ("DO 0", NUMBERED + "VALUES ('t', 1), ('t', pick(@n)), ('t', 3)"),  # the marker would use it
    "wide steps": ("SET auto_increment_increment = 65535, auto_increment_offset = 65535, insert_id = @n", NUMBERED + "VALUES ('t', 1)"),
}


class Grants(MariaCase):
    def setUp(self):
        super().setUp()
        self.init()

    def account(self, *parts):
        """account creates an account with these parts, and returns its URL of the store."""
        name = f"r{uuid.uuid4().hex[:16]}"
        self.sql(f"CREATE USER {name}@localhost")
        self.addCleanup(mariadb_server.execute, self.server_url, f"DROP USER {name}@localhost")
        for part in parts: self.outbox("grant", part, f"{name}@localhost")
        return self.store.replace("root@", f"{name}@")

    def name(self, store):
        return re.match(r"mariadb://(\w+)@", store)[1] + "@localhost"

    def attempt(self, store, statement):
        """attempt returns whether an account may run the statement, and undoes the change."""
        try:
            db = mariadb_server.connect(store)
        except pymysql.Error as error:
            self.assertIn(error.args[0], REFUSED)
            return False
        try:
            with db.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute(statement)
                return True
        except pymysql.Error as error:
            self.assertIn(error.args[0], REFUSED, f"{statement}: {error}")
            return False
        finally:
            db.rollback()
            db.close()

    def test_each_grant_allows_exactly_its_operations(self):
        self.emit("a", "k/1", 1, "--idempotency-key", "known")
        self.outbox("status")  # assigns the event its seq: outbox_wait finds nothing new
        accounts = {part: self.account(part) for part in (PRODUCER, CONSUMER, OPERATOR)}
        for statement, allowed in RULES:
            for part, store in accounts.items():
                with self.subTest(part=part, statement=statement):
                    self.assertEqual(self.attempt(store, statement), part in allowed)

    def test_account_without_a_grant_may_do_nothing(self):
        stranger = self.account()
        for statement, _ in RULES:
            with self.subTest(statement=statement): self.assertFalse(self.attempt(stranger, statement))

    def test_cli_needs_only_the_grant(self):
        """From an emit to a delivery, a dead letter and its retry, each step with its own account."""
        producer, consumer, operator = (self.account(part) for part in (PRODUCER, CONSUMER, OPERATOR))
        out = self.path("out.ndjson")
        ok = self.emit("a", "k/1", 1, "--store", producer)
        self.emit("a", "k/2", 2, "--idempotency-key", "once", "--store", producer)
        self.emit("a", "k/2", 2, "--idempotency-key", "once", "--store", producer)
        self.outbox("relay", "--drain", "--consumer", "mail", "--sink", "exec:exit 65", "--receipts", "--store", consumer)
        self.assertEqual(len(self.json("dead", "list", "--store", consumer)), 2)
        self.outbox("consumers", "pause", "mail", "--store", operator)
        self.outbox("consumers", "resume", "mail", "--store", operator)
        self.assertEqual(self.json("dead", "retry", "--all", "--store", operator)["retried"], 2)
        self.outbox("relay", "--drain", "--consumer", "mail", "--sink", f"file:{out}", "--receipts", "--store", consumer)
        self.assertEqual([e["payload"] for e in self.ndjson(out)], [1, 2])
        self.assertEqual(self.ndjson(out)[0]["id"], ok)
        self.assertEqual(self.json("dead", "list", "--store", operator), [])
        for who in (consumer, operator): self.assertNotIn("problem ", self.outbox("doctor", "--store", who).stdout)
        self.assertEqual(self.json("trim", "--older-than", "0s", "--yes", "--store", operator)["events"], 2)
        self.outbox("emit", "a", "--store", operator, status=UNAVAILABLE)
        self.outbox("emit", "a", "--store", consumer, status=UNAVAILABLE)
        self.outbox("events", "list", "--store", producer, status=UNAVAILABLE)
        self.outbox("consumers", "remove", "mail", "--yes", "--store", consumer, status=UNAVAILABLE)
        self.outbox("consumers", "remove", "mail", "--yes", "--store", operator)

    def test_relay_wakes_and_trims_with_only_consumer_rights(self):
        producer, consumer = self.account(PRODUCER), self.account(CONSUMER)
        out = self.path("out.ndjson")
        with self.relay("--consumer", "mail", "--sink", f"file:{out}", "--store", consumer, "--retention", "1s") as relay:
            self.emit("a", None, 1, "--store", producer)
            wait_until(lambda: len(self.ndjson(out)) == 1, what=relay.output)
            wait_until(lambda: self.sql("SELECT count(*) FROM outbox_event") == [(0,)], what=relay.output)
        self.assertNotIn("denied", relay.output())

    def test_revoking_one_grant_keeps_the_others(self):
        store = self.account(PRODUCER, CONSUMER, OPERATOR)
        name = self.name(store)
        self.assertEqual(self.outbox("revoke", "--dry-run", "consumer", name).stdout,
                         f'role "{name}": would no longer have consumer rights\n')
        self.assertEqual(self.outbox("revoke", "--yes", "consumer", name).stdout, f'role "{name}": no longer has consumer rights\n')
        self.assertEqual(self.json("revoke", "--dry-run", "consumer", name)["changed"], False)
        self.assertEqual(self.outbox("revoke", "--yes", "consumer", name).stdout, f'role "{name}": had no consumer rights\n')
        for part in (OPERATOR, PRODUCER):
            for statement, allowed in RULES:
                with self.subTest(left=part, statement=statement):
                    held = {PRODUCER, OPERATOR} if part == OPERATOR else {PRODUCER}
                    self.assertEqual(self.attempt(store, statement), bool(held & allowed))
            self.outbox("revoke", "--yes", part, name)
        self.assertEqual(len(self.sql(f"SHOW GRANTS FOR {name}")), 1)  # to connect

    def test_roles_can_also_have_grants(self):
        role = f"o{uuid.uuid4().hex[:16]}"
        self.sql(f"CREATE ROLE {role}")
        self.addCleanup(mariadb_server.execute, self.server_url, f"DROP ROLE {role}")
        self.outbox("grant", PRODUCER, role)
        self.assertTrue(self.json("revoke", "--dry-run", PRODUCER, role)["changed"])
        self.outbox("revoke", "--yes", PRODUCER, role)
        self.assertFalse(self.json("revoke", "--dry-run", PRODUCER, role)["changed"])

    def test_role_without_read_rights_cannot_revoke_a_grant(self):
        name = self.name(self.account(PRODUCER))
        said = self.outbox("revoke", "--yes", PRODUCER, name, "--store", self.account(OPERATOR), status=UNAVAILABLE).stderr
        self.assertIn("mysql.procs_priv", said)

    def test_error_without_a_grant_suggests_outbox_grant(self):
        store = self.account()
        self.sql(f"GRANT INSERT ON outbox_event TO {self.name(store)}")
        self.assertIn("outbox grant", self.outbox("emit", "a", "--store", store, status=DATA).stderr)

    def test_non_strict_producer_learns_which_value_did_not_fit(self):
        with mariadb_server.connect(self.account(PRODUCER)).cursor() as cursor:
            cursor.execute("SET sql_mode = ''")
            with self.assertRaisesRegex(pymysql.Error, "not stored .*type"):
                cursor.execute("CALL outbox_emit(%s, NULL, NULL, '1')", "x" * 300)

    def test_events_numbered_beyond_the_signed_range_are_delivered(self):
        many = "INSERT INTO outbox_event (type, payload) SELECT 'a', seq FROM seq_1_to_300"
        self.sql(many)
        self.sql("INSERT INTO outbox_event (type, nr) VALUES ('b', 9223372036854775900)")
        self.sql(many)
        out = self.path("out.ndjson")
        self.outbox("relay", "--drain", "--consumer", "mail", "--sink", f"file:{out}", "--batch", "50")
        self.assertEqual([e["seq"] for e in self.ndjson(out)], list(range(1, 602)))
        self.assertEqual([e["payload"] for e in self.ndjson(out)], [*range(1, 301), None, *range(1, 301)])

    def session_of_a_producer(self):
        """session_of_a_producer returns one of an account that may also insert into two tables with triggers, and call pick()."""
        store = self.account(PRODUCER)
        for table in ("shop (n INT)", "numbered (n BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY)"):
            name = table.split()[0]
            self.sql(f"CREATE TABLE IF NOT EXISTS {table} ENGINE = InnoDB")
            self.sql(f"CREATE OR REPLACE TRIGGER {name}_tells AFTER INSERT ON {name} FOR EACH ROW {NUMBERED} VALUES ('t', 1)")
            self.sql(f"GRANT INSERT ON {name} TO {self.name(store)}")
        self.sql("CREATE OR REPLACE FUNCTION pick(n BIGINT UNSIGNED) RETURNS INT BEGIN SET insert_id = n; RETURN 7; END")
        self.sql(f"GRANT EXECUTE ON FUNCTION pick TO {self.name(store)}")
        db = mariadb_server.connect(store, local_infile=True)
        self.addCleanup(db.close)
        return db.cursor()

    def emit_with_number(self, way, number):
        rows = self.path("rows")
        rows.write_text("1\n2\n3\n")
        cursor = self.session_of_a_producer()
        cursor.execute("SET @n = %s", (number,))
        setting, emit = WAYS[way]
        cursor.execute(setting)
        cursor.execute(emit.format(rows=rows))
        return cursor

    def next_numbers(self):
        return [n for n, in self.sql("SELECT auto_increment FROM information_schema.tables WHERE table_schema = DATABASE() "
                                     "AND table_name IN ('outbox_event', 'outbox_fresh')")]

    def test_producer_cannot_take_others_numbers_by_insert_id(self):
        for way in WAYS:
            for number in (CHOSEN, 2**63, 2**62 + 1):
                with self.subTest(way, number=number):
                    with self.assertRaisesRegex(pymysql.Error, TOO_HIGH): self.emit_with_number(way, number)
                    self.assertLess(max(self.next_numbers()), 10**6)
                    self.emit("a")
        cursor = self.session_of_a_producer()
        cursor.execute("SET check_constraint_checks = 0, insert_id = %s", (CHOSEN,))
        with self.assertRaisesRegex(pymysql.Error, TOO_HIGH): cursor.execute(NUMBERED + "VALUES ('t', 1)")
        self.emit("a")

    def test_insert_id_from_a_statement_log_is_accepted(self):
        for n, way in enumerate(WAYS, 1):
            with self.subTest(way):
                before = self.sql("SELECT nr FROM outbox_event")
                self.emit_with_number(way, n * 1000000)
                new = sorted({nr for nr, in self.sql("SELECT nr FROM outbox_event")} - {nr for nr, in before})
                self.assertGreater(len(new), 0)
                if "later row" not in way and "with numbers" not in way: self.assertEqual(new[0], n * 1000000)
        with self.emit_with_number("rows", 2**62) as cursor:
            cursor.execute("SELECT LAST_INSERT_ID()")
            self.assertEqual(cursor.fetchone()[0], 2**62)
        self.emit("a")
        self.assertNotIn("numbers", self.outbox("doctor").stdout)

    def assert_numbers_run_out_and_advice_helps(self, table):
        self.outbox("emit", "c", status=70)
        self.outbox("relay", "--drain", "--consumer", "mail", "--sink", "file:/dev/null")
        found = [f for f in self.json("doctor", status=1)["findings"] if f["name"] == "numbers"]
        self.assertEqual(len(found), 1)
        self.assertRegex(found[0]["text"], f"{table} is 18446744073709551615")
        for statement in found[0]["advice"].partition(": ")[2].split("; "): self.sql(statement)
        self.emit("c")
        self.assertNotIn("numbers", self.outbox("doctor").stdout)
        out = self.path("out.ndjson")
        self.outbox("relay", "--drain", "--consumer", "mail", "--sink", f"file:{out}")
        self.assertEqual([e["type"] for e in self.ndjson(out)], ["c"])

    def test_number_that_exhausts_the_range_is_found_and_repaired(self):
        self.emit("a")
        self.sql("INSERT INTO outbox_event (type, nr) VALUES ('b', 18446744073709551615)")
        self.assert_numbers_run_out_and_advice_helps("outbox_event")

    def test_rolled_back_number_is_found_and_repaired_by_the_advice(self):
        self.emit("a")
        with mariadb_server.connect(self.store) as db, db.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO outbox_event (type, nr) VALUES ('b', 18446744073709551615)")
            cursor.execute("ROLLBACK")
        self.assert_numbers_run_out_and_advice_helps("outbox_event")

    def test_marker_that_exhausts_the_range_is_found_and_repaired(self):
        self.emit("a")
        self.sql("DROP TRIGGER outbox_event_inserted")
        nr = self.sql("INSERT INTO outbox_event (type) VALUES ('b') RETURNING nr")[0][0]
        self.sql("INSERT INTO outbox_fresh (marker, nr) VALUES (%s, %s)", CHOSEN, nr)
        self.init()
        self.assert_numbers_run_out_and_advice_helps("outbox_fresh")
