"""kill -9, at random moments and at chosen ones, of producers and relays: the guarantees G1, G2, G4, G5, G6 and G9, checked
against the producers' own diaries and the sinks' output.

The storms take their timing from a seed, printed when one fails: OUTBOX_SEED=N replays it as far as processes allow.
OUTBOX_SOAK=1 runs for minutes, each round with another seed."""
# build: plain
import collections
import json
import pathlib
import random
import signal
import sqlite3
import subprocess
import time

from checker import COMMITTED, ROLLED_BACK, UNKNOWN, Fact, whole_lines
from scenario import APPEND, CLAIMS, FLAKY, SEED, Crew, Scenario
from support import BIN, TIMEOUT, Case, MariaCase, PgCase, on_each_store, wait_until
from workload import Storms

PROGRAMS = pathlib.Path(BIN).parent / "tests" / "fault"
BATCH = 20
LEASE = 300  # ms


def diary(folder):
    """diary returns the producers' record of each transaction: {(producer, n): (fate, number of events)}."""
    fates, states = {}, {"c": COMMITTED, "r": ROLLED_BACK, "i": UNKNOWN}
    for path in sorted(folder.glob("diary-*")):
        for state, n, count in (line.split() for line in path.read_text().splitlines()):
            fates[path.name.removeprefix("diary-"), int(n)] = (states[state], int(count))
    return fates


class Storm(Storms, Crew, Scenario, Case):
    """Producers and relays are killed and restarted, and relays are stopped for longer than their leases; then one relay heals,
    and everything is checked."""

    def begin(self, lanes):
        self.lanes, self.born, self.vanished = lanes, 0, 0
        self.init()
        self.sql("CREATE TABLE ledger (producer TEXT, n INTEGER, count INTEGER)")
        self.sinks = {"books": f"file:{self.path('books')}", "mail": "exec:" + APPEND.format(out=self.path("mail")),
                      "flaky": FLAKY.format(out=self.path("flaky")),
                      "slow": "exec:sleep 0.0$((OUTBOX_SEQ % 4)); " + APPEND.format(out=self.path("slow"))}

    def relay_args(self):
        args = ["--batch", BATCH, "--lease", f"{LEASE}ms", "--lanes", self.lanes, "--concurrency", 6, "--log-hold", "0s",
                "--retry", "base=20ms,cap=100ms,attempts=6,outage=0s"]
        for name, sink in self.sinks.items(): args += ["--consumer", name, "--sink", sink]
        return args

    def start(self, kind):
        self.born += 1
        if kind == "relay": return self.relay(*self.relay_args(), wait=False)
        name = f"p{self.born}"
        return self.spawn(PROGRAMS / "fault_producer", self.db, self.path(f"diary-{name}"), name,
                          self.random.randrange(1 << 30))

    def check_transactions(self, fates, events):
        """G1: row and events agree, whole or not at all. An event that a producer committed earlier has the lower seq."""
        rows = {(producer, n): count for producer, n, count in self.sql("SELECT * FROM ledger")}
        told = collections.Counter((producer, n) for producer, n, _ in events)
        for tx, (_, count) in fates.items():
            self.assertEqual(rows.get(tx, 0), told[tx], f"row and events of {tx} disagree")
            self.assertIn(told[tx], (0, count), f"{tx} is incomplete")
        last = {}
        for producer, n, i in events:
            self.assertLess(last.get(producer, (0, 0)), (n, i))
            last[producer] = (n, i)

    def check(self):
        fates = diary(self.dir)
        told = {(*tx, i): fate for tx, (fate, count) in fates.items() for i in range(count)}
        name = lambda text: (lambda p: (p["producer"], p["n"], p["i"]))(json.loads(text))
        rows = self.sql("SELECT seq, id, aggregate_id, payload FROM outbox_event ORDER BY seq")
        names = {seq: name(payload) for seq, _, _, payload in rows}
        self.check_transactions(fates, list(names.values()))
        c = self.checker(told, [(names[seq], Fact(key, seq, (id, key, text))) for seq, id, key, text in rows])
        for who in self.sinks:
            got = [(name(raw), (ev["id"], ev["aggregate_id"], raw)) for ev, raw in whole_lines(self.path(who))]
            dead = self.sql("SELECT seq FROM outbox_dead WHERE consumer = ?", who)
            # A claim that was lost, or vanished with its relay, may be repeated once.
            bound = (CLAIMS * self.vanished + self.lost_claims(who)) * BATCH
            c.consumer(who, got, [names[seq] for seq, in dead], bound)
        self.check_left(c)
        c.verdict()
        self.assertGreater(c.events, self.LEAST, "too few events and faults to prove anything")
        self.assertEqual(self.sql("PRAGMA integrity_check"), [("ok",)])

    def heal(self):
        self.drain(*self.relay_args())
        self.healed()


