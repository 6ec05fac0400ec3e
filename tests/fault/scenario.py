"""Shared by the scenarios of this folder: each states its invariant, counts its faults, runs the one checker, and prints one
line of figures to the TAP output:

    # figures: {"scenario": "...", "invariant": "...", "events": 812, "faults": {"relay killed": 9}, "lost": 0, ...}

    class Storm(Scenario, Case):
        def test_repeated_kills_lose_nothing(self):
            '''Whichever process is killed: committed events are delivered, in order.'''
            self.rounds(self.storm)

The docstring's first paragraph is the invariant. heal_s is the time from the end of the last fault until everything that
was committed had been delivered; where there were several rounds, the longest, and `heals` has all of them."""
import json
import os
import random
import signal
import sys
import time

from checker import COMMITTED, Checker, Fact, tally, whole_lines
from support import SOAK, wait_until

SEED = int(os.environ.get("OUTBOX_SEED", random.SystemRandom().randrange(1 << 30)))
SOAK_TIME = int(os.environ.get("OUTBOX_SOAK_SECONDS", 300))  # of one scenario that is played in rounds
CLAIMS = 4  # the most a relay holds at once for one consumer
KEYS = 5

APPEND = "exec 9>>{out}; flock 9; cat >&9"
# Defers every ninth event twice, and rejects every fortieth.
FLAKY = ("exec:[ $((OUTBOX_SEQ % 40)) -ne 0 ] || exit 65; "
         "[ $((OUTBOX_SEQ % 9)) -ne 0 ] || [ $OUTBOX_ATTEMPT -gt 2 ] || exit 75; " + APPEND)


def say(text):
    print(text, file=sys.stderr, flush=True)


def peak(pid):
    """peak is the most memory that a process has had so far, in KiB."""
    with open(f"/proc/{pid}/status") as f: return next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))


class Scenario:
    """A mixin for a Case. PREFIX precedes the names of the outbox's tables."""

    PREFIX = "outbox_"

    def run(self, result=None):
        self.faults, self.checkers, self.heals = {}, [], []
        self.fault_end = None
        try:
            return super().run(result)
        finally:
            if self.checkers: self.print_figures()

    # ---- faults ----

    def fault(self, kind, n=1):
        """fault counts an injected fault that is over."""
        self.faults[kind] = self.faults.get(kind, 0) + n
        self.fault_end = time.monotonic()

    def fault_over(self):
        """fault_over marks the end of a fault that was counted at its start."""
        self.fault_end = time.monotonic()

    def healed(self):
        """healed: everything has been delivered, at this moment."""
        self.heals.append(round(time.monotonic() - self.fault_end, 2))

    # ---- the outcome ----

    def checker(self, told, stored):
        """checker creates the checker; its counts become figures."""
        self.checkers.append(Checker(told, stored))
        return self.checkers[-1]

    def held(self):
        """held returns the claims and the parked events that are left."""
        return [row for name in ("claim", "parked") for row in self.sql(f"SELECT * FROM {self.PREFIX}{name}")]

    def wait_let_go(self):
        """wait_let_go waits until everything that was delivered has been settled."""
        wait_until(lambda: not self.held(), what=lambda: f"left: {self.held()}")

    def check_left(self, checker):
        """check_left: a relay releases its claims within a moment."""
        for _ in range(200):
            if not self.held(): break
            time.sleep(0.05)
        checker.left("claims and parked events", self.held())

    def print_figures(self):
        counts = tally(self.checkers)
        line = {"scenario": self.id(), "invariant": self.invariant(), "events": sum(c.events for c in self.checkers),
                "faults": self.faults, "lost": counts["lost"], "phantoms": counts["phantoms"] + counts["changed"],
                "misordered": counts["misordered"], "duplicates": counts["duplicates"], "bound": counts["bound"],
                "heal_s": max(self.heals, default=None)}
        if len(self.heals) > 1: line["heals"] = self.heals
        os.write(int(os.environ.get("OUTBOX_TAP", 1)), f"# figures: {json.dumps(line)}\n".encode())

    def invariant(self):
        text = (self._testMethodDoc or type(self).__doc__ or "").strip().split("\n\n")[0]
        return " ".join(text.split())

    # ---- rounds ----

    def rounds(self, play, short, long=15):
        """rounds plays once for `short` seconds; in a soak repeatedly for SOAK_TIME, each round from the start with another
        seed."""
        end = time.monotonic() + SOAK_TIME
        for n in range(1 << 20):
            self.seed = SEED + n
            self.random = random.Random(self.seed)
            try:
                play(long if SOAK else short)
            except BaseException:
                say(f"play it again with OUTBOX_SEED={self.seed}")
                raise
            if not SOAK or time.monotonic() > end: break
            self.anew()

    def anew(self):
        self.doCleanups()
        self.setUp()

    def refuse_death(self, process):
        if not process.running(): self.fail(f"a process exited unexpectedly:\n{process.output()}")

    def lost_claims(self, consumer):
        """lost_claims counts the lost claims in relays' logs: each may repeat a batch, like a crash."""
        logs = (child.output() for child in self.children if child.log.name.startswith("relay-"))
        return sum(f"consumer={consumer} claim" in line and "is lost" in line for log in logs for line in log.splitlines())


