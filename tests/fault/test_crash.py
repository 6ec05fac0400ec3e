"""kill -9, at random moments and at chosen ones, of producers and relays: what the guarantees G1, G2, G4, G5, G6 and G9
promise, checked against the producers' own diaries and what the sinks got.

The storms take their timing from a seed, printed when one fails: OUTBOX_SEED=N plays it again, as far as processes can
be played again. OUTBOX_SOAK=1 goes on for ten minutes, each round with another seed."""
import collections
import json
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import time

from support import BIN, SOAK, TIMEOUT, Case, wait_until

PROGRAMS = pathlib.Path(BIN).parent / "tests" / "fault"
SEED = int(os.environ.get("OUTBOX_SEED", random.SystemRandom().randrange(1 << 30)))
STORM = 4  # seconds
SOAK_STORM = 15
SOAK_TIME = 600
CLAIMS = 4  # the most a relay holds at once for one consumer
BATCH = 20
LEASE = 300  # ms

APPEND = "exec 9>>{out}; flock 9; cat >&9"
# Says "later" to every ninth event twice, and "never" to every fortieth.
FLAKY = ("exec:[ $((OUTBOX_SEQ % 40)) -ne 0 ] || exit 65; "
         "[ $((OUTBOX_SEQ % 9)) -ne 0 ] || [ $OUTBOX_ATTEMPT -gt 2 ] || exit 75; " + APPEND)


def say(text):
    print(text, file=sys.stderr, flush=True)


class Diary:
    """What the producers know: fates gives {(producer, n): (state, count)}, where the state is "c" (committed), "r"
    (rolled back) or "i" (killed in between: either will do)."""

    def __init__(self, folder):
        self.fates = {}
        for path in sorted(folder.glob("diary-*")):
            for line in path.read_text().splitlines():
                state, n, count = line.split()
                self.fates[path.name.removeprefix("diary-"), int(n)] = (state, int(count))

    def count(self, state):
        return sum(1 for fate in self.fates.values() if fate[0] == state)


