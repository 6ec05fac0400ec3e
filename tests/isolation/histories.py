"""Random histories on PostgreSQL against a model: writers begin, emit, set savepoints, roll back to them, prepare, commit and
roll back in any order, while workers claim, fail, bury, crash, keep claims open and release, and old events are trimmed. The
model's predictions are compared with each consumer's deliveries.

    class Random(World):
        def test_random_history_shows_no_violation(self):
            self.play(seed=1, steps=400, trouble=True)  # fails with all violations
"""
import collections
import random

from sessions_postgres import Exact
from support import wait_until

LEASE_MS = 600000  # only claims of workers that crash expire

class Writer:
    """One connection, and the model's knowledge of its transaction."""

    def __init__(self, session, world):
        self.session, self.world = session, world
        self.open, self.pending, self.marks = False, [], []

    def step(self, dice):
        if not self.open:
            self.session.do("BEGIN")
            self.open, self.pending, self.marks = True, [], []
            if dice.random() < 0.3: self.session.do("SELECT pg_current_xact_id()")
            return
        what = dice.choices(["emit", "savepoint", "back", "commit", "rollback", "prepare"], [60, 8, 6, 16, 5, 5])[0]
        getattr(self, what)(dice)

    def emit(self, dice):
        for _ in range(dice.choice([1, 1, 1, 2, 5, 20])):
            key = f"a/{dice.randrange(12)}" if dice.random() < 0.9 else None
            kind = dice.choice(["t.one", "t.two", "u.one"])
            self.pending.append((self.session.emit(key, kind), key, kind, self.world.now))

    def savepoint(self, dice):
        self.session.do(f"SAVEPOINT s{len(self.marks)}")
        self.marks.append(len(self.pending))

    def back(self, dice):
        if not self.marks: return
        n = dice.randrange(len(self.marks))
        self.session.do(f"ROLLBACK TO s{n}")
        del self.pending[self.marks[n]:]
        del self.marks[n + 1:]

    def commit(self, dice=None):
        self.session.do("COMMIT")
        self.world.committed(self.pending)
        self.open = False

    def rollback(self, dice=None):
        self.session.do("ROLLBACK")
        self.open = False

    def prepare(self, dice):
        if not self.world.two_phase: return
        name = f"{self.world.dbname}_{self.world.now}"
        self.session.do(f"PREPARE TRANSACTION '{name}'")
        self.world.prepared.append((name, self.pending))
        self.open = False


class Reader:
    """A consumer: the events it received, in order, and those it buried. Its workers, if allowed, sometimes fail, bury, crash,
    release, or keep a claim open while others continue."""

    def __init__(self, session, name, trouble, ordering="key", kinds=("t.one", "t.two", "u.one")):
        self.session, self.name, self.trouble, self.ordering, self.kinds = session, name, trouble, ordering, kinds
        self.seen, self.crashed, self.buried, self.in_hand, self.workers = [], set(), set(), [], 0

    def step(self, dice, world):
        """step settles a claim that it holds, or claims once; it returns whether it had work."""
        if self.in_hand and (not self.trouble or dice.random() < 0.4):
            self.settle(dice, world, *self.in_hand.pop(0))
            return True
        crash = self.trouble and dice.random() < 0.08
        worker = f"w{self.workers}"
        # A lease of a millisecond simulates a crash of the worker: nothing is settled.
        epoch, events = self.session.claim(self.name, worker, dice.choice([1, 2, 7, 30, 30 if crash else 1000]),
                                           1 if crash else LEASE_MS, 1000)
        if epoch is None: return False
        if crash:
            self.workers += 1
            tried = dice.randrange(len(events) + 1)
            self.seen += [(e[0], world.now) for e in events[:tried] if not e[3]]
            self.crashed |= {e[0] for e in events}
        elif self.trouble and len(self.in_hand) < 3 and dice.random() < 0.2:
            self.workers += 1
            self.in_hand.append((epoch, worker, events))
        else:
            self.settle(dice, world, epoch, worker, events)
        return True

    def settle(self, dice, world, epoch, worker, events):
        """settle delivers the claimed events, or fails to, and records the outcome."""
        outcomes, given_back, failing = [], 0, set()
        if self.trouble and dice.random() < 0.15: given_back = dice.choice(events)[0]
        for seq, _, key, held in events:
            if given_back and seq >= given_back: break
            stuck = key is not None and self.ordering == "key" and key in failing
            if held or stuck:
                outcomes.append({"seq": seq, "kind": "behind"})
                if key: failing.add(key)
            elif self.trouble and dice.random() < 0.05:
                # It waits for a moment, in which others run, or continues at once.
                outcomes.append({"seq": seq, "kind": "retry", "delay_ms": dice.choice([1, 200]), "error": "boom"})
                if key: failing.add(key)
            elif self.trouble and dice.random() < 0.03:
                outcomes.append({"seq": seq, "kind": "dead", "error": "never"})
                self.buried.add(seq)
            else:
                self.seen.append((seq, world.now))
        if not self.session.settle(self.name, epoch, worker, outcomes, given_back):
            raise AssertionError(f"{self.name}: a live claim was lost")

    def check(self, world):
        """check compares the deliveries with the model: every event once, no other, each key in order. It returns the
        violations."""
        wanted = {seq for seq, e in world.events.items() if e[1] in self.kinds}
        got = [seq for seq, _ in self.seen]
        dead = {seq for seq, in self.session.do("SELECT seq FROM @.dead WHERE consumer = %s", self.name)}
        twice = {seq for seq, n in collections.Counter(got).items() if n > 1}
        early = {seq for seq, at in self.seen if seq in world.events and at <= world.events[seq][3]}
        wrong = {"lost": wanted - set(got) - self.buried, "never committed, or not wanted": set(got) - wanted,
                 "handed out before it was committed": early, "handed out twice though nothing crashed": twice - self.crashed,
                 "buried, and no dead letter": self.buried - dead, "a dead letter that nobody buried": dead - self.buried}
        found = [f"{self.name}: {what}: {sorted(seqs)}" for what, seqs in wrong.items() if seqs]
        if self.ordering == "key": found += self.check_order(world)
        return found

    def check_order(self, world):
        place, keys = {}, {}
        for i, (seq, _) in enumerate(self.seen): place.setdefault(seq, i)
        for seq in sorted(place, key=place.get):
            if seq in world.events: keys.setdefault(world.events[seq][0], []).append(seq)
        keys.pop(None, None)
        for key, seqs in keys.items():
            first = None  # the first one committed among the later ones
            for b in reversed(seqs):
                if first and world.events[first][3] < world.events[b][2]:
                    yield f"{self.name}: {b}, written after {first} of {key} was committed, overtook it"
                if not first or world.events[b][3] < world.events[first][3]: first = b


