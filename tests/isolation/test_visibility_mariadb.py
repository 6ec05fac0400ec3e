"""G1, G2, G3 and G4 on MariaDB: the ways to lose or misorder an event of tests/lib/late_commits.py, and those that only MariaDB has."""
# build: plain
import threading

from late_commits import LateCommits
from sessions_mariadb import Exact, Session
from support import wait_until


class Late(LateCommits, Exact):
    def begin_early(self, session):
        session.do("CREATE TEMPORARY TABLE IF NOT EXISTS before_it (i INT) ENGINE = InnoDB")
        session.do("INSERT INTO before_it VALUES (1)")

    def write_many(self, session, n):
        session.do("INSERT INTO outbox_event (type) SELECT 'x' FROM seq_1_to_%s" % n)

    def test_numbering_does_not_wait_for_an_open_writer(self):
        # A range of markers, or a locking read of them, would wait for the uncommitted one or skip it.
        writer, other = self.writer(), self.session()
        first = other.emit("a/1")
        late = writer.emit("a/1")
        last = other.emit("a/1")
        self.assertEqual(self.take("c"), [first, last])
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_fresh"), [(0,)])  # READ COMMITTED shows none
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), [late])

    def test_bulk_inserts_are_numbered_around_an_open_writer(self):
        # The server locks beyond a range as well, unless it knows the number of rows.
        writer, other = self.writer(), self.session()
        many = "INSERT INTO outbox_event (type, payload) SELECT 'x', seq FROM seq_1_to_512"
        other.do(many)
        late = writer.emit("a/1")
        other.do(many)
        early = self.take("c", 2000)
        self.assertEqual(len(early), 2 * 512)
        self.assertNotIn(late, early)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_fresh"), [(0,)])  # READ COMMITTED shows none
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), [late])

    def test_rolled_back_savepoint_does_not_block_other_producers(self):
        """A poll that asks for the lock of a marker leaves one on the gap behind it once the marker is rolled back."""
        watcher, writer, other = self.session(), self.writer(), self.session()
        watcher.do("SET SESSION tx_isolation = 'READ-UNCOMMITTED'")
        (next_seq, news), = self.sql("SELECT next, news FROM outbox_sequencer")
        looking = threading.Thread(target=watcher.do, args=("CALL outbox_wait(%s, %s, 20000, 0)", next_seq, news))
        looking.start()
        writer.emit("a/1")
        writer.do("SAVEPOINT s")
        writer.emit("a/1")
        before = self.looks()
        wait_until(lambda: self.looks() > before + 50)
        writer.do("ROLLBACK TO s")
        other.do("SET SESSION innodb_lock_wait_timeout = 1")
        self.assertTrue(looking.is_alive())
        other.emit("b/1")
        looking.join(20)  # the relay has seen the marker
        self.assertFalse(looking.is_alive())
        writer.do("COMMIT")

    def looks(self):
        return int(self.sql("SHOW GLOBAL STATUS LIKE 'Com_select'")[0][1])

    def test_producer_in_any_isolation_level_loses_nothing(self):
        self.sql("CREATE TABLE shop (nr int)")  # one of our tables would do, but a SERIALIZABLE reader locks the rows it reads
        for level in ("READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
            writer = self.session()
            writer.do(f"SET TRANSACTION ISOLATION LEVEL {level}")
            writer.do("BEGIN")
            writer.do("SELECT count(*) FROM shop")
            self.assertEqual(self.take("c"), [], level)
            mine = writer.emit("a/1")
            theirs = self.session().emit("b/1")
            self.assertEqual(self.take("c"), [theirs], level)
            writer.do("COMMIT")
            self.assertEqual(self.take("c"), [mine], level)

    def test_emptied_table_with_restarted_numbers_loses_nothing(self):
        session = self.session()
        for i in range(3): session.emit("a/1")
        self.assertEqual(len(self.take("c")), 3)
        session.do("SET foreign_key_checks = 0")
        session.do("TRUNCATE outbox_event")
        new = [session.emit("a/1") for _ in range(4)]
        self.assertEqual(self.sql("SELECT min(nr) FROM outbox_event"), [(1,)])
        self.assertEqual(self.take("c"), new)

    def test_event_with_two_markers_is_handed_out(self):
        session = self.session()
        ids = [session.emit("a/1") for _ in range(3)]
        session.do("INSERT INTO outbox_fresh (nr) SELECT nr FROM outbox_fresh")
        self.assertEqual(self.take("c"), ids)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_fresh"), [(0,)])


class Concurrent(Exact):
    def test_many_producers_lose_and_reorder_nothing(self):
        """Real concurrency: eight producers, each with its own keys, against two consumers that never stop looking."""
        for name, lanes in (("one", 1), ("lanes", 4)): self.register(name, lanes=lanes)
        written, running = [[] for _ in range(8)], []

        def produce(i):
            session = Session(self)
            for n in range(60):
                session.do("BEGIN")
                batch = [(f"p{i}/{n % 3}", session.emit(f"p{i}/{n % 3}")) for _ in range(1 + n % 3)]
                session.do("ROLLBACK" if n % 7 == 0 else "COMMIT")
                if n % 7: written[i] += batch

        with self.relay(*self.options["one"]), self.relay(*self.options["lanes"]):
            for i in range(8):
                running.append(threading.Thread(target=produce, args=(i,)))
                running[-1].start()
            for thread in running: thread.join()
        for name in ("one", "lanes"):
            self.take(name)
            place = {line["id"]: i for i, line in enumerate(self.ndjson(self.path(name)))}
            self.assertEqual(sorted(place), sorted(id for mine in written for _, id in mine), name)
            for mine in written:
                last = {}
                for key, id in mine:
                    self.assertGreater(place[id], last.get(key, -1))
                    last[key] = place[id]
