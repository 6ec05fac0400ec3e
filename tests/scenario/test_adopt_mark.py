"""Rows of an adopted table are marked once a consumer has received them, so that the old poller can run beside it and then be
retired."""
# quick: no
import unittest
import uuid

import psycopg2
from flag_table import FlagTable
from support import Case, MariaCase, PgCase, on_each_store, wait_until

DATA, CONFIG = 65, 78


class Marking(FlagTable):
    def adopt(self, *more):
        return self.outbox("adopt", "outbox", "--mark", "processed_at", "--consumer", "mail", *more).stdout

    def poll(self):
        """poll is the old poller: it sends unprocessed rows and marks them."""
        found = [n for n, in self.sql(f"SELECT {self.n} FROM outbox WHERE processed_at IS NULL ORDER BY id")]
        self.sql("UPDATE outbox SET processed_at = CURRENT_TIMESTAMP WHERE processed_at IS NULL")
        return found

    def waiting(self):
        return self.ask("SELECT count(*) FROM @adopted_row")[0][0]


@on_each_store
class Marked(Marking):
    """Both systems run: rows delivered by the outbox are marked, so that the old poller does not send them."""

    def test_only_rows_delivered_to_the_named_consumer_are_marked(self):
        self.old_rows(6)
        self.assertIn('are marked in processed_at once consumer "mail" has received them', self.adopt())
        self.insert(7, 8)
        self.drained("search")
        self.assertEqual(self.processed(), [3, 6], "another consumer's deliveries do not count")
        before = self.sql("SELECT processed_at FROM outbox WHERE id = 3")
        self.assertEqual(self.numbers(), [1, 2, 4, 5, 7, 8])
        self.assertEqual(self.processed(), list(range(1, 9)))
        self.assertEqual(self.sql("SELECT processed_at FROM outbox WHERE id = 3"), before, "processed rows keep their time")
        self.assertEqual(self.waiting(), 0)
        self.assertEqual(self.poll(), [])
        self.insert(9)
        self.assertEqual(self.poll(), [9], "the old poller is first here; the outbox delivers the row, too")
        self.assertEqual(self.numbers()[-1], 9)

    def test_failed_rows_are_marked_only_after_a_retry(self):
        self.old_rows(2)
        self.adopt()
        self.drain("--consumer", "mail", "--sink", "exec:case $OUTBOX_SEQ in 1) exit 65;; esac")
        self.assertEqual(self.processed(), [2])
        self.assertEqual(self.waiting(), 1)
        self.outbox("dead", "retry", "--all", "--consumer", "mail")
        self.assertEqual(self.processed(), [2], "an event awaiting a retry is not delivered yet")
        self.drain("--consumer", "mail", "--sink", "exec:true")
        self.assertEqual(self.processed(), [1, 2])

    def test_rows_in_flight_or_awaiting_retry_are_not_marked(self):
        self.old_rows(3)
        self.insert(4)
        self.adopt()
        sink = "exec:case $OUTBOX_SEQ in 1) exit 75;; 2) touch begun; while ! test -e go; do sleep 0.01; done;; esac"
        with self.relay("--consumer", "mail", "--sink", sink, "--batch", "1", "--retry", "base=1h,cap=1h,attempts=3,jitter=none"):
            wait_until(self.path("begun").exists)
            self.assertEqual(self.processed(), [3])
            self.path("go").touch()
            wait_until(lambda: self.processed() == [2, 3, 4], what=lambda: str(self.processed()))

    def test_killed_relay_leaves_the_mark_to_the_next_relay(self):
        self.old_rows(1)
        self.adopt()
        killed = self.relay("--consumer", "mail", "--lease", "1s", "--sink", "exec:echo $OUTBOX_SEQ >>had; kill -9 $PPID", wait=False)
        killed.wait(expect=-9)
        self.assertEqual(self.path("had").read_text(), "1\n")
        self.assertEqual(self.processed(), [], "the event was delivered, but its delivery was not recorded")
        self.insert(2)
        with self.relay("--consumer", "mail", "--lease", "1s", "--sink", "exec:echo $OUTBOX_SEQ >>had"):
            wait_until(lambda: self.processed() == [1, 2], what=lambda: str(self.processed()))
        self.assertEqual(sorted(self.path("had").read_text().split()), ["1", "1", "2"])

    def test_two_relays_mark_each_delivered_row_once(self):
        self.sql(self.flagged)
        self.adopt()
        args = ("--consumer", "mail", "--sink", f"file:{self.path('mail.ndjson')}", "--batch", "3", "--order", "none")
        with self.relay(*args), self.relay(*args):
            self.insert(*range(1, 31))
            wait_until(lambda: self.processed() == list(range(1, 31)), what=lambda: str(self.processed()))
        self.assertEqual(sorted(e["payload"]["n"] for e in self.ndjson(self.path("mail.ndjson"))), list(range(1, 31)))
        self.assertEqual(self.waiting(), 0)

    def test_marking_changes_only_with_the_consumer_or_column(self):
        self.old_rows(1)
        self.sql("ALTER TABLE outbox ADD COLUMN done boolean")
        self.adopt()
        self.assertIn("already adopted; nothing to do", self.adopt())
        self.assertEqual(self.waiting(), 1)
        again = self.json("adopt", "outbox", "--mark", "done", "--consumer", "search", "--dry-run")
        self.assertEqual((again["changed"], again["copied"]), (True, 0))
        self.assertFalse(self.json("adopt", "outbox", "--mark", "processed_at", "--consumer", "mail", "--dry-run")["changed"])
        self.assertTrue(self.json("adopt", "outbox", "--mark", "done", "--consumer", "search")["changed"])
        self.assertIn("nothing to do", self.outbox("adopt", "outbox").stdout, "options not given keep their values")
        self.drained("mail")
        self.assertEqual(self.sql("SELECT count(*) FROM outbox WHERE done"), [(0,)])
        self.drained("search")
        self.assertEqual(self.sql("SELECT count(*) FROM outbox WHERE done"), [(1,)])
        self.assertEqual(self.processed(), [])

    def test_dropped_mark_no_longer_needs_its_column(self):
        self.old_rows(1)
        self.adopt()
        self.assertIn("would no longer be marked", self.outbox("adopt", "outbox", "--drop-mark", "--dry-run").stdout)
        self.assertIn("are no longer marked", self.outbox("adopt", "outbox", "--drop-mark").stdout)
        self.assertIn("were not marked", self.outbox("adopt", "outbox", "--drop-mark").stdout)
        self.insert(2)
        self.assertEqual(self.numbers(), [1, 2])
        self.assertEqual((self.processed(), self.waiting()), ([], 0))
        self.adopt()
        self.insert(3)
        self.drained()
        self.assertEqual(self.processed(), [3])
        self.outbox("adopt", "outbox", "--drop-mark")
        self.outbox("adopt", "outbox", "--column", "processed_at=")
        self.sql("ALTER TABLE outbox DROP COLUMN processed_at")
        self.put(4)
        self.assertEqual(self.numbers(), [1, 2, 3, 4], "the table is still adopted")

    def test_undo_removes_the_mark(self):
        self.old_rows(2)
        self.adopt()
        self.outbox("adopt", "outbox", "--undo", "--yes")
        self.assertEqual(self.waiting(), 0)
        self.assertEqual(self.numbers(), [1, 2])
        self.assertEqual(self.processed(), [])
        self.sql("ALTER TABLE outbox DROP COLUMN processed_at")

    def test_dropped_table_does_not_block_events(self):
        self.old_rows(2)
        self.adopt()
        self.sql("DROP TABLE outbox")
        self.assertEqual(self.numbers(), [1, 2])

    def test_row_link_is_deleted_with_its_event(self):
        self.old_rows(2)
        self.adopt()
        self.drained("search")
        self.outbox("adopt", "outbox", "--mark", "processed_at", "--consumer", "nobody")
        self.assertEqual(self.waiting(), 2)
        self.outbox("trim", "--older-than", "0s", "--yes")
        self.assertEqual(self.waiting(), 0)

    def test_rows_excluded_by_the_filter_are_not_marked(self):
        self.old_rows(2)
        self.adopt()
        self.drained("mail", "--events", "order.*")
        self.assertEqual(self.processed(), [])

    def test_row_without_a_unique_key_is_never_marked_wrongly(self):
        self.sql("CREATE TABLE twins (shop int NOT NULL, id int NOT NULL, event_type text, payload text, processed_at date, "
                 "PRIMARY KEY (shop, id))")
        for shop in (1, 2): self.ask("INSERT INTO twins VALUES (?, 7, 'a', ?, NULL)", shop, '{"n": %d}' % shop)
        adopt = ("adopt", "twins", "--mark", "processed_at", "--consumer", "mail")
        if not self.postgres:
            self.assertIn("does not identify them", self.outbox(*adopt, status=CONFIG).stderr)
            return
        self.outbox(*adopt)
        self.sql("INSERT INTO twins VALUES (3, 7, 'a', '{\"n\": 3}'), (4, 7, 'a', '{\"n\": 4}')")
        self.drain("--consumer", "mail", "--sink", "exec:case $OUTBOX_SEQ in 1|4) exit 65;; esac")
        self.assertEqual(self.sql("SELECT shop FROM twins WHERE processed_at IS NOT NULL ORDER BY shop"), [(2,), (3,)])

    def test_errors_are_explained(self):
        self.sql("CREATE TABLE odd (id int, event_type text, payload text, processed_at date, gone text)")
        adopt = lambda column, status: self.outbox("adopt", "odd", "--mark", column, "--consumer", "x", status=status).stderr
        self.assertIn("no column nope to mark", adopt("nope", DATA))
        self.assertIn("identif", adopt("processed_at", CONFIG))
        if self.postgres: self.assertIn("column gone of table public.odd is text, which cannot be marked", adopt("gone", CONFIG))
        self.assertIn("consumer", self.outbox("adopt", "odd", "--mark", "processed_at", "--consumer", "a b", status=None).stderr)
        self.sql("INSERT INTO odd VALUES (1, 'a', '1', NULL, NULL)")
        self.assertEqual(self.ask("SELECT count(*) FROM @event"), [(0,)])

    def test_consumer_starts_at_the_position_of_the_old_listener(self):
        """A consumer that begins where the old one is: the old one's deliveries are not repeated."""
        self.old_rows(6)
        self.adopt("--existing", "skip")
        self.sql("UPDATE outbox SET processed_at = CURRENT_TIMESTAMP")
        self.insert(7)
        highest = self.ask("SELECT max(seq) FROM @event")[0][0]
        self.assertEqual(self.numbers("broadcast", "--from", "end"), [])
        self.assertEqual(self.numbers("companion", "--from", str(highest)), [7])
        self.insert(8, 9)
        self.assertEqual(self.numbers("broadcast"), [8, 9])
        self.assertEqual(self.numbers("companion"), [7, 8, 9])