class World(Exact):
    two_phase = False  # whether the server allows prepared transactions

    def begin(self, schema):
        """begin creates a separate world in a schema."""
        self.outbox("--store", f"{self.store}&schema={schema}", "init")
        self.start_model(schema)

    def start_model(self, schema):
        self.now, self.events, self.prepared, self.schema = 0, {}, [], schema
        self.trimmed = 0

    def committed(self, pending):
        for seq, key, kind, written in pending: self.events[seq] = (key, kind, written, self.now)

    def end_prepared(self, dice):
        if not self.prepared: return
        name, pending = self.prepared.pop(dice.randrange(len(self.prepared)))
        if dice.random() < 0.7:
            self.boss.do(f"COMMIT PREPARED '{name}'")
            self.committed(pending)
        else:
            self.boss.do(f"ROLLBACK PREPARED '{name}'")

    def readers(self, trouble):
        specs = [("plain", "key", 1, ""), ("lanes", "key", 4, ""), ("any", "none", 2, ""), ("some", "key", 1, "t.*"),
                 ("whole", "global", 1, "")]
        made = []
        for name, ordering, lanes, events in specs:
            self.register(name, events, ordering, lanes, session=self.boss)
            kinds = ("t.one", "t.two") if events else ("t.one", "t.two", "u.one")
            made.append(Reader(self.session(schema=self.schema), name, trouble and name != "whole", ordering, kinds))
        return made

    def play(self, seed, steps, trouble):
        dice = random.Random(seed)
        self.begin(f"w{seed}_{trouble}")
        self.boss = self.session(schema=self.schema)
        readers = self.readers(trouble)
        writers = [Writer(self.session(schema=self.schema), self) for _ in range(dice.choice([3, 8, 14]))]
        self.plant(writers, readers)
        for self.now in range(1, steps + 1):
            roll = dice.random()
            if roll < 0.65: dice.choice(writers).step(dice)
            elif roll < 0.93: dice.choice(readers).step(dice, self)
            elif roll < 0.96: self.end_prepared(dice)
            elif roll < 0.99: self.trimmed += self.boss.do("SELECT events FROM @.trim('0', 50)")[0][0]
            else: self.boss.do(dice.choice(["VACUUM @.lane", "ANALYZE @.event", "VACUUM @.event"]))
        self.finish(dice, writers, readers)
        wrong = [complaint for r in readers for complaint in r.check(self)]
        if not wrong: self.check_trim()
        for s in [self.boss, *(w.session for w in writers), *(r.session for r in readers)]: s.close()
        self.assertEqual(wrong, [])

    def plant(self, writers, readers):
        """plant is the hook by which a test of the model plants a bug in the outbox."""

    def finish(self, dice, writers, readers):
        for w in writers:
            self.now += 1
            if w.open: w.commit() if dice.random() < 0.7 else w.rollback()
        while self.prepared:
            self.now += 1
            self.end_prepared(dice)
        for r in readers: r.trouble = False

        def through():
            self.now += 1
            busy = [r for r in readers if r.step(dice, self)]
            return not busy and self.boss.do("SELECT (SELECT count(*) FROM @.parked) + (SELECT count(*) FROM @.claim)") == [(0,)]
        wait_until(through)

    def check_trim(self):
        """All events that every consumer has received may be trimmed; and none was trimmed earlier (or a consumer would have
        lost it)."""
        while self.boss.do("SELECT more FROM @.trim('0', 1000)")[0][0]: pass
        self.assertEqual(self.boss.do("SELECT count(*) FROM @.event"), [(0,)])
