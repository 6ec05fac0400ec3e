"""Handlers that are killed between effect and commit, stopped past their leases, cut off from their database: each event
takes effect once for each of them, in the order of its key; an event one of them cannot handle is its own dead letter.

OUTBOX_SOAK=1 kills 200 times, over both stores; otherwise 40. OUTBOX_SEED=N replays the timing."""
# build: plain
# quick: no
import contextlib
import pathlib
import random
import signal
import unittest

import pymysql

from checker import COMMITTED, Fact
from proxy_postgres import ANSWERED, SENT, TORN, UNREADY, UNSENT, Proxy
from scenario import SEED, Scenario
from support import BIN, SOAK, Case, MariaCase, PgCase, wait_until

PROGRAM = pathlib.Path(BIN).parent / "tests" / "fault" / "fault_storm"
KILLS = 100 if SOAK else 20  # on each store
KEYS = 6
ALL = ("stock", "odd")


class Handlers(Scenario):
    """Claims about any store. self.PREFIX precedes the names of the outbox's tables."""

    KEY = "key"

    def begin(self, effect_at):
        self.init()
        self.sql(f"CREATE TABLE effect (handler text, event text, seq bigint, {self.KEY} text, pid int, at {effect_at})")
        self.count = 0

    def emit_numbers(self, n, types=None):
        """emit_numbers emits n events, those whose number is in `types` of that type."""
        first, self.count = self.count + 1, self.count + n
        self.emit_many([{"type": (types or {}).get(i, "good"), "aggregate_type": "k", "aggregate_id": str(i % KEYS)}
                        for i in range(first, first + n)])

    def start(self, attempts=1000, calls=0, lag=0, store=None):
        return self.spawn(PROGRAM, store or self.store, self.dir, attempts, calls, lag)

    def posted(self):
        """posted returns the external handler's actions: [(id, seq, key)]."""
        path = self.path("post")
        return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []

    def dead(self):
        rows = self.sql(f"SELECT consumer, seq, attempts FROM {self.PREFIX}dead ORDER BY consumer, seq")
        return {(consumer, seq): attempts for consumer, seq, attempts in rows}

    def all_done(self):
        effects, = self.sql("SELECT count(*) FROM effect")[0]
        return effects == 2 * self.count and len(set(self.posted())) == self.count and self.left() == [(0,)]

    def handled(self, handler):
        """handled returns the keys in the inbox of a handler."""
        rows = self.ask(f"SELECT CAST({self.KEY} AS text) FROM @handled WHERE handler = ?", f"shop.{handler}")
        return sorted(rows)

    def left(self):
        """left counts events in flight or parked."""
        return self.sql(f"SELECT (SELECT count(*) FROM {self.PREFIX}claim) + (SELECT count(*) FROM {self.PREFIX}parked)")

    def check(self, dead=(), kills=0):
        """check verifies that effects are exact, except for dead letters: {("shop.odd", seq)}. The external handler acts again
        once for each kill at most."""
        events = self.ask("SELECT seq, CAST(id AS text), aggregate_id FROM @event")
        self.assertEqual(len(events), self.count)
        c = self.checker({seq: COMMITTED for seq, _, _ in events}, [(seq, Fact(key, seq, id)) for seq, id, key in events])
        ids = {seq: id for seq, id, _ in events}
        for handler in ALL:
            buried = [seq for name, seq in dead if name == f"shop.{handler}"]
            rows = self.sql("SELECT seq, event FROM effect WHERE handler = '%s' ORDER BY at" % handler)
            c.consumer(handler, rows, buried, bound=0)
            self.assertEqual(set(buried) & {seq for seq, _ in rows}, set(), f"{handler}: dead letter whose effect was committed")
            recorded = self.handled(handler)
            self.assertEqual(recorded, sorted((id,) for seq, id in ids.items() if seq not in buried), f"inbox of {handler}")
        c.consumer("post", [(int(seq), id) for id, seq, _ in self.posted()], bound=kills)
        self.check_left(c)
        c.verdict()
        self.assertEqual(set(self.dead()), set(dead), "dead letters")

    # ---- the cases ----

    def test_kills_before_the_commit_still_apply_the_effect_once(self):
        """Wherever the process is killed between effect and commit: each handler takes effect once for each event, in the order of its
        key; the external one acts again once for each kill at most."""
        rng, kills, own = random.Random(SEED), 0, 0
        while kills < KILLS:
            if kills + own >= self.count / 6: self.emit_numbers(30)
            child = self.start(calls=rng.randrange(1, 14), lag=rng.choice((0, 0, rng.randrange(1, 4000))))
            status = child.wait(expect=None)
            self.assertIn(status, (0, -signal.SIGKILL), child.output())
            if status:
                kills += 1
                self.fault("handlers killed")
            else: own += 1
        self.start().wait()
        self.healed()
        self.check(kills=kills)

    def test_process_stopped_past_its_lease_changes_nothing(self):
        """A process stopped in a handler for longer than its lease: each handler takes effect once, whichever process commits."""
        hold = self.path("hold")
        hold.touch()
        self.emit_numbers(12)
        sleeper = self.start()
        wait_until(self.path("held").exists, what=sleeper.output)
        sleeper.freeze()  # its other handlers may be anywhere, also between record and commit
        hold.unlink()
        other = self.start()
        # In SQLite the sleeper holds the write lock; elsewhere all is done without it.
        if self.one_writer: self.assertEqual(self.sql("SELECT count(*) FROM effect WHERE handler = 'stock'"), [(0,)])
        else: other.wait()
        sleeper.signal(signal.SIGCONT)
        self.fault("handlers stopped")
        sleeper.wait()
        other.wait()
        self.healed()
        self.check(kills=2)
        if not self.one_writer: self.assertIn("is lost", sleeper.output())

    def test_failing_and_crashing_events_do_not_harm_others(self):
        """Events whose handler fails, or kills the process, become dead letters of that handler alone."""
        self.emit_numbers(40, {7: "fail", 9: "sometimes", 15: "abort", 21: "sometimes", 22: "fail", 29: "abort"})
        deaths = 0
        while (child := self.start(attempts=3)).wait(expect=None) != 0:
            self.assertEqual(child.wait(expect=None), -signal.SIGABRT, child.output())
            deaths += 1
            self.fault("handlers aborted")
            self.assertLess(deaths, 30)
        self.healed()
        sometimes = {key for key in self.dead() if key in {("shop.odd", 9), ("shop.odd", 21)}}
        always = {("shop.odd", seq) for seq in (7, 15, 22, 29)}
        self.check(dead=always | sometimes, kills=deaths)
        self.assertEqual({attempts for attempts in self.dead().values()}, {3})
        # Each poison event once among others, then three times alone; failures while another consumer has a suspect in flight
        # count for neither.
        self.assertLessEqual(deaths, 2 * 9)

    def test_rows_of_an_adopted_table_are_marked_with_the_effect(self):
        """A handler's effect and the mark of its source row are one transaction."""
        self.sql("CREATE TABLE old (id int PRIMARY KEY, event_type varchar(20), payload text, processed_at timestamp NULL)")
        self.outbox("adopt", "old", "--mark", "processed_at", "--consumer", "shop.stock")
        for n in range(12): self.ask("INSERT INTO old (id, event_type, payload) VALUES (?, 'good', '1')", n)
        self.start(calls=5).wait(expect=-signal.SIGKILL)
        effects, = self.sql("SELECT count(*) FROM effect WHERE handler = 'stock'")[0]
        self.assertEqual(self.sql("SELECT count(*) FROM old WHERE processed_at IS NOT NULL"), [(effects,)])
        self.start().wait()
        self.assertEqual(self.sql("SELECT count(*) FROM effect WHERE handler = 'stock'"), [(12,)])
        self.assertEqual(self.sql("SELECT count(*) FROM old WHERE processed_at IS NULL"), [(0,)])

    def test_two_processes_share_the_work_and_neither_starves(self):
        """Two processes with the same handlers share the work; when one is killed the other does it all."""
        self.path("stay").touch()
        self.path("patient").touch()  # a process waiting for the CPU must not seem dead
        both = [self.start(), self.start()]
        for child in both: wait_until(lambda: "started" in child.output(), what=child.output)
        pids = lambda: {pid for pid, in self.sql("SELECT DISTINCT pid FROM effect")}
        wait_until(lambda: self.emit_numbers(24) or len(pids()) == 2, what=lambda: [c.output() for c in both])
        wait_until(self.all_done, what=lambda: [c.output() for c in both])
        both[0].kill()  # the other process takes over its claims
        self.fault("handlers killed")
        self.emit_numbers(24)
        wait_until(self.all_done, what=both[1].output)
        self.healed()
        both[1].stop()
        self.check(kills=1)
        self.assertEqual(pids(), {child.pid for child in both})


