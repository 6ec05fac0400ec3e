"""Ways to lose or misorder an event that every store with several concurrent writers must withstand: the order of commits, and
the reader's observations in between. emit returns an event's name; take and drain_all return the same names.

    class Late(LateCommits, Exact):
        def begin_early(self, session): ...  # the transaction takes a number from the server and writes nothing yet
"""


class LateCommits:
    def setUp(self):
        super().setUp()
        self.register("c")

    def writer(self):
        session = self.session()
        session.do("BEGIN")
        return session

    def test_late_commit_without_other_writers_is_handed_out(self):
        # No transaction has ended since this one began: the reader's snapshot does not name it.
        writer = self.writer()
        seq = writer.emit("a/1")
        self.assertEqual(self.take("c"), [])
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), [seq])
        self.assertEqual(self.take("c"), [])

    def test_late_commit_behind_later_ones_is_handed_out(self):
        writer, other = self.writer(), self.session()
        low = writer.emit("a/1")
        high = other.emit("a/2")
        self.assertEqual(self.take("c"), [high])
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), [low])

    def test_number_taken_early_but_written_late_keeps_key_order(self):
        # Ordered by transaction, `late` would be first.
        writer, other = self.writer(), self.session()
        self.begin_early(writer)
        first = other.emit("a/1")
        late = writer.emit("a/1")
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), [first, late])

    def test_event_numbered_before_but_written_after_a_read_arrives(self):
        writer = self.writer()
        self.begin_early(writer)
        first = self.session().emit("a/1")
        self.assertEqual(self.take("c"), [first])
        late = writer.emit("a/1")
        self.assertEqual(self.take("c"), [])
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), [late])

    def test_late_event_with_a_very_low_number_is_handed_out_once(self):
        writer = self.writer()
        low = writer.emit("a/1")
        others = self.session()
        self.write_many(others, 5000)
        self.assertEqual(len(self.drain_all("c", max_events=1000)), 5000)
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), [low])
        self.assertEqual(self.take("c"), [])

    def test_rolled_back_savepoint_drops_only_its_events(self):
        writer = self.writer()
        kept = [writer.emit("a/1")]
        writer.do("SAVEPOINT s")
        writer.emit("a/1")
        writer.do("ROLLBACK TO s")
        kept.append(writer.emit("a/1"))
        writer.do("SAVEPOINT t")
        kept.append(writer.emit("a/1"))
        self.session().emit("b/1")
        self.assertEqual(len(self.take("c")), 1)
        writer.do("RELEASE SAVEPOINT t")
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), kept)

    def test_rolled_back_transaction_leaves_no_event_behind(self):
        writer = self.writer()
        writer.emit("a/1")
        self.assertEqual(self.take("c"), [])
        writer.do("ROLLBACK")
        self.assertEqual(self.take("c"), [])

    def test_forty_transactions_in_any_commit_order_lose_nothing(self):
        writers = [self.session() for _ in range(40)]
        for w in writers: w.do("BEGIN")
        seqs = [w.emit(f"a/{i % 7}") for i, w in enumerate(writers)]
        seen = self.take("c")
        for i in range(len(writers) - 1, -1, -1):
            writers[i].do("COMMIT")
            if i % 5 == 0: seen += self.take("c")
        self.assertEqual(sorted(seen), sorted(seqs))

    def test_consumer_starting_at_the_end_gets_open_transactions(self):
        self.session().emit("a/1")
        writer = self.writer()
        late = writer.emit("a/1")
        self.register("new", start_at="end")
        writer.do("COMMIT")
        self.assertEqual(self.take("new"), [late])

    def test_lane_change_does_not_lose_running_transactions(self):
        self.assertEqual(self.take("c"), [])
        writer = self.writer()
        late = writer.emit("a/1")
        self.register("c", lanes=4)
        self.assertEqual(self.take("c"), [])
        writer.do("COMMIT")
        self.assertEqual(self.take("c"), [late])

    def test_lanes_lose_and_reorder_nothing(self):
        for lanes in (1, 4, 64):
            with self.subTest(lanes=lanes):
                name = f"lanes{lanes}"
                self.register(name, lanes=lanes, start_at="end")
                writer, other = self.writer(), self.session()
                mine = {writer.emit(f"a/{i}"): f"a/{i}" for i in range(100)}
                theirs = {other.emit(f"a/{i % 90}" if i % 10 else None): f"a/{i % 90}" for i in range(300)}
                seen = self.drain_all(name, max_events=7)
                writer.do("COMMIT")
                after = {other.emit(f"a/{i}"): f"a/{i}" for i in range(100)}
                seen += self.drain_all(name, max_events=7)
                self.assertEqual(sorted(seen), sorted([*mine, *theirs, *after]))
                keys = {**mine, **after}
                for i in range(100):
                    order = [s for s in seen if keys.get(s) == f"a/{i}"]
                    self.assertEqual(order, sorted(order), f"a/{i}")