@on_each_store
class Emitters(Scenario):
    def test_killed_and_repeated_import_stores_each_line_once(self):
        """Idempotency keys make it safe to repeat the same import until it succeeds."""
        count, rng = 20000, random.Random(SEED)
        lines = self.path("import.ndjson")
        lines.write_text("".join(json.dumps({"type": "row.added", "payload": {"n": n}, "idempotency_key": f"row-{n}"})
                                 + "\n" for n in range(count)))
        self.init()
        kills = 0
        while True:
            child = self.spawn(BIN, "emit", "--ndjson", lines)
            try:
                child.popen.wait(rng.uniform(0.02, 0.1) if kills < 8 else TIMEOUT)
                break
            except subprocess.TimeoutExpired:
                child.kill()
                kills += 1
                self.fault("emitter killed")
        child.wait()
        if kills: self.healed()
        rows = self.ask("SELECT CAST(id AS text), CAST(payload AS text) FROM @event ORDER BY seq")
        stored = [(json.loads(payload)["n"], id) for id, payload in rows]
        c = self.checker(dict.fromkeys(range(count), COMMITTED), [(n, Fact("all", n, id)) for n, id in stored])
        c.consumer("the table itself", stored)
        c.verdict()
        self.assert_sound()
        self.assertGreater(kills, 0, "nothing was killed: the import is too short for this machine")


