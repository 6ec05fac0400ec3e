"""Many consumers in one relay on PostgreSQL: they share a few connections, a listener and their transactions, without affecting
each other. Costs are counted by the server, never timed."""
# build: plain
# quick: no
import contextlib
import json
import pathlib
import re
import time
import unittest
import urllib.parse

import psycopg2

import proxy_postgres
import servers
from many_consumers import OneRelay
from sessions_postgres import Session, request
from support import PgCase, wait_until


class Many(OneRelay, PgCase):
    def sessions(self):
        return self.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")[0][0]

    def test_fifty_consumers_share_four_connections_in_order(self):
        with self.many(50) as relay:
            sent = []
            for n in range(8):
                self.emit(f"t{n}", "a/1")
                sent.append(f"t{n}")
            self.wait_for(50, sent, relay)
            wait_until(self.settled)
            self.assertLessEqual(self.sessions(), 4)

    def test_two_connections_are_enough_for_five_consumers(self):
        with self.many(5, "--connections", "2") as relay:
            self.emit("a")
            self.wait_for(5, ["a"], relay)
            self.assertLessEqual(self.sessions(), 3)  # including the command's own

    def test_only_consumers_matching_an_event_are_woken(self):
        self.assertEqual(self.are_woken("version"), {"c3"})

    def test_consumer_with_a_locked_row_does_not_block_others(self):
        with self.many(8) as relay:
            self.emit("first")
            self.wait_for(8, ["first"], relay)
            with contextlib.closing(Session(self.store, "outbox")) as stranger:
                stranger.do("BEGIN")
                stranger.do("SELECT 1 FROM outbox.consumer WHERE name = 'c2' FOR UPDATE")
                self.emit("second")
                for i in set(range(8)) - {2}: wait_until(lambda: self.got(i) == ["first", "second"], what=relay.output)
                self.assertEqual(self.got(2), ["first"])
                stranger.do("ROLLBACK")
            self.wait_for(8, ["first", "second"], relay)

    def lock(self, *names):
        """lock makes an unrelated session lock rows of consumers until it is closed."""
        stranger = Session(self.store, "outbox")
        stranger.do("BEGIN")
        stranger.do("SELECT 1 FROM outbox.consumer WHERE name = ANY (%s) FOR UPDATE", list(names))
        return contextlib.closing(stranger)

    def test_locked_consumers_do_not_exhaust_the_connections(self):
        """A turn waits for a lock for 1 s, and there are two connections for turns."""
        locked, want, slowest = (2, 3, 5), ["first"], 0
        with self.many(8) as relay:
            self.emit("first")
            self.wait_for(8, want, relay)
            with self.lock(*(f"c{i}" for i in locked)):
                said = lambda i: relay.output().count(f'consumer "c{i}" is locked by')
                self.emit("second")
                want.append("second")
                for i in locked: wait_until(lambda: said(i) > 0, what=relay.output)
                reports = lambda: sum(map(said, locked))
                until = reports() + 6
                while reports() < until:
                    want.append(f"t{len(want)}")
                    began = time.monotonic()
                    self.emit(want[-1])
                    for i in set(range(8)) - set(locked): wait_until(lambda: self.got(i) == want, what=relay.output)
                    slowest = max(slowest, time.monotonic() - began)
            self.wait_for(8, want, relay)
        self.assertLess(slowest, 4)

    def test_missing_watcher_is_reported_once_and_events_arrive(self):
        store = self.role("consumer")
        user = urllib.parse.parse_qs(urllib.parse.urlsplit(store).query)["user"][0]
        with self.many(6, "--store", store) as relay:
            self.emit("first")
            self.wait_for(6, ["first"], relay)
            # In this order: the command's connection, the listening one, those for turns.
            pids = [pid for pid, in self.sql("SELECT pid FROM pg_stat_activity WHERE usename = %s ORDER BY backend_start", user)]
            self.sql(f'ALTER ROLE "{user}" CONNECTION LIMIT 1')
            self.sql("SELECT pg_terminate_backend(%s)", pids[1])
            wait_until(lambda: "could not watch for new events" in relay.output(), what=relay.output)
            self.emit("second")
            self.wait_for(6, ["first", "second"], relay)
            self.sql(f'ALTER ROLE "{user}" CONNECTION LIMIT -1')
            wait_until(lambda: "watching for new events again" in relay.output(), what=relay.output)
            said = [line for line in relay.output().splitlines() if "could not look" in line]
            self.assertLess(len(said), 4, said)  # one for each reason: ended by an operator, too many connections

    def test_missing_replacement_connection_is_tolerated(self):
        store = self.role("consumer")
        user = urllib.parse.parse_qs(urllib.parse.urlsplit(store).query)["user"][0]
        with self.many(8, "--store", store) as relay:
            self.emit("first")
            self.wait_for(8, ["first"], relay)
            with self.lock("c2", "c3"):  # so that both connections for turns are needed
                self.emit("second")
                wait_until(lambda: relay.output().count("is locked by") >= 2, what=relay.output)
            self.wait_for(8, ["first", "second"], relay)
            # In this order: the command's connection, the listening one, those for turns.
            pids = [pid for pid, in self.sql("SELECT pid FROM pg_stat_activity WHERE usename = %s ORDER BY backend_start", user)]
            self.assertEqual(len(pids), 4)
            self.sql(f'ALTER ROLE "{user}" CONNECTION LIMIT 2')  # fewer than it keeps: it opens no more
            self.sql("SELECT pg_terminate_backend(%s)", pids[2])
            wait_until(lambda: not self.sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pids[2]))
            self.emit("third")
            self.wait_for(8, ["first", "second", "third"], relay)

    def test_returned_connection_wakes_only_one_waiter(self):
        """Consumers with several lanes take their turns separately, on two connections for all of them."""
        n, events = 100, 3
        def switches(pid):
            status = (task.joinpath("status").read_text() for task in pathlib.Path(f"/proc/{pid}/task").iterdir())
            return sum(int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)[1]) for text in status)
        with self.many(n, lanes=2) as relay:
            self.emit("t0", "a/1")
            self.wait_for(n, ["t0"], relay)
            wait_until(self.settled)
            before = switches(relay.pid)
            for k in range(events): self.emit(f"t{k + 1}", "a/1")
            self.wait_for(n, [f"t{k}" for k in range(events + 1)], relay)
            wait_until(self.settled)
            self.assertLess((switches(relay.pid) - before) / (n * events), 30)  # with a thundering herd it was 195

    def test_consumer_locked_during_a_release_keeps_its_attempts(self):
        """c0 claims more than it can hold, and is locked before it can release the rest."""
        sizes = lambda i: [len(str(event["payload"])) > 1000 for event in self.ndjson(self.path(f"c{i}"))]
        with proxy_postgres.Proxy(self.store) as px:
            def lock_meanwhile(link, sent):
                with self.lock("c0"):
                    link.server.sendall(sent)
                    link.client.sendall(link.answer())
                return True
            config = self.config(6, events=lambda i: "big" if i == 0 else "small")
            with self.relay("--store", px.url, "--config", config, "--sweep", "10m") as relay:
                for n in range(12):  # until they share a turn
                    self.sql("INSERT INTO outbox.event (type) VALUES ('small'), ('big')")
                    for i in range(6): wait_until(lambda: len(sizes(i)) == n + 1, what=relay.output)
                rule = px.add(lambda r: "_shrink(" in r.text and not r.text.startswith("prepare"), lock_meanwhile)
                # The others receive small events: a relay claims no more than fits, estimated from the last batches.
                self.sql("INSERT INTO outbox.event (type, payload) SELECT t, to_json(repeat('x', CASE t WHEN 'big' THEN 1000000 ELSE 1 END)) "
                         "FROM unnest('{big,big,big,big,small}'::text[]) t")
                for i in range(6): wait_until(lambda: sizes(i)[12:] == ([True] * 4 if i == 0 else [False]), what=relay.output)
                self.assertTrue(rule.done())
                self.assertNotIn("vanished", relay.output())

    def test_worker_that_hides_its_claims_stops_receiving_events(self):
        with contextlib.closing(Session(self.store, "outbox")) as worker:
            worker.do("SELECT outbox.register('c0')")
            self.emit("first")
            worker.drain("c0")
            def ask(owner, known, tried=0):
                asked = request(tried=tried, known=known, ordering="key", lanes=1, events="", predicate="")
                return self.sql("SELECT t.n FROM outbox._turns(ARRAY[json_populate_record(outbox._no_request('c0', %s), %s)], 'batch', "
                                "(SELECT value::int FROM outbox.meta WHERE name = 'schema_version')) t", owner, asked)
            self.emit("second")
            self.assertEqual(ask("w", [], tried=-5), [(1,)])
            self.emit("third")
            for known in (None, [], [None]): self.assertEqual(ask("x", known), [], known)
            self.assertEqual(self.sql("SELECT max(delivered) FROM outbox.lane WHERE consumer = 'c0'"), [(1,)])

    def test_role_with_only_consumer_rights_also_shares_turns(self):
        store = self.role("consumer")
        with self.many(6, "--store", store) as relay:
            for t in ("a", "b"): self.emit(t)
            self.wait_for(6, ["a", "b"], relay)
        self.emit("c")
        (version,), = self.sql("SELECT value::int FROM outbox.meta WHERE name = 'schema_version'")
        asked = request(ordering="key", lanes=1, events="", predicate="")
        turn = "SELECT e.type, e.n FROM outbox._turns(ARRAY[json_populate_record(outbox._no_request(%s, 'w'), %s)], %s, %s) e"
        with contextlib.closing(psycopg2.connect(store)) as db, db.cursor() as role:
            role.execute(turn, ["c0", asked, "single", version])
            self.assertEqual(role.fetchall(), [("c", 1)])
            db.commit()
            role.execute(turn, ["c1", asked, "batch", version])
            self.assertEqual(role.fetchall(), [(None, 1)])