class Storm(Case):
    """Producers and relays that are killed and started again, and relays that stand still for longer than their leases;
    then one relay that heals; then the reckoning."""

    def begin(self, seed, lanes):
        self.random = random.Random(seed)
        self.seed, self.lanes = seed, lanes
        self.kills = collections.Counter()
        self.born = 0
        self.outbox("init")
        self.sql("CREATE TABLE ledger (producer TEXT, n INTEGER, count INTEGER)")
        self.sinks = {"books": f"file:{self.path('books')}", "mail": "exec:" + APPEND.format(out=self.path("mail")),
                      "flaky": FLAKY.format(out=self.path("flaky")),
                      "slow": "exec:sleep 0.0$((OUTBOX_SEQ % 4)); " + APPEND.format(out=self.path("slow"))}

    def relay_args(self):
        args = ["--batch", BATCH, "--lease", f"{LEASE}ms", "--lanes", self.lanes, "--concurrency", 6,
                "--retry", "base=20ms,cap=100ms,attempts=6"]
        for name, sink in self.sinks.items(): args += ["--consumer", name, "--sink", sink]
        return args

    def start(self, kind):
        self.born += 1
        if kind == "relay": return self.relay(*self.relay_args(), wait=False)
        name = f"p{self.born}"
        return self.spawn(PROGRAMS / "fault_producer", self.db, self.path(f"diary-{name}"), name,
                          self.random.randrange(1 << 30))

    def rage(self, seconds):
        crew = {place: self.start(place[0]) for place in (("producer", 1), ("producer", 2), ("relay", 1), ("relay", 2),
                                                          ("relay", 3))}
        stopped = set()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self.random.choice((0.01, 0.05, 0.2, 0.4)))
            place = self.random.choice(sorted(crew))
            self.refuse_death(crew[place])
            if place in stopped:
                crew[place].signal(signal.SIGCONT)
                stopped.remove(place)
            elif place[0] == "relay" and self.random.random() < 0.3:
                crew[place].signal(signal.SIGSTOP)
                stopped.add(place)
                self.kills["stopped"] += 1
            else:
                crew[place].kill()
                self.kills[place[0]] += 1
                crew[place] = self.start(place[0])
        for place, process in sorted(crew.items()):
            self.refuse_death(process)
            process.kill()
            self.kills[place[0]] += 1

    def refuse_death(self, process):
        if not process.running(): self.fail(f"a process ended by itself:\n{process.output()}")

    def check_transactions(self, diary, events):
        """G1: what committed is there, what did not is not; the rest is there whole, with its row, or not at all."""
        rows = {(producer, n): count for producer, n, count in self.sql("SELECT * FROM ledger")}
        told = collections.Counter((ev["producer"], ev["n"]) for ev in events.values())
        self.assertEqual(set(told) - set(diary.fates), set(), "events nobody ever meant to emit")
        for tx, (state, count) in diary.fates.items():
            there = rows.get(tx, 0)
            self.assertEqual(there, told[tx], f"row and events of {tx} disagree")
            if state != "i" or there: self.assertEqual(there, 0 if state == "r" else count, f"{tx}: {state}")

    def check_consumer(self, name, events):
        """G2, G4, G6: everything arrived or is dead; first deliveries keep each key's order; repeats are few, and the
        same events."""
        got = self.ndjson(self.path(name))
        dead = {seq for seq, in self.sql("SELECT seq FROM outbox_dead WHERE consumer = ?", name)}
        arrived = {ev["seq"] for ev in got}
        self.assertEqual(set(events) - arrived - dead, set(), f"{name}: lost")
        self.assertEqual(arrived - set(events), set(), f"{name}: invented")
        for ev in got:
            self.assertEqual((ev["id"], ev["aggregate_id"], ev["payload"]), self.facts[ev["seq"]], f"{name}: changed")
        self.check_order(name, got)
        repeats = len(got) - len(arrived)
        bound = (CLAIMS * (self.kills["relay"] + self.kills["stopped"]) + self.lost_claims(name)) * BATCH
        self.assertLessEqual(repeats, bound, f"{name}: more repeats than the claims of the killed")
        return f"{name} {len(arrived)} + {len(dead - arrived)} dead, {repeats} repeats (bound {bound})"

    def check_order(self, name, got):
        last, seen = {}, set()
        for ev in got:
            if ev["seq"] in seen: continue
            seen.add(ev["seq"])
            before = last.get(ev["aggregate_id"], 0)
            self.assertLess(before, ev["seq"], f"{name}: key {ev['aggregate_id']} got {ev['seq']} after {before}")
            last[ev["aggregate_id"]] = ev["seq"]

    def lost_claims(self, name):
        logs = (child.output() for child in self.children if child.log.name.startswith("relay-"))
        return sum(f"consumer={name} claim" in line and "is lost" in line for log in logs for line in log.splitlines())

    def check_diary_order(self, diary, events):
        """What one producer committed first has the lower seq: order by seq is the order things happened in."""
        last = {}
        for seq, ev in sorted(events.items()):
            now = (ev["n"], ev["i"])
            self.assertLess(last.get(ev["producer"], (0, 0)), now)
            last[ev["producer"]] = now

    def reckon(self):
        rows = self.sql("SELECT seq, id, aggregate_id, payload FROM outbox_event")
        self.facts = {seq: (id, key, json.loads(payload)) for seq, id, key, payload in rows}
        events = {seq: facts[2] for seq, facts in self.facts.items()}
        diary = Diary(self.dir)
        self.check_transactions(diary, events)
        self.check_diary_order(diary, events)
        told = [self.check_consumer(name, events) for name in self.sinks]
        for table in ("outbox_claim", "outbox_parked"):
            self.assertEqual(self.sql(f"SELECT * FROM {table}"), [], f"left in {table}")
        self.assertEqual(self.sql("PRAGMA integrity_check"), [("ok",)])
        say(f"seed {self.seed}, lanes {self.lanes}: {diary.count('c')} transactions committed, {diary.count('r')} "
            f"rolled back, {diary.count('i')} cut off; {len(events)} events; killed {self.kills['producer']} producers "
            f"and {self.kills['relay']} relays, stopped {self.kills['stopped']} for a while; {'; '.join(told)}; lost 0")

    def round(self, seed, lanes, seconds):
        try:
            self.begin(seed, lanes)
            self.rage(seconds)
            self.drain(*self.relay_args())
            self.reckon()
        except BaseException:
            say(f"play it again with OUTBOX_SEED={seed}")
            raise

    def storm(self, lanes):
        self.round(SEED, lanes, SOAK_STORM if SOAK else STORM)
        end = time.monotonic() + SOAK_TIME / 2
        for n in range(1, 1 << 20):
            if not SOAK or time.monotonic() > end: break
            self.doCleanups()
            self.setUp()
            self.round(SEED + n, lanes, SOAK_STORM)

    def test_a_storm_of_kills_loses_invents_and_reorders_nothing(self):
        self.storm(lanes=1)

    def test_a_storm_of_kills_loses_invents_and_reorders_nothing_with_lanes(self):
        self.storm(lanes=4)