@on_each_store(but=("OnPostgres",))  # its claims have times of another clock
class Directed:
    """Crashes and stalls at chosen moments. The sink of the failing relay waits as long as the file `hold` exists, so that a
    test can wait for the moment."""

    LEASE = 1000

    def setUp(self):
        super().setUp()
        self.hold, self.out = self.path("hold"), self.path("out")
        self.hold.touch()
        self.init()

    def tearDown(self):
        self.hold.unlink(missing_ok=True)  # lets orphans end
        super().tearDown()

    def held_relay(self, *more):
        wait = f"while [ -e {self.hold} ]; do sleep 0.02; done; "
        return self.relay("--consumer", "mail", "--sink", "exec:" + wait + APPEND.format(out=self.out), "--batch", 2,
                          "--lease", f"{self.LEASE}ms", *more)

    def plain(self, *more):
        return ("--consumer", "mail", "--sink", "exec:" + APPEND.format(out=self.out), "--batch", 2,
                "--lease", f"{self.LEASE}ms", *more)

    def emit_numbers(self, first, last):
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": "1", "payload": n}
                        for n in range(first, last + 1)])

    def claims(self):
        return self.sql("SELECT epoch, locked_until FROM outbox_claim ORDER BY epoch")

    def two_claims(self, *more):
        """two_claims returns a relay that holds 1 and 2 in one claim, with 1 on its way, and 3 and 4 in a later one."""
        self.emit_numbers(1, 4)
        relay = self.held_relay(*more)
        wait_until(lambda: len(self.claims()) == 2, what=self.claims)
        return relay

    def freeze(self, relay):
        """freeze stops a relay. SQLite has one lock for all; elsewhere the server ends a stalled turn."""
        relay.freeze(self.db if self.store.startswith("sqlite:") else None)

    def lock(self):
        """lock returns a session that holds the lock a claim waits for, in a transaction."""
        if self.store.startswith("sqlite:"):
            db = sqlite3.connect(self.db, isolation_level=None)
            self.addCleanup(db.close)
            db.execute("BEGIN IMMEDIATE")
            return db
        cursor = self.connect().cursor()
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM outbox_consumer FOR UPDATE")
        return cursor

    def expire(self, epoch):
        """expire ends the lease of that claim for all workers, as time would."""
        self.ask("UPDATE @claim SET locked_until = 1 WHERE epoch = ?", epoch)

    def got(self):
        return [ev["payload"] for ev in self.ndjson(self.out)]

    def first(self):
        return list(dict.fromkeys(self.got()))

    def assert_clean(self, delivered):
        self.assertEqual(self.sql("SELECT delivered FROM outbox_consumer"), [(delivered,)])
        for table in ("outbox_claim", "outbox_parked", "outbox_dead"):
            self.assertEqual(self.sql(f"SELECT * FROM {table}"), [], f"left in {table}")

    def test_later_claim_that_expires_first_does_not_overtake(self):
        relay = self.two_claims()
        relay.kill()
        self.expire(self.claims()[1][0])
        self.drain(*self.plain())
        self.hold.unlink()
        self.assertEqual(self.first(), [1, 2, 3, 4])
        self.assert_clean(4)

    def test_relay_that_loses_one_claim_keeps_its_others_in_order(self):
        relay = self.two_claims()
        self.freeze(relay)
        (first, _), (second, _) = self.claims()
        self.expire(first)
        self.ask("UPDATE @claim SET lease = 60000, locked_until = locked_until + 60000 WHERE epoch = ?", second)
        other = self.held_relay()
        wait_until(lambda: "took over 2 events" in other.output(), what=other.output)
        other.kill()
        relay.signal(signal.SIGCONT)
        wait_until(lambda: "is lost" in relay.output(), what=relay.output)
        self.hold.unlink()
        wait_until(lambda: set(self.got()) == {1, 2, 3, 4}, what=lambda: (self.got(), relay.output()))
        self.assertEqual(self.first(), [1, 2, 3, 4])
        wait_until(lambda: not self.claims())
        relay.stop()
        self.assert_clean(4)

    def test_relay_with_an_expired_later_claim_keeps_the_order(self):
        relay = self.two_claims()
        self.expire(self.claims()[1][0])
        wait_until(lambda: self.claims()[1][1] > 1, what=relay.output)  # it matches no other consumer
        self.hold.unlink()
        wait_until(lambda: set(self.got()) == {1, 2, 3, 4}, what=lambda: (self.got(), relay.output()))
        self.assertEqual(self.first(), [1, 2, 3, 4])
        wait_until(lambda: not self.claims())
        relay.stop()
        self.assert_clean(4)

    def test_claim_that_takes_longer_than_its_lease_keeps_the_order(self):
        """The lock is held until the claim is older than its lease."""
        args = ("--consumer", "mail", "--sink", f"file:{self.out}", "--batch", 2, "--lease", "200ms", "--sweep", "20ms")
        relay = self.relay(*args)
        wait_until(lambda: self.sql("SELECT 1 FROM outbox_consumer"))
        for round in range(3):
            db = self.lock()
            for n in range(8):
                db.execute("INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) "
                           f"VALUES ('a', 'k', '1', '{8 * round + n}')")
            time.sleep(0.5)  # the fault itself
            db.execute("COMMIT")
            wait_until(lambda: set(self.got()) == set(range(8 * round + 8)), what=lambda: (self.got(), relay.output()))
            self.assertEqual(self.first(), list(range(8 * round + 8)), relay.output())
        relay.stop()
        self.assert_clean(24)

    def test_delayed_event_does_not_overtake_a_failing_one(self):
        broken = self.path("broken")
        broken.touch()
        self.emit_numbers(1, 1)
        self.emit("a", "k/1", 2, "--delay", "1500ms")
        vanishing = self.held_relay("--lease", "300ms")
        wait_until(self.claims)
        vanishing.kill()
        fails = f"if [ -e {broken} ] && [ $OUTBOX_SEQ = 1 ]; then exit 1; fi; "
        sink = "exec:" + fails + APPEND.format(out=self.out)
        with self.relay("--consumer", "mail", "--sink", sink, "--lease", "300ms",
                        "--retry", "base=100ms,cap=100ms,attempts=1000,outage=0s") as relay:
            wait_until(lambda: "took over 2 events" in relay.output(), what=relay.output)
            at, = self.ask("SELECT not_before FROM @event WHERE seq = 2")[0]
            wait_until(lambda: time.time() * 1000 > at + 300)
            self.assertEqual(self.got(), [])
            broken.unlink()
            wait_until(lambda: len(self.got()) == 2, what=relay.output)
        self.assertEqual(self.got(), [1, 2])
        self.assert_clean(2)

    def test_relay_stopped_past_its_lease_changes_nothing(self):
        """G5: the stalled relay's claim is lost, it reports that, and the other relay's work counts."""
        zombie = self.two_claims()
        self.freeze(zombie)
        self.drain(*self.plain())
        self.assertEqual(self.got(), [1, 2, 3, 4])
        self.assert_clean(4)
        epoch = self.sql("SELECT epoch FROM outbox_consumer")
        zombie.signal(signal.SIGCONT)
        wait_until(lambda: zombie.output().count("is lost") == 2, what=zombie.output)
        self.hold.unlink()
        wait_until(lambda: len(self.got()) == 5, what=self.got)  # the one command that was started ends
        self.emit_numbers(5, 6)
        wait_until(lambda: self.got()[5:] == [5, 6], what=self.got)
        self.assertEqual(self.got(), [1, 2, 3, 4, 1, 5, 6])
        zombie.stop()
        self.assertGreater(self.sql("SELECT epoch FROM outbox_consumer"), epoch)
        self.assert_clean(6)


