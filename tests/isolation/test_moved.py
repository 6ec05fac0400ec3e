"""The database moves or is changed under the outbox, and nothing is lost: event numbers that restart, sequences that were not
copied, caches of numbers, a cut-over by logical replication, a restore that the application uses before any relay does."""
# build: plain
# quick: no
import json
import os
import subprocess
import threading

import psycopg2

import servers
from sessions_postgres import Exact, Session, request
from support import thorough, wait_until


class Changed(Exact):
    """In one cluster."""

    def setUp(self):
        super().setUp()
        self.app = self.session()

    def emit(self, n, key="a/1"):
        return [self.app.emit(key) for _ in range(n)]

    def ids(self, seqs):
        return [self.app.do("SELECT id FROM @.event WHERE seq = %s", seq)[0][0] for seq in seqs]

    def taken(self, consumer="c", session=None):
        """taken drains and returns the ids of the events."""
        got, session = [], session or self.reader
        while True:
            rows = session.do("SELECT epoch, id FROM @.claim(%s, 'w', 100)", consumer)
            if not rows: return got
            got += [row[1] for row in rows]
            self.assertTrue(session.settle(consumer, rows[0][0]))

    def trouble(self):
        return self.reader.do("SELECT moved, numbers, sequence FROM @._trouble()")[0]

    # ---- numbers that begin again ----

    def test_restarted_sequence_loses_nothing(self):
        for how in ("TRUNCATE @.event RESTART IDENTITY", "DELETE FROM @.event; SELECT setval('@.event_seq_seq', 1, false)",
                    "DELETE FROM @.event; ALTER SEQUENCE @.event_seq_seq RESTART"):
            for n in (1, 3, 50):  # fewer than there were, and more: then the sequence is past the known numbers
                with self.subTest(how=how, n=n):
                    name = f"c{n}"
                    self.register(name)
                    self.emit(10)
                    self.taken(name)
                    self.app.force(how)
                    new = self.emit(n)
                    ids = self.ids(new)
                    self.assertEqual(self.taken(name), ids)
                    self.assertEqual(self.taken(name), ids[:0])
                    self.assertEqual(self.trouble(), (None, None, None))
                    more = self.ids(self.emit(2))
                    self.assertEqual(self.taken(name), more)
                    self.reader.force("DELETE FROM @.consumer; DELETE FROM @.lane; DELETE FROM @.event")

    def test_sequence_restarted_under_a_relay_loses_nothing(self):
        out = self.path("out.ndjson")
        with self.relay("--consumer", "c", "--sink", f"file:{out}"):
            self.emit(20)
            wait_until(lambda: len(self.ndjson(out)) == 20)
            self.app.force("TRUNCATE @.event RESTART IDENTITY")
            for i in range(5): self.app.emit("a/1", payload=str(i))
            wait_until(lambda: len(self.ndjson(out)) >= 25)
        self.assertEqual([e["payload"] for e in self.ndjson(out)][20:], list(range(5)))

    def test_restarted_numbers_do_not_mix_up_letters_and_receipts(self):
        self.register("c")
        first = self.emit(4)
        epoch, _ = self.reader.claim("c")
        ids = self.ids(first)
        self.reader.settle("c", epoch, outcomes=[
            {"seq": first[0], "kind": "dead", "error": "boom"}, {"seq": first[1], "kind": "delivered", "id": ids[1], "receipt": "r"},
            {"seq": first[3], "kind": "retry", "delay_ms": 3600000, "error": "later"}])
        self.app.force("TRUNCATE @.event RESTART IDENTITY")
        new = self.ids(self.emit(4, "b/1"))
        self.assertEqual(self.taken(), new)
        self.assertEqual(self.reader.do("SELECT id FROM @.dead"), [(ids[0],)])
        self.assertEqual(self.reader.do("SELECT event_id FROM @.receipt WHERE sink_id = 'r'"), [(ids[1],)])
        self.assertEqual(self.reader.do("SELECT count(*) FROM @.parked"), [(0,)], "the awaited transaction no longer exists")

    def test_claim_spanning_restarted_numbers_is_delivered(self):
        self.register("c")
        old = self.ids(self.emit(4))
        self.reader.claim("c", "w1", 2, 500)
        self.app.do("SELECT setval('@.event_seq_seq', 1000); SELECT setval('@.event_seq_seq', 5)")
        new = self.ids(self.emit(1, "b/1"))
        self.app.do("INSERT INTO @.event (type) SELECT 't' FROM generate_series(1, 5)")
        got = set()
        wait_until(lambda: got.update(self.taken()) or len(got) == 10, what=lambda: got)
        self.assertLessEqual({*old, *new}, got)

    def test_sequence_set_back_is_repaired_by_an_idle_relay(self):
        """Nothing can commit meanwhile, so nothing notifies: the relay's sweep finds it."""
        self.emit(20)
        self.register("c")
        while self.take("c"): pass
        back = "SELECT setval('@.event_seq_seq', 5)"
        self.app.do(back)
        self.assertIn("the last event number given out is 5", self.outbox("doctor", status=None).stdout)
        out = self.path("out.ndjson")
        with self.relay("--consumer", "c", "--sink", f"file:{out}", "--sweep", "1s") as relay:
            right = lambda: self.reader.do("SELECT numbers FROM @._trouble()") == [(None,)]
            wait_until(right, what=relay.output)
            with self.assertRaisesRegex(psycopg2.Error, "duplicate key"):
                self.app.do(f"{back}; INSERT INTO @.event (type) VALUES ('early')")  # before the relay can look
            wait_until(right, what=relay.output)
            self.app.do("INSERT INTO @.event (type) VALUES ('first')")
            self.app.do("ALTER SEQUENCE @.event_seq_seq RESTART WITH 3")
            wait_until(right, what=relay.output)
            self.app.do("INSERT INTO @.event (type) VALUES ('second')")
            wait_until(lambda: [event["type"] for event in self.ndjson(out)] == ["first", "second"], what=relay.output)
        self.assertEqual(self.reader.do("SELECT count(*), max(seq) FROM @.event"), [(22, 22)])

    def test_sequence_restarted_in_an_open_window_loses_nothing(self):
        self.register("c")
        self.register("d")
        self.emit(10)
        got = {"c": [], "d": self.taken("d")}
        rows = self.reader.do("SELECT epoch, id FROM @.claim('c', 'w', 3)")
        got["c"] += [row[1] for row in rows]
        self.reader.settle("c", rows[0][0])
        old = self.ids(range(1, 11))
        self.app.force("DELETE FROM @.event WHERE seq <= 3; SELECT setval('@.event_seq_seq', 1, false)")
        new = self.ids(self.emit(3, "b/1"))
        for name in ("d", "c"): got[name] += self.taken(name)
        for name in ("c", "d"): self.assertEqual(sorted(set(got[name])), sorted({*old, *new}), name)

    def claim_while_others_emit(self, before, meanwhile):
        """claim_while_others_emit claims everything, in a window opened after `meanwhile` more events than the claim knew of
        when it began. Returns the epoch."""
        self.emit(before)
        holder, worker = self.session(), self.session()
        pid = worker.do("SELECT pg_backend_pid()")[0][0]
        holder.do("BEGIN; SELECT 1 FROM @.consumer WHERE name = 'c' FOR NO KEY UPDATE")
        claims = []
        thread = threading.Thread(target=lambda: claims.append(worker.claim("c")))
        thread.start()
        wait_until(lambda: self.app.do("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", pid)[0][0])
        self.emit(meanwhile)
        holder.do("COMMIT")
        thread.join()
        (epoch, events), = claims
        self.assertEqual(len(events), before + meanwhile)
        return epoch

    def test_restarted_numbers_in_an_open_window_keep_key_order(self):
        for settled in (True, False):
            with self.subTest(settled=settled):
                self.register("c")
                epoch = self.claim_while_others_emit(3, 17)
                if settled: self.reader.settle("c", epoch)
                self.app.force("TRUNCATE @.event RESTART IDENTITY")
                ids = self.ids(self.emit(5))
                self.assertEqual(self.taken(), ids)
                self.assertEqual(self.taken(), [])
                self.reader.do("SELECT @.remove('c')")
                self.app.force("TRUNCATE @.event RESTART IDENTITY")

    def turn(self, epoch, outcomes="[]"):
        """turn settles and claims, as a relay does. Returns whether the claim was lost, and how many events were
        claimed."""
        asked = request(epoch=epoch, tried=4, outcomes=json.loads(outcomes), ordering="key", lanes=1, events="", predicate="")
        return self.reader.do("SELECT lost, n FROM @._turn(json_populate_record(@._no_request('c', 'w'), %s), "
                              "(SELECT value::int FROM @.meta WHERE name = 'schema_version'))", asked)[0]

    def test_turn_after_restarted_numbers_settles_deliveries(self):
        self.register("c")
        self.emit(4)
        epoch, _ = self.reader.claim("c")
        self.app.do("SELECT setval('@.event_seq_seq', 1); ALTER SEQUENCE @.event_seq_seq CACHE 1")  # the sequence has a new file
        self.assertEqual(self.turn(epoch), (False, 0))
        self.assertEqual(self.reader.do("SELECT count(*) FROM @.parked"), [(0,)])
        self.assertEqual(self.taken(), [])
        self.assertEqual(self.reader.do("SELECT delivered FROM @.lane WHERE lane = 0"), [(4,)])

    def test_turn_that_voids_its_own_claim_reports_the_loss(self):
        self.register("c")
        seqs = self.emit(4)
        ids = self.ids(seqs)
        epoch, _ = self.reader.claim("c")
        self.app.do("SELECT setval('@.event_seq_seq', 1); ALTER SEQUENCE @.event_seq_seq CACHE 1")
        self.assertEqual(self.turn(epoch, json.dumps([{"seq": seqs[1], "kind": "dead", "error": "boom"}])), (True, 0))
        self.assertEqual(self.reader.do("SELECT count(*) FROM @.dead"), [(0,)])
        self.assertEqual(self.taken(), ids, "lost events are delivered again")

    def test_repairing_turn_settles_every_outcome(self):
        self.register("c")
        seqs = self.emit(4)
        epoch, _ = self.reader.claim("c")
        self.app.do("ALTER SEQUENCE @.event_seq_seq CACHE 1; INSERT INTO @.event (seq, xid, type) "
                    "OVERRIDING SYSTEM VALUE VALUES (nextval('@.event_seq_seq'), '3', 't')")  # as if it came from another cluster
        self.assertIn("from elsewhere", self.trouble()[1])
        self.assertEqual(self.turn(epoch, json.dumps([{"seq": seqs[1], "kind": "dead", "error": "boom"}])), (False, 0))
        self.assertEqual(self.reader.do("SELECT seq FROM @.dead"), [(seqs[1],)])
        self.assertEqual(self.trouble(), (None, None, None))
        self.assertEqual(len(self.taken()), 1)

    def test_error_names_the_role_that_can_repair(self):
        role = f"{self.dbname}_worker"
        self.app.do(f"CREATE ROLE {role} LOGIN")
        self.addCleanup(servers.execute, self.store, f"DROP OWNED BY {role}; DROP ROLE {role}")
        self.app.do("SELECT @.allow('consumer', %s)", role)
        self.register("c")
        self.emit(5)
        self.taken()
        self.app.force("TRUNCATE @.event RESTART IDENTITY")
        ids = self.ids(self.emit(2))
        worker = self.session()
        worker.do(f"SET ROLE {role}")
        with self.assertRaises(psycopg2.Error) as caught: worker.claim("c")
        self.assertRegex(str(caught.exception), "has to be repaired first: .*consumer \"c\".*may not do that")
        self.assertIn("outbox status", str(caught.exception))
        self.assertEqual(self.app.do("SELECT numbers IS NOT NULL FROM @._trouble()"), [(True,)])
        self.outbox("status")
        self.assertEqual(self.taken(session=worker), ids)

    def test_error_names_the_transaction_that_blocks_a_repair(self):
        self.register("c")
        self.emit(5)
        self.taken()
        self.app.force("TRUNCATE @.event RESTART IDENTITY")
        writer = self.session()
        writer.do("BEGIN")
        writer.emit("b/1")
        pid = writer.do("SELECT pg_backend_pid()")[0][0]
        self.emit(1)
        # The message may name other sessions as well, such as autovacuum: the test shares its cluster.
        with self.assertRaisesRegex(psycopg2.Error, rf"is in use by (process \d+, )*process {pid}\b"): self.reader.claim("c")
        writer.do("COMMIT")
        self.assertEqual(len(self.taken()), 2)

    # ---- the sequence itself ----

    def test_cached_sequence_loses_nothing(self):
        self.register("c")
        self.app.do("ALTER SEQUENCE @.event_seq_seq CACHE 20")
        other, third = self.session(), self.session()
        got, wanted = [], []
        for i in range(40):  # each writer has low numbers left when the others are far ahead
            wanted.append((self.app, other, third)[i % 3].emit("a/1" if i % 2 else None))
            if i % 4 == 3: got += self.reader.drain("c")
            if i == 20: self.app.do("ALTER SEQUENCE @.event_seq_seq CACHE 7")
        got += self.reader.drain("c")
        self.assertEqual(sorted(got), sorted(wanted))
        self.outbox("status")  # its owner repairs it
        self.assertEqual(self.trouble(), (None, None, None))
        late = [session.emit() for session in (third, other, self.app)]
        self.assertEqual(self.reader.drain("c"), late)
        self.assertEqual(late, sorted(late), "numbers cached earlier are discarded")

    def test_sequence_cache_set_under_a_worker_loses_nothing(self):
        self.register("c")
        writers = [self.session() for _ in range(3)]
        got, wanted = [], []
        for i in range(60):
            if i % 10 == 5: self.app.do(f"ALTER SEQUENCE @.event_seq_seq CACHE {1 if i % 20 == 5 else 9}")
            wanted.append(writers[i % 3].emit())
            got += self.reader.drain("c")
        self.assertEqual(sorted(got), sorted(wanted))

    def test_sequence_with_a_step_or_maximum_is_repaired(self):
        self.register("c")
        for how in ("INCREMENT 10", "CYCLE", "MAXVALUE 1000000", "INCREMENT -1", "CACHE 5 INCREMENT 3"):
            with self.subTest(how):
                self.emit(2)
                self.app.do(f"ALTER SEQUENCE @.event_seq_seq {how}" + (" MAXVALUE 1000000" if "-1" in how else ""))
                self.outbox("status")
                self.assertEqual(self.trouble(), (None, None, None))
                self.emit(2)
                self.assertEqual(len(self.taken()), 4)

    # ---- epochs ----

    def test_lagging_epochs_still_fence_claims(self):
        self.register("c", ordering="key")
        self.emit(30)
        for how in ("SELECT setval('@.epoch', 1, false)", "ALTER SEQUENCE @.epoch RESTART", "ALTER SEQUENCE @.epoch CACHE 50",
                    "ALTER SEQUENCE @.epoch CACHE 1; SELECT setval('@.epoch', 9000000000000000000)"):
            with self.subTest(how):
                self.session().take("c", max_events=1)
                self.session().take("c", max_events=1)
                self.app.do(how)
                epoch, events = self.session().claim("c", "w1", 1, 300)
                self.assertEqual(len(events), 1)
                self.assertEqual(self.session().claim("c", "w2", 1), (None, []), "two workers hold one key")
                again = wait_until(lambda: self.session().claim("c", "w2", 1, 60000))  # the first one vanished
                wait_until(lambda: again[1] or self.claimed_again(again))
                self.assertGreater(self.reader.do("SELECT max(epoch) FROM @.claim")[0][0], epoch)
                epoch = self.reader.do("SELECT max(epoch) FROM @.claim")[0][0]
                self.assertTrue(self.reader.settle("c", epoch, "w2"))

    def claimed_again(self, last):
        last = self.session().claim("c", "w2", 1, 60000)
        return last[1]

    def test_lagging_epochs_do_not_block_unprivileged_roles(self):
        role = f"{self.dbname}_worker"
        self.app.do(f"CREATE ROLE {role} LOGIN")
        self.addCleanup(servers.execute, self.store, f"DROP OWNED BY {role}; DROP ROLE {role}")
        self.app.do("SELECT @.allow('consumer', %s)", role)
        self.app.do(f"REVOKE UPDATE ON SEQUENCE @.epoch FROM {role}")
        self.register("c")
        self.emit(4)
        self.app.do("SELECT setval('@.epoch', 50000)")
        self.reader.take("c", max_events=1)
        self.app.do("SELECT setval('@.epoch', 1)")
        worker = self.session()
        worker.do(f"SET ROLE {role}")
        self.assertEqual(len(worker.drain("c")), 3)

    # ---- rare cases ----

    def test_rarely_matching_filter_progresses_under_any_time_limit(self):
        self.register("c", "rare.*")
        self.app.do("INSERT INTO @.event (type) SELECT 't.e' FROM generate_series(1, 300000)")
        wanted = self.app.emit(type="rare.one")
        worker = self.session()
        worker.do("SET statement_timeout = '250ms'")
        seen = set()
        def look():
            try: got = worker.take("c")
            except psycopg2.errors.QueryCanceled: return []  # acceptable on a busy machine now and then; if every step were too long, it would make no progress
            seen.add(self.reader.do("SELECT pos FROM @.lane WHERE lane = 0 ORDER BY version DESC LIMIT 1")[0][0])
            return got
        self.assertEqual(wait_until(look), [wanted])
        self.assertGreater(len(seen), 1, "done in one step: the test proves nothing")


