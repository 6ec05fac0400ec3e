"""A primary and its streaming standby, which switch roles under load: with a synchronous one nothing is lost; with a lagging
one, events the new primary never received are lost with its data, and the events it has are delivered."""
# build: plain
# quick: no
import json
import os
import shutil
import signal
import time

import servers
from checker import COMMITTED, Fact, whole_lines
from workload import BATCH
from on_server import Load
from scenario import CLAIMS
from support import SOAK, wait_until

UNAVAILABLE = 69
HEAL = 30  # seconds from a promotion until relays deliver again
ROUNDS = 40 if SOAK else 2


class Pair(Load):
    """self.primary and self.standby, whose folders stay the same, and a store that names both."""

    lease = "1s"
    sync = True

    @classmethod
    def setUpClass(cls):
        pass

    def setUp(self):
        self.primary = self.server = servers.Postgres().start()
        self.addCleanup(self.primary.close)
        super().setUp()
        self.standby = servers.Copy(self.primary, standby="other").start()
        self.addCleanup(self.standby.close)
        self.confirmed()
        hosts = f"host={self.primary.dir},{self.standby.dir}"
        self.store = self.store.replace(f"host={self.primary.dir}", hosts) + "&target_session_attrs=read-write"

    def relay_args(self):
        return ["--store", self.store + "&answer_timeout=3s", *super().relay_args()]

    def sql(self, statement, *params):
        return servers.execute(self.primary.url(self.dbname), statement, *params)

    def confirmed(self):
        """confirmed: from now on, a confirmed commit is on both."""
        if not self.sync: return
        self.sql("ALTER SYSTEM SET synchronous_standby_names = 'other'")
        self.sql("SELECT pg_reload_conf()")
        wait_until(lambda: self.sql("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))

    def promote(self):
        """promote makes the standby the primary."""
        servers.forget_connections()
        servers.execute(self.standby.url("postgres"), "SELECT pg_promote()")
        self.primary, self.standby = self.standby, self.primary

    def rebuild(self):
        """rebuild turns the old primary into a standby of its successor, in its own folder."""
        shutil.rmtree(self.standby.dir / "data")
        anew = servers.Copy(self.primary, standby="other")
        anew.dir = self.standby.dir
        anew.prepare()
        self.standby = anew.start()
        self.addCleanup(anew.close)
        self.confirmed()


class Synchronous(Pair):
    def test_standby_is_readable_and_explains_refused_writes(self):
        self.init()
        id = self.emit("a", "k/1", 1)
        copy = self.standby.url(self.dbname)
        wait_until(lambda: servers.execute(copy, "SELECT to_regclass('outbox.event')")[0][0] and
                   servers.execute(copy, "SELECT 1 FROM outbox.event"))
        self.assertIn(id, self.outbox("events", "list", "--store", copy).stdout)
        self.outbox("status", "--store", copy)
        consumer = ["--consumer", "m", "--sink", "stdout:"]
        for args in (["emit", "a"], ["relay", "--drain", *consumer]):
            self.assertIn("connect to the primary", self.outbox(*args, "--store", copy, status=UNAVAILABLE).stderr)
        with self.relay(*consumer, "--store", copy, wait=False) as relay:
            wait_until(lambda: "connect to the primary" in relay.output(), what=relay.output)
            self.assertTrue(relay.running())
        self.outbox("emit", "a", status=UNAVAILABLE, env={"OUTBOX_STORE": copy + "&target_session_attrs=read-write"})

    # ---- faults of the two; each returns the relays that may have lost their claims ----

    def killed(self, crew):
        self.primary.kill()
        self.promote()

    def stopped(self, crew):
        """In good order, as for a new version of the operating system."""
        self.primary.stop("fast")
        self.promote()

    def frozen(self, crew):
        """The primary stalls, is replaced, and runs for a while beside the new one. No standby confirms its commits."""
        family = [self.primary.popen.pid, *servers.children(self.primary.popen.pid)]
        for pid in family: os.kill(pid, signal.SIGSTOP)
        self.promote()
        self.move_producers(crew)
        for pid in family: servers._signal(pid, signal.SIGCONT)
        time.sleep(1)
        self.standby.kill()

    def alone(self, crew):
        """The standby is away for a while: no commit returns, and everything continues when it is back."""
        self.standby.kill()
        time.sleep(1)
        self.standby.start()

    def move_producers(self, crew):
        """move_producers replaces producers that wait for a stalled server."""
        for place in [place for place in crew if place[0] == "producer"]:
            self.kill(place, crew[place])
            crew[place] = self.start("producer")

    def turns(self, _):
        self.begin(2)
        crew = self.crew(2, 2)
        self.wait_books(20, crew)
        ways = [self.killed, self.frozen, self.alone, self.stopped]
        for n in range(ROUNDS):
            way = ways[n % len(ways)] if n < len(ways) else self.random.choice(ways)
            way(crew)
            self.fault(f"primary {way.__name__}")
            self.vanished += 2  # each relay has lost its claims, and may have claimed again from a primary that kept running
            self.wait_books(20, crew)
            self.healed()
            self.assertLess(self.heals[-1], HEAL, "".join(p.output()[-2000:] for p in crew.values()))
            if way != self.alone: self.rebuild()
        self.wait_books(20, crew)
        self.dismiss(crew)
        self.heal()
        self.check()

    def test_repeated_synchronous_failover_loses_nothing(self):
        """A primary that dies, stops, or stalls and resumes beside its successor, and a synchronous standby that takes over:
        committed events are delivered, in order, by the same relays, within 30 s."""
        self.rounds(self.turns, 0)


class Asynchronous(Pair):
    """The standby has stopped receiving for a while when the primary dies."""

    sync = False

    def cut_off(self):
        """cut_off ends the stream to the standby, and returns how many events each consumer had received by then."""
        there = self.standby.url("postgres")
        servers.execute(there, "ALTER SYSTEM SET primary_conninfo = ''")
        servers.execute(there, "SELECT pg_reload_conf()")
        wait_until(lambda: servers.execute(there, "SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])

    def events(self):
        return self.sql("SELECT id::text, aggregate_id, payload::text FROM outbox.event")

    def lags(self, _):
        self.begin(2)
        crew = self.crew(2, 2)
        gone = {}
        for n in range(1 if not SOAK else 10):
            self.wait_books(30, crew)
            self.cut_off()
            before = {who: len(whole_lines(self.path(who))) for who in self.sinks}
            self.wait_books(30, crew)
            gone |= {id: n for id, _, _ in self.events()}
            last = self.sql("SELECT max(seq) FROM outbox.event")[0][0]
            self.primary.kill()
            self.promote()
            self.fault("primary killed")
            kept = self.sql("SELECT max(seq) FROM outbox.event")[0][0]
            self.assertLess(kept, last, "the standby did not lag: the test proves nothing")
            self.wait_books(30, crew)
            self.healed()
            self.assertLess(self.heals[-1], HEAL)
            # Events delivered after the standby had stopped receiving may be repeated, and so may each relay's claims.
            for who in self.sinks:
                self.again[who] = self.again.get(who, 0) + len(whole_lines(self.path(who))) - before[who]
            self.vanished += 2
            # The old primary had events whose names were never read before it died.
            self.standby.start()
            gone |= {id: n for id, in servers.execute(self.standby.url(self.dbname), "SELECT id::text FROM outbox.event")}
            servers.forget_connections()
            self.standby.stop()
            self.rebuild()
        self.wait_books(30, crew)
        self.dismiss(crew)
        self.heal()
        self.reckon(gone)

    def reckon(self, gone):
        """reckon checks that every existing event was delivered, in order, and that any other delivery was of an event lost
        with the old primary."""
        rows = self.events()
        facts = {id: (json.loads(text), (id, key, text)) for id, key, text in rows}
        told = {id: COMMITTED for id in facts}
        self.assertEqual(len(facts), sum(self.versions().values()), "an event for each change of an account")
        c = self.checker(told, [(id, Fact(body[1], what["version"], body)) for id, (what, body) in facts.items()])
        lost = 0
        for who in self.sinks:
            got = [(ev["id"], (ev["id"], ev["aggregate_id"], raw)) for ev, raw in whole_lines(self.path(who))]
            lost += sum(id in gone and id not in facts for id, _ in got)
            got = [(id, body) for id, body in got if id in facts or id not in gone]
            dead = [id for id, in self.ask("SELECT CAST(id AS text) FROM @dead WHERE consumer = ?", who)]
            bound = (CLAIMS * self.vanished + self.lost_claims(who)) * BATCH + self.again[who]
            c.consumer(who, got, dead, bound)
        self.check_left(c)
        c.verdict()
        self.assertGreater(lost, 0, "no delivered event was lost: the test proves nothing")

    def test_lagging_standby_delivers_its_events_in_order(self):
        """A standby that takes over though it lagged: every event that it has is delivered, in order, by the same relays;
        events it lacks are lost with their data, and no claim of that time is mistaken for a later one."""
        self.again = {}
        self.rounds(self.lags, 0)