class Poison(Scenario):
    """G9: only the event that kills the process becomes a dead letter; another consumer of the same process loses no event."""

    KEYS, remote = 5, True

    def run_until_through(self):
        """run_until_through restarts the program whenever it dies, as a supervisor does; it returns how often."""
        for deaths in range(100):
            status = self.spawn(PROGRAMS / "fault_poison", self.store, self.path("out")).wait(expect=None)
            if status == 0:
                self.healed()
                return deaths
            self.assertEqual(status, -signal.SIGKILL, self.children[-1].output())
            self.fault("worker killed by an event")
        self.fail("the program never completed")

    def seqs(self, name="out"):
        lines = self.path(name).read_text().splitlines()
        return [(int(line.split()[0]), line.split()[1]) for line in lines]

    def check(self, poison, total, bound):
        self.assertEqual(self.ask("SELECT consumer, seq, attempts FROM @dead ORDER BY seq"),
                         [("mail", seq, 3) for seq in poison], "dead letters")
        self.assertEqual(set(poison) & {seq for seq, _ in self.seqs()}, set(), "a poison event was delivered")
        events = self.ask("SELECT seq, aggregate_id FROM @event")
        c = self.checker(dict.fromkeys(range(1, total + 1), COMMITTED), [(seq, Fact(key, seq, key)) for seq, key in events])
        c.consumer("mail", self.seqs(), poison, bound)
        c.consumer("audit", self.seqs("out.audit"), (), bound)
        self.check_left(c)
        c.verdict()

    def emit_with(self, poison, total):
        self.init()
        self.emit_many([{"type": "poison" if n in poison else "food", "aggregate_type": "k",
                         "aggregate_id": str(n % self.KEYS)} for n in range(1, total + 1)])

    def test_only_the_poison_event_becomes_a_dead_letter(self):
        """An event that kills its worker becomes a dead letter, and no other event with it."""
        self.emit_with({20}, 40)
        deaths = self.run_until_through()
        self.check([20], 40, bound=40)
        # Once in the batch, then three times alone; also when "audit" had such an event in flight, which counts for neither. A
        # lease that expires on a busy server counts as an attempt, too.
        self.assertIn(deaths, range(2 if self.remote else 4, 10))

    def test_poison_events_of_two_keys_do_not_harm_others(self):
        """Several events that kill their workers become dead letters, and no other event with them."""
        self.emit_with({7, 12, 18}, 40)
        deaths = self.run_until_through()
        self.check([7, 12, 18], 40, bound=3 * 40)
        self.assertLessEqual(deaths, 9 * 3)

    def test_events_emitted_during_poison_attempts_are_delivered(self):
        """Events emitted while a poison event is being tried still arrive."""
        self.emit_with({3}, 5)
        first = self.spawn(PROGRAMS / "fault_poison", self.store, self.path("out"))
        first.wait(expect=-signal.SIGKILL)
        self.emit_many([{"type": "food", "aggregate_type": "k", "aggregate_id": str(n % self.KEYS)}
                        for n in range(6, 31)])
        self.run_until_through()
        self.check([3], 30, bound=30)


class PoisonOnSqlite(Poison, Case):
    remote = False


class PoisonOnPostgres(Poison, PgCase):
    PREFIX = "outbox."


class PoisonOnMariadb(Poison, MariaCase):
    pass
