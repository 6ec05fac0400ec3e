"""G2, G3, G4 and G10 on MariaDB with prepared transactions (XA): their events are delivered once they are committed, by any
session, even after failures of the server, in the order of their key, and never if they are rolled back."""
# build: plain
# quick: no
import random

import pymysql

from mariadb_server import LOGGED, Primary, Replica, forget_connections
from sessions_mariadb import ExactAlone
from support import wait_until


class Sessions(ExactAlone):
    def setUp(self):
        super().setUp()
        self.register("c")
        self.addCleanup(self.forget_prepared)

    def forget_prepared(self):
        for *_, name in self.sql("XA RECOVER"): self.sql(f"XA ROLLBACK '{name.decode() if isinstance(name, bytes) else name}'")

    def prepare(self, name, *keys, then=()):
        """prepare leaves a prepared transaction of a closed session behind, and returns its events."""
        session = self.session()
        session.do(f"XA START '{name}'")
        ids = [session.emit(key) for key in keys]
        for statement in then: session.do(statement)
        session.do(f"XA END '{name}'")
        session.do(f"XA PREPARE '{name}'")
        self.leave(session)
        return ids

    def leave(self, session):
        number = session.db.thread_id()
        session.db.close()
        wait_until(lambda: not self.sql("SELECT 1 FROM information_schema.processlist WHERE id = %s", number))

    def restart(self):
        self.server.restart()
        forget_connections()


