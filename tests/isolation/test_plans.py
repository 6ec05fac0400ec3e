"""The cost of reading on PostgreSQL: the plans of every statement that touches events, as the server chose them, and the
pages a claim reads, which must not grow with the number of events."""
# build: plain
# quick: no
import json
import re
import time

from sessions_postgres import ExactAlone, request

BIG = 100000
CHUNK = 4500  # events read at once, at most
PLAN = re.compile(r"LOG:  duration: .*?  plan:\n\t(\{.*?\n\t\})", re.DOTALL)


def nodes(plan):
    """nodes returns a plan's nodes, the root first."""
    yield plan
    for child in plan.get("Plans", []): yield from nodes(child)


class Plans(ExactAlone):
    """On a server that logs the plan of every statement, those within functions too."""

    settings = {
        "session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0",
        "auto_explain.log_nested_statements": "on", "auto_explain.log_analyze": "on",
        "auto_explain.log_timing": "off", "auto_explain.log_format": "json", "autovacuum": "off", "jit": "on"}

    def setUp(self):
        super().setUp()
        self.base = self.store

    def plans(self, work):
        """plans returns the server's statements and plans while `work` ran: [(statement, plan)]."""
        start = len(self.postgres.log())
        work()
        found = []
        for text in PLAN.findall(self.postgres.log()[start:]):
            plan = json.loads(text.replace("\n\t", "\n"))
            found.append((plan["Query Text"], plan["Plan"]))
        return found

    def fill(self, session, n):
        session.do("SET auto_explain.log_min_duration = -1")
        session.do("INSERT INTO @.event (type, aggregate_type, aggregate_id, payload) SELECT CASE i %% 2 WHEN 0 THEN 't.e' "
                   "ELSE 'u.e' END, 'a', (i %% 1000)::text, '{}' FROM generate_series(1, %s) i", n)

    def relay(self, name, *more):
        self.drain("--consumer", name, "--sink", f"file:{self.path(name)}", *more)

    def check(self, plans):
        """check refuses full scans of growing tables, and big sorts; it returns the indexes by which events were read."""
        indexes = set()
        for text, root in plans:
            for node in nodes(root):
                kind, table = node["Node Type"], node.get("Relation Name")
                seen = f"{kind} on {table}: {text}"
                if table in ("event", "lane", "claim", "parked"):
                    self.assertNotIn(kind, ("Seq Scan", "Bitmap Heap Scan"), seen)
                if table == "event": indexes.add(node.get("Index Name"))
                if node.get("Index Name") == "event_xid": self.assertIn("xid", node.get("Index Cond", ""), seen)
                if table == "lane" and "Index Name" in node: self.assertEqual(node["Index Name"], "lane_pkey")
                if "Sort" in kind: self.assertLessEqual(node["Actual Rows"], CHUNK, seen)
        return indexes

    def test_events_are_read_by_index_under_any_statistics(self):
        for rows in (1, BIG):
            for when in ("never", "empty", "full"):
                with self.subTest(rows=rows, analyzed=when): self.reads(rows, when)

    def reads(self, rows, when):
        schema, tables = f"s{rows}{when}", "@.event, @.lane, @.claim, @.parked, @.consumer"
        self.store = f"{self.base}&schema={schema}"
        self.init()
        self.reader = self.session(self.base, schema)
        if when == "empty": self.reader.do(f"ANALYZE {tables}")
        self.fill(self.reader, rows)
        if when == "full": self.reader.do(f"ANALYZE {tables}")
        start = max(rows - 3000, 1)
        self.register("all", start_at=str(start))
        self.register("sql", start_at=str(start))
        self.register("some", "t.*", lanes=2, start_at=str(start))
        late = self.session(self.base, schema)
        self.addCleanup(late.close)
        late.do("BEGIN; SET LOCAL idle_in_transaction_session_timeout = '5min'")
        self.fill(late, 5000)
        found = self.plans(self.relays)  # fresh ones, with one in the way
        self.assertIn("event_pkey", self.check(found))
        late.do("COMMIT")
        found = self.plans(self.relays)  # late ones
        self.assertLessEqual({"event_pkey", "event_xid"}, self.check(found))
        # Both as the relay itself reads, and as the functions do.
        self.assertTrue([text for text, _ in found if "UNION ALL" in text and "$9" in text])
        self.assertTrue([text for text, _ in found if "UNION ALL" in text and "$7" not in text])

    def relays(self):
        """relays reads as the relay does, and as a worker with plain SQL."""
        for _ in range(3): self.session(self.base, self.reader.name).take("sql")
        self.relay("all")
        self.relay("some", "--events", "t.*", "--lanes", "2")


