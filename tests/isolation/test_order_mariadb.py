"""G4 on MariaDB, in every innodb_autoinc_lock_mode: an event inserted after another was committed is delivered after it,
even if its statement began, and the server assigned its number, long before."""
# build: plain
import random
import threading
import time

import pymysql

from sessions_mariadb import ExactAlone
from support import wait_until

DEADLOCKS = 1213, 1467  # the second one for a lock on numbers, in mode 0
EMIT = "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) "

# Each statement inserts the payloads 1, 2 and so on of the key k/1, and waits for the gate before the last one. The server
# reserves the numbers of all rows of VALUES in advance, and those of SELECT and LOAD by 1, 2, 4 and so on: the third row gets
# its number with the second.
VALUES = {
    "function": EMIT + "VALUES ('t', 'k', '1', 1), ('t', 'k', '1', pass_gate(2))",
    "row lock": EMIT + "VALUES ('t', 'k', '1', 1), ('t', 'k', '1', (SELECT 2 FROM gate WHERE id > 1 LOCK IN SHARE MODE))",
    "IGNORE": "INSERT IGNORE" + EMIT.removeprefix("INSERT") + "VALUES ('t', 'k', '1', 1), ('t', 'k', '1', pass_gate(2))",
    "IF": EMIT + "VALUES ('t', 'k', '1', 1), ('t', 'k', IF(pass_gate(1), '1', '2'), 2)",
    "procedure": "CALL emit_two()",
}
SELECT = {
    "function": EMIT + "SELECT 't', 'k', '1', IF(seq = 3, pass_gate(3), seq) FROM seq_1_to_3 ORDER BY seq",
    "FOR UPDATE": EMIT + "SELECT 't', 'k', '1', id + 1 FROM gate ORDER BY id FOR UPDATE",
}