class Crew:
    """Producers and relays of a scenario, which has start(kind): {place: process}, where a place is (kind, number)."""

    LEAST = 10  # events that prove something
    vanished = 0  # relays that were killed or stopped: the claims of each may be repeated

    def crew(self, producers, relays):
        places = [("producer", n) for n in range(producers)] + [("relay", n) for n in range(relays)]
        return {place: self.start(place[0]) for place in places}

    def kill(self, place, process):
        process.kill()
        self.fault(f"{place[0]} killed")
        self.vanished += place[0] == "relay"

    def dismiss(self, crew):
        for place, process in sorted(crew.items()):
            self.refuse_death(process)
            self.kill(place, process)

    def rage(self, crew, seconds):
        """rage kills them at random moments and starts others, and stops relays for longer than their leases. It ends by
        killing all, once producers have done enough: on a busy machine they start late."""
        stopped, end = set(), time.monotonic() + seconds
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
                self.fault("relay stopped")
                self.vanished += 1
            else:
                self.kill(place, crew[place])
                crew[place] = self.start(place[0])
        for place in stopped: crew[place].signal(signal.SIGCONT)
        wait_until(lambda: self.happened() > self.LEAST, what="too few events and faults to prove anything")
        self.dismiss(crew)

    def happened(self):
        return self.sql(f"SELECT count(*) FROM {self.PREFIX}event")[0][0]


class Numbers(Scenario):
    """Events are numbers, KEYS keys in turn, and `emit` confirmed each as committed."""

    def setUp(self):
        super().setUp()
        self.out, self.sent = self.path("out"), 0

    def send(self, n, store=None):
        first, self.sent = self.sent, self.sent + n
        lines = "".join(json.dumps({"type": "a", "aggregate_type": "k", "aggregate_id": str(i % KEYS), "payload": i}) + "\n"
                        for i in range(first, first + n))
        self.outbox("emit", "--ndjson", "-", "--store", store or self.store, input=lines)

    def got(self):
        """got returns [(number, id)] in order of arrival."""
        return [(ev["payload"], ev["id"]) for ev, _ in whole_lines(self.out)]

    def missing(self):
        return sorted(set(range(self.sent)) - {n for n, _ in self.got()})

    def wait_all(self, *relays, timeout=60):
        """wait_all waits until everything was delivered."""
        wait_until(lambda: not self.missing(), timeout, lambda: "".join(
            [f"missing {len(self.missing())}: {self.missing()[:20]}\n", *(r.output()[-4000:] for r in relays)]))

    def heal(self, *relays, timeout=60):
        self.wait_all(*relays, timeout=timeout)
        self.healed()

    def reckon(self, bound, dead=()):
        stored = [(n, Fact(n % KEYS, n, id)) for n, id in self.stored()]
        c = self.checker(dict.fromkeys(range(self.sent), COMMITTED), stored)
        c.consumer("out", self.got(), dead, bound)
        self.check_left(c)
        c.verdict()
        return c

    def stored(self):
        """stored returns [(number, id)] of the outbox itself."""
        rows = self.ask("SELECT CAST(payload AS text), CAST(id AS text) FROM @event ORDER BY seq")
        return [(int(payload), id) for payload, id in rows]