class Emitters(Case):
    def test_an_emitter_killed_and_repeated_leaves_each_line_exactly_once(self):
        """Idempotency keys make it safe to run the same import again until it gets through."""
        count, rng = 20000, random.Random(SEED)
        lines = self.path("import.ndjson")
        lines.write_text("".join(json.dumps({"type": "row.added", "payload": {"n": n}, "idempotency_key": f"row-{n}"})
                                 + "\n" for n in range(count)))
        self.outbox("init")
        kills = 0
        while True:
            child = self.spawn(BIN, "emit", "--ndjson", lines)
            try:
                child.popen.wait(rng.uniform(0.02, 0.1) if kills < 8 else TIMEOUT)
                break
            except subprocess.TimeoutExpired:
                child.kill()
                kills += 1
        child.wait()
        got = [json.loads(payload)["n"] for payload, in self.sql("SELECT payload FROM outbox_event ORDER BY seq")]
        self.assertEqual(got, list(range(count)))
        self.assertEqual(self.sql("PRAGMA integrity_check"), [("ok",)])
        self.assertGreater(kills, 0, "nothing was killed: the import is too short for this machine")


class Directed(Case):
    """Crashes and stalls at chosen moments. The sink of the relay that is going to fail waits as long as the file
    `hold` exists, so the moment can be waited for."""

    LEASE = 1000

    def setUp(self):
        super().setUp()
        self.hold, self.out = self.path("hold"), self.path("out")
        self.hold.touch()
        self.outbox("init")

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
        """two_claims gives a relay that holds 1 and 2 in one claim, with 1 on its way, and 3 and 4 in a later one."""
        self.emit_numbers(1, 4)
        relay = self.held_relay(*more)
        wait_until(lambda: len(self.claims()) == 2, what=self.claims)
        return relay

    def expire(self, epoch):
        """expire does what time does: the lease of that claim is over, for everybody."""
        self.sql("UPDATE outbox_claim SET locked_until = 1 WHERE epoch = ?", epoch)

    def got(self):
        return [ev["payload"] for ev in self.ndjson(self.out)]

    def first(self):
        return list(dict.fromkeys(self.got()))

    def assert_clean(self, delivered):
        self.assertEqual(self.sql("SELECT delivered FROM outbox_consumer"), [(delivered,)])
        for table in ("outbox_claim", "outbox_parked", "outbox_dead"):
            self.assertEqual(self.sql(f"SELECT * FROM {table}"), [], f"left in {table}")

    def test_a_later_claim_that_expires_first_does_not_overtake_an_earlier_one(self):
        relay = self.two_claims()
        relay.kill()
        self.expire(self.claims()[1][0])
        self.drain(*self.plain())
        self.hold.unlink()
        self.assertEqual(self.first(), [1, 2, 3, 4])
        self.assert_clean(4)

    def test_a_relay_that_lost_one_claim_goes_on_with_the_others_in_order(self):
        relay = self.two_claims()
        self.expire(self.claims()[0][0])
        wait_until(lambda: "is lost" in relay.output(), what=relay.output)
        self.hold.unlink()
        wait_until(lambda: set(self.got()) == {1, 2, 3, 4}, timeout=15, what=lambda: (self.got(), relay.output()))
        self.assertEqual(self.first(), [1, 2, 3, 4])
        wait_until(lambda: not self.claims())
        relay.stop()
        self.assert_clean(4)

    def test_a_relay_that_lost_its_later_claim_goes_on_in_order(self):
        relay = self.two_claims()
        self.expire(self.claims()[1][0])
        wait_until(lambda: "is lost" in relay.output(), what=relay.output)
        self.hold.unlink()
        wait_until(lambda: set(self.got()) == {1, 2, 3, 4}, timeout=15, what=lambda: (self.got(), relay.output()))
        self.assertEqual(self.first(), [1, 2, 3, 4])
        wait_until(lambda: not self.claims())
        relay.stop()
        self.assert_clean(4)

    def test_a_claim_that_took_longer_than_its_lease_to_get_does_not_misorder(self):
        """The lock is held for so long that the claim is older than its lease when the relay gets it."""
        args = ("--consumer", "mail", "--sink", f"file:{self.out}", "--batch", 2, "--lease", "200ms", "--sweep", "20ms")
        relay = self.relay(*args)
        wait_until(lambda: self.sql("SELECT 1 FROM outbox_consumer"))
        db = sqlite3.connect(self.db, isolation_level=None)
        for round in range(3):
            db.execute("BEGIN IMMEDIATE")
            for n in range(8):
                db.execute("INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) "
                           "VALUES ('a', 'k', '1', ?)", (str(8 * round + n),))
            time.sleep(0.5)  # the fault itself
            db.execute("COMMIT")
            wait_until(lambda: set(self.got()) == set(range(8 * round + 8)), what=lambda: (self.got(), relay.output()))
            self.assertEqual(self.first(), list(range(8 * round + 8)), relay.output())
        db.close()
        relay.stop()
        self.assert_clean(24)

    def test_a_delayed_event_taken_over_does_not_overtake_a_failing_one_of_its_key(self):
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
                        "--retry", "base=100ms,cap=100ms,attempts=1000") as relay:
            wait_until(lambda: "took over 2 events" in relay.output(), what=relay.output)
            at, = self.sql("SELECT not_before FROM outbox_event WHERE seq = 2")[0]
            wait_until(lambda: time.time() * 1000 > at + 300)
            self.assertEqual(self.got(), [])
            broken.unlink()
            wait_until(lambda: len(self.got()) == 2, what=relay.output)
        self.assertEqual(self.got(), [1, 2])
        self.assert_clean(2)

    def test_a_relay_stopped_past_its_lease_changes_nothing_when_it_comes_back(self):
        """G5: the zombie's claim is lost, it says so, and what the other did stays as it is."""
        zombie = self.two_claims()
        zombie.signal(signal.SIGSTOP)
        self.drain(*self.plain())
        self.assertEqual(self.got(), [1, 2, 3, 4])
        self.assert_clean(4)
        epoch = self.sql("SELECT epoch FROM outbox_consumer")
        zombie.signal(signal.SIGCONT)
        wait_until(lambda: zombie.output().count("is lost") == 2, what=zombie.output)
        self.hold.unlink()
        wait_until(lambda: len(self.got()) == 5, what=self.got)  # the one command that had been started ends
        self.emit_numbers(5, 6)
        wait_until(lambda: self.got()[5:] == [5, 6], what=self.got)
        self.assertEqual(self.got(), [1, 2, 3, 4, 1, 5, 6])
        zombie.stop()
        self.assertGreater(self.sql("SELECT epoch FROM outbox_consumer"), epoch)
        self.assert_clean(6)


