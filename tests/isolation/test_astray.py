"""Damage that an operator or a tool can do to the tables and sequences of an outbox, beyond test_moved.py: nothing is lost, or
the error states the problem and the remedy."""
# build: plain
import subprocess

import psycopg2

import servers
from sessions_postgres import Exact, request
from support import wait_until


class Astray(Exact):
    def setUp(self):
        super().setUp()
        self.app = self.session()

    def emit(self, n, key="a/1"):
        """emit returns the ids of n new events."""
        return [self.app.do("SELECT id FROM @.event WHERE seq = %s", self.app.emit(key))[0][0] for _ in range(n)]

    def taken(self, consumer="c"):
        """taken drains and returns the ids of the events."""
        got = []
        while rows := self.reader.do("SELECT epoch, id FROM @.claim(%s, 'w', 100)", consumer):
            got += [row[1] for row in rows]
            self.assertTrue(self.reader.settle(consumer, rows[0][0]))
        return got

    def in_order(self):
        self.assertEqual(self.reader.do("SELECT moved, numbers, sequence FROM @._trouble()"), [(None, None, None)])

    def doctor(self):
        return self.outbox("doctor", status=None).stdout

    # ---- the sequence of event numbers ----

    def test_sequence_set_back_among_unseen_events_loses_nothing(self):
        self.register("c")
        self.emit(10)
        self.taken()
        new = self.emit(10)
        self.app.do("SELECT setval('@.event_seq_seq', 15)")
        self.assertEqual(self.taken(), new)
        self.in_order()
        self.assertEqual(self.emit(2), self.taken())

    def test_events_with_reused_lower_numbers_are_delivered(self):
        """Events 6 to 10 are new, 11 to 20 older, and later events are past all known numbers."""
        self.register("c")
        self.emit(10)
        self.taken()
        self.app.force("DELETE FROM @.event")
        old = self.emit(10, "b/1")
        self.app.do("SELECT setval('@.event_seq_seq', 5)")
        new = self.emit(5)
        for _ in range(10):
            with self.assertRaisesRegex(psycopg2.Error, "event_pkey"): self.emit(1)
        new += self.emit(3)
        got = self.taken()
        self.assertEqual([i for i in got if i in new], new)
        self.assertEqual(sorted(got), sorted(old + new))
        self.in_order()

    def test_events_numbered_far_below_known_ones_are_delivered(self):
        self.register("c")
        self.app.do("SELECT setval('@.event_seq_seq', 500)")
        self.emit(1)
        self.taken()
        self.app.force("DELETE FROM @.event; SELECT setval('@.event_seq_seq', 1)")
        new = self.emit(3)
        self.app.do("SELECT setval('@.event_seq_seq', 600)")
        new += self.emit(1)
        self.assertEqual(self.taken(), new)

    def test_consumer_starting_far_ahead_does_not_move_others(self):
        """It claims in a transaction that has a number, so no earlier check of the event numbers was possible: the consumer has
        a position, and no event number has reached it."""
        self.register("c")
        late = self.session()
        late.do("BEGIN")
        late.emit("a/9")
        self.reader.do("SELECT @.register('ahead', start_at => '999999999999999999')")
        self.reader.do("SELECT @.register('ahead', lanes => 2)")  # running transactions are named in its lanes
        late.do("COMMIT")
        claim = self.session()
        claim.do("BEGIN")
        claim.do("SELECT pg_current_xact_id()")
        for lane in (0, 1):
            claim.do("SELECT @._turn(json_populate_record(@._no_request('ahead', 'w'), %s), "
                     "(SELECT value::int FROM @.meta WHERE name = 'schema_version'))", request(lane_hint=lane))
        claim.do("COMMIT")
        self.assertLess(self.reader.do("SELECT max(next_floor) FROM @.lane")[0][0], 100)
        self.app.do("UPDATE @.lane SET next_floor = floor WHERE next_floor IS NOT NULL")  # as left so far
        self.emit(3)
        self.taken()
        self.app.force("SELECT setval('@.event_seq_seq', 1); DELETE FROM @.event")
        new = self.emit(3)
        self.assertEqual(self.taken(), new)
        self.assertLess(self.reader.do("SELECT pg_sequence_last_value('@.event_seq_seq')")[0][0], 100)
        self.in_order()

    def test_consumer_far_ahead_does_not_imply_restarted_numbers(self):
        """It has a position but has not seen the highest event number. Too many transactions run for its lanes to name them,
        and one of them has emitted: that event precedes the position, so it is not new, and it stops no relay of other
        consumers."""
        self.register("c")
        self.register("ahead", start_at="999999999999999999")
        late = self.session()
        late.do("BEGIN")
        late.emit("a/9")
        many = self.session()
        many.do("BEGIN; CREATE TEMP TABLE t (x int)")
        many.do("DO $$BEGIN FOR i IN 1 .. 1100 LOOP BEGIN INSERT INTO t VALUES (i); EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END$$")
        self.register("ahead", lanes=2)
        late.do("COMMIT")
        many.do("COMMIT")
        self.in_order()
        self.assertEqual(self.reader.do("SELECT @.rebaseline()"), [(False,)])
        self.assertEqual(self.take("c"), [1])

    def test_sequence_of_the_wrong_type_is_repaired(self):
        self.register("c")
        self.emit(2)
        self.app.do("ALTER SEQUENCE @.event_seq_seq AS smallint")
        self.outbox("status")
        self.in_order()
        self.assertEqual(len(self.taken()), 2)

    def test_exhausted_epochs_are_reported_and_repaired(self):
        self.register("c")
        self.emit(1)
        self.taken()
        for how in ("AS smallint MAXVALUE 2", "INCREMENT -1", "MAXVALUE 500 CYCLE"):
            with self.subTest(how):
                self.app.do(f"ALTER SEQUENCE @.epoch {how}")
                ids = self.emit(3)
                if "MAXVALUE 2" in how:
                    self.app.do("SELECT setval('@.epoch', 2)")
                    with self.assertRaisesRegex(psycopg2.Error, 'reached maximum value of sequence "epoch"'): self.taken()
                self.assertIn("epochs come from a sequence with", self.doctor())
                self.outbox("status")
                self.in_order()
                self.assertEqual(self.taken(), ids)

    def test_lagging_epochs_still_fence_claims_after_reading_ahead(self):
        """The turn of a relay that has read ahead: its claim becomes the next one."""
        self.register("c")
        self.emit(3)
        self.app.do("SELECT setval('@.epoch', 1000)")
        turn = ("SELECT epoch, target, to_seq FROM @._turn(json_populate_record(@._no_request('c', 'w'), %s), "
                "(SELECT value::int FROM @.meta WHERE name = 'schema_version'))")
        asked = dict(max_events=1, ordering="key", lanes=1, events="", predicate="")
        epoch, target, at = self.app.do(turn, request(**asked))[0]
        self.app.do("SELECT setval('@.epoch', 1)")
        again, _, to = self.app.do(turn, request(**asked, epoch=epoch, tried=1, ahead_lane=0, ahead_target=target, ahead_from=at,
                                                 ahead_to=at + 1, ahead_n=1, ahead_members=1))[0]
        self.assertEqual(to, at + 1, "a full turn: the test proves nothing")
        self.assertGreater(again, epoch)

    # ---- foreign writers ----

    def test_outbox_written_by_a_subscription_is_refused(self):
        self.register("c")
        self.emit(1)
        self.taken()
        self.app.do(f"CREATE SUBSCRIPTION {self.dbname} CONNECTION 'host=/nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE)")
        try:
            self.app.do("SET allow_system_table_mods = on")
            self.app.do("INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) SELECT oid, 'outbox.event'::regclass, 'r' FROM "
                        "pg_subscription WHERE subname = current_database()")
            self.emit(1)
            self.app.do("UPDATE pg_subscription SET subenabled = true WHERE subname = current_database()")
            with self.assertRaisesRegex(psycopg2.Error, "a copy that subscription .* still writes to"): self.taken()
        finally:
            self.app.do("UPDATE pg_subscription SET subenabled = false WHERE subname = current_database()")
            self.app.do(f"DROP SUBSCRIPTION {self.dbname}")
        self.assertEqual(len(self.taken()), 1)

    # ---- the schema ----

    def test_init_repairs_a_renamed_schema(self):
        self.register("c")
        ids = self.emit(2)
        self.app.do("ALTER SCHEMA outbox RENAME TO former")
        self.store += "&schema=former"
        self.assertIn("is ready", self.outbox("init").stdout)
        self.app.schema = self.reader.schema = '"former"'
        ids += self.emit(2)
        self.assertEqual(self.taken(), ids)

    def test_relay_continues_after_an_in_place_restore(self):
        out, dump = self.path("out"), self.path("dump")
        pg_dump, psql = servers.postgres_tool("pg_dump"), [servers.postgres_tool("psql"), "-qX", "-v", "ON_ERROR_STOP=1"]
        self.emit(1)
        with self.relay("--consumer", "c", "--sink", f"file:{out}") as relay:
            wait_until(lambda: len(self.ndjson(out)) == 1)
            text = subprocess.run([pg_dump, "--schema=outbox", self.store], check=True, capture_output=True).stdout
            dump.write_bytes(text)
            self.app.do("DROP SCHEMA outbox CASCADE")
            self.app.do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND "
                        "pid <> pg_backend_pid() AND application_name = 'outbox'")
            wait_until(lambda: "is gone, or being restored" in relay.output(), what=relay.output)
            self.assertTrue(relay.running())
            restore = subprocess.Popen([*psql, self.store], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            lines = dump.read_bytes().splitlines(keepends=True)
            for at in range(0, len(lines), len(lines) // 20):  # slowly: the relay polls half-way
                restore.stdin.write(b"".join(lines[at:at + len(lines) // 20]))
                restore.stdin.flush()
                self.app.do("SELECT pg_notify('any', ''), pg_sleep(0.02)")
            restore.stdin.close()
            self.assertEqual(restore.wait(), 0)
            new = self.emit(1)
            wait_until(lambda: new[0] in [e["id"] for e in self.ndjson(out)], what=relay.output)
            # Then again, on a connection with prepared statements.
            self.app.do("DROP SCHEMA outbox CASCADE")
            subprocess.run([*psql, "-f", dump, self.store], check=True, capture_output=True)
            new = self.emit(1)
            wait_until(lambda: new[0] in [e["id"] for e in self.ndjson(out)], what=relay.output)

    # ---- events from elsewhere ----

    def bring(self, xid, n=5):
        """bring writes events as a restore of the table alone does: with their original numbers."""
        rows = self.app.do("INSERT INTO @.event (xid, seq, type) OVERRIDING SYSTEM VALUE SELECT %s::xid8, 100 + i, 't' "
                           "FROM generate_series(1, %s) i RETURNING id", xid, n)
        self.app.do("SELECT setval('@.event_seq_seq', %s)", 100 + n)
        return [row[0] for row in rows]

    def test_imported_events_are_delivered_without_repeats(self):
        for xid in ("5", "5000000000"):  # an event that all have seen, and a transaction that has not begun
            with self.subTest(xid):
                self.register("c")
                self.register("late")
                self.emit(10)
                self.taken()
                waits = self.emit(2)
                brought = self.bring(xid)
                new = self.emit(2)
                got = self.taken() + self.taken()
                self.assertEqual(sorted(got), sorted(waits + brought + new))
                self.assertEqual(len(self.taken("late")), 19)
                self.in_order()
                self.assertIn("came from elsewhere, and were repaired", self.doctor())
                self.reader.force("TRUNCATE @.event, @.consumer, @.lane RESTART IDENTITY")

    def test_events_loaded_from_files_are_not_repeated(self):
        """As after pg_upgrade: a cluster with another identifier, and rows with the numbers of the transactions that wrote
        them. Some of them are younger than the new cluster, which is created before the old one is stopped."""
        self.register("c")
        for _ in range(3): self.app.do("INSERT INTO @.event (type, created_at) VALUES ('t', now() - interval '30 days')")
        self.emit(5)
        self.taken()
        waits = self.emit(2)
        self.app.do("UPDATE @.lane SET home = '1/' || split_part(home, '/', 2); UPDATE @.meta SET value = '1' WHERE name = 'system_identifier'")
        new = self.emit(2)
        self.assertEqual(self.taken(), waits + new)
        self.in_order()

    def test_renumbered_events_are_not_delivered_again(self):
        self.register("c")
        self.register("d")
        self.emit(5)
        self.taken("c")
        self.app.force("DELETE FROM @.event; SELECT setval('@.event_seq_seq', 1, false)")
        new = self.emit(2)
        self.assertEqual(self.taken("d"), new)  # it has seen none of the earlier ones
        self.assertEqual(self.taken("c"), new)
        more = self.emit(1)
        for name in ("d", "c"): self.assertEqual(self.taken(name), more)
        self.in_order()

    # ---- rows of ours ----

    def test_consumer_without_rows_is_reported_and_recreated(self):
        for how in ("TRUNCATE @.lane", "DELETE FROM @.lane WHERE lane = 0"):
            with self.subTest(how):
                self.register("c")
                ids = self.emit(3)
                self.app.do(how)
                with self.assertRaisesRegex(psycopg2.Error, 'consumer "c" has lost its position.*\n.*consumers remove c'): self.taken()
                with self.assertRaisesRegex(psycopg2.Error, "lost its position"): self.register("c", lanes=3)
                self.assertRegex(self.doctor(), 'problem position +consumer "c" has lost its position')
                self.outbox("consumers", "remove", "c", "--yes")
                self.register("c")
                self.assertEqual(self.taken()[-3:], ids)
                self.assertNotIn("lost its position", self.doctor())

    def test_consumer_with_a_deleted_row_starts_where_configured(self):
        self.register("c")
        ids = self.emit(3)
        self.taken()
        ids += self.emit(1)
        self.reader.claim("c")
        self.app.do("DELETE FROM @.consumer")
        self.register("c")
        self.assertEqual(self.taken(), ids)