class Prepared:
    def test_prepared_event_is_handed_out_only_if_committed(self):
        self.prepare("one", "a/1", "a/2")
        second = self.prepare("two", "a/1", "a/2")
        other = self.session().emit("a/1")
        self.assertEqual(self.take("c"), [other])
        self.sql("XA ROLLBACK 'one'")
        self.assertEqual(self.take("c"), [])
        self.sql("XA COMMIT 'two'")
        after = self.session().emit("a/1")
        self.assertEqual(self.take("c"), [*second, after])

    def test_prepared_events_survive_a_killed_server_in_key_order(self):
        first, second = self.prepare("one", "a/1"), self.prepare("two", "a/1")
        self.restart()
        self.assertEqual(self.take("c"), [])
        between = self.session().emit("a/1")
        self.assertEqual(self.take("c"), [between])
        self.sql("XA COMMIT 'two'")
        after = self.session().emit("a/1")
        self.restart()
        last = self.session().emit("a/1")
        self.sql("XA ROLLBACK 'one'")
        self.assertEqual(self.take("c"), [*second, after, last])
        self.assertNotIn(first[0], [line["id"] for line in self.ndjson(self.path("c"))])
        self.restart()
        self.assertEqual(self.take("c"), [])

    def test_commit_confirmed_before_a_server_kill_is_delivered(self):
        events = self.prepare("one", "a/1")
        self.restart()
        self.sql("XA COMMIT 'one'")
        self.restart()
        self.assertEqual(self.sql("XA RECOVER"), [])
        self.assertEqual(self.take("c"), events)

    def test_numbering_does_not_wait_for_a_prepared_event(self):
        """Markers are deleted by ranges; a range that included a prepared one would wait for it forever."""
        many = "INSERT INTO outbox_event (type, payload) SELECT 'x', seq FROM seq_1_to_2000"
        session = self.session()
        session.do(many)
        late = self.prepare("one", "a/1", then=[many])
        session.do(many)
        self.restart()
        self.session().do(many)
        self.assertEqual(len(self.take("c", 2000)), 6000)
        self.sql("XA COMMIT 'one'")
        rest = self.take("c", 2000)
        self.assertEqual((rest[0], len(rest)), (late[0], 2001))

    def test_trim_works_around_a_prepared_transaction(self):
        before = self.session().emit("a/1")
        late = self.prepare("one", "a/1", "a/2")
        after = self.session().emit("a/1")
        self.assertEqual(self.take("c"), [before, after])
        for step in range(2):
            self.outbox("trim", "--older-than", "0s", "--yes")
            self.assertEqual(self.sql("SELECT count(*) FROM outbox_event"), [(0,)])  # READ COMMITTED does not show them
            if step == 0: self.restart()
        self.sql("XA COMMIT 'one'")
        self.outbox("trim", "--older-than", "0s", "--yes")
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_event"), [(2,)])
        self.assertEqual(self.take("c"), late)

    def test_consumer_starting_at_the_end_gets_prepared_events(self):
        self.session().emit("a/1")
        late = self.prepare("one", "a/1")
        self.register("new", start_at="end")
        self.restart()
        self.sql("XA COMMIT 'one'")
        self.assertEqual(self.take("new"), late)

    def test_prepared_idempotency_key_is_free_after_rollback(self):
        emit = "INSERT INTO outbox_event (type, idempotency_key) VALUES ('t', 'once')"
        self.prepare("one", then=[emit])
        self.restart()
        session = self.session()
        session.do("SET SESSION innodb_lock_wait_timeout = 1")
        with self.assertRaisesRegex(pymysql.err.OperationalError, "Lock wait timeout"): session.do(emit)
        self.sql("XA ROLLBACK 'one'")
        session.do(emit)
        self.assertEqual(len(self.take("c")), 1)
        self.prepare("two", then=[emit.replace("once", "twice")])
        self.sql("XA COMMIT 'two'")
        with self.assertRaisesRegex(pymysql.err.IntegrityError, "Duplicate"): session.do(emit.replace("once", "twice"))

    def test_relay_delivers_prepared_events_after_a_server_kill(self):
        events = self.prepare("one", "a/1")
        with self.relay(*self.options["c"], "--lease", "1s") as relay:
            got = lambda: [line["id"] for line in self.ndjson(self.path("c"))]
            first = self.session().emit("a/1")
            wait_until(lambda: got() == [first], what=relay.output)
            self.restart()
            second = self.session().emit("a/1")
            wait_until(lambda: got() == [first, second], what=relay.output)
            self.sql("XA COMMIT 'one'")
            wait_until(lambda: got() == [first, second, *events], what=relay.output)

    def test_random_outcomes_and_kills_keep_every_event_in_order(self):
        """Every event has the version of the row that its transaction has changed, so versions are committed in order."""
        rng = random.Random(28)
        self.sql("CREATE TABLE account (id INT PRIMARY KEY, version INT NOT NULL) ENGINE = InnoDB")
        self.sql("INSERT INTO account SELECT seq, 0 FROM seq_1_to_6")
        free, prepared = set(range(1, 7)), {}
        change = ("UPDATE account SET version = version + 1 WHERE id = {0}",
                  "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) SELECT 't', 'k', id, version FROM account WHERE id = {0}")

        def write(n):
            keys = rng.sample(sorted(free), min(len(free), rng.randint(1, 2)))
            statements = [text.format(key) for key in keys for text in change]
            if rng.random() < 0.6:
                self.prepare(f"x{n}", then=statements)
                prepared[f"x{n}"] = keys
                free.difference_update(keys)
            else:
                session = self.session()
                for statement in ("BEGIN", *statements, "COMMIT" if rng.random() < 0.8 else "ROLLBACK"): session.do(statement)

        def finish():
            name = rng.choice(sorted(prepared))
            self.sql(f"XA {'COMMIT' if rng.random() < 0.7 else 'ROLLBACK'} '{name}'")
            free.update(prepared.pop(name))

        for n in range(150):
            if prepared and (rng.random() < 0.35 or not free): finish()
            else: write(n)
            if rng.random() < 0.15: self.take("c")
            if n % 30 == 29: self.restart()
        while prepared: finish()
        self.take("c")
        seen = self.ndjson(self.path("c"))
        for key, version in self.sql("SELECT id, version FROM account"):
            self.assertGreater(version, 0)
            self.assertEqual([e["payload"] for e in seen if e["aggregate_id"] == str(key)], [*range(1, version + 1)], key)

    def test_doctor_advises_on_a_forgotten_prepared_transaction(self):
        self.prepare("one", "a/1")
        seen = lambda: self.outbox("doctor", "--patience", "1s", status=None).stdout
        wait_until(lambda: "a prepared transaction (XA)" in seen(), what=seen)
        self.assertIn("XA RECOVER", seen())
        self.sql("XA COMMIT 'one'")
        wait_until(lambda: "XA" not in seen(), what=seen)  # the server may show the same snapshot again


class Plain(Prepared, Sessions): pass


class Logged(Prepared, Sessions):
    """With a binary log, where a transaction is prepared in two places."""

    SETTINGS = {**LOGGED, "server-id": 1}


class Promoted(Sessions):
    SERVER = Primary

    def test_transaction_prepared_before_a_promotion_can_still_end(self):
        replica = Replica(self.server).start()
        self.addCleanup(replica.close)
        replica.follow()
        self.prepare("one", "a/1")
        second = self.prepare("two", "a/1")
        self.assertEqual(self.take("c"), [])
        wait_until(replica.caught_up)
        self.server.stop()
        replica.promote()
        there = self.store
        self.store = replica.url(self.dbname)
        other = self.session().emit("a/1")
        self.assertEqual(self.take("c"), [other])
        self.sql("XA ROLLBACK 'one'")
        self.sql("XA COMMIT 'two'")
        after = self.session().emit("a/1")
        self.assertEqual(self.take("c"), [*second, after])
        self.store = there
        self.restart()