class Poison(Case):
    """G9: an event that kills the process ends as a dead letter, alone; also a consumer of the same process that has
    nothing to do with it loses none."""

    KEYS = 5

    def run_until_through(self):
        """run_until_through starts it again whenever it died, as a supervisor does; gives how often."""
        for deaths in range(100):
            status = self.spawn(PROGRAMS / "fault_poison", self.db, self.path("out")).wait(expect=None)
            if status == 0: return deaths
            self.assertEqual(status, -signal.SIGKILL, self.children[-1].output())
        self.fail("it never got through")

    def seqs(self, name="out"):
        lines = self.path(name).read_text().splitlines()
        return [(int(line.split()[0]), line.split()[1]) for line in lines]

    def check(self, poison, total):
        events = {seq: key for seq, key in self.sql("SELECT seq, aggregate_id FROM outbox_event")}
        self.assertEqual(len(events), total)
        dead = self.sql("SELECT consumer, seq, attempts FROM outbox_dead ORDER BY seq")
        self.assertEqual(dead, [("mail", seq, 3) for seq in poison], "dead letters")
        got = self.seqs()
        self.assertEqual({seq for seq, _ in got}, set(events) - set(poison), "delivered")
        self.assertEqual({seq for seq, _ in self.seqs("out.audit")}, set(events), "delivered to the other consumer")
        for key in {key for _, key in got}:
            mine = list(dict.fromkeys(seq for seq, k in got if k == key))
            self.assertEqual(mine, sorted(mine), f"order of key {key}")
        for table in ("outbox_claim", "outbox_parked"): self.assertEqual(self.sql(f"SELECT * FROM {table}"), [])
        return len(got) - len(set(got))

    def emit_with(self, poison, total):
        self.outbox("init")
        self.emit_many([{"type": "poison" if n in poison else "food", "aggregate_type": "k",
                         "aggregate_id": str(n % self.KEYS)} for n in range(1, total + 1)])

    def test_a_poison_event_ends_as_a_dead_letter_alone(self):
        self.emit_with({20}, 40)
        deaths = self.run_until_through()
        repeats = self.check([20], 40)
        say(f"poison: died {deaths} times, {repeats} repeats")
        # Once in the batch, then three times alone.
        self.assertEqual(deaths, 4)
        self.assertLessEqual(repeats, 40)

    def test_two_poison_events_of_one_key_and_one_of_another_take_nobody_with_them(self):
        self.emit_with({7, 12, 18}, 40)
        deaths = self.run_until_through()
        repeats = self.check([7, 12, 18], 40)
        say(f"three poisons: died {deaths} times, {repeats} repeats")
        self.assertLessEqual(deaths, 4 * 3)

    def test_neighbours_emitted_while_it_is_being_tried_are_delivered(self):
        self.emit_with({3}, 5)
        first = self.spawn(PROGRAMS / "fault_poison", self.db, self.path("out"))
        first.wait(expect=-signal.SIGKILL)
        self.emit_many([{"type": "food", "aggregate_type": "k", "aggregate_id": str(n % self.KEYS)}
                        for n in range(6, 31)])
        self.run_until_through()
        self.check([3], 30)
