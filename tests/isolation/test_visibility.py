"""G1, G2, G3 and G4 on PostgreSQL, one way to lose or misorder an event at a time: the order of commits, and the reader's
observations in between."""
# build: plain
import io
import json
import threading

import psycopg2

import servers
from late_commits import LateCommits
from sessions_postgres import Exact, ExactAlone, Session, request
from support import wait_until


class Late(LateCommits, Exact):
    def begin_early(self, session):
        session.do("SELECT pg_current_xact_id()")

    def write_many(self, session, n):
        session.do("INSERT INTO @.event (type) SELECT 'x' FROM generate_series(1, %s)", n)

    def test_many_savepoints_between_two_polls_lose_nothing(self):
        # More running transactions than a snapshot may name.
        early, writer = self.writer(), self.writer()
        first = early.emit("a/1")
        writer.do("DO $$BEGIN FOR i IN 1 .. 1500 LOOP BEGIN PERFORM pg_current_xact_id(); INSERT INTO outbox.event (type)"
                  " VALUES ('x'); EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END$$")
        self.assertEqual(self.take("c"), [])
        early.do("COMMIT")
        self.assertEqual(self.take("c"), [first])
        writer.do("COMMIT")
        self.assertEqual(len(self.drain_all("c", max_events=1000)), 1500)

    def test_idle_writer_in_another_database_never_stalls_consumers(self):
        other = f"{self.dbname}_b"
        server = self.store.replace(f"/{self.dbname}?", "/?")
        servers.create_database(server, other)
        self.addCleanup(servers.drop_database, server, other)
        idle = Session(self.store.replace(f"/{self.dbname}?", f"/{other}?"))
        self.addCleanup(idle.close)
        idle.do("CREATE TABLE t (i int)")
        idle.do("BEGIN")
        idle.do("INSERT INTO t VALUES (1)")
        for _ in range(3):
            seq = self.session().emit("a/1")
            self.assertEqual(self.take("c"), [seq])
        idle.do("COMMIT")
        self.assertEqual(self.take("c"), [])

    def test_event_emitted_after_a_claim_in_one_transaction_arrives(self):
        first = self.session().emit("a/1")
        self.reader.do("BEGIN")
        _, events = self.reader.claim("c", "w")
        self.assertEqual([e[0] for e in events], [first])
        own = self.reader.emit("a/2")
        self.session().emit("b/1")
        self.reader.do("COMMIT")
        self.reader.do("SELECT @.settle('c', 'w', epoch) FROM @.claim")
        self.assertEqual(self.drain_all("c"), [own, own + 1])

    def straddle(self, name, ordering="key", lanes=1):
        """straddle registers a consumer that starts at a number, behind an event of a transaction that commits only after the
        consumer has polled. Returns that event, and one of the same transaction that is past the start."""
        writer, other = self.writer(), self.session()
        low = writer.emit("a/1")
        others = [other.emit(f"a/{i}") for i in range(8)]
        high = writer.emit("a/1")
        self.register(name, ordering=ordering, lanes=lanes, start_at=str(others[4]))
        self.assertEqual(sorted(self.drain_all(name, max_events=3)), others[4:])
        writer.do("COMMIT")
        return low, high

    def state(self, name, seq):
        return self.reader.do("SELECT state FROM @.delivery WHERE consumer = %s AND seq = %s", name, seq)[0][0]

    def backlog(self, name):
        return self.reader.do("SELECT n FROM @._backlog(%s, 1000)", name)[0][0]

    def test_start_number_applies_whenever_an_event_commits(self):
        for ordering, lanes in (("none", 1), ("key", 1), ("key", 4), ("global", 1)):
            with self.subTest(ordering=ordering, lanes=lanes):
                name = f"{ordering}{lanes}"
                low, high = self.straddle(name, ordering, lanes)
                self.assertEqual((self.state(name, low), self.state(name, high), self.backlog(name)), ("before-start", "pending", 1))
                self.assertEqual(self.drain_all(name), [high])
                self.assertEqual((self.state(name, low), self.state(name, high), self.backlog(name)), ("before-start", "delivered", 0))
                after = [self.session().emit(f"a/{i}") for i in range(4)]
                self.assertEqual(sorted(self.drain_all(name)), after)

    def before(self):
        """before registers a consumer that starts at a number and has caught up, behind an event that commits only then;
        returns that event."""
        writer, other = self.writer(), self.session()
        low = writer.emit("a/1")
        start = other.emit("a/2")
        self.register("n", start_at=str(start))
        self.assertEqual(self.drain_all("n"), [start])
        writer.do("COMMIT")
        return low

    def test_event_before_the_start_does_not_block_trimming(self):
        self.reader.do("SELECT @.remove('c')")
        low = self.before()
        self.assertEqual((self.state("n", low), self.backlog("n")), ("before-start", 0))
        self.reader.do("SELECT * FROM @.trim('0')")
        self.assertEqual(self.reader.do("SELECT seq FROM @.event"), [])

    def test_event_before_the_start_does_not_block_a_lane_change(self):
        low = self.before()
        self.register("n", lanes=4)
        self.assertEqual((self.drain_all("n"), self.state("n", low)), ([], "before-start"))

    def test_event_before_the_start_is_inspected_once(self):
        # Later polls find the consumer idle, and take no lock.
        self.before()
        self.assertEqual(self.take("n"), [])
        idle = "SELECT i.idle FROM @.consumer c, @._idle(c, false, clock_timestamp()) i WHERE c.name = 'n'"
        self.assertEqual(self.reader.do(idle), [(True,)])

    def test_simple_turn_skips_events_before_the_start(self):
        asked = request(ordering="key", lanes=1, events="", predicate="")
        for path in ("single", "batch"):
            with self.subTest(path=path):
                name = f"n-{path}"
                low, high = self.straddle(name)
                claim = ("SELECT t.epoch, t.n FROM @.meta, @._turns(ARRAY[json_populate_record(@._no_request(%s, 'w'), %s)], %s, "
                         "value::int) t WHERE name = 'schema_version'")
                self.assertEqual(self.reader.do(claim, name, asked, path), [])
                self.assertEqual(self.drain_all(name), [high])
                after = self.session().emit("a/1")
                [(epoch, n)] = self.reader.do(claim, name, asked, path)
                self.assertEqual((n, self.state(name, after), self.state(name, low)), (1, "in-flight", "before-start"))
                self.assertTrue(self.reader.settle(name, epoch))

    def test_transaction_begun_during_a_turn_is_handed_out(self):
        # The turn has a number already when the writer gets a higher one and takes its seq; then it opens a window.
        self.register("any", ordering="none")
        first = self.session().emit("a/1")
        self.reader.claim("any", "dead", 1, 1)
        self.reader.do("ALTER FUNCTION @._take_over RENAME TO take_over_quick")
        self.reader.do("CREATE FUNCTION @._take_over(c @.consumer, b bigint, m int, t timestamptz, k bigint[], OUT crashed bigint, OUT "
                       "buried bigint) LANGUAGE plpgsql AS $$BEGIN SELECT x.crashed, x.buried INTO crashed, buried FROM "
                       "@.take_over_quick(c, b, m, t, k) x; PERFORM pg_advisory_xact_lock(4242); END$$")
        gate, turn, writer = self.session(), self.session(), self.writer()
        gate.do("BEGIN")
        gate.do("SELECT pg_advisory_xact_lock(4242)")
        wait_until(lambda: self.reader.do("SELECT clock_timestamp() > locked_until FROM @.claim") == [(True,)])
        thread = threading.Thread(target=turn.do, args=(
            "SELECT * FROM @._turn(json_populate_record(@._no_request('any', 'w'), %s), NULL)",
            request(suspect_policy=0, parked_first=False)))
        thread.start()
        wait_until(lambda: self.reader.do("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                                          turn.db.info.backend_pid))
        late = writer.emit("a/1")
        gate.do("COMMIT")
        thread.join()
        writer.do("COMMIT")
        self.assertEqual(sorted(self.drain_all("any")), [first, late])


class Concurrent(Exact):
    def test_many_producers_lose_and_reorder_nothing(self):
        """Real concurrency: eight producers, each with its own keys, against two consumers that never stop looking."""
        self.register("one")
        self.register("lanes", lanes=4)
        running, written = [], [[] for _ in range(8)]

        def produce(i):
            session = Session(self.store)
            for n in range(60):
                session.do("BEGIN")
                batch = [session.emit(f"p{i}/{n % 3}") for _ in range(1 + n % 3)]
                session.do("ROLLBACK" if n % 7 == 0 else "COMMIT")
                if n % 7: written[i] += batch
            session.close()

        for i in range(8):
            running.append(threading.Thread(target=produce, args=(i,)))
            running[-1].start()
        seen = {"one": [], "lanes": []}
        while any(thread.is_alive() for thread in running):
            for name in seen: seen[name] += self.take(name, max_events=13)
        for name in seen:
            seen[name] += self.drain_all(name)
            self.assertEqual(sorted(seen[name]), sorted(sum(written, [])), name)
            place = {seq: i for i, seq in enumerate(seen[name])}
            keys = dict(self.reader.do("SELECT seq, aggregate_type || '/' || aggregate_id FROM @.event"))
            for mine in written:
                last = {}
                for seq in mine:
                    self.assertGreater(place[seq], last.get(keys[seq], -1))
                    last[keys[seq]] = place[seq]


class Prepared(ExactAlone):
    """Two-phase commit, on a server that allows it."""

    settings = {"max_prepared_transactions": 20}

    def setUp(self):
        super().setUp()
        self.register("c")

    def prepare(self, name):
        writer = self.session()
        writer.do("BEGIN")
        seq = writer.emit("a/1")
        writer.do(f"PREPARE TRANSACTION '{name}'")
        return seq

    def test_prepared_transaction_is_handed_out_only_if_committed(self):
        first, second = self.prepare("one"), self.prepare("two")
        other = self.session().emit("a/1")
        self.assertEqual(self.take("c"), [other])
        self.reader.do("ROLLBACK PREPARED 'one'")
        self.assertEqual(self.take("c"), [])
        self.reader.do("COMMIT PREPARED 'two'")
        self.assertEqual(self.take("c"), [second])
        self.assertNotIn(first, self.drain_all("c"))

    def test_prepared_transaction_survives_a_restart_of_the_server(self):
        seq = self.prepare("three")
        self.assertEqual(self.take("c"), [])
        self.postgres.restart("immediate")
        self.reader = self.session()
        self.assertEqual(self.take("c"), [])
        self.reader.do("COMMIT PREPARED 'three'")
        self.assertEqual(self.take("c"), [seq])


class Ways(Exact):
    """Ways and places to write events."""

    def setUp(self):
        super().setUp()
        self.register("c")

    def test_producers_cannot_choose_a_seq(self):
        with self.assertRaises(psycopg2.errors.GeneratedAlways):
            self.reader.do("INSERT INTO @.event (seq, type) VALUES (7, 'x')")

    def test_events_inserted_by_copy_are_handed_out(self):
        writer = self.session()
        writer.do("BEGIN")
        rows = "".join(f"x\ta\t{i}\n" for i in range(1000))
        writer.cursor.copy_expert("COPY outbox.event (type, aggregate_type, aggregate_id) FROM STDIN", io.StringIO(rows))
        self.assertEqual(self.take("c"), [])
        writer.do("COMMIT")
        self.assertEqual(len(set(self.drain_all("c", max_events=300))), 1000)

    def test_events_written_without_triggers_are_handed_out(self):
        writer = self.session()
        writer.do("SET session_replication_role = replica")
        writer.do("BEGIN")
        seq = writer.emit("a/1")
        self.assertEqual(self.take("c"), [])
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), [seq])

    def test_schemas_of_one_database_are_independent(self):
        names = ["outbox", "Shop Two", 'quo"te', "it's", "100%d %s", "weiß_ü"]
        sessions = {}
        for i, name in enumerate(names):
            url = self.store + "&schema=" + servers.urllib.parse.quote(name, safe="")
            if i: self.outbox("--store", url, "init")
            sessions[name] = self.session(schema=name)
            if i: self.register("c", session=sessions[name])
        for i, name in enumerate(names):
            for _ in range(i + 1): sessions[name].emit("a/1")
        for i, name in enumerate(names):
            self.assertEqual(sessions[name].drain("c"), list(range(1, i + 2)), name)
            out = self.path(f"out{i}")
            self.drain("--store", self.store + "&schema=" + servers.urllib.parse.quote(name, safe=""), "--consumer", "r",
                       "--sink", f"file:{out}")
            self.assertEqual(len(self.ndjson(out)), i + 1, name)
        # A claim in one schema waits for no claim in another.
        sessions["outbox"].do("BEGIN")
        sessions["outbox"].do("SELECT @._lock_consumer('c')")
        sessions["it's"].do("SET lock_timeout = '5s'")
        self.assertEqual(sessions["it's"].take("c"), [])
        keys = {s.do("SELECT @._wakeup_key(), @.wakeup_channel()")[0] for s in sessions.values()}
        self.assertEqual(len(keys), len(names))

    def test_claim_inside_a_transaction_that_wrote_is_refused(self):
        self.reader.do("BEGIN")
        self.reader.emit("a/1")
        with self.assertRaisesRegex(psycopg2.Error, "this transaction has written"):
            self.reader.claim("c")

    def test_other_isolation_levels_are_refused_with_advice(self):
        for level in ("REPEATABLE READ", "SERIALIZABLE"):
            self.reader.do(f"BEGIN ISOLATION LEVEL {level}")
            with self.assertRaisesRegex(psycopg2.Error, f"READ COMMITTED, not {level}(.|\n)*default_transaction_is"):
                self.reader.claim("c")
            self.reader.do("ROLLBACK")

    def test_producers_in_other_isolation_levels_lose_nothing(self):
        writer = self.session()
        writer.do("BEGIN ISOLATION LEVEL SERIALIZABLE")
        writer.do("SELECT count(*) FROM @.event")
        self.assertEqual(self.take("c"), [])
        seq = writer.emit("a/1")
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), [seq])