class Servers(Exact):
    """Between two clusters."""

    SETTINGS = {}

    def setUp(self):
        super().setUp()
        self.new = servers.Postgres(self.SETTINGS, cluster="second")
        self.new.start()
        self.addCleanup(self.new.close)
        self.there_url = self.new.create_database("there")

    def burn(self, session, n):
        session.do(f"DO $$ BEGIN FOR i IN 1..{n} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")

    def dump(self, *options):
        dump, pg_dump, psql = self.path("dump.sql"), servers.postgres_tool("pg_dump"), servers.postgres_tool("psql")
        with open(dump, "wb") as out:
            subprocess.run([pg_dump, "--schema=outbox", "--no-owner", *options, self.store], check=True, stdout=out)
        done = subprocess.run([psql, "-q", "-X", "-v", "ON_ERROR_STOP=1", "-f", str(dump), self.there_url], capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        there = Session(self.there_url)
        self.addCleanup(there.close)
        return there


@thorough("each case starts a cluster of its own")
class Restored(Servers):
    def test_events_before_any_relay_reach_caught_up_consumers(self):
        self.burn(self.reader, 3000)
        for name, start in (("c", "beginning"), ("e", "end")): self.register(name, start_at=start)
        for i in range(10): self.reader.emit(f"a/{i}")
        for name in ("c", "e"): self.reader.drain(name)
        self.register("fresh", start_at="end")
        there = self.dump()
        new = [there.emit("a/1") for _ in range(5)]
        self.burn(there, 20)
        new += [there.emit("a/1") for _ in range(5)]
        for name in ("c", "e", "fresh"):
            with self.subTest(name): self.assertEqual(there.drain(name), new)

    def test_plain_sql_consumers_recover_from_a_restore_unaided(self):
        for burnt in ("old", "new"):
            with self.subTest(burnt):
                self.reader.force("TRUNCATE @.event, @.lane, @.claim, @.consumer")
                if burnt == "old": self.burn(self.reader, 3000)
                self.register("c")
                first = [self.reader.emit("a/1") for _ in range(10)]
                self.assertEqual(self.reader.take("c", max_events=3), first[:3])
                self.reader.claim("c", "gone", 2, 60000)
                name = self.new.create_database(f"d_{burnt}")
                self.there_url = name
                if burnt == "new": self.burn(Session(name), 6000)
                there = self.dump()
                new = [there.emit("a/1") for _ in range(3)]
                got = there.drain("c")
                self.assertEqual(sorted(got), first[3:] + new)
                self.assertEqual(got, sorted(got))
                self.assertEqual(there.do("SELECT moved, numbers, sequence FROM @._trouble()"), [(None, None, None)])
                self.assertEqual(there.drain("c"), [])

    def test_delivered_events_are_not_repeated_after_a_restore(self):
        self.burn(self.reader, 2000)
        self.register("c")
        late = self.session()
        late.do("BEGIN")
        low = late.emit("b/1")
        for i in range(20): self.reader.emit(f"a/{i}")
        self.reader.drain("c")
        late.do("COMMIT")
        there = self.dump()
        self.assertEqual(there.drain("c"), [low])

    def test_start_number_still_applies_after_a_restore(self):
        self.burn(self.reader, 2000)
        late = self.session()
        late.do("BEGIN")
        low = late.emit("b/1")
        others = [self.reader.emit(f"a/{i}") for i in range(4)]
        high = late.emit("b/1")
        self.register("c", start_at=str(others[2]))
        self.assertEqual(self.reader.drain("c"), others[2:])
        late.do("COMMIT")
        there = self.dump()
        new = there.emit("b/1")
        self.assertEqual(there.drain("c"), [high, new])
        self.assertEqual(there.do("SELECT state FROM @.delivery WHERE seq = %s", low), [("before-start",)])

    def test_consumer_continues_in_another_database_after_a_restore(self):
        self.register("c")
        first = [self.reader.emit("a/1") for _ in range(10)]
        self.reader.take("c", max_events=4)
        name = f"{self.dbname}_copy"
        self.there_url = servers.create_database(servers_base(self.store), name) or self.store.replace(self.dbname, name)
        self.addCleanup(servers.drop_database, servers_base(self.store), name)
        there = self.dump()
        new = there.emit("a/1")
        self.assertEqual(there.drain("c"), first[4:] + [new])
        self.assertEqual(there.do("SELECT count(*) FROM @.meta WHERE name LIKE 'rebaselined%'"), [(0,)])
        there.close()


def servers_base(url):
    """servers_base is the address of the run's server."""
    return os.environ.get("OUTBOX_TEST_PG") or url


@thorough("each case starts a cluster of its own")
class Replicated(Servers):
    """A cut-over by logical replication, from a server that decodes its log to another."""

    def setUp(self):
        super().setUp()
        self.old = servers.Postgres({"wal_level": "logical"})
        self.old.start()
        self.addCleanup(self.old.close)
        self.store = self.old.create_database("here")
        self.outbox("init")
        self.here = Session(self.store)
        self.addCleanup(self.here.close)

    def subscribe(self, meta):
        """subscribe creates a replica; its schema comes from `outbox init`, or with meta from a dump."""
        if meta:
            self.there = self.dump("--schema-only")
        else:
            here, self.store = self.store, self.there_url
            self.outbox("init")
            self.store = here
            self.there = Session(self.there_url)
            self.addCleanup(self.there.close)
        tables = [r[0] for r in self.here.do("SELECT tablename FROM pg_tables WHERE schemaname = 'outbox' ORDER BY 1")]
        if not meta: tables.remove("meta")
        self.here.do("CREATE PUBLICATION p FOR TABLE " + ", ".join(f"@.{t}" for t in tables))
        self.there.do(f"CREATE SUBSCRIPTION s CONNECTION '{self.conninfo()}' PUBLICATION p")
        self.addCleanup(self.unsubscribe)
        wait_until(lambda: self.there.do("SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel")[0][0])

    def conninfo(self):
        return self.old.conninfo("here").replace("'", "''")

    def unsubscribe(self):
        self.there.do("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE)")
        self.there.do("DROP SUBSCRIPTION s")

    def cut_over(self):
        """cut_over waits until the replica is complete, then ends the replication."""
        at = self.here.do("SELECT pg_current_wal_lsn()")[0][0]
        wait_until(lambda: self.here.do("SELECT coalesce(min(confirmed_flush_lsn) >= %s::pg_lsn, false) FROM pg_replication_slots",
                                        at)[0][0])
        wait_until(lambda: self.there.do("SELECT max(seq), count(*) FROM @.event") == self.here.do("SELECT max(seq), count(*) FROM @.event"))
        self.there.do("ALTER SUBSCRIPTION s DISABLE")

    def cut(self, meta, burn):
        burn(self)
        out = self.path("out.ndjson")
        n = [0]
        def emit(session, count):
            for _ in range(count):
                session.do("SELECT @.emit('t', 'k', %s, %s)", str(n[0] % 3), f'{{"n":{n[0]}}}')
                n[0] += 1
        emit(self.here, 30)
        with self.relay("--consumer", "c", "--sink", f"file:{out}"):
            wait_until(lambda: len(self.ndjson(out)) == 30)
            self.subscribe(meta)
            emit(self.here, 20)
            wait_until(lambda: len(self.ndjson(out)) == 50)
        self.here.do("SELECT count(*) FROM @.claim('c', 'w')")
        emit(self.here, 5)
        self.here.claim("c", "gone", 2, 60000)
        with self.assertRaisesRegex(psycopg2.Error, 'a copy that subscription "s" still writes to'): self.there.claim("c")
        self.here.do("SELECT @.trim('0s')")
        self.cut_over()
        emit(self.there, 5)  # before any relay runs
        self.store = self.there_url
        relays = [self.relay("--consumer", "c", "--sink", f"file:{self.path(f'there{i}')}", "--lease", "2s", wait=False) for i in range(2)]
        read = lambda: [e["payload"]["n"] for i in range(2) for e in self.ndjson(self.path(f"there{i}"))]
        emit(self.there, 10)
        wait_until(lambda: set(read()) >= set(range(50, n[0])), what=lambda: f"{sorted(set(range(50, n[0])) - set(read()))} of {n[0]}")
        relays[0].kill()
        emit(self.there, 10)
        wait_until(lambda: set(read()) >= set(range(50, n[0])), what=lambda: f"{sorted(set(range(50, n[0])) - set(read()))} of {n[0]}")
        relays[1].stop()
        self.assertEqual(self.there.do("SELECT moved, numbers, sequence FROM @._trouble()"), [(None, None, None)])
        self.assertLess(len(read()), n[0], "every event was repeated")

    def test_cutover_to_a_cluster_with_lower_numbers_loses_nothing(self):
        self.cut(True, lambda self: self.burn(self.here, 4000))

    def test_switch_to_a_cluster_with_higher_numbers_is_safe(self):
        there = Session(self.there_url)
        self.addCleanup(there.close)
        self.cut(False, lambda self: self.burn(there, 6000))
