"""Adopting a table of a MariaDB database: MariaDB commits implicitly when a trigger is created, so only here can an adoption
stop half-way; and the conversion of its types."""
# build: plain
# quick: no
import contextlib
import json
import threading
import time
import uuid

import mariadb_server
import pymysql
from flag_table import MARIADB as FLAGGED, FlagTable
from proxy_mariadb import ANSWERED, STALLED, UNSENT, Proxy, socket_of
from support import BIN, MariaCase, wait_until

CONFIG, AGAIN = 78, 75
MOST = 40  # more than the statements of an adoption


class Adoption(FlagTable, MariaCase):
    def events(self, columns):
        return self.sql(f"SELECT {columns} FROM outbox_event ORDER BY nr")

    def test_old_producers_never_fail_and_need_no_new_rights(self):
        self.sql("CREATE TABLE old (id VARCHAR(50), event_type TEXT, payload LONGTEXT, processed_at DATE, short VARCHAR(3)) CHARACTER SET utf8mb4")
        self.outbox("adopt", "old")
        user = f"u{uuid.uuid4().hex[:12]}"
        self.sql(f"CREATE USER {user}@localhost")
        self.addCleanup(self.sql, f"DROP USER {user}@localhost")
        self.sql(f"GRANT INSERT ON {self.dbname}.old TO {user}@localhost")
        _, name, path = mariadb_server.ADDRESS.match(self.store).groups()
        db = pymysql.connect(unix_socket=path, user=user, database=name, charset="utf8mb4", autocommit=True)
        same = str(uuid.uuid4())
        rows = [(same.upper(), "a", '{"b":  1}'), ("7", "Order Paid", "no json"), (None, None, None), ("8", " ", "1"),
                ("9", "x" * 300, "1.5"), ("10", "deep", "[" * 100000), ("11", "\u00fc" * 200, '{"c":2}'), ("12", "a\x01b", 'qu"ote\n\x01\u2603'),
                (same, "again", "1")]
        with contextlib.closing(db), db.cursor() as cursor:
            for row in rows: cursor.execute("INSERT INTO old (id, event_type, payload) VALUES (%s, %s, %s)", row)
            cursor.execute("SET SESSION sql_mode = ''")
            cursor.execute("INSERT INTO old (id, event_type, payload, short) VALUES ('13', 'lax', '1', 'too long')")
        got = self.events("id, type, payload, json_value(headers, '$.source_id')")
        self.assertEqual(got[0], (same, "a", '{"b":  1}', same))
        self.assertEqual([row[1:] for row in got[1:]],
                         [("Order_Paid", '"no json"', "7"), ("unknown", "null", None), ("_", "1", "8"), ("x" * 255, "1.5", "9"),
                          ("deep", json.dumps("[" * 100000), "10"), ("\u00fc" * 63, '{"c":2}', "11"),
                          ("unknown", json.dumps('qu"ote\n\x01\u2603', ensure_ascii=False), "12"), ("lax", "1", "13")])
        self.assertEqual(len(self.drained()), 9)

    def test_values_of_every_type_are_converted(self):
        kinds = (("payload", "JSON", '{"b":  [1, 2]}', "payload", '{"b":  [1, 2]}'), ("payload", "VARCHAR(20)", "words", "payload", '"words"'),
                 ("payload", "BLOB", b'{"b":  1}', "payload", '{"b":  1}'), ("payload", "VARBINARY(9)", b"words", "payload", '"words"'),
                 ("payload", "BLOB", b"\xff\x00", "payload", '"/wA="'), ("payload", "LONGTEXT CHARACTER SET latin1", "\u00fc", "payload", '"\u00fc"'),
                 ("id", "BINARY(2)", b"\x01\x02", "json_value(headers, '$.source_id')", "0102"), ("id", "INT", 7, "json_value(headers, '$.source_id')", "7"),
                 ("created_at", "DATETIME", "2025-11-17 10:06:48", "created_at", 1763374008000),
                 ("created_at", "TIMESTAMP(3)", "2025-11-17 10:06:48.5", "created_at", 1763374008500),
                 ("created_at", "BIGINT", 1763374008, "created_at", 1763374008000), ("created_at", "BIGINT", 1763374008007, "created_at", 1763374008007),
                 ("created_at", "DOUBLE", 1763374008.5, "created_at", 1763374008500), ("created_at", "DECIMAL(20,3)", "1763374008.007", "created_at", 1763374008007),
                 ("created_at", "DATE", "2025-11-17", "created_at", 1763337600000), ("processed_at", "TINYINT", 0, "type", "a"),
                 ("processed_at", "DATETIME", None, "type", "a"), ("processed_at", "VARCHAR(9)", "", "type", "a"))
        for column, kind, given, shown, wanted in kinds:
            for when in ("before", "after"):
                with self.subTest(kind=kind, given=given, when=when):
                    types = {"id": "INT", "event_type": "VARCHAR(20)", "payload": "TEXT", "created_at": "BIGINT", "processed_at": "DATETIME", column: kind}
                    self.sql("DROP TABLE IF EXISTS old")
                    self.sql(f"CREATE TABLE old ({', '.join(f'{n} {t} NULL' for n, t in types.items())})")
                    if when == "after": self.outbox("adopt", "old", "--existing", "copy")
                    row = {"event_type": "a", "payload": "1", column: given}
                    self.sql(f"INSERT INTO old ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", *row.values())
                    if when == "before": self.outbox("adopt", "old", "--existing", "copy")
                    self.assertEqual(self.sql(f"SELECT {shown} FROM outbox_event ORDER BY nr DESC LIMIT 1"), [(wanted,)])
                    self.alter_events("DELETE FROM outbox_event")

    def test_errors_are_explained(self):
        self.sql("CREATE TABLE odd (id INT, kind TEXT, payload JSON, done TIMESTAMP NULL, said TEXT)")
        self.sql("CREATE TABLE loose (id INT, event_type TEXT, payload TEXT, processed_at DATE) ENGINE = MyISAM")
        columns = ["--column", "processed_at=done", "--column", "type=kind"]
        for args, status, says in (
                (["loose"], CONFIG, "loose is not a table that can be adopted: its engine is MyISAM"),
                (["odd", *columns, "--column", "created_at=said"], CONFIG, "neither a time nor a number"),
                (["odd", *columns, "--column", "payload=id"], CONFIG, "cannot be used as the payload"),
                (["odd", *columns, "--mark", "done", "--consumer", "x"], CONFIG, "does not identify them")):
            with self.subTest(args=args): self.assertIn(says, self.outbox("adopt", *args, status=status).stderr)
        self.assertEqual(self.triggers("odd"), 0)

    def test_names_of_any_length_with_any_characters_are_accepted(self):
        for name in ("x" * 64, "a'b\\c`d", "\u2603"):
            quoted = "`" + name.replace("`", "``") + "`"
            self.sql(f"CREATE TABLE {quoted} (`i'd` INT, `event``type` TEXT, payload TEXT, processed_at DATE)".replace("%", "%%"))
            self.outbox("adopt", quoted, "--column", "id=i'd", "--column", "type=event`type")
            self.sql(f"INSERT INTO {quoted} VALUES (1, 'a', '1', NULL)")
            self.assertIn("no longer adopted", self.outbox("adopt", quoted, "--undo", "--yes").stdout)
        self.assertEqual(self.events("type"), [("a",)] * 3)

    def test_init_completes_an_incomplete_outbox(self):
        self.old_rows(3)
        self.emit("before")
        self.sql("DROP TABLE outbox_adopted, outbox_adopted_row, outbox_marking")
        self.sql("DELETE FROM outbox_meta WHERE name = 'schema_version'")
        self.assertIn("outbox init", self.outbox("adopt", "outbox", status=None).stderr)
        self.outbox("init")
        self.outbox("adopt", "outbox")
        self.assertEqual([e["type"] for e in self.drained()], ["before"] + ["message:created"] * 2)

    def test_adoption_does_not_wait_long_for_a_table_lock(self):
        self.old_rows(3)
        db = self.connect()
        with db.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO outbox (event_type, payload) VALUES ('a', '{\"n\": 4}')")
            self.outbox("adopt", "outbox", "--dry-run")
            self.outbox("adopt", "outbox", status=AGAIN)
            cursor.execute("COMMIT")
        self.assertEqual(self.events("type"), [])
        self.outbox("adopt", "outbox")
        self.assertEqual(self.numbers(), [1, 2, 4])