class OnSqlite(Marking, Case):
    def test_delivery_is_settled_and_marked_in_one_transaction(self):
        self.old_rows(2)
        self.adopt()
        self.sql("CREATE TRIGGER fails BEFORE UPDATE ON outbox WHEN OLD.id = 2 BEGIN SELECT RAISE(ABORT, 'not now'); END")
        with self.relay("--consumer", "mail", "--sink", "exec:true", "--receipts") as relay:
            wait_until(lambda: "could not mark rows of outbox" in relay.output(), what=relay.output)
            self.assertEqual((self.processed(), self.sql("SELECT count(*) FROM outbox_receipt")), ([], [(0,)]))
            self.sql("DROP TRIGGER fails")
            wait_until(lambda: self.processed() == [1, 2], what=relay.output)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_receipt"), [(2,)])
        self.assertRegex(self.sql("SELECT processed_at FROM outbox WHERE id = 1")[0][0], r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")

    def test_flag_keeps_its_existing_form(self):
        for kind, old, wanted in (("BOOLEAN", None, 1), ("INTEGER", None, r"\d{10}"), ("INTEGER", 1714521600000, r"\d{13}"),
                                  ("TEXT", "2024-05-01T00:00:00Z", r"\d{4}-\d\d-\d\dT.*Z"), ("INTEGER", 1, 1)):
            with self.subTest(kind=kind, old=old):
                self.sql("DROP TABLE IF EXISTS old")
                self.sql(f"CREATE TABLE old (id INTEGER PRIMARY KEY, event_type, payload, processed_at {kind})")
                if old: self.sql("INSERT INTO old VALUES (1, 'a', '1', ?)", old)
                self.outbox("adopt", "old", "--existing", "copy", "--mark", "processed_at", "--consumer", "mail")
                self.sql("INSERT INTO old (id, event_type, payload) VALUES (2, 'a', '1')")
                self.drained()
                self.assertRegex(str(self.sql("SELECT processed_at FROM old WHERE id = 2")[0][0]), f"^{wanted}$")


class OnPostgres(Marking, PgCase):
    def session(self, store=None):
        db = psycopg2.connect(store or self.store)
        self.addCleanup(db.close)
        return db, db.cursor()

    def troubles(self):
        return [f["text"] for f in self.json("doctor", status=None)["findings"] if f["name"] == "marked"]

    def test_delivery_is_settled_and_marked_in_one_transaction(self):
        self.old_rows(2)
        self.adopt()
        self.sql("CREATE TABLE saw (id bigint, xid xid8 DEFAULT pg_current_xact_id())")
        self.sql("CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO saw VALUES (NEW.id); RETURN NULL; END'")
        self.sql("ALTER FUNCTION see() SET search_path = public")
        self.sql("CREATE TRIGGER see AFTER UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION see()")
        self.drained("mail", "--receipts")
        self.assertEqual(self.sql("SELECT count(*) FROM saw JOIN outbox.receipt r ON r.seq = saw.id AND r.xmin = saw.xid::xid"), [(2,)])

    def test_locked_row_is_marked_later_without_waiting(self):
        self.old_rows(2)
        self.adopt()
        db, poller = self.session()
        poller.execute("SELECT id FROM outbox WHERE id = 1 FOR UPDATE SKIP LOCKED")
        self.assertEqual(self.numbers(), [1, 2])
        self.assertEqual((self.processed(), self.waiting()), ([2], 1))
        db.rollback()
        self.numbers()
        self.assertEqual((self.processed(), self.waiting()), ([1, 2], 0))
        poller.execute("LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE")
        self.outbox("emit", "other")
        self.drained()
        db.rollback()
        self.assertEqual(self.troubles(), [])

    def test_broken_table_is_reported_and_does_not_block_events(self):
        self.old_rows(2)
        self.adopt()
        self.sql("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not in this house'; END$$")
        self.sql("CREATE TRIGGER no BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION no()")
        self.assertEqual(self.numbers(), [1, 2])
        self.assertIn("not in this house", self.troubles()[0])
        self.sql("DROP TRIGGER no ON outbox")
        self.numbers()
        self.assertEqual((self.processed(), self.troubles()), ([1, 2], []))

    def test_relay_with_rights_to_one_consumer_also_marks_rows(self):
        self.old_rows(2)
        self.adopt()
        store = self.role("consumer")
        self.drain("--consumer", "mail", "--sink", "exec:true", "--retention", "0s", "--store", store)
        self.assertEqual(self.processed(), [1, 2])
        with self.assertRaises(psycopg2.errors.InsufficientPrivilege): self.session(store)[1].execute("UPDATE outbox SET processed_at = NULL")

    def test_rows_in_partitions_or_with_composite_keys_are_marked(self):
        self.sql("""CREATE TABLE parts (id uuid DEFAULT gen_random_uuid(), at timestamptz DEFAULT clock_timestamp(), code char(3) DEFAULT 'x',
                    event_type text, payload json, done boolean, PRIMARY KEY (id, code, at)) PARTITION BY RANGE (at)""")
        self.sql("CREATE TABLE parts_1 PARTITION OF parts DEFAULT")
        add = "INSERT INTO parts (event_type, payload) SELECT 'a', to_json(i) FROM generate_series(%s, %s) i"
        self.sql(add, 1, 3)
        self.outbox("adopt", "parts", "--column", "processed_at=done", "--mark", "done", "--consumer", "mail")
        self.sql(add, 4, 6)
        self.drain("--consumer", "mail", "--sink", "exec:case $OUTBOX_SEQ in 2|5) exit 65;; esac")
        self.assertEqual(self.sql("SELECT array_agg(payload::text ORDER BY payload::text) FROM parts WHERE done"), [(["1", "3", "4", "6"],)])
        self.assertEqual(self.troubles(), [])

    def test_with_a_predicate_receipts_identify_deliveries(self):
        self.old_rows(2)
        self.adopt()
        self.drained("mail", "--where", "n = 2", "--receipts")
        self.assertEqual((self.processed(), self.waiting()), ([2], 0))

    def test_mark_survives_a_rename_and_an_upgrade(self):
        self.sql("CREATE SCHEMA shop")
        self.old_rows(1)
        self.adopt()
        self.sql("ALTER TABLE outbox SET SCHEMA shop")
        self.sql("ALTER TABLE shop.outbox RENAME TO was")
        self.sql("DELETE FROM outbox.meta WHERE name = 'functions'")
        self.init()
        self.sql("INSERT INTO shop.was (event_type, payload) VALUES ('a', '{\"n\": 2}')")
        self.assertEqual(self.numbers(), [1, 2])
        self.assertEqual(self.sql("SELECT count(*) FROM shop.was WHERE processed_at IS NULL"), [(0,)])


class OnMariadb(Marking, MariaCase):
    def troubles(self):
        return [f["text"] for f in self.json("doctor", status=None)["findings"] if f["name"] == "marked"]

    def test_locked_row_is_marked_later_without_waiting(self):
        """Locked by its row, by an index on the flag, or by the whole table."""
        self.old_rows(2)
        self.sql("ALTER TABLE outbox ADD INDEX (processed_at)")
        self.adopt()
        poller = self.connect().cursor()
        poller.execute("BEGIN")
        poller.execute("SELECT id FROM outbox WHERE id = 1 FOR UPDATE SKIP LOCKED")
        self.assertEqual(self.numbers(), [1, 2])
        self.assertEqual((self.processed(), self.waiting()), ([2], 1))
        poller.execute("ROLLBACK")
        self.numbers()
        self.assertEqual((self.processed(), self.waiting()), ([1, 2], 0))
        self.insert(3)
        for begin, lock, end in (("BEGIN", "SELECT id FROM outbox WHERE processed_at IS NOT NULL FOR UPDATE", "ROLLBACK"),
                                 ("SELECT 1", "LOCK TABLES outbox WRITE", "UNLOCK TABLES")):
            with self.subTest(lock):
                poller.execute(begin)
                poller.execute(lock)
                self.assertEqual(self.numbers(), [1, 2, 3])
                poller.execute(end)
                self.assertEqual((self.processed(), self.waiting()), ([1, 2], 1))
        self.numbers()
        self.assertEqual((self.processed(), self.waiting(), self.troubles()), ([1, 2, 3], 0, []))

    def test_broken_table_is_reported_and_does_not_block_events(self):
        self.old_rows(2)
        self.adopt()
        self.sql("CREATE TRIGGER no BEFORE UPDATE ON outbox FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not in this house'")
        self.assertEqual(self.numbers(), [1, 2])
        self.assertIn("not in this house", self.troubles()[0])
        self.sql("CREATE OR REPLACE TRIGGER no BEFORE UPDATE ON outbox FOR EACH ROW DELETE FROM nowhere")
        self.numbers()
        self.assertIn("nowhere", self.troubles()[0])
        self.assertEqual(self.waiting(), 2)
        self.sql("DROP TRIGGER no")
        self.numbers()
        self.assertEqual((self.processed(), self.troubles()), ([1, 2], []))

    def test_relay_without_update_rights_still_delivers(self):
        self.old_rows(2)
        self.adopt()
        user = f"u{uuid.uuid4().hex[:12]}"
        self.sql(f"CREATE USER {user}@localhost")
        self.addCleanup(self.sql, f"DROP USER {user}@localhost")
        self.outbox("grant", "consumer", f"{user}@localhost")
        drain = lambda: self.drain("--consumer", "mail", "--sink", f"file:{self.path('mail')}", "--retention", "0s", "--store", self.store.replace("root@", f"{user}@"))
        drain()
        self.assertEqual(len(self.ndjson(self.path("mail"))), 2)
        self.assertIn("denied", self.troubles()[0])
        self.sql(f"GRANT SELECT, UPDATE ON {self.dbname}.outbox TO {user}@localhost")
        drain()
        self.assertEqual((self.processed(), self.troubles()), ([1, 2], []))

    def test_keys_of_any_type_work_and_flags_keep_their_form(self):
        keys = {"BIGINT UNSIGNED": (18446744073709551615, 18446744073709551614), "BINARY(16)": (b"\x00" * 15 + b"'", b"\xff" * 16),
                "VARCHAR(50) COLLATE utf8mb4_general_ci": ("it's \\ \u2603", "B"), "VARCHAR(20) CHARACTER SET latin1": ("\u00fc", "a b "),
                "CHAR(36)": (str(uuid.uuid4()), str(uuid.uuid4()).upper()), "DATETIME(6)": ("2025-01-02 03:04:05.000006", "2025-01-02 03:04:05.000007"),
                "DECIMAL(30, 2)": ("1234567890123456789012345678.12", "-1.50")}
        flags = (("BOOLEAN", None, "1"), ("INT", None, r"\d{10}"), ("BIGINT", 1714521600000, r"\d{13}"), ("DATETIME", None, r"20\d\d-.*"),
                 ("VARCHAR(50)", "2024-05-01T00:00:00Z", r"20\d\d-\d\d-\d\dT.*Z"), ("DATE", None, r"20\d\d-\d\d-\d\d"), ("INT", 1, "1"))
        for (key, (one, two)), (kind, old, wanted) in zip(keys.items(), flags):
            with self.subTest(key=key, kind=kind, old=old):
                self.sql("DROP TABLE IF EXISTS old")
                self.sql(f"CREATE TABLE old (id {key} UNIQUE, event_type TEXT, payload TEXT, processed_at {kind} NULL, n INT PRIMARY KEY AUTO_INCREMENT)")
                if old: self.sql("INSERT INTO old (event_type, payload, processed_at) VALUES ('a', '1', %s)", old)
                add = "INSERT INTO old (id, event_type, payload) VALUES (%s, 'a', '1')"
                self.sql(add, one)
                self.sql(add, None)  # an ambiguous row is left to the old one
                self.outbox("adopt", "old", "--existing", "copy", "--mark", "processed_at", "--consumer", "mail")
                self.sql(add, two)
                self.drained()
                set_ = self.sql("SELECT CAST(processed_at AS CHAR) FROM old WHERE id IS NOT NULL")
                self.assertEqual(len(set_), 2)
                for value, in set_: self.assertRegex(value, f"^{wanted}$")
                self.assertEqual(self.sql("SELECT count(*) FROM old WHERE id IS NULL AND processed_at IS NULL"), [(1,)])
                self.assertEqual((self.waiting(), self.troubles()), (0, []))

    def test_changed_columns_keep_the_mark_and_a_new_key_is_refused(self):
        self.old_rows(1)
        self.sql("ALTER TABLE outbox ADD COLUMN other INT UNIQUE")
        self.adopt()
        self.assertIn("--drop-mark", self.outbox("adopt", "outbox", "--column", "id=other", status=CONFIG).stderr)
        self.outbox("adopt", "outbox", "--column", "type='note'")
        self.insert(2)
        self.assertEqual(self.numbers(), [1, 2])
        self.assertEqual((self.processed(), self.waiting()), ([1, 2], 0))


if __name__ == "__main__":
    unittest.main()
