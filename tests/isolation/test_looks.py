"""The cost of searches on PostgreSQL, in SQL: find_unprocessed, find_published and consumer_status, counted in pages of the
server and in compilations; and a search that ends early can be continued without missing events."""
# build: plain
import re
import unittest

from sessions_postgres import Exact
from support import wait_until

FIND = "SELECT consumer, seq FROM @.find_{}(%s, %s, %s, %s)"
PARTIAL = re.compile(r"searched only up to sequence number (\d+), not all events")


class Looks(Exact):
    def fill(self, n, type="t.e"):
        self.reader.do("INSERT INTO @.event (type, aggregate_type, aggregate_id, payload) "
                       "SELECT %s, 'a', (i %% 100)::text, '{}' FROM generate_series(1, %s) i", type, n)

    def find(self, name, most=100, target=None, after=0, look=200000):
        """find returns the results and the end of the search; None: it searched everything."""
        self.reader.db.notices.clear()
        rows = self.reader.do(FIND.format(name), most, target, after, look)
        said = PARTIAL.search("".join(self.reader.db.notices))
        return rows, said and int(said[1])

    def pages(self, name, target, look):
        plan = self.reader.do("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + FIND.format(name), 10, target, 0, look)[0][0][0]["Plan"]
        self.assertEqual(plan["Actual Rows"], 0)
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    def test_empty_lookup_costs_the_same_for_any_backlog(self):
        self.register("rare", "x.*")  # none has this type
        self.reader.do("SELECT @.register('blind', 't.*', 'by = \"me\"')")  # without receipts it is unknown which events it received
        costs = []
        for n in 10000, 40000:
            self.fill(n)
            while self.take("blind", max_events=20000): pass
            self.reader.do("VACUUM ANALYZE @.event")
            self.pages("published", "blind", 2000)  # reads the catalogs
            costs.append([self.pages("unprocessed", "rare", 2000), self.pages("published", "blind", 2000)])
        for few, many in zip(*costs): self.assertLess(many, few * 1.2 + 20, costs)
        all_of_them = self.pages("published", "blind", None)
        self.assertGreater(all_of_them, 10 * costs[1][1], "the search would have found it")

    def test_lookup_stops_at_its_limit_of_numbers_or_states(self):
        self.register("rare", "x.*")
        self.reader.do("SELECT @.register('blind', 't.*', 'by = \"me\"')")
        self.fill(3000)
        while self.take("blind", max_events=20000): pass
        self.assertEqual(self.find("unprocessed", 10, "rare", 0, 1000), ([], 1010))
        self.assertEqual(self.find("unprocessed", 10, "rare", 1010, 1000), ([], 2020))
        self.assertEqual(self.find("unprocessed", 10, "rare", 2020, 1000), ([], None))
        self.assertEqual(self.find("unprocessed", 10, "rare"), ([], None), "a search of 3000 events is not limited")
        self.assertEqual(self.find("unprocessed", 10, "rare", 0, None), ([], None))
        self.assertEqual(self.find("published", 10, "blind", 0, 1000), ([], 61))
        hint = "".join(self.reader.db.notices)
        self.assertIn("pass after_seq => 61 to continue, or look => NULL to search all events", hint)
        self.assertEqual(self.find("published", 10, None, 0, 1000)[1], 61, "the other consumer has passed no event")

    def test_matches_are_listed_up_to_the_limit_of_the_lookup(self):
        self.register("c")
        self.fill(300)
        self.assertEqual(self.find("unprocessed", 200, None, 0, 0), ([("c", n) for n in range(1, 201)], None))
        while self.take("c"): pass
        self.assertEqual(self.find("published", 200, None, 0, 0), ([("c", n) for n in range(1, 201)], None))
        self.assertEqual(self.find("published", 200, "c", 150, 1), ([("c", n) for n in range(151, 301)], None))

    def test_lookup_starts_at_the_first_remaining_event(self):
        self.register("rare", "x.*")
        self.fill(2000)
        self.reader.force("DELETE FROM @.event WHERE seq <= 1500")
        self.reader.emit(type="x.1")
        self.assertEqual(self.find("unprocessed", 10, None, 0, 700), ([("rare", 2001)], None))

    def steps(self, name, target, look):
        """steps continues until everything was searched."""
        rows, after, n = [], 0, 0
        while True:
            some, end = self.find(name, 200, target, after, look)
            if len(some) == 200:  # the last event may have more rows
                self.assertIsNone(end)
                end = some[-1][1] - 1
                some = [row for row in some if row[1] <= end]
            rows, n = rows + some, n + 1
            if end is None: return rows, n
            self.assertGreater(end, after)
            after = end

    def mess(self):
        """mess leaves three consumers at different positions: with claims, failed, late and dead events, a former filter, and
        one lane of two that is behind."""
        self.register("all", lanes=2)
        self.register("some", "x.*")
        self.register("changed", "t.*")
        late = self.session()
        self.fill(500)
        late.do("BEGIN")
        late.emit("a/1", "x.late")
        for _ in range(3): self.fill(500), self.fill(3, "x.e")
        self.drain_all("changed", max_events=300)
        self.register("changed", "x.*")
        for _ in range(3): self.take("all", max_events=300)
        self.take("some", max_events=2)
        late.do("COMMIT")
        self.fill(400, "y.e"), self.fill(2, "x.e")
        fails = [{"kind": "retry", "delay_ms": 1}, {"kind": "retry", "delay_ms": 3600000}, {"kind": "dead", "error": "no"}]
        epoch, events = self.reader.claim("all", max_events=50)
        self.reader.settle("all", epoch, outcomes=[{"seq": events[i][0], "error": "no", **f} for i, f in enumerate(fails)])
        self.assertTrue(self.reader.claim("all", max_events=50)[1])
        self.assertTrue(self.reader.claim("some", worker="gone", max_events=1, lease_ms=1)[1])
        wait_until(lambda: self.reader.do("SELECT 1 FROM @.claim WHERE consumer = 'some' AND locked_until < @._clock()"))

    def truth(self, states, target):
        """truth: the rows of the view delivery."""
        return self.reader.do("SELECT consumer, seq FROM @.delivery WHERE state = ANY (%s) AND (state <> 'failed' OR due_at <= @._clock()) "
                              "AND (%s IS NULL OR consumer = %s) ORDER BY seq, consumer", states, target, target)

    def test_lookup_in_steps_of_any_size_finds_every_match(self):
        self.mess()
        for name, states in ("unprocessed", ["pending", "failed"]), ("published", ["delivered"]):
            for target in None, "all", "some", "changed":
                want = self.truth(states, target)
                for look in 0, 500, None:
                    with self.subTest(name=name, target=target, look=look):
                        found, n = self.steps(name, target, look)
                        self.assertEqual(found, want)
                        if look == 0 and target is None: self.assertGreater(n, 1)
            self.assertTrue(self.truth(states, None))

    def entries(self):
        """entries returns how many entries of the event index were read so far, by all sessions that have ended."""
        others = ("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
                  "AND backend_type = 'client backend'")
        wait_until(lambda: self.reader.do(others) == [(0,)])
        self.reader.do("SELECT pg_stat_force_next_flush()")
        return self.reader.do("SELECT sum(idx_tup_read)::int FROM pg_stat_user_indexes WHERE indexrelname = 'event_pkey'")[0][0]

    def test_listing_does_not_count_the_backlog(self):
        """It needs the consumers' settings, not their state."""
        for n in range(5): self.register(f"c{n}")
        self.fill(5000)
        before = self.entries()
        self.assertEqual(len(self.json("events", "list", "--limit", "3")), 3)
        self.assertLess(self.entries() - before, 1000)
        before = self.entries()
        self.assertEqual(len(self.json("status")["consumers"]), 5)
        self.assertGreater(self.entries() - before, 5 * 5000, "the search would have found it")

    def test_lookups_over_all_consumers_are_not_jit_compiled(self):
        """Compiling takes seconds, running the statement a fraction of one."""
        self.fill(20000)
        self.register("c")
        self.reader.do("ANALYZE @.event")
        self.reader.do("SET jit = on; LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET client_min_messages = log; "
                       "SET auto_explain.log_nested_statements = on; SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off")
        for statement in "SELECT * FROM @.consumer_status", FIND.format("unprocessed"), FIND.format("published"):
            self.reader.db.notices.clear()
            self.reader.do(statement, *(1, None, 0, 1000) if "%s" in statement else ())
            plans = "".join(self.reader.db.notices)
            self.assertIn("Query Text", plans)
            self.assertFalse("JIT:" in plans, statement)


if __name__ == "__main__":
    unittest.main()