class Costs(ExactAlone):
    """Pages read, counted by the server. It is a private one: a claim has to read everything since the oldest transaction of
    the whole cluster began, in any database."""

    def claim(self, name, n=100):
        """claim claims, settles, and returns the number of pages that the claim read."""
        plan = self.reader.do("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM @.claim(%s, 'w', %s)", name, n)
        top = plan[0][0][0]["Plan"]
        self.assertEqual(top["Actual Rows"], n)
        self.reader.do("SELECT @.settle(%s, 'w', epoch) FROM @.claim WHERE consumer = %s", name, name)
        return top["Shared Hit Blocks"] + top["Shared Read Blocks"]

    def walk(self, name):
        """walk claims a bulk chunk by chunk, and returns the pages of one in the middle: now and then one reads a few more, of
        the catalogs."""
        costs = [self.claim(name) for _ in range(9)]
        self.reader.do("VACUUM @.lane, @.claim")
        return sorted(costs)[4]

    def bulk(self, session, n, payload="null"):
        session.do("INSERT INTO @.event (type, aggregate_type, aggregate_id, payload) SELECT 't', 'a', (i %% 100)::text, "
                   "%s::json FROM generate_series(1, %s) i", payload, n)

    def kept(self, n):
        """kept creates wide events at rest: an index alone is far less to read then, which tempts the planner to read all of
        another one."""
        self.bulk(self.session(), n, '"' + 500 * "x" + '"')
        self.reader.do("VACUUM ANALYZE @.event")

    def test_chunk_cost_does_not_depend_on_the_size_of_a_fresh_bulk(self):
        costs = []
        for n in (1000, BIG):
            name = f"c{n}"
            self.register(name, start_at="end")
            self.bulk(self.session(), n)
            costs.append(self.walk(name))
        self.assertLess(costs[1], costs[0] * 1.5 + 20, costs)

    def test_cost_of_a_window_does_not_depend_on_past_deliveries(self):
        costs = []
        for n in (10, 1000, 50000):  # the first one reads the catalogs
            self.kept(n)
            self.register(f"c{n}", start_at="end")
            self.session().emit("a/1")
            costs.append(self.claim(f"c{n}", 1))
        self.assertLess(costs[2], costs[1] * 1.5 + 20, costs)

    def test_chunk_cost_does_not_depend_on_the_size_of_a_late_bulk(self):
        costs = []
        for n in (1000, BIG):
            name = f"c{n}"
            self.register(name, start_at="end")
            late = self.session()
            late.do("BEGIN")
            self.bulk(late, n)
            self.session().emit("a/1")
            self.assertEqual(len(self.take(name)), 1)
            late.do("COMMIT")
            self.session().emit("a/1")
            costs.append(self.walk(name))
        self.assertLess(costs[1], costs[0] * 1.5 + 20, costs)

    def test_late_low_number_does_not_cause_a_scan_of_later_events(self):
        costs = []
        for n in (1000, BIG):
            name = f"c{n}"
            self.register(name, start_at="end")
            late = self.session()
            late.do("BEGIN")
            late.emit("a/1")
            self.bulk(self.session(), n)
            while self.take(name, max_events=20000): pass
            late.do("COMMIT")
            self.session().emit("a/1")
            costs.append(self.claim(name, 1))
        self.assertLess(costs[1], costs[0] * 1.5 + 20, costs)

    def test_search_for_an_unknown_id_is_bounded(self):
        """A foreign id may be anywhere. Its time leads to a search of 200,000 as well: here that is past the end."""
        self.register("c")
        self.bulk(self.session(), 1000)
        self.reader.force("UPDATE @.event SET id = 'ffffffff-0000-7000-8000-000000000001' WHERE seq = 300")
        self.reader.do("INSERT INTO @.event (seq, type) OVERRIDING SYSTEM VALUE SELECT n, 't' FROM generate_series(300000, 301000) n")
        found = lambda look: self.reader.do("SELECT @._seq_of('ffffffff-0000-7000-8000-000000000001', %s)", look)[0][0]
        self.assertEqual([found(look) for look in (1000, 1700, 1800, None)], [None, None, 300, 300])

    def entries(self, *indexes):
        """entries returns how many entries of these indexes were read so far; of lanes and claims by default."""
        self.reader.do("SELECT pg_stat_force_next_flush()")
        return self.session().do("SELECT sum(idx_tup_read)::int FROM pg_stat_user_indexes WHERE indexrelname = ANY (%s)",
                                 list(indexes or ("claim_pkey", "lane_pkey")))[0][0]

    def test_claims_do_not_scan_dead_rows_kept_by_a_transaction(self):
        self.register("c")
        self.bulk(self.session(), 3000)
        old = self.session()
        self.addCleanup(old.close)
        old.do("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.do("SELECT pg_current_xact_id()")
        read = [self.entries()]
        for _ in range(2):
            for _ in range(150):
                epoch = self.reader.do("SELECT epoch FROM @.claim('c', 'w', 1)")[0][0]
                self.reader.do("SELECT @.settle('c', 'w', %s)", epoch)
            read.append(self.entries())
        first, second = read[1] - read[0], read[2] - read[1]
        self.assertGreater(first, 150)  # they are counted
        self.assertLess(second, first * 1.2, read)

    def test_retries_do_not_scan_dead_rows_kept_by_a_transaction(self):
        self.register("c")
        self.bulk(self.session(), 700)
        old = self.session()
        self.addCleanup(old.close)
        old.do("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.do("SELECT pg_current_xact_id()")
        before = self.entries("parked_due")
        for _ in range(175): self.fail_once("c")
        read = self.entries("parked_due") - before
        self.assertGreater(read, 175)  # they are counted
        self.assertLess(read, 30000)  # occasionally one reads all, including old ones; reading all each time would be some 240,000

    def test_polling_with_retries_due_does_not_scan_dead_rows(self):
        """A worker that never rests always has to check for events that wait too long. It does so when nothing is due."""
        self.register("c")
        self.bulk(self.session(), 200)
        for _ in range(100):
            epoch = self.turn("c", n=2, parked_first=False)
            failed = "jsonb_agg(jsonb_build_object('seq', seq, 'kind', 'retry', 'delay_ms', 1))"
            self.reader.do(f"SELECT @.settle('c', 'w', %s, {failed}) FROM @._claimed('c', %s)", epoch, epoch)
        time.sleep(0.05)  # they have been due for some time
        old = self.session()
        self.addCleanup(old.close)
        old.do("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.do("SELECT pg_current_xact_id()")
        before = self.entries("parked_due")
        for _ in range(200): self.reader.do("SELECT @.settle('c', 'w', %s)", self.turn("c", n=1, clock_repair=True))
        read = self.entries("parked_due") - before
        self.assertGreater(read, 200)  # they are counted
        self.assertLess(read, 5000)  # if each read all, the total would be some 60,000
        self.assertIsNone(self.turn("c", n=1, clock_repair=True))

    def turn(self, name, n, parked_first=True, clock_repair=False):
        """turn claims as a relay does, and returns the epoch, or None."""
        version = self.reader.do("SELECT value::int FROM @.meta WHERE name = 'schema_version'")[0][0]
        asked = request(max_events=n, lease_ms=30000, parked_first=parked_first, clock_repair=clock_repair)
        return self.reader.do("SELECT t.epoch FROM @._turn(json_populate_record(@._no_request(%s, 'w'), %s), %s) t",
                              name, asked, version)[0][0]

    def fail_once(self, name):
        """fail_once claims an event, which fails, and claims it again as soon as it is due."""
        failed = "jsonb_build_array(jsonb_build_object('seq', e.seq, 'kind', 'retry', 'delay_ms', 1))"
        self.reader.do(f"SELECT @.settle(%s, 'w', e.epoch, {failed}) FROM @.claim(%s, 'w', 1) e", name, name)
        self.reader.do("SELECT @.settle(%s, 'w', e.epoch) FROM @.claim(%s, 'w', 1) e", name, name)

    def test_idle_polling_of_a_big_table_is_cheap(self):
        self.register("c")
        self.kept(20000)
        while self.take("c", max_events=20000): pass
        plan = self.reader.do("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM @.claim('c', 'w')")[0][0][0]["Plan"]
        self.assertLess(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], 100)
        before = self.reader.do("SELECT version FROM @.lane WHERE lane = 0")
        self.take("c")
        self.assertEqual(self.reader.do("SELECT version FROM @.lane WHERE lane = 0"), before)

    def looks(self, name):
        """looks returns the pages and milliseconds of the queries of status and a scrape about a consumer."""
        cost = {}
        for what in ("@.consumer_status WHERE name = %s", "@._backlog(%s, 1000)", "@._parked_summary(%s)", "@._parked_events(%s, 1000)",
                     "@._waiting(%s, 1000)"):
            for _ in range(3):  # the first one reads the catalogs
                found = self.reader.do(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {what}", name)[0][0][0]
            plan = found["Plan"]
            cost[what] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], found["Execution Time"] + found["Planning Time"]
        return cost

    def park(self, name, n):
        """park creates n more events, all of which have failed and wait: one of a hundred keys each, so most wait behind
        another."""
        self.bulk(self.session(), n)
        self.reader.do("INSERT INTO @.parked (consumer, seq, key, attempts, due_at, error, failed_at, failing_since) "
                       "SELECT %s, e.seq, e.seq %% 100, 1, CASE WHEN e.seq <= 100 THEN now() + interval '1 hour' END, 'HTTP 500', now(), now() "
                       "FROM @.event e LEFT JOIN @.parked p ON p.seq = e.seq WHERE p.seq IS NULL", name)

    def test_parked_events_are_counted_at_constant_cost(self):
        """With statistics of an empty table, of all of it, and none."""
        self.register("c", start_at=str(2 * BIG))  # so that they are parked without waiting behind others
        self.reader.do("ANALYZE @.event, @.parked, @.dead")
        costs = []
        for n in 20000, BIG - 20000, 0:
            self.park("c", n)
            costs.append(self.looks("c"))
            if len(costs) == 2: self.reader.do("VACUUM ANALYZE @.event, @.parked")
        shown, = self.reader.do("SELECT behind, behind_exact, parked, first_seq, overdue_at = oldest_at FROM @.consumer_status")
        self.assertEqual(shown, (BIG, False, BIG, 1, True))
        print(f"# pages and ms with 20,000 and {BIG} parked events, and after VACUUM: {costs}")
        for what in costs[0]:
            few, many, clean = (cost[what] for cost in costs)
            self.assertLess(many[0], few[0] * 1.2 + 50, (what, costs))
            self.assertLess(clean[0], few[0] * 1.2 + 50, (what, costs))

    def test_consumers_at_one_position_share_an_identity_check(self):
        self.reader.do("SELECT count(@.register('c' || i, start_at => 'end')) FROM generate_series(1, 100) i")
        self.kept(2000)
        self.reader.do("SELECT * FROM @._trouble()")  # this one reads the catalogs
        plan = self.reader.do("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM @._trouble()")[0][0][0]["Plan"]
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        self.assertLess(pages, 20 * 100, "a few probes for each of a hundred consumers")