class Cost(PgCase):
    """The number of server requests, counted on a private server."""
    CONSUMERS, EVENTS = 20, 30

    @classmethod
    def setUpClass(cls):
        cls.postgres = servers.Postgres({"log_statement": "all", "log_line_prefix": "%a|"})
        cls.addClassCleanup(cls.postgres.close)
        cls.postgres.start()

    def said(self):
        return re.findall(r"^outbox[^|]*\|LOG:\s+(?:execute \S+|statement): (.*(?:\n\t.*)*)", self.postgres.log(), re.MULTILINE)

    def test_event_for_twenty_consumers_costs_little_more(self):
        self.costs_little()

    def test_smaller_batches_for_many_consumers_do_not_cost_more(self):
        self.costs_little("--memory", "8MiB")

    def costs_little(self, *more):
        self.store = self.postgres.create_database(self.dbname)
        self.addCleanup(servers.drop_database, self.postgres.url(""), self.dbname)
        self.outbox("init")
        args = [arg for i in range(self.CONSUMERS) for arg in ("--consumer", f"c{i}", "--sink", f"file:{self.path(f'c{i}')}")]
        count = lambda: sum(len(self.ndjson(self.path(f"c{i}"))) for i in range(self.CONSUMERS))
        with self.relay(*args, "--sweep", "10m", *more) as relay:
            self.emit("first")
            wait_until(lambda: count() == self.CONSUMERS, what=relay.output)
            before = len(self.said())
            for n in range(self.EVENTS):
                self.emit("next")
                wait_until(lambda: count() == (n + 2) * self.CONSUMERS, what=relay.output)
                time.sleep(0.003)  # so that they are idle
            wait_until(lambda: not self.sql("SELECT 1 FROM outbox.claim"))
            said = self.said()[before:]
        alone = [text for text in said if "._turn(" in text]
        together = [text for text in said if "._turns($1, 'batch'" in text]
        # Twenty separate turns would be 40 for each event. How many share one depends on thread timing.
        self.assertLess(len(alone) + len(together), 14 * self.EVENTS, said[-20:])
        self.assertLess(len(alone), 2 * self.EVENTS, alone[-5:])

    def test_consumers_with_a_backlog_share_larger_turns(self):
        """They want different events, so that each has its own position in the backlog."""
        self.store = self.postgres.create_database(self.dbname)
        self.addCleanup(servers.drop_database, self.postgres.url(""), self.dbname)
        self.outbox("init")
        backlog, wanted = 3000, {0: lambda n: True, 1: lambda n: n % 3 == 1, 2: lambda n: n % 3 != 1, 3: lambda n: n % 10 == 0}
        filters = {0: [], 1: ["--events", "t1"], 2: ["--events", "t0,t2"], 3: ["--where", "rare = true"]}
        args = [arg for i in range(self.CONSUMERS)
                for arg in ("--consumer", f"c{i}", "--sink", f"file:{self.path(f'c{i}')}", *filters[i % 4])]
        numbers = lambda i: [event["payload"]["n"] for event in self.ndjson(self.path(f"c{i}"))]
        events = "INSERT INTO outbox.event (type, payload) SELECT 't' || n %% 3, json_build_object('n', n, 'rare', n %% 10 = 0) " \
                 "FROM generate_series(%s, %s) AS n"
        with self.relay(*args, "--sweep", "10m") as relay:
            self.sql(events, 0, 2)  # one of each type
            wait_until(lambda: all(numbers(i) for i in range(self.CONSUMERS)), what=relay.output)
            wait_until(lambda: not self.sql("SELECT 1 FROM outbox.claim"))
            before = len(self.said())
            self.sql(events, 3, backlog)
            for i in range(self.CONSUMERS):
                want = [n for n in range(backlog + 1) if wanted[i % 4](n)]
                wait_until(lambda: numbers(i) == want, what=lambda: (i, numbers(i)[-3:], relay.output()))
            wait_until(lambda: not self.sql("SELECT 1 FROM outbox.claim"))
            said = self.said()[before:]
        alone = [text for text in said if "._turn(" in text]
        together = [text for text in said if "._turns($1, 'batch'" in text]
        # It was 172 when a consumer without others waiting still made a separate turn.
        self.assertLess(len(alone), 40, alone[-5:])
        self.assertGreater(len(together), 10)


if __name__ == "__main__":
    unittest.main()
