"""G5, G6, G9 and G10 on PostgreSQL: claims that expire, are extended, released and taken over, and the events that trimming
keeps."""
# build: plain
import threading

import psycopg2

from sessions_postgres import Exact, request
from support import wait_until

# A relay's claim for consumer c. Unlike `claim` it waits for the consumer's lock.
TURN = ("SELECT epoch FROM @._turn(json_populate_record(@._no_request('c', %s), {}), "
        "(SELECT value::int FROM @.meta WHERE name = 'schema_version'))")
RELAYS_CLAIM = TURN.format(f"'{request(max_events=100)}'")


class Claims(Exact):
    def setUp(self):
        super().setUp()
        self.writer = self.session()

    def seqs(self, events):
        return [event[0] for event in events]

    def expire(self, consumer):
        """expire ends every lease of a consumer."""
        self.reader.do("UPDATE @.claim SET locked_until = '-infinity' WHERE consumer = %s", consumer)

    def lease(self, known, max_events):
        """lease claims events for relay w, which holds the claims `known`, and returns the epoch."""
        return self.reader.do(TURN.format("%s"), "w", request(known=known, max_events=max_events))[0][0]

    def carefully(self, consumer, worker):
        """carefully drains a taken-over claim, one event per claim."""
        seen = []
        while True:
            epoch, events = self.reader.claim(consumer, worker, 100)
            if epoch is None: return seen
            seen.append(self.seqs(events))
            self.assertTrue(self.reader.settle(consumer, epoch, worker))

    # ---- taking over ----

    def test_taken_over_claim_contains_the_same_events(self):
        self.register("c", "t.*")
        late = self.session()
        late.do("BEGIN")
        self.writer.emit("a/1", "u.x")
        mine = [self.writer.emit(f"a/{i}", "t.x") for i in range(5)]
        low = late.emit("a/9", "t.x")
        self.writer.emit("a/2", "u.x")
        mine.append(self.writer.emit("a/6", "t.x"))
        epoch, events = self.reader.claim("c", "dead", 100)
        self.assertEqual(self.seqs(events), mine)
        late.do("COMMIT")  # its seq is within the range of the claim, but the event is not in the claim
        new = self.writer.emit("a/1", "t.y")
        self.expire("c")
        seen = self.carefully("c", "alive")
        self.assertEqual(sorted(s[0] for s in seen if len(s) == 1)[:6], sorted(mine)[:6])
        self.assertEqual(sorted(sum(seen, [])), sorted([*mine, low, new]))
        self.assertFalse(self.reader.settle("c", epoch, "dead"))
        self.assertEqual(self.reader.do("SELECT count(*) FROM @.claim"), [(0,)])

    def test_taken_over_claim_of_a_late_window_keeps_its_events(self):
        for lanes in (1, 4):
            with self.subTest(lanes=lanes):
                name = f"c{lanes}"
                self.register(name, lanes=lanes, start_at="end")
                late = self.session()
                late.do("BEGIN")
                mine = [late.emit("a/1") for _ in range(5)]
                self.drain_all(name)
                others = [self.writer.emit(f"a/{i}") for i in range(20)]
                self.assertEqual(sorted(self.drain_all(name)), others)
                mine += [late.emit("a/1") for _ in range(5)]
                late.do("COMMIT")
                _, events = self.reader.claim(name, "dead", 7)
                self.assertEqual(self.seqs(events), mine[:len(events)])
                self.expire(name)
                self.assertEqual(sorted(sum(self.carefully(name, "alive"), [])), mine)

    def test_claim_older_than_settled_ones_is_taken_over(self):
        self.register("c", ordering="none")
        mine = [self.writer.emit() for _ in range(4)]
        self.reader.claim("c", "dead", 2)
        epoch, _ = self.reader.claim("c", "w", 2)
        self.reader.settle("c", epoch, "w", [{"seq": mine[2], "kind": "retry", "delay_ms": 1}])
        wait_until(lambda: self.take("c") == [mine[2]])
        self.expire("c")
        self.assertEqual(sorted(sum(self.carefully("c", "alive"), [])), mine[:2])

    def test_only_the_poison_event_becomes_a_dead_letter(self):
        self.register("c")
        mine = [self.writer.emit(f"a/{i}") for i in range(4)]
        self.writer.emit("a/1")  # behind the poison
        delivered = []
        for turn in range(30):
            epoch, events = self.reader.claim("c", f"w{turn}", 100, 30000, 3)
            if epoch is None: break
            if mine[1] in self.seqs(events):
                self.expire("c")  # it killed its worker
                continue
            delivered += self.seqs(events)
            self.reader.settle("c", epoch, f"w{turn}")
        self.assertEqual(sorted(delivered), [mine[0], mine[2], mine[3], mine[3] + 1])
        self.assertEqual(self.reader.do("SELECT seq, attempts FROM @.dead"), [(mine[1], 3)])

    def test_outcome_of_a_released_event_is_refused(self):
        self.register("c")
        mine = [self.writer.emit("a/1") for _ in range(4)]
        epoch, _ = self.reader.claim("c")
        wrong = [{"seq": mine[2], "kind": "retry", "delay_ms": 60000}]
        for odd in ["seqs"], [{"seqs": f"{{{mine[2]}}}", "kind": "retry", "attempts": 1, "delays": "{1}"}], [1]:
            with self.assertRaisesRegex(psycopg2.Error, "an outcome is an object with a seq and a kind"):
                self.reader.settle("c", epoch, outcomes=[*odd, {"seq": mine[0], "kind": "retry"}], release_from=mine[2])
        with self.assertRaisesRegex(psycopg2.Error, f"event {mine[2]} has an outcome, but release_from releases it"):
            self.reader.settle("c", epoch, outcomes=wrong, release_from=mine[1])
        self.assertTrue(self.reader.settle("c", epoch, outcomes=wrong, release_from=mine[3]))

    def test_events_released_from_a_claim_wait_until_it_ends(self):
        """The rest of a claim is in flight, so released events must not overtake it, however the claim ends."""
        for ends in ("settled", "taken over"):
            with self.subTest(ends=ends):
                self.register("c", start_at="end")
                first, *cut = [self.writer.emit(key) for key in ("a/1", "a/1", "a/2", "a/1")]
                later = self.writer.emit("b/1")
                epoch = self.lease([], 4)
                last = self.lease([epoch], 1)  # so that the lane cannot move back
                self.assertEqual(self.reader.do("SELECT @._shrink('c', 'w', %s, %s)", epoch, first), [(True,)])
                self.assertEqual(self.reader.claim("c", "other"), (None, []))
                self.assertEqual(self.reader.do("SELECT @.extend('c', 'w', %s, 60000)", epoch), [(True,)])
                self.assertEqual(self.reader.claim("c", "other"), (None, []))
                if ends == "settled":
                    self.assertTrue(self.reader.settle("c", epoch, "w"))
                    self.assertEqual(self.take("c"), cut)
                    self.assertTrue(self.reader.settle("c", last, "w"))
                else:
                    self.expire("c")
                    seen = sum(self.carefully("c", "other"), [])
                    self.assertEqual(sorted(seen), [first, *cut, later])
                    self.assertEqual([seq for seq in seen if seq in (first, cut[0], cut[2])], [first, cut[0], cut[2]])
                self.assertEqual(self.reader.do("SELECT (SELECT count(*) FROM @.claim), (SELECT count(*) FROM @.parked)"), [(0, 0)])
                self.reader.do("SELECT @.remove('c')")

    def test_released_claim_waits_until_the_one_before_it_ends(self):
        self.register("c")
        first, second, third = [self.writer.emit("a/1") for _ in range(3)]
        self.writer.emit("b/1")
        before = self.lease([], 1)
        released = self.lease([before], 2)
        after = self.lease([before, released], 1)
        self.assertTrue(self.reader.settle("c", released, "w", release_from=second))
        self.assertEqual(self.reader.claim("c", "other"), (None, []))
        self.assertTrue(self.reader.settle("c", before, "w"))
        self.assertEqual(self.take("c"), [second, third])
        self.assertTrue(self.reader.settle("c", after, "w"))
        self.assertEqual(self.reader.do("SELECT (SELECT count(*) FROM @.claim), (SELECT count(*) FROM @.parked)"), [(0, 0)])

    def test_claim_with_a_parked_event_can_be_taken_over(self):
        self.register("c")
        mine = [self.writer.emit(f"a/{i}") for i in range(3)]
        self.reader.claim("c", "dead")
        self.reader.do("INSERT INTO @.parked (consumer, seq, key, attempts, due_at) VALUES ('c', %s, 0, 0, now())", mine[1])
        self.expire("c")
        self.assertEqual(sorted(sum(self.carefully("c", "alive"), [])), mine)

    # ---- keeping ----

    def test_freshly_extended_claim_is_not_taken_over(self):
        self.register("c")
        self.writer.emit("a/1")
        owner, other = self.session(), self.session()
        epoch, _ = owner.claim("c", "w", 100, 300)
        owner.do("BEGIN")
        self.assertEqual(owner.do("SELECT @.extend('c', 'w', %s, 60000)", epoch), [(True,)])
        wait_until(lambda: self.reader.do("SELECT now() > locked_until FROM @.claim")[0][0])
        taken = []
        thread = threading.Thread(target=lambda: taken.extend(other.do(RELAYS_CLAIM, "thief")))
        thread.start()
        wait_until(lambda: self.reader.do("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                                          other.db.info.backend_pid))
        owner.do("COMMIT")
        thread.join()
        self.assertEqual(taken, [(None,)])
        self.assertTrue(owner.settle("c", epoch, "w"))

    def test_waiting_turn_does_not_shorten_other_leases(self):
        self.register("c")
        self.writer.emit("a/1")
        holder, slow = self.session(), self.session()
        holder.do("BEGIN")
        holder.do("SELECT @._lock_consumer('c')")
        thread = threading.Thread(target=slow.do, args=(RELAYS_CLAIM, "slow"))
        thread.start()  # its time is that of its start
        wait_until(lambda: self.reader.do("SELECT now() - query_start > interval '1500 ms' FROM pg_stat_activity WHERE "
                                          "pid = %s AND wait_event_type = 'Lock'", slow.db.info.backend_pid) == [(True,)])
        (epoch,), = holder.do(RELAYS_CLAIM, "w")
        holder.do("COMMIT")
        before = self.reader.do("SELECT locked_until FROM @.claim")
        thread.join()
        self.assertEqual(self.reader.do("SELECT locked_until FROM @.claim"), before)
        self.assertTrue(self.reader.settle("c", epoch, "w"))

    def test_stale_worker_of_a_recreated_consumer_changes_nothing(self):
        self.register("c")
        mine = [self.writer.emit("a/1") for _ in range(3)]
        epoch, _ = self.reader.claim("c", "w", 2)
        self.outbox("consumers", "remove", "c", "--force", "--yes")
        self.register("c")
        self.assertFalse(self.reader.settle("c", epoch, "w"))
        self.assertEqual(self.reader.do("SELECT @.extend('c', 'w', %s)", epoch), [(False,)])
        self.assertEqual(self.drain_all("c"), mine)

    # ---- the limit ----

    def test_claim_respects_its_limit_under_any_statistics(self):
        for when in ("none", "empty", "full"):
            with self.subTest(analyzed=when):
                self.register(when, lanes=4, ordering="none")
                self.reader.do("ALTER TABLE @.event SET (autovacuum_enabled = off)")
                if when == "empty":
                    self.reader.force("TRUNCATE @.event")
                    self.reader.do("ANALYZE @.event, @.claim, @.parked, @.lane")
                self.writer.do("INSERT INTO @.event (type, aggregate_type, aggregate_id) SELECT 't', 'a', i::text "
                               "FROM generate_series(1, 3000) i")
                if when == "full": self.reader.do("ANALYZE @.event, @.claim, @.parked, @.lane")
                for limit in (1, 2, 7, 100):
                    epoch, events = self.reader.claim(when, "w", limit)
                    self.assertIn(len(events), range(1, limit + 1))
                    failed = [{"seq": e[0], "kind": "retry", "delay_ms": 600000} for e in events]
                    self.reader.settle(when, epoch, "w", failed)
                self.reader.do("UPDATE @.parked SET due_at = now(), wait = '0'")
                for limit in (1, 2, 7):
                    self.assertEqual(len(self.reader.claim(when, "w", limit)[1]), limit)

    def test_claim_of_retried_events_respects_its_limit(self):
        self.register("c")
        for i in range(30): self.writer.emit(f"a/{i % 3}")
        epoch, events = self.reader.claim("c")
        self.reader.settle("c", epoch, outcomes=[{"seq": e[0], "kind": "retry", "delay_ms": 600000} for e in events])
        self.reader.do("UPDATE @.parked SET due_at = now() WHERE due_at IS NOT NULL")
        for limit in (1, 2, 7):
            epoch, events = self.reader.claim("c", "w", limit)
            self.assertEqual(len(events), limit)
            self.reader.settle("c", epoch, "w", release_from=1)

    # ---- parked events and the clock ----

    def test_clock_set_back_does_not_hide_parked_events(self):
        self.register("c")
        seq = self.writer.emit("a/1")
        for ahead in ("1 hour", "-1 hour"):
            with self.subTest(due_from=ahead):
                # No event parked while the clock was ahead is left.
                self.reader.do("UPDATE @.lane SET due_from = now() + %s::interval WHERE lane = -1", ahead)
                epoch, events = self.reader.claim("c")
                self.assertEqual(self.seqs(events), [seq])
                self.reader.settle("c", epoch, outcomes=[{"seq": seq, "kind": "retry", "delay_ms": 1}])
                later = self.writer.emit("a/1")  # waits behind it
                wait_until(lambda: self.reader.do("SELECT count(*) FROM @.parked WHERE due_at <= clock_timestamp()")[0][0] == 1)
                epoch, events = self.reader.claim("c")
                self.assertEqual(self.seqs(events), [seq])
                self.assertTrue(self.reader.settle("c", epoch))
                seq = later

    # ---- trimming ----

    def trim(self):
        return self.reader.do("SELECT events FROM @.trim('0')")[0][0]

    def kept(self):
        return [row[0] for row in self.reader.do("SELECT seq FROM @.event ORDER BY seq")]

    def test_late_event_with_a_low_number_is_trimmed_once_consumed(self):
        self.register("c")
        self.register("d", lanes=4)
        late = self.session()
        late.do("BEGIN")
        low = late.emit("a/1")
        others = [self.writer.emit(f"a/{i}") for i in range(10)]
        for name in ("c", "d"): self.assertEqual(sorted(self.drain_all(name)), others)
        self.take("c"), self.take("d")  # a lookup without results ends the window
        self.assertEqual(self.trim(), 10)
        late.do("COMMIT")
        self.assertEqual((self.trim(), self.kept()), (0, [low]))
        self.assertEqual(self.take("c"), [low])
        self.assertEqual((self.trim(), self.kept()), (0, [low]))
        epoch, events = self.reader.claim("d", "w")
        self.assertEqual((self.seqs(events), self.trim()), ([low], 0))
        self.reader.settle("d", epoch, "w", [{"seq": low, "kind": "retry", "delay_ms": 1}])
        self.assertEqual((self.trim(), self.kept()), (0, [low]))
        wait_until(lambda: self.take("d") == [low])
        self.take("d")
        self.assertEqual(self.trim(), 1)

    def test_trim_keeps_events_of_a_claim_in_flight(self):
        self.register("c", ordering="none")
        mine = [self.writer.emit() for _ in range(3)]
        self.reader.claim("c", "dead")
        for _ in range(3):
            more = self.writer.emit()
            self.assertEqual(self.take("c"), [more])
        self.trim()
        self.assertEqual(self.kept()[:3], mine)
        self.expire("c")
        self.assertEqual(sorted(sum(self.carefully("c", "alive"), [])), mine)
        self.trim()
        self.assertEqual(self.kept(), [])

    def test_retried_dead_letter_of_a_trimmed_event_is_delivered(self):
        self.register("c")
        seq = self.writer.emit("a/1")
        epoch, _ = self.reader.claim("c")
        self.reader.settle("c", epoch, "w", [{"seq": seq, "kind": "dead", "error": "no"}])
        self.take("c")
        self.assertEqual(self.trim(), 1)
        self.assertEqual(self.reader.do("SELECT @.redrive('c')"), [(1,)])
        self.assertEqual(self.take("c"), [seq])
        self.assertEqual(self.reader.do("SELECT count(*) FROM @.dead"), [(0,)])

    def test_retried_dead_letters_of_a_key_arrive_together_in_order(self):
        """The first event of each key has a due time, as among all parked events; the others are claimed with it."""
        self.register("c")
        seqs = [self.writer.emit(key) for key in ("a/1", "a/2", "a/1", "a/3", "a/1", "a/2")]
        one, two, one_again, three, one_last, two_last = seqs
        epoch, _ = self.reader.claim("c")
        self.reader.settle("c", epoch, "w", [{"seq": seq, "kind": "dead", "error": "no"} for seq in seqs])
        self.reader.do("SELECT @._redrive('c', %s)", [one, two_last])
        self.reader.do("SELECT @._redrive('c', %s)", [one_again, two, three, one_last])  # after one of them, before the other
        with_time = "SELECT seq FROM @.parked WHERE due_at IS NOT NULL ORDER BY seq"
        self.assertEqual(self.reader.do(with_time), [(seq,) for seq in (one, two, three, two_last)])
        self.assertEqual(sorted(self.take("c", max_events=3)), [one, one_again, one_last])
        rest = self.drain_all("c")
        self.assertEqual(sorted(rest), [two, three, two_last])
        self.assertLess(rest.index(two), rest.index(two_last))