class OnSqlite(Handlers, Case):
    one_writer = True

    def setUp(self):
        super().setUp()
        self.begin("INTEGER PRIMARY KEY AUTOINCREMENT")


class OnMariadb(Handlers, MariaCase):
    KEY, one_writer = "`key`", False

    def setUp(self):
        super().setUp()
        self.begin("bigint AUTO_INCREMENT PRIMARY KEY")

    def test_connection_lost_during_a_handler_changes_nothing(self):
        """A connection is terminated in the middle of a handler: each handler takes effect once."""
        hold = self.path("hold")
        hold.touch()
        self.emit_numbers(12)
        child = self.start()
        wait_until(self.path("held").exists, what=child.output)
        for victim, in self.sql("SELECT id FROM information_schema.processlist WHERE db = %s AND id <> CONNECTION_ID()", self.dbname):
            with contextlib.suppress(pymysql.err.MySQLError): self.sql(f"KILL {victim}")
        self.fault("connections ended")
        hold.unlink()
        child.wait()
        self.healed()
        self.check(kills=1)  # the record of the external handler may be cut off, too


class OnPostgres(Handlers, PgCase):
    PREFIX, one_writer = "outbox.", False

    def setUp(self):
        super().setUp()
        self.begin("bigserial PRIMARY KEY")

    def test_connection_lost_during_a_handler_changes_nothing(self):
        """A connection is terminated in the middle of a handler: each handler takes effect once."""
        hold = self.path("hold")
        hold.touch()
        self.emit_numbers(12)
        child = self.start()
        wait_until(self.path("held").exists, what=child.output)
        wait_until(lambda: self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in "
                                    "transaction' AND datname = current_database()"))
        self.fault("backend ended")
        hold.unlink()
        child.wait()
        self.healed()
        self.check()

    def through_proxy(self, prepare):
        """through_proxy runs a program through a proxy with the rules from `prepare`, and expects all effects to be exact."""
        self.path("stay").touch()
        with Proxy(self.store) as proxy:
            child = self.start(store=proxy.url)
            self.emit_numbers(6)
            wait_until(self.all_done, what=child.output)
            rules = prepare(proxy)
            self.emit_numbers(24)
            for rule in rules: wait_until(rule.done, what=child.output)
            self.fault("connection cut", len(rules))
            wait_until(self.all_done, what=child.output)
            self.healed()
            child.stop()
        self.check(kills=len(rules))  # the external handler's record may be cut off, too

    def test_commit_cut_off_at_any_point_is_resolved(self):
        """A commit whose connection breaks at any point: each handler takes effect once."""
        for when in (UNSENT, SENT, ANSWERED, TORN, UNREADY):
            with self.subTest(when):
                self.start_anew()
                self.through_proxy(lambda proxy: [proxy.cut(lambda r: r.text == "COMMIT", when) for _ in range(3)])

    def test_connection_lost_before_commit_changes_nothing(self):
        """A backend is terminated between handler and commit: each handler takes effect once."""
        for text in ("handle_all(", "turn(", "COMMIT"):
            with self.subTest(text):
                self.start_anew()
                self.through_proxy(lambda proxy: [self.ended_at(proxy, text) for _ in range(2)])

    def ended_at(self, proxy, text):
        """ended_at terminates a backend in a transaction just before it receives that request."""
        def act(link, sent):
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND "
                     "state = 'idle in transaction'")
            link.server.sendall(sent)
            return link.pass_answer()
        return proxy.add(lambda request: text in request.text and not request.text.startswith("prepare"), act)

    def start_anew(self):
        if self.count:
            self.doCleanups()
            self.setUp()


if __name__ == "__main__":
    unittest.main()