class Beside(FlagTable, MariaCase):
    """Producers are at work while the table is adopted, and the adoption is cut off."""

    def setUp(self):
        super().setUp()
        self.sql(FLAGGED)
        self.proxy = Proxy(socket_of(self.store))
        self.proxy.__enter__()
        self.addCleanup(self.proxy.__exit__)
        self.far = f"mariadb://root@127.0.0.1:{self.proxy.port}/{self.dbname}"
        self.stop, self.wrote, self.failed, self.stopped_at = threading.Event(), [], [], []

    def write(self):
        """write inserts rows until it is stopped, two per transaction, and keeps each transaction open for a moment."""
        db = mariadb_server.connect(self.store)
        with contextlib.closing(db), db.cursor() as cursor:
            try:
                while not self.stop.is_set():
                    ids = []
                    cursor.execute("BEGIN")
                    for _ in range(2):
                        cursor.execute("INSERT INTO outbox (event_type, payload) VALUES ('t', '{}')")
                        ids.append(cursor.lastrowid)
                        time.sleep(0.002)
                    cursor.execute("COMMIT")
                    self.wrote += ids
            except pymysql.err.MySQLError as e:
                self.failed.append(e)

    @contextlib.contextmanager
    def writers(self, n):
        threads = [threading.Thread(target=self.write) for _ in range(n)]
        for thread in threads: thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads: thread.join()

    def more(self):
        """more waits until rows have been inserted."""
        before = len(self.wrote)
        wait_until(lambda: len(self.wrote) > before + 6 or self.failed)

    def check(self):
        """check compares events with rows: each has become one, and one only."""
        self.assertEqual(self.failed, [])
        got = [int(event["headers"]["source_id"]) for event in self.drained()]
        self.assertEqual(sorted(got), sorted(self.wrote))

    def test_concurrent_writes_neither_lose_nor_duplicate_rows(self):
        with self.writers(3):
            self.more()
            self.outbox("adopt", "outbox")
            self.more()
        self.check()

    def stall(self, words):
        """stall stops the process that adopts the table at the statement with these words; it returns the stop and the
        process."""
        stops = [self.proxy.at(n, STALLED) for n in range(1, MOST)]
        adopt = self.spawn(BIN, "adopt", "outbox", "--store", self.far)
        for stop in stops:
            wait_until(lambda: stop.done() or not adopt.running(), what=adopt.output)
            if words in stop.text: break
            stop.let_go()
        self.proxy.stops.clear()
        return stop, adopt

    def test_adoption_waits_for_an_earlier_uncommitted_row(self):
        """The trigger does not see the row yet, and the copy precedes its commit: the row would be lost, but the adoption waits
        for it."""
        for level in ("READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ"):
            with self.subTest(level):
                stop, adopt = self.stall("FOR UPDATE")
                cursor = self.connect().cursor()
                cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
                cursor.execute("BEGIN")
                cursor.execute("INSERT INTO outbox (event_type, payload) VALUES ('t', '{}')")
                self.wrote.append(cursor.lastrowid)
                stop.let_go()
                wait_until(lambda: self.sql("SELECT 1 FROM information_schema.processlist WHERE info LIKE %s AND id <> connection_id()",
                                            f"%{self.dbname}%.outbox_adopted%FOR UPDATE"), what=adopt.output, timeout=10)
                cursor.execute("COMMIT")
                adopt.wait()
                self.check()
                self.outbox("adopt", "outbox", "--undo", "--yes")
                self.sql("UPDATE outbox SET processed_at = now()")
                self.sql("DELETE FROM outbox_adopted")

    def adopt_cut(self, when, *more):
        """adopt_cut runs adopt with a cut at each statement in turn, until it succeeds."""
        self.stopped_at = []
        for n in range(1, MOST):
            self.more()
            stop = self.proxy.at(n, when)
            said = self.outbox("adopt", "outbox", *more, "--store", self.far, status=None)
            self.stopped_at.append(stop.text)
            if said.returncode == 0: break
        self.assertEqual(said.returncode, 0, said.stderr)
        self.proxy.stops.clear()

    def cut(self, when, *more):
        with self.writers(2):
            self.adopt_cut(when, *more)
            self.assertIn("COMMIT", self.stopped_at)
            self.more()
        self.check()

    def test_adoption_cut_off_before_any_statement_can_be_repeated(self):
        self.cut(UNSENT)

    def test_adoption_cut_off_after_any_statement_can_be_repeated(self):
        self.cut(ANSWERED)

    def test_mark_cut_off_anywhere_can_be_set_and_dropped_again(self):
        mark = ("--mark", "processed_at", "--consumer", "mail")
        self.cut(ANSWERED, *mark)
        unmarked = "SELECT count(*) FROM outbox WHERE processed_at IS NULL"
        noted = "SELECT count(*) FROM outbox_adopted_row"
        self.assertEqual((self.sql(unmarked), self.sql(noted)), ([(0,)], [(0,)]))
        self.stop.clear()
        with self.writers(2):
            self.adopt_cut(ANSWERED, "--drop-mark")
            self.more()
        self.check()
        self.assertEqual(self.sql(noted), [(0,)])
        self.stop.clear()
        with self.writers(2):
            self.adopt_cut(ANSWERED, *mark)
            self.outbox("adopt", "outbox", "--undo", "--yes")
        self.assertEqual(self.sql(noted), [(0,)])

    def test_relay_cut_off_anywhere_marks_only_deliveries(self):
        """After its last statement no cut is possible."""
        self.outbox("adopt", "outbox", "--mark", "processed_at", "--consumer", "mail")
        for when in (UNSENT, ANSWERED):
            for n in range(1, MOST):
                self.insert(n, n, n)
                stop = self.proxy.at(n, when)
                self.stopped_at.append(stop)
                self.drain("--consumer", "mail", "--sink", f"file:{self.path('mail.ndjson')}", "--lease", "300ms", "--store", self.far, status=None)
                had = {int(event["headers"]["source_id"]) for event in self.ndjson(self.path("mail.ndjson"))}
                marked = {id for id, in self.sql("SELECT id FROM outbox WHERE processed_at IS NOT NULL")}
                self.assertEqual(marked - had, set())
                if not stop.done(): break
            self.proxy.stops.clear()
            self.numbers()
            self.assertEqual(self.sql("SELECT count(*) FROM outbox WHERE processed_at IS NULL"), [(0,)])
        said = " ".join(stop.text for stop in self.stopped_at)
        for words in ("SKIP LOCKED", "FOR UPDATE `outbox`", "DELETE r FROM JSON_TABLE"): self.assertIn(words, said)

    def test_readopting_under_writes_creates_one_event_per_row(self):
        with self.writers(2):
            for _ in range(3):
                self.outbox("adopt", "outbox", "--existing", "skip")
                self.more()
                self.outbox("adopt", "outbox", "--undo", "--yes")
                self.more()
        self.assertEqual(self.failed, [])
        got = [int(event["headers"]["source_id"]) for event in self.drained()]
        self.assertEqual(len(got), len(set(got)))
        self.assertLess(set(got), set(self.wrote))