class Order:
    """Tests for a server with innodb_autoinc_lock_mode = MODE. A transaction holds the gate, by a row lock, until it has emitted."""

    def setUp(self):
        super().setUp()
        self.register("c")
        self.sql("CREATE TABLE gate (id INT PRIMARY KEY) ENGINE = InnoDB")
        self.sql("INSERT INTO gate VALUES (0), (1), (2)")
        self.sql("CREATE FUNCTION pass_gate(n INT) RETURNS INT READS SQL DATA "
                 "RETURN n + (SELECT 0 FROM gate WHERE id = 2 LOCK IN SHARE MODE)")
        self.sql(f"CREATE PROCEDURE emit_two() {VALUES['function']}")

    def payloads(self):
        self.take("c")
        return [line["payload"] for line in self.ndjson(self.path("c"))]

    def waits(self, thread_id):
        time.sleep(0.11)  # the server repeats the same snapshot when queried more often than ten times a second
        return self.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = %s AND trx_state = 'LOCK WAIT' UNION ALL "
                        "SELECT 1 FROM information_schema.processlist WHERE id = %s AND state = 'User lock'", thread_id, thread_id)

    def start(self, statement, *params):
        """start runs a statement in a separate session, and returns the thread once the session waits for a lock."""
        session, failed = self.session(), []

        def run():
            try:
                session.do(statement, *params)
            except pymysql.Error as why:
                failed.append(str(why))
        thread = threading.Thread(target=run)
        thread.failed = failed
        thread.start()
        wait_until(lambda: not thread.is_alive() or self.waits(session.db.thread_id()))
        self.assertTrue(thread.is_alive(), failed)
        return thread

    def end(self, thread):
        thread.join(20)
        self.assertEqual((thread.is_alive(), thread.failed), (False, []))

    def hold_gate(self):
        holder = self.session()
        holder.do("BEGIN")
        holder.do("SELECT id FROM gate WHERE id = 2 FOR UPDATE")
        return holder

    def emit(self, session, payload, key="1", **more):
        columns = {"type": "t", "aggregate_type": "k", "aggregate_id": key, "payload": payload, **more}
        session.do(f"INSERT INTO outbox_event ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})", *columns.values())

    def assert_after_the_gate(self, statement, rows=2):
        """The statement's last event was inserted when 9 had been committed."""
        holder = self.hold_gate()
        waiting = self.start(statement)
        self.emit(holder, 9)
        holder.do("COMMIT")
        self.end(waiting)
        self.assertEqual(self.payloads()[-rows - 1:], [*range(1, rows), 9, rows])

    def test_rows_of_a_statement_or_transaction_keep_their_order(self):
        session = self.session()
        session.do("BEGIN")
        session.do(EMIT + "SELECT 't', 'k', '1', seq FROM seq_1_to_2000 ORDER BY seq DESC")
        session.do(EMIT + "VALUES " + ", ".join(f"('t', 'k', '1', {n})" for n in range(5000, 5100)))
        session.do(EMIT + "SELECT 't', 'k', '1', 7000 + seq FROM seq_1_to_2000 ORDER BY seq")
        session.do("COMMIT")
        self.assertEqual(self.payloads(), [*range(2000, 0, -1), *range(5000, 5100), *range(7001, 9001)])

    def test_event_that_waited_for_its_key_comes_later(self):
        holder = self.session()
        holder.do("BEGIN")
        self.emit(holder, 0, idempotency_key="once")
        waiting = self.start(EMIT.replace("payload", "payload, idempotency_key") + "VALUES ('t', 'k', '1', 2, 'once')")
        if self.MODE > 0:  # otherwise the server assigns no other number while that statement runs
            self.emit(self.session(), 9)
        holder.do("ROLLBACK")
        self.end(waiting)
        self.assertEqual(self.payloads(), [9, 2] if self.MODE > 0 else [2])

    def test_duplicate_key_does_not_block_keyless_producers(self):
        """The server locks the gap before the known key until the transaction ends, and that before the next one if the event with the
        key was deleted. Events without a key lie in neither."""
        def without_key():
            producer = self.session()
            producer.do("SET innodb_lock_wait_timeout = 1")
            self.emit(producer, 1)

        owner = self.session()
        owner.do("SET @outbox_change_events = 'on'")
        for isolation in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
            for key in "high", "low":  # low: the lowest one
                with self.subTest(isolation, key=key):
                    without_key()
                    self.emit(owner, 0, idempotency_key=key)
                    holder, reader = self.session(), self.session()
                    holder.do(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
                    holder.do("BEGIN")
                    holder.do("INSERT IGNORE INTO outbox_event (type, idempotency_key) VALUES ('t', %s)", key)
                    without_key()
                    holder.do("ROLLBACK")
                    reader.do("START TRANSACTION WITH CONSISTENT SNAPSHOT")  # keeps deleted entries in the index
                    reader.do("SELECT 1 FROM outbox_event")
                    owner.do("DELETE FROM outbox_event WHERE idempotency_key = %s", key)
                    holder.do("BEGIN")
                    self.emit(holder, 0, idempotency_key=key)
                    without_key()
                    holder.do("ROLLBACK")
                    reader.do("ROLLBACK")

    def test_explicit_number_does_not_reorder_its_event(self):
        session = self.session()
        session.do("BEGIN")
        for _ in range(2): self.emit(session, 0)
        session.do("ROLLBACK")  # which leaves 1 and 2 to choose
        self.emit(session, 7)
        session.do("SET insert_id = 2")
        self.emit(session, 8)
        self.emit(session, 9, nr=1)
        self.assertEqual(self.sql("SELECT payload FROM outbox_event ORDER BY nr"), [("9",), ("8",), ("7",)])
        self.assertEqual(self.payloads(), [7, 8, 9])

    def test_random_locking_statements_keep_key_order(self):
        """Each event has the version of its row, which its statement locks, so versions of a key are committed in order."""
        self.sql("CREATE TABLE account (id INT PRIMARY KEY, version INT NOT NULL) ENGINE = InnoDB")
        self.sql("INSERT INTO account SELECT seq, 0 FROM seq_1_to_4")
        self.sql("CREATE FUNCTION bump(n INT) RETURNS INT MODIFIES SQL DATA BEGIN "
                 "UPDATE account SET version = version + 1 WHERE id = n; RETURN (SELECT version FROM account WHERE id = n); END")
        done = []

        def produce(seed):
            rng, session = random.Random(seed), self.session()
            for _ in range(40):
                keys = sorted(rng.sample(range(1, 5), rng.randint(1, 3)))
                if rng.random() < 0.5:
                    text = "VALUES " + ", ".join(f"('t', 'k', {k}, bump({k}))" for k in keys)
                else:
                    text = "SELECT 't', 'k', seq, bump(seq) FROM seq_1_to_4 WHERE seq IN (%s) ORDER BY seq" % ", ".join(map(str, keys))
                try:
                    session.do("BEGIN")
                    session.do(EMIT + text)
                    session.do("DO SLEEP(%s)", rng.random() / 200)
                    session.do("COMMIT")
                except pymysql.err.OperationalError as why:
                    if why.args[0] not in DEADLOCKS: raise
                    session.do("ROLLBACK")
            done.append(seed)

        with self.relay(*self.options["c"]):
            threads = [threading.Thread(target=produce, args=(seed,)) for seed in range(6)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        self.assertEqual(len(done), 6)
        self.take("c")
        seen = self.ndjson(self.path("c"))
        for key, version in self.sql("SELECT id, version FROM account"):
            self.assertEqual([e["payload"] for e in seen if e["aggregate_id"] == str(key)], [*range(1, version + 1)], key)


class AheadOfTheStatement(Order):
    """Numbers are assigned to a statement whose number of rows the server knows, and others keep emitting."""

    def test_values_row_follows_the_event_it_waited_for(self):
        for name, statement in VALUES.items():
            with self.subTest(name): self.assert_after_the_gate(statement)

    def test_row_follows_an_event_awaited_by_an_earlier_trigger(self):
        for when in ("BEFORE", "AFTER"):
            with self.subTest(when):
                row = 2 if when == "BEFORE" else 1
                self.sql(f"CREATE TRIGGER waits {when} INSERT ON outbox_event FOR EACH ROW BEGIN "
                         f"IF NEW.payload = '{row}' THEN DO pass_gate(1); END IF; END")
                try: self.assert_after_the_gate(EMIT + "VALUES ('t', 'k', '1', 1), ('t', 'k', '1', 2)")
                finally: self.sql("DROP TRIGGER waits")

    def test_row_waiting_for_a_named_lock_follows_the_holders_event(self):
        holder = self.session()
        holder.do("DO GET_LOCK('gate', 10)")
        waiting = self.start(EMIT + "VALUES ('t', 'k', '1', 1), ('t', 'k', '1', 1 + GET_LOCK('gate', 10))")
        self.emit(holder, 9)
        holder.do("DO RELEASE_LOCK('gate')")
        self.end(waiting)
        self.assertEqual(self.payloads(), [1, 9, 2])

    def test_trigger_events_follow_the_event_their_row_waited_for(self):
        self.sql("CREATE TABLE shop (n INT PRIMARY KEY, gate INT, FOREIGN KEY (gate) REFERENCES gate (id)) ENGINE = InnoDB")
        self.sql(f"CREATE TRIGGER tells AFTER INSERT ON shop FOR EACH ROW {EMIT} VALUES ('t', 'k', '1', NEW.n)")
        self.assert_after_the_gate("INSERT INTO shop VALUES (1, NULL), (2, 2)")
        self.sql("DELETE FROM shop")
        self.assert_after_the_gate("INSERT INTO shop SELECT seq, IF(seq = 2, 2, NULL) FROM seq_1_to_2 ORDER BY seq")


class Traditional(Order, ExactAlone):
    MODE = 0
    SETTINGS = {"innodb-autoinc-lock-mode": MODE}


class Consecutive(AheadOfTheStatement, ExactAlone):
    MODE = 1
    SETTINGS = {"innodb-autoinc-lock-mode": MODE}


class Interleaved(AheadOfTheStatement, ExactAlone):
    MODE = 2
    SETTINGS = {"innodb-autoinc-lock-mode": MODE, "secure-file-priv": ""}

    def test_selected_row_follows_the_event_it_waited_for(self):
        for name, statement in SELECT.items():
            with self.subTest(name): self.assert_after_the_gate(statement, rows=3)

    def test_loaded_row_follows_the_event_it_waited_for(self):
        rows = self.server.dir / "rows"
        rows.write_text("1\n2\n3\n")
        rows.chmod(0o644)
        self.assert_after_the_gate(f"LOAD DATA INFILE '{rows}' INTO TABLE outbox_event (@n) SET type = 't', aggregate_type = 'k', "
                                   "aggregate_id = '1', payload = IF(@n = 3, pass_gate(3), @n)", rows=3)
